//! What the cluster tells its aggregated servers to believe: the ConfigMap `extension-apiserver-authentication`, read at the
//! start and followed from then on (k8s.io/apiserver `pkg/server/options/authentication_dynamic_request_header.go`).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    api::Api,
    runtime::{WatchStreamExt as _, watcher},
};

use super::{CaBundle, RequestHeaderNames, RequestHeaderTrust, Trust};

/// The namespace of the ConfigMap.
pub const CONFIG_MAP_NAMESPACE: &str = "kube-system";
/// The name of the ConfigMap.
pub const CONFIG_MAP_NAME: &str = "extension-apiserver-authentication";
/// The Role that allows to read it.
const READER_ROLE: &str = "extension-apiserver-authentication-reader";
/// How long the first reading may be retried while the cluster cannot be reached.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is taken from the ConfigMap; the rest comes from flags.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The CA of client certificates.
    pub client_ca: bool,
    /// The CA, names and headers of front proxies.
    pub request_header: bool,
}

/// Why the ConfigMap could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The server has not the right to read it.
    #[error(
        "not allowed to read ConfigMap {CONFIG_MAP_NAMESPACE}/{CONFIG_MAP_NAME}, without which neither the aggregator nor \
         client certificates are believed: {0}. Usually fixed by `kubectl create rolebinding -n {CONFIG_MAP_NAMESPACE} \
         NAME --role={READER_ROLE} --serviceaccount=NAMESPACE:SERVICEACCOUNT`; or start with \
         --authentication-skip-lookup or --authentication-tolerate-lookup-failure"
    )]
    Forbidden(String),
    /// It could not be had.
    #[error(
        "ConfigMap {CONFIG_MAP_NAMESPACE}/{CONFIG_MAP_NAME}, which tells whom to believe, cannot be read: {0}. Check \
         --authentication-kubeconfig, or start with --authentication-skip-lookup or --authentication-tolerate-lookup-failure"
    )]
    Failed(String),
}

/// What is wrong with the ConfigMap's content.
#[derive(Debug, thiserror::Error)]
enum ContentError {
    #[error("{key} is no JSON list of strings: {error}")]
    List { key: &'static str, error: serde_json::Error },
    #[error("{key}: {error}")]
    Ca { key: &'static str, error: super::trust::CaError },
}

/// Reads the ConfigMap once and applies it. One that does not exist yet is no error: [`follow`] finds it later.
///
/// # Errors
/// When it may not or cannot be read.
pub async fn look_up(client: &kube::Client, wanted: Wanted, trust: &Trust) -> Result<(), LookupError> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), CONFIG_MAP_NAMESPACE);
    let start = tokio::time::Instant::now();
    let mut wait = Duration::from_millis(250);
    loop {
        match tokio::time::timeout(Duration::from_secs(10), maps.get_opt(CONFIG_MAP_NAME)).await {
            Ok(Ok(Some(map))) => {
                apply(&map, wanted, trust);
                return Ok(());
            }
            Ok(Ok(None)) => {
                tracing::warn!(
                    "ConfigMap {CONFIG_MAP_NAMESPACE}/{CONFIG_MAP_NAME} does not exist yet: no front proxy and no client certificate is believed until it does"
                );
                return Ok(());
            }
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 401 | 403) => {
                return Err(LookupError::Forbidden(status.message.clone()));
            }
            Ok(Err(error)) if start.elapsed() >= PATIENCE => return Err(LookupError::Failed(error.to_string())),
            Err(_) if start.elapsed() >= PATIENCE => return Err(LookupError::Failed("no answer in time".to_owned())),
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot read ConfigMap {CONFIG_MAP_NAMESPACE}/{CONFIG_MAP_NAME}, trying again")
            }
            Err(_) => tracing::warn!("no answer for ConfigMap {CONFIG_MAP_NAMESPACE}/{CONFIG_MAP_NAME}, trying again"),
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(5));
    }
}

/// Applies each change of the ConfigMap, for ever.
pub async fn follow(client: kube::Client, wanted: Wanted, trust: Arc<Trust>) {
    let maps = Api::<ConfigMap>::namespaced(client, CONFIG_MAP_NAMESPACE);
    let only_this = watcher::Config::default().fields(&format!("metadata.name={CONFIG_MAP_NAME}"));
    let stream = watcher(maps, only_this).default_backoff().applied_objects();
    let mut stream = std::pin::pin!(stream);
    loop {
        match stream.try_next().await {
            Ok(Some(map)) => apply(&map, wanted, &trust),
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "cannot follow ConfigMap {CONFIG_MAP_NAMESPACE}/{CONFIG_MAP_NAME}; what is known stays in force");
            }
        }
    }
}

/// What is wrong leaves in force what was there before.
fn apply(map: &ConfigMap, wanted: Wanted, trust: &Trust) {
    let empty = BTreeMap::new();
    let data = map.data.as_ref().unwrap_or(&empty);
    if wanted.client_ca {
        match ca(data, "client-ca-file") {
            Ok(Some(ca)) => trust.set_client_ca(ca),
            Ok(None) => {}
            Err(error) => log_bad_content(&error),
        }
    }
    if wanted.request_header {
        match request_header(data) {
            Ok(Some(found)) => trust.set_request_header(found),
            Ok(None) => {}
            Err(error) => log_bad_content(&error),
        }
    }
}

fn log_bad_content(error: &ContentError) {
    tracing::error!(%error, "ConfigMap {CONFIG_MAP_NAMESPACE}/{CONFIG_MAP_NAME} makes no sense; what was known stays in force");
}

fn request_header(data: &BTreeMap<String, String>) -> Result<Option<RequestHeaderTrust>, ContentError> {
    let Some(ca) = ca(data, "requestheader-client-ca-file")? else { return Ok(None) };
    Ok(Some(RequestHeaderTrust {
        ca,
        allowed_names: list(data, "requestheader-allowed-names")?,
        names: RequestHeaderNames {
            user: list(data, "requestheader-username-headers")?,
            uid: list(data, "requestheader-uid-headers")?,
            group: list(data, "requestheader-group-headers")?,
            extra_prefix: list(data, "requestheader-extra-headers-prefix")?,
        },
    }))
}

fn ca(data: &BTreeMap<String, String>, key: &'static str) -> Result<Option<CaBundle>, ContentError> {
    let Some(pem) = data.get(key).filter(|pem| !pem.is_empty()) else { return Ok(None) };
    CaBundle::from_pem(pem.as_bytes()).map(Some).map_err(|error| ContentError::Ca { key, error })
}

fn list(data: &BTreeMap<String, String>, key: &'static str) -> Result<Vec<String>, ContentError> {
    match data.get(key).map(String::as_str) {
        None | Some("") => Ok(Vec::new()),
        Some(text) => serde_json::from_str(text).map_err(|error| ContentError::List { key, error }),
    }
}

#[cfg(test)]
mod tests;
