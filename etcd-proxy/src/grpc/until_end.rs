//! A response that tells how it ended.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body::{Frame, SizeHint};
use tonic::{Code, Status, body::Body};

use super::Abandon;

/// What wants to know of a response's end. That it is dropped before means that nobody wanted the rest.
pub(crate) trait OnEnd: Send + Unpin + 'static {
    /// Bytes went by.
    fn passed(&mut self, _bytes: usize) {}

    /// The call has ended. What is said later does not count.
    fn end(&mut self, code: Code);
}

/// A response's body with what wants to know of its end.
pub(crate) struct UntilEnd<B, E> {
    body: B,
    on_end: E,
}

/// Has `on_end` told of the response's end.
pub(crate) fn until_end(response: Response<Body>, on_end: impl OnEnd) -> Response<Body> {
    watched(response, on_end).map(Body::new)
}

/// The same, with a body that can be abandoned.
pub(crate) fn watched<B, E: OnEnd>(response: Response<B>, mut on_end: E) -> Response<UntilEnd<B, E>> {
    if let Some(code) = code(response.headers()) {
        on_end.end(code);
    } else if response.status() != StatusCode::OK {
        on_end.end(Code::Unknown);
    }
    response.map(|body| UntilEnd { body, on_end })
}

/// The status in headers or trailers.
pub(crate) fn code(headers: &HeaderMap) -> Option<Code> {
    headers.get(Status::GRPC_STATUS).map(|code| Code::from_bytes(code.as_bytes()))
}

impl<B, E: OnEnd> Abandon for UntilEnd<B, E> {
    fn abandon(mut self, status: &Status) {
        self.on_end.end(status.code());
    }
}

impl<B: http_body::Body<Data = Bytes, Error = Status> + Unpin, E: OnEnd> http_body::Body for UntilEnd<B, E> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.on_end.passed(data.len());
                } else if let Some(code) = frame.trailers_ref().and_then(code) {
                    self.on_end.end(code);
                }
            }
            Some(Err(status)) => self.on_end.end(status.code()),
            None => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
