//! A store in the process's memory: for development, tests, and data that may go with the process.
//!
//! It keeps the same contract as etcd: every write has a revision, the past can be read and watched until it is compacted,
//! keys with a time to live go by themselves. What it keeps of the past is bounded; beyond the bound it compacts by itself,
//! oldest first. A watch whose reader falls behind by more than its queue takes is ended, and holds up nobody.

mod mvcc;
mod queue;

use std::{
    collections::{BTreeMap, HashMap},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use parking_lot::RwLock;
use tokio::{sync::Notify, time::Instant};

use self::{
    mvcc::{Change, HistoryLimit, Mvcc, Outcome},
    queue::{Item, Queue},
};
use super::{
    Event, Expected, Freshness, Got, ListRange, Page, Revision, Storage, StorageError, Watch, WatchRange, Written, keys,
};

/// The bounds of a [`Memory`] store.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// How many changes are kept for watches and reads of the past.
    pub history_changes: usize,
    /// How many bytes of keys and values (the new and the replaced ones) those changes may hold.
    pub history_bytes: usize,
    /// By how many changes the reader of a watch may be behind before the watch is ended with
    /// [`StorageError::SlowReader`].
    pub watch_queue: usize,
    /// The largest value, in bytes. The default is that of etcd's `--max-request-bytes`.
    pub max_value_bytes: usize,
}

/// A store in memory. Clones share it.
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Shared>,
}

struct Shared {
    options: MemoryOptions,
    state: RwLock<State>,
    /// Wakes the task that ends keys when an earlier end than before is due.
    sooner: Notify,
}

struct State {
    mvcc: Mvcc,
    watchers: HashMap<u64, Watcher>,
    next_watcher: u64,
    expiries: Expiries,
}

struct Watcher {
    range: OwnedRange,
    after: u64,
    queue: Arc<Queue>,
}

enum OwnedRange {
    Key(String),
    Prefix(String),
}

/// When keys end: the key written at that revision, if it was not written again.
#[derive(Default)]
struct Expiries {
    due: BTreeMap<(Instant, u64), Arc<str>>,
    task_runs: bool,
}

/// The stream of a watch.
struct Events {
    shared: Weak<Shared>,
    watcher: u64,
    queue: Arc<Queue>,
    told: u64,
    ended: bool,
}

// === impl MemoryOptions ===

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            history_changes: 100_000,
            history_bytes: 64 << 20,
            watch_queue: 10_000,
            max_value_bytes: 3 << 19, // 1.5 MiB
        }
    }
}

// === impl Memory ===

impl Default for Memory {
    fn default() -> Self {
        Self::new(MemoryOptions::default())
    }
}

impl Memory {
    /// An empty store.
    #[must_use]
    pub fn new(options: MemoryOptions) -> Self {
        let limit = HistoryLimit { changes: options.history_changes.max(1), bytes: options.history_bytes };
        let state =
            State { mvcc: Mvcc::new(limit), watchers: HashMap::new(), next_watcher: 0, expiries: Expiries::default() };
        Self { shared: Arc::new(Shared { options, state: RwLock::new(state), sooner: Notify::new() }) }
    }
}

#[async_trait]
impl Storage for Memory {
    async fn get(&self, key: &str, at: Freshness) -> Result<Got, StorageError> {
        keys::check_key(key)?;
        let (kv, revision) = self.shared.state.read().mvcc.get(key, at)?;
        Ok(Got { kv, revision })
    }

    async fn list(&self, range: ListRange<'_>) -> Result<Page, StorageError> {
        keys::check_list(&range)?;
        self.shared.state.read().mvcc.list(&range)
    }

