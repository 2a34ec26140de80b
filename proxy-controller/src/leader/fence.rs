//! What keeps a replica from writing when it does not lead any more.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{FutureExt as _, future::BoxFuture};
use http::{Method, Request};
use hyper::rt::Executor;
use kube::{Client, client::ClientBuilder};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Layer, Service};

use crate::metrics::RequestMetrics;

/// Whether this replica may still write. Cheap to clone.
///
/// Besides the token there is the deadline itself, looked at before each write: a process that was stopped or starved for
/// longer than its lease would otherwise go on writing until its timers have run. As a layer of a client it refuses every
/// request but reads, and drops those that are under way when it closes. What has passed it and not been sent yet when the
/// process stops is held back by the connections: they end instead of being woken up, see [`Connections`].
#[derive(Clone, Debug)]
pub struct Fence(Arc<State>);

#[derive(Debug)]
struct State {
    /// `None`: no deadline.
    until: Mutex<Option<Instant>>,
    closed: CancellationToken,
}

/// A service behind a fence.
#[derive(Clone, Debug)]
pub struct Fenced<S> {
    inner: S,
    fence: Fence,
}

/// Runs the connections of a fenced client: each looks at the fence whenever it is woken, and ends if that is not open, with
/// all that it has not sent.
#[derive(Clone, Debug)]
pub(super) struct Connections(pub(super) Fence);

/// Why a write was not made, or given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica does not lead any more and must not write")]
pub struct LeadershipLost;

// === impl Fence ===

impl Fence {
    pub(super) fn new(until: Instant) -> Self {
        Self(Arc::new(State { until: Mutex::new(Some(until)), closed: CancellationToken::new() }))
    }

    /// One that stays open until it is closed.
    pub(super) fn open() -> Self {
        Self(Arc::new(State { until: Mutex::new(None), closed: CancellationToken::new() }))
    }

    /// Whether writing is allowed now.
    pub fn is_open(&self) -> bool {
        !self.0.closed.is_cancelled() && self.0.until.lock().is_none_or(|until| Instant::now() < until)
    }

    /// The same for callers that answer with an error, for instance before a write to etcd.
    ///
    /// # Errors
    /// When this replica does not lead any more.
    pub fn check(&self) -> Result<(), LeadershipLost> {
        if self.is_open() { Ok(()) } else { Err(LeadershipLost) }
    }

    /// A client whose writes need the lead. It repeats nothing by itself: what is repeated has to ask again.
    ///
    /// # Errors
    /// When the configuration does not make a client.
    pub fn client(&self, mut config: kube::Config, requests: &RequestMetrics) -> Result<Client, kube::Error> {
        config.default_retry = false;
        let connections = Connections(self.clone());
        Ok(ClientBuilder::try_from((config, connections))?.with_layer(requests).with_layer(self).build())
    }

    pub(super) fn closed(&self) -> &CancellationToken {
        &self.0.closed
    }

    pub(super) fn extend(&self, until: Instant) {
        *self.0.until.lock() = Some(until);
    }

    pub(super) fn close(&self) {
        self.0.closed.cancel();
    }
}

impl<S> Layer<S> for Fence {
    type Service = Fenced<S>;

    fn layer(&self, inner: S) -> Fenced<S> {
        Fenced { inner, fence: self.clone() }
    }
}

// === impl Fenced ===

impl<S, B> Service<Request<B>> for Fenced<S>
where
    S: Service<Request<B>>,
    S::Response: Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        if is_read {
            return self.inner.call(request).map(|answer| answer.map_err(Into::into)).boxed();
        }
        if let Err(lost) = self.fence.check() {
            return std::future::ready(Err(lost.into())).boxed();
        }
        let answer = self.inner.call(request);
        let fence = self.fence.clone();
        async move {
            match fence.closed().run_until_cancelled(answer).await {
                Some(answer) => answer.map_err(Into::into),
                None => Err(LeadershipLost.into()),
            }
        }
        .boxed()
    }
}

// === impl Connections ===

impl Executor<Pin<Box<dyn Future<Output = ()> + Send>>> for Connections {
    fn execute(&self, mut connection: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let fence = self.0.clone();
        tokio::spawn(std::future::poll_fn(move |cx| {
            if fence.is_open() { connection.as_mut().poll(cx) } else { Poll::Ready(()) }
        }));
    }
}
