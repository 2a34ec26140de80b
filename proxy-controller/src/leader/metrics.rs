//! What is counted about the election.

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

/// What is counted about the election. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct LeaderMetrics {
    leader: Gauge,
    renewals: Counter,
    failures: Counter,
}

impl LeaderMetrics {
    /// Registers everything with `registry`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("leader", "1 while this replica leads, otherwise 0", self.leader.clone());
        registry.register("leader_renewals", "Renewals of the lead", self.renewals.clone());
        registry.register("leader_failures", "Attempts to get or renew the lead that failed", self.failures.clone());
    }

    pub(super) fn leads(&self, leads: bool) {
        self.leader.set(leads.into());
    }

    pub(super) fn renewed(&self) {
        self.renewals.inc();
    }

    pub(super) fn failed(&self) {
        self.failures.inc();
    }
}
