//! `--access-log`: one line for each RPC, when it has ended. What is in its messages is not told.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Instant,
};

use bytes::Bytes;
use http::Request;
use http_body::{Frame, SizeHint};
use tonic::{Code, Status, body::Body};

use super::Peer;
use crate::{grpc::until_end::OnEnd, logging::ACCESS, metrics::code_name};

/// What is told of a path. Clients may write what they like there.
const LONGEST_PATH: usize = 128;

/// A call that has begun. Logs it when it has ended, or is dropped before.
#[derive(Debug)]
pub(super) struct Entry {
    method: String,
    peer: Peer,
    started: Instant,
    received: Arc<AtomicU64>,
    sent: u64,
    ended: bool,
}

/// A request's body, counted.
struct Received {
    body: Body,
    bytes: Arc<AtomicU64>,
}

// === impl Entry ===

impl Entry {
    /// Begins with a call of `peer`.
    pub(super) fn begin(peer: Peer, request: Request<Body>) -> (Self, Request<Body>) {
        let received = Arc::new(AtomicU64::new(0));
        let method = request.uri().path().chars().take(LONGEST_PATH).collect();
        let entry = Self { method, peer, started: Instant::now(), received: received.clone(), sent: 0, ended: false };
        (entry, request.map(|body| Body::new(Received { body, bytes: received })))
    }
}

impl OnEnd for Entry {
    fn passed(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    fn end(&mut self, code: Code) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        // Whole microseconds: what is finer is noise.
        let duration_ms = (self.started.elapsed().as_secs_f64() * 1e6).round() / 1e3;
        tracing::info!(
            target: ACCESS,
            method = self.method,
            code = code_name(code),
            duration_ms,
            peer = %self.peer,
            request_bytes = self.received.load(Ordering::Relaxed),
            response_bytes = self.sent,
            "call ended"
        );
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

// === impl Received ===

impl http_body::Body for Received {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            self.bytes.fetch_add(length(data), Ordering::Relaxed);
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

fn length(data: &Bytes) -> u64 {
    u64::try_from(data.len()).unwrap_or(u64::MAX)
}
