//! The suite that every backend of [`Storage`] passes, this library's and others'.
//!
//! A test of a backend makes a fresh store for each case:
//!
//! ```
//! use std::sync::Arc;
//! use apiserver::storage::memory::Memory;
//!
//! apiserver::storage_suite!(memory, async || Arc::new(Memory::default()));
//! # fn main() {}
//! ```
//!
//! That makes a module with one `#[test]` per case. What the maker returns is held until the case is over, so it can be a
//! struct with the process or directory that the store needs and an `impl` of [`Fixture`].
//!
//! The store must be empty, disposable, and written to by nobody else: cases compact it and count revisions. Cases wait for
//! what must come by polling, for [`PATIENCE`] at most; nothing depends on how fast the backend is.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a suite fails by panicking")]

mod compaction;
mod reads;
mod watches;
mod writes;

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt as _;
use tokio::time::{Instant, timeout};

pub use self::{compaction::*, reads::*, watches::*, writes::*};
use super::{
    Event, Expected, Freshness, KeyValue, ListRange, Page, Revision, Storage, StorageError, Watch, WatchRange, Written,
};

/// How long a case waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// A store under test, and whatever has to live as long as it does.
pub trait Fixture {
    /// The store.
    fn storage(&self) -> Arc<dyn Storage>;
}

impl<S: Storage> Fixture for Arc<S> {
    fn storage(&self) -> Arc<dyn Storage> {
        Arc::<S>::clone(self)
    }
}

/// Makes a module of tests, one for each case of the suite, from its name and an async closure that makes a [`Fixture`].
#[macro_export]
macro_rules! storage_suite {
    ($module:ident, $make:expr) => {
        $crate::storage_suite! { @cases $module, $make;
            // reads
            get_of_nothing, get_sees_writes, get_at_a_revision, get_not_older_than, get_any_converges,
            list_of_nothing, list_is_ordered_and_bounded_by_its_prefix, list_pages, list_at_a_revision,
            list_not_older_than, list_starts_anywhere, reads_refuse_what_is_no_key,
            // writes
            put_creates_once, put_updates_what_was_seen, delete_removes_what_was_seen, revision_zero_is_never_met,
            writes_have_revisions_of_their_own, values_come_back_as_they_were, large_values_pass_or_are_refused_as_such,
            racing_writers_lose_nothing, keys_with_a_ttl_end, a_write_without_ttl_releases_the_key,
            a_ready_store_says_so,
            // watches
            watch_tells_what_happens, watch_one_key, watch_from_the_past, watch_misses_nothing_between_list_and_watch,
            watch_from_the_future_waits, watch_stays_in_its_range, watch_tells_removal_and_creation_apart,
            watch_tells_the_end_of_a_ttl, watch_progress_without_writes, watch_progress_comes_after_events,
            watch_progress_advances_with_foreign_writes, watch_delivers_bursts_to_a_late_reader,
            watches_are_independent, dropped_watches_do_no_harm, all_watches_tell_the_same,
            // compaction
            compaction_forgets_the_past, compaction_keeps_the_present, compaction_refuses_the_past_and_the_future,
            watch_from_a_compacted_revision_ends, watch_from_the_compacted_revision_works,
            running_watches_outlive_compaction, paged_lists_end_at_compaction, turns_compact_to_the_turn_before,
            turns_are_shared, turns_are_taken_over,
        }
    };
    (@cases $module:ident, $make:expr; $($case:ident),* $(,)?) => {
        mod $module {
            #[allow(unused_imports, reason = "what $make needs of its surroundings is unknown here")]
            use super::*;
            $(
                #[test]
                fn $case() {
                    $crate::storage::testing::run($make, $crate::storage::testing::$case);
                }
            )*
        }
    };
}

/// Runs one case on a store of its own.
pub fn run<F: Fixture>(make: impl AsyncFnOnce() -> F, case: impl AsyncFnOnce(Arc<dyn Storage>)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let fixture = make().await;
        case(fixture.storage()).await;
    });
}

// === What the cases are written in ===

const DIR: &str = "/things/";

/// A key of the directory that the cases use.
fn key(name: &str) -> String {
    format!("{DIR}{name}")
}

