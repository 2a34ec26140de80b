//! The loop: what changed is looked at, brought to what it is to be, and reported in its status.
//!
//! **Invariant:** a pass can be repeated from any point: everything it does is decided from what it reads, and everything that
//! must not be done twice is guarded by a precondition where it is done (uid, resource version, the claim's revision).

pub mod apply;
mod certificates;
mod cleanup;
pub mod connection;
mod orphans;
mod proxy;
mod queue;
pub mod stores;
mod upstream;
mod usage;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::{
        events::{Event, Recorder, Reporter},
        reflector::ObjectRef,
    },
};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use self::{
    apply::{Applier, ApplyError, namespace_missing},
    connection::Connector,
    queue::{Grouped, Queue},
    stores::{Change, Changes, Stores, Watching},
    usage::Usages,
};
use crate::{
    api::{EtcdProxy, EtcdProxyStatus, EtcdUpstream},
    leader::Fence,
    metrics::{Metrics, Outcome, ReadyState},
    objects::{Names, UpstreamFiles},
    pki::PkiError,
    status::{self, Notice, Problem, READY},
    upstream::{Shared, SharedError},
};

/// The field manager of status.
const STATUS_MANAGER: &str = "proxy-controller-status";

/// When everything is looked at again, though nothing changed: what is not watched (the claim in etcd) may have.
const RESYNC: Duration = Duration::from_secs(3600);

/// The first wait after a failure; it doubles with each further one.
const FIRST_RETRY: Duration = Duration::from_millis(500);

/// The longest wait after failures.
const LAST_RETRY: Duration = Duration::from_secs(60);

/// What is fixed for the process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The controller's namespace.
    pub namespace: String,
    /// The cluster's DNS domain.
    pub cluster_domain: String,
    /// The image of etcd-proxy where an EtcdUpstream names none.
    pub image: String,
    /// Objects that are looked at at the same time.
    pub concurrency: u16,
    /// Who tells events.
    pub instance: String,
}

/// Everything that passes share.
pub struct Context {
    client: Client,
    settings: Settings,
    stores: Stores,
    applier: Applier,
    connector: Connector,
    usages: Usages,
    recorder: Recorder,
    metrics: Metrics,
    failures: Failures,
    /// The EtcdUpstreams that did not answer when they were last looked at.
    unreachable: Mutex<BTreeSet<String>>,
    /// The statuses that this process wrote last, by uid, with the version that they made.
    written: Mutex<HashMap<String, (String, EtcdProxyStatus)>>,
    /// When the figures of each EtcdUpstream were last written.
    figures_told: Mutex<HashMap<String, tokio::time::Instant>>,
    /// The claims of each EtcdUpstream that could not be read when they were last looked at.
    damaged: Mutex<HashMap<String, BTreeSet<Vec<u8>>>>,
    /// Writes to etcd end with the leadership, too.
    fence: Fence,
    changes: Arc<Changes>,
}

/// How often each object has failed in a row.
#[derive(Default)]
struct Failures(Mutex<HashMap<ObjectRef<EtcdProxy>, u32>>);

/// Why a pass did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// An object is not as it is to be.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The API server refuses, or cannot be reached.
    #[error("{doing}: {source}")]
    Api {
        /// What was to be done.
        doing: &'static str,
        /// What went wrong.
        source: kube::Error,
    },
    /// The certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The shared etcd.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// Another process leads.
    #[error(transparent)]
    LeadershipLost(#[from] crate::leader::LeadershipLost),
}

impl PassError {
    fn api(doing: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api { doing, source }
    }

    /// For metrics.
    fn reason(&self) -> &'static str {
        match self {
            Self::Apply(error) => error.reason(),
            Self::Api { .. } => "ApiError",
            Self::Pki(_) => "CertificateError",
            Self::Shared(error) if error.is_unreachable() => "UpstreamUnreachable",
            Self::Shared(_) => "UpstreamError",
            Self::LeadershipLost(_) => "LeadershipLost",
        }
    }
}

