//! Following objects: what is there first, if that is wanted, then every change, without a gap
//! (k8s.io/apiserver `pkg/storage/cacher`).

use std::{pin::Pin, time::Duration};

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{Store, list::Range, list::Selection, parse_resource_version};
use crate::{
    list_options::ListOptions,
    meta::Object as _,
    registry::{errors::Operation, strategy::Strategy},
    status::Status,
    storage::{Event, Freshness, KeyValue, Revision, StorageError, Watch, WatchRange},
};

/// How often a watcher is told how far it is (k8s.io/apiserver `pkg/storage/cacher/cacher.go`, `defaultBookmarkFrequency`).
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// How many objects of what is there first are held at once.
const INITIAL_PART: usize = 2_000;
/// How long before its end it is told for the last time.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// What a watcher is told.
#[derive(Clone, Debug)]
pub enum WatchEvent<H> {
    /// An object is there, is new, or has begun to match the selectors.
    Added(H),
    /// An object has changed.
    Modified(H),
    /// An object is gone or no longer matches: its last state, with the resource version of the change.
    Deleted(H),
    /// Everything up to this revision has been told.
    Bookmark {
        /// The revision.
        revision: Revision,
        /// Whether this ends what was there first.
        initial_events_end: bool,
    },
    /// The watch ends because of this.
    Error(Status),
}

/// A running watch. Dropping it ends it.
pub type Events<H> = BoxStream<'static, WatchEvent<H>>;

struct Watcher<S: Strategy> {
    store: Store<S>,
    range: Range,
    selection: Selection,
    /// What is to be read before changes are told: from which key on, and of which state.
    initial: Option<(Option<String>, Freshness)>,
    /// What was read and not told yet.
    unsaid: std::vec::IntoIter<KeyValue>,
    /// Whether the watcher waits to be told that it has heard what was there first.
    end_unsaid: bool,
    /// Everything up to here is told.
    after: Revision,
    changes: Option<Watch>,
    bookmarks: Option<Bookmarks>,
    deadline: Pin<Box<Sleep>>,
    shutdown: Pin<Box<WaitForCancellationFutureOwned>>,
    shut_down: CancellationToken,
    done: bool,
}

/// When bookmarks are due.
struct Bookmarks {
    /// The next time.
    next: Pin<Box<Sleep>>,
    last: Instant,
    /// Whether the storage has been asked how far it is.
    asked: bool,
}

/// What happens next.
enum Turn {
    End,
    Ask,
    Change(Option<Result<Event, StorageError>>),
}

// === impl Store ===

impl<S: Strategy> Store<S> {
    /// Follows a collection, or what selectors leave of it, until `deadline` or `shutdown`.
    ///
    /// # Errors
    /// 400 for options that make no sense. Every other failure is the watch's last event.
    pub async fn watch(
        &self,
        namespace: &str,
        options: &ListOptions,
        deadline: Instant,
        shutdown: CancellationToken,
    ) -> Result<Events<S::Object>, Status> {
        let selection = Selection::new(options)?;
        let range = self.range(namespace, &selection, false)?;
        let revision = parse_resource_version(&options.resource_version)?;
        let at = match revision {
            _ if options.resource_version.is_empty() => Freshness::Latest,
            Revision(0) => Freshness::Any,
            revision => Freshness::NotOlderThan(revision),
        };
        let from_now = options.send_initial_events == Some(false) && revision == Revision(0);
        let initial = match options.send_initial_events {
            Some(wanted) => wanted,
            None => revision == Revision(0),
        };
        let mut watcher = Watcher {
            store: self.clone(),
            range,
            selection,
            initial: initial.then_some((None, at)),
            unsaid: Vec::new().into_iter(),
            end_unsaid: options.allow_watch_bookmarks && options.send_initial_events == Some(true),
            after: revision,
            changes: None,
            bookmarks: options.allow_watch_bookmarks.then(|| Bookmarks::until(deadline)),
            deadline: Box::pin(sleep_until(deadline)),
            shutdown: Box::pin(shutdown.clone().cancelled_owned()),
            shut_down: shutdown,
            done: false,
        };
        if from_now {
            match self.current_revision().await {
                Ok(revision) => watcher.after = revision,
                Err(status) => return Ok(stream::iter([WatchEvent::Error(status)]).boxed()),
            }
        }
        Ok(stream::unfold(watcher, |mut watcher| async move {
            let event = watcher.next().await?;
            Some((event, watcher))
        })
        .boxed())
    }
}

// === impl Bookmarks ===

impl Bookmarks {
    fn until(deadline: Instant) -> Self {
        let last = deadline.checked_sub(BOOKMARK_BEFORE_END).unwrap_or(deadline);
        Self { next: Box::pin(sleep_until(Self::after(Instant::now(), last))), last, asked: false }
    }

    fn asked(&mut self) {
        self.asked = true;
        self.next.as_mut().reset(Self::after(Instant::now(), self.last));
    }

    fn after(now: Instant, last: Instant) -> Instant {
        let regular = now + BOOKMARK_EVERY;
        if now < last { regular.min(last) } else { regular }
    }
}

// === impl Watcher ===

