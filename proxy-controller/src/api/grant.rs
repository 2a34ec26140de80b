//! `EtcdProxyGrant`: a namespace consents to what EtcdProxy objects of other namespaces may have written into it.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// Lets named EtcdProxy objects of other namespaces have their client certificates and CA bundles written into this namespace,
/// under the names listed. Everything is matched exactly; when the grant goes, the objects go.
#[derive(Clone, Debug, PartialEq, CustomResource, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "etcd.programming-kubernetes.info",
    version = "v1alpha1",
    kind = "EtcdProxyGrant",
    plural = "etcdproxygrants",
    shortname = "etcdpg",
    namespaced,
    category = "etcd",
    derive = "PartialEq",
    doc = "Consent of a namespace: which EtcdProxy objects of other namespaces may have client certificates and CA bundles written into it, and under which names.",
    printcolumn(name = "From", type_ = "string", json_path = ".spec.from[*].namespace"),
    printcolumn(name = "EtcdProxy", type_ = "string", json_path = ".spec.from[*].etcdProxy"),
    printcolumn(name = "Targets", type_ = "string", json_path = ".spec.targets[*].name"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct EtcdProxyGrantSpec {
    /// Who may write.
    #[schemars(length(min = 1, max = 64))]
    pub from: Vec<GrantSource>,
    /// What may be written.
    #[schemars(length(min = 1, max = 64))]
    pub targets: Vec<GrantTarget>,
}

/// An EtcdProxy of another namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrantSource {
    /// Its namespace.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(min = 1, max = 63))]
    pub etcd_proxy: String,
}

/// An object that may be written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrantTarget {
    /// Secret or ConfigMap.
    pub kind: TargetKind,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// What kind of object a client's things are written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, schemars::JsonSchema)]
#[expect(missing_docs, reason = "the kinds of their names")]
pub enum TargetKind {
    Secret,
    ConfigMap,
}
