//! The webhook's certificate in its Secret, and the CA bundle in the ValidatingWebhookConfiguration.
//!
//! Every replica follows the Secret and serves with what is in it, within a watch event of its change. Whoever finds no
//! Secret makes one; the API server lets one of several win. Everything later is the leader's: renewal, a new CA, and the
//! `caBundle` of every webhook in the configuration, which is the only field that is written there, under a field manager of
//! its own.
//!
//! Rights: in the own namespace `create` of `secrets`, and `list`, `watch` and `patch` of the Secret
//! `proxy-controller-webhook`; `list`, `watch` and `patch` of the one ValidatingWebhookConfiguration. `resourceNames` may
//! name both objects, since the watches select them by `metadata.name`.

use std::{collections::BTreeMap, error::Error, pin::pin, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use etcd_proxy::tls::ServerTlsSource;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::Secret},
};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, watcher::watch_object},
};
use rustls::ServerConfig;
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    material::{Change, Material, MaterialError, SETTLING, Step},
    metrics::WebhookMetrics,
};

/// The Secret's name.
const SECRET: &str = "proxy-controller-webhook";
/// The Secret's type: other programs know what to expect in it.
const SECRET_TYPE: &str = "kubernetes.io/tls";
/// Who owns `caBundle`.
const FIELD_MANAGER: &str = "proxy-controller-webhook";
/// Pause after something failed.
const RETRY: Duration = Duration::from_secs(5);
/// How often a configuration that is not there is missed aloud.
const MISSING: Duration = Duration::from_secs(60);
/// Longest time without a look at the clock: a suspended machine's timers lag behind it.
const LOOK: Duration = Duration::from_secs(600);
/// For one request to the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Whose certificate it is.
#[derive(Clone, Debug)]
pub struct WebhookIdentity {
    /// The controller's namespace.
    pub namespace: String,
    /// The Service by which API servers reach the webhook.
    pub service: String,
}

/// The webhook's certificate. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct WebhookCertificate(Arc<Inner>);

struct Inner {
    /// `<service>.<namespace>.svc`: the name that API servers expect.
    name: String,
    secrets: Api<Secret>,
    stored: watch::Sender<Stored>,
    tls: watch::Sender<Option<Arc<ServingTls>>>,
    metrics: WebhookMetrics,
}

/// The TLS configuration of new connections.
#[derive(Debug)]
pub struct ServingTls(ArcSwap<ServerConfig>);

/// The Secret as it was last seen.
#[derive(Clone, Debug)]
enum Stored {
    Unknown,
    /// Not there; with what it held before, if this replica knows.
    Absent(Option<Arc<Material>>),
    /// Not usable, for whatever reason; likewise.
    Broken(Arc<Secret>, Option<Arc<Material>>),
    Usable(Arc<Secret>, Arc<Material>),
}

/// The configuration as it was last seen.
enum Configured {
    Unknown,
    Absent,
    Present(Box<ValidatingWebhookConfiguration>),
}

/// Since when the configuration has had this bundle everywhere.
struct Published {
    bundle: String,
    since: Instant,
}

/// Why the leader could not do its part now.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Material(#[from] MaterialError),
    #[error("no answer from the API server within {REQUEST_TIMEOUT:?}")]
    TimedOut,
}

/// The leader's part.
struct Keeper<'a> {
    certificate: &'a Inner,
    secrets: Api<Secret>,
    configurations: Api<ValidatingWebhookConfiguration>,
    /// The configuration's name.
    name: &'a str,
    configured: Configured,
    published: Option<Published>,
    missed: Option<Instant>,
}

// === impl WebhookCertificate ===

impl WebhookCertificate {
    /// A certificate that is not loaded yet.
    pub fn new(client: Client, identity: &WebhookIdentity, metrics: WebhookMetrics) -> Self {
        Self(Arc::new(Inner {
            name: format!("{}.{}.svc", identity.service, identity.namespace),
            secrets: Api::namespaced(client, &identity.namespace),
            stored: watch::Sender::new(Stored::Unknown),
            tls: watch::Sender::new(None),
            metrics,
        }))
    }

