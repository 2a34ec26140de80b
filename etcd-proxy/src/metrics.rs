//! What the proxy counts, under etcd's own names where the meaning is the same.

use std::{sync::Arc, time::Instant};

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
use tonic::Code;

use crate::limits::Present;

/// All metrics of one tenant's service. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    started: Family<MethodLabels, Counter>,
    handled: Family<HandledLabels, Counter>,
    handling: Family<MethodLabels, Histogram, fn() -> Histogram>,
    /// Keys in upstream answers that lay outside the prefix. Anything but 0 is a defect.
    pub foreign_keys: Counter,
    /// Open watch streams, those for waiting locks and elections among them.
    pub watch_streams: Gauge,
    /// RangeStreams under way.
    pub range_streams: Gauge,
    /// Bytes of long answers that are being passed on.
    pub buffered_bytes: Gauge,
    /// Long answers that wait for their share of the memory.
    pub answers_waiting: Gauge,
    /// Bytes of requests that did not come at once.
    pub arriving_bytes: Gauge,
    /// Requests that wait for their share of the memory.
    pub requests_waiting: Gauge,
    /// Answers and streams that were given up because their clients read nothing.
    pub readers_given_up: Counter,
    /// Open lease keep-alive streams.
    pub keep_alive_streams: Gauge,
    /// The lowest revision that the tenant may read; -1 while it never compacted.
    pub watermark: Gauge,
    /// How often the upstream was found to have gone back to an earlier state.
    pub went_back: Counter,
    /// Bytes of requests as they were rewritten for the upstream.
    pub rewritten_requests: Counter,
    /// Bytes of responses as they were rewritten for the tenant.
    pub rewritten_responses: Counter,
}

/// Whether a method's messages are single or streams, in the words of `grpc_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum GrpcType {
    /// One message each way.
    #[allow(non_camel_case_types)]
    unary,
    /// One request, many responses.
    #[allow(non_camel_case_types)]
    server_stream,
    /// Many each way.
    #[allow(non_camel_case_types)]
    bidi_stream,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabels {
    grpc_type: GrpcType,
    grpc_service: &'static str,
    grpc_method: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabels {
    direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HandledLabels {
    grpc_type: GrpcType,
    grpc_service: &'static str,
    grpc_method: &'static str,
    grpc_code: &'static str,
}

/// The metrics of one method, looked up once.
#[derive(Clone, Debug)]
pub struct MethodMetrics(Arc<MethodInner>);

#[derive(Debug)]
struct MethodInner {
    started: Counter,
    /// By the number of the code.
    handled: [Counter; CODES.len()],
    handling: Histogram,
}

/// One call under way. Counts as cancelled if it is dropped before it has ended.
#[derive(Debug)]
pub struct Call {
    metrics: MethodMetrics,
    started: Instant,
    ended: bool,
    /// Its place among the streams at a time.
    _place: Option<Present>,
}

/// grpc-go's names of the codes, by number.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// grpc-go's name of a code.
pub fn code_name(code: Code) -> &'static str {
    usize::try_from(i32::from(code)).ok().and_then(|code| CODES.get(code)).copied().unwrap_or("Unknown")
}

// === impl Metrics ===

impl Metrics {
    /// Registers everything with `registry`.
    pub fn new(registry: &mut Registry) -> Self {
        let rewritten = Family::<DirectionLabels, Counter>::default();
        let metrics = Self {
            started: Family::default(),
            handled: Family::default(),
            // The buckets of go-grpc-middleware, which etcd uses: 5 ms to 10 s there, finer below here.
            handling: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.000_1, 2.0, 18))),
            foreign_keys: Counter::default(),
            watch_streams: Gauge::default(),
            range_streams: Gauge::default(),
            buffered_bytes: Gauge::default(),
            answers_waiting: Gauge::default(),
            arriving_bytes: Gauge::default(),
            requests_waiting: Gauge::default(),
            readers_given_up: Counter::default(),
            keep_alive_streams: Gauge::default(),
            watermark: Gauge::default(),
            went_back: Counter::default(),
            rewritten_requests: rewritten.get_or_create_owned(&DirectionLabels { direction: "request" }),
            rewritten_responses: rewritten.get_or_create_owned(&DirectionLabels { direction: "response" }),
        };
        metrics.watermark.set(-1);
        registry.register("grpc_server_started", "RPCs started on the server", metrics.started.clone());
        registry.register(
            "grpc_server_handled",
            "RPCs completed on the server, whatever their code",
            metrics.handled.clone(),
        );
        registry.register(
            "grpc_server_handling_seconds",
            "Response latency (seconds) of gRPC that had been application-level handled by the server",
            metrics.handling.clone(),
        );
        let proxy = registry.sub_registry_with_prefix("etcd_proxy");
        proxy.register(
            "foreign_keys",
            "Keys of the upstream's answers that lay outside the prefix and were held back",
            metrics.foreign_keys.clone(),
        );
        proxy.register(
            "watch_streams",
            "Open watch streams, those for waiting locks and elections among them",
            metrics.watch_streams.clone(),
        );
        proxy.register(
            "rewritten_bytes",
            "Bytes of messages as they went on after their keys and lease ids were mapped",
            rewritten,
        );
        proxy.register("range_streams", "RangeStreams under way", metrics.range_streams.clone());
        proxy.register(
            "buffered_bytes",
            "Bytes of long answers that are being passed on",
            metrics.buffered_bytes.clone(),
        );
        proxy.register(
            "answers_waiting",
            "Long answers that wait until --max-buffered-bytes has room for them",
            metrics.answers_waiting.clone(),
        );
        proxy.register(
            "arriving_bytes",
            "Bytes that requests take which come in pieces, until they are answered",
            metrics.arriving_bytes.clone(),
        );
        proxy.register(
            "requests_waiting",
            "Requests that wait, when they have come in part, until there is room for the rest",
            metrics.requests_waiting.clone(),
        );
        proxy.register(
            "readers_given_up",
            "Answers and streams that were given up because their clients read nothing",
            metrics.readers_given_up.clone(),
        );
        proxy.register("keep_alive_streams", "Open lease keep-alive streams", metrics.keep_alive_streams.clone());
        proxy.register(
            "watermark_revision",
            "The lowest revision that the tenant may read, -1 while it never compacted",
            metrics.watermark.clone(),
        );
        proxy.register(
            "upstream_went_back",
            "How often the upstream was found to have gone back to an earlier state, as by a restored snapshot",
            metrics.went_back.clone(),
        );
        metrics
    }

    /// The metrics of one method.
    pub fn method(&self, grpc_type: GrpcType, grpc_service: &'static str, grpc_method: &'static str) -> MethodMetrics {
        let labels = MethodLabels { grpc_type, grpc_service, grpc_method };
        let handled = CODES.map(|grpc_code| {
            self.handled.get_or_create_owned(&HandledLabels { grpc_type, grpc_service, grpc_method, grpc_code })
        });
        MethodMetrics(Arc::new(MethodInner {
            started: self.started.get_or_create_owned(&labels),
            handled,
            handling: self.handling.get_or_create_owned(&labels),
        }))
    }
}

