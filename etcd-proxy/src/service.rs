//! The API that a tenant sees: which method does what, and the way of a call through the proxy.
//!
//! Methods are told apart by path; what is not in [`methods`] does not exist here and is never passed through.

mod auth;
mod cluster;
mod concurrency;
mod election;
mod kv;
mod lease;
mod local;
mod lock;
mod maintenance;
mod methods;
mod observe;
mod own_stream;
mod reflection;
mod snapshot;
mod stream;
mod unary;

use std::{
    convert::Infallible,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::CONTENT_TYPE};
use tonic::{Status, body::Body};
use tower::Service;

use self::methods::{Action, Method, Methods, OwnStream, Unary};
use crate::{
    error::EtcdError,
    grpc::{
        Budget, Deadline, Incoming, UpstreamHeaders,
        framing::{Encoding, Frames},
        malformed, whole_path,
    },
    limits::Present,
    metrics::Call,
    tenant::Tenant,
    unknown::SchemaError,
};

/// The gRPC service of one tenant. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Router {
    tenant: Tenant,
    methods: Arc<Methods>,
    /// Whether calls count against the tenant's limits.
    limited: bool,
}

/// The gRPC service of `tenant`.
///
/// # Errors
/// When the compiled-in descriptors of the etcd API do not hold together.
pub fn router(tenant: Tenant) -> Result<Router, SchemaError> {
    let methods = Arc::new(Methods::new(tenant.metrics())?);
    Ok(Router { tenant, methods, limited: true })
}

/// A call as it came from the client.
struct ClientCall {
    /// The method's path, the same upstream.
    path: &'static str,
    headers: UpstreamHeaders,
    deadline: Deadline,
    incoming: Incoming<Body>,
}

// === impl ClientCall ===

impl ClientCall {
    fn new(
        path: &'static str,
        frames: Frames,
        budget: Arc<Budget>,
        deadline: Deadline,
        request: Request<Body>,
    ) -> Self {
        let (parts, body) = request.into_parts();
        Self {
            path,
            headers: UpstreamHeaders::from_client(&parts.headers),
            deadline,
            incoming: Incoming::new(body, frames, budget),
        }
    }
}

// === impl Router ===

impl Router {
    /// The same service for calls that are not the tenant's and do not count against its limits: probes.
    #[must_use]
    pub fn unlimited(self) -> Self {
        Self { limited: false, ..self }
    }

    /// The paths of all methods.
    pub fn paths(&self) -> impl Iterator<Item = &'static str> {
        self.methods.paths()
    }

    /// Holds a call against the tenant's rate of requests.
    fn request(&self) -> Result<(), EtcdError> {
        if self.limited { self.tenant.limits().request() } else { Ok(()) }
    }

    /// Holds a call against the limits of the tenant's requests. A unary call is under way until its client has the answer, and
    /// its place lives as long; a stream keeps its place in `call`.
    fn enter(&self, method: &Method, call: &mut Call) -> Result<Option<Present>, EtcdError> {
        self.request()?;
        if !self.limited {
            return Ok(None);
        }
        let limits = self.tenant.limits();
        match method.action {
            Action::Unary(Unary::Own(own)) if own.waits() => call.keep(limits.stream()?),
            Action::Unary(_) => return limits.unary().map(Some),
            Action::Stream(_) | Action::OwnStream(_) | Action::Reflect(_) => call.keep(limits.stream()?),
        }
        Ok(None)
    }

    /// Refuses a request over a limit, without haste.
    async fn refuse(&self, request: Request<Body>, refused: EtcdError) -> Response<Body> {
        // Nothing of it stays while it waits.
        drop(request);
        Box::pin(self.tenant.limits().hold_back()).await;
        Status::from(refused).into_http()
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        if !is_grpc(&request) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return response;
        }
        let deadline = match Deadline::from_client(request.headers()) {
            Ok(deadline) => deadline,
            Err(status) => return malformed(status),
        };
        let path = whole_path(request.uri());
        let Some(method) = self.methods.get(path) else {
            // A flood of these is not to be free.
            return match self.request() {
                Ok(()) => self.methods.unknown(path).into_http(),
                Err(refused) => self.refuse(request, refused).await,
            };
        };
        let mut call = method.metrics.start();
        let under_way = match self.enter(method, &mut call) {
            Ok(under_way) => under_way,
            Err(refused) => {
                let response = self.refuse(request, refused).await;
                call.end(refused.code());
                return response;
            }
        };
        let answer = match encoding(&request) {
            Ok(encoding) => self.dispatch(method, request, encoding, deadline, call, under_way).await,
            Err(status) => {
                call.end(status.code());
                Err(status)
            }
        };
        answer.unwrap_or_else(Status::into_http)
    }

    /// Hands the call to what carries it out, which also counts its end.
    async fn dispatch(
        &self,
        method: &Method,
        request: Request<Body>,
        encoding: Encoding,
        deadline: Deadline,
        call: Call,
        under_way: Option<Present>,
    ) -> Result<Response<Body>, Status> {
        let frames = Frames::new(self.tenant.max_message_bytes()).with_encoding(encoding);
        let budget = self.tenant.request_budget().clone();
        let client = |request| ClientCall::new(method.path, frames, budget, deadline, request);
        match &method.action {
            // A call's state is as large as that of the largest way and is moved about: the rare and large ones lie apart.
            Action::Stream(kind) => Box::pin(stream::serve(&self.tenant, kind, client(request), call)).await,
            Action::OwnStream(OwnStream::Observe) => {
                Box::pin(observe::serve(&self.tenant, client(request), call)).await
            }
            Action::OwnStream(OwnStream::Snapshot) => {
                Box::pin(snapshot::serve(&self.tenant, client(request), call)).await
            }
            Action::Reflect(reflection) => {
                Ok(Box::pin(reflection::serve(reflection, request, deadline, call, &self.tenant, self.limited)).await)
            }
            Action::Unary(kind) => {
                let client = client(request);
                let mut call = call;
                let answer = deadline.limit(pin!(unary::serve(&self.tenant, kind, client, under_way))).await;
                call.end(answer.as_ref().map_or_else(Status::code, |_| tonic::Code::Ok));
                answer.map(grpc_response)
            }
        }
    }
}

impl<B> Service<Request<B>> for Router
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let router = self.clone();
        let request = request.map(Body::new);
        Box::pin(async move { Ok(router.answer(request).await) })
    }
}

fn grpc_response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, const { http::HeaderValue::from_static("application/grpc") });
    response
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    request.method() == http::Method::POST
        // With or without the encoding of the messages, of which grpc-go takes each that it does not know for protobuf.
        && content_type
            .and_then(|value| value.strip_prefix(b"application/grpc"))
            .is_some_and(|subtype| matches!(subtype.first(), None | Some(b'+' | b';')))
}

/// The encoding of the request's messages, or the refusal of one that etcd does not know either.
fn encoding<B>(request: &Request<B>) -> Result<Encoding, Status> {
    match request.headers().get("grpc-encoding").map(http::HeaderValue::as_bytes) {
        None | Some(b"" | b"identity") => Ok(Encoding::Identity),
        Some(b"gzip") => Ok(Encoding::Gzip),
        Some(other) => Err(Status::unimplemented(format!(
            "grpc: Decompressor is not installed for grpc-encoding \"{}\"",
            other.escape_ascii()
        ))),
    }
}
