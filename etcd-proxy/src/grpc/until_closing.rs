//! Streams that others make here (health, reflection) and that do not end by themselves.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Status, body::Body};

use super::{Deadline, Fault, deadline_exceeded};
use crate::error::EtcdError;

/// A stream that ends with `Unavailable` when the process closes, and at its client's deadline.
pub(crate) struct UntilClosing {
    /// Gone once the stream was ended here; dropping it cancels what stands behind it.
    body: Option<Body>,
    closing: CancellationToken,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    expiry: Option<Pin<Box<Sleep>>>,
    fault: Fault,
}

impl UntilClosing {
    pub(crate) fn new(body: Body, closing: CancellationToken, deadline: Deadline) -> Self {
        let closed = Box::pin(closing.clone().cancelled_owned());
        Self { body: Some(body), closing, closed, expiry: deadline.sleep().map(Box::pin), fault: Fault::default() }
    }

    /// The same, ending with what is wrong with the request instead of well.
    #[must_use]
    pub(crate) fn unless(self, fault: Fault) -> Self {
        Self { fault, ..self }
    }

    /// Ready with the status that ends the stream, whatever stands behind it.
    fn ended(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if self.closing.is_cancelled() || self.closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(EtcdError::Stopped.into());
        }
        match &mut self.expiry {
            Some(expiry) => expiry.as_mut().poll(cx).map(|()| deadline_exceeded()),
            None => Poll::Pending,
        }
    }
}

impl http_body::Body for UntilClosing {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if this.body.is_none() {
            return Poll::Ready(None);
        }
        // First of all: a stream that never pauses must end, too.
        let status = match this.ended(cx) {
            Poll::Ready(status) => status,
            Poll::Pending => {
                let Some(body) = &mut this.body else { return Poll::Ready(None) };
                let frame = ready!(Pin::new(body).poll_frame(cx));
                let over = frame.as_ref().is_none_or(|frame| frame.as_ref().is_ok_and(Frame::is_trailers));
                match this.fault.status().filter(|_| over) {
                    Some(status) => status.clone(),
                    None => return Poll::Ready(frame),
                }
            }
        };
        this.body = None;
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(match status.add_header(&mut trailers) {
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
