//! Unary calls: one message each way.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use tokio::sync::oneshot;
use tonic::{Code, Status};

use super::{
    Abandon, Budget, LONG, NoShare, Share, UpstreamHeaders,
    framing::Frames,
    headers::{check_response, status_of, trailers},
    untaken,
};
use crate::upstream::{UpstreamBody, UpstreamChannel};

/// The body of a unary response: a frame, in one piece or several, and the trailers.
pub struct UnaryBody<K> {
    pieces: Pieces,
    trailers: Option<HeaderMap>,
    /// What is kept until all pieces have been handed over.
    kept: Option<K>,
    /// Ends when the frame is on its way, for which the trailers wait.
    delivery: Option<oneshot::Receiver<()>>,
}

/// Goes with the bytes of an answer, which HTTP/2 keeps for as long as its client leaves them.
struct Undelivered<K> {
    frame: BytesMut,
    _kept: K,
    _delivery: Option<oneshot::Sender<()>>,
}

/// The frame of a unary response.
enum Pieces {
    Whole(Option<Bytes>),
    /// Made as they are asked for. The share goes when all have been handed over.
    Long(Option<(LongPieces, Share)>),
}

/// Pieces, or why there are no more.
type LongPieces = Box<dyn Iterator<Item = Result<Bytes, Status>> + Send>;

/// The one message of an upstream's answer.
#[derive(Debug)]
pub struct Received {
    /// Without its frame's header.
    pub message: Bytes,
    /// What it has of the budget, if it is long.
    pub share: Option<Share>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum NoAnswer {
    /// The upstream's status, or that of the connection.
    Status(Status),
    /// There is one, but no memory for it. What was asked for may have been done.
    NoShare(NoShare),
}

/// Sends one frame upstream and waits for the answer, which must end with status OK. A long one takes a share of `budget`, so
/// many times over as `copies` there will be of it.
///
/// # Errors
/// When there is none.
pub async fn call(
    channel: UpstreamChannel,
    path: &'static str,
    headers: UpstreamHeaders,
    frame: Bytes,
    budget: &Budget,
    copies: usize,
) -> Result<Received, NoAnswer> {
    read_answer(channel.ask(headers.request(path, frame)).await?, Some((budget, copies))).await
}

/// Reads the one message of an upstream's answer, which must end with status OK. A long one takes a share of the budget before
/// it is read on.
///
/// # Errors
/// When there is none.
pub async fn read_answer(
    answer: http::Response<UpstreamBody>,
    budget: Option<(&Budget, usize)>,
) -> Result<Received, NoAnswer> {
    let (parts, mut body) = answer.into_parts();
    check_response(parts.status, &parts.headers)?;
    let mut frames = Frames::trusted();
    let mut message = None;
    let mut status = None;
    let mut share = None;
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => {
                if let Some((budget, copies)) = budget
                    && let Some(length) = frames.announced(&data)
                    && length >= LONG
                {
                    // Nothing is read meanwhile, so that what is to come stays where it is.
                    share = Some(budget.share(length.saturating_mul(copies)).await?);
                }
                frames.push(data);
                while let Some(next) = frames.message()? {
                    message = Some(next);
                }
            }
            Err(frame) => status = frame.trailers_ref().and_then(status_of),
        }
    }
    let status = status
        .or_else(|| status_of(&parts.headers))
        .ok_or_else(|| Status::unavailable("etcd-proxy: the upstream's answer has no status"))?;
    match (status.code(), message) {
        (Code::Ok, Some(message)) => Ok(Received { message, share }),
        (Code::Ok, None) => Err(Status::internal("etcd-proxy: the upstream's answer has no message").into()),
        _ => Err(status.into()),
    }
}

// === impl NoAnswer ===

impl From<Status> for NoAnswer {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<NoShare> for NoAnswer {
    fn from(none: NoShare) -> Self {
        Self::NoShare(none)
    }
}

impl From<NoAnswer> for Status {
    fn from(none: NoAnswer) -> Self {
        match none {
            NoAnswer::Status(status) => status,
            NoAnswer::NoShare(none) => none.into(),
        }
    }
}

// === impl UnaryBody, Undelivered ===

impl<K> UnaryBody<K> {
    /// The body of the call that is being polled, with this frame and status OK. `kept` is kept until its client takes it, which
    /// may take so long; `None` for ever.
    ///
    /// A call is over when its trailers have been handed over, and what is left of it then only its client or the end of the
    /// connection can drop. If it `waits` with them until the frame is on its way, it can be ended before.
    pub fn new(frame: BytesMut, kept: K, waits: bool, patience: Option<Duration>) -> Self
    where
        K: Send + 'static,
    {
        untaken::waits(patience);
        let (delivered, delivery) = if waits { Some(oneshot::channel()).unzip() } else { (None, None) };
        let frame = Bytes::from_owner(Undelivered { frame, _kept: kept, _delivery: delivered });
        Self { delivery, ..Self::of(Pieces::Whole(Some(frame)), None) }
    }

    /// The body with a frame that is made piece by piece and has this share of the budget.
    pub fn long(pieces: impl Iterator<Item = Result<Bytes, Status>> + Send + 'static, share: Share, kept: K) -> Self {
        Self::of(Pieces::Long(Some((Box::new(pieces), share))), Some(kept))
    }

    fn of(pieces: Pieces, kept: Option<K>) -> Self {
        Self { pieces, trailers: Some(trailers(&Status::new(Code::Ok, ""))), kept, delivery: None }
    }
}

impl<K> AsRef<[u8]> for Undelivered<K> {
    fn as_ref(&self) -> &[u8] {
        &self.frame
    }
}

impl<K> Abandon for UnaryBody<K> {
    fn abandon(self, _: &Status) {}
}

impl Pieces {
    fn next(&mut self) -> Option<Result<Bytes, Status>> {
        match self {
            Self::Whole(frame) => frame.take().map(Ok),
            Self::Long(long) => {
                let next = long.as_mut().and_then(|(pieces, _)| pieces.next());
                if next.is_none() {
                    *long = None;
                }
                next
            }
        }
    }
}

impl<K: Unpin> Body for UnaryBody<K> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = match self.pieces.next() {
            Some(Ok(piece)) => Some(Frame::data(piece)),
            Some(Err(status)) => {
                self.pieces = Pieces::Whole(None);
                self.trailers = None;
                Some(Frame::trailers(trailers(&status)))
            }
            None => {
                if let Some(delivery) = &mut self.delivery {
                    // It only ends, with the bytes.
                    let _ended = ready!(Pin::new(delivery).poll(cx));
                    self.delivery = None;
                }
                self.trailers.take().map(Frame::trailers)
            }
        };
        if self.trailers.is_none() {
            untaken::taken();
            self.kept = None;
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.trailers.is_none()
    }
}
