//! Where objects live: a small MVCC contract that every backend keeps.
//!
//! A backend knows keys, bytes and revisions, and nothing of Kubernetes: lists with selectors, continue tokens, conflicts
//! and conversions are the [registry](crate::registry)'s business. That makes a backend of one's own a matter of seven
//! methods, and the feature `storage-testing` holds the suite that says whether they are right (`storage::testing`).
//!
//! Keys are `/`-separated text without the backend's own root (`--etcd-prefix`), for example
//! `/restaurant.programming-kubernetes.info/pizzas/default/margherita`.

pub mod compactor;
pub mod etcd3;
mod keys;
pub mod memory;
#[cfg(any(test, feature = "storage-testing"))]
pub mod testing;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use self::compactor::CompactionTurn;

/// A revision of the whole store: every write has its own, later writes have higher ones.
///
/// The first write of an empty store makes a revision above zero; zero stands for "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// One key with its value, as of [`mod_revision`](Self::mod_revision).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key, without the backend's root.
    pub key: String,
    /// The value, as it was written.
    pub value: Bytes,
    /// The revision of the last write to this key.
    pub mod_revision: Revision,
}

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Linearizable: everything acknowledged before the call is seen.
    Latest,
    /// Any state that the backend has at hand.
    Any,
    /// A state at this revision or a later one.
    NotOlderThan(Revision),
    /// The state at exactly this revision. Revision zero is none and counts as compacted.
    Exact(Revision),
}

/// The answer to [`Storage::get`].
#[derive(Clone, Debug)]
pub struct Got {
    /// The key's value, or `None` when there is none.
    pub kv: Option<KeyValue>,
    /// The store's revision when it was read.
    pub revision: Revision,
}

/// What [`Storage::list`] is to read.
#[derive(Clone, Debug)]
pub struct ListRange<'a> {
    /// Only keys that start with this; it ends in `/`.
    pub prefix: &'a str,
    /// Only keys from this one on (inclusive, a whole key under `prefix`).
    pub start: Option<&'a str>,
    /// At most this many; zero means no bound.
    pub limit: usize,
    /// Of which state.
    pub at: Freshness,
}

/// The answer to [`Storage::list`]: a consistent view at [`revision`](Self::revision), in the order of the keys.
#[derive(Clone, Debug)]
pub struct Page {
    /// The keys and values.
    pub items: Vec<KeyValue>,
    /// The revision that the page shows.
    pub revision: Revision,
    /// How many keys of the range come after the last item.
    pub remaining: u64,
}

/// What a conditional write expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// That the key does not exist.
    Absent,
    /// That the key was last written at this revision; zero is never met.
    At(Revision),
}

/// The outcome of a conditional write.
#[derive(Clone, Debug)]
pub enum Written {
    /// It happened, at this revision.
    Done(Revision),
    /// It did not: the key's state was another. Here is what it is now.
    Conflict(Option<KeyValue>),
}

/// Which keys [`Storage::watch`] follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchRange<'a> {
    /// One key.
    Key(&'a str),
    /// All keys that start with this; it ends in `/`.
    Prefix(&'a str),
}

/// What a watch tells. Revisions never go back within one watch.
#[derive(Clone, Debug)]
pub enum Event {
    /// A key was written; `previous` is its state before, `None` when it is new.
    Put {
        /// The new state.
        kv: KeyValue,
        /// The state before.
        previous: Option<KeyValue>,
    },
    /// A key was removed (or its lease ended).
    Deleted {
        /// The last state.
        previous: KeyValue,
        /// The revision of the removal.
        revision: Revision,
    },
    /// Everything up to this revision has been told.
    Progress(Revision),
}

/// A running watch. Dropping it ends it.
pub struct Watch {
    /// The events; after an error nothing comes any more.
    pub events: BoxStream<'static, Result<Event, StorageError>>,
    /// Asks for an [`Event::Progress`] soon, whether or not anything is written.
    ///
    /// A backend answers when it has told everything up to the revision at hand. It may leave a request unanswered: etcd
    /// does while the watch is still behind, and while the store is not past the revision that the watch began after (there
    /// is nothing to tell then that the reader does not know); some proxies in front of etcd always do. Ask again, and set
    /// a bound.
    pub progress: Box<dyn Fn() + Send + Sync>,
}

/// Why a backend could not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StorageError {
    /// The revision asked for is no longer kept.
    #[error("the revision has been compacted (the oldest kept is {oldest:?})")]
    Compacted {
        /// The oldest revision kept, where the backend says it.
        oldest: Option<Revision>,
    },
    /// The revision asked for does not exist yet.
    #[error("revision {requested:?} is ahead of the store's {current:?}")]
    Future {
        /// What was asked for.
        requested: Revision,
        /// What there is.
        current: Revision,
    },
    /// The value is larger than the backend takes.
    #[error("the object is too large for the storage: {0}")]
    TooLarge(String),
    /// The store is full.
    #[error("the storage is out of space: {0}")]
    NoSpace(String),
    /// The backend cannot be reached, or has no leader. A write may or may not have happened.
    #[error("the storage cannot be reached: {0}")]
    Unavailable(String),
    /// The backend did not answer in time. A write may or may not have happened.
    #[error("the storage did not answer in time: {0}")]
    Timeout(String),
    /// The reader did not keep up and the watch was ended. (A backend may also hold the store back instead, as etcd does.)
    #[error("the watch was ended because its reader is too slow")]
    SlowReader,
    /// Anything else.
    #[error("storage: {0}")]
    Internal(String),
}

