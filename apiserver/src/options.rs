//! Flags, under the names that k8s.io/apiserver gives them, and what is made of them.
//!
//! [`RecommendedOptions`] is a clap group to flatten into a program's own flags. [`RecommendedOptions::config`] opens what
//! the flags name (port, certificates, storage, clients of the cluster) and comes back with a [`Config`] that is ready to be
//! completed.

pub mod admission;
pub mod authentication;
pub mod authorization;
pub mod duration;
pub mod etcd;
pub mod missing;
pub mod run;
pub mod serving;
mod standalone;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use tokio::sync::watch;

use self::{
    admission::AdmissionOptions, authentication::DelegatingAuthenticationOptions,
    authorization::DelegatingAuthorizationOptions, etcd::EtcdOptions, missing::MissingFeatures, run::ServerRunOptions,
    serving::SecureServingOptions, standalone::StandaloneOptions,
};
use crate::{
    authentication::{Authenticator, cluster::LookupError},
    authorization::Authorizer,
    delegation::{self, ClientError},
    server::{Check, Config, VersionInfo, certificates::CertificateError, config::Serving},
    storage::{Revision, Storage},
};

/// The flags of an aggregated API server (k8s.io/apiserver `pkg/server/options/recommended.go`).
#[derive(Args, Clone, Debug)]
pub struct RecommendedOptions {
    /// Where objects are kept.
    #[command(flatten)]
    pub etcd: EtcdOptions,
    /// The port and its certificates.
    #[command(flatten)]
    pub secure_serving: SecureServingOptions,
    /// Whom to believe.
    #[command(flatten)]
    pub authentication: DelegatingAuthenticationOptions,
    /// Who may do what.
    #[command(flatten)]
    pub authorization: DelegatingAuthorizationOptions,
    /// What looks at writes before they happen.
    #[command(flatten)]
    pub admission: AdmissionOptions,
    /// The cluster.
    #[command(flatten)]
    pub core_api: CoreApiOptions,
    /// Limits, times and habits.
    #[command(flatten)]
    pub run: ServerRunOptions,
    /// Whether to stand alone.
    #[command(flatten)]
    pub standalone: StandaloneOptions,
    /// Flags of features that are not here.
    #[command(flatten)]
    pub missing: MissingFeatures,
}

