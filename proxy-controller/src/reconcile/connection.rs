//! From an EtcdUpstream and its Secrets to connections.

use std::time::Duration;

use etcd_proxy::{
    prefix::Prefix,
    tls::{ClientTlsPem, Pem},
};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt as _};

use crate::{
    api::EtcdUpstream,
    objects::UpstreamFiles,
    status::Problem,
    upstream::{Shared, SharedConfig, Upstreams},
};

/// How long the shared etcd gets for one call.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes connections, and keeps them for as long as nothing about them changes.
pub struct Connector {
    client: Client,
    namespace: String,
    upstreams: Upstreams,
}

impl Connector {
    /// For the controller in `namespace`, where the Secrets are.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned(), upstreams: Upstreams::default() }
    }

    /// The connections made last for the EtcdUpstream of this name.
    pub fn known(&self, name: &str) -> Option<Shared> {
        self.upstreams.known(name)
    }

    /// Drops the connections of an EtcdUpstream that is gone.
    pub fn forget(&self, name: &str) {
        self.upstreams.forget(name);
    }

    /// The connections to the shared etcd of an EtcdUpstream, and the files behind them.
    ///
    /// # Errors
    /// When the API server cannot be asked. The inner error says what is wrong with the EtcdUpstream or its Secrets.
    pub async fn connect(
        &self,
        upstream: &EtcdUpstream,
    ) -> Result<Result<(Shared, UpstreamFiles), Problem>, kube::Error> {
        let files = match self.files(upstream).await? {
            Ok(files) => files,
            Err(problem) => return Ok(Err(problem)),
        };
        Ok(self.shared(upstream, &files).map(|shared| (shared, files)))
    }

    fn shared(&self, upstream: &EtcdUpstream, files: &UpstreamFiles) -> Result<Shared, Problem> {
        let invalid = |error: &dyn std::fmt::Display| {
            Problem::new("UpstreamInvalid", format!("EtcdUpstream {} cannot be used: {error}", upstream.name_any()))
        };
        let meta = Prefix::new(upstream.spec.meta_prefix.clone()).map_err(|error| invalid(&error))?;
        let tls = files.ca.as_ref().map(|ca| {
            let pem = |what: &str, text: &[u8]| {
                Pem::new(format!("{what} of EtcdUpstream {}", upstream.name_any()), text.to_vec())
            };
            let tls = ClientTlsPem::new(pem("the CA", ca));
            match &files.client {
                Some((cert, key)) => tls.with_identity(pem("the client certificate", cert), pem("the client key", key)),
                None => tls,
            }
        });
        let mut config = SharedConfig::new(upstream.spec.endpoints.clone(), tls, meta);
        config.timeout = PATIENCE;
        self.upstreams.get(&upstream.name_any(), &config).map_err(|error| invalid(&error))
    }

    async fn files(&self, upstream: &EtcdUpstream) -> Result<Result<UpstreamFiles, Problem>, kube::Error> {
        let Some(tls) = &upstream.spec.tls else { return Ok(Ok(UpstreamFiles::default())) };
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let read = async |name: &str| secrets.get_opt(name).await;
        let missing = |name: &str, key: &str| {
            let namespace = &self.namespace;
            let message = format!(
                "Secret {namespace}/{name}, which EtcdUpstream {} refers to, has no {key}, or is not there",
                upstream.name_any()
            );
            Problem::new("UpstreamSecretMissing", message)
        };
        let entry = |secret: &Option<Secret>, key: &str| {
            secret.as_ref().and_then(|secret| secret.data.as_ref()?.get(key)).map(|bytes| bytes.0.clone())
        };
        let ca_ref = &tls.ca_secret_ref;
        let Some(ca) = entry(&read(&ca_ref.name).await?, &ca_ref.key) else {
            return Ok(Err(missing(&ca_ref.name, &ca_ref.key)));
        };
        let client = match &tls.client_secret_ref {
            None => None,
            Some(reference) => {
                let secret = read(&reference.name).await?;
                match (entry(&secret, "tls.crt"), entry(&secret, "tls.key")) {
                    (Some(cert), Some(key)) => Some((cert, key)),
                    (None, _) => return Ok(Err(missing(&reference.name, "tls.crt"))),
                    (_, None) => return Ok(Err(missing(&reference.name, "tls.key"))),
                }
            }
        };
        Ok(Ok(UpstreamFiles { ca: Some(ca), client }))
    }
}
