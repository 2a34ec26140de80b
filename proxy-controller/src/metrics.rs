//! What the controller counts, put together. What belongs to one module is defined there; here is what several share.
//!
//! All names begin with `etcd_proxy_controller_`.

mod fleet;
mod reconcile;
mod requests;

use etcd_proxy::server::ConnectionMetrics;
use prometheus_client::registry::Registry;

pub use self::{
    fleet::{FleetMetrics, ReadyState},
    reconcile::{Outcome, ReconcileMetrics, Reconciliation},
    requests::{CountedRequests, RequestMetrics},
};
use crate::{leader::LeaderMetrics, serving::WebhookMetrics};

/// What all names begin with.
const PREFIX: &str = "etcd_proxy_controller";

/// Everything that is counted. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Passes of the loop.
    pub reconcile: ReconcileMetrics,
    /// The proxies as they are.
    pub fleet: FleetMetrics,
    /// The election.
    pub leader: LeaderMetrics,
    /// The webhook and its certificate.
    pub webhook: WebhookMetrics,
    /// Connections to the listeners.
    pub connections: ConnectionMetrics,
    /// Requests to the API server.
    pub requests: RequestMetrics,
}

impl Metrics {
    /// The registry that exposes them.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix(PREFIX);
        self.reconcile.register(&mut registry);
        self.fleet.register(&mut registry);
        self.leader.register(&mut registry);
        self.webhook.register(&mut registry);
        self.connections.register(&mut registry);
        self.requests.register(&mut registry);
        registry
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::serving::DecisionLabel;

    #[test]
    fn everything_has_its_name() {
        let metrics = Metrics::default();
        let pass = metrics.reconcile.begin("EtcdProxy");
        assert_eq!(exposed(&metrics, "reconciling"), ["etcd_proxy_controller_reconciling{kind=\"EtcdProxy\"} 1"]);
        pass.end(Outcome::Error, "UpstreamUnreachable");
        metrics.reconcile.begin("EtcdProxy").end(Outcome::Success, "");
        drop(metrics.reconcile.begin("EtcdUpstream"));
        metrics.fleet.set_proxies([(ReadyState::True, ""), (ReadyState::False, "PrefixTaken"), (ReadyState::True, "")]);
        metrics.fleet.set_next_expiry([1_900_000_000, 1_800_000_000]);
        metrics.webhook.decided(DecisionLabel::Denied, "PrefixTaken", Duration::from_millis(2));
        let mut text = String::new();
        encode(&mut text, &metrics.registry()).unwrap();
        for line in [
            r#"reconciliations_total{kind="EtcdProxy",outcome="error",reason="UpstreamUnreachable"} 1"#,
            r#"reconciliations_total{kind="EtcdProxy",outcome="success",reason=""} 1"#,
            r#"reconciliations_total{kind="EtcdUpstream",outcome="cancelled",reason=""} 1"#,
            r#"reconciliation_seconds_count{kind="EtcdProxy",outcome="error"} 1"#,
            r#"reconciling{kind="EtcdUpstream"} 0"#,
            r#"proxies{ready="True",reason=""} 2"#,
            r#"proxies{ready="False",reason="PrefixTaken"} 1"#,
            "certificates_next_expiry_timestamp_seconds 1800000000",
            "leader 0",
            r#"webhook_decisions_total{decision="denied",reason="PrefixTaken"} 1"#,
            "client_connections 0",
        ] {
            assert!(text.contains(&format!("\netcd_proxy_controller_{line}")), "{line} is missing in\n{text}");
        }
        // A reason that is not there any more is gone.
        metrics.fleet.set_proxies([(ReadyState::True, "")]);
        assert_eq!(exposed(&metrics, "proxies{"), ["etcd_proxy_controller_proxies{ready=\"True\",reason=\"\"} 1"]);
    }

    fn exposed(metrics: &Metrics, name: &str) -> Vec<String> {
        let mut text = String::new();
        encode(&mut text, &metrics.registry()).unwrap();
        let start = format!("{PREFIX}_{name}");
        text.lines().filter(|line| line.starts_with(&start)).map(str::to_owned).collect()
    }
}