    /// Waits until there is a certificate to serve with. It changes from then on, but does not go away.
    pub async fn loaded(&self) -> Option<Arc<ServingTls>> {
        let mut tls = self.0.tls.subscribe();
        tls.wait_for(Option::is_some).await.ok().and_then(|tls| tls.clone())
    }

    /// Follows the Secret, and makes it if there is none, until `stop`. Every replica does so.
    pub async fn follow(&self, stop: &CancellationToken) {
        stop.run_until_cancelled(self.0.follow()).await;
    }

    /// Keeps certificate and configuration right until `leading` fires. `client` is the leader's, `configuration` the name of
    /// the ValidatingWebhookConfiguration.
    pub async fn keep(&self, client: Client, configuration: &str, leading: &CancellationToken) {
        let namespace = self.0.secrets.namespace().unwrap_or_default();
        let keeper = Keeper {
            certificate: &self.0,
            secrets: Api::namespaced(client.clone(), namespace),
            configurations: Api::all(client),
            name: configuration,
            configured: Configured::Unknown,
            published: None,
            missed: None,
        };
        leading.run_until_cancelled(keeper.run()).await;
    }
}

// === impl Inner ===

impl Inner {
    async fn follow(&self) {
        let mut secrets = pin!(watch_object(self.secrets.clone(), SECRET).default_backoff());
        while let Some(event) = secrets.next().await {
            match event {
                Ok(Some(secret)) => self.load(secret),
                Ok(None) => {
                    let known = self.stored.borrow().material();
                    self.stored.send_replace(Stored::Absent(known));
                    self.create_until_there(&mut secrets).await;
                }
                Err(error) => {
                    let error = &error as &dyn Error;
                    tracing::warn!(error, secret = SECRET, "cannot watch the webhook's certificate, trying again");
                }
            }
        }
    }

    /// Tries to make the Secret until somebody has.
    async fn create_until_there(
        &self,
        secrets: &mut (impl futures::Stream<Item = Result<Option<Secret>, kube::runtime::watcher::Error>> + Unpin),
    ) {
        loop {
            match timeout(REQUEST_TIMEOUT, self.create()).await.unwrap_or(Err(KeepError::TimedOut)) {
                Ok(Some(secret)) => return self.load(secret),
                // Another replica was faster, and the watch brings what it made.
                Ok(None) => return,
                Err(error) => {
                    let error = &error as &dyn Error;
                    tracing::warn!(error, secret = SECRET, "cannot store the webhook's certificate, trying again");
                }
            }
            tokio::select! {
                () = sleep(RETRY) => {}
                event = secrets.next() => if let Some(Ok(Some(secret))) = event { return self.load(secret) },
            }
        }
    }

