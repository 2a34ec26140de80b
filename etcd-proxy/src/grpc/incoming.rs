//! Requests as they come in.
//!
//! One that has come in part holds what has come, for as long as its client likes. So it takes a share of a budget for all that
//! is to come before more of it is read; while it waits for that, HTTP/2 holds it back at the client, but for the window
//! of its stream. While others wait, who sends nothing on for a moment, or is not done in good time, loses what it has.
//! What comes at once, as short requests do, needs no share.
//!
//! What comes compressed takes a share of the longest message there is before it is decompressed, and keeps what it needs.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::Body;
use tokio::time::{Instant, Sleep, sleep};
use tonic::Status;

use super::{
    Share,
    budget::{Budget, NoShare},
    framing::{Frames, Whole},
};

/// How long a client may send nothing of a request that has begun while others wait.
const STALLED: Duration = Duration::from_secs(1);
/// How long a request may take to come while others wait.
const SLOW: Duration = Duration::from_secs(60);
/// The message as it came, and the frame that is made of it.
const COPIES: usize = 2;

/// A client's body, cut into messages.
pub struct Incoming<B> {
    body: B,
    frames: Frames,
    budget: Arc<Budget>,
    room: Room,
    /// A compressed message that waits for room.
    packed: Option<Bytes>,
}

/// A message, with what it has of the memory if it did not come at once.
#[derive(Debug)]
pub struct Arrived {
    /// Without its frame's header.
    pub message: Bytes,
    /// To be kept while there is something of the message.
    pub share: Option<Share>,
}

/// What a message that has come in part has of the memory.
enum Room {
    /// There is none.
    Unneeded,
    /// Nothing yet.
    Wanted(Pin<Box<dyn Future<Output = Result<Share, NoShare>> + Send>>),
    /// All that it needs.
    Had(Box<Arriving>),
}

struct Arriving {
    share: Share,
    begun: Instant,
    /// When something of it came last.
    came: Instant,
    /// When that is looked at again.
    look: Pin<Box<Sleep>>,
}

// === impl Incoming ===

impl<B: Body<Data = Bytes> + Unpin> Incoming<B> {
    /// The messages of `body`, which share `budget`.
    pub fn new(body: B, frames: Frames, budget: Arc<Budget>) -> Self {
        Self { body, frames, budget, room: Room::Unneeded, packed: None }
    }

    /// The next message of what has been read.
    ///
    /// # Errors
    /// As grpc-go answers messages that are too long or compressed.
    pub fn message(&mut self) -> Result<Option<Arrived>, Status> {
        let packed = match self.packed.take() {
            Some(packed) => packed,
            None => match self.frames.whole()? {
                None => return Ok(None),
                Some(Whole { packed: true, bytes }) => bytes,
                Some(Whole { packed: false, bytes }) => {
                    return Ok(Some(Arrived { message: bytes, share: self.shared() }));
                }
            },
        };
        if !matches!(self.room, Room::Had(_)) {
            self.packed = Some(packed);
            return Ok(None);
        }
        let message = self.frames.unpack(&packed)?;
        let share = self.shared().map(|mut share| {
            share.shrink(message.len().saturating_mul(COPIES));
            share
        });
        Ok(Some(Arrived { message, share }))
    }

    /// What the message that has come has of the memory.
    fn shared(&mut self) -> Option<Share> {
        match std::mem::replace(&mut self.room, Room::Unneeded) {
            Room::Had(arriving) => Some(arriving.share),
            Room::Unneeded | Room::Wanted(_) => None,
        }
    }

