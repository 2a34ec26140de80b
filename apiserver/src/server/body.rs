//! The body of an answer on its way out: counted, in pieces, and holding what belongs to the request until it is through.

use std::{
    panic::AssertUnwindSafe,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;

use crate::endpoint::{BoxError, Delivery, ResponseBody};

/// The largest piece, in bytes. HTTP/2 takes a piece whole as soon as there is room for its first byte, and then nobody
/// can say any more whether the client reads it.
const PIECE: usize = 64 * 1024;

/// Calls `finished` with the number of bytes when the body is through or given up, and lives no longer than `_held` does.
pub(super) struct Tracked<H, F: FnOnce(u64)> {
    inner: ResponseBody,
    /// What did not fit into the last piece.
    rest: Bytes,
    sent: u64,
    delivery: Delivery,
    finished: Option<F>,
    _held: H,
}

#[derive(Debug, thiserror::Error)]
#[error("writing the answer panicked")]
struct Panicked;

/// Wraps a body.
pub(super) fn track<H, F>(inner: ResponseBody, delivery: Delivery, held: H, finished: F) -> ResponseBody
where
    H: Send + Unpin + 'static,
    F: FnOnce(u64) + Send + Unpin + 'static,
{
    Tracked { inner, rest: Bytes::new(), sent: 0, delivery, finished: Some(finished), _held: held }.boxed_unsync()
}

impl<H: Unpin, F: FnOnce(u64) + Unpin> Body for Tracked<H, F> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let mut data = if this.rest.is_empty() {
            let poll = AssertUnwindSafe(|| Pin::new(&mut this.inner).poll_frame(cx));
            // A panic here would take all requests of the connection with it.
            let frame = match std::panic::catch_unwind(poll) {
                Ok(poll) => ready!(poll),
                Err(_) => Some(Err(Panicked.into())),
            };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        } else {
            std::mem::take(&mut this.rest)
        };
        if data.len() > PIECE {
            this.rest = data.split_off(PIECE);
        }
        this.sent += data.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.inner.size_hint(), self.rest.len() as u64);
        if rest > 0 {
            if let Some(upper) = hint.upper() {
                hint.set_upper(upper + rest);
            }
            hint.set_lower(hint.lower() + rest);
        }
        hint
    }
}

impl<H, F: FnOnce(u64)> Drop for Tracked<H, F> {
    fn drop(&mut self) {
        self.delivery.done();
        if let Some(finished) = self.finished.take() {
            finished(self.sent);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use super::*;
    use crate::endpoint::full;

    #[tokio::test]
    async fn what_is_long_goes_out_in_pieces() {
        for length in [0, 1, PIECE, PIECE + 1, 3 * PIECE + 7] {
            let content: Vec<u8> = (0..length).map(|i| i.to_le_bytes()[1]).collect();
            let sent = Arc::new(AtomicU64::new(u64::MAX));
            let counted = sent.clone();
            let mut body = track(full(content.clone()), Delivery::default(), (), move |size| {
                counted.store(size, Ordering::SeqCst);
            });
            let mut read = Vec::new();
            loop {
                let left = (length - read.len()) as u64;
                assert_eq!(body.size_hint().exact(), Some(left));
                assert_eq!(body.is_end_stream(), left == 0);
                let Some(frame) = body.frame().await else { break };
                let data = frame.unwrap().into_data().unwrap();
                assert!(data.len() <= PIECE);
                read.extend_from_slice(&data);
            }
            assert_eq!(read, content);
            drop(body);
            assert_eq!(sent.load(Ordering::SeqCst), length as u64);
        }
    }
}