    async fn create(&self) -> Result<Option<Secret>, KeepError> {
        let known = self.stored.borrow().material();
        let material = Material::recovered(known.as_deref(), &self.name, Timestamp::now())?;
        let secret = Secret {
            metadata: ObjectMeta { name: Some(SECRET.to_owned()), labels: Some(labels()), ..ObjectMeta::default() },
            type_: Some(SECRET_TYPE.to_owned()),
            data: Some(material.data()),
            ..Secret::default()
        };
        match self.secrets.create(&PostParams::default(), &secret).await {
            Ok(secret) => {
                tracing::info!(secret = SECRET, name = self.name, "made the webhook's CA and certificate");
                Ok(Some(secret))
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the Secret's contents into use. What is unusable changes nothing for connections.
    fn load(&self, secret: Secret) {
        let data = secret.data.clone().unwrap_or_default();
        let secret = Arc::new(secret);
        if let Stored::Usable(known, _) = &*self.stored.borrow()
            && known.data.as_ref() == Some(&data)
            && known.metadata.resource_version == secret.metadata.resource_version
        {
            return;
        }
        let stored = match read(&data) {
            Ok((material, config)) => {
                self.serve_with(&material, config);
                Stored::Usable(secret, Arc::new(material))
            }
            Err(error) => {
                let error = &error as &dyn Error;
                tracing::error!(
                    error,
                    secret = SECRET,
                    "the webhook's certificate is unusable; the leader makes a new one"
                );
                Stored::Broken(secret, self.stored.borrow().material())
            }
        };
        self.stored.send_replace(stored);
    }

    fn serve_with(&self, material: &Material, config: ServerConfig) {
        self.metrics.loaded(material.expires().as_second());
        let config = Arc::new(config);
        let current = self.tls.borrow().clone();
        match current {
            Some(tls) => tls.0.store(config),
            None => _ = self.tls.send_replace(Some(Arc::new(ServingTls(ArcSwap::new(config))))),
        }
        tracing::info!(expires = %material.expires(), "the webhook serves with the certificate from its Secret");
    }
}

// === impl Stored ===

impl Stored {
    fn material(&self) -> Option<Arc<Material>> {
        match self {
            Self::Unknown => None,
            Self::Absent(known) | Self::Broken(_, known) => known.clone(),
            Self::Usable(_, material) => Some(material.clone()),
        }
    }
}

impl ServerTlsSource for ServingTls {
    fn server_config(&self) -> Arc<ServerConfig> {
        self.0.load_full()
    }
}

#[cfg(test)]
impl ServingTls {
    pub(super) fn of_test(material: &Material) -> Self {
        Self(ArcSwap::from_pointee(material.server_config().unwrap()))
    }

    pub(super) fn change_for_test(&self, material: &Material) {
        self.0.store(Arc::new(material.server_config().unwrap()));
    }
}

// === impl Keeper ===

impl Keeper<'_> {
    async fn run(mut self) {
        let mut stored = self.certificate.stored.subscribe();
        let mut configurations = pin!(watch_object(self.configurations.clone(), self.name).default_backoff());
        loop {
            let now = stored.borrow_and_update().clone();
            let acted = timeout(REQUEST_TIMEOUT, self.act(&now)).await.unwrap_or(Err(KeepError::TimedOut));
            let pause = acted.unwrap_or_else(|error| {
                let error = &error as &dyn Error;
                tracing::warn!(error, "cannot keep the webhook's certificate right, trying again");
                RETRY
            });
            tokio::select! {
                changed = stored.changed() => if changed.is_err() { return },
                event = configurations.next() => match event {
                    Some(Ok(Some(configuration))) => self.configured = Configured::Present(Box::new(configuration)),
                    Some(Ok(None)) => self.configured = Configured::Absent,
                    Some(Err(error)) => {
                        let error = &error as &dyn Error;
                        tracing::warn!(error, name = self.name, "cannot watch the ValidatingWebhookConfiguration, trying again");
                    }
                    None => return,
                },
                () = sleep(pause) => {}
            }
        }
    }

    /// Does what is to be done now. Answers for how long there is nothing to do.
    async fn act(&mut self, stored: &Stored) -> Result<Duration, KeepError> {
        let now = Timestamp::now();
        match stored {
            // To be followed first, and made by whoever sees that it is not there.
            Stored::Unknown | Stored::Absent(_) => Ok(LOOK),
            Stored::Broken(secret, known) => {
                let material = Material::recovered(known.as_deref(), &self.certificate.name, now)?;
                self.store(secret, &material, Change::Everything).await?;
                Ok(LOOK)
            }
            Stored::Usable(secret, material) => {
                let bundle = material.bundle();
                self.publish(&bundle).await?;
                let published = self.published.as_ref().filter(|published| published.bundle == bundle);
                let published = published.map(|published| published.since.elapsed());
                match material.step(&self.certificate.name, published, now) {
                    Step::Change(change) => {
                        let material = material.changed(change, &self.certificate.name, now)?;
                        self.store(secret, &material, change).await?;
                        Ok(LOOK)
                    }
                    Step::Keep { until } => {
                        let until = Duration::try_from(until.duration_since(now)).unwrap_or_default();
                        Ok(until.clamp(Duration::from_secs(1), self.pause(published)))
                    }
                }
            }
        }
    }

    fn pause(&self, published: Option<Duration>) -> Duration {
        match (published, &self.configured) {
            (_, Configured::Absent) => MISSING,
            // One more second, so that it is over then.
            (Some(published), _) if published < SETTLING => SETTLING - published + Duration::from_secs(1),
            _ => LOOK,
        }
    }

    /// Changes the Secret as it was read and nobody has changed since.
    async fn store(&self, secret: &Secret, material: &Material, change: Change) -> Result<(), KeepError> {
        let wanted = material.data();
        let stale = secret.data.iter().flatten().filter(|(key, _)| !wanted.contains_key(*key));
        let mut data: BTreeMap<&str, Option<&ByteString>> = stale.map(|(key, _)| (key.as_str(), None)).collect();
        data.extend(wanted.iter().map(|(key, value)| (key.as_str(), Some(value))));
        let patch = json!({
            // With the version, a change under another's hands is a conflict.
            "metadata": { "uid": secret.metadata.uid, "resourceVersion": secret.metadata.resource_version },
            "data": data,
        });
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let secret = self.secrets.patch(SECRET, &parameters, &Patch::Merge(patch)).await?;
        tracing::info!(?change, secret = SECRET, "changed the webhook's CA or certificate");
        self.certificate.load(secret);
        Ok(())
    }

    /// Sees to it that every webhook of the configuration has the bundle, and notes since when.
    async fn publish(&mut self, bundle: &str) -> Result<(), KeepError> {
        let configuration = match &self.configured {
            Configured::Unknown => return Ok(()),
            Configured::Present(configuration) => configuration,
            Configured::Absent => {
                if self.missed.is_none_or(|missed| missed.elapsed() >= MISSING) {
                    self.missed = Some(Instant::now());
                    tracing::warn!(
                        name = self.name,
                        "there is no such ValidatingWebhookConfiguration: EtcdProxy objects are not checked when they are \
                         applied; apply the manifests, or name another one by --webhook-configuration"
                    );
                }
                // Nobody trusts anything: nobody has to be waited for.
                self.note(bundle);
                return Ok(());
            }
        };
        self.missed = None;
        if let Some(patch) = patch(configuration, bundle) {
            self.published = None;
            let parameters = PatchParams::apply(FIELD_MANAGER).force();
            let patched = self.configurations.patch(self.name, &parameters, &Patch::Apply(patch)).await?;
            tracing::info!(name = self.name, "put the CA bundle into the ValidatingWebhookConfiguration");
            self.configured = Configured::Present(Box::new(patched));
        }
        self.note(bundle);
        Ok(())
    }

    fn note(&mut self, bundle: &str) {
        if self.published.as_ref().is_none_or(|published| published.bundle != bundle) {
            self.published = Some(Published { bundle: bundle.to_owned(), since: Instant::now() });
        }
    }
}

fn read(data: &BTreeMap<String, ByteString>) -> Result<(Material, ServerConfig), MaterialError> {
    let material = Material::parse(data)?;
    let config = material.server_config()?;
    Ok((material, config))
}

/// What puts the bundle where it is missing; `None` if it is everywhere.
///
/// All webhooks are named, also those that are right: what is applied is what the field manager owns. With the uid, a
/// configuration that has gone meanwhile is not made anew.
pub(super) fn patch(configuration: &ValidatingWebhookConfiguration, bundle: &str) -> Option<serde_json::Value> {
    let bundle = ByteString(bundle.as_bytes().to_vec());
    let webhooks = configuration.webhooks.as_deref().unwrap_or_default();
    if webhooks.iter().all(|webhook| webhook.client_config.ca_bundle.as_ref() == Some(&bundle)) {
        return None;
    }
    let webhooks: Vec<_> = webhooks
        .iter()
        .map(|webhook| json!({ "name": webhook.name, "clientConfig": { "caBundle": bundle } }))
        .collect();
    Some(json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": configuration.metadata.name, "uid": configuration.metadata.uid },
        "webhooks": webhooks,
    }))
}

fn labels() -> BTreeMap<String, String> {
    [("app.kubernetes.io/managed-by".to_owned(), "proxy-controller".to_owned())].into()
}

impl std::fmt::Debug for WebhookCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebhookCertificate").field("name", &self.0.name).finish_non_exhaustive()
    }
}
