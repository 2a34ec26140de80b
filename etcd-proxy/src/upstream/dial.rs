//! Making one connection to one of the endpoints.

use std::{
    error::Error,
    future::pending,
    io,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use bytes::Bytes;
use h2::client;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    Address, Credentials, Endpoint, EndpointError, UpstreamConfig, UpstreamMetrics,
    backoff::Backoff,
    greeting::Greeting,
    sender::{ConnectionError, KeepAlive, Life, Sender, UnarySender, drive},
};
use crate::{cork::Corked, traces::Tracer};

/// The kind of traffic a connection is for; it decides the HTTP/2 windows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Traffic {
    /// Requests with one answer.
    Unary,
    /// Ranges whose answer comes in parts.
    Ranges,
    /// Watches and other streams.
    Streams,
}

/// Streams of a connection, which are so few that those whose readers have stalled hold up no other
/// (`Traffic::windows`): a window takes 6900 of the shortest messages (38 bytes), which count as 218 bytes each.
const STREAMS: usize = 256;

/// How long an endpoint is tried alone before the next one is tried as well. Far longer than any works that is not far away,
/// and short enough for one that hangs not to be felt.
const HEAD_START: Duration = Duration::from_millis(250);

/// Knows the endpoints, how to connect to them, and which of them failed of late.
#[derive(Debug)]
pub(super) struct Dialer {
    config: UpstreamConfig,
    health: Box<[Mutex<Health>]>,
}

/// How an endpoint fared of late.
#[derive(Debug, Default)]
struct Health {
    backoff: Backoff,
    /// Why the last attempt failed, until one succeeds.
    failure: Option<String>,
}

/// A connection that was made.
pub(super) struct Dialed {
    /// Which of the endpoints it leads to.
    pub(super) endpoint: usize,
    pub(super) sender: Sender,
}

