//! Which request goes where: gRPC to the tenant's services and the health service, the rest to etcd's HTTP endpoints.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response, header::CONTENT_TYPE};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Status, body::Body};
use tower::Service;

use super::{Handler, Peer, access_log::Entry};
use crate::{
    drain::Shutdown,
    health::{HealthService, Probes},
};

/// Path of the methods of grpc.health.v1.
const HEALTH: &str = "/grpc.health.v1.Health/";

/// What etcd's clients know a stopping server by (`rpctypes.ErrGRPCStopped`).
const STOPPED: &str = "etcdserver: server stopped";

/// Routes of the client listeners.
#[derive(Clone)]
pub struct ClientRoutes<S> {
    tenant: S,
    health: HealthService,
    probes: Probes<S>,
    shutdown: Shutdown,
    access_log: bool,
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
        Self { tenant, health, probes, shutdown, access_log: false }
    }

    /// The same, with a line in the log for each RPC that has ended, if `access_log`.
    #[must_use]
    pub fn with_access_log(self, access_log: bool) -> Self {
        Self { access_log, ..self }
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
        let answer = self.health.clone().call(request);
        let closing = self.shutdown.closing().clone();
        // Health/Watch does not end by itself. The tenant's services see to their own streams.
        Box::pin(async move { infallible(answer.await).map(|body| Body::new(UntilClosing::new(body, closing))) })
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
        let request = request.map(Body::new);
        if !self.access_log {
            return self.rpc(request);
        }
        let (entry, request) = Entry::begin(peer, request);
        let answer = self.rpc(request);
        Box::pin(async move { entry.answered(answer.await) })
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

/// A stream that ends with `Unavailable` when the process closes.
struct UntilClosing {
    /// Gone once the stream was ended here; dropping it cancels what stands behind it.
    body: Option<Body>,
    closing: CancellationToken,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl UntilClosing {
    fn new(body: Body, closing: CancellationToken) -> Self {
        let closed = Box::pin(closing.clone().cancelled_owned());
        Self { body: Some(body), closing, closed }
    }
}

impl http_body::Body for UntilClosing {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        // A stream that never pauses must end, too.
        if !this.closing.is_cancelled() {
            if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
                return Poll::Ready(frame);
            }
            ready!(this.closed.as_mut().poll(cx));
        }
        this.body = None;
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(match Status::unavailable(STOPPED).add_header(&mut trailers) {
            Ok(()) => Ok(Frame::trailers(trailers)),
            Err(status) => Err(status),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}
