//! Requests of services that others make here (health, reflection): looked at before they are decoded.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tonic::{Status, body::Body};

use super::framing::{Frames, put_bytes};
use crate::unknown;

/// The longest request: a name and little else.
const LIMIT: usize = 64 * 1024;
/// Levels of messages below a request: a request of reflection has an `ExtensionRequest`.
const MAX_DEPTH: usize = 1;

/// A request's body of messages that can be decoded without a thought to the stack.
pub struct Seen {
    body: Body,
    frames: Frames,
    /// Full name of the messages.
    name: &'static str,
}

// === impl Seen ===

impl Seen {
    /// The same body, of messages with this full name.
    pub fn new(body: Body, name: &'static str) -> Self {
        Self { body, frames: Frames::new(LIMIT), name }
    }

    fn look(&self, message: &[u8]) -> Result<(), Status> {
        let internal = |error: unknown::SchemaError| Status::internal(error.to_string());
        let schema = unknown::schema().map_err(internal)?;
        let id = schema.message(self.name).map_err(internal)?;
        Ok(schema.check(id, message, MAX_DEPTH)?)
    }

    /// What is whole of the messages that have arrived, frame by frame.
    fn whole(&mut self) -> Result<BytesMut, Status> {
        let mut out = BytesMut::new();
        while let Some(message) = self.frames.message()? {
            self.look(&message)?;
            put_bytes(&message, &mut out)?;
        }
        Ok(out)
    }
}

impl http_body::Body for Seen {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        loop {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        this.frames.push(data);
                        let out = this.whole()?;
                        if !out.is_empty() {
                            return Poll::Ready(Some(Ok(Frame::data(out.freeze()))));
                        }
                    }
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(this.frames.torn().map(Err)),
            }
        }
    }
}