impl<S: Strategy> Watcher<S> {
    async fn next(&mut self) -> Option<WatchEvent<S::Object>> {
        while !self.done {
            if self.shut_down.is_cancelled() || self.deadline.is_elapsed() {
                return None;
            }
            while let Some(kv) = self.unsaid.next() {
                match self.store.decode(&kv) {
                    Ok(object) if self.selection.matches(&object) => return Some(WatchEvent::Added(object)),
                    Ok(_) => {}
                    Err(status) => return self.end_with(status),
                }
            }
            if let Some((start, at)) = self.initial.take() {
                match self.store.part(&self.range, start.as_deref(), INITIAL_PART, at).await {
                    Ok(part) => {
                        (self.unsaid, self.after) = (part.items.into_iter(), part.revision);
                        self.initial = part.next.map(|start| (Some(start), Freshness::Exact(part.revision)));
                    }
                    Err(error) => return self.fail(error),
                }
                continue;
            }
            if std::mem::take(&mut self.end_unsaid) {
                return Some(WatchEvent::Bookmark { revision: self.after, initial_events_end: true });
            }
            // The changes are asked for only now: a slow reader of what was there first is no slow reader of changes.
            if self.changes.is_none() {
                let range = match &self.range {
                    Range::Key(key) => WatchRange::Key(key),
                    Range::Prefix(prefix) => WatchRange::Prefix(prefix),
                };
                match self.store.storage().watch(range, self.after).await {
                    Ok(watch) => self.changes = Some(watch),
                    Err(error) => return self.fail(error),
                }
            }
            match self.turn().await {
                Turn::End => return None,
                Turn::Ask => {
                    if let (Some(bookmarks), Some(changes)) = (&mut self.bookmarks, &self.changes) {
                        bookmarks.asked();
                        (changes.progress)();
                    }
                }
                Turn::Change(None) => return None,
                Turn::Change(Some(Err(error))) => return self.fail(error),
                Turn::Change(Some(Ok(event))) => match self.translate(event) {
                    Ok(Some(event)) => return Some(event),
                    Ok(None) => {}
                    Err(status) => return self.end_with(status),
                },
            }
        }
        None
    }

    async fn turn(&mut self) -> Turn {
        let Some(changes) = &mut self.changes else { return Turn::End };
        let bookmark = async {
            match &mut self.bookmarks {
                Some(bookmarks) => bookmarks.next.as_mut().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.shutdown.as_mut() => Turn::End,
            () = self.deadline.as_mut() => Turn::End,
            () = bookmark => Turn::Ask,
            change = changes.events.next() => Turn::Change(change),
        }
    }

    fn end_with(&mut self, status: Status) -> Option<WatchEvent<S::Object>> {
        self.done = true;
        Some(WatchEvent::Error(status))
    }

    /// Most failures are told. When the storage cannot be reached, or the reader is too slow, the watch just ends: the
    /// client comes back with the resource version that it has, and misses nothing.
    fn fail(&mut self, error: StorageError) -> Option<WatchEvent<S::Object>> {
        match error {
            StorageError::SlowReader | StorageError::Unavailable(_) | StorageError::Timeout(_)
                if self.changes.is_some() =>
            {
                tracing::warn!(resource = %self.store.resource(), %error, "a watch ends");
                self.done = true;
                None
            }
            error => {
                let status = self.store.storage_error(error, Operation::Watch);
                self.end_with(status)
            }
        }
    }

    fn translate(&mut self, event: Event) -> Result<Option<WatchEvent<S::Object>>, Status> {
        match event {
            Event::Put { kv, previous } => {
                self.after = kv.mod_revision;
                self.put(&kv, previous.as_ref())
            }
            Event::Deleted { previous, revision } => {
                self.after = revision;
                self.left(&previous, revision)
            }
            Event::Progress(revision) => {
                self.after = self.after.max(revision);
                let due = self.bookmarks.as_mut().is_some_and(|b| std::mem::take(&mut b.asked));
                Ok(due.then_some(WatchEvent::Bookmark { revision: self.after, initial_events_end: false }))
            }
        }
    }

    fn put(&self, kv: &KeyValue, previous: Option<&KeyValue>) -> Result<Option<WatchEvent<S::Object>>, Status> {
        let object = self.store.decode(kv)?;
        let matches = self.selection.matches(&object);
        let Some(previous) = previous else { return Ok(matches.then_some(WatchEvent::Added(object))) };
        if self.selection.is_everything() {
            return Ok(Some(WatchEvent::Modified(object)));
        }
        match (matches, self.selection.matches(&self.store.decode(previous)?)) {
            (true, true) => Ok(Some(WatchEvent::Modified(object))),
            (true, false) => Ok(Some(WatchEvent::Added(object))),
            (false, true) => self.left(previous, kv.mod_revision),
            (false, false) => Ok(None),
        }
    }

    /// The object is out of the watcher's sight: its last state, with the revision at which it left.
    fn left(&self, previous: &KeyValue, revision: Revision) -> Result<Option<WatchEvent<S::Object>>, Status> {
        let mut object = self.store.decode(previous)?;
        if !self.selection.matches(&object) {
            return Ok(None);
        }
        object.metadata_mut().resource_version = Some(revision.0.to_string());
        Ok(Some(WatchEvent::Deleted(object)))
    }
}
