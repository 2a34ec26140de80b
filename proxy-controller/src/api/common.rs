//! What operators and tenants both write.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Affinity, TopologySpreadConstraint},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// What one tenant may use, as a whole: of rates, requests and watches each replica of a proxy gets its share.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Most bytes of live keys and values, such as `512Mi`. At the limit writes that grow the tenant fail with etcd's "database
    /// space exceeded".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("type(self) == string && self.matches('^[0-9]+([.][0-9]+)?([kMGTPE]|[KMGTPE]i)?$')", "must be a number of bytes, such as 512Mi or 2Gi"))]
    #[x_kube(validation = ("type(self) != string || !isQuantity(self) || quantity(self).isGreaterThan(quantity('0'))", "must be greater than 0"))]
    #[x_kube(validation = ("type(self) != string || !isQuantity(self) || quantity(self).isLessThan(quantity('8Ei'))", "must be less than 8Ei"))]
    #[schemars(length(max = 32))]
    pub storage: Option<Quantity>,
    /// Most live keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub keys: Option<i64>,
    /// Requests per second, in the long run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub requests_per_second: Option<i64>,
    /// Requests that may come at once after a quiet time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub burst: Option<i64>,
    /// Requests under way at a time, watches and other streams not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub concurrent_requests: Option<i64>,
    /// Watches at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub watches: Option<i64>,
    /// Leases at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub leases: Option<i64>,
}

/// Compute resources of one proxy process.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What is reserved: `cpu` and `memory`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(validation = ("self.all(name, name in ['cpu', 'memory'])", "only cpu and memory may be named"))]
    #[x_kube(validation = ("self.all(name, type(self[name]) != string || !isQuantity(self[name]) || quantity(self[name]).isGreaterThan(quantity('0')))", "must be greater than 0, which would be no bound"))]
    #[schemars(extend("maxProperties" = 2))]
    pub requests: BTreeMap<String, Quantity>,
    /// What is not exceeded: `cpu` and `memory`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(validation = ("self.all(name, name in ['cpu', 'memory'])", "only cpu and memory may be named"))]
    #[x_kube(validation = ("self.all(name, type(self[name]) != string || !isQuantity(self[name]) || quantity(self[name]).isGreaterThan(quantity('0')))", "must be greater than 0, which would be no bound"))]
    #[schemars(extend("maxProperties" = 2))]
    pub limits: BTreeMap<String, Quantity>,
}

/// Where pods may or should run. Nothing else of a pod is a tenant's to say.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(validation = ("self.all(label, self[label].matches('^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$'))", "must be values of labels: letters, digits, -, _ and ."))]
    #[schemars(extend("maxProperties" = 16, "additionalProperties" = {"type": "string", "maxLength": 63}))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that are tolerated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,
    /// Affinity and anti-affinity, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Spread over topology domains, as in a pod. Without it, replicas are spread over nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
}

/// A taint that is tolerated, as in a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// The taint's key. Tolerating every taint is not possible.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// `Equal` (the default) or `Exists`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Equal", "Exists"]))]
    pub operator: Option<String>,
    /// The taint's value, for `Equal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// The taint's effect; absent means all effects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["NoSchedule", "PreferNoSchedule", "NoExecute"]))]
    pub effect: Option<String>,
    /// For how long a `NoExecute` taint is tolerated, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}
