//! A watch stream in the model: the answers that a client must get, and may get (`server/etcdserver/api/v3rpc/watch.go`,
//! `server/storage/mvcc/watcher.go`).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proto::{
    etcdserverpb::{WatchCreateRequest, WatchResponse},
    mvccpb::{Event, KeyValue, event::EventType},
};

use crate::store::{Change, Store, contains};

const NO_ID: i64 = -1;
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const EMPTY_RANGE: &str = "mvcc: watcher range is empty";
const DUPLICATE_ID: &str = "mvcc: duplicate watch ID provided on the WatchStream";

/// A stream with its watches.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    watches: BTreeMap<i64, Watch>,
    next_id: i64,
    /// Answers that are due, in their order.
    due: Vec<Due>,
    /// Watches that were cancelled while word of their progress may have been under way.
    late: BTreeSet<i64>,
    /// Watches that were cancelled before they had caught up: word that a compaction overtook them may have been under way.
    overtaken: BTreeMap<i64, Watch>,
}

#[derive(Debug)]
struct Watch {
    create: WatchCreateRequest,
    /// The first revision whose events it gets.
    start: i64,
    /// How many of its events have come.
    delivered: usize,
    /// The store's compaction when a start below it was refused. The id stays taken.
    compacted: Option<i64>,
    /// Whether the answer to that has come.
    told: bool,
    /// Whether it began in the past, so that nobody knows when it has caught up.
    catches_up: bool,
}

/// An answer to a request on the stream.
#[derive(Debug, PartialEq)]
enum Due {
    Created(i64),
    Refused(&'static str),
    Canceled(i64),
}

// === impl Stream ===

impl Stream {
    /// A create request is sent while the store is as it is.
    pub(crate) fn create(&mut self, store: &Store, create: &WatchCreateRequest) {
        let mut create = create.clone();
        if create.key.is_empty() {
            create.key = Bytes::from_static(b"\0");
        }
        if create.start_revision < 0 {
            return self.due.push(Due::Refused(COMPACTED));
        }
        let end = &create.range_end;
        if !end.is_empty() && end != "\0" && create.key >= *end {
            return self.due.push(Due::Refused(EMPTY_RANGE));
        }
        let id = match create.watch_id {
            0 => {
                while self.watches.contains_key(&self.next_id) {
                    self.next_id += 1;
                }
                self.next_id += 1;
                self.next_id - 1
            }
            id if self.watches.contains_key(&id) => return self.due.push(Due::Refused(DUPLICATE_ID)),
            id => id,
        };
        let now = store.revision;
        let start = if create.start_revision == 0 { now + 1 } else { create.start_revision };
        let compacted = (start < store.compacted).then_some(store.compacted);
        let catches_up = start <= now;
        self.watches.insert(id, Watch { create, start, delivered: 0, compacted, told: false, catches_up });
        self.due.push(Due::Created(id));
    }

    /// A cancel request is sent. Everything that was due before must have come.
    pub(crate) fn cancel(&mut self, id: i64) {
        if let Some(watch) = self.watches.remove(&id) {
            self.due.push(Due::Canceled(id));
            if watch.create.progress_notify {
                self.late.insert(id);
            }
            if watch.catches_up {
                self.overtaken.insert(id, watch);
            }
        }
    }

    /// The id of one of the watches.
    pub(crate) fn id(&self, index: usize) -> Option<i64> {
        self.watches.keys().nth(index % self.watches.len().max(1)).copied()
    }

    /// Whether a request has yet to be answered.
    pub(crate) fn awaits_answers(&self) -> bool {
        !self.due.is_empty()
    }

    /// Whether anything has yet to come.
    pub(crate) fn outstanding(&self, store: &Store) -> bool {
        let misses = |watch: &Watch| match watch.compacted {
            Some(_) => !watch.told,
            None => watch.delivered < watch.events(store).len(),
        };
        !self.due.is_empty() || self.watches.values().any(misses)
    }

    /// Whether a request for progress is answered, at once or when all have caught up.
    pub(crate) fn answers_progress(&self, store: &Store) -> bool {
        let synced = |watch: &Watch| watch.compacted.is_none() && watch.create.start_revision <= store.revision;
        !self.watches.is_empty() && self.watches.values().all(synced)
    }

    /// Whether every watch is known to have caught up from the start.
    pub(crate) fn prompt(&self) -> bool {
        !self.watches.values().any(|watch| watch.catches_up)
    }

    /// Holds an answer against what the store says. True when it was one to a request for progress.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn answer(&mut self, store: &Store, answer: &WatchResponse) -> Result<bool, String> {
        let revision = answer.header.ok_or("no header")?.revision;
        if answer.created || (answer.canceled && answer.compact_revision == 0) {
            self.control(store, answer, revision)?;
            return Ok(false);
        }
        if revision > store.revision {
            return Err(format!("of revision {revision}, which is ahead of {}: {answer:?}", store.revision));
        }
        if answer.watch_id == NO_ID {
            if !answer.events.is_empty() || answer.canceled {
                return Err(format!("events for no watch: {answer:?}"));
            }
            for (id, watch) in &self.watches {
                watch.complete(store, revision).map_err(|wrong| format!("progress of watch {id}: {wrong}"))?;
            }
            return Ok(true);
        }
        if answer.events.is_empty() && !answer.canceled && self.late.contains(&answer.watch_id) {
            return Ok(false);
        }
        if answer.canceled
            && let Some(gone) = self.overtaken.get_mut(&answer.watch_id)
            && gone.refuse(store, answer, revision).is_ok()
        {
            return Ok(false);
        }
        let watch = self.watches.get_mut(&answer.watch_id).ok_or_else(|| format!("no such watch: {answer:?}"))?;
        if answer.canceled {
            return watch.refuse(store, answer, revision).map(|()| false);
        }
        if let Some(compacted) = watch.compacted {
            return Err(format!("of a watch that begins below the compaction at {compacted}: {answer:?}"));
        }
        watch.deliver(store, &answer.events)?;
        watch.complete(store, revision)?;
        if !answer.cancel_reason.is_empty() || answer.fragment {
            return Err(format!("not as asked for: {answer:?}"));
        }
        Ok(false)
    }

