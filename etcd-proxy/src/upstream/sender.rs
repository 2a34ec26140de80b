//! Sending a request on a connection, and the connection's life.
//!
//! Streams go by hyper. Unary requests, which are most of them, go by h2 itself: hyper gives each request two tasks and
//! three channels, for a body and a response that may take long, where here one message is at hand and one caller waits.

use std::{
    fmt,
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use h2::{Ping, Reason, RecvStream, client};
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use hyper::client::conn::http2;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{sleep, timeout},
};
use tonic::{Status, body::Body};

use super::{
    payload::{Payload, complete},
    status,
};

/// One of the two ways to send on a connection. Cheap to clone.
#[derive(Clone)]
pub(super) enum Sender {
    /// Requests of one message.
    Unary(UnarySender),
    /// Requests of any kind.
    Streams(http2::SendRequest<Body>),
}

/// Sends requests of one message.
#[derive(Clone)]
pub(super) struct UnarySender {
    requests: client::SendRequest<Bytes>,
    closed: Arc<AtomicBool>,
}

/// The body of a response.
pub(super) enum Incoming {
    Unary(RecvStream),
    Stream(hyper::body::Incoming),
}

/// Why there is no response.
pub(super) enum Failure {
    /// The request was surely not sent, or not looked at by the endpoint, as that says itself; here it is again.
    Unsent(Box<Request<Payload>>),
    /// It may have been sent.
    Lost(Status),
}

/// How a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error(transparent)]
    Hyper(#[from] hyper::Error),
    #[error(transparent)]
    H2(#[from] h2::Error),
    #[error("no answer to a ping within {0:?}")]
    Silent(Duration),
}

/// When a connection is pinged.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeepAlive {
    /// Time between pings; `None` is never.
    pub(super) time: Option<Duration>,
    pub(super) timeout: Duration,
    /// Also while no request is under way.
    pub(super) while_idle: bool,
}

/// A connection for unary requests until its end.
pub(super) async fn drive<S>(
    mut connection: client::Connection<S, Bytes>,
    keep_alive: KeepAlive,
    in_flight: Arc<AtomicUsize>,
    closed: Closed,
) -> Result<(), ConnectionError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let _closed = closed;
    let mut pings = connection.ping_pong();
    let mut connection = pin!(connection);
    let Some(time) = keep_alive.time else { return Ok(connection.await?) };
    loop {
        tokio::select! {
            ended = &mut connection => return Ok(ended?),
            () = sleep(time) => {}
        }
        if !keep_alive.while_idle && in_flight.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let Some(pings) = &mut pings else { continue };
        tokio::select! {
            ended = &mut connection => return Ok(ended?),
            pong = timeout(keep_alive.timeout, pings.ping(Ping::opaque())) => match pong {
                Ok(pong) => { pong?; }
                Err(_) => return Err(ConnectionError::Silent(keep_alive.timeout)),
            },
        }
    }
}

/// Tells senders that their connection has ended when it is dropped.
pub(super) struct Closed(Arc<AtomicBool>);

// === impl Sender ===

impl Sender {
    /// Whether the connection surely takes no more requests.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Unary(sender) => sender.closed.load(Ordering::Relaxed),
            Self::Streams(sender) => sender.is_closed(),
        }
    }

    /// Sends a request and waits for the head of the response.
    pub(super) async fn send(self, request: Request<Payload>) -> Result<Response<Incoming>, Failure> {
        match self {
            Self::Unary(sender) => sender.send(request).await,
            Self::Streams(mut sender) => {
                let mut request = request.map(Payload::into_body);
                complete(request.headers_mut());
                match sender.try_send_request(request).await {
                    Ok(response) => Ok(response.map(Incoming::Stream)),
                    // Only a request that hyper hands back was surely not sent.
                    Err(mut error) => Err(match error.take_message() {
                        Some(unsent) => Failure::Unsent(Box::new(unsent.map(Payload::Body))),
                        None => Failure::Lost(status::from_hyper(error.into_error())),
                    }),
                }
            }
        }
    }
}

// === impl UnarySender ===

impl UnarySender {
    pub(super) fn new(requests: client::SendRequest<Bytes>) -> (Self, Closed) {
        let closed = Arc::new(AtomicBool::new(false));
        (Self { requests, closed: closed.clone() }, Closed(closed))
    }

    async fn send(self, request: Request<Payload>) -> Result<Response<Incoming>, Failure> {
        let (parts, payload) = request.into_parts();
        let frame = payload.into_frame().await.map_err(Failure::Lost)?;
        let sent = match self.requests.ready().await {
            Ok(mut requests) => {
                let mut head = Request::from_parts(parts.clone(), ());
                complete(head.headers_mut());
                requests.send_request(head, false)
            }
            Err(error) => Err(error),
        };
        let again = |parts| Failure::Unsent(Box::new(Request::from_parts(parts, Payload::Frame(frame.clone()))));
        let (response, mut stream) = match sent {
            Ok(sent) => sent,
            Err(error) => {
                // Such as a connection that the other side is about to close: others are not to try it.
                self.closed.store(true, Ordering::Relaxed);
                tracing::debug!(%error, "upstream connection takes no more requests");
                return Err(again(parts));
            }
        };
        // Kept by h2 until the stream has window for it. What is refused here has ended, and the response says why.
        if stream.send_data(frame.clone(), true).is_err() {
            stream.send_reset(Reason::CANCEL);
        }
        match response.await {
            Ok(response) => Ok(response.map(Incoming::Unary)),
            Err(error) if is_unprocessed(&error) => {
                if error.is_go_away() {
                    self.closed.store(true, Ordering::Relaxed);
                }
                tracing::debug!(%error, "the upstream has not looked at a request");
                Err(again(parts))
            }
            Err(error) => Err(Failure::Lost(status::from_h2(error))),
        }
    }
}

/// Whether the endpoint says of a request that it has not looked at it: it refused the stream, or went away naming an
/// earlier one as the last. h2 gives a stream the error of a GOAWAY only then; those before end as the connection does.
fn is_unprocessed(error: &h2::Error) -> bool {
    error.is_remote() && (error.is_go_away() || (error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM)))
}

// === impl Closed ===

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// === impl Incoming ===

impl http_body::Body for Incoming {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.get_mut() {
            Self::Stream(body) => Pin::new(body).poll_frame(cx).map_err(status::from_hyper),
            Self::Unary(stream) => match ready!(stream.poll_data(cx)) {
                Some(data) => Poll::Ready(Some(data.map_err(status::from_h2).map(|data| {
                    // Fails only for more than was received.
                    let _released = stream.flow_control().release_capacity(data.len());
                    Frame::data(data)
                }))),
                None => {
                    let trailers = ready!(stream.poll_trailers(cx)).map_err(status::from_h2);
                    Poll::Ready(trailers.map(|trailers| trailers.map(Frame::trailers)).transpose())
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Unary(stream) => stream.is_end_stream(),
            Self::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Unary(_) => SizeHint::default(),
            Self::Stream(body) => body.size_hint(),
        }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unary(_) => "Unary",
            Self::Stream(_) => "Stream",
        })
    }
}

/// The life of a connection, whoever leads it.
pub(super) type Life = Pin<Box<dyn Future<Output = Result<(), ConnectionError>> + Send>>;
