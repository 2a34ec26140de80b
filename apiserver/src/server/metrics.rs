//! What `/metrics` tells, under Kubernetes' names (k8s.io/apiserver `pkg/endpoints/metrics`, `pkg/endpoints/filters/metrics.go`).

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelSet, prometheus_text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::{
    endpoint::{ResponseBody, full},
    request::RequestInfo,
};

/// The upper ends of `apiserver_request_duration_seconds`' buckets, in seconds.
const DURATION_BUCKETS: [f64; 22] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    60.0,
];

/// The metrics of a server. Clones are the same metrics.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    requests: Family<RequestLabels, Counter>,
    durations: Family<DurationLabels, Histogram>,
    response_sizes: Family<SizeLabels, Histogram>,
    in_flight: Family<InFlightLabels, Gauge>,
    long_running: Family<DurationLabels, Gauge>,
    terminations: Family<TerminationLabels, Counter>,
    /// A counter in Kubernetes too, but without the `_total` that the text format appends to the names of counters.
    authentications: Family<ResultLabels, Gauge>,
    authorizations: Family<ResultLabels, Counter>,
    pub(super) handshake_errors: Counter,
    pub(super) connections: Gauge,
}

/// Where a request goes, with as few different values as there are resources: a client cannot make up new ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// For example `LIST`, or `other`.
    pub verb: &'static str,
    /// The group, empty for other paths.
    pub group: Arc<str>,
    /// The version, empty for other paths.
    pub version: Arc<str>,
    /// The resource, empty for other paths.
    pub resource: Arc<str>,
    /// The subresource; for other paths, the path.
    pub subresource: Arc<str>,
    /// `cluster`, `namespace`, `resource`, or empty for other paths.
    pub scope: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: &'static str,
    dry_run: &'static str,
    group: Arc<str>,
    version: Arc<str>,
    resource: Arc<str>,
    subresource: Arc<str>,
    scope: &'static str,
    component: &'static str,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    verb: &'static str,
    dry_run: &'static str,
    group: Arc<str>,
    version: Arc<str>,
    resource: Arc<str>,
    subresource: Arc<str>,
    scope: &'static str,
    component: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SizeLabels {
    verb: &'static str,
    group: Arc<str>,
    version: Arc<str>,
    resource: Arc<str>,
    subresource: Arc<str>,
    scope: &'static str,
    component: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InFlightLabels {
    request_kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TerminationLabels {
    verb: &'static str,
    group: Arc<str>,
    version: Arc<str>,
    resource: Arc<str>,
    subresource: Arc<str>,
    scope: &'static str,
    component: &'static str,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

/// Counts one while it lives.
pub struct Gauged(Gauge);

const COMPONENT: &str = "apiserver";

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Arc::default(),
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(DURATION_BUCKETS)),
            response_sizes: Family::new_with_constructor(|| Histogram::new((3..10).map(|e| 10f64.powi(e)))),
            in_flight: Family::default(),
            long_running: Family::default(),
            terminations: Family::default(),
            authentications: Family::default(),
            authorizations: Family::default(),
            handshake_errors: Counter::default(),
            connections: Gauge::default(),
        };
        metrics.register(|registry| metrics.describe(registry));
        metrics
    }
}