/// A store of keys and values with history.
#[async_trait]
pub trait Storage: Send + Sync + 'static {
    /// Reads one key.
    ///
    /// # Errors
    /// [`StorageError::Future`] when `NotOlderThan` asks for more than there is, [`StorageError::Compacted`] for `Exact`.
    async fn get(&self, key: &str, at: Freshness) -> Result<Got, StorageError>;

    /// Reads a range of keys.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    async fn list(&self, range: ListRange<'_>) -> Result<Page, StorageError>;

    /// Writes a key if it is as expected. With `ttl` the key goes by itself after that time (whole seconds, rounded up).
    ///
    /// # Errors
    /// After [`StorageError::Unavailable`] and [`StorageError::Timeout`] the write may have happened.
    async fn put(
        &self,
        key: &str,
        expected: Expected,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Written, StorageError>;

    /// Removes a key if it was last written at `expected`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    async fn delete(&self, key: &str, expected: Revision) -> Result<Written, StorageError>;

    /// Follows keys: every event after `after` (exclusive) in order, each once, then whatever comes.
    ///
    /// # Errors
    /// [`StorageError::Compacted`], here or as the stream's only item, when events after `after` are no longer kept. After
    /// compaction to `r` an `after` of `r` is the lowest that always works.
    /// An `after` in the future is no error: the watch waits.
    /// [`StorageError::Unavailable`] as the last item when the connection broke. Nothing is taken up again inside: the
    /// reader knows what it has seen, and a new watch after its last revision has no gap.
    async fn watch(&self, range: WatchRange<'_>, after: Revision) -> Result<Watch, StorageError>;

    /// The store's current revision, linearizable.
    ///
    /// # Errors
    /// When the store cannot be asked.
    async fn current_revision(&self) -> Result<Revision, StorageError>;

    /// Forgets history before `revision`.
    ///
    /// # Errors
    /// [`StorageError::Compacted`] or [`StorageError::Future`] when that is not possible.
    async fn compact(&self, revision: Revision) -> Result<(), StorageError>;

    /// Says whether reads work now, for `/readyz` and `/livez`. To be answered within a few seconds, and cheap however
    /// often it is called.
    ///
    /// # Errors
    /// Why reads do not work.
    async fn ready(&self) -> Result<(), StorageError> {
        self.current_revision().await.map(drop)
    }

    /// One turn of the periodic compaction (see [`compactor`]): forgets what is older than the turn before, and notes where
    /// the store is now. Answers the revision to which history is now compacted, where this turn learned it.
    ///
    /// Stores that several servers share override this to agree on who compacts.
    ///
    /// # Errors
    /// As [`compact`](Self::compact). `turn` is valid for the next turn all the same.
    async fn compaction_turn(&self, turn: &mut CompactionTurn) -> Result<Option<Revision>, StorageError> {
        let last = std::mem::replace(&mut turn.revision, self.current_revision().await?);
        turn.time += 1;
        if last == Revision(0) {
            return Ok(None);
        }
        self.compact(last).await?;
        Ok(Some(last))
    }
}