/// Counts bytes.
pub(crate) fn add_bytes(counter: &Counter, bytes: usize) {
    counter.inc_by(u64::try_from(bytes).unwrap_or(u64::MAX));
}

// === impl MethodMetrics ===

impl MethodMetrics {
    /// Counts a call that begins.
    pub fn start(&self) -> Call {
        self.0.started.inc();
        Call { metrics: self.clone(), started: Instant::now(), ended: false, _place: None }
    }
}

// === impl Call ===

impl Call {
    /// Keeps a place for as long as there is something of the call.
    pub(crate) fn keep(&mut self, place: Present) {
        self._place = Some(place);
    }

    /// Counts the call's end. Later ends of the same call do not count.
    pub fn end(&mut self, code: Code) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let inner = &self.metrics.0;
        if let Some(counter) = usize::try_from(i32::from(code)).ok().and_then(|code| inner.handled.get(code)) {
            counter.inc();
        }
        inner.handling.observe(self.started.elapsed().as_secs_f64());
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn counts_under_etcds_names() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let range = metrics.method(GrpcType::unary, "etcdserverpb.KV", "Range");
        range.start().end(Code::Ok);
        drop(range.start());
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            r#"grpc_server_started_total{grpc_type="unary",grpc_service="etcdserverpb.KV",grpc_method="Range"} 2"#,
            r#"grpc_server_handled_total{grpc_type="unary",grpc_service="etcdserverpb.KV",grpc_method="Range",grpc_code="OK"} 1"#,
            r#"grpc_server_handled_total{grpc_type="unary",grpc_service="etcdserverpb.KV",grpc_method="Range",grpc_code="Canceled"} 1"#,
            "etcd_proxy_foreign_keys_total 0",
            "etcd_proxy_watermark_revision -1",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
