//! The versions of all keys: a value in, a value out, no clock and no lock.
//!
//! Two views of the same writes are kept. `keys` answers reads at any revision that is kept; `log` answers watches. Both
//! begin at the compacted revision: the state there is readable, and the changes from it on are known.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::Arc,
};

use bytes::Bytes;

use crate::storage::{
    Event, Expected, Freshness, KeyValue, ListRange, Page, Revision, StorageError, WatchRange, keys::prefix_end,
};

/// How much history is kept at most, whether or not anybody compacts.
#[derive(Clone, Copy, Debug)]
pub(super) struct HistoryLimit {
    pub(super) changes: usize,
    pub(super) bytes: usize,
}

pub(super) struct Mvcc {
    limit: HistoryLimit,
    keys: BTreeMap<Arc<str>, Vec<Version>>,
    log: VecDeque<Arc<Change>>,
    log_bytes: usize,
    revision: u64,
    compacted: u64,
}

/// What a key was from `revision` on; `None` when it was gone.
struct Version {
    revision: u64,
    value: Option<Bytes>,
}

/// One write.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) revision: u64,
    pub(super) key: Arc<str>,
    value: Option<Bytes>,
    previous: Option<(u64, Bytes)>,
}

/// The outcome of a conditional write.
pub(super) enum Outcome {
    Changed(Arc<Change>),
    Conflict(Option<KeyValue>),
}

// === impl Change ===

impl Change {
    /// The change as a watch tells it.
    pub(super) fn event(&self) -> Event {
        let kv = |revision, value: &Bytes| KeyValue {
            key: self.key.as_ref().to_owned(),
            value: value.clone(),
            mod_revision: Revision(revision),
        };
        let previous = self.previous.as_ref().map(|(revision, value)| kv(*revision, value));
        match (&self.value, previous) {
            (Some(value), previous) => Event::Put { kv: kv(self.revision, value), previous },
            (None, Some(previous)) => Event::Deleted { previous, revision: Revision(self.revision) },
            // Only what exists is removed: `Mvcc::write` makes no such change.
            (None, None) => Event::Progress(Revision(self.revision)),
        }
    }

    pub(super) fn is_in(&self, range: WatchRange<'_>) -> bool {
        match range {
            WatchRange::Key(key) => &*self.key == key,
            WatchRange::Prefix(prefix) => self.key.starts_with(prefix),
        }
    }

    fn bytes(&self) -> usize {
        let previous = self.previous.as_ref().map_or(0, |(_, value)| value.len());
        self.key.len() + self.value.as_ref().map_or(0, Bytes::len) + previous
    }
}

// === impl Mvcc ===

