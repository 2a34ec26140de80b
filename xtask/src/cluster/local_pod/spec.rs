//! The fields of a Deployment that are known here. What a process on this machine needs is read; what only matters to a
//! scheduler, a kubelet or a kernel is accepted by name and left; every other field is an error.

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;

use super::Content;
use crate::cluster::mounts::{Item, Kind, Projection, Source};

/// The mode of files in a volume that says none (core/v1 defaults).
const DEFAULT_MODE: u32 = 0o644;

#[derive(Deserialize)]
pub(super) struct Deployment {
    pub(super) metadata: Metadata,
    pub(super) spec: DeploymentSpec,
}

#[derive(Deserialize)]
pub(super) struct Metadata {
    pub(super) namespace: String,
}

#[derive(Deserialize)]
pub(super) struct DeploymentSpec {
    pub(super) template: Template,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Template {
    #[serde(default, rename = "metadata")]
    _metadata: IgnoredAny,
    pub(super) spec: PodSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PodSpec {
    pub(super) containers: Vec<Container>,
    #[serde(default)]
    pub(super) volumes: Vec<Volume>,
    pub(super) service_account_name: String,
    #[serde(default, rename = "serviceAccount")]
    _service_account: IgnoredAny,
    #[serde(default, rename = "automountServiceAccountToken")]
    _automount_service_account_token: IgnoredAny,
    #[serde(default, rename = "enableServiceLinks")]
    _enable_service_links: IgnoredAny,
    #[serde(default, rename = "securityContext")]
    _security_context: IgnoredAny,
    #[serde(default, rename = "terminationGracePeriodSeconds")]
    _termination_grace_period_seconds: IgnoredAny,
    #[serde(default, rename = "dnsPolicy")]
    _dns_policy: IgnoredAny,
    #[serde(default, rename = "restartPolicy")]
    _restart_policy: IgnoredAny,
    #[serde(default, rename = "schedulerName")]
    _scheduler_name: IgnoredAny,
    #[serde(default, rename = "priorityClassName")]
    _priority_class_name: IgnoredAny,
    #[serde(default, rename = "nodeSelector")]
    _node_selector: IgnoredAny,
    #[serde(default, rename = "tolerations")]
    _tolerations: IgnoredAny,
    #[serde(default, rename = "affinity")]
    _affinity: IgnoredAny,
    #[serde(default, rename = "topologySpreadConstraints")]
    _topology_spread_constraints: IgnoredAny,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) image: String,
    #[serde(default)]
    pub(super) command: Vec<String>,
    #[serde(default)]
    pub(super) args: Vec<String>,
    #[serde(default)]
    pub(super) env: Vec<EnvVar>,
    #[serde(default)]
    pub(super) volume_mounts: Vec<VolumeMount>,
    #[serde(default)]
    pub(super) ports: Vec<ContainerPort>,
    pub(super) readiness_probe: Option<Probe>,
    #[serde(default, rename = "livenessProbe")]
    _liveness_probe: IgnoredAny,
    #[serde(default, rename = "startupProbe")]
    _startup_probe: IgnoredAny,
    #[serde(default, rename = "resources")]
    _resources: IgnoredAny,
    #[serde(default, rename = "securityContext")]
    _security_context: IgnoredAny,
    #[serde(default, rename = "imagePullPolicy")]
    _image_pull_policy: IgnoredAny,
    #[serde(default, rename = "terminationMessagePath")]
    _termination_message_path: IgnoredAny,
    #[serde(default, rename = "terminationMessagePolicy")]
    _termination_message_policy: IgnoredAny,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct EnvVar {
    pub(super) name: String,
    #[serde(default)]
    pub(super) value: String,
    pub(super) value_from: Option<EnvVarSource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct EnvVarSource {
    pub(super) field_ref: FieldRef,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct FieldRef {
    pub(super) field_path: String,
    #[serde(default, rename = "apiVersion")]
    _api_version: IgnoredAny,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct VolumeMount {
    pub(super) name: String,
    pub(super) mount_path: PathBuf,
    #[serde(default, rename = "readOnly")]
    _read_only: IgnoredAny,
    #[serde(default, rename = "recursiveReadOnly")]
    _recursive_read_only: IgnoredAny,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ContainerPort {
    pub(super) name: Option<String>,
    pub(super) container_port: u16,
    #[serde(default, rename = "protocol")]
    _protocol: IgnoredAny,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Probe {
    pub(super) http_get: Option<HttpGet>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpGet {
    #[serde(default)]
    pub(super) path: String,
    pub(super) port: Value,
    pub(super) scheme: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Volume {
    pub(super) name: String,
    secret: Option<SecretVolume>,
    config_map: Option<ConfigMapVolume>,
    projected: Option<ProjectedVolume>,
    empty_dir: Option<EmptyDir>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SecretVolume {
    secret_name: String,
    items: Option<Vec<KeyToPath>>,
    default_mode: Option<u32>,
    optional: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ConfigMapVolume {
    name: String,
    items: Option<Vec<KeyToPath>>,
    default_mode: Option<u32>,
    optional: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProjectedVolume {
    sources: Vec<ProjectedSource>,
    default_mode: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProjectedSource {
    secret: Option<ProjectedObject>,
    config_map: Option<ProjectedObject>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProjectedObject {
    name: String,
    items: Option<Vec<KeyToPath>>,
    optional: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyToPath {
    key: String,
    path: String,
    mode: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EmptyDir {
    #[serde(default, rename = "sizeLimit")]
    _size_limit: IgnoredAny,
    #[serde(default, rename = "medium")]
    _medium: IgnoredAny,
}

// === impl Volume ===

impl Volume {
    /// What it holds in a pod of the namespace.
    pub(super) fn content(&self, namespace: &str) -> Result<Content> {
        let objects = |sources, mode: Option<u32>| {
            let mode = mode.unwrap_or(DEFAULT_MODE);
            Ok(Content::Objects(Projection { namespace: namespace.to_owned(), sources, mode }))
        };
        match self {
            Self { secret: Some(secret), config_map: None, projected: None, empty_dir: None, .. } => {
                let SecretVolume { secret_name, items, default_mode, optional } = secret;
                objects(vec![source(Kind::Secret, secret_name, items.as_deref(), *optional)], *default_mode)
            }
            Self { secret: None, config_map: Some(config_map), projected: None, empty_dir: None, .. } => {
                let ConfigMapVolume { name, items, default_mode, optional } = config_map;
                objects(vec![source(Kind::ConfigMap, name, items.as_deref(), *optional)], *default_mode)
            }
            Self { secret: None, config_map: None, projected: Some(projected), empty_dir: None, .. } => {
                let sources = projected.sources.iter().map(ProjectedSource::source).collect::<Result<_>>()?;
                objects(sources, projected.default_mode)
            }
            Self { secret: None, config_map: None, projected: None, empty_dir: Some(_), .. } => Ok(Content::Empty),
            _ => bail!("it is not exactly one of secret, configMap, projected, emptyDir"),
        }
    }
}

impl ProjectedSource {
    fn source(&self) -> Result<Source> {
        match self {
            Self { secret: Some(object), config_map: None } => Ok(object.source(Kind::Secret)),
            Self { secret: None, config_map: Some(object) } => Ok(object.source(Kind::ConfigMap)),
            _ => bail!("a projected source is not exactly one of secret and configMap"),
        }
    }
}

impl ProjectedObject {
    fn source(&self, kind: Kind) -> Source {
        source(kind, &self.name, self.items.as_deref(), self.optional)
    }
}

fn source(kind: Kind, name: &str, items: Option<&[KeyToPath]>, optional: Option<bool>) -> Source {
    let item = |item: &KeyToPath| Item { key: item.key.clone(), path: item.path.clone(), mode: item.mode };
    Source {
        kind,
        name: name.to_owned(),
        items: items.filter(|items| !items.is_empty()).map(|items| items.iter().map(item).collect()),
        optional: optional.unwrap_or_default(),
    }
}
