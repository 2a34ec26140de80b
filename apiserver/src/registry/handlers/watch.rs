//! Watches: a stream of JSON lines (k8s.io/apiserver `pkg/endpoints/handlers/watch.go`).
//!
//! Each is followed by a task of its own, which hands its lines to the answer's body through a short queue. So a watch ends
//! in time, and when the server goes down, also when its client does not read; and a client that stands still loses its
//! watch before what it does not read fills the way that all watches share.

use std::{
    collections::BTreeMap,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::{
    HeaderValue, Response,
    header::{CONTENT_ENCODING, CONTENT_TYPE, VARY},
};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time::{Instant, sleep, sleep_until},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{Reply, Request, ResourceHandler, encode::Encoder, list::list_options};
use crate::{
    codec,
    endpoint::{BoxError, Delivery, response},
    meta::ObjectMeta,
    negotiate::OutputFormat,
    registry::{
        store::{Events, WatchEvent},
        strategy::Strategy,
    },
    storage::Revision,
};

/// Events that are there already are sent together, up to this many bytes: many small frames are dear to HTTP/2 clients.
const CHUNK: usize = 32 * 1024;

/// How many chunks may wait for the client. Each has less than [`CHUNK`] bytes and one event more, so this bounds bytes too.
const QUEUE: usize = 2;

/// A client that takes nothing for this long, although there is something, loses its watch: it comes back with the resource
/// version that it has. Kubernetes is less patient once a watch's buffer is full
/// (k8s.io/apiserver `pkg/storage/cacher/time_budget.go`), but what lies in buffers of the connection is on top here.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the client may take for what is on its way when its watch ends.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The longest that a watch may be asked to last: ten years.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The annotation of the bookmark that ends what was there first.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Events on their way to bytes.
struct Lines<S: Strategy> {
    events: Events<S::Object>,
    encoder: Encoder<S>,
    /// Whether each chunk is a gzip member.
    compressed: bool,
    ended: bool,
}

/// When a watch ends by itself.
struct End {
    deadline: Instant,
    shutdown: CancellationToken,
    delivery: Delivery,
    /// Who watches what, for the log.
    user: String,
    path: String,
}

// === impl ResourceHandler ===

impl<S: Strategy> ResourceHandler<S> {
    pub(super) async fn watch(&self, request: &Request) -> Reply {
        OutputFormat::negotiate(&request.headers, request.query())?;
        let options = list_options(request)?;
        let format = OutputFormat::negotiate_stream(&request.headers, request.query())?;
        let encoder = Encoder::new(self, request, format.transform)?;

        let bound = self.store.environment().min_request_timeout;
        let timeout = match options.timeout_seconds.and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0) {
            Some(seconds) => Duration::from_secs(seconds).min(LONGEST),
            None => bound.min(LONGEST).mul_f64(1.0 + rand::random::<f64>()),
        };
        let context = &request.context;
        let deadline = Instant::now() + timeout;
        let events = self.store.watch(&context.info.namespace, &options, deadline, context.shutdown.clone()).await?;

        let is_watch_list = options.send_initial_events == Some(true) && options.allow_watch_bookmarks;
        let compressed = is_watch_list && response::accepts_gzip(&request.headers);
        let lines = Lines { events, encoder, compressed, ended: false };
        let end = End {
            deadline,
            shutdown: context.shutdown.clone(),
            delivery: context.delivery.clone(),
            user: context.user.name.clone(),
            path: context.info.path.clone(),
        };
        let (sender, receiver) = mpsc::channel(QUEUE);
        self.store.environment().tasks.spawn(lines.follow(sender, end).in_current_span());
        let chunks = ReceiverStream::new(receiver);
        let body = StreamBody::new(chunks.map(|chunk| Ok::<_, BoxError>(Frame::data(chunk))));
        let mut answer = Response::new(BodyExt::boxed_unsync(body));
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.media.as_str()));
        if compressed {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        Ok(answer)
    }
}

// === impl Lines ===

impl<S: Strategy> Lines<S> {
    /// Hands out lines until the watch ends, the client is gone, or does not read.
    async fn follow(mut self, chunks: mpsc::Sender<Bytes>, end: End) {
        let is_over = async {
            tokio::select! { () = sleep_until(end.deadline) => {}, () = end.shutdown.cancelled() => {} }
        };
        let (mut is_over, mut is_gone) = (pin!(is_over), pin!(chunks.closed()));
        loop {
            let chunk = tokio::select! {
                biased;
                () = is_gone.as_mut() => return,
                () = is_over.as_mut() => break,
                chunk = self.next() => chunk,
            };
            let Some(chunk) = chunk else { break };
            let chunk = match chunks.try_send(chunk) {
                Ok(()) => continue,
                Err(TrySendError::Closed(_)) => return,
                Err(TrySendError::Full(chunk)) => chunk,
            };
            tokio::select! {
                biased;
                sent = chunks.send(chunk) => if sent.is_err() { return },
                () = is_over.as_mut() => break,
                () = sleep(PATIENCE) => {
                    tracing::info!(user = end.user, path = end.path, patience = ?PATIENCE, "a watch ends because its client does not read");
                    return end.delivery.end_at(Instant::now());
                }
            }
        }
        end.delivery.end_at(Instant::now() + LAST_WORDS);
    }

    fn line(&mut self, event: WatchEvent<S::Object>) -> Vec<u8> {
        let (event_type, object) = match event {
            WatchEvent::Added(object) => ("ADDED", self.encoder.object_or_plain(&object)),
            WatchEvent::Modified(object) => ("MODIFIED", self.encoder.object_or_plain(&object)),
            WatchEvent::Deleted(object) => ("DELETED", self.encoder.object_or_plain(&object)),
            WatchEvent::Bookmark { revision, initial_events_end } => {
                ("BOOKMARK", Ok(self.bookmark(revision, initial_events_end)))
            }
            WatchEvent::Error(status) => ("ERROR", Err(status)),
        };
        match object {
            Ok(json) => {
                self.encoder.without_headings();
                codec::watch_event(event_type, &json)
            }
            Err(status) => {
                self.ended = true;
                codec::watch_event("ERROR", &status.to_json())
            }
        }
    }

    fn bookmark(&self, revision: Revision, initial_events_end: bool) -> Vec<u8> {
        let annotations = BTreeMap::from([(INITIAL_EVENTS_END.to_owned(), "true".to_owned())]);
        let meta = ObjectMeta {
            resource_version: Some(revision.0.to_string()),
            annotations: initial_events_end.then_some(annotations),
            ..ObjectMeta::default()
        };
        self.encoder.bare(&meta)
    }
}

impl<S: Strategy> Stream for Lines<S> {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let this = self.get_mut();
        let mut chunk = Vec::new();
        while !this.ended && chunk.len() < CHUNK {
            match this.events.poll_next_unpin(context) {
                Poll::Ready(Some(event)) => {
                    let line = this.line(event);
                    if chunk.is_empty() { chunk = line } else { chunk.extend_from_slice(&line) }
                }
                Poll::Ready(None) => this.ended = true,
                Poll::Pending if chunk.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        if chunk.is_empty() {
            return Poll::Ready(None);
        }
        let chunk = if this.compressed { response::gzip(&chunk).unwrap_or_default() } else { chunk };
        Poll::Ready(Some(chunk.into()))
    }
}
