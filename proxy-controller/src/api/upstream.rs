//! `EtcdUpstream`: a shared etcd, how to reach it, and what tenants may have of it. The operator's.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Condition};
use kube::{CustomResource, KubeSchema, core::Duration};
use serde::{Deserialize, Serialize};

use super::{Limits, Resources};

/// Where prefixes are allocated unless the operator says otherwise.
pub const DEFAULT_PREFIX_ROOT: &str = "/etcd-proxies/";

/// Where the proxies keep their bookkeeping unless the operator says otherwise.
pub const DEFAULT_META_PREFIX: &str = etcd_proxy::meta::DEFAULT_META_PREFIX;

/// A shared etcd and what tenants may have of it.
#[derive(Clone, Debug, PartialEq, CustomResource, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "etcd.programming-kubernetes.info",
    version = "v1alpha1",
    kind = "EtcdUpstream",
    plural = "etcdupstreams",
    shortname = "etcdup",
    category = "etcd",
    status = "EtcdUpstreamStatus",
    derive = "PartialEq",
    doc = "A shared etcd, how to reach it, and what tenants may have of it. Written by the operator.",
    printcolumn(
        name = "Reachable",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Reachable\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Reachable\")].reason",
        priority = 1
    ),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Members", type_ = "integer", json_path = ".status.members"),
    printcolumn(name = "Tenants", type_ = "integer", json_path = ".status.tenants"),
    printcolumn(name = "Retained", type_ = "integer", json_path = ".status.retainedClaims"),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.size"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct EtcdUpstreamSpec {
    /// URLs of the members, `https://HOST:PORT` or `http://HOST:PORT`.
    #[x_kube(validation = ("self.all(url, url.matches('^https?://[^/,[:space:]]+:[0-9]+$'))", "each must be https://HOST:PORT or http://HOST:PORT"))]
    #[schemars(length(min = 1, max = 16), inner(length(max = 300)))]
    pub endpoints: Vec<String>,
    /// How the members are verified and who the proxies are to them. Needed for https endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<UpstreamTls>,
    /// Namespaces whose EtcdProxy objects may refer to this etcd; `*` alone means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(validation = ("!('*' in self) || self.size() == 1", "'*' must stand alone"))]
    #[schemars(length(max = 1000), inner(length(min = 1, max = 63)))]
    pub allowed_namespaces: Vec<String>,
    /// Where prefixes are allocated.
    #[serde(default = "default_prefix_root")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("may not be changed: claimed prefixes lie under it"))]
    #[x_kube(validation = ("!self.startsWith('/registry/') && !'/registry/'.startsWith(self)", "overlaps /registry/, where kube-apiserver keeps its data"))]
    #[x_kube(validation = ("self.matches('^/([!-.0-~]+/)+$')", "must begin and end with / and have no blanks and no // in it, such as /tenants/"))]
    #[schemars(length(min = 1, max = 256))]
    pub prefix_root: String,
    /// The proxies' own bookkeeping, the same for all proxies of this etcd.
    #[serde(default = "default_meta_prefix")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("may not be changed: the claims lie under it"))]
    #[x_kube(validation = ("!self.startsWith('/registry/') && !'/registry/'.startsWith(self)", "overlaps /registry/, where kube-apiserver keeps its data"))]
    #[x_kube(validation = ("self.matches('^/([!-.0-~]+/)+$')", "must begin and end with / and have no blanks and no // in it, such as /tenants/"))]
    #[schemars(length(min = 1, max = 256))]
    pub meta_prefix: String,
    /// Which prefixes a tenant may wish for: those that begin with one of these. None by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(validation = ("self.all(prefix, prefix.matches('^/([!-.0-~]+/)*$'))", "each must begin and end with / and have no blanks and no // in it, such as /team-a/"))]
    #[schemars(length(max = 100), inner(length(min = 1, max = 256)))]
    pub allowed_prefixes: Vec<String>,
    /// Data that a named object may take over: nothing that a tenant writes can do that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub adoptions: Vec<Adoption>,
    /// What tenants may say about where their proxies run. Nothing by default.
    #[serde(default)]
    pub allowed_placement: AllowedPlacement,
    /// Most replicas of one tenant's proxy.
    #[serde(default = "default_max_replicas")]
    #[schemars(range(min = 1, max = 100))]
    pub max_replicas: i32,
    /// Most compute resources of one proxy process (`cpu`, `memory`). Absent: the defaults.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(validation = ("self.all(name, name in ['cpu', 'memory'])", "only cpu and memory may be named"))]
    #[schemars(extend("maxProperties" = 2))]
    pub max_resources: BTreeMap<String, Quantity>,
    /// Most that tenants may set their limits to. What is absent here is bounded by the defaults.
    #[serde(default)]
    pub max_limits: Limits,
    /// The shortest life of certificates that tenants may ask for: each renewal costs everybody. At least `60s`.
    #[serde(default = "default_min_validity")]
    #[x_kube(validation = ("self.matches('^([0-9]+(ms|s|m|h))+$')", "must be made of hours, minutes and seconds, such as 24h or 10m; there is no unit for days"))]
    #[x_kube(validation = ("!self.matches('^([0-9]+(ms|s|m|h))+$') || duration(self) >= duration('60s') && duration(self) <= duration('87600h')", "must be between 60s and 87600h"))]
    #[schemars(with = "String", length(max = 32), extend("default" = "10m"))]
    pub min_validity: Duration,
    /// Puts an identity of this etcd beside the tenant in mode Sidecar: **the tenant is trusted with the whole etcd**, the
    /// cluster's own data included if it lies there.
    #[serde(default)]
    pub allow_sidecar_credentials: bool,
    /// What an EtcdProxy gets that does not say otherwise.
    #[serde(default)]
    pub defaults: Defaults,
}