    async fn put(
        &self,
        key: &str,
        expected: Expected,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Written, StorageError> {
        keys::check_key(key)?;
        let limit = self.shared.options.max_value_bytes;
        if value.len() > limit {
            return Err(StorageError::TooLarge(format!("{} bytes, at most {limit} are taken", value.len())));
        }
        let written = {
            let mut state = self.shared.state.write();
            let written = state.write(key, expected, Some(value));
            if let (Written::Done(revision), Some(ttl)) = (&written, ttl) {
                self.shared.expire(&mut state, key, *revision, ttl);
            }
            written
        };
        Ok(written)
    }

    async fn delete(&self, key: &str, expected: Revision) -> Result<Written, StorageError> {
        keys::check_key(key)?;
        Ok(self.shared.state.write().write(key, Expected::At(expected), None))
    }

    async fn watch(&self, range: WatchRange<'_>, after: Revision) -> Result<Watch, StorageError> {
        keys::check_watch(range)?;
        let mut state = self.shared.state.write();
        let missed = state.mvcc.changes_after(after, range)?;
        let queue = Arc::new(Queue::new(self.shared.options.watch_queue, missed));
        let watcher = state.next_watcher;
        state.next_watcher += 1;
        state.watchers.insert(watcher, Watcher { range: range.into(), after: after.0, queue: Arc::clone(&queue) });
        drop(state);

        let shared = Arc::downgrade(&self.shared);
        let events = Events { shared: Weak::clone(&shared), watcher, queue, told: after.0, ended: false };
        let progress = Box::new(move || {
            if let Some(shared) = shared.upgrade() {
                shared.state.read().progress(watcher);
            }
        });
        Ok(Watch { events: events.boxed(), progress })
    }

    async fn current_revision(&self) -> Result<Revision, StorageError> {
        Ok(Revision(self.shared.state.read().mvcc.revision()))
    }

    async fn compact(&self, revision: Revision) -> Result<(), StorageError> {
        self.shared.state.write().mvcc.compact(revision)
    }
}

// === impl State ===

impl State {
    fn write(&mut self, key: &str, expected: Expected, value: Option<Bytes>) -> Written {
        match self.mvcc.write(key, expected, value) {
            Outcome::Conflict(kv) => Written::Conflict(kv),
            Outcome::Changed(change) => {
                self.tell(&change);
                Written::Done(Revision(change.revision))
            }
        }
    }

    fn tell(&mut self, change: &Arc<Change>) {
        self.watchers.retain(|_, watcher| {
            let concerned = change.revision > watcher.after && change.is_in(watcher.range.as_ref());
            !concerned || watcher.queue.push(change)
        });
    }

    fn progress(&self, watcher: u64) {
        let revision = self.mvcc.revision();
        if let Some(watcher) = self.watchers.get(&watcher)
            && watcher.after <= revision
        {
            watcher.queue.push_progress(revision);
        }
    }
}

// === impl Shared: keys that end by themselves ===

impl Shared {
    fn expire(self: &Arc<Self>, state: &mut State, key: &str, revision: Revision, ttl: Duration) {
        // Whole seconds, rounded up: what a lease can say.
        let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
        let Some(due) = Instant::now().checked_add(Duration::from_secs(seconds.max(1))) else {
            return; // so far away that it is never
        };
        state.expiries.due.insert((due, revision.0), Arc::from(key));
        if state.expiries.task_runs {
            self.sooner.notify_one();
        } else {
            state.expiries.task_runs = true;
            // The task ends when nothing is due any more, and with the store.
            tokio::spawn(end_keys(Arc::downgrade(self)));
        }
    }

    /// Ends what is due; answers when the next end is.
    fn end_due_keys(&self) -> Option<Instant> {
        let mut state = self.state.write();
        let now = Instant::now();
        while let Some(entry) = state.expiries.due.first_entry() {
            if entry.key().0 > now {
                return Some(entry.key().0);
            }
            let ((_, revision), key) = entry.remove_entry();
            // A conflict says that the key was written again or removed, and with that released.
            state.write(&key, Expected::At(Revision(revision)), None);
        }
        state.expiries.task_runs = false;
        None
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for watcher in self.state.get_mut().watchers.values() {
            watcher.queue.close(StorageError::Unavailable("the store in memory is gone".to_owned()));
        }
    }
}

async fn end_keys(shared: Weak<Shared>) {
    loop {
        // Held for a second at most, so that the store goes when its last owner does.
        let Some(strong) = shared.upgrade() else { return };
        let Some(due) = strong.end_due_keys() else { return };
        let wait = due.saturating_duration_since(Instant::now()).min(Duration::from_secs(1));
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = strong.sooner.notified() => {}
        }
    }
}

// === impl OwnedRange ===

impl From<WatchRange<'_>> for OwnedRange {
    fn from(range: WatchRange<'_>) -> Self {
        match range {
            WatchRange::Key(key) => Self::Key(key.to_owned()),
            WatchRange::Prefix(prefix) => Self::Prefix(prefix.to_owned()),
        }
    }
}

impl OwnedRange {
    fn as_ref(&self) -> WatchRange<'_> {
        match self {
            Self::Key(key) => WatchRange::Key(key),
            Self::Prefix(prefix) => WatchRange::Prefix(prefix),
        }
    }
}

// === impl Events ===

impl Stream for Events {
    type Item = Result<Event, StorageError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.queue.poll_next(cx).map(|item| {
            Some(match item {
                Item::Change(change) => {
                    self.told = change.revision;
                    Ok(change.event())
                }
                Item::Progress(revision) => {
                    // Changes may have come since it was asked for, and they are told first.
                    self.told = self.told.max(revision);
                    Ok(Event::Progress(Revision(self.told)))
                }
                Item::End(error) => {
                    self.ended = true;
                    Err(error)
                }
            })
        })
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.state.write().watchers.remove(&self.watcher);
        }
    }
}
