//! Which request goes where: gRPC to the tenant's services and the health service, the rest to etcd's HTTP endpoints.

use std::convert::Infallible;

use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response, header::CONTENT_TYPE};
use hyper::body::Incoming;
use tonic::body::Body;
use tower::Service;

use super::{Handler, Peer, access_log::Entry};
use crate::{
    drain::Shutdown,
    grpc::{Deadline, Seen, malformed, until_closing::UntilClosing, until_end::until_end},
    health::{HealthService, Probes},
    traces::CallTracer,
};

/// Path of the methods of grpc.health.v1.
const HEALTH: &str = "/grpc.health.v1.Health/";
/// They themselves.
pub const HEALTH_PATHS: [&str; 2] = ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"];
/// Full name of their requests.
const HEALTH_REQUEST: &str = "grpc.health.v1.HealthCheckRequest";

/// Routes of the client listeners.
#[derive(Clone)]
pub struct ClientRoutes<S> {
    tenant: S,
    health: HealthService,
    probes: Probes<S>,
    shutdown: Shutdown,
    access_log: bool,
    tracer: Option<CallTracer>,
}

/// Routes of the metrics listeners.
#[derive(Clone)]
pub struct MetricsRoutes<S> {
    probes: Probes<S>,
}

// === impl ClientRoutes ===

impl<S> ClientRoutes<S> {
    /// `tenant` answers the tenant's RPCs.
    pub fn new(tenant: S, health: HealthService, probes: Probes<S>, shutdown: Shutdown) -> Self {
        Self { tenant, health, probes, shutdown, access_log: false, tracer: None }
    }

    /// The same, with a line in the log for each RPC that has ended, if `access_log`.
    #[must_use]
    pub fn with_access_log(self, access_log: bool) -> Self {
        Self { access_log, ..self }
    }

    /// The same, with a span for each RPC, if there is a tracer.
    #[must_use]
    pub fn with_tracer(self, tracer: Option<CallTracer>) -> Self {
        Self { tracer, ..self }
    }
}

impl<S> ClientRoutes<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    fn rpc(&self, request: Request<Body>) -> BoxFuture<'static, Response<Body>> {
        if !request.uri().path().starts_with(HEALTH) {
            let answer = self.tenant.clone().call(request);
            return Box::pin(async move { infallible(answer.await) });
        }
        let deadline = match Deadline::from_client(request.headers()) {
            Ok(deadline) => deadline,
            Err(status) => return Box::pin(std::future::ready(malformed(status))),
        };
        let request = request.map(|body| Body::new(Seen::new(body, HEALTH_REQUEST)));
        let answer = self.health.clone().call(request);
        let closing = self.shutdown.closing().clone();
        // Health/Watch does not end by itself. The tenant's services see to their own streams.
        Box::pin(
            async move { infallible(answer.await).map(|body| Body::new(UntilClosing::new(body, closing, deadline))) },
        )
    }
}

impl<S> Handler for ClientRoutes<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    type Future = BoxFuture<'static, Response<Body>>;

    fn handle(&self, request: Request<Incoming>, peer: Peer) -> Self::Future {
        if !is_grpc(request.headers()) {
            let probes = self.probes.clone();
            return Box::pin(async move { probes.client(request.method(), request.uri()).await.map(Body::new) });
        }
        let mut request = request.map(Body::new);
        let span = self.tracer.as_ref().and_then(|tracer| tracer.serve(&mut request, peer));
        let entry = match self.access_log {
            true => {
                let (entry, counted) = Entry::begin(peer, request);
                request = counted;
                Some(entry)
            }
            false => None,
        };
        let answer = self.rpc(request);
        if span.is_none() && entry.is_none() {
            return answer;
        }
        Box::pin(async move {
            let mut response = answer.await;
            if let Some(entry) = entry {
                response = until_end(response, entry);
            }
            match span {
                Some(span) => until_end(response, span),
                None => response,
            }
        })
    }
}

// === impl MetricsRoutes ===

impl<S> MetricsRoutes<S> {
    /// Answers with what `probes` find.
    pub fn new(probes: Probes<S>) -> Self {
        Self { probes }
    }
}

impl<S> Handler for MetricsRoutes<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    type Future = BoxFuture<'static, Response<Body>>;

    fn handle(&self, request: Request<Incoming>, _: Peer) -> Self::Future {
        let probes = self.probes.clone();
        Box::pin(async move { probes.metrics(request.method(), request.uri()).await.map(Body::new) })
    }
}

fn infallible<T>(result: Result<T, Infallible>) -> T {
    match result {
        Ok(value) => value,
        Err(never) => match never {},
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}