/// Files in Secrets of the controller's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamTls {
    /// The CA bundle that vouches for the members.
    pub ca_secret_ref: SecretKeyRef,
    /// The client certificate that the controller and the proxies show: a Secret of type kubernetes.io/tls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret_ref: Option<SecretRef>,
}

/// One entry of a Secret in the controller's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// The Secret's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The entry.
    #[serde(default = "default_ca_key")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// A Secret in the controller's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// The Secret's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// A named object may take over a prefix that holds data or is claimed by an object that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Adoption {
    /// The prefix, exactly.
    #[x_kube(validation = ("self.matches('^/([!-.0-~]+/)+$')", "must begin and end with / and have no blanks and no // in it, such as /team-a/"))]
    #[schemars(length(min = 2, max = 512))]
    pub prefix: String,
    /// Namespace of the EtcdProxy.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Name of the EtcdProxy.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
}

/// What tenants may say about where their proxies run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllowedPlacement {
    /// Node labels that may be selected by, each with the values allowed; `*` alone means any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub node_selector: BTreeMap<String, Vec<String>>,
    /// Taints that may be tolerated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tolerations: Vec<AllowedToleration>,
    /// Whether affinity may be set.
    #[serde(default)]
    pub affinity: bool,
    /// Whether topology spread constraints may be set.
    #[serde(default)]
    pub topology_spread_constraints: bool,
}

/// A taint that may be tolerated.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllowedToleration {
    /// The taint's key.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// Its values; absent or empty means any, `operator: Exists` included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub values: Vec<String>,
    /// Its effects; absent or empty means any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub effects: Vec<String>,
}

/// What an EtcdProxy gets that does not say otherwise.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Defaults {
    /// The image of etcd-proxy; absent: what the controller's `--proxy-image` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// Replicas.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 100))]
    pub replicas: i32,
    /// Compute resources of one proxy process.
    #[serde(default = "default_resources")]
    pub resources: Resources,
    /// Limits of one tenant. None can be left out: what is absent is as it is by default.
    #[serde(default = "default_limits", deserialize_with = "filled_limits")]
    pub limits: Limits,
}

/// What the controller knows of a shared etcd.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdUpstreamStatus {
    /// `Reachable` and `QuotaCommitted`.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The generation that this was said of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The version of the member that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// How many members it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<i64>,
    /// How many EtcdProxies refer to it. While there are any, it cannot be deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenants: Option<i64>,
    /// How many claims no EtcdProxy holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retained_claims: Option<i64>,
    /// Size of the database, of all tenants together, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// The same for people, beside its quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// The sum of the storage quotas given out, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed_bytes: Option<i64>,
    /// Claims of objects that are gone: data that was retained, and claims by hand; the first hundred. `spec.adoptions` gives
    /// it to a new object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub retained: Vec<StatusClaim>,
}

/// A claim that no EtcdProxy holds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatusClaim {
    /// The claimed prefix.
    pub prefix: String,
    /// Who claimed it.
    pub owner: String,
}

// === defaults ===

impl Default for Defaults {
    fn default() -> Self {
        Self { image: None, replicas: default_replicas(), resources: default_resources(), limits: default_limits() }
    }
}

fn default_min_validity() -> Duration {
    std::time::Duration::from_secs(600).into()
}

fn default_prefix_root() -> String {
    DEFAULT_PREFIX_ROOT.to_owned()
}

fn default_meta_prefix() -> String {
    DEFAULT_META_PREFIX.to_owned()
}

fn default_ca_key() -> String {
    "ca.crt".to_owned()
}

fn default_replicas() -> i32 {
    1
}

fn default_max_replicas() -> i32 {
    3
}

fn default_resources() -> Resources {
    let quantities = |cpu: Option<&str>, memory: &str| {
        let cpu = cpu.map(|cpu| ("cpu".to_owned(), Quantity(cpu.to_owned())));
        cpu.into_iter().chain([("memory".to_owned(), Quantity(memory.to_owned()))]).collect()
    };
    Resources { requests: quantities(Some("50m"), "32Mi"), limits: quantities(None, "256Mi") }
}

/// Naming one limit does not take the others away.
fn filled_limits<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Limits, D::Error> {
    let (given, default) = (Limits::deserialize(deserializer)?, default_limits());
    Ok(Limits {
        storage: given.storage.or(default.storage),
        keys: given.keys.or(default.keys),
        requests_per_second: given.requests_per_second.or(default.requests_per_second),
        burst: given.burst.or(default.burst),
        concurrent_requests: given.concurrent_requests.or(default.concurrent_requests),
        watches: given.watches.or(default.watches),
        leases: given.leases.or(default.leases),
    })
}

fn default_limits() -> Limits {
    Limits {
        storage: Some(Quantity("512Mi".to_owned())),
        keys: Some(200_000),
        requests_per_second: Some(500),
        burst: Some(1000),
        concurrent_requests: Some(200),
        watches: Some(10_000),
        leases: Some(10_000),
    }
}