impl Metrics {
    /// Adds metrics of one's own.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock());
    }

    fn describe(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_request",
            "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code",
            self.requests.clone(),
        );
        registry.register(
            "apiserver_request_duration_seconds",
            "Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component",
            self.durations.clone(),
        );
        registry.register(
            "apiserver_response_sizes",
            "Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component",
            self.response_sizes.clone(),
        );
        registry.register(
            "apiserver_current_inflight_requests",
            "Number of currently used inflight request limit of this apiserver per request kind",
            self.in_flight.clone(),
        );
        registry.register(
            "apiserver_longrunning_requests",
            "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component",
            self.long_running.clone(),
        );
        registry.register(
            "apiserver_request_terminations",
            "Number of requests which apiserver terminated in self-defense",
            self.terminations.clone(),
        );
        registry.register("authentication_attempts", "Counter of authenticated attempts", self.authentications.clone());
        registry.register(
            "authorization_attempts",
            "Counter of authorization attempts broken down by result",
            self.authorizations.clone(),
        );
        registry.register(
            "apiserver_tls_handshake_errors",
            "Number of requests dropped with 'TLS handshake error from' error",
            self.handshake_errors.clone(),
        );
        registry.register(
            "apiserver_open_connections",
            "Number of client connections that are open",
            self.connections.clone(),
        );
    }

    /// Everything in the text format of Prometheus.
    pub fn serve(&self) -> Response<ResponseBody> {
        let mut text = String::new();
        match prometheus_text::encode(&mut text, &self.registry.lock()) {
            Ok(()) => {
                let mut response = Response::new(full(text));
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(prometheus_text::CONTENT_TYPE));
                response
            }
            Err(error) => super::respond::plain_error(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }

    pub(super) fn finished(&self, target: &Target, dry_run: bool, code: StatusCode, took: Option<Duration>, size: u64) {
        let labels = DurationLabels::of(target, dry_run);
        self.requests
            .get_or_create(&RequestLabels {
                verb: labels.verb,
                dry_run: labels.dry_run,
                group: labels.group.clone(),
                version: labels.version.clone(),
                resource: labels.resource.clone(),
                subresource: labels.subresource.clone(),
                scope: labels.scope,
                component: COMPONENT,
                code: code.as_u16(),
            })
            .inc();
        if matches!(target.verb, "GET" | "LIST") {
            let Target { verb, group, version, resource, subresource, scope } = target.clone();
            let labels = SizeLabels { verb, group, version, resource, subresource, scope, component: COMPONENT };
            // Sizes are far below 2^52, so nothing is lost.
            #[allow(clippy::cast_precision_loss)]
            self.response_sizes.get_or_create(&labels).observe(size as f64);
        }
        if let Some(took) = took {
            self.durations.get_or_create(&labels).observe(took.as_secs_f64());
        }
    }

    pub(super) fn long_running(&self, target: &Target) -> Gauged {
        Gauged::new(self.long_running.get_or_create(&DurationLabels::of(target, false)).clone())
    }

    pub(super) fn in_flight(&self, read_only: bool) -> Gauged {
        let request_kind = if read_only { "readOnly" } else { "mutating" };
        Gauged::new(self.in_flight.get_or_create(&InFlightLabels { request_kind }).clone())
    }

    pub(super) fn terminated(&self, target: &Target, code: StatusCode) {
        let Target { verb, group, version, resource, subresource, scope } = target.clone();
        let code = code.as_u16();
        let labels =
            TerminationLabels { verb, group, version, resource, subresource, scope, component: COMPONENT, code };
        self.terminations.get_or_create(&labels).inc();
    }

    pub(super) fn authenticated(&self, result: &'static str) {
        self.authentications.get_or_create(&ResultLabels { result }).inc();
    }

    pub(super) fn authorized(&self, result: &'static str) {
        self.authorizations.get_or_create(&ResultLabels { result }).inc();
    }
}

// === impl Target ===

impl Target {
    /// A path that names no resource that exists.
    pub(super) fn other(info: &RequestInfo, path: &Arc<str>) -> Self {
        let none: Arc<str> = Arc::from("");
        let verb = verb(info);
        Self { verb, group: none.clone(), version: none.clone(), resource: none, subresource: path.clone(), scope: "" }
    }
}

/// The verb as metrics name it.
pub(super) fn verb(info: &RequestInfo) -> &'static str {
    match info.verb.as_str() {
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        "head" => "HEAD",
        "options" => "OPTIONS",
        _ => "other",
    }
}

/// The scope as metrics name it.
pub(super) fn scope(info: &RequestInfo) -> &'static str {
    match () {
        () if !info.name.is_empty() || info.verb == "create" => "resource",
        () if !info.namespace.is_empty() => "namespace",
        () => "cluster",
    }
}

// === impl DurationLabels ===

impl DurationLabels {
    fn of(target: &Target, dry_run: bool) -> Self {
        let Target { verb, group, version, resource, subresource, scope } = target.clone();
        let dry_run = if dry_run { "All" } else { "" };
        Self { verb, dry_run, group, version, resource, subresource, scope, component: COMPONENT }
    }
}

// === impl Gauged ===

impl Gauged {
    pub(super) fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Gauged {
    fn drop(&mut self) {
        self.0.dec();
    }
}