/// The cluster whose namespaces the server lives by.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Core API")]
pub struct CoreApiOptions {
    /// The kubeconfig of the cluster, for admission plugins (with the right to get, list and watch namespaces). Without it,
    /// the cluster in whose pod this runs.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// All that flags lead to.
pub struct RecommendedConfig {
    /// The server's configuration, to be completed.
    pub config: Config<Serving, Arc<dyn Authenticator>, Arc<dyn Authorizer>>,
    /// Where objects are kept.
    pub storage: Arc<dyn Storage>,
    /// Up to which revision history has been compacted by this server, if it does that.
    pub compacted: Option<watch::Receiver<Revision>>,
    /// A client of the cluster; `None` when the server stands alone.
    pub cluster: Option<kube::Client>,
    /// How long a watch lasts at least that does not say so itself.
    pub min_watch_timeout: Duration,
    /// Of a server that stands alone, the file by which kubectl finds it.
    pub kubeconfig: Option<PathBuf>,
}

/// Why flags lead to no server.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// Flags make no sense.
    #[error("{}", .0.join("\n"))]
    Invalid(Vec<String>),
    /// The port cannot be listened on.
    #[error("cannot listen on {address} (--bind-address, --secure-port): {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// The serving certificate is unusable.
    #[error("the serving certificate: {0}")]
    Certificate(#[from] CertificateError),
    /// A CA is unusable.
    #[error("the CA {}: {why}", path.display())]
    Ca {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// There is no cluster to ask.
    #[error("{flag}: {error}. Outside of a cluster, --standalone with --storage-backend=memory needs none")]
    Delegation {
        /// The flag that would name it.
        flag: &'static str,
        /// Why.
        error: ClientError,
    },
    /// The cluster does not say whom to believe.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The storage cannot be opened.
    #[error("the storage: {0}")]
    Storage(#[from] crate::storage::etcd3::OptionsError),
    /// The kubeconfig of a server that stands alone cannot be written.
    #[error("the kubeconfig of the server: {0}")]
    Kubeconfig(String),
}

// === impl RecommendedOptions ===

impl RecommendedOptions {
    /// Looks for mistakes in the flags, all of them at once.
    ///
    /// # Errors
    /// [`OptionsError::Invalid`] with one line for each.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let mut errors = Vec::new();
        self.etcd.validate(&mut errors);
        self.secure_serving.validate(&mut errors);
        self.authentication.validate(&mut errors);
        self.authorization.validate(&mut errors);
        self.run.validate(&mut errors);
        self.standalone.validate(self, &mut errors);
        self.missing.validate(&mut errors);
        if errors.is_empty() { Ok(()) } else { Err(OptionsError::Invalid(errors)) }
    }

    /// Opens what the flags name.
    ///
    /// # Errors
    /// When flags are wrong, or something that they name cannot be opened.
    pub async fn config(&self, version: VersionInfo) -> Result<RecommendedConfig, OptionsError> {
        self.validate()?;
        if self.standalone.standalone {
            return standalone::config(self, version).await;
        }
        let authentication = self.authentication.authentication().await?;
        let serving = self.secure_serving.serving(authentication.trust.clone()).await?;
        let authorizer = self.authorization.authorizer().await?;
        let cluster = delegation::client(self.core_api.kubeconfig.as_deref())
            .await
            .map_err(|error| OptionsError::Delegation { flag: "--kubeconfig", error })?;
        let config = Config::new(version)
            .serving(serving)
            .authenticator(authentication.authenticator.clone())
            .authorizer(authorizer)
            .background(|stop| authentication.follow(stop));
        self.with_storage(config, Some(cluster), None).await
    }

    /// Opens the storage and adds what every server has.
    async fn with_storage(
        &self,
        config: Config<Serving, Arc<dyn Authenticator>, Arc<dyn Authorizer>>,
        cluster: Option<kube::Client>,
        kubeconfig: Option<PathBuf>,
    ) -> Result<RecommendedConfig, OptionsError> {
        let (storage, compactor) = self.etcd.open().await?;
        let mut config = config
            .manners(self.run.manners())
            .shutdown_delay(self.run.shutdown_delay_duration)
            .livez_grace_period(self.run.livez_grace_period);
        if self.etcd.storage_backend == etcd::Backend::Etcd3 {
            config = config
                .check(storage_check("etcd", &storage, self.etcd.etcd_healthcheck_timeout))
                .readiness_check(storage_check("etcd-readiness", &storage, self.etcd.etcd_readycheck_timeout));
        }
        let mut compacted = None;
        if let Some(compactor) = compactor {
            compacted = Some(compactor.compacted());
            config = config.background(|stop| compactor.run(stop));
        }
        let min_watch_timeout = Duration::from_secs(self.run.min_request_timeout);
        Ok(RecommendedConfig { config, storage, compacted, cluster, min_watch_timeout, kubeconfig })
    }
}

/// A check that passes while the storage answers in time.
fn storage_check(name: &'static str, storage: &Arc<dyn Storage>, timeout: Duration) -> Check {
    let storage = storage.clone();
    Check::new(name, move || {
        let storage = storage.clone();
        async move {
            match tokio::time::timeout(timeout, storage.ready()).await {
                Ok(outcome) => outcome.map_err(|error| error.to_string()),
                Err(_) => Err(format!("no answer within {timeout:?}")),
            }
        }
    })
}

/// Reads a truth value as Go's flags do.
fn flag(text: &str) -> Result<bool, String> {
    crate::query::parse_bool(text).ok_or_else(|| "not a truth value: use true or false".to_owned())
}

#[cfg(test)]
mod tests;
