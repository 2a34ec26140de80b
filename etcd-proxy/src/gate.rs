//! The gate before the tenant's services: shut until it is known that the prefix may be served.
//!
//! While the upstream cannot be asked, nobody knows whether another tenant's claim overlaps the prefix. The proxy listens
//! all the same, so that it comes up before, with or after its upstream, and answers `Unavailable`.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use futures::future::Either;
use http::{Request, Response};
use tonic::{Status, body::Body};
use tower::Service;

/// Whether the tenant may be served. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    open: Arc<AtomicBool>,
}

/// A service behind a gate.
#[derive(Clone, Debug)]
pub struct Gated<S> {
    service: S,
    gate: Gate,
}

// === impl Gate ===

impl Gate {
    /// Whether requests pass.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Lets requests pass from now on.
    pub fn open(&self) {
        self.open.store(true, Ordering::Release);
    }

    /// Puts `service` behind this gate.
    pub fn before<S>(&self, service: S) -> Gated<S> {
        Gated { service, gate: self.clone() }
    }
}

// === impl Gated ===

impl<S> Service<Request<Body>> for Gated<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response<Body>, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if self.gate.is_open() {
            return Either::Left(self.service.call(request));
        }
        let status = Status::unavailable(
            "etcd-proxy: the upstream etcd could not be asked yet whether this prefix is free to serve",
        );
        Either::Right(ready(Ok(status.into_http())))
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use tower::{ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn nothing_passes_before_it_is_opened() {
        let gate = Gate::default();
        let inner = service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
        let gated = gate.before(inner);
        let answer = gated.clone().oneshot(Request::new(Body::empty())).await.unwrap();
        let status = Status::from_header_map(answer.headers()).expect("a status");
        assert_eq!(status.code(), Code::Unavailable);
        gate.open();
        let answer = gated.oneshot(Request::new(Body::empty())).await.unwrap();
        assert!(Status::from_header_map(answer.headers()).is_none());
    }
}
