//! The body of an answer on its way out: counted, and holding what belongs to the request until it is through.

use std::{
    panic::AssertUnwindSafe,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;

use crate::endpoint::{BoxError, ResponseBody};

/// Calls `finished` with the number of bytes when the body is through or given up, and lives no longer than `_held` does.
pub(super) struct Tracked<H, F: FnOnce(u64)> {
    inner: ResponseBody,
    sent: u64,
    finished: Option<F>,
    _held: H,
}

#[derive(Debug, thiserror::Error)]
#[error("writing the answer panicked")]
struct Panicked;

/// Wraps a body.
pub(super) fn track<H, F>(inner: ResponseBody, held: H, finished: F) -> ResponseBody
where
    H: Send + Unpin + 'static,
    F: FnOnce(u64) + Send + Unpin + 'static,
{
    Tracked { inner, sent: 0, finished: Some(finished), _held: held }.boxed_unsync()
}

impl<H: Unpin, F: FnOnce(u64) + Unpin> Body for Tracked<H, F> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let poll = AssertUnwindSafe(|| Pin::new(&mut this.inner).poll_frame(cx));
        // A panic here would take all requests of the connection with it.
        let frame = match std::panic::catch_unwind(poll) {
            Ok(poll) => ready!(poll),
            Err(_) => Some(Err(Panicked.into())),
        };
        if let Some(Ok(data)) = &frame
            && let Some(data) = data.data_ref()
        {
            this.sent += data.len() as u64;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<H, F: FnOnce(u64)> Drop for Tracked<H, F> {
    fn drop(&mut self) {
        if let Some(finished) = self.finished.take() {
            finished(self.sent);
        }
    }
}
