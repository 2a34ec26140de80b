//! Objects at hand: a copy of one resource, kept by following the storage (client-go `tools/cache`).
//!
//! For admission plugins, strategies and controllers inside the server, which look things up for each request. The copy
//! is a little behind the storage; [`Informer::confirm`] waits until it is not.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt as _;
use parking_lot::RwLock;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{Store, list::Range};
use crate::{
    meta::Object,
    registry::strategy::Strategy,
    status::Status,
    storage::{Event, Freshness, KeyValue, Revision, StorageError, WatchRange},
};

/// How often somebody who waits for confirmation asks the storage how far it is
/// (k8s.io/apiserver `pkg/storage/cacher/progress`, `progressRequestPeriod`).
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// The pauses between attempts to reach a storage that is down.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What happened to an object.
#[derive(Debug)]
pub enum Change<'a, T> {
    /// It is there, new or changed.
    Applied {
        /// Its state before, `None` when it is new to this informer.
        old: Option<&'a T>,
        /// Its state now.
        new: &'a T,
    },
    /// It is gone.
    Deleted {
        /// Its last known state.
        old: &'a T,
    },
}

/// Namespace, empty for resources of the cluster, and name.
type Key = (String, String);

type Handler<T> = Box<dyn Fn(&Change<'_, T>) + Send + Sync>;

/// A copy of all objects of one resource.
pub struct Informer<T> {
    objects: RwLock<BTreeMap<Key, Arc<T>>>,
    handlers: Vec<Handler<T>>,
    /// How far the copy is: it shows at least the state of this revision. Zero before it is filled. While following is
    /// interrupted it stands still.
    seen: watch::Sender<Revision>,
    filled: watch::Sender<bool>,
    /// Somebody waits for the copy to be confirmed.
    wanted: Notify,
}

// === impl Change ===

impl<T> Change<'_, T> {
    /// The object, in its latest known state.
    pub fn object(&self) -> &T {
        match self {
            Change::Applied { new, .. } => new,
            Change::Deleted { old } => old,
        }
    }
}

// === impl Informer ===

impl<T: Object> Default for Informer<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Object> Informer<T> {
    /// An empty copy. [`follow`](Self::follow) fills it.
    pub fn new() -> Self {
        Self {
            objects: RwLock::default(),
            handlers: Vec::new(),
            seen: watch::Sender::new(Revision(0)),
            filled: watch::Sender::new(false),
            wanted: Notify::new(),
        }
    }

    /// Calls `handler` with each change, in order, from the task that follows the storage: it must not block. When the
    /// copy is filled anew after an interruption, only what differs is told.
    #[must_use]
    pub fn on_change(mut self, handler: impl Fn(&Change<'_, T>) + Send + Sync + 'static) -> Self {
        self.handlers.push(Box::new(handler));
        self
    }

    /// The object, as the copy has it. The namespace is empty for resources of the cluster.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        self.objects.read().get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// All objects, as the copy has them, by namespace and name.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.objects.read().values().cloned().collect()
    }

    /// Waits until the copy has been filled for the first time.
    pub async fn ready(&self) {
        // The sender lives as long as self: waiting cannot fail.
        let mut filled = self.filled.subscribe();
        let _filled = filled.wait_for(|filled| *filled).await;
    }

    /// Waits until the copy shows at least the state that the store has now. Everything acknowledged before the call is
    /// seen after it.
    ///
    /// # Errors
    /// When the storage cannot be asked, or the copy does not catch up within `patience`.
    pub async fn confirm<S: Strategy<Object = T>>(&self, store: &Store<S>, patience: Duration) -> Result<(), Status> {
        let deadline = Instant::now() + patience;
        let late = || Status::timeout("the copy of the objects did not catch up with the storage in time", 1);
        let current = timeout_at(deadline, store.current_revision()).await.map_err(|_| late())??;
        let mut seen = self.seen.subscribe();
        loop {
            if *seen.borrow_and_update() >= current {
                return Ok(());
            }
            self.wanted.notify_one();
            let until = deadline.min(Instant::now() + PROGRESS_EVERY);
            // The sender lives as long as self: waiting cannot fail.
            let _changed = timeout_at(until, seen.changed()).await;
            if Instant::now() >= deadline && *seen.borrow() < current {
                return Err(late());
            }
        }
    }

    /// Fills the copy and keeps it, through every interruption, until `stop`.
    pub async fn follow<S: Strategy<Object = T>>(&self, store: &Store<S>, stop: CancellationToken) {
        let _stopped = stop.run_until_cancelled(self.follow_for_ever(store)).await;
    }