/// Runs until `stop`, or the lead is lost. `watching` follows the API server already; `client` writes only while `fence` is open.
pub async fn run(
    client: Client,
    settings: Settings,
    watching: Watching,
    metrics: Metrics,
    fence: Fence,
    stop: CancellationToken,
) {
    let Watching { stores, changes } = watching;
    let reporter = Reporter { controller: "proxy-controller".to_owned(), instance: Some(settings.instance.clone()) };
    let context = Arc::new(Context {
        applier: Applier::new(client.clone(), &settings.namespace, stores.clone()),
        recorder: Recorder::new(client.clone(), reporter),
        connector: Connector::new(client.clone(), &settings.namespace),
        usages: Usages::default(),
        failures: Failures::default(),
        unreachable: Mutex::default(),
        written: Mutex::default(),
        figures_told: Mutex::default(),
        damaged: Mutex::default(),
        client,
        stores,
        metrics,
        fence,
        changes,
        settings,
    });
    if let Some(Err(error)) = stop.run_until_cancelled(context.stores.filled()).await {
        tracing::error!(%error, "the caches ended before they were filled");
        return;
    }
    let tasks = TaskTracker::new();
    tasks.spawn(usage::count(context.clone(), stop.clone()));
    tasks.spawn(orphans::sweep(context.clone(), stop.clone()));
    tasks.spawn(fleet(context.clone(), stop.clone()));
    work(&context, &tasks, &stop).await;
    tasks.close();
    tasks.wait().await;
}

/// Looks at everything at first, then at what changed and at what is due, until `stop`; what is under way then comes to its end.
async fn work(context: &Arc<Context>, tasks: &TaskTracker, stop: &CancellationToken) {
    let mut upstreams = upstream::Watchers::new(context.clone(), tasks.clone(), stop.clone());
    let mut queue = Queue::new(context.settings.concurrency.into());
    context.everything().into_iter().for_each(|object| queue.push(object));
    let mut passes = FuturesUnordered::new();
    while !stop.is_cancelled() {
        while let Some(object) = queue.take(Instant::now()) {
            passes.push(pass(context.clone(), object));
        }
        let due = queue.next_due();
        tokio::select! {
            () = stop.cancelled() => {}
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            Some((object, again)) = passes.next() => queue.done(object, Instant::now(), again),
            changes = context.changes.next() => for change in changes {
                match change {
                    Change::Proxy(object) => queue.push(object),
                    Change::Upstream(name) => {
                        upstreams.changed(&name);
                        context.referring_to(&name).into_iter().for_each(|object| queue.push(object));
                    }
                    Change::Tenants(name) => upstreams.changed(&name),
                    Change::Everything => {
                        upstreams.all_changed();
                        context.everything().into_iter().for_each(|object| queue.push(object));
                    }
                }
            },
        }
    }
    while passes.next().await.is_some() {}
}

/// One pass over an object, if it is there. Answers when it is to be looked at again.
async fn pass(context: Arc<Context>, object: ObjectRef<EtcdProxy>) -> (ObjectRef<EtcdProxy>, Option<Duration>) {
    let Some(proxy) = context.stores.proxies.get(&object) else { return (object, None) };
    let span = tracing::info_span!("pass", proxy = %format!("{}/{}", object.group(), object.name));
    let again = async {
        match proxy::reconcile(proxy.clone(), &context).await {
            Ok(again) => again,
            Err(error) => proxy::failed(&proxy, &error, &context),
        }
    };
    let again = again.instrument(span).await;
    let there = context.stores.proxies.get(&object);
    if there.is_none_or(|there| there.metadata.uid != proxy.metadata.uid) {
        // It went during the pass, which may have made something all the same.
        context.stores.gone.push(proxy.uid().unwrap_or_default());
    }
    (object, Some(again))
}

/// Keeps the metrics of all proxies.
async fn fleet(context: Arc<Context>, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(Duration::from_secs(15));
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let proxies = context.stores.proxies.state();
        let states: Vec<_> = proxies
            .iter()
            .map(|proxy| {
                let conditions = proxy.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
                match conditions.iter().find(|condition| condition.type_ == READY) {
                    Some(ready) if ready.status == "True" => (ReadyState::True, ""),
                    Some(ready) if ready.status == "False" => (ReadyState::False, ready.reason.as_str()),
                    _ => (ReadyState::Unknown, ""),
                }
            })
            .collect();
        context.metrics.fleet.set_proxies(states);
        let expiries = proxies
            .iter()
            .filter_map(|proxy| Some(proxy.status.as_ref()?.certificates.as_ref()?.not_after.0.as_second()));
        context.metrics.fleet.set_next_expiry(expiries);
    }
}

// === impl Context ===

impl Context {
    fn everything(&self) -> Vec<ObjectRef<EtcdProxy>> {
        self.stores.proxies.state().iter().map(|proxy| ObjectRef::from_obj(proxy.as_ref())).collect()
    }

    fn referring_to(&self, upstream: &str) -> Vec<ObjectRef<EtcdProxy>> {
        let proxies = self.stores.proxies.state();
        let referring = proxies.iter().filter(|proxy| upstream_of(proxy) == upstream);
        referring.map(|proxy| ObjectRef::from_obj(proxy.as_ref())).collect()
    }

