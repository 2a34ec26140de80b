//! From a listening socket to requests: accepting, TLS, HTTP/1.1 and HTTP/2, and an orderly end.

use std::{future::Future, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use hyper::{Request, body::Incoming, rt::Executor, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    chain::{Handler, Origin},
    metrics::Gauged,
    tls::ServingTls,
};
use crate::{
    authentication::Peer,
    endpoint::{Delivery, RequestBody},
};

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often failed handshakes are logged at most: whoever can reach the port can make them.
const HANDSHAKE_LOG_PAUSE: Duration = Duration::from_secs(1);
/// How long after its handshake a connection may be without a request
/// (k8s.io/apiserver `pkg/server/secure_serving.go`, `ReadHeaderTimeout`).
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(32);
/// How long it may be without one later (`IdleTimeout` there).
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// How long a connection that is to end, and has no request any more, may take to say so.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait after an error of accept that will come again at once, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Largest head of a request, in bytes (`http.DefaultMaxHeaderBytes` of Go).
const MAX_HEADER_BYTES: u32 = 1 << 20;
/// Most headers of a request.
const MAX_HEADERS: usize = 4096;
/// Flow control of one HTTP/2 stream: most bodies fit (`resourceBody99Percentile`).
const STREAM_WINDOW: u32 = 256 * 1024;
/// Flow control of one HTTP/2 connection. Much larger than a stream's, or one stalled stream would stall the rest.
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// How often an idle HTTP/2 connection is asked whether it still lives, and how long the answer may take.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// The bounds of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The most connections at one time; further ones wait in the kernel's queue.
    pub connections: usize,
    /// The most requests at one time on one HTTP/2 connection.
    pub http2_streams: u32,
    /// How long after its handshake a connection may be without a request.
    pub first_request: Duration,
    /// How long it may be without one later, and the head of an HTTP/1.1 request take.
    pub idle: Duration,
}

/// Runs each stream of an HTTP/2 connection until its answer is through, or must end.
#[derive(Clone)]
struct Streams;

tokio::task_local! {
    /// The way of the answer on this stream of an HTTP/2 connection.
    static STREAM: Delivery;
}

/// A listener that is being served.
pub(super) struct Acceptor {
    pub(super) tls: Arc<ServingTls>,
    pub(super) handler: Arc<Handler>,
    pub(super) bounds: Bounds,
    /// No new connections from now on.
    pub(super) stop_accepting: CancellationToken,
    /// Connections end once their requests are answered.
    pub(super) close: CancellationToken,
    /// Connections end now.
    pub(super) abort: CancellationToken,
    pub(super) connections: TaskTracker,
    pub(super) handshake_log: Mutex<Sparingly>,
}

/// Something that is said at most once in a while.
#[derive(Default)]
pub(super) struct Sparingly {
    last: Option<Instant>,
    unsaid: u64,
}

// === impl Bounds ===

impl Default for Bounds {
    fn default() -> Self {
        Self { connections: 10_000, http2_streams: 1000, first_request: FIRST_REQUEST_TIMEOUT, idle: IDLE_TIMEOUT }
    }
}

// === impl Sparingly ===

impl Sparingly {
    /// Whether it may be said now, and if so, how often it was not said since the last time.
    fn next(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now < last + HANDSHAKE_LOG_PAUSE) {
            self.unsaid += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

// === impl Streams ===

impl<F: Future + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let delivery = Delivery::default();
        // These tasks end with their connection, which is what is waited for. Dropping a stream resets it.
        tokio::spawn(STREAM.scope(delivery.clone(), async move {
            tokio::select! { biased; _ = stream => {}, () = delivery.ended() => {} }
        }));
    }
}

// === impl Acceptor ===

