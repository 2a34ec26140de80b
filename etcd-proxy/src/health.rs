//! Is it alive, is it ready: etcd's HTTP endpoints, Kubernetes' probes, grpc.health.v1, and the metrics' exposition.
//!
//! Probes ask when they are asked: nothing polls the upstream in the background. They use the tenant's own services, so that
//! what they find is what a client would find.

mod rpcs;

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{ALLOW, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
};
use http_body_util::Full;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use proto::etcdserverpb::{
    AlarmRequest, AlarmType, RangeRequest, StatusRequest, alarm_request::AlarmAction, kv_client::KvClient,
    maintenance_client::MaintenanceClient,
};
use serde::Serialize;
use tokio::{sync::Semaphore, time::timeout};
use tonic::{Code, Status, body::Body};
use tower::Service;

pub use self::rpcs::{HEALTH_PATHS, HealthReporter, HealthService, descriptors, grpc_health};
use crate::{drain::Shutdown, gate::Gate, grpc::Delivered, tenant::Tenant};

/// How long the upstream gets to answer a probe. Kubernetes' own timeout is 1 s unless set; etcd waits 7 s for `/health`.
const PATIENCE: Duration = Duration::from_secs(5);

/// The key that probes read: a tenant may or may not have it.
const PROBED: &[u8] = b"health";

/// Most requests at a time that are under way or whose answer is not taken: of all client ports, and of all metrics ports.
const ANSWERS: usize = 1024;

/// Answers etcd's HTTP endpoints and the probes.
#[derive(Clone, Debug)]
pub struct Probes<S> {
    services: S,
    tenant: Tenant,
    gate: Gate,
    shutdown: Shutdown,
    registry: Arc<Registry>,
    told: Told,
    places: Arc<Semaphore>,
}

/// How `/health` was answered last, for each way to ask, so that the log tells changes alone. Cheap to clone.
#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<HashMap<Asked, String>>>);

/// What a question about health leaves out: who leaves out more may be told otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Asked {
    serializable: bool,
    without_nospace: bool,
    without_corrupt: bool,
}

/// Body of `/health`.
#[derive(Serialize)]
struct Health {
    health: &'static str,
    reason: String,
}

/// Body of `/version`.
#[derive(Serialize)]
struct Versions {
    etcdserver: String,
    etcdcluster: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    storage: String,
}

// === impl Probes ===

impl<S> Probes<S> {
    /// Probes that look through `services`, those of `tenant`.
    pub fn new(services: S, tenant: Tenant, gate: Gate, shutdown: Shutdown, registry: Arc<Registry>) -> Self {
        let places = Arc::new(Semaphore::new(ANSWERS));
        Self { services, tenant, gate, shutdown, registry, told: Told::default(), places }
    }
}

