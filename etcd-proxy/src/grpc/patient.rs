//! A body that is given up when its client does not read on.
//!
//! A client that stalls is not asked for anything any more: HTTP/2 stops pulling the body, so the body cannot end itself. What
//! watches over it is a task of its own, which lets go of all that the body holds and leaves a status, for when its client
//! does read on.
//!
//! Of streams that may last for ever only few may stall at a time, because each keeps a window of its upstream stream filled.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until},
};
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

use super::{headers::trailers, untaken};

/// Bytes that are handed over at a time: what a client that stalls keeps of a body that was given up.
pub const PIECE: usize = 64 * 1024;
/// How long a stream's client may take nothing before that takes a [place](Patience::stalled).
const STALLED: Duration = Duration::from_secs(2);
/// How long what was given up can be asked for. Then the [call ends](untaken), and with it what was handed over and not taken.
const LATE: Duration = Duration::from_secs(60);

/// How long a client may take nothing of what it was handed.
#[derive(Clone, Debug)]
pub struct Patience {
    /// The longest time; `None` for ever.
    pub timeout: Option<Duration>,
    /// Places of streams whose clients take nothing for the time being. A stream that finds none is given up at once.
    pub stalled: Option<Arc<Semaphore>>,
    /// Counts what is given up.
    pub given_up: Counter,
}

/// What can be ended from outside.
pub trait Abandon {
    /// Ends it with this status, which its client gets.
    fn abandon(self, status: &Status);
}

/// A body that is watched over.
#[derive(Debug)]
pub struct Patient<B> {
    shared: Arc<Mutex<Shared<B>>>,
    patience: Patience,
    /// The latest watch.
    watch: Option<AbortOnDropHandle<()>>,
}

#[derive(Debug)]
struct Shared<B> {
    /// Gone once it was given up.
    body: Option<B>,
    /// What is left of a long piece.
    rest: Bytes,
    /// When the client was last handed something, the head of the answer to begin with, if it has not come for more since.
    handed: Option<Instant>,
    /// The place of a client that has stalled.
    place: Option<OwnedSemaphorePermit>,
    /// Whether a watch goes on. It ends when it finds that the client has come for more, so that idle streams cost nothing.
    watched: bool,
    /// What ends a body that was given up.
    ending: Option<HeaderMap>,
}

// === impl Patient ===

impl<B: Body<Data = Bytes, Error = Status> + Abandon + Send + Unpin + 'static> Patient<B> {
    /// Gives up `body` if its client tries this patience.
    pub fn new(body: B, patience: Patience) -> Self {
        let shared =
            Shared { body: Some(body), rest: Bytes::new(), handed: None, place: None, watched: false, ending: None };
        let mut patient = Self { shared: Arc::new(Mutex::new(shared)), patience, watch: None };
        let shared = patient.shared.clone();
        patient.handed(&mut shared.lock());
        patient
    }

    /// From now on it is the client's turn.
    fn handed(&mut self, shared: &mut Shared<B>) {
        shared.handed = Some(Instant::now());
        untaken::waits(self.patience.timeout.map(|timeout| timeout.saturating_add(LATE)));
        if !shared.watched {
            shared.watched = true;
            // It goes with the body, and so before the tracked connection of its client.
            let watch = tokio::spawn(watch(Arc::downgrade(&self.shared), self.patience.clone()));
            self.watch = Some(AbortOnDropHandle::new(watch));
        }
    }
}

async fn watch<B: Abandon>(shared: Weak<Mutex<Shared<B>>>, patience: Patience) {
    loop {
        let Some(due) = shared.upgrade().and_then(|shared| look(&shared, &patience)) else { return };
        sleep_until(due).await;
    }
}

/// Looks after a client. Returns when that is due again; `None` when there is nothing to look after.
fn look<B: Abandon>(shared: &Mutex<Shared<B>>, patience: &Patience) -> Option<Instant> {
    let mut shared = shared.lock();
    let next = shared.handed.and_then(|handed| {
        let due = |after: Duration| handed + after;
        if let Some(timeout) = patience.timeout
            && handed.elapsed() >= timeout
        {
            return Some(Err(timeout));
        }
        let timeout = patience.timeout.map(due);
        match &patience.stalled {
            Some(places) if shared.place.is_none() => {
                let stalled = due(STALLED);
                if Instant::now() < stalled {
                    return Some(Ok(timeout.map_or(stalled, |timeout| timeout.min(stalled))));
                }
                shared.place = places.clone().try_acquire_owned().ok();
                if shared.place.is_none() { Some(Err(STALLED)) } else { timeout.map(Ok) }
            }
            _ => timeout.map(Ok),
        }
    });
    match next {
        Some(Ok(due)) => return Some(due),
        None => shared.watched = false,
        Some(Err(waited)) => {
            let status = patience.given_up(waited);
            let body = shared.body.take();
            shared.rest = Bytes::new();
            shared.place = None;
            shared.ending = Some(trailers(&status));
            drop(shared);
            patience.given_up.inc();
            tracing::info!(?waited, "gave up an answer that its client does not read");
            body.into_iter().for_each(|body| body.abandon(&status));
        }
    }
    None
}

// === impl Patience ===

impl Patience {
    /// What the client finds when it reads on. A stream can be resumed, and client libraries do that when it is unavailable.
    fn given_up(&self, waited: Duration) -> Status {
        match self.stalled {
            Some(_) => Status::unavailable(format!(
                "etcd-proxy: this stream was given up, because nothing of it was read for {waited:?}"
            )),
            None => Status::resource_exhausted(format!(
                "etcd-proxy: the rest of this answer was given up, because nothing of it was read for {waited:?}"
            )),
        }
    }
}