impl Acceptor {
    /// Accepts connections until told to stop. Nothing that happens to one of them ends the loop.
    pub(super) async fn run(self: Arc<Self>, listener: TcpListener) {
        let slots = Arc::new(Semaphore::new(self.bounds.connections));
        loop {
            let accepted = tokio::select! {
                () = self.stop_accepting.cancelled() => return,
                accepted = accept(&listener, &slots) => accepted,
            };
            match accepted {
                Ok((stream, address, slot)) => {
                    let acceptor = self.clone();
                    self.connections.spawn(async move {
                        let _slot = slot;
                        let _open = Gauged::new(acceptor.handler.metrics.connections.clone());
                        tokio::select! {
                            () = acceptor.abort.cancelled() => {}
                            () = acceptor.serve(stream, address) => {}
                        }
                    });
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot accept connections, trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn serve(&self, stream: TcpStream, address: SocketAddr) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, %address, "cannot set TCP_NODELAY");
        }
        let handshake = TlsAcceptor::from(self.tls.current()).accept(stream);
        let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return self.handshake_failed(address, &error),
            Err(_) => return self.handshake_failed(address, &io::ErrorKind::TimedOut.into()),
        };
        let (_, session) = stream.get_ref();
        let is_http2 = session.alpn_protocol() == Some(b"h2");
        let chain = session.peer_certificates().unwrap_or_default().iter().map(|c| c.clone().into_owned()).collect();
        let origin = Arc::new(Origin::connection(Peer::new(chain), address));
        // An HTTP/1.1 connection carries one answer after the other.
        let way = Delivery::default();
        let service = service_fn(|request: Request<Incoming>| {
            let (handler, origin, way) = (self.handler.clone(), origin.clone(), way.clone());
            async move {
                let delivery = STREAM.try_with(Delivery::clone).unwrap_or_else(|_| way.next());
                let request = request.map(RequestBody::new);
                Ok::<_, std::convert::Infallible>(handler.handle(origin, delivery, request).await)
            }
        });
        let builder = self.http(is_http2);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let activity = origin.activity();
        let mut given_up = pin!(way.ended());
        let to_close = async {
            tokio::select! {
                () = self.close.cancelled() => {}
                () = origin.closing() => {}
                () = activity.quiet_for(self.bounds.first_request, self.bounds.idle) => {}
            }
        };
        // The connection is looked at first: what it does says what the other branches have to wait for.
        let outcome = tokio::select! {
            biased;
            outcome = connection.as_mut() => outcome,
            () = given_up.as_mut() => return tracing::debug!(%address, "a client did not read its answer"),
            () = to_close => {
                connection.as_mut().graceful_shutdown();
                let goodbye = async {
                    tokio::time::sleep(GOODBYE_TIMEOUT).await;
                    activity.quiet_for(GOODBYE_TIMEOUT, GOODBYE_TIMEOUT).await;
                };
                tokio::select! {
                    biased;
                    outcome = connection.as_mut() => outcome,
                    () = given_up.as_mut() => return tracing::debug!(%address, "a client did not read its answer"),
                    () = goodbye => return tracing::debug!(%address, "a connection did not end by itself"),
                }
            }
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, %address, "connection ended");
        }
    }

    fn handshake_failed(&self, address: SocketAddr, error: &io::Error) {
        self.handler.metrics.handshake_errors.inc();
        match self.handshake_log.lock().next(Instant::now()) {
            Some(unsaid) => tracing::info!(%error, %address, unsaid, "TLS handshake error"),
            None => tracing::debug!(%error, %address, "TLS handshake error"),
        }
    }

    /// What the handshake agreed on is spoken; a client that agreed on nothing speaks HTTP/1.1, as with Go.
    fn http(&self, is_http2: bool) -> auto::Builder<Streams> {
        let builder = auto::Builder::new(Streams);
        let mut builder = if is_http2 { builder.http2_only() } else { builder.http1_only() };
        // A user's groups come as headers, one each, and there may be many.
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.bounds.idle)
            .half_close(false)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEADER_BYTES as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.bounds.http2_streams)
            .max_header_list_size(MAX_HEADER_BYTES)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
        builder
    }
}

/// The place for a connection is taken first: without one, nothing is accepted.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let slot = slots.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, address) = listener.accept().await?;
    Ok((stream, address, slot))
}

/// Whether the error is of a connection that was given up before it was accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_sparingly_is_counted_in_between() {
        let (mut log, begin) = (Sparingly::default(), Instant::now());
        let at = |tenths: u32| begin + HANDSHAKE_LOG_PAUSE * tenths / 10;
        let said: Vec<_> = [0, 1, 9, 10, 11, 30].map(|tenths| log.next(at(tenths))).into();
        assert_eq!(said, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
