//! What is counted about connections of clients.

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// What is counted about connections of clients. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ConnectionMetrics {
    open: Gauge,
    refused: Family<RefusedLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    reason: Refused,
}

/// Why a connection came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "label values are lower case")]
pub(super) enum Refused {
    /// `--max-connections`.
    limit,
    /// `--max-connections-per-client`.
    client_limit,
    /// The TLS handshake failed.
    handshake,
    /// No request in time.
    timeout,
}

/// Counts one open connection until it is dropped.
#[derive(Debug)]
pub(super) struct OpenConnection(Gauge);

impl ConnectionMetrics {
    /// Registers everything with `registry`.
    pub fn register(&self, registry: &mut Registry) {
        // An alert needs a series before the first of its kind.
        for reason in [Refused::limit, Refused::client_limit, Refused::handshake, Refused::timeout] {
            drop(self.refused.get_or_create(&RefusedLabels { reason }));
        }
        registry.register("client_connections", "Open connections of clients", self.open.clone());
        registry.register("client_connections_refused", "Connections that came to nothing", self.refused.clone());
    }

    pub(super) fn opened(&self) -> OpenConnection {
        self.open.inc();
        OpenConnection(self.open.clone())
    }

    pub(super) fn refused(&self, reason: Refused) {
        self.refused.get_or_create(&RefusedLabels { reason }).inc();
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
