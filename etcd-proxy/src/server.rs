//! Connections of clients: accepting them, TLS, HTTP/1.1 and HTTP/2 on one port, bounds, and their end.
//!
//! Nothing that one connection does ends the process or keeps the next one out: handshakes run in the connection's own task
//! and under a time limit, accept errors are logged and waited out.

mod access_log;
mod client_stream;
mod connection;
mod listener;
mod metrics;
mod places;
mod process;
mod routes;

use std::{convert::Infallible, error::Error, fmt, io, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::{rt::TokioTimer, server::conn::auto};
use prometheus_client::metrics::counter::Counter;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use tonic::body::Body;

use self::{
    connection::Connection,
    metrics::Refused,
    places::{Full, Places},
};
pub use self::{
    listener::{BindError, Listener, Peer},
    metrics::ConnectionMetrics,
    places::Standing,
    process::ProcessCollector,
    routes::{ClientRoutes, MetricsRoutes},
};
use crate::{config::ConnectionSettings, drain::Shutdown, grpc::Calls, tls::ServerTlsSource};

/// Pause after an accept error that will not go away by itself at once (no file descriptors, no memory).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers the requests of one kind of listener.
pub trait Handler: Clone + Send + 'static {
    /// The answer in the making.
    type Future: Future<Output = Response<Body>> + Send + 'static;

    /// Answers a `request` of `peer`. Failures are answers, too.
    fn handle(&self, request: Request<Incoming>, peer: Peer) -> Self::Future;
}

/// Serves listeners until the end.
#[derive(Clone)]
pub struct Server {
    http: auto::Builder<Calls>,
    settings: ConnectionSettings,
    places: Places,
    listeners: TaskTracker,
    connections: TaskTracker,
    shutdown: Shutdown,
    metrics: ConnectionMetrics,
}

// === impl Server ===

impl Server {
    /// A server whose accept loops run among `listeners` and whose connections run among `connections`, until `shutdown`.
    pub fn new(
        settings: ConnectionSettings,
        listeners: TaskTracker,
        connections: TaskTracker,
        shutdown: Shutdown,
        metrics: ConnectionMetrics,
    ) -> Self {
        let places = Places::new(settings.max_connections, settings.max_connections_per_client);
        Self {
            http: http_builder(&settings, Calls::default()),
            settings,
            places,
            listeners,
            connections,
            shutdown,
            metrics,
        }
    }

    /// The same server, with which a new connection takes the place of the one that has been of least use where there is no
    /// other: for listeners whose clients are all alike and connect again, and which must not be shut to them. What has been of
    /// use the handler says, by the [`Standing`] that is among a request's extensions.
    #[must_use]
    pub fn making_room(self) -> Self {
        Self { places: self.places.making_room(), ..self }
    }

    /// The same server, which counts by `given_up` the calls that it ends because their clients do not take the answer.
    #[must_use]
    pub fn counting(self, given_up: Counter) -> Self {
        Self { http: http_builder(&self.settings, Calls { given_up }), ..self }
    }

    /// Accepts connections on `listener` until the process closes.
    pub fn serve(&self, listener: Listener, tls: Option<Arc<impl ServerTlsSource>>, handler: impl Handler) {
        let server = self.clone();
        self.listeners.spawn(async move {
            tracing::info!(url = %listener, "listening");
            while let Some(accepted) = server.shutdown.closing().run_until_cancelled(listener.accept()).await {
                match accepted {
                    Ok((stream, peer)) => server.accepted(stream, peer, tls.as_ref(), &handler),
                    Err(error) => pause_after(&listener, &error).await,
                }
            }
        });
    }

