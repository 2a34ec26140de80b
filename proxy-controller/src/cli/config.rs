//! From flags to a configuration that is known to make sense.

use std::{fs, io, net::SocketAddr, num::NonZeroUsize, path::PathBuf, time::Duration};

use super::RunArgs;
use crate::{
    leader::{ElectionConfig, Times, TimesError, identity},
    serving::WebhookIdentity,
};

/// Where a pod finds its namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Where a process finds its host's name: in a pod, the pod's.
const HOSTNAME_FILE: &str = "/proc/sys/kernel/hostname";
/// The Lease's name.
const LEASE: &str = "proxy-controller";

/// A valid configuration of `run`.
#[derive(Clone, Debug)]
pub struct Config {
    /// The namespace of the controller and the proxies.
    pub namespace: String,
    /// The kubeconfig; `None`: the pod's ServiceAccount, or what kubectl would use.
    pub kubeconfig: Option<PathBuf>,
    /// Image of proxies whose EtcdUpstream names none.
    pub proxy_image: String,
    /// The cluster's DNS domain.
    pub cluster_domain: String,
    /// How many objects are worked on at the same time.
    pub concurrency: NonZeroUsize,
    /// Which Lease, and as whom; `None`: this replica is the only one.
    pub election: Option<ElectionConfig>,
    /// The webhook; `None`: none is served.
    pub webhook: Option<WebhookConfig>,
    /// The address of the listener for metrics and probes.
    pub metrics_listen: SocketAddr,
    /// How long to go on serving after the signal to end.
    pub shutdown_delay: Duration,
}

/// The webhook.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// The address of its listener.
    pub listen: SocketAddr,
    /// Whose certificate it shows.
    pub identity: WebhookIdentity,
    /// The name of the ValidatingWebhookConfiguration.
    pub configuration: String,
}

/// A configuration that makes no sense.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message is the documentation of its variant")]
pub enum ConfigError {
    #[error(
        "--namespace is missing, and this is no pod from whose ServiceAccount it could be known ({NAMESPACE_FILE})"
    )]
    NoNamespace(#[source] io::Error),
    #[error("--namespace={0:?} is no name of a namespace: lower-case letters, digits and \"-\", at most 63 characters")]
    Namespace(String),
    #[error(
        "--webhook-service={0:?} is no name of a Service: lower-case letters, digits and \"-\", at most 63 characters"
    )]
    Service(String),
    #[error("--webhook-configuration={0:?} is no name of an object")]
    Configuration(String),
    #[error("--cluster-domain={0:?} is no DNS domain")]
    Domain(String),
    #[error("--proxy-image is empty")]
    NoImage,
    #[error("--leader-elect-lease-duration, --leader-elect-renew-deadline, --leader-elect-retry-period: {0}")]
    Times(#[from] TimesError),
    #[error("--webhook-listen and --metrics-listen are both {0}")]
    SameAddress(SocketAddr),
}

// === impl Config ===

impl TryFrom<RunArgs> for Config {
    type Error = ConfigError;

    fn try_from(args: RunArgs) -> Result<Self, ConfigError> {
        let namespace = match args.namespace.filter(|namespace| !namespace.is_empty()) {
            Some(namespace) => namespace,
            None => fs::read_to_string(NAMESPACE_FILE).map_err(ConfigError::NoNamespace)?.trim().to_owned(),
        };
        if !is_label(&namespace) {
            return Err(ConfigError::Namespace(namespace));
        }
        if !is_subdomain(&args.cluster_domain) {
            return Err(ConfigError::Domain(args.cluster_domain));
        }
        if args.proxy_image.is_empty() {
            return Err(ConfigError::NoImage);
        }
        let (election, serving) = (args.election, args.serving);
        // Looked at even if unused: a flag is never silently wrong.
        let times = Times::new(
            election.leader_elect_lease_duration,
            election.leader_elect_renew_deadline,
            election.leader_elect_retry_period,
        )?;
        let election = election.leader_elect.then(|| ElectionConfig {
            namespace: namespace.clone(),
            name: LEASE.to_owned(),
            identity: identity(&hostname()),
            times,
        });
        let webhook = match serving.webhook_configuration {
            configuration if configuration.is_empty() => None,
            configuration if !is_subdomain(&configuration) => return Err(ConfigError::Configuration(configuration)),
            _ if !is_label(&serving.webhook_service) => return Err(ConfigError::Service(serving.webhook_service)),
            configuration => Some(WebhookConfig {
                listen: serving.webhook_listen,
                identity: WebhookIdentity { namespace: namespace.clone(), service: serving.webhook_service },
                configuration,
            }),
        };
        let metrics_listen = serving.metrics_listen;
        if let Some(webhook) = &webhook
            && webhook.listen == metrics_listen
            && metrics_listen.port() != 0
        {
            return Err(ConfigError::SameAddress(metrics_listen));
        }
        Ok(Self {
            namespace,
            kubeconfig: args.kubeconfig.filter(|path| !path.as_os_str().is_empty()),
            proxy_image: args.proxy_image,
            cluster_domain: args.cluster_domain,
            concurrency: args.concurrency,
            election,
            webhook,
            metrics_listen,
            shutdown_delay: serving.shutdown_delay,
        })
    }
}

/// For the Lease's holder identity: people look for the pod. The rest of the identity makes it unique.
fn hostname() -> String {
    fs::read_to_string(HOSTNAME_FILE)
        .map(|name| name.trim().to_owned())
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| LEASE.to_owned())
}

/// RFC 1123 label (k8s.io/apimachinery `pkg/util/validation`, `IsDNS1123Label`).
fn is_label(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let ends = |c: Option<&u8>| c.is_some_and(|c| *c != b'-');
    let bytes = text.as_bytes();
    bytes.len() <= 63 && bytes.iter().copied().all(inner) && ends(bytes.first()) && ends(bytes.last())
}

/// RFC 1123 subdomain (`IsDNS1123Subdomain`).
fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}
