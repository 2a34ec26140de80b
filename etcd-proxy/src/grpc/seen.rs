//! Requests of services that others make here (health, reflection): looked at before they are decoded.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tonic::{Status, body::Body};

use super::framing::{Frames, put_bytes};
use crate::unknown::{self, Bounds};

/// The longest request: a name and little else.
const LIMIT: usize = 64 * 1024;
/// A request of reflection has an `ExtensionRequest`, and that has none.
const BOUNDS: Bounds = Bounds { depth: 1, messages: 1000 };

/// What was wrong with a request, for whoever ends its answer: not every service says so itself.
#[derive(Clone, Debug, Default)]
pub struct Fault(Arc<OnceLock<Status>>);

/// A request's body of messages that can be decoded without a thought to the stack. Each comes in a frame of its own.
pub struct Seen {
    body: Body,
    frames: Frames,
    /// Full name of the messages.
    name: &'static str,
    fault: Fault,
}

// === impl Fault ===

impl Fault {
    /// What was wrong, if anything was.
    pub fn status(&self) -> Option<&Status> {
        self.0.get()
    }
}

// === impl Seen ===

impl Seen {
    /// The same body, of messages with this full name.
    pub fn new(body: Body, name: &'static str) -> Self {
        Self { body, frames: Frames::new(LIMIT), name, fault: Fault::default() }
    }

    /// Where it is noted what is wrong with a message.
    pub fn fault(&self) -> Fault {
        self.fault.clone()
    }

    fn look(&self, message: &[u8]) -> Result<(), Status> {
        let internal = |error: unknown::SchemaError| Status::internal(error.to_string());
        let schema = unknown::schema().map_err(internal)?;
        let id = schema.message(self.name).map_err(internal)?;
        schema.check(id, message, BOUNDS).map_err(unknown::Refusal::in_stream)
    }

    /// The frame of the next message that has arrived whole, if there is nothing wrong with it.
    fn next(&mut self) -> Option<Bytes> {
        let framed = self.frames.message().and_then(|message| {
            let Some(message) = message else { return Ok(None) };
            self.look(&message)?;
            let mut frame = BytesMut::new();
            put_bytes(&message, &mut frame)?;
            Ok(Some(frame.freeze()))
        });
        framed.unwrap_or_else(|status| {
            self.failed(status);
            None
        })
    }

    /// Notes what is wrong, after which there is nothing more.
    fn failed(&self, status: Status) {
        // The first one counts.
        let _known = self.fault.0.set(status);
    }
}

impl http_body::Body for Seen {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        loop {
            if let Some(frame) = this.next() {
                return Poll::Ready(Some(Ok(Frame::data(frame))));
            }
            if let Some(status) = this.fault.status() {
                return Poll::Ready(Some(Err(status.clone())));
            }
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.frames.push(data),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => match this.frames.torn() {
                    Some(status) => this.failed(status),
                    None => return Poll::Ready(None),
                },
            }
        }
    }
}