    async fn follow_for_ever<S: Strategy<Object = T>>(&self, store: &Store<S>) {
        let mut pause = BACKOFF.0;
        let mut after = None;
        loop {
            match self.follow_once(store, &mut after, &mut pause).await {
                StorageError::Compacted { .. } => after = None,
                error => {
                    tracing::warn!(resource = %store.resource(), %error, "following is interrupted and goes on in {pause:?}");
                    sleep(pause).await;
                    pause = BACKOFF.1.min(pause * 2);
                }
            }
        }
    }

    /// Follows until something breaks. `after` says from where to go on; without it everything is read anew.
    async fn follow_once<S: Strategy<Object = T>>(
        &self,
        store: &Store<S>,
        after: &mut Option<Revision>,
        pause: &mut Duration,
    ) -> StorageError {
        let prefix = match store.inner.keys.collection("") {
            Ok(prefix) => prefix,
            Err(status) => return StorageError::Internal(status.to_string()),
        };
        let from = match *after {
            Some(revision) => revision,
            None => match store.snapshot(&Range::Prefix(prefix.clone()), Freshness::Latest).await {
                Ok((items, revision)) => {
                    self.fill(store, items);
                    self.seen.send_replace(revision);
                    self.filled.send_replace(true);
                    *after = Some(revision);
                    revision
                }
                Err(error) => return error,
            },
        };
        let mut changes = match store.storage().watch(WatchRange::Prefix(&prefix), from).await {
            Ok(changes) => changes,
            Err(error) => return error,
        };
        *pause = BACKOFF.0;
        loop {
            let event = tokio::select! {
                event = changes.events.next() => event,
                () = self.wanted.notified() => {
                    (changes.progress)();
                    continue;
                }
            };
            match event {
                None => return StorageError::Unavailable("the watch ended".to_owned()),
                Some(Err(error)) => return error,
                Some(Ok(event)) => {
                    let revision = self.take_in(store, event);
                    *after = Some(revision);
                    self.seen.send_if_modified(|seen| {
                        let further = revision > *seen;
                        *seen = revision.max(*seen);
                        further
                    });
                }
            }
        }
    }

    fn fill<S: Strategy<Object = T>>(&self, store: &Store<S>, items: Vec<KeyValue>) {
        let mut gone: BTreeSet<Key> = self.objects.read().keys().cloned().collect();
        for kv in items {
            if let Some(key) = Self::key(store, &kv) {
                gone.remove(&key);
                self.put(store, key, &kv);
            }
        }
        for key in gone {
            self.remove(&key);
        }
    }

    fn take_in<S: Strategy<Object = T>>(&self, store: &Store<S>, event: Event) -> Revision {
        match event {
            Event::Put { kv, .. } => {
                if let Some(key) = Self::key(store, &kv) {
                    self.put(store, key, &kv);
                }
                kv.mod_revision
            }
            Event::Deleted { previous, revision } => {
                if let Some(key) = Self::key(store, &previous) {
                    self.remove(&key);
                }
                revision
            }
            Event::Progress(revision) => revision,
        }
    }

    /// Whose key this is.
    fn key<S: Strategy<Object = T>>(store: &Store<S>, kv: &KeyValue) -> Option<Key> {
        let key = store.inner.keys.parse(&kv.key);
        if key.is_none() {
            tracing::warn!(key = kv.key, "a key among the objects is no object's and is left out");
        }
        key
    }

    /// Takes in an object as it is stored. One that cannot be read is left out, as clients cannot see it either; what it
    /// was before must not be seen any more.
    fn put<S: Strategy<Object = T>>(&self, store: &Store<S>, key: Key, kv: &KeyValue) {
        match store.decode(kv) {
            Ok(object) => self.apply(key, object),
            Err(status) => {
                tracing::error!(key = kv.key, %status, "an object cannot be read and is left out");
                self.remove(&key);
            }
        }
    }

    fn apply(&self, key: Key, object: T) {
        let new = Arc::new(object);
        let old = self.objects.write().insert(key, new.clone());
        if old.as_deref() == Some(&*new) {
            return;
        }
        self.tell(&Change::Applied { old: old.as_deref(), new: &new });
    }

    fn remove(&self, key: &Key) {
        let removed = self.objects.write().remove(key);
        if let Some(old) = removed {
            self.tell(&Change::Deleted { old: &old });
        }
    }

    fn tell(&self, change: &Change<'_, T>) {
        for handler in &self.handlers {
            handler(change);
        }
    }
}
