//! The Watch service, one stream at a time.
//!
//! A client's stream is one upstream stream, so ids, order and progress are the upstream's. One thing has to be acted:
//! a watch below the tenant's watermark, of which the upstream knows nothing. It is created there with a start revision
//! that never comes, and cancelled towards the client with the watermark as compact revision. To the client the stream then
//! behaves as etcd's after such a cancel: the id stays taken until the client cancels it, and the stream answers no
//! progress request any more (`server/storage/mvcc/watchable_store.go`, `progressIfSync`: a watcher ahead of the store
//! is not in sync).
//!
//! So is a watch that a compaction overtakes while it catches up, of which the upstream knows nothing either and which goes on there
//! (`mvcc/watcher_group.go`, `chooseAll`, cancels those that are not in sync and want what is compacted; those that are in sync
//! get every event, and so does one whose events were read before). Both are told apart by the header, which has the revision that
//! the store was at when it read the events, of one in sync that of the events themselves (`watchable_store.go`, `syncWatchers`, `notify`).
//! Events below the watermark that were read when the watermark was there already are those of a watch that had not caught up.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use proto::etcdserverpb::{
    ResponseHeader, WatchCreateRequest, WatchRequest, WatchResponse, watch_request::RequestUnion,
};
use tokio::sync::Notify;

use super::{
    Interrupt, Rewriter, Shape, View,
    answer::mod_revision,
    typed::{decode_streamed, encode},
    wire::{self, Value},
};
use crate::{
    error::EtcdError,
    limits::Tally,
    unknown::{MessageId, Schema, SchemaError},
    upstream::is_refused_watch,
};

/// The id of a watch that did not come to be (`clientv3.InvalidWatchID`).
const NO_ID: i64 = -1;
/// A start revision that no store reaches.
const NEVER: i64 = i64::MAX;
/// Creations that are to be acted and that the upstream has not answered yet. Further ones wait for its answers.
const MAX_ACTED: usize = 256;

/// The [`Rewriter`] of one watch stream.
#[derive(Debug)]
pub struct WatchStream {
    schema: &'static Schema,
    request: MessageId,
    creates: Mutex<Creates>,
    overtaken: Mutex<Overtaken>,
    /// Tells that a creation which is acted was answered.
    answered: Arc<Notify>,
    /// The tenant's watches on all of its streams.
    watches: Arc<Tally>,
    /// Whether the stream goes by a token, which may end before it does.
    by_token: bool,
}

/// etcd answers create requests in their order, which tells which answer belongs to which.
#[derive(Debug, Default)]
struct Creates {
    sent: u64,
    answered: u64,
    /// Which of the sent ones are acted, and how.
    acted: VecDeque<(u64, Acted)>,
    /// Watches of this stream that count among the tenant's.
    counted: usize,
}

/// The watches that a compaction has overtaken.
#[derive(Debug, Default)]
struct Overtaken {
    /// Those that were cancelled towards the client, and that it has not cancelled yet. The upstream goes on with them.
    ids: HashSet<i64>,
    /// The last message was a part of one that goes on in the next.
    amid: bool,
}

/// A creation that etcd would answer otherwise than the upstream does.
#[derive(Clone, Copy, Debug)]
enum Acted {
    /// It lies below this watermark.
    Below(i64),
    /// The tenant has as many watches as it may have.
    Refused,
}

/// What a response says of its watch.
#[derive(Clone, Copy, Debug, Default)]
struct Outline<'a> {
    header: &'a [u8],
    watch_id: i64,
    created: bool,
    canceled: bool,
    compact_revision: u64,
    cancel_reason: &'a [u8],
    fragment: bool,
    /// Events come in the order of their revisions.
    first_event: Option<&'a [u8]>,
}

// === impl WatchStream ===

impl WatchStream {
    /// Full name of its requests.
    pub(crate) const REQUEST: &'static str = "etcdserverpb.WatchRequest";