    fn accepted(
        &self,
        stream: listener::Stream,
        peer: Peer,
        tls: Option<&Arc<impl ServerTlsSource>>,
        handler: &impl Handler,
    ) {
        let place = match self.places.take(peer) {
            Ok(place) => place,
            Err(Full::All) => {
                self.metrics.refused(Refused::limit);
                let limit = self.settings.max_connections;
                tracing::warn!(%peer, limit, "connection closed: --max-connections reached");
                return;
            }
            Err(Full::Client) => {
                self.metrics.refused(Refused::client_limit);
                let limit = self.settings.max_connections_per_client;
                tracing::warn!(%peer, limit, "connection closed: --max-connections-per-client reached");
                return;
            }
        };
        let connection = Connection {
            http: self.http.clone(),
            handshake_timeout: self.settings.handshake_timeout,
            shutdown: self.shutdown.clone(),
            metrics: self.metrics.clone(),
            peer,
            standing: self.places.makes_room().then(|| place.standing().clone()),
        };
        let (tls, handler) = (tls.map(|tls| tls.server_config()), handler.clone());
        self.connections.spawn(async move {
            let serving = connection.serve(stream, tls, handler);
            if place.standing().evicted().run_until_cancelled(serving).await.is_none() {
                tracing::debug!(%peer, "connection closed: another took its place");
            }
        });
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The HTTP settings of all connections.
///
/// Windows are static and large (see the upstream's for why). A client's requests are small. Its stream window is
/// what one may bring while it waits, its connection window holds several of the largest. Together they bound what a client's
/// streams leave unread here while their messages wait for their turn (`limits`): nothing is read before what came
/// before it has gone on.
///
/// Of a small frame it is not the payload that takes memory but what h2 keeps beside it, a quarter of a kilobyte, until the
/// connection ends. h2 lets the small frames of a connection lack half of its window of that much each; so the window is no larger than
/// clients need, and the frames are some 8,000. Client libraries have fewer: clientv3 asks for a watch when it has the one before.
///
/// A client may cancel all of its calls at once, and a read may bring them together with their beginnings. That is no
/// attack (for which h2 takes 20 such calls): without room for all of them the connection would close, and every watch
/// on it would end.
fn http_builder(settings: &ConnectionSettings, calls: Calls) -> auto::Builder<Calls> {
    const MIB: u32 = 1 << 20;
    let mut builder = auto::Builder::new(calls);
    builder.http1().timer(TokioTimer::new()).header_read_timeout(settings.handshake_timeout).max_buf_size(64 * 1024);
    builder
        .http2()
        .timer(TokioTimer::new())
        // What a request brings that waits for its share of the memory (`grpc::Incoming`), and a stream whose turn it is not.
        .initial_stream_window_size(MIB / 4)
        .initial_connection_window_size(4 * MIB)
        // Of each stream, for a client that has window enough and does not read from its socket. grpc-go has half of this.
        .max_send_buf_size(128 * 1024)
        .max_concurrent_streams(settings.max_concurrent_streams)
        .max_pending_accept_reset_streams(usize::try_from(settings.max_concurrent_streams).unwrap_or(usize::MAX))
        .keep_alive_interval(settings.keepalive_interval)
        .keep_alive_timeout(settings.keepalive_timeout);
    builder
}

async fn pause_after(listener: &Listener, error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    // These concern the one connection that did not come to be.
    if matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
        tracing::debug!(url = %listener, error = error as &dyn Error, "connection lost before it was accepted");
        return;
    }
    tracing::error!(url = %listener, error = error as &dyn Error, "cannot accept connections, trying again");
    sleep(ACCEPT_PAUSE).await;
}

/// A handler as hyper wants it, for one connection.
#[derive(Clone)]
struct HyperService<H> {
    handler: H,
    peer: Peer,
    standing: Option<Standing>,
}

impl<H: Handler> hyper::service::Service<Request<Incoming>> for HyperService<H> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = futures::future::Map<H::Future, fn(Response<Body>) -> Result<Response<Body>, Infallible>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        if let Some(standing) = &self.standing {
            request.extensions_mut().insert(standing.clone());
        }
        futures::FutureExt::map(self.handler.handle(request, self.peer), Ok)
    }
}
