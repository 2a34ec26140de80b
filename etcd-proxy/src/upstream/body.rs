//! The body of an upstream's response.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tonic::Status;

use super::{pool::InFlight, revocable::Listening, status};

/// An upstream's response as it arrives; broken connections end it with `Unavailable`.
#[derive(Debug)]
pub struct UpstreamBody {
    incoming: Incoming,
    // Counted until the response has ended or nobody wants it any more.
    _in_flight: InFlight,
    _listening: Option<Listening>,
}

impl UpstreamBody {
    pub(super) fn new(incoming: Incoming, in_flight: InFlight, listening: Option<Listening>) -> Self {
        Self { incoming, _in_flight: in_flight, _listening: listening }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map_err(status::from_hyper)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
