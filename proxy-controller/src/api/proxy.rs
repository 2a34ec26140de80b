//! `EtcdProxy`: a tenant asks for a virtual etcd.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema, core::Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Placement, Resources};

/// The name of the client that every EtcdProxy has.
pub const DEFAULT_CLIENT: &str = "default";

/// A virtual etcd for one tenant.
#[derive(Clone, Debug, PartialEq, CustomResource, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "etcd.programming-kubernetes.info",
    version = "v1alpha1",
    kind = "EtcdProxy",
    plural = "etcdproxies",
    shortname = "etcdp",
    namespaced,
    category = "etcd",
    status = "EtcdProxyStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A virtual etcd for one tenant: an isolated part of a shared etcd, with certificates in the tenant's namespace.",
    validation = ("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && self.metadata.name.size() <= 40", "metadata.name must be a DNS label that begins with a letter, of at most 40 characters: Services are named after it"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Endpoint", type_ = "string", json_path = ".status.endpoint"),
    printcolumn(name = "Prefix", type_ = "string", json_path = ".status.prefix"),
    printcolumn(name = "Used", type_ = "string", json_path = ".status.usage.summary"),
    printcolumn(name = "Cert Expires", type_ = "string", json_path = ".status.certificates.notAfter"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        priority = 1
    ),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode", priority = 1),
    printcolumn(name = "Upstream", type_ = "string", json_path = ".spec.upstreamRef.name", priority = 1)
)]
#[derive(Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.prefix) == has(oldSelf.prefix) && (!has(self.prefix) || self.prefix == oldSelf.prefix)").message("may not be changed: the data does not move; make another EtcdProxy").field_path(".prefix"))]
#[x_kube(validation = Rule::new("self.upstreamRef == oldSelf.upstreamRef").message("may not be changed: the data does not move; make another EtcdProxy").field_path(".upstreamRef"))]
pub struct EtcdProxySpec {
    /// The EtcdUpstream, by default the one named `default`. Never changes.
    #[serde(default)]
    pub upstream_ref: UpstreamRef,
    /// Where the proxy runs. `Deployment`, the default: the controller runs it, as pods in its own namespace. `Sidecar`: you run
    /// it beside each of your processes, and the operator trusts you with the whole etcd.
    #[serde(default)]
    pub mode: Mode,
    /// How many proxies run, in mode Deployment; absent: the EtcdUpstream's default. Each serves the same data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub replicas: Option<i32>,
    /// Compute resources of one proxy process, in mode Deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Where the proxies' pods may or should run, in mode Deployment, as far as the EtcdUpstream allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// A wished prefix, which the EtcdUpstream must allow. Normally absent: one is allocated that never was and never will be
    /// another's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("!self.startsWith('/registry/') && !'/registry/'.startsWith(self)", "overlaps /registry/, where kube-apiserver keeps its data"))]
    #[x_kube(validation = ("self.matches('^/([!-.0-~]+/)+$')", "must begin and end with / and have no blanks and no // in it, such as /team-a/"))]
    #[schemars(length(min = 2, max = 512))]
    pub prefix: Option<String>,
    /// Limits, at most what the EtcdUpstream allows. What is absent is the EtcdUpstream's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// What the tenant's compactions do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction: Option<Compaction>,
    /// Certificates.
    #[serde(default)]
    pub tls: Tls,
    /// Further clients, each with a certificate of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub clients: Vec<Client>,
    /// What becomes of the data when this object is deleted. `Retain`, the default: it stays in the shared etcd, claimed, until the
    /// operator gives it to another object or deletes it. `Delete`: it is deleted before the object goes.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// Names an EtcdUpstream.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamRef {
    /// Its name.
    // What is no name of an object would be part of the path of a request that the controller sends.
    #[x_kube(validation = ("self.matches('^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$')", "must be the name of an object: lower-case letters, digits, - and ."))]
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Where the proxy runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Mode {
    /// As pods in the controller's namespace.
    #[default]
    Deployment,
    /// Beside each of the tenant's own processes. Only where the operator trusts the tenant with the whole etcd.
    Sidecar,
}

/// What the tenant's compactions do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Compaction {
    /// The policy.
    #[serde(default)]
    pub policy: CompactionPolicy,
}

/// What the tenant's compactions do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum CompactionPolicy {
    /// The tenant no longer sees its old revisions; the shared history stays.
    #[default]
    Virtual,
    /// They are refused.
    Deny,
}