    /// The rewriter of a new stream, whose watches count among `watches`.
    ///
    /// # Errors
    /// When the schema lacks the request.
    pub fn new(schema: &'static Schema, watches: Arc<Tally>) -> Result<Self, SchemaError> {
        let request = schema.message(Self::REQUEST)?;
        Ok(Self {
            schema,
            request,
            creates: Mutex::default(),
            overtaken: Mutex::default(),
            answered: Arc::default(),
            watches,
            by_token: false,
        })
    }

    /// The same for a stream that goes by a token, which may end before it does.
    #[must_use]
    pub fn by_token(mut self, by_token: bool) -> Self {
        self.by_token = by_token;
        self
    }

    fn create(&self, view: &View<'_>, create: &mut WatchCreateRequest) -> Result<(), Interrupt> {
        // An empty key means the smallest key there is.
        let key: &[u8] = if create.key.is_empty() { b"\0" } else { &create.key };
        create.key = view.prefix.key(key);
        create.range_end = view.prefix.range_end(&create.range_end);
        let below = if create.start_revision > 0 {
            let watermark = view.watermark()?;
            (create.start_revision < watermark).then_some(watermark)
        } else {
            None
        };
        let mut creates = self.creates.lock();
        if creates.acted.len() >= MAX_ACTED {
            return Err(Interrupt::Unanswered(self.answered.clone()));
        }
        creates.sent += 1;
        let acted = if self.watches.add() {
            creates.counted += 1;
            below.map(Acted::Below)
        } else {
            Some(Acted::Refused)
        };
        if let Some(acted) = acted {
            match acted {
                Acted::Below(_) => create.start_revision = NEVER,
                // An empty range, which the upstream refuses in its turn.
                Acted::Refused => create.range_end = create.key.clone(),
            }
            let number = creates.sent;
            creates.acted.push_back((number, acted));
        }
        Ok(())
    }

    /// Notes an answer to a create request. Returns how the request is acted.
    fn answered(&self) -> Option<Acted> {
        let mut creates = self.creates.lock();
        creates.answered += 1;
        let answered = creates.answered;
        let (_, acted) = creates.acted.pop_front_if(|(number, _)| *number == answered)?;
        self.answered.notify_one();
        Some(acted)
    }

    /// Whether a response is kept from the client, of whose watch a compaction has overtaken. The first one is exchanged for the
    /// cancel, which is appended to `out`.
    fn is_overtaken(&self, view: &View<'_>, outline: &Outline<'_>, out: &mut BytesMut) -> Result<bool, Interrupt> {
        let mut overtaken = self.overtaken.lock();
        let Outline { watch_id, canceled, compact_revision, .. } = *outline;
        if overtaken.ids.contains(&watch_id) {
            // The client has cancelled it. That the upstream has compacted it, too, is no news.
            let over = canceled && compact_revision == 0;
            if over {
                overtaken.ids.remove(&watch_id);
            }
            return Ok(!over);
        }
        if watch_id == NO_ID && !canceled {
            // Progress of all watches, while one makes none.
            return Ok(!overtaken.ids.is_empty());
        }
        // What is begun is passed on whole.
        if overtaken.amid {
            return Ok(false);
        }
        let Some(watermark) = view.watermark else { return Ok(false) };
        if !outline.is_behind(watermark, view.compacted_at)? {
            return Ok(false);
        }
        encode(&compacted(outline.header()?, watch_id, watermark), out)?;
        overtaken.ids.insert(watch_id);
        Ok(true)
    }

    /// A watch that counted is gone.
    fn gone(&self) {
        let mut creates = self.creates.lock();
        if let Some(fewer) = creates.counted.checked_sub(1) {
            creates.counted = fewer;
            self.watches.gone(1);
        }
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.watches.gone(self.creates.get_mut().counted);
    }
}

impl Rewriter for WatchStream {
    fn request(&self, view: &View<'_>, message: &Bytes, out: &mut BytesMut) -> Result<(), Interrupt> {
        let mut request: WatchRequest = decode_streamed(self.schema, self.request, message)?;
        if let Some(RequestUnion::CreateRequest(create)) = &mut request.request_union {
            self.create(view, create)?;
        }
        encode(&request, out)
    }