    /// Reads on, or waits for what it takes to tell the next message, once all messages of what was read before have been taken.
    /// `None` at the body's end.
    pub fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(), Status>>> {
        if self.packed.is_some() {
            return self.poll_room(cx, self.frames.limit()).map(Some);
        }
        if let Some(length) = self.frames.pending()
            && let Err(status) = ready!(self.poll_room(cx, length))
        {
            return Poll::Ready(Some(Err(status)));
        }
        match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    self.frames.push(data);
                }
                if let Room::Had(arriving) = &mut self.room {
                    arriving.came = Instant::now();
                }
                Poll::Ready(Some(Ok(())))
            }
            Some(Err(_)) => Poll::Ready(Some(Err(Status::cancelled("context canceled")))),
            None => Poll::Ready(self.frames.torn().map(Err)),
        }
    }

    /// Ready when there is room for a message of this length, or it has been given up.
    fn poll_room(&mut self, cx: &mut Context<'_>, length: usize) -> Poll<Result<(), Status>> {
        loop {
            match &mut self.room {
                Room::Unneeded => {
                    let (budget, bytes) = (self.budget.clone(), length.saturating_mul(COPIES));
                    self.room = Room::Wanted(Box::pin(async move { budget.share(bytes).await }));
                }
                Room::Wanted(share) => {
                    let (share, begun) = (ready!(share.as_mut().poll(cx))?, Instant::now());
                    let look = Box::pin(sleep(STALLED));
                    self.room = Room::Had(Box::new(Arriving { share, begun, came: begun, look }));
                }
                Room::Had(arriving) => {
                    while arriving.look.as_mut().poll(cx).is_ready() {
                        let late = arriving.came.elapsed() >= STALLED || arriving.begun.elapsed() >= SLOW;
                        if late && self.budget.is_crowded() {
                            return Poll::Ready(Err(given_up()));
                        }
                        arriving.look.as_mut().reset(Instant::now() + STALLED);
                    }
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    /// The one message of a unary request.
    ///
    /// # Errors
    /// As grpc-go answers: for messages that are too long, and for bodies that are no message.
    pub async fn only(mut self) -> Result<Arrived, Status> {
        loop {
            match poll_fn(|cx| self.poll_more(cx)).await {
                Some(more) => more?,
                None => return Err(Status::unknown("EOF")),
            }
            if let Some(arrived) = self.message()? {
                return Ok(arrived);
            }
        }
    }
}

fn given_up() -> Status {
    Status::resource_exhausted(
        "etcd-proxy: this request was given up, because it came too slowly and others wait for its memory",
    )
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, io::Write as _};

    use bytes::BytesMut;
    use flate2::{Compression, write::GzEncoder};
    use futures::FutureExt as _;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use prometheus_client::metrics::gauge::Gauge;
    use tokio::sync::mpsc;
    use tokio_stream::{StreamExt as _, wrappers::UnboundedReceiverStream};
    use tonic::Code;

    use super::*;
    use crate::grpc::framing::{Encoding, put_bytes};

    const LENGTH: usize = 100_000;

    /// The same message, which takes next to nothing on its way.
    fn packed() -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&[7; LENGTH]).unwrap();
        let mut frame = BytesMut::new();
        put_bytes(&encoder.finish().unwrap(), &mut frame).unwrap();
        frame[0] = 1;
        frame.freeze()
    }

    /// A request of which the test sends what it likes, and what becomes of it.
    fn request(
        budget: &Arc<Budget>,
    ) -> (mpsc::UnboundedSender<Bytes>, impl Future<Output = Result<Arrived, Status>> + use<>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let frames = UnboundedReceiverStream::new(receiver).map(|data| Ok::<_, Infallible>(Frame::data(data)));
        let messages = Frames::new(LENGTH).with_encoding(Encoding::Gzip);
        (sender, Incoming::new(StreamBody::new(frames), messages, budget.clone()).only())
    }

    fn message() -> Bytes {
        let mut frame = BytesMut::new();
        put_bytes(&[7; LENGTH], &mut frame).unwrap();
        frame.freeze()
    }

    /// One that holds a single request of the longest.
    fn budget(given: &Gauge) -> Arc<Budget> {
        Arc::new(Budget::new(COPIES * LENGTH, given.clone(), Gauge::default()))
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_at_once_takes_nothing() {
        let given = Gauge::default();
        let (sender, request) = request(&budget(&given));
        sender.send(message()).unwrap();
        let arrived = request.await.unwrap();
        assert_eq!((arrived.message.len(), arrived.share.is_none(), given.get()), (LENGTH, true, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_packed_takes_what_it_is_unpacked() {
        let given = Gauge::default();
        let budget = Arc::new(Budget::new(3 * COPIES * LENGTH, given.clone(), Gauge::default()));
        let send = |pieces: &[Bytes]| {
            let (sender, request) = request(&budget);
            pieces.iter().for_each(|piece| sender.send(piece.clone()).unwrap());
            request
        };
        let whole = packed();
        let first = send(std::slice::from_ref(&whole)).await.unwrap();
        let in_pieces = [whole.slice(..3), whole.slice(3..20), whole.slice(20..)];
        let second = send(&in_pieces).await.unwrap();
        assert_eq!((first.message.len(), &first.message), (LENGTH, &second.message));
        assert_eq!(given.get(), i64::try_from(2 * COPIES * LENGTH).unwrap());
        // What is small takes little, but may be unpacked only where there is room for the most that it can be.
        let all = budget.share(COPIES * LENGTH).await.unwrap();
        let mut third = Box::pin(send(&[whole]));
        assert!(third.as_mut().now_or_never().is_none());
        drop(all);
        let third = third.await.unwrap();
        drop((first, second, third));
        assert_eq!(given.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_stalls_makes_room_for_those_who_wait() {
        let given = Gauge::default();
        let budget = budget(&given);
        let (slow_sender, slow) = request(&budget);
        let mut slow = Box::pin(slow);
        slow_sender.send(message().slice(..10)).unwrap();
        // As long as nobody waits it may take its time.
        assert!(slow.as_mut().now_or_never().is_none());
        sleep(STALLED * 100).await;
        assert!(slow.as_mut().now_or_never().is_none());
        assert_eq!(given.get(), i64::try_from(COPIES * LENGTH).unwrap());

        let (sender, next) = request(&budget);
        sender.send(message().slice(..10)).unwrap();
        sender.send(message().slice(10..)).unwrap();
        let (slow, next) = tokio::join!(slow, next);
        let status = slow.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        // It is kept as long as there is something of the message.
        let next = next.unwrap();
        assert_eq!((next.message.len(), given.get()), (LENGTH, i64::try_from(COPIES * LENGTH).unwrap()));
        drop(next);
        assert_eq!(given.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_trickles_has_only_so_long_when_others_wait() {
        let budget = budget(&Gauge::default());
        let (trickle, slow) = request(&budget);
        trickle.send(message().slice(..10)).unwrap();
        let begun = Instant::now();
        let trickling = async {
            let mut at = 10;
            while trickle.send(message().slice(at..at + 1)).is_ok() {
                at += 1;
                sleep(STALLED / 2).await;
            }
        };
        let (waiting, next) = request(&budget);
        waiting.send(message().slice(..10)).unwrap();
        waiting.send(message().slice(10..)).unwrap();
        let (slow, (), next) = tokio::join!(slow, trickling, next);
        assert_eq!(slow.unwrap_err().code(), Code::ResourceExhausted);
        assert!((SLOW..SLOW + 2 * STALLED).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        next.unwrap();
    }
}
