//! Asking the cluster: clients made from kubeconfig files or from within a pod, and patience with a busy API server.

use std::{future::Future, path::Path, time::Duration};

use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::egress;

/// How often a question is asked before it is given up, and how long is waited in between
/// (k8s.io/apiserver `pkg/server/options/authentication.go`, `DefaultAuthWebhookRetryBackoff`).
const ATTEMPTS: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(500);
const WAIT_FACTOR: f64 = 1.5;
const WAIT_JITTER: f64 = 0.2;

/// Why there is no client for the cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A kubeconfig file is unusable.
    #[error("the kubeconfig {path} cannot be used: {error}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// What is wrong.
        error: kube::config::KubeconfigError,
    },
    /// No file was named, and this is no pod.
    #[error("no kubeconfig was given, and this does not run in a pod of the cluster: {0}")]
    NotInCluster(kube::config::InClusterError),
    /// The client could not be built.
    #[error("the client for the cluster cannot be built: {0}")]
    Client(kube::Error),
}

/// Why the cluster gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum DelegationError {
    /// It refused or failed.
    #[error("{0}")]
    Kube(#[from] kube::Error),
    /// It took too long.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

/// A client for the cluster that a kubeconfig names, or for that in whose pod this process runs.
///
/// # Errors
/// When the file is unusable, or there is neither file nor pod.
pub async fn client(kubeconfig: Option<&Path>) -> Result<kube::Client, ClientError> {
    let config = match kubeconfig {
        Some(path) => {
            let wrap = |error| ClientError::Kubeconfig { path: path.display().to_string(), error };
            let file = Kubeconfig::read_from(path).map_err(wrap)?;
            let own_proxy = has_proxy(&file);
            let options = KubeConfigOptions::default();
            let mut config = kube::Config::from_custom_kubeconfig(file, &options).await.map_err(wrap)?;
            // kube takes the proxy of HTTPS_PROXY to every server; client-go, like all of Go, to none on loopback and
            // none that NO_PROXY names.
            let authority = config.cluster_url.authority().map_or("", http::uri::Authority::as_str);
            if !own_proxy && egress::is_direct(authority) {
                config.proxy_url = None;
            }
            config
        }
        None => kube::Config::incluster().map_err(ClientError::NotInCluster)?,
    };
    kube::Client::try_from(config).map_err(ClientError::Client)
}

/// Whether the kubeconfig itself names a proxy for the cluster of its current context.
fn has_proxy(file: &Kubeconfig) -> bool {
    let context = file.contexts.iter().find(|context| Some(&context.name) == file.current_context.as_ref());
    let name = context.and_then(|context| context.context.as_ref()).map(|context| &context.cluster);
    let cluster = file.clusters.iter().find(|cluster| Some(&cluster.name) == name);
    let proxy = cluster.and_then(|cluster| cluster.cluster.as_ref()).and_then(|cluster| cluster.proxy_url.as_ref());
    proxy.is_some_and(|proxy| !proxy.is_empty())
}

/// Asks until there is an answer, a refusal, or no more patience. `timeout` bounds each attempt.
pub(crate) async fn with_backoff<T, F>(timeout: Duration, mut ask: impl FnMut() -> F) -> Result<T, DelegationError>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let mut wait = FIRST_WAIT;
    let mut attempt = 1;
    loop {
        let outcome = match tokio::time::timeout(timeout, ask()).await {
            Ok(outcome) => outcome.map_err(DelegationError::Kube),
            Err(_) => Err(DelegationError::Timeout(timeout)),
        };
        match outcome {
            Err(error) if attempt < ATTEMPTS && error.is_transient() => {
                tracing::debug!(%error, attempt, "asking the cluster again");
                tokio::time::sleep(wait.mul_f64(1.0 + rand::random::<f64>() * WAIT_JITTER)).await;
                wait = wait.mul_f64(WAIT_FACTOR);
                attempt += 1;
            }
            outcome => return outcome,
        }
    }
}

// === impl DelegationError ===

impl DelegationError {
    /// What to do about it, if that can be told: a sentence to append, or nothing.
    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Self::Kube(kube::Error::Api(status)) if status.code == 403 => {
                ". Usually fixed by `kubectl create clusterrolebinding NAME --clusterrole=system:auth-delegator \
                 --serviceaccount=NAMESPACE:SERVICEACCOUNT`"
            }
            Self::Kube(kube::Error::Api(status)) if status.code == 401 => {
                ". The cluster does not know this server: look at --authentication-kubeconfig and \
                 --authorization-kubeconfig"
            }
            _ => "",
        }
    }

    /// Whether asking again may help (k8s.io/apiserver `pkg/util/webhook/webhook.go`, `DefaultShouldRetry`).
    fn is_transient(&self) -> bool {
        match self {
            Self::Kube(kube::Error::Api(status)) => {
                matches!(status.code, 429 | 500)
                    || status.details.as_ref().is_some_and(|details| details.retry_after_seconds > 0)
            }
            Self::Kube(kube::Error::HyperError(_) | kube::Error::Service(_)) => true,
            Self::Kube(_) | Self::Timeout(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_counts_if_the_current_context_leads_to_it() {
        let file = |current: &str, proxy: &str| {
            Kubeconfig::from_yaml(&format!(
                "current-context: {current}\n\
                 contexts: [{{name: one, context: {{cluster: a}}}}, {{name: two, context: {{cluster: b}}}}]\n\
                 clusters:\n\
                 - {{name: a, cluster: {{server: https://a, proxy-url: {proxy:?}}}}}\n\
                 - {{name: b, cluster: {{server: https://b}}}}\n"
            ))
            .unwrap()
        };
        assert!(has_proxy(&file("one", "http://proxy:1")));
        assert!(!has_proxy(&file("one", "")));
        assert!(!has_proxy(&file("two", "http://proxy:1")));
        assert!(!has_proxy(&file("none", "http://proxy:1")));
    }
}
