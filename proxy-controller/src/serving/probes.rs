//! `/livez`, `/readyz` and `/metrics`.

use std::{collections::BTreeMap, sync::Arc};

use etcd_proxy::{
    drain::Shutdown,
    server::{Handler, Peer},
};
use futures::future::{Ready, ready};
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
};
use hyper::body::Incoming;
use parking_lot::Mutex;
use prometheus_client::{encoding::text::encode, registry::Registry};
use tonic::body::Body;

/// The type of what Prometheus reads.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What has to be there before this replica can do its part. Cheap to clone.
///
/// Leading is no part of it: a replica that waits for the lead serves the webhook.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<BTreeMap<&'static str, bool>>>);

/// Something that is not there yet. If it is dropped, it never will be.
#[derive(Debug)]
#[must_use = "this replica is not ready before `done`"]
pub struct Pending {
    readiness: Readiness,
    name: &'static str,
}

/// Answers probes and Prometheus.
#[derive(Clone, Debug)]
pub struct Probes {
    readiness: Readiness,
    registry: Arc<Registry>,
    shutdown: Shutdown,
}

// === impl Readiness ===

impl Readiness {
    /// Adds a condition, named as `/readyz` shows it.
    pub fn wait_for(&self, name: &'static str) -> Pending {
        self.0.lock().insert(name, false);
        Pending { readiness: self.clone(), name }
    }

    /// One line per condition, as `/readyz?verbose` of Kubernetes' servers, and whether all are met.
    fn report(&self, leaving: bool) -> (bool, String) {
        let mut lines = String::new();
        let mut all = true;
        let conditions = self.0.lock().iter().map(|(name, met)| (*name, *met)).collect::<Vec<_>>();
        for (name, met) in conditions.into_iter().chain([("shutdown", !leaving)]) {
            all &= met;
            let (sign, word) = if met { ('+', "ok") } else { ('-', "failed") };
            lines.push_str(&format!("[{sign}]{name} {word}\n"));
        }
        (all, lines)
    }
}

// === impl Pending ===

impl Pending {
    /// It is there.
    pub fn done(self) {
        self.readiness.0.lock().insert(self.name, true);
    }
}

// === impl Probes ===

impl Probes {
    /// Answers with what these say.
    pub fn new(readiness: Readiness, registry: Arc<Registry>, shutdown: Shutdown) -> Self {
        Self { readiness, registry, shutdown }
    }

    pub(super) fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    pub(super) fn answer(&self, method: &Method, path: &str, query: Option<&str>) -> Response<Body> {
        match path {
            "/livez" | "/readyz" | "/metrics" if method != Method::GET && method != Method::HEAD => {
                let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned());
                answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
                answer
            }
            "/livez" => text(StatusCode::OK, "ok\n".to_owned()),
            "/readyz" => {
                let verbose = query.is_some_and(|query| query.split('&').any(|part| part.starts_with("verbose")));
                match self.readiness.report(self.shutdown.leaving().is_cancelled()) {
                    (true, _) if !verbose => text(StatusCode::OK, "ok\n".to_owned()),
                    (true, lines) => text(StatusCode::OK, lines),
                    (false, lines) => text(StatusCode::SERVICE_UNAVAILABLE, lines),
                }
            }
            "/metrics" => {
                let mut body = String::new();
                match encode(&mut body, &self.registry) {
                    Ok(()) => respond(StatusCode::OK, OPENMETRICS, body),
                    Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
                }
            }
            _ => text(StatusCode::NOT_FOUND, "there are /livez, /readyz and /metrics\n".to_owned()),
        }
    }
}

impl Handler for Probes {
    type Future = Ready<Response<Body>>;

    fn handle(&self, request: Request<Incoming>, _: Peer) -> Self::Future {
        ready(self.answer(request.method(), request.uri().path(), request.uri().query()))
    }
}

pub(super) fn text(status: StatusCode, body: String) -> Response<Body> {
    respond(status, "text/plain; charset=utf-8", body)
}

pub(super) fn respond(status: StatusCode, kind: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::new(http_body_util::Full::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