/// Why no connection could be made.
#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    #[error("TLS handshake: {0}")]
    Tls(#[source] io::Error),
    #[error("HTTP/2 handshake: {0}")]
    Http(#[source] ConnectionError),
    #[error(transparent)]
    Name(#[from] EndpointError),
    #[error("the endpoint does not greet: {0}")]
    Greeting(#[source] io::Error),
    #[error("the endpoint closed the connection before it said anything")]
    Closed,
    #[error(
        "the endpoint closed the connection before it said anything; it may speak TLS, which takes https:// (or unixs://) and --cacert"
    )]
    ClosedPlaintext,
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("the endpoint wants TLS, but no CA certificate is configured")]
    NoTls,
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

// === impl Dialer ===

impl Dialer {
    pub(super) fn new(config: UpstreamConfig) -> Self {
        let health = config.endpoints.iter().map(|_| Mutex::default()).collect();
        Self { config, health }
    }

    pub(super) fn endpoints(&self) -> usize {
        self.config.endpoints.len()
    }

    pub(super) fn user(&self) -> Option<&Arc<Credentials>> {
        self.config.user.as_ref()
    }

    pub(super) fn all_endpoints(&self) -> &[Endpoint] {
        &self.config.endpoints
    }

    pub(super) fn endpoint(&self, index: usize) -> Option<&Endpoint> {
        self.config.endpoints.get(index)
    }

    /// Whether any of `candidates` may be tried now.
    pub(super) fn may_dial(&self, candidates: &[usize]) -> bool {
        let now = Instant::now();
        candidates.iter().filter_map(|index| self.health.get(*index)).any(|health| health.lock().backoff.is_over(now))
    }

    /// Connects to the first of `candidates` that answers, leaving out those that failed of late. Each gets a head start on
    /// the next; those that have not answered when another one does are waited for by nobody, but noted if they fail.
    pub(super) async fn dial(
        self: &Arc<Self>,
        candidates: &[usize],
        traffic: Traffic,
        in_flight: &Arc<AtomicUsize>,
    ) -> Option<Dialed> {
        let mut candidates = candidates.iter().copied().filter(|index| self.may_dial(&[*index])).peekable();
        let mut attempts = JoinSet::new();
        loop {
            match candidates.next() {
                Some(index) => {
                    attempts.spawn(self.clone().attempt(index, traffic, in_flight.clone()));
                }
                None if attempts.is_empty() => return None,
                None => {}
            }
            let head_start = async {
                match candidates.peek() {
                    Some(_) => sleep(HEAD_START).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                // One that broke off is as good as one that failed.
                Some(ended) = attempts.join_next() => if let Ok(Some(dialed)) = ended {
                    attempts.detach_all();
                    return Some(dialed);
                },
                () = head_start => {}
            }
        }
    }

    /// Connects to one endpoint, or notes that it cannot be connected to.
    async fn attempt(self: Arc<Self>, index: usize, traffic: Traffic, in_flight: Arc<AtomicUsize>) -> Option<Dialed> {
        let endpoint = self.endpoint(index)?;
        let connect = timeout(self.config.dial_timeout, self.connect(index, endpoint, traffic, &in_flight));
        match connect.await.unwrap_or(Err(DialError::Timeout(self.config.dial_timeout))) {
            Ok(sender) => {
                tracing::debug!(%endpoint, ?traffic, "connected to upstream");
                Some(Dialed { endpoint: index, sender })
            }
            Err(error) => {
                self.failed(index, &error);
                None
            }
        }
    }

    pub(super) fn tracer(&self) -> Option<&Tracer> {
        self.config.tracer.as_ref()
    }

    pub(super) fn metrics(&self) -> &UpstreamMetrics {
        &self.config.metrics
    }

    /// Notes that an endpoint answered a request: its back-off is forgotten.
    pub(super) fn succeeded(&self, index: usize) {
        let (Some(endpoint), Some(health)) = (self.config.endpoints.get(index), self.health.get(index)) else {
            return;
        };
        let mut health = health.lock();
        health.backoff.succeeded();
        if health.failure.take().is_some() {
            tracing::info!(%endpoint, "upstream answers again");
        }
    }

    /// The endpoints that failed when they were last tried, and why.
    pub(super) fn failures(&self) -> Vec<(&Endpoint, String)> {
        let all = self.config.endpoints.iter().zip(&self.health);
        all.filter_map(|(endpoint, health)| Some((endpoint, health.lock().failure.clone()?))).collect()
    }

    fn failed(&self, index: usize, error: &(dyn Error + 'static)) {
        let (Some(endpoint), Some(health)) = (self.config.endpoints.get(index), self.health.get(index)) else {
            return;
        };
        self.config.metrics.failed(endpoint);
        let mut health = health.lock();
        let wait = health.backoff.failed(Instant::now());
        let known = health.failure.replace(crate::logging::reason(error));
        // An outage is one line, not one for each time that it is looked whether it is over.
        if known == health.failure {
            tracing::debug!(%endpoint, error, ?wait, "upstream still unreachable, left alone again");
        } else {
            tracing::warn!(%endpoint, error, ?wait, "upstream unreachable, left alone for a while");
        }
    }

    async fn connect(
        self: &Arc<Self>,
        index: usize,
        endpoint: &Endpoint,
        traffic: Traffic,
        in_flight: &Arc<AtomicUsize>,
    ) -> Result<Sender, DialError> {
        let stream: Box<dyn Io> = match &endpoint.address {
            Address::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(DialError::Connect)?;
                stream.set_nodelay(true).map_err(DialError::Connect)?;
                Box::new(stream)
            }
            Address::Unix(path) => Box::new(UnixStream::connect(path).await.map_err(DialError::Connect)?),
        };
        if endpoint.tls {
            let tls = self.config.tls.as_ref().ok_or(DialError::NoTls)?;
            let stream = tls.connector().connect(endpoint.server_name()?, stream).await.map_err(DialError::Tls)?;
            self.handshake(index, endpoint, stream, traffic, in_flight).await
        } else {
            self.handshake(index, endpoint, stream, traffic, in_flight).await
        }
    }

    async fn handshake(
        self: &Arc<Self>,
        index: usize,
        endpoint: &Endpoint,
        stream: impl Io + 'static,
        traffic: Traffic,
        in_flight: &Arc<AtomicUsize>,
    ) -> Result<Sender, DialError> {
        let closed = || if endpoint.tls { DialError::Closed } else { DialError::ClosedPlaintext };
        let (stream, greeted) = Greeting::awaited(stream);
        let (sender, mut connection) =
            self.speak(Corked::new(stream), traffic, in_flight).await.map_err(DialError::Http)?;
        // Within the dial timeout, as all of this.
        tokio::select! {
            biased;
            greeted = greeted => greeted.map_err(|_| closed())?.map_err(DialError::Greeting)?,
            ended = &mut connection => return Err(ended.map_or_else(DialError::Http, |()| closed())),
        }
        let (dialer, endpoint) = (self.clone(), endpoint.clone());
        let open = self.config.metrics.dialled(&endpoint);
        let made = Instant::now();
        // The life of the connection, which ends when nobody can send on it any more. Those who wait for answers are the
        // tracked connections of clients; nobody waits for it when they have ended.
        tokio::spawn(async move {
            let result = connection.await;
            drop(open);
            // An endpoint that accepts connections only to close them (a refused certificate in TLS 1.3, a listener that
            // does not speak HTTP/2) must not be dialled without a pause.
            match result {
                Err(error) if made.elapsed() < Duration::from_secs(1) => dialer.failed(index, &error),
                Err(error) => {
                    tracing::warn!(%endpoint, ?traffic, error = &error as &dyn Error, "upstream connection lost");
                }
                Ok(()) => tracing::debug!(%endpoint, ?traffic, "upstream connection closed"),
            }
        });
        Ok(sender)
    }

    /// Speaks HTTP/2 on a stream: what sends requests on it, and its life, which somebody has to lead.
    async fn speak(
        &self,
        stream: impl Io + 'static,
        traffic: Traffic,
        in_flight: &Arc<AtomicUsize>,
    ) -> Result<(Sender, Life), ConnectionError> {
        let (stream_window, connection_window) = traffic.windows();
        // etcd's plaintext listener takes pings on a connection without streams for an attack and closes it after a few
        // (grpc-go's enforcement policy with `PermitWithoutStream` off), so they are off by default. A request on a
        // connection that died meanwhile is what finds that out.
        let keep_alive = KeepAlive {
            time: self.config.keepalive_time,
            timeout: self.config.keepalive_timeout,
            while_idle: self.config.keepalive_while_idle,
        };
        if let Traffic::Unary = traffic {
            let (requests, connection) = client::Builder::new()
                .enable_push(false)
                .initial_window_size(stream_window)
                .initial_connection_window_size(connection_window)
                .handshake::<_, Bytes>(stream)
                .await?;
            let (sender, closed) = UnarySender::new(requests);
            let life = drive(connection, keep_alive, in_flight.clone(), closed);
            return Ok((Sender::Unary(sender), Box::pin(life)));
        }
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(stream_window)
            .initial_connection_window_size(connection_window)
            .keep_alive_interval(keep_alive.time)
            .keep_alive_timeout(keep_alive.timeout)
            .keep_alive_while_idle(keep_alive.while_idle)
            .handshake(TokioIo::new(stream))
            .await?;
        Ok((Sender::Streams(sender), Box::pin(async move { Ok(connection.await?) })))
    }
}

// === impl Traffic ===

impl Traffic {
    /// How many requests a connection may have under way.
    pub(super) fn room(self) -> usize {
        match self {
            Self::Unary | Self::Ranges => usize::MAX,
            Self::Streams => STREAMS,
        }
    }

    /// Stream and connection window in bytes. Static and large: adaptive windows restart at 64 KiB and ping, h2 budgets
    /// small frames by the connection window, and a connection window near the stream window lets one reader that has
    /// stalled stop all others. So the connection window is far above the stream window where readers may stall for long.
    fn windows(self) -> (u32, u32) {
        const MIB: u32 = 1 << 20;
        match self {
            // Room for all long answers that may wait for their share (`grpc::Budget`) beside all that do not have to.
            Self::Unary => (MIB / 2, 1024 * MIB),
            // Room for more readers that have stalled than there may be (`MAX_RANGE_STREAMS`).
            Self::Ranges => (MIB / 2, 512 * MIB),
            // Room for as many readers that have stalled as there are streams (`STREAMS`), whatever they hold: h2 closes
            // a connection when half of this is used up by small frames that nobody has read, each of which counts as up to 256
            // bytes beside its own.
            Self::Streams => (MIB / 4, 1024 * MIB),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither what stalled readers leave unread nor what h2 counts for it may be more than a connection bears.
    #[test]
    fn a_connection_bears_that_all_its_streams_stall() {
        // A response with nothing but a header, and what h2 reckons a frame to take.
        const SHORTEST: u64 = 38;
        const FRAME: u64 = 256;
        let (stream, connection) = Traffic::Streams.windows();
        let (stream, connection) = (u64::from(stream), u64::from(connection));
        let streams = Traffic::Streams.room() as u64;
        assert!(streams * stream < connection);
        assert!(streams * (stream / SHORTEST) * (FRAME - SHORTEST) < connection / 2);
    }
}