    fn control(&mut self, store: &Store, answer: &WatchResponse, revision: i64) -> Result<(), String> {
        if self.due.is_empty() {
            return Err(format!("nothing was asked: {answer:?}"));
        }
        let due = self.due.remove(0);
        let (id, created, canceled, reason) = match due {
            Due::Created(id) => (id, true, false, ""),
            Due::Refused(reason) => (NO_ID, true, true, reason),
            Due::Canceled(id) => (id, false, true, ""),
        };
        let expected = WatchResponse {
            header: answer.header,
            watch_id: id,
            created,
            canceled,
            cancel_reason: reason.to_owned(),
            ..Default::default()
        };
        if *answer != expected || revision != store.revision {
            return Err(format!("{answer:?} where {expected:?} of revision {} is due", store.revision));
        }
        Ok(())
    }
}

// === impl Watch ===

impl Watch {
    /// The changes that it is told, by now.
    fn events<'a>(&self, store: &'a Store) -> Vec<&'a Change> {
        let filtered = |change: &Change| {
            let filter = i32::from(change.kv.is_none());
            self.create.filters.contains(&filter)
        };
        let (key, end) = (&self.create.key, &self.create.range_end);
        let mine =
            |change: &&Change| change.revision >= self.start && contains(key, end, &change.key) && !filtered(change);
        store.history.iter().filter(mine).collect()
    }

    /// The cancel of a watch that begins below the compaction.
    fn refuse(&mut self, store: &Store, answer: &WatchResponse, revision: i64) -> Result<(), String> {
        // One that had not caught up when the store was compacted.
        let overtaken = self.catches_up && self.delivered == 0 && self.start < store.compacted;
        // Where both the tenant and the shared etcd have compacted, the proxy tells of the tenant's compaction, be the other
        // the further one. Who begins there again is told of that.
        let possible = self.start < answer.compact_revision && answer.compact_revision <= store.compacted;
        if !possible || (self.compacted.is_none() && !overtaken) {
            return Err(format!("cancelled at compaction {}: {answer:?}", store.compacted));
        }
        let compacted = answer.compact_revision;
        let expected = WatchResponse {
            header: answer.header,
            watch_id: answer.watch_id,
            canceled: true,
            compact_revision: compacted,
            ..Default::default()
        };
        if self.told || *answer != expected || revision != 0 {
            return Err(format!("{answer:?} where {expected:?} without a revision is due"));
        }
        self.compacted = Some(compacted);
        self.told = true;
        Ok(())
    }

    /// The next events, which must be whole revisions.
    fn deliver(&mut self, store: &Store, events: &[Event]) -> Result<(), String> {
        let expected = self.events(store);
        for event in events {
            let Some(change) = expected.get(self.delivered) else {
                return Err(format!("more than there is: {event:?}"));
            };
            self.matches(store, change, event)?;
            self.delivered += 1;
        }
        let last = self.delivered.checked_sub(1).and_then(|last| expected.get(last));
        let next = expected.get(self.delivered);
        if let (Some(last), Some(next)) = (last, next)
            && last.revision == next.revision
            && !events.is_empty()
        {
            return Err(format!("revision {} in pieces", last.revision));
        }
        Ok(())
    }

    fn matches(&self, store: &Store, change: &Change, event: &Event) -> Result<(), String> {
        let kv = change.kv.clone().unwrap_or_else(|| KeyValue {
            key: change.key.clone(),
            mod_revision: change.revision,
            ..Default::default()
        });
        let r#type = if change.kv.is_some() { EventType::Put } else { EventType::Delete };
        let created = change.kv.is_some() && kv.create_revision == kv.mod_revision;
        let before = change.revision - 1;
        let prev_kv = match self.create.prev_kv && !created {
            true => store.get(&change.key, before),
            false => None,
        };
        let expected = Event { r#type: r#type as i32, kv: Some(kv), prev_kv };
        // A pair from before a compaction may be gone.
        let gone = before < store.compacted && event.prev_kv.is_none();
        if *event == expected || (gone && Event { prev_kv: None, ..expected.clone() } == *event) {
            Ok(())
        } else {
            Err(format!("{event:?} where {expected:?} is due"))
        }
    }

    /// Whether everything up to a revision has come.
    fn complete(&self, store: &Store, revision: i64) -> Result<(), String> {
        if self.compacted.is_some() {
            return Ok(());
        }
        match self.events(store).get(self.delivered) {
            Some(missing) if missing.revision <= revision => {
                Err(format!("said to be at {revision}, but {missing:?} has not come"))
            }
            _ => Ok(()),
        }
    }
}
