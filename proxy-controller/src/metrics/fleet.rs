//! The managed proxies as they are, seen from the caches.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

/// The managed proxies as they are. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct FleetMetrics {
    proxies: Family<ProxyLabels, Gauge>,
    /// What `proxies` has at present.
    known: Arc<Mutex<Vec<ProxyLabels>>>,
    next_expiry: Gauge,
}

/// The status of a `Ready` condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(missing_docs, reason = "the words of the API")]
pub enum ReadyState {
    True,
    False,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProxyLabels {
    ready: ReadyState,
    reason: String,
}

impl FleetMetrics {
    /// Registers everything with `registry`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("proxies", "EtcdProxy objects by the state of their Ready condition", self.proxies.clone());
        registry.register(
            "certificates_next_expiry_timestamp_seconds",
            "When the first of the certificates made for proxies and tenants expires, in seconds since 1970; 0: there are none",
            self.next_expiry.clone(),
        );
    }

    /// Tells all proxies' states at once: status and reason of each one's `Ready` condition. The reason of a true condition
    /// is of no use as a label: give an empty one.
    pub fn set_proxies<'a>(&self, states: impl IntoIterator<Item = (ReadyState, &'a str)>) {
        let mut counts: HashMap<ProxyLabels, i64> = HashMap::new();
        for (ready, reason) in states {
            *counts.entry(ProxyLabels { ready, reason: reason.to_owned() }).or_default() += 1;
        }
        let mut known = self.known.lock();
        for gone in known.iter().filter(|labels| !counts.contains_key(labels)) {
            self.proxies.remove(gone);
        }
        for (labels, count) in &counts {
            self.proxies.get_or_create(labels).set(*count);
        }
        *known = counts.into_keys().collect();
    }

    /// Tells when certificates expire, in seconds since 1970.
    pub fn set_next_expiry(&self, expiries: impl IntoIterator<Item = i64>) {
        self.next_expiry.set(expiries.into_iter().min().unwrap_or(0));
    }
}
