//! What is counted about the loop.

use std::{fmt, time::Instant};

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

/// What is counted about the loop. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ReconcileMetrics {
    passes: Family<PassLabels, Counter>,
    seconds: Family<SecondsLabels, Histogram, fn() -> Histogram>,
    under_way: Family<KindLabel, Gauge>,
}

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Everything is as it should be.
    Success,
    /// The object is refused or waits for somebody else; trying again at once changes nothing.
    Blocked,
    /// Something failed and is tried again.
    Error,
    /// The pass was dropped before it ended.
    Cancelled,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PassLabels {
    kind: &'static str,
    outcome: Outcome,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SecondsLabels {
    kind: &'static str,
    outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

/// One pass under way. Counts as cancelled if it is dropped before it has ended.
#[derive(Debug)]
pub struct Reconciliation {
    metrics: ReconcileMetrics,
    kind: &'static str,
    started: Instant,
    ended: bool,
}

impl EncodeLabelValue for Outcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        let name = match self {
            Self::Success => "success",
            Self::Blocked => "blocked",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
        };
        name.encode(encoder)
    }
}

impl Default for ReconcileMetrics {
    fn default() -> Self {
        Self {
            passes: Family::default(),
            // 1 ms to 33 s: from nothing to do to waiting for an etcd that does not answer.
            seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 16))),
            under_way: Family::default(),
        }
    }
}

impl ReconcileMetrics {
    /// Registers everything with `registry`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("reconciliations", "Passes over one object, by how they ended and why", self.passes.clone());
        registry.register("reconciliation_seconds", "How long passes took, in seconds", self.seconds.clone());
        registry.register("reconciling", "Passes under way", self.under_way.clone());
    }

    /// Counts a pass that begins. `kind` is the object's.
    pub fn begin(&self, kind: &'static str) -> Reconciliation {
        self.under_way.get_or_create(&KindLabel { kind }).inc();
        Reconciliation { metrics: self.clone(), kind, started: Instant::now(), ended: false }
    }
}

impl Reconciliation {
    /// Counts the end. `reason` is the condition's, or the error's kind; empty if all is well.
    pub fn end(mut self, outcome: Outcome, reason: &'static str) {
        self.count(outcome, reason);
    }

    fn count(&mut self, outcome: Outcome, reason: &'static str) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let (metrics, kind) = (&self.metrics, self.kind);
        metrics.under_way.get_or_create(&KindLabel { kind }).dec();
        metrics.passes.get_or_create(&PassLabels { kind, outcome, reason }).inc();
        let seconds = self.started.elapsed().as_secs_f64();
        metrics.seconds.get_or_create(&SecondsLabels { kind, outcome }).observe(seconds);
    }
}

impl Drop for Reconciliation {
    fn drop(&mut self) {
        self.count(Outcome::Cancelled, "");
    }
}
