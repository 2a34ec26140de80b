//! What is counted about the webhook and its certificate.

use std::{fmt, time::Duration};

use http::StatusCode;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// What is counted about the webhook and its certificate. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WebhookMetrics {
    decisions: Family<DecisionLabels, Counter>,
    seconds: Histogram,
    refused: Family<RefusedLabels, Counter>,
    expiry: Gauge,
}

/// What the webhook said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecisionLabel {
    /// Yes.
    Allowed,
    /// No.
    Denied,
    /// It could not say.
    Unable,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    decision: DecisionLabel,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    code: u64,
}

impl EncodeLabelValue for DecisionLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        let name = match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Unable => "unable",
        };
        name.encode(encoder)
    }
}

impl Default for WebhookMetrics {
    fn default() -> Self {
        Self {
            decisions: Family::default(),
            // 0.1 ms to 3.3 s: from the caches, or by asking.
            seconds: Histogram::new(exponential_buckets(0.000_1, 2.0, 16)),
            refused: Family::default(),
            expiry: Gauge::default(),
        }
    }
}

impl WebhookMetrics {
    /// Registers everything with `registry`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("webhook_decisions", "Decisions of the webhook, by reason", self.decisions.clone());
        registry.register("webhook_decision_seconds", "How long decisions took, in seconds", self.seconds.clone());
        registry.register(
            "webhook_requests_refused",
            "Requests to the webhook that were no reviews, by the status code of the answer",
            self.refused.clone(),
        );
        registry.register(
            "webhook_certificate_expiry_timestamp_seconds",
            "When the webhook's serving certificate expires, in seconds since 1970; 0: there is none yet",
            self.expiry.clone(),
        );
    }

    /// Counts a decision. `reason` is that of a denial.
    pub fn decided(&self, decision: DecisionLabel, reason: &'static str, took: Duration) {
        self.decisions.get_or_create(&DecisionLabels { decision, reason }).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    pub(super) fn refused(&self, status: StatusCode) {
        self.refused.get_or_create(&RefusedLabels { code: status.as_u16().into() }).inc();
    }

    pub(super) fn loaded(&self, expires: i64) {
        self.expiry.set(expires);
    }
}