impl<S> Probes<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    /// Answers on the client port.
    pub(crate) async fn client_port(&self, method: &Method, uri: &Uri) -> Response<Body> {
        self.bounded(self.client(method, uri)).await
    }

    /// Answers on the metrics port.
    pub(crate) async fn metrics_port(&self, method: &Method, uri: &Uri) -> Response<Body> {
        self.bounded(self.metrics(method, uri)).await
    }

    /// An answer in one of the places, which it keeps until it is taken or given up.
    async fn bounded(&self, answer: impl Future<Output = Response<Full<Bytes>>>) -> Response<Body> {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            // Without a body there is nothing that could be left.
            let mut refused = Response::new(Body::empty());
            *refused.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            return refused;
        };
        let patience = self.tenant.answer_patience().timeout;
        answer.await.map(|body| Body::new(Delivered::new(body, patience, place)))
    }

    /// The endpoints of the client port: `/health` and `/version`.
    async fn client(&self, method: &Method, uri: &Uri) -> Response<Full<Bytes>> {
        match uri.path() {
            "/health" | "/version" if method != Method::GET => method_not_allowed(),
            "/health" => self.health(uri).await,
            "/version" => self.version().await,
            _ => not_found(),
        }
    }

    /// The endpoints of the metrics port.
    async fn metrics(&self, method: &Method, uri: &Uri) -> Response<Full<Bytes>> {
        match uri.path() {
            "/livez" | "/readyz" | "/metrics" | "/usage" if method != Method::GET => method_not_allowed(),
            "/livez" => text(StatusCode::OK, "ok\n"),
            "/readyz" => self.readyz(uri).await,
            "/metrics" => self.exposition(),
            "/usage" => self.usage().await,
            _ => self.client(method, uri).await,
        }
    }

    /// As etcd's (`etcdhttp/health.go`): alarms, then a read.
    async fn health(&self, uri: &Uri) -> Response<Full<Bytes>> {
        let asked = Asked::by(uri);
        let reason = match self.alarm(asked).await {
            Some(alarm) => Some(format!("ALARM {alarm}")),
            None => self.read(asked.serializable).await.err().map(|status| format!("RANGE ERROR:{}", status.message())),
        };
        self.told.note(asked, reason.as_deref());
        let (status, health) = match &reason {
            None => (StatusCode::OK, "true"),
            Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "false"),
        };
        let body = serde_json::to_string(&Health { health, reason: reason.unwrap_or_default() }).unwrap_or_default();
        match status {
            StatusCode::OK => text(status, body),
            // Go's http.Error ends the line.
            _ => text(status, format!("{body}\n")),
        }
    }

    /// As etcd's (`etcdhttp/version.go`), of the upstream.
    async fn version(&self) -> Response<Full<Bytes>> {
        let mut client = MaintenanceClient::new(self.services.clone());
        match patient(client.status(StatusRequest::default())).await {
            Ok(status) => {
                let status = status.into_inner();
                let mut parts = status.version.split('.');
                let cluster = match (parts.next(), parts.next()) {
                    (Some(major), Some(minor)) => format!("{major}.{minor}.0"),
                    _ => "not_decided".to_owned(),
                };
                let versions =
                    Versions { etcdcluster: cluster, etcdserver: status.version, storage: status.storage_version };
                let body = serde_json::to_string(&versions).unwrap_or_default();
                respond(StatusCode::OK, "application/json", body)
            }
            Err(status) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", status.message())),
        }
    }

    /// In the form of etcd's `/readyz`.
    async fn readyz(&self, uri: &Uri) -> Response<Full<Bytes>> {
        let excluded: Vec<&str> = query(uri, "exclude").collect();
        let mut reasons = String::new();
        let mut failed = false;
        let counted = self.tenant.limits().counted();
        for check in ["shutdown", "claims", "upstream", "meta"].into_iter().chain(counted.map(|_| "limits")) {
            if excluded.contains(&check) {
                continue;
            }
            let problem = match check {
                "shutdown" if self.shutdown.leaving().is_cancelled() => Some("shutting down".to_owned()),
                "claims" if !self.gate.is_open() => Some("claims could not be checked yet".to_owned()),
                "upstream" if self.gate.is_open() => {
                    self.read(false).await.err().map(|status| status.message().to_owned())
                }
                // Without rights on its meta keys the tenant can neither compact nor lease, nor read a revision.
                "meta" if self.gate.is_open() => {
                    let problem = patient(self.tenant.check_meta()).await.err();
                    // Being reached is the upstream's part.
                    let ours = |status: &Status| !matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded);
                    problem.filter(ours).map(|status| status.message().to_owned())
                }
                "upstream" | "meta" => Some("not reached yet".to_owned()),
                // Writes would have to wait.
                "limits" if counted == Some(false) => Some("what the tenant has stored is not counted yet".to_owned()),
                _ => None,
            };
            match problem {
                None => reasons.push_str(&format!("[+]{check} ok\n")),
                Some(problem) => {
                    failed = true;
                    reasons.push_str(&format!("[-]{check} failed: {problem}\n"));
                }
            }
        }
        if failed {
            tracing::warn!(reasons, "not ready");
            return text(StatusCode::SERVICE_UNAVAILABLE, reasons + "\n");
        }
        match query(uri, "verbose").next() {
            Some(_) => text(StatusCode::OK, reasons + "ok\n"),
            None => text(StatusCode::OK, "ok\n"),
        }
    }

    /// What the tenant uses, as JSON. What has to be counted on an upstream that does not answer is left open.
    async fn usage(&self) -> Response<Full<Bytes>> {
        match timeout(PATIENCE, self.tenant.usage()).await {
            Ok(usage) => respond(StatusCode::OK, "application/json", serde_json::to_string(&usage).unwrap_or_default()),
            Err(_) => text(StatusCode::GATEWAY_TIMEOUT, "the upstream does not answer\n"),
        }
    }

    fn exposition(&self) -> Response<Full<Bytes>> {
        let mut exposition = String::new();
        match prometheus_client::encoding::text::encode(&mut exposition, &self.registry) {
            Ok(()) => respond(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", exposition),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("metrics cannot be encoded: {error}\n")),
        }
    }

    /// The first alarm that is not excluded. Where alarms are not to be seen there are none.
    async fn alarm(&self, asked: Asked) -> Option<&'static str> {
        let request = AlarmRequest { action: AlarmAction::Get.into(), ..Default::default() };
        let answer = patient(MaintenanceClient::new(self.services.clone()).alarm(request)).await.ok()?.into_inner();
        answer.alarms.iter().find_map(|alarm| {
            let (name, left_out) = match alarm.alarm() {
                AlarmType::Nospace => ("NOSPACE", asked.without_nospace),
                AlarmType::Corrupt => ("CORRUPT", asked.without_corrupt),
                AlarmType::None => return None,
            };
            (!left_out).then_some(name)
        })
    }

    async fn read(&self, serializable: bool) -> Result<(), Status> {
        let request = RangeRequest {
            key: Bytes::from_static(PROBED),
            keys_only: true,
            limit: 1,
            serializable,
            ..Default::default()
        };
        patient(KvClient::new(self.services.clone()).range(request)).await.map(drop)
    }
}

// === impl Told ===

impl Told {
    /// Notes an answer, and logs it where it is news.
    fn note(&self, asked: Asked, reason: Option<&str>) {
        let mut told = self.0.lock();
        match reason {
            Some(reason) if told.get(&asked).is_none_or(|before| before != reason) => {
                told.insert(asked, reason.to_owned());
                tracing::warn!(reason, "serving /health false");
            }
            Some(_) => {}
            None => {
                if told.remove(&asked).is_some() {
                    tracing::info!("serving /health true again");
                }
            }
        }
    }
}

// === impl Asked ===

impl Asked {
    fn by(uri: &Uri) -> Self {
        let excludes = |alarm| query(uri, "exclude").any(|excluded| excluded == alarm);
        Self {
            serializable: query(uri, "serializable").any(|value| value == "true"),
            without_nospace: excludes("NOSPACE"),
            without_corrupt: excludes("CORRUPT"),
        }
    }
}

async fn patient<T>(answer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    match timeout(PATIENCE, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(Status::new(Code::DeadlineExceeded, "context deadline exceeded")),
    }
}

fn query<'a>(uri: &'a Uri, name: &'static str) -> impl Iterator<Item = &'a str> {
    uri.query()
        .unwrap_or_default()
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .filter_map(move |(key, value)| (key == name).then_some(value))
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", body)
}

fn respond(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn method_not_allowed() -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
    response
}

fn not_found() -> Response<Full<Bytes>> {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}