impl<B: Body<Data = Bytes, Error = Status> + Abandon + Send + Unpin + 'static> Body for Patient<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let shared = this.shared.clone();
        let mut shared = shared.lock();
        let shared = &mut *shared;
        // Whatever it waits for now, it is not its client.
        (shared.handed, shared.place) = (None, None);
        untaken::taken();
        let Some(body) = &mut shared.body else {
            return Poll::Ready(shared.ending.take().map(|trailers| Ok(Frame::trailers(trailers))));
        };
        let data = if shared.rest.is_empty() {
            match ready!(Pin::new(body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                ended => return Poll::Ready(ended),
            }
        } else {
            std::mem::take(&mut shared.rest)
        };
        this.handed(shared);
        Poll::Ready(Some(Ok(Frame::data(piece(data, &mut shared.rest)))))
    }

    fn is_end_stream(&self) -> bool {
        let shared = self.shared.lock();
        match &shared.body {
            Some(body) => shared.rest.is_empty() && body.is_end_stream(),
            None => shared.ending.is_none(),
        }
    }
}

/// The first piece of `data`; what follows goes to `rest`. A piece of something longer is a copy, so as not to keep the
/// whole alive.
fn piece(mut data: Bytes, rest: &mut Bytes) -> Bytes {
    if data.len() <= PIECE {
        return data;
    }
    *rest = data.split_off(PIECE);
    Bytes::copy_from_slice(&data)
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, sync::atomic::AtomicBool};

    use http_body_util::BodyExt as _;

    use super::*;

    /// Pieces that are there, and then nothing for the time being.
    struct Answers(VecDeque<Bytes>, Arc<AtomicBool>);

    impl Body for Answers {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            self.0.pop_front().map_or(Poll::Pending, |data| Poll::Ready(Some(Ok(Frame::data(data)))))
        }
    }

    impl Abandon for Answers {
        fn abandon(self, _: &Status) {
            self.1.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }

    fn body(pieces: &[&'static str]) -> (Patient<Answers>, Arc<AtomicBool>) {
        of_patience(
            pieces,
            Patience { timeout: Some(Duration::from_secs(10)), stalled: None, given_up: Counter::default() },
        )
    }

    fn of_patience(pieces: &[&'static str], patience: Patience) -> (Patient<Answers>, Arc<AtomicBool>) {
        let abandoned = Arc::new(AtomicBool::new(false));
        let pieces = pieces.iter().map(|piece| Bytes::from_static(piece.as_bytes())).collect();
        (Patient::new(Answers(pieces, abandoned.clone()), patience), abandoned)
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_on_gets_a_status() {
        let (mut body, abandoned) = body(&["one", "two"]);
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "two");
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert!(abandoned.load(std::sync::atomic::Ordering::Relaxed));
        let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(Status::from_header_map(&trailers).unwrap().code(), tonic::Code::ResourceExhausted);
        assert!(body.frame().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_more_is_not_given_up() {
        let (mut body, abandoned) = body(&["one"]);
        assert!(body.frame().await.is_some());
        let waiting = tokio::time::timeout(Duration::from_secs(100), body.frame()).await;
        assert!(waiting.is_err() && !abandoned.load(std::sync::atomic::Ordering::Relaxed));
    }

    #[tokio::test(start_paused = true)]
    async fn who_never_begins_to_read_is_given_up() {
        let (mut body, abandoned) = body(&["one"]);
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert!(abandoned.load(std::sync::atomic::Ordering::Relaxed));
        assert!(body.frame().await.unwrap().unwrap().is_trailers());
    }

    #[tokio::test(start_paused = true)]
    async fn streams_that_stall_have_places() {
        let places = Arc::new(Semaphore::new(1));
        let given_up = Counter::default();
        let patience = Patience { timeout: None, stalled: Some(places.clone()), given_up: given_up.clone() };
        let (mut first, first_abandoned) = of_patience(&["one", "two"], patience.clone());
        let (mut second, second_abandoned) = of_patience(&["one", "two"], patience);
        assert!(first.frame().await.is_some());
        tokio::time::sleep(STALLED / 2).await;
        assert_eq!(places.available_permits(), 1);
        assert!(second.frame().await.is_some());
        tokio::time::sleep(STALLED * 100).await;
        assert_eq!(places.available_permits(), 0);
        assert!(!first_abandoned.load(std::sync::atomic::Ordering::Relaxed));
        // The second found no place. Its client is told to come again.
        assert!(second_abandoned.load(std::sync::atomic::Ordering::Relaxed));
        assert_eq!(given_up.get(), 1);
        let trailers = second.frame().await.unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(Status::from_header_map(&trailers).unwrap().code(), tonic::Code::Unavailable);
        // A place gets free when its client reads on, and is taken again when it does not.
        assert_eq!(first.frame().await.unwrap().unwrap().into_data().unwrap(), "two");
        assert_eq!(places.available_permits(), 1);
        tokio::time::sleep(STALLED * 2).await;
        assert_eq!(places.available_permits(), 0);
        drop(first);
        assert_eq!(places.available_permits(), 1);
    }

    #[tokio::test]
    async fn long_pieces_are_handed_over_in_short_ones() {
        let long: &'static str = Box::leak("x".repeat(3 * PIECE + 1).into_boxed_str());
        let (mut body, _) = body(&[long, "end"]);
        let mut lengths = Vec::new();
        while lengths.last() != Some(&3) {
            lengths.push(body.frame().await.unwrap().unwrap().into_data().unwrap().len());
        }
        assert_eq!(lengths, [PIECE, PIECE, PIECE, 1, 3]);
    }
}
