//! Unary calls: one message each way.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Full};
use tonic::{Code, Status};
use tower::Service as _;

use super::{
    UpstreamHeaders,
    framing::Frames,
    headers::{check_response, status_of, trailers},
};
use crate::upstream::{UpstreamBody, UpstreamChannel};

/// The body of a unary response: a frame and the trailers.
#[derive(Debug)]
pub struct UnaryBody {
    message: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

/// Reads the one message of a unary request.
///
/// # Errors
/// As grpc-go answers: for messages that are too long, and for bodies that are no message.
pub async fn read_message<B>(body: &mut B, mut frames: Frames) -> Result<Bytes, Status>
where
    B: Body<Data = Bytes> + Unpin,
{
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Status::cancelled("context canceled"))?;
        let Ok(data) = frame.into_data() else { continue };
        frames.push(data);
        if let Some(message) = frames.message()? {
            return Ok(message);
        }
    }
    Err(frames.torn().unwrap_or_else(|| Status::unknown("EOF")))
}

/// Sends one frame upstream and waits for the answer, which must end with status OK.
///
/// # Errors
/// The upstream's status, or that of the connection.
pub async fn call(
    mut channel: UpstreamChannel,
    path: &'static str,
    headers: UpstreamHeaders,
    frame: Bytes,
) -> Result<Bytes, Status> {
    let request = headers.request(path, tonic::body::Body::new(Full::new(frame)));
    read_answer(channel.call(request).await?).await
}

/// Reads the one message of an upstream's answer, which must end with status OK.
///
/// # Errors
/// The upstream's status, or that of the connection.
pub async fn read_answer(answer: http::Response<UpstreamBody>) -> Result<Bytes, Status> {
    let (parts, mut body) = answer.into_parts();
    check_response(parts.status, &parts.headers)?;
    let mut frames = Frames::trusted();
    let mut message = None;
    let mut status = None;
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => {
                frames.push(data);
                while let Some(next) = frames.message()? {
                    message = Some(next);
                }
            }
            Err(frame) => status = frame.trailers_ref().and_then(status_of),
        }
    }
    let status = status
        .or_else(|| status_of(&parts.headers))
        .ok_or_else(|| Status::unavailable("etcd-proxy: the upstream's answer has no status"))?;
    match (status.code(), message) {
        (Code::Ok, Some(message)) => Ok(message),
        (Code::Ok, None) => Err(Status::internal("etcd-proxy: the upstream's answer has no message")),
        _ => Err(status),
    }
}

// === impl UnaryBody ===

impl UnaryBody {
    /// The body with this frame and status OK.
    pub fn new(frame: BytesMut) -> Self {
        let ok = trailers(&Status::new(Code::Ok, ""));
        Self { message: Some(frame.freeze()), trailers: Some(ok) }
    }
}

impl Body for UnaryBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = match self.message.take() {
            Some(message) => Some(Frame::data(message)),
            None => self.trailers.take().map(Frame::trailers),
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_none() && self.trailers.is_none()
    }
}
