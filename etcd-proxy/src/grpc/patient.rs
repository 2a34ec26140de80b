//! A body that is given up when its client does not read on.
//!
//! A client that stalls is not asked for anything any more: HTTP/2 stops pulling the body, so the body cannot end itself. What
//! watches over it is a task of its own, which lets go of all that the body holds and leaves a status, for when its client
//! does read on.

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
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

use super::headers::trailers;

/// Bytes that are handed over at a time: what a client that stalls keeps of a body that was given up.
pub const PIECE: usize = 64 * 1024;

/// What can be ended from outside.
pub trait Abandon {
    /// Ends it with this status, which its client gets.
    fn abandon(self, status: &Status);
}

/// A body that is watched over.
#[derive(Debug)]
pub struct Patient<B> {
    shared: Arc<Mutex<Shared<B>>>,
    _watch: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct Shared<B> {
    /// Gone once it was given up.
    body: Option<B>,
    /// What is left of a long piece.
    rest: Bytes,
    /// When the client was last handed something, if it has not come for more since.
    handed: Option<Instant>,
    /// What ends a body that was given up.
    ending: Option<HeaderMap>,
}

// === impl Patient ===

impl<B: Body<Data = Bytes, Error = Status> + Abandon + Send + Unpin + 'static> Patient<B> {
    /// Gives up `body` if its client takes nothing for as long as `patience`.
    pub fn new(body: B, patience: Duration) -> Self {
        let shared = Shared { body: Some(body), rest: Bytes::new(), handed: None, ending: None };
        let shared = Arc::new(Mutex::new(shared));
        let watch = tokio::spawn(watch(Arc::downgrade(&shared), patience));
        Self { shared, _watch: AbortOnDropHandle::new(watch) }
    }
}

async fn watch<B: Abandon>(shared: Weak<Mutex<Shared<B>>>, patience: Duration) {
    loop {
        let Some(handed) = shared.upgrade().map(|shared| shared.lock().handed) else { return };
        sleep_until(handed.unwrap_or_else(Instant::now) + patience).await;
        let Some(shared) = shared.upgrade() else { return };
        let mut shared = shared.lock();
        if shared.handed.is_some_and(|handed| handed.elapsed() >= patience) {
            let status = Status::resource_exhausted(format!(
                "etcd-proxy: the rest of this answer was given up, because nothing of it was read for {patience:?}"
            ));
            let body = shared.body.take();
            shared.rest = Bytes::new();
            shared.ending = Some(trailers(&status));
            drop(shared);
            tracing::info!(?patience, "gave up an answer that its client does not read");
            body.into_iter().for_each(|body| body.abandon(&status));
            return;
        }
    }
}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> Body for Patient<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut shared = self.shared.lock();
        let shared = &mut *shared;
        // Whatever it waits for now, it is not its client.
        shared.handed = None;
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
        shared.handed = Some(Instant::now());
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
        let abandoned = Arc::new(AtomicBool::new(false));
        let pieces = pieces.iter().map(|piece| Bytes::from_static(piece.as_bytes())).collect();
        (Patient::new(Answers(pieces, abandoned.clone()), Duration::from_secs(10)), abandoned)
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
