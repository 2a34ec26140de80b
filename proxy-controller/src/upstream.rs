//! The controller's side of the shared etcds: who holds which prefix, how much a tenant stores, and deleting what it
//! stored. Nothing of Kubernetes is in here; plain values go in and come out.
//!
//! A [`Shared`] is a connection to one of them. Every call on it ends within its time limit, and what fails says which
//! endpoint failed and why, in words that fit a condition. Nothing is retried here that may have reached etcd; every
//! operation may be called again until it succeeds.

mod claims;
mod deletion;
mod error;
mod probe;
mod tracker;
mod usage;

use std::{collections::HashMap, fmt::Write as _, future::Future, sync::Arc, time::Duration};

use etcd_proxy::{
    meta::MetaLayout,
    prefix::Prefix,
    tls::{ClientTls, ClientTlsPem},
    upstream::{Endpoint, Kv, Upstream, UpstreamConfig},
};
use parking_lot::Mutex;
use proto::etcdserverpb::kv_client::KvClient;
use tokio::time::timeout;
use tonic::{Code, Status};

pub use self::{
    claims::{Claiming, Heirloom, Holder, Release},
    deletion::{Deletion, Progress},
    error::{SharedConfigError, SharedError},
    probe::{EndpointProbe, Probe},
    tracker::UsageTracker,
    usage::Usage,
};

/// The longest that one call may take unless the configuration says otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes of one answer with keys or values. A page whose answer is larger is asked for again in smaller parts, down to
/// a single key, which etcd's own limit keeps far below this (`--max-request-bytes`, 1.5 MiB by default).
const MAX_ANSWER: usize = 32 << 20;

/// How to reach one shared etcd. Two that are equal lead to the same connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedConfig {
    /// The members' client URLs.
    pub endpoints: Vec<String>,
    /// CA and client certificate for the endpoints that speak TLS.
    pub tls: Option<ClientTlsPem>,
    /// Where the meta keys lie.
    pub meta_prefix: Prefix,
    /// The longest that one call may take.
    pub timeout: Duration,
}

/// Connections to one shared etcd. Cheap to clone; nothing is dialled before the first call.
#[derive(Clone, Debug)]
pub struct Shared {
    upstream: Upstream,
    meta: MetaLayout,
    config: Arc<SharedConfig>,
    /// The endpoints, for messages.
    endpoints: Arc<[Endpoint]>,
}

/// The connections to all shared etcds, by name. Connections are made anew when their configuration changes.
#[derive(Debug, Default)]
pub struct Upstreams {
    all: Mutex<HashMap<String, Shared>>,
}

/// How many keys to ask for at once, so that answers stay below a bound in bytes.
#[derive(Clone, Copy, Debug)]
struct PageSize(i64);

// === impl SharedConfig ===

impl SharedConfig {
    /// A configuration with the default time limit.
    pub fn new(endpoints: Vec<String>, tls: Option<ClientTlsPem>, meta_prefix: Prefix) -> Self {
        Self { endpoints, tls, meta_prefix, timeout: TIMEOUT }
    }
}

// === impl Upstreams ===

impl Upstreams {
    /// The connections of the shared etcd called `name`: those that are there if they were made with this very
    /// configuration, otherwise new ones in their place.
    ///
    /// # Errors
    /// When the configuration makes no sense; earlier connections are forgotten then, too.
    pub fn get(&self, name: &str, config: &SharedConfig) -> Result<Shared, SharedConfigError> {
        let mut all = self.all.lock();
        if let Some(shared) = all.get(name)
            && shared.config() == config
        {
            return Ok(shared.clone());
        }
        all.remove(name);
        let shared = Shared::new(config.clone())?;
        all.insert(name.to_owned(), shared.clone());
        Ok(shared)
    }

    /// The connections of the shared etcd called `name`, if there are any.
    pub fn known(&self, name: &str) -> Option<Shared> {
        self.all.lock().get(name).cloned()
    }

    /// Forgets the connections of the shared etcd called `name`.
    pub fn forget(&self, name: &str) {
        self.all.lock().remove(name);
    }
}

// === impl Shared ===

impl Shared {
    /// Prepares the connections.
    ///
    /// # Errors
    /// When the endpoints or certificates cannot be used.
    pub fn new(config: SharedConfig) -> Result<Self, SharedConfigError> {
        let tls = config.tls.clone().map(ClientTls::load).transpose()?.map(Arc::new);
        let mut endpoints = Vec::with_capacity(config.endpoints.len());
        for text in &config.endpoints {
            let endpoint = Endpoint::parse(text, tls.is_some())?;
            endpoint.server_name()?;
            if endpoint.tls && tls.is_none() {
                return Err(SharedConfigError::NoCa(endpoint.to_string()));
            }
            endpoints.push(endpoint);
        }
        if endpoints.is_empty() {
            return Err(SharedConfigError::NoEndpoint);
        }
        let dial_timeout = config.timeout.min(Duration::from_secs(5));
        let upstream = Upstream::new(UpstreamConfig { dial_timeout, ..UpstreamConfig::new(endpoints.clone(), tls) });
        let meta = MetaLayout::new(config.meta_prefix.clone());
        Ok(Self { upstream, meta, config: Arc::new(config), endpoints: endpoints.into() })
    }

    /// What it was made with.
    pub fn config(&self) -> &SharedConfig {
        &self.config
    }

    /// The endpoints, as messages name them.
    pub fn endpoints(&self) -> String {
        let names: Vec<_> = self.endpoints.iter().map(Endpoint::to_string).collect();
        names.join(", ")
    }

    /// A client whose answers are bounded.
    fn pages(&self) -> Kv {
        KvClient::new(self.upstream.unary()).max_decoding_message_size(MAX_ANSWER)
    }

    /// Waits for `work`, but not longer than the time limit. `doing` ends the sentence "cannot …".
    async fn within<T>(&self, doing: &'static str, work: impl Future<Output = T>) -> Result<T, SharedError> {
        let limit = self.config.timeout;
        timeout(limit, work).await.map_err(|_| SharedError::Timeout { doing, endpoints: self.endpoints(), limit })
    }

    /// [`Shared::within`] for one call of etcd.
    async fn call<T>(
        &self,
        doing: &'static str,
        work: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, SharedError> {
        let answer = self.within(doing, work).await?;
        Ok(answer.map_err(|status| self.error(doing, status))?.into_inner())
    }

    /// What a status says about the shared etcd.
    fn error(&self, doing: &'static str, status: Status) -> SharedError {
        let failures = self.upstream.failures();
        // Every endpoint failed, and what failed is known better than by the status, which is written for tenants.
        if status.code() == Code::Unavailable && failures.len() == self.endpoints.len() {
            let mut reasons = String::new();
            for (endpoint, reason) in failures {
                let separator = if reasons.is_empty() { "" } else { "; " };
                // Writing to a String cannot fail.
                let _written = write!(reasons, "{separator}{endpoint}: {reason}");
            }
            return SharedError::Unreachable { doing, reasons };
        }
        let (code, message) = (status.code(), status.message().to_owned());
        SharedError::Refused { doing, endpoints: self.endpoints(), code, message }
    }
}

// === impl PageSize ===

impl PageSize {
    /// After an answer that was refused for its size: a smaller page, or none if that cannot be it.
    fn after(self, status: &Status) -> Option<Self> {
        // tonic's own status; etcd's texts begin with its name.
        let too_large = status.code() == Code::OutOfRange && status.message().contains("message length too large");
        (too_large && self.0 > 1).then(|| Self((self.0 / 4).max(1)))
    }
}
