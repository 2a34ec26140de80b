//! One watch of etcd: a stream of its own, read by whoever reads the events. Nobody reads ahead; a reader that stands still
//! fills its stream's window and then etcd keeps the events.
//!
//! The stream is not renewed inside. Its end is an error, and the reader starts again after the last revision it saw.

use std::{collections::VecDeque, sync::Arc};

use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use proto::{
    etcdserverpb::{
        WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse, watch_client::WatchClient,
        watch_request::RequestUnion,
    },
    mvccpb,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming, metadata::MetadataValue, transport::Channel};

use super::{MAX_MESSAGE, Root, error::CallError};
use crate::storage::{Event, Revision, StorageError, Watch};

/// What an open stream of etcd consists of.
pub(super) struct Opened {
    requests: Requests,
    answers: Streaming<WatchResponse>,
    first: WatchResponse,
}

/// The way to etcd, which the reader and whoever asks for progress share. Emptied when the reader goes: what is held
/// beyond that does not keep the watch alive in etcd.
#[derive(Clone)]
struct Requests(Arc<Mutex<Option<mpsc::Sender<WatchRequest>>>>);

struct Reader {
    root: Root,
    requests: Requests,
    answers: Streaming<WatchResponse>,
    events: VecDeque<mvccpb::Event>,
    ended: bool,
}

/// Opens a stream with one watch, and waits until etcd has answered.
pub(super) async fn open(channel: Channel, create: WatchCreateRequest) -> Result<Opened, Status> {
    // Room for the create request and one of progress; a second one of progress would ask for the same again.
    let (sender, receiver) = mpsc::channel(2);
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    sender.try_send(create).map_err(|error| Status::internal(error.to_string()))?;

    let mut request = Request::new(ReceiverStream::new(receiver));
    // A member cut off from its leader ends the stream, so that another can be asked (`WithRequireLeader`).
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    let mut client = WatchClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
    let mut answers = client.watch(request).await?.into_inner();
    let first = answers.message().await?.ok_or_else(|| Status::unavailable("the stream ended at once"))?;
    Ok(Opened { requests: Requests(Arc::new(Mutex::new(Some(sender)))), answers, first })
}

impl Opened {
    /// The watch, if etcd made one.
    pub(super) fn into_watch(self, root: Root) -> Result<Watch, StorageError> {
        let Self { requests, answers, first } = self;
        if first.canceled || !first.created {
            return Err(CallError::from_cancel(first.compact_revision, &first.cancel_reason).into_storage());
        }
        let asked = requests.clone();
        let reader = Reader { root, requests, answers, events: first.events.into(), ended: false };
        let events = stream::unfold(reader, async |mut reader| {
            let next = reader.next().await?;
            Some((next, reader))
        });
        Ok(Watch { events: events.boxed(), progress: Box::new(move || asked.progress()) })
    }
}

// === impl Requests ===

impl Requests {
    fn progress(&self) {
        if let Some(sender) = self.0.lock().as_ref() {
            let request = WatchRequest { request_union: Some(RequestUnion::ProgressRequest(WatchProgressRequest {})) };
            // Full: one is on its way already. Closed: the stream's end is about to be read.
            let _already_asked = sender.try_send(request);
        }
    }
}

// === impl Reader ===

impl Reader {
    async fn next(&mut self) -> Option<Result<Event, StorageError>> {
        if self.ended {
            return None;
        }
        let next = self.read().await;
        self.ended = next.is_err();
        Some(next)
    }

    async fn read(&mut self) -> Result<Event, StorageError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return self.root.event(event);
            }
            let answer = match self.answers.message().await {
                Ok(Some(answer)) => answer,
                Ok(None) => return Err(StorageError::Unavailable("etcd ended the stream of the watch".into())),
                Err(status) => return Err(CallError::from_status(&status).into_storage()),
            };
            if answer.canceled || answer.compact_revision != 0 {
                return Err(CallError::from_cancel(answer.compact_revision, &answer.cancel_reason).into_storage());
            }
            // Parts of an answer that was too large for one message ("fragments") are told one after the other like
            // answers of their own: a watch's events are single ones anyway.
            let notice = answer.events.is_empty() && !answer.created && !answer.fragment;
            self.events = answer.events.into();
            if notice && let Some(revision) = answer.header.and_then(|header| u64::try_from(header.revision).ok()) {
                return Ok(Event::Progress(Revision(revision)));
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.requests.0.lock().take();
    }
}

// === impl Root: events ===

impl Root {
    fn event(&self, event: mvccpb::Event) -> Result<Event, StorageError> {
        let deleted = event.r#type == i32::from(mvccpb::event::EventType::Delete);
        let Some(kv) = event.kv else {
            return Err(StorageError::Internal("etcd sent an event without a key".into()));
        };
        let created = !deleted && kv.create_revision == kv.mod_revision;
        if !created && event.prev_kv.is_none() {
            // The state before was compacted away. Told as a creation, it would make readers miss what is gone
            // (kubernetes/kubernetes#76675).
            return Err(StorageError::Internal(format!(
                "etcd event received with PrevKv=nil (key={:?}, modRevision={}, type={})",
                String::from_utf8_lossy(&kv.key),
                kv.mod_revision,
                if deleted { "DELETE" } else { "PUT" },
            )));
        }
        let previous = event.prev_kv.filter(|_| !created).map(|previous| self.key_value(previous)).transpose()?;
        match (deleted, previous) {
            (true, Some(previous)) => Ok(Event::Deleted { previous, revision: self.revision(kv.mod_revision)? }),
            (_, previous) => Ok(Event::Put { kv: self.key_value(kv)?, previous }),
        }
    }
}
