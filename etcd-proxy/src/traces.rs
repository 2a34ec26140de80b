//! OpenTelemetry traces: a span for each RPC that continues the client's, and one for each upstream call that continues that.
//!
//! As etcd's (`embed/config_tracing.go`): W3C trace context in metadata, spans exported by OTLP over gRPC, and a span whose
//! caller says nothing sampled at a rate. Off, nothing of it exists.

use std::{collections::HashSet, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use opentelemetry::{
    Context, KeyValue,
    propagation::{Extractor, Injector, TextMapPropagator as _},
    trace::{Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _},
};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{Sampler, SdkTracer, SdkTracerProvider, Span},
};
use tonic::{Code, body::Body};

use crate::{
    grpc::{until_end::OnEnd, whole_path},
    metrics::code_name,
};

/// What rates count in.
const MILLION: f64 = 1e6;
/// Longest time for what is still to be exported when the process ends.
const LAST_EXPORT: Duration = Duration::from_secs(3);
/// What an instrumentation is called by.
const SCOPE: &str = "etcd-proxy";
/// What a method is called that is not served, as OpenTelemetry's conventions for RPCs have it: a client may write what it
/// likes in a path, and each name is one more for whoever stores traces.
const OTHER: &str = "_OTHER";

/// Where spans go, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSettings {
    /// `HOST:PORT` of a collector that takes OTLP over gRPC in plaintext.
    pub address: String,
    /// What the collector shows as the service.
    pub service_name: String,
    /// What tells this process from others of the service.
    pub instance_id: Option<String>,
    /// How many of a million calls are traced whose caller does not say.
    pub samples_per_million: u32,
}

/// Exports spans until it is stopped.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

/// Begins spans. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tracer(SdkTracer);

/// Begins the spans of clients' calls. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CallTracer {
    tracer: Tracer,
    paths: Arc<HashSet<&'static str>>,
}

/// A call under way. Counts as cancelled if it is dropped before it has ended.
pub(crate) struct CallSpan {
    span: Span,
    ended: bool,
}

/// Spans cannot be exported.
#[derive(Debug, thiserror::Error)]
#[error("--distributed-tracing-address={address}: {reason}")]
pub struct TraceError {
    address: String,
    reason: String,
}

/// Metadata as a carrier of trace context.
struct Metadata<'a>(&'a HeaderMap);

/// Metadata that takes a trace context up.
struct MetadataMut<'a>(&'a mut HeaderMap);

// === impl Traces ===

impl Traces {
    /// Connects when there is something to export. Must be called on the runtime.
    ///
    /// # Errors
    /// When the address is none.
    pub fn start(settings: &TraceSettings) -> Result<Self, TraceError> {
        let endpoint = format!("http://{}", settings.address);
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build();
        let exporter = exporter.map_err(|error| TraceError {
            address: settings.address.clone(),
            reason: crate::logging::reason(&error),
        })?;
        let instance = settings.instance_id.clone().map(|id| KeyValue::new("service.instance.id", id));
        let resource = Resource::builder()
            .with_service_name(settings.service_name.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attributes(instance)
            .build();
        let root = match settings.samples_per_million {
            0 => Sampler::AlwaysOff,
            rate => Sampler::TraceIdRatioBased(f64::from(rate) / MILLION),
        };
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::ParentBased(Box::new(root)))
            .with_resource(resource)
            .build();
        Ok(Self { provider })
    }

    /// What begins spans.
    pub fn tracer(&self) -> Tracer {
        Tracer(self.provider.tracer(SCOPE))
    }

    /// Exports what is left.
    pub async fn stop(self) {
        // It waits for its own thread, which needs this one to send.
        let stopped = tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(LAST_EXPORT)).await;
        if let Ok(Err(error)) = stopped {
            tracing::warn!(error = &error as &dyn std::error::Error, "the last spans could not be exported");
        }
    }
}

// === impl Tracer ===

impl Tracer {
    /// What begins the spans of calls to the methods that are served at `paths`.
    pub fn serving(self, paths: HashSet<&'static str>) -> CallTracer {
        CallTracer { tracer: self, paths: Arc::new(paths) }
    }

    /// Begins the span of a call to the upstream, if it is made for a call that is traced.
    pub(crate) fn ask<B>(&self, request: &mut Request<B>) -> Option<CallSpan> {
        let parent = parent(request.headers());
        if !parent.span().span_context().is_sampled() {
            return None;
        }
        let method = request.uri().path().to_owned();
        self.begin(SpanKind::Client, &method, request, &parent, || KeyValue::new("peer.service", "etcd"))
    }

    fn begin<B>(
        &self,
        kind: SpanKind,
        method: &str,
        request: &mut Request<B>,
        parent: &Context,
        peer: impl FnOnce() -> KeyValue,
    ) -> Option<CallSpan> {
        let name = method.trim_start_matches('/');
        let span = self.0.span_builder(name.to_owned()).with_kind(kind);
        let mut span = self.0.build_with_context(span, parent);
        if !span.span_context().is_sampled() {
            // What the client sent goes on as it is.
            return None;
        }
        span.set_attribute(KeyValue::new("rpc.system", "grpc"));
        match name.split_once('/') {
            Some((service, method)) => {
                span.set_attribute(KeyValue::new("rpc.service", service.to_owned()));
                span.set_attribute(KeyValue::new("rpc.method", method.to_owned()));
            }
            None => span.set_attribute(KeyValue::new("rpc.method", name.to_owned())),
        }
        span.set_attribute(peer());
        let context = parent.with_remote_span_context(span.span_context().clone());
        TraceContextPropagator::new().inject_context(&context, &mut MetadataMut(request.headers_mut()));
        Some(CallSpan { span, ended: false })
    }
}

// === impl CallTracer ===

impl CallTracer {
    /// Begins the span of a client's call, which the upstream calls made for it continue. None if it is not sampled.
    pub(crate) fn serve(&self, request: &mut Request<Body>, peer: impl ToString) -> Option<CallSpan> {
        let parent = parent(request.headers());
        let method = self.paths.get(whole_path(request.uri())).copied().unwrap_or(OTHER);
        self.tracer.begin(SpanKind::Server, method, request, &parent, || {
            KeyValue::new("network.peer.address", peer.to_string())
        })
    }
}

fn parent(headers: &HeaderMap) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &Metadata(headers))
}

// === impl CallSpan ===

impl OnEnd for CallSpan {
    fn end(&mut self, code: Code) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.span.set_attribute(KeyValue::new("rpc.grpc.status_code", i64::from(i32::from(code))));
        // Which codes are the server's fault (OpenTelemetry's conventions for gRPC).
        if matches!(
            code,
            Code::Unknown
                | Code::DeadlineExceeded
                | Code::Unimplemented
                | Code::Internal
                | Code::Unavailable
                | Code::DataLoss
        ) {
            self.span.set_status(Status::error(code_name(code)));
        }
        self.span.end();
    }
}

impl Drop for CallSpan {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

impl std::fmt::Debug for CallSpan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallSpan").field("ended", &self.ended).finish_non_exhaustive()
    }
}

// === impl Metadata, MetadataMut ===

impl Extractor for Metadata<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

impl Injector for MetadataMut<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(key.as_bytes()), HeaderValue::try_from(value))
            && !value.is_empty()
        {
            self.0.insert(name, value);
        }
    }
}