/// Certificates of an EtcdProxy. Each has a CA of its own.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!self.validity.matches('^([0-9]+(ms|s|m|h))+$') || !self.caValidity.matches('^([0-9]+(ms|s|m|h))+$') || duration(self.validity) <= duration(self.caValidity)").message("may not exceed caValidity").field_path(".validity"))]
pub struct Tls {
    /// How long serving and client certificates are valid, such as `2160h` or `1h30m`: at least `60s`. They are renewed at two
    /// thirds of that.
    #[serde(default = "default_validity")]
    #[x_kube(validation = ("self.matches('^([0-9]+(ms|s|m|h))+$')", "must be made of hours, minutes and seconds, such as 2160h or 1h30m; there is no unit for days"))]
    #[x_kube(validation = ("!self.matches('^([0-9]+(ms|s|m|h))+$') || duration(self) >= duration('60s') && duration(self) <= duration('87600h')", "must be between 60s and 87600h"))]
    #[schemars(with = "String", length(max = 32), extend("default" = "2160h"))]
    pub validity: Duration,
    /// How long the CA is valid, at least `5m`. It is followed by a new one at two thirds of that. A client that reads its CA
    /// bundle only once works until the CA that it read expires.
    #[serde(default = "default_ca_validity")]
    #[x_kube(validation = ("self.matches('^([0-9]+(ms|s|m|h))+$')", "must be made of hours, minutes and seconds, such as 87600h or 1h30m; there is no unit for days"))]
    #[x_kube(validation = ("!self.matches('^([0-9]+(ms|s|m|h))+$') || duration(self) >= duration('5m') && duration(self) <= duration('262800h')", "must be between 5m and 262800h"))]
    #[schemars(with = "String", length(max = 32), extend("default" = "87600h"))]
    pub ca_validity: Duration,
    /// Raise this number to have the CA replaced. Nobody has to restart anything.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self >= oldSelf").message("may not become smaller"))]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub ca_rotation: i64,
}

/// A client with a certificate of its own, of the common name `<namespace>/<name>/<client>`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Client {
    /// The last part of the certificate's common name.
    #[x_kube(validation = ("self != 'default'", "'default' is the client that every EtcdProxy has"))]
    #[x_kube(validation = ("self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')", "must be a DNS label that begins with a letter: lower-case letters, digits and -"))]
    #[schemars(length(min = 1, max = 40))]
    pub name: String,
    /// Where its things are written; absent: this object's namespace. Another one must consent by an EtcdProxyGrant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')", "must be the name of a namespace: lower-case letters, digits and -"))]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
    /// The Secret with certificate, key and CA bundle; absent: `<name of this object>-etcd-<name of the client>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')", "must be the name of an object: lower-case letters, digits and -, in parts separated by ."))]
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: Option<String>,
    /// The ConfigMap with the CA bundle; absent: none is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')", "must be the name of an object: lower-case letters, digits and -, in parts separated by ."))]
    #[schemars(length(min = 1, max = 253))]
    pub config_map_name: Option<String>,
}

/// What becomes of the data when the object is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum DeletionPolicy {
    /// It stays, claimed, until the operator gives it to another object or releases it.
    #[default]
    Retain,
    /// It is deleted before the object goes.
    Delete,
}

/// What the controller knows of a virtual etcd.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdProxyStatus {
    /// `Ready`, `Progressing`, `UpstreamReachable`, `CertificatesValid`, `QuotaExceeded`, `Degraded`.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The generation that this was said of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The claimed prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The URL at which clients of the tenant's namespace reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Replicas that exist, in mode Deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Replicas that are ready, in mode Deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// What the tenant has stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Its certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<Certificates>,
    /// How far the deletion of the data is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<DeletionProgress>,
}

/// What a tenant has stored, as counted from time to time.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Live keys.
    pub keys: i64,
    /// Bytes of live keys and values.
    pub bytes: i64,
    /// The same for people, beside the quota.
    pub summary: String,
}

/// The certificates of an EtcdProxy.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Certificates {
    /// When the first of the present serving and client certificates expires. They are renewed before.
    pub not_after: Time,
    /// When the present CA expires. It is replaced before.
    pub ca_not_after: Time,
    /// Until when every client works that ever read a CA bundle and never another: then the oldest CA expires.
    pub read_once_until: Time,
    /// The last `spec.tls.caRotation` that was carried out.
    pub ca_rotation: i64,
    /// Where a rotation of the CA stands.
    pub phase: RotationPhase,
}

/// Where a rotation of the CA stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum RotationPhase {
    /// One CA.
    #[default]
    Stable,
    /// The new CA is in the bundle; certificates still come from the old one until every proxy uses the bundle.
    Distributing,
    /// Certificates come from the new CA, and not every proxy is known to show one yet.
    Replacing,
    /// The new certificates are in use; the old CA stays in the bundle until the last certificate of it has expired.
    Retiring,
}

/// How far the deletion of the data is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeletionProgress {
    /// Keys deleted so far by the present attempt.
    pub keys_deleted: i64,
    /// Keys left.
    pub keys_left: i64,
}

// === defaults ===

impl Default for UpstreamRef {
    fn default() -> Self {
        Self { name: super::DEFAULT_UPSTREAM.to_owned() }
    }
}

impl Default for Tls {
    fn default() -> Self {
        Self { validity: default_validity(), ca_validity: default_ca_validity(), ca_rotation: 0 }
    }
}

fn default_validity() -> Duration {
    std::time::Duration::from_secs(90 * 24 * 3600).into()
}

fn default_ca_validity() -> Duration {
    std::time::Duration::from_secs(10 * 365 * 24 * 3600).into()
}
