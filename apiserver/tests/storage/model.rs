//! What a store is, said as simply as possible: every state is kept whole, and nothing is fast.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use apiserver::storage::{
    Event, Expected, Freshness, Got, KeyValue, ListRange, Page, Revision, Storage, StorageError, Watch, WatchRange,
    Written,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use parking_lot::Mutex;

type State = BTreeMap<String, KeyValue>;

#[derive(Clone)]
pub(crate) struct Model(Arc<Mutex<History>>);

struct History {
    /// State number n is that of revision n + 1.
    states: Vec<State>,
    events: Vec<Event>,
    compacted: u64,
}

impl Model {
    pub(crate) fn new() -> Self {
        let history = History { states: vec![State::new()], events: Vec::new(), compacted: 0 };
        Self(Arc::new(Mutex::new(history)))
    }
}

impl History {
    fn current(&self) -> u64 {
        self.states.len() as u64
    }

    fn at(&self, at: Freshness) -> Result<(&State, Revision), StorageError> {
        let revision = match at {
            Freshness::Latest | Freshness::Any => self.current(),
            Freshness::NotOlderThan(revision) if revision.0 <= self.current() => self.current(),
            Freshness::Exact(revision) if revision.0 == 0 || revision.0 < self.compacted => {
                return Err(StorageError::Compacted { oldest: None });
            }
            Freshness::Exact(revision) if revision.0 <= self.current() => revision.0,
            Freshness::Exact(requested) | Freshness::NotOlderThan(requested) => {
                return Err(StorageError::Future { requested, current: Revision(self.current()) });
            }
        };
        Ok((&self.states[usize::try_from(revision - 1).unwrap()], Revision(revision)))
    }

    fn write(&mut self, key: &str, expected: Expected, value: Option<Bytes>) -> Written {
        let mut state = self.states.last().unwrap().clone();
        let previous = state.get(key).cloned();
        let met = match (expected, &previous) {
            (Expected::Absent, None) => true,
            (Expected::At(revision), Some(kv)) => kv.mod_revision == revision,
            _ => false,
        };
        if !met {
            return Written::Conflict(previous);
        }
        let revision = Revision(self.current() + 1);
        match value {
            Some(value) => {
                let kv = KeyValue { key: key.to_owned(), value, mod_revision: revision };
                state.insert(key.to_owned(), kv.clone());
                self.events.push(Event::Put { kv, previous });
            }
            None => {
                state.remove(key);
                self.events.push(Event::Deleted { previous: previous.unwrap(), revision });
            }
        }
        self.states.push(state);
        Written::Done(revision)
    }
}

#[async_trait]
impl Storage for Model {
    async fn get(&self, key: &str, at: Freshness) -> Result<Got, StorageError> {
        let history = self.0.lock();
        let (state, revision) = history.at(at)?;
        Ok(Got { kv: state.get(key).cloned(), revision })
    }

    async fn list(&self, range: ListRange<'_>) -> Result<Page, StorageError> {
        let history = self.0.lock();
        let (state, revision) = history.at(range.at)?;
        let start = range.start.unwrap_or(range.prefix);
        let mut items: Vec<_> =
            state.values().filter(|kv| kv.key.starts_with(range.prefix) && *kv.key >= *start).cloned().collect();
        let all = items.len();
        if range.limit > 0 {
            items.truncate(range.limit);
        }
        let remaining = (all - items.len()) as u64;
        Ok(Page { items, revision, remaining })
    }

    async fn put(
        &self,
        key: &str,
        expected: Expected,
        value: Bytes,
        _: Option<Duration>,
    ) -> Result<Written, StorageError> {
        Ok(self.0.lock().write(key, expected, Some(value)))
    }

    async fn delete(&self, key: &str, expected: Revision) -> Result<Written, StorageError> {
        Ok(self.0.lock().write(key, Expected::At(expected), None))
    }

    async fn watch(&self, range: WatchRange<'_>, after: Revision) -> Result<Watch, StorageError> {
        if after.0 + 1 < self.0.lock().compacted {
            return Err(StorageError::Compacted { oldest: None });
        }
        let (prefix, whole) = match range {
            WatchRange::Prefix(prefix) => (prefix.to_owned(), false),
            WatchRange::Key(key) => (key.to_owned(), true),
        };
        let told = move |event: &Event| {
            let (key, revision) = match event {
                Event::Put { kv, .. } => (&kv.key, kv.mod_revision),
                Event::Deleted { previous, revision } => (&previous.key, *revision),
                Event::Progress(_) => return false,
            };
            revision > after && if whole { *key == prefix } else { key.starts_with(&prefix) }
        };
        // Who reads on when there is nothing any more has made a mistake, and gets the end of the stream.
        let model = self.clone();
        let events = stream::unfold(0, move |mut number| {
            let history = model.0.lock();
            while history.events.get(number).is_some_and(|event| !told(event)) {
                number += 1;
            }
            let event = history.events.get(number).cloned();
            std::future::ready(event.map(|event| (Ok(event), number + 1)))
        });
        Ok(Watch { events: events.boxed(), progress: Box::new(|| {}) })
    }

    async fn current_revision(&self) -> Result<Revision, StorageError> {
        Ok(Revision(self.0.lock().current()))
    }

    async fn compact(&self, revision: Revision) -> Result<(), StorageError> {
        let mut history = self.0.lock();
        if revision.0 <= history.compacted {
            return Err(StorageError::Compacted { oldest: None });
        }
        if revision.0 > history.current() {
            return Err(StorageError::Future { requested: revision, current: Revision(history.current()) });
        }
        history.compacted = revision.0;
        Ok(())
    }
}
