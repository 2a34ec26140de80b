//! What is in force: what the tenant said, else what the operator's defaults say.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::{
    api::{CompactionPolicy, EtcdProxy, EtcdUpstream, Limits, Placement, Resources},
    policy::{self, quantity::Amount},
};

/// The proxy's own default of `--max-buffered-bytes`, which a pod with more memory has, too.
const MOST_BUFFERED: i64 = 128 << 20;
/// As much as a tenant needs to be served at all.
const LEAST_BUFFERED: i64 = 16 << 20;
/// What a process takes besides 1¼ times `--max-buffered-bytes`, in bytes (docs/etcd-proxy.md, "What is bounded").
const BESIDES: i64 = 208_000_000;

/// Quantities by resource name.
pub type Quantities = BTreeMap<String, Quantity>;

/// What is in force for one EtcdProxy.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The image of etcd-proxy.
    pub image: String,
    /// Replicas in mode Deployment.
    pub replicas: i32,
    /// Compute resources of one process.
    pub resources: Resources,
    /// Limits of the tenant as a whole.
    pub limits: Limits,
    /// What the tenant's compactions do.
    pub compaction: CompactionPolicy,
    /// Where pods run.
    pub placement: Placement,
}

impl Settings {
    /// What is in force now; `image` is what the controller falls back on. Wishes beyond what is permitted count as what is
    /// permitted ([`crate::policy`] refuses them besides).
    pub fn new(proxy: &EtcdProxy, upstream: &EtcdUpstream, image: &str) -> Self {
        let spec = &proxy.spec;
        Self {
            image: upstream.spec.defaults.image.clone().unwrap_or_else(|| image.to_owned()),
            replicas: policy::replicas(proxy, upstream),
            resources: policy::resources(proxy, upstream),
            limits: policy::limits(proxy, upstream),
            compaction: spec.compaction.as_ref().map(|compaction| compaction.policy).unwrap_or_default(),
            placement: spec.placement.clone().unwrap_or_default(),
        }
    }

    /// The storage quota in bytes.
    pub fn quota(&self) -> Option<i64> {
        self.limits.storage.as_ref().and_then(Amount::parse).map(Amount::units)
    }

    /// The proxy's flag for the bytes of long answers that a process may keep so that all of it fits into its memory limit. With
    /// too little for that the tenant is served all the same, and one that asks for much at once can end its proxy.
    pub fn memory_flag(&self) -> Option<(&'static str, String)> {
        let memory = Amount::parse(self.resources.limits.get("memory")?)?.units();
        let buffered = memory.saturating_sub(BESIDES).saturating_mul(4).div_euclid(5);
        Some(("max-buffered-bytes", buffered.clamp(LEAST_BUFFERED, MOST_BUFFERED).to_string()))
    }

    /// The proxy's flags for the limits, one process of `processes` getting its share of rates and of what it counts by itself.
    pub fn limit_flags(&self, processes: i32) -> Vec<(&'static str, String)> {
        let processes = i64::from(processes.max(1));
        let share = |limit: Option<i64>| limit.map(|limit| limit.div_euclid(processes).max(1).to_string());
        let whole = |limit: Option<i64>| limit.map(|limit| limit.to_string());
        let limits = &self.limits;
        let flags = [
            ("quota-bytes", whole(self.quota())),
            ("quota-keys", whole(limits.keys)),
            ("max-requests-per-second", share(limits.requests_per_second)),
            ("max-requests-burst", share(limits.burst)),
            ("max-concurrent-requests", share(limits.concurrent_requests)),
            ("max-watches", share(limits.watches)),
            // The proxies count the tenant's leases, not their own.
            ("max-leases", whole(limits.leases)),
        ];
        let compaction = match self.compaction {
            CompactionPolicy::Virtual => "virtual",
            CompactionPolicy::Deny => "deny",
        };
        flags
            .into_iter()
            .filter_map(|(flag, value)| Some((flag, value?)))
            .chain([("compaction-policy", compaction.to_owned())])
            .collect()
    }
}
