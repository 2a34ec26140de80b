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
    grpc::{until_end::until_end, whole_path},
    health::{HEALTH_PATHS, HealthService, Probes},
    traces::CallTracer,
};

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
        if HEALTH_PATHS.contains(&whole_path(request.uri())) {
            return Box::pin(self.health.clone().answer(request, self.shutdown.closing().clone()));
        }
        let answer = self.tenant.clone().call(request);
        Box::pin(async move {
            match answer.await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
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
            return Box::pin(async move { probes.client_port(request.method(), request.uri()).await });
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
        Box::pin(async move { probes.metrics_port(request.method(), request.uri()).await })
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}
