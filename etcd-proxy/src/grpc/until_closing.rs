//! Streams that others make here (health, reflection) and that do not end by themselves.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Status, body::Body};

use crate::error::EtcdError;

/// A stream that ends with `Unavailable` when the process closes.
pub(crate) struct UntilClosing {
    /// Gone once the stream was ended here; dropping it cancels what stands behind it.
    body: Option<Body>,
    closing: CancellationToken,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl UntilClosing {
    pub(crate) fn new(body: Body, closing: CancellationToken) -> Self {
        let closed = Box::pin(closing.clone().cancelled_owned());
        Self { body: Some(body), closing, closed }
    }
}

impl http_body::Body for UntilClosing {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        // A stream that never pauses must end, too.
        if !this.closing.is_cancelled() {
            if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
                return Poll::Ready(frame);
            }
            ready!(this.closed.as_mut().poll(cx));
        }
        this.body = None;
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(match Status::from(EtcdError::Stopped).add_header(&mut trailers) {
            Ok(()) => Ok(Frame::trailers(trailers)),
            Err(status) => Err(status),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}
