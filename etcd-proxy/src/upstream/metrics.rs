//! What is counted about the way to the upstream.

use std::time::Duration;

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// What is counted about the way to the upstream. Cheap to clone.
#[derive(Clone, Debug)]
pub struct UpstreamMetrics {
    connections: Family<EndpointLabels, Gauge>,
    dials: Family<DialLabels, Counter>,
    logins: Family<LoginLabels, Counter>,
    latency: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointLabels {
    endpoint: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DialLabels {
    endpoint: String,
    result: DialResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LoginLabels {
    result: DialResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "label values are lower case")]
enum DialResult {
    ok,
    failed,
}

/// Counts one open connection until it is dropped.
#[derive(Debug)]
pub(super) struct OpenConnection(Gauge);

impl Default for UpstreamMetrics {
    fn default() -> Self {
        Self {
            connections: Family::default(),
            dials: Family::default(),
            logins: Family::default(),
            latency: Histogram::new(exponential_buckets(0.000_1, 2.0, 18)),
        }
    }
}

impl UpstreamMetrics {
    /// Registers everything with `registry`.
    pub fn register(&self, registry: &mut Registry) {
        for result in [DialResult::ok, DialResult::failed] {
            drop(self.logins.get_or_create(&LoginLabels { result }));
        }
        registry.register("upstream_connections", "Open connections to the upstream", self.connections.clone());
        registry.register("upstream_dials", "Attempts to connect to the upstream", self.dials.clone());
        registry.register(
            "upstream_logins",
            "Attempts to get a token for the upstream's user and its password",
            self.logins.clone(),
        );
        registry.register(
            "upstream_latency_seconds",
            "Time from a unary request to the head of the upstream's response",
            self.latency.clone(),
        );
    }

    pub(super) fn dialled(&self, endpoint: &impl ToString) -> OpenConnection {
        let endpoint = endpoint.to_string();
        self.dials.get_or_create(&DialLabels { endpoint: endpoint.clone(), result: DialResult::ok }).inc();
        let gauge = self.connections.get_or_create_owned(&EndpointLabels { endpoint });
        gauge.inc();
        OpenConnection(gauge)
    }

    pub(super) fn failed(&self, endpoint: &impl ToString) {
        self.dials.get_or_create(&DialLabels { endpoint: endpoint.to_string(), result: DialResult::failed }).inc();
    }

    pub(super) fn logged_in(&self, succeeded: bool) {
        let result = if succeeded { DialResult::ok } else { DialResult::failed };
        self.logins.get_or_create(&LoginLabels { result }).inc();
    }

    pub(super) fn answered(&self, after: Duration) {
        self.latency.observe(after.as_secs_f64());
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