impl Mvcc {
    /// An empty store. Its revision is 1, as etcd's is.
    pub(super) fn new(limit: HistoryLimit) -> Self {
        Self { limit, keys: BTreeMap::new(), log: VecDeque::new(), log_bytes: 0, revision: 1, compacted: 0 }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// What `key` was in the state asked for, and the revision of that state.
    pub(super) fn get(&self, key: &str, at: Freshness) -> Result<(Option<KeyValue>, Revision), StorageError> {
        let at = self.state(at)?;
        let kv = self.keys.get_key_value(key).and_then(|(key, versions)| found(key, versions, at));
        Ok((kv, Revision(at)))
    }

    pub(super) fn list(&self, range: &ListRange<'_>) -> Result<Page, StorageError> {
        let at = self.state(range.at)?;
        let start = range.start.unwrap_or(range.prefix);
        let end = prefix_end(range.prefix);
        let limit = if range.limit == 0 { usize::MAX } else { range.limit };
        let mut items = Vec::new();
        let mut remaining = 0;
        if start < end.as_str() {
            let bounds = (Bound::Included(start), Bound::Excluded(end.as_str()));
            for (key, versions) in self.keys.range::<str, _>(bounds) {
                if items.len() < limit {
                    items.extend(found(key, versions, at));
                } else if value_at(versions, at).is_some() {
                    remaining += 1;
                }
            }
        }
        Ok(Page { items, revision: Revision(at), remaining })
    }

    /// Sets (or removes) a key if it is as expected.
    pub(super) fn write(&mut self, key: &str, expected: Expected, value: Option<Bytes>) -> Outcome {
        let entry = self.keys.get_key_value(key);
        let previous = entry.and_then(|(_, versions)| value_at(versions, self.revision));
        let met = match (expected, previous) {
            (Expected::Absent, None) => value.is_some(),
            (Expected::At(expected), Some((revision, _))) => expected.0 == revision,
            _ => false,
        };
        if !met {
            return Outcome::Conflict(entry.and_then(|(key, versions)| found(key, versions, self.revision)));
        }
        let previous = previous.map(|(revision, value)| (revision, value.clone()));
        let key = entry.map_or_else(|| Arc::from(key), |(key, _)| Arc::clone(key));

        self.revision += 1;
        let change =
            Arc::new(Change { revision: self.revision, key: Arc::clone(&key), value: value.clone(), previous });
        self.keys.entry(key).or_default().push(Version { revision: self.revision, value });
        self.log_bytes += change.bytes();
        self.log.push_back(Arc::clone(&change));
        self.bound_history();
        Outcome::Changed(change)
    }

    /// The changes of a range after a revision, oldest first.
    pub(super) fn changes_after(
        &self,
        after: Revision,
        range: WatchRange<'_>,
    ) -> Result<VecDeque<Arc<Change>>, StorageError> {
        if after.0.saturating_add(1) < self.compacted {
            return Err(self.compacted_error());
        }
        let from = self.log.partition_point(|change| change.revision <= after.0);
        Ok(self.log.range(from..).filter(|change| change.is_in(range)).cloned().collect())
    }

    /// Forgets what is older than the state at `to`.
    pub(super) fn compact(&mut self, to: Revision) -> Result<(), StorageError> {
        if to.0 <= self.compacted {
            return Err(self.compacted_error());
        }
        if to.0 > self.revision {
            return Err(self.future_error(to));
        }
        self.compacted = to.0;
        while self.log.front().is_some_and(|change| change.revision < self.compacted) {
            self.forget_oldest();
        }
        Ok(())
    }

    fn bound_history(&mut self) {
        while self.log.len() > self.limit.changes || (self.log_bytes > self.limit.bytes && self.log.len() > 1) {
            if let Some(oldest) = self.log.front() {
                self.compacted = self.compacted.max(oldest.revision + 1);
            }
            self.forget_oldest();
        }
    }

    /// Drops the oldest change, and the versions of its key that no state from the compacted one on shows.
    fn forget_oldest(&mut self) {
        let Some(change) = self.log.pop_front() else { return };
        self.log_bytes = self.log_bytes.saturating_sub(change.bytes());
        let Some(versions) = self.keys.get_mut(&change.key) else { return };
        let shown = versions.partition_point(|version| version.revision <= self.compacted).saturating_sub(1);
        versions.drain(..shown);
        if let [only] = versions.as_slice()
            && only.value.is_none()
            && only.revision <= self.compacted
        {
            self.keys.remove(&change.key);
        }
    }

    /// The revision of the state that a read is to see.
    fn state(&self, at: Freshness) -> Result<u64, StorageError> {
        match at {
            Freshness::Latest | Freshness::Any => Ok(self.revision),
            Freshness::NotOlderThan(revision) if revision.0 <= self.revision => Ok(self.revision),
            Freshness::Exact(revision) if revision.0 == 0 || revision.0 < self.compacted => Err(self.compacted_error()),
            Freshness::Exact(revision) if revision.0 <= self.revision => Ok(revision.0),
            Freshness::NotOlderThan(revision) | Freshness::Exact(revision) => Err(self.future_error(revision)),
        }
    }

    fn compacted_error(&self) -> StorageError {
        StorageError::Compacted { oldest: Some(Revision(self.compacted.max(1))) }
    }

    fn future_error(&self, requested: Revision) -> StorageError {
        StorageError::Future { requested, current: Revision(self.revision) }
    }
}

/// The value of a key in the state at `at`, with the revision at which it was written.
fn value_at(versions: &[Version], at: u64) -> Option<(u64, &Bytes)> {
    let version = match versions {
        // Most keys have one version, and most reads ask for the newest.
        [.., last] if last.revision <= at => last,
        _ => versions.get(versions.partition_point(|version| version.revision <= at).checked_sub(1)?)?,
    };
    Some((version.revision, version.value.as_ref()?))
}

fn found(key: &str, versions: &[Version], at: u64) -> Option<KeyValue> {
    let (revision, value) = value_at(versions, at)?;
    Some(KeyValue { key: key.to_owned(), value: value.clone(), mod_revision: Revision(revision) })
}
