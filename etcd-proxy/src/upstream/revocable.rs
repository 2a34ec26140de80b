//! A streamed request that ends when nobody listens to its response any more.
//!
//! hyper goes on sending a request's body after the response has been dropped: neither the upstream nor the client behind
//! the body would learn that the stream is over.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::oneshot;
use tonic::{Status, body::Body};

/// Revokes the request when it is dropped.
#[derive(Debug)]
pub(super) struct Listening(#[expect(dead_code, reason = "dropping it is what counts")] oneshot::Sender<Infallible>);

/// A request body that can be revoked.
struct Revocable {
    body: Body,
    revoked: oneshot::Receiver<Infallible>,
}

/// Ties `body` to a guard that goes with the response.
pub(super) fn revocable(body: Body) -> (Body, Listening) {
    let (listening, revoked) = oneshot::channel();
    (Body::new(Revocable { body, revoked }), Listening(listening))
}

impl http_body::Body for Revocable {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        match Pin::new(&mut self.revoked).poll(cx) {
            Poll::Pending => Poll::Pending,
            // hyper takes the code of the stream's reset from the error's source.
            Poll::Ready(_) => Poll::Ready(Some(Err(Status::from_error(Box::new(h2::Error::from(h2::Reason::CANCEL)))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