    fn names(&self, proxy: &EtcdProxy) -> Names {
        let (namespace, uid) = (proxy.namespace().unwrap_or_default(), proxy.uid().unwrap_or_default());
        let Settings { namespace: own, cluster_domain, .. } = &self.settings;
        Names::new(&namespace, &proxy.name_any(), &uid, own, cluster_domain)
    }

    async fn connected(&self, upstream: &EtcdUpstream) -> Result<Result<(Shared, UpstreamFiles), Problem>, PassError> {
        self.connector.connect(upstream).await.map_err(PassError::api("read the upstream's Secrets"))
    }

    /// Applies a status to the object with this uid, and to no later one of the same name.
    async fn apply_status<K>(&self, api: &Api<K>, object: &K, status: &impl Serialize) -> Result<K, PassError>
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        let body = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": {"name": object.name_any(), "uid": object.uid()},
            "status": status,
        });
        let params = PatchParams::apply(STATUS_MANAGER).force();
        api.patch_status(&object.name_any(), &params, &Patch::Apply(&body))
            .await
            .map_err(PassError::api("write the status"))
    }

    /// Forgets what was remembered of EtcdProxies that are gone.
    fn forget_gone(&self, known: &BTreeSet<String>) {
        self.written.lock().retain(|uid, _| known.contains(uid));
        self.usages.retain(known);
        self.applier.retain_owners(known);
        self.failures.0.lock().retain(|proxy, _| self.stores.proxies.get(proxy).is_some());
    }

    /// Tells events. One that cannot be told is not worth a pass.
    async fn tell<K: Resource<DynamicType = ()>>(&self, object: &K, notices: Vec<Notice>) {
        for Notice { severity, reason, action, related, note } in notices {
            let note = note_within(note);
            let event =
                Event { type_: severity, reason, note: Some(note), action: action.to_owned(), secondary: related };
            match self.recorder.publish(&event, &object.object_ref(&())).await {
                Ok(()) => {}
                Err(kube::Error::Api(status)) if namespace_missing(&status) => {
                    tracing::debug!(event.reason, "no event is told in a namespace that goes");
                }
                Err(error) => tracing::warn!(%error, event.reason, "an event could not be told"),
            }
        }
    }
}

/// The name of the EtcdUpstream that an EtcdProxy refers to.
pub fn upstream_of(proxy: &EtcdProxy) -> &str {
    &proxy.spec.upstream_ref.name
}

/// As much of a note as the API admits: 1024 bytes (`noteLengthLimit`).
fn note_within(mut note: String) -> String {
    const MOST: usize = 1024;
    if note.len() > MOST {
        note.truncate(note.floor_char_boundary(MOST - '…'.len_utf8()));
        note.push('…');
    }
    note
}

/// Logs what conditions of an object now say that they did not say before.
fn log_changes(kind: &str, name: &str, old: &[Condition], new: &[Condition]) {
    let judged = status::changed(old, new).filter(|condition| condition.reason != "NotLookedAt");
    for Condition { type_, status, reason, message, .. } in judged {
        tracing::info!(kind, name, condition = type_, status, reason, "{message}");
    }
}

impl Grouped for ObjectRef<EtcdProxy> {
    /// Tenants are namespaces.
    fn group(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }
}

// === impl Failures ===

impl Failures {
    /// Counts one more, and says how long to wait.
    fn after_another(&self, object: ObjectRef<EtcdProxy>) -> Duration {
        let mut failures = self.0.lock();
        let failed = failures.entry(object).or_default();
        let wait = FIRST_RETRY.saturating_mul(2_u32.saturating_pow((*failed).min(16))).min(LAST_RETRY);
        *failed = failed.saturating_add(1);
        // Those that failed together are not tried again together.
        wait.mul_f64(0.75 + rand::random::<f64>() / 2.0)
    }

    fn none(&self, object: &ObjectRef<EtcdProxy>) {
        self.0.lock().remove(object);
    }
}

/// For metrics: how a pass ended.
fn outcome(result: &Result<(), PassError>, blocked: Option<&'static str>) -> (Outcome, &'static str) {
    match (result, blocked) {
        (Err(error), _) => (Outcome::Error, error.reason()),
        (Ok(()), Some(reason)) => (Outcome::Blocked, reason),
        (Ok(()), None) => (Outcome::Success, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_as_long_as_the_api_admits_in_bytes() {
        for (note, length) in [("a".repeat(1024), 1024), ("ä".repeat(1000), 1023), ("𝄞".repeat(900), 1023)] {
            let within = note_within(note.clone());
            assert_eq!(within.len(), length);
            assert!(note.starts_with(within.trim_end_matches('…')));
        }
        assert_eq!(note_within("as it is".to_owned()), "as it is");
    }
}