    fn response(&self, view: &View<'_>, message: &Bytes, out: &mut BytesMut) -> Result<(), Interrupt> {
        let outline = Outline::of(message)?;
        let Outline { created, canceled, compact_revision, fragment, .. } = outline;
        if self.by_token && created && canceled {
            // A watch that is refused not for what it asks but for when: on another stream it may be had.
            if str::from_utf8(outline.cancel_reason).is_ok_and(is_refused_watch) {
                return Err(Interrupt::LoginEnded);
            }
        }
        if !created && self.is_overtaken(view, &outline, out)? {
            return Ok(());
        }
        let before = out.len();
        Shape::Watch.rewrite(view, message, out)?;
        self.overtaken.lock().amid = fragment;
        let acted = if created { self.answered() } else { None };
        match acted {
            Some(Acted::Refused) => {
                out.truncate(before);
                encode(&denied(outline.header()?), out)
            }
            Some(Acted::Below(watermark)) if !canceled => {
                encode(&compacted(outline.header()?, outline.watch_id, watermark), out)
            }
            // A watch that etcd ends because of a compaction keeps its id there, and its place here, until the client cancels it or
            // the stream ends (`mvcc/watcher.go`, `Cancel`).
            Some(Acted::Below(_)) | None if canceled && compact_revision == 0 => {
                self.gone();
                Ok(())
            }
            Some(Acted::Below(_)) | None => Ok(()),
        }
    }
}

// === impl Outline ===

impl<'a> Outline<'a> {
    fn of(mut message: &'a [u8]) -> Result<Self, Interrupt> {
        let mut outline = Self::default();
        while let Some(field) = wire::next(&mut message)? {
            match (field.number, field.value) {
                (1, Value::Bytes(header)) => outline.header = header,
                (2, Value::Varint(id)) => outline.watch_id = id.cast_signed(),
                (3, Value::Varint(created)) => outline.created = created != 0,
                (4, Value::Varint(canceled)) => outline.canceled = canceled != 0,
                (5, Value::Varint(revision)) => outline.compact_revision = revision,
                (6, Value::Bytes(reason)) => outline.cancel_reason = reason,
                (7, Value::Varint(fragment)) => outline.fragment = fragment != 0,
                (11, Value::Bytes(event)) => {
                    outline.first_event.get_or_insert(event);
                }
                _ => {}
            }
        }
        Ok(outline)
    }

    fn header(&self) -> Result<ResponseHeader, Interrupt> {
        let number = |field| wire::number(self.header, field);
        Ok(ResponseHeader {
            cluster_id: number(1)?,
            member_id: number(2)?,
            revision: number(3)?.cast_signed(),
            raft_term: number(4)?,
        })
    }

    /// Whether its events are of revisions below a watermark that was there since `since`, when they were read.
    fn is_behind(&self, watermark: i64, since: i64) -> Result<bool, Interrupt> {
        const REVISION: u64 = 3;
        let Some(event) = self.first_event else { return Ok(false) };
        Ok(mod_revision(event)? < watermark && wire::number(self.header, REVISION)?.cast_signed() >= since)
    }
}

/// etcd's answer to a creation that it denies (`v3rpc/watch.go`): with no id, created and cancelled at once. Without a reason
/// clients would try again for ever.
fn denied(header: ResponseHeader) -> WatchResponse {
    WatchResponse {
        header: Some(header),
        watch_id: NO_ID,
        created: true,
        canceled: true,
        cancel_reason: EtcdError::TooManyRequests.text().to_owned(),
        ..Default::default()
    }
}

/// The cancel that etcd sends for a watch below its last compaction: with `compact_revision`, without a reason, and with a
/// header that has no revision.
fn compacted(header: ResponseHeader, watch_id: i64, watermark: i64) -> WatchResponse {
    WatchResponse {
        header: Some(ResponseHeader { revision: 0, ..header }),
        watch_id,
        canceled: true,
        compact_revision: watermark,
        ..Default::default()
    }
}