fn value(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn kv(key: &str, text: &str, revision: Revision) -> KeyValue {
    KeyValue { key: key.to_owned(), value: value(text), mod_revision: revision }
}

/// Creates a key that must not exist.
async fn create(store: &dyn Storage, key: &str, text: &str) -> Revision {
    done(store.put(key, Expected::Absent, value(text), None).await)
}

/// Writes a key that was last written at `seen`.
async fn update(store: &dyn Storage, key: &str, seen: Revision, text: &str) -> Revision {
    done(store.put(key, Expected::At(seen), value(text), None).await)
}

/// Removes a key that was last written at `seen`.
async fn remove(store: &dyn Storage, key: &str, seen: Revision) -> Revision {
    done(store.delete(key, seen).await)
}

#[track_caller]
fn done(outcome: Result<Written, StorageError>) -> Revision {
    match outcome {
        Ok(Written::Done(revision)) => revision,
        other => panic!("the write should have happened: {other:?}"),
    }
}

#[track_caller]
fn conflict(outcome: Result<Written, StorageError>) -> Option<KeyValue> {
    match outcome {
        Ok(Written::Conflict(kv)) => kv,
        other => panic!("the write should have met a conflict: {other:?}"),
    }
}

async fn get(store: &dyn Storage, key: &str, at: Freshness) -> Option<KeyValue> {
    store.get(key, at).await.expect("a read").kv
}

async fn list(store: &dyn Storage, at: Freshness) -> Page {
    list_from(store, None, 0, at).await.expect("a list")
}

async fn list_from(
    store: &dyn Storage,
    start: Option<&str>,
    limit: usize,
    at: Freshness,
) -> Result<Page, StorageError> {
    store.list(ListRange { prefix: DIR, start, limit, at }).await
}

fn names(page: &Page) -> Vec<&str> {
    page.items.iter().map(|kv| kv.key.strip_prefix(DIR).unwrap_or(&kv.key)).collect()
}

async fn watch(store: &dyn Storage, after: Revision) -> Watch {
    store.watch(WatchRange::Prefix(DIR), after).await.expect("a watch")
}

/// What must come. What nobody announced does not count: a last look when the time is up would find it.
async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        () = tokio::time::sleep(PATIENCE) => panic!("it should have come within {PATIENCE:?}"),
        it = what => it,
    }
}

/// The next event that is not a progress notice nobody asked for.
async fn next(watch: &mut Watch) -> Event {
    let next = async {
        loop {
            match watch.events.next().await {
                Some(Ok(Event::Progress(_))) => {}
                Some(Ok(event)) => return event,
                other => panic!("the watch should go on: {other:?}"),
            }
        }
    };
    in_time(next).await
}

/// Asks for progress until everything up to `least` is told. Answers what was told meanwhile, and up to where.
async fn progress(watch: &mut Watch, least: Revision) -> (Vec<Event>, Revision) {
    let deadline = Instant::now() + PATIENCE;
    let mut told = Vec::new();
    loop {
        assert!(Instant::now() < deadline, "no progress to {least:?} in time; told so far: {told:?}");
        (watch.progress)();
        match timeout(Duration::from_millis(100), watch.events.next()).await {
            Ok(Some(Ok(Event::Progress(revision)))) if revision >= least => return (told, revision),
            Ok(Some(Ok(Event::Progress(_)))) | Err(_) => {}
            Ok(Some(Ok(event))) => told.push(event),
            Ok(other) => panic!("the watch should go on: {other:?}"),
        }
    }
}

/// The error that a watch, opened or not, ends with.
async fn end(watch: Result<Watch, StorageError>) -> StorageError {
    let mut watch = match watch {
        Ok(watch) => watch,
        Err(error) => return error,
    };
    match in_time(watch.events.next()).await {
        Some(Err(error)) => {
            let more = in_time(watch.events.next()).await;
            assert!(more.is_none(), "after an error nothing comes: {more:?}");
            error
        }
        other => panic!("the watch should have ended: {other:?}"),
    }
}

#[track_caller]
fn assert_put(event: &Event, expected: &KeyValue, before: Option<&KeyValue>) {
    match event {
        Event::Put { kv, previous } => assert_eq!((kv, previous.as_ref()), (expected, before)),
        other => panic!("a write was to be told, not {other:?}"),
    }
}

#[track_caller]
fn assert_deleted(event: &Event, before: &KeyValue, at: Revision) {
    match event {
        Event::Deleted { previous, revision } => assert_eq!((previous, *revision), (before, at)),
        other => panic!("a removal was to be told, not {other:?}"),
    }
}

fn revision_of(event: &Event) -> Revision {
    match event {
        Event::Put { kv, .. } => kv.mod_revision,
        Event::Deleted { revision, .. } | Event::Progress(revision) => *revision,
    }
}

/// Asks again and again until the answer is yes.
async fn eventually<F: Future<Output = bool>>(what: &str, ask: impl Fn() -> F) {
    let deadline = Instant::now() + PATIENCE;
    while !ask().await {
        assert!(Instant::now() < deadline, "in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_macro_lists_every_case() {
        let listed = include_str!("testing.rs");
        for source in [
            include_str!("testing/reads.rs"),
            include_str!("testing/writes.rs"),
            include_str!("testing/watches.rs"),
            include_str!("testing/compaction.rs"),
        ] {
            let cases = source.lines().filter_map(|line| line.strip_prefix("pub async fn ")?.split('(').next());
            for case in cases {
                assert!(listed.contains(&format!(" {case},")), "{case} is missing in storage_suite!");
            }
        }
    }
}
