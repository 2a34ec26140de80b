//! The body of an upstream's response.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use super::{
    credentials::{self, Ticket},
    pool::InFlight,
    revocable::Listening,
    sender::Incoming,
};
use crate::{
    depth::Depth,
    grpc::until_end::{OnEnd as _, code},
    traces::CallSpan,
};

/// An upstream's response as it arrives; broken connections end it with `Unavailable`.
#[derive(Debug)]
pub struct UpstreamBody {
    incoming: Incoming,
    /// None of methods that are not of the API.
    depth: Option<Depth>,
    // Counted until the response has ended or nobody wants it any more.
    _in_flight: InFlight,
    _listening: Option<Listening>,
    /// What the request went by.
    ticket: Option<Ticket>,
    /// What is told of the call's end.
    span: Option<CallSpan>,
}

impl UpstreamBody {
    pub(super) fn new(
        incoming: Incoming,
        depth: Option<Depth>,
        in_flight: InFlight,
        listening: Option<Listening>,
        ticket: Option<Ticket>,
    ) -> Self {
        Self { incoming, depth, _in_flight: in_flight, _listening: listening, ticket, span: None }
    }

    /// The body of a call that is traced.
    pub(super) fn within(self, span: CallSpan) -> Self {
        Self { span: Some(span), ..self }
    }

    /// Notes that the upstream refuses the token that the request went by.
    pub fn refused(&self) {
        self.ticket.iter().for_each(Ticket::refused);
    }

    /// Data as it is, unless it nests deeper than anything that etcd answers.
    fn looked_at(&mut self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, Status> {
        if let (Some(depth), Some(data)) = (&mut self.depth, frame.data_ref()) {
            depth.look(data)?;
        }
        Ok(frame)
    }

    /// Trailers as they are, unless they say that the token has ended: that is not the client's business.
    fn checked(&self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, Status> {
        if self.ticket.is_some()
            && let Some(status) = frame.trailers_ref().and_then(Status::from_header_map)
            && credentials::is_refusal(&status)
        {
            self.refused();
            return Err(credentials::expired());
        }
        Ok(frame)
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        let frame =
            frame.map(|frame| frame.and_then(|frame| self.looked_at(frame)).and_then(|frame| self.checked(frame)));
        if let Some(span) = &mut self.span {
            match &frame {
                Some(Ok(frame)) => frame.trailers_ref().and_then(code).into_iter().for_each(|code| span.end(code)),
                Some(Err(status)) => span.end(status.code()),
                None => {}
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
