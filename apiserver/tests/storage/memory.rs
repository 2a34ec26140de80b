//! What the store in memory promises beyond the suite: bounds.

use std::{sync::Arc, time::Duration};

use apiserver::storage::{
    Event, Expected, Freshness, Revision, Storage, StorageError, WatchRange, Written,
    memory::{Memory, MemoryOptions},
    testing::PATIENCE,
};
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::time::timeout;

async fn write(store: &Memory, key: &str, size: usize) -> Revision {
    let expected = match store.get(key, Freshness::Latest).await.unwrap().kv {
        Some(kv) => Expected::At(kv.mod_revision),
        None => Expected::Absent,
    };
    match store.put(key, expected, Bytes::from(vec![b'x'; size]), None).await.unwrap() {
        Written::Done(revision) => revision,
        Written::Conflict(kv) => panic!("{kv:?}"),
    }
}

#[tokio::test]
async fn a_slow_reader_is_ended_and_the_others_are_not() {
    let store = Memory::new(MemoryOptions { watch_queue: 3, ..MemoryOptions::default() });
    let slow = store.watch(WatchRange::Prefix("/a/"), Revision(0)).await.unwrap();
    let other = store.watch(WatchRange::Prefix("/b/"), Revision(0)).await.unwrap();
    for _ in 0..5 {
        write(&store, "/a/x", 1).await;
    }
    let b = write(&store, "/b/x", 1).await;
    let mut told: Vec<_> = timeout(PATIENCE, slow.events.collect()).await.unwrap();
    let last = told.pop();
    assert!(matches!(last, Some(Err(StorageError::SlowReader))), "{last:?}");
    assert_eq!(told.len(), 3, "what was queued is told first: {told:?}");
    assert!(told.iter().all(Result::is_ok));
    let mut other = other;
    match timeout(PATIENCE, other.events.next()).await.unwrap() {
        Some(Ok(Event::Put { kv, .. })) => assert_eq!(kv.mod_revision, b),
        event => panic!("{event:?}"),
    }
}

#[tokio::test]
async fn what_was_missed_does_not_count_as_slowness() {
    let store = Memory::new(MemoryOptions { watch_queue: 2, ..MemoryOptions::default() });
    for _ in 0..10 {
        write(&store, "/a/x", 1).await;
    }
    let mut watch = store.watch(WatchRange::Prefix("/a/"), Revision(1)).await.unwrap();
    write(&store, "/a/x", 1).await;
    write(&store, "/a/x", 1).await;
    for _ in 0..12 {
        timeout(PATIENCE, watch.events.next()).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn history_is_bounded_by_number() {
    let store = Memory::new(MemoryOptions { history_changes: 10, ..MemoryOptions::default() });
    let kept = write(&store, "/a/kept", 1).await;
    let mut last = kept;
    for _ in 0..30 {
        last = write(&store, "/a/x", 1).await;
    }
    let at = |revision| store.get("/a/x", Freshness::Exact(Revision(revision)));
    let oldest = match at(kept.0).await {
        Err(StorageError::Compacted { oldest: Some(oldest) }) => oldest,
        other => panic!("{other:?}"),
    };
    assert_eq!(oldest.0, last.0 - 9, "ten changes");
    assert!(at(oldest.0).await.unwrap().kv.is_some());
    assert!(at(oldest.0 - 1).await.is_err());
    assert!(store.watch(WatchRange::Prefix("/a/"), Revision(oldest.0 - 1)).await.is_ok());
    let gap = store.watch(WatchRange::Prefix("/a/"), Revision(oldest.0 - 2)).await;
    assert!(matches!(gap.err(), Some(StorageError::Compacted { .. })));
    // Keys are no history.
    assert_eq!(store.get("/a/kept", Freshness::Latest).await.unwrap().kv.unwrap().mod_revision, kept);
}

#[tokio::test]
async fn history_is_bounded_by_size() {
    let store = Memory::new(MemoryOptions { history_bytes: 100_000, ..MemoryOptions::default() });
    let first = write(&store, "/a/x", 10_000).await;
    for _ in 0..20 {
        write(&store, "/a/x", 10_000).await;
    }
    let old = store.get("/a/x", Freshness::Exact(first)).await;
    assert!(matches!(old, Err(StorageError::Compacted { .. })), "{old:?}");
    // A change larger than the bound stays until the next one.
    let large = write(&store, "/a/x", 200_000).await;
    assert_eq!(store.get("/a/x", Freshness::Exact(large)).await.unwrap().kv.unwrap().value.len(), 200_000);
}

#[tokio::test]
async fn a_watch_ends_with_its_store() {
    let store = Memory::default();
    let mut watch = store.watch(WatchRange::Prefix("/a/"), Revision(0)).await.unwrap();
    // Time to live keeps a task, and that must not keep the store.
    let ttl = Some(Duration::from_secs(3600));
    store.put("/a/x", Expected::Absent, Bytes::new(), ttl).await.unwrap();
    assert!(matches!(timeout(PATIENCE, watch.events.next()).await.unwrap(), Some(Ok(Event::Put { .. }))));
    drop(store);
    let end = timeout(PATIENCE, watch.events.next()).await.unwrap();
    assert!(matches!(end, Some(Err(StorageError::Unavailable(_)))), "{end:?}");
    (watch.progress)();
}

#[tokio::test(start_paused = true)]
async fn keys_end_in_the_order_of_their_times() {
    let store = Arc::new(Memory::default());
    let mut watch = store.watch(WatchRange::Prefix("/a/"), Revision(0)).await.unwrap();
    for (key, seconds) in [("/a/30", 30), ("/a/10", 10), ("/a/20", 20)] {
        store.put(key, Expected::Absent, Bytes::new(), Some(Duration::from_secs(seconds))).await.unwrap();
    }
    let mut gone = Vec::new();
    while gone.len() < 3 {
        let event = timeout(Duration::from_secs(60), watch.events.next()).await.expect("an event in time");
        if let Event::Deleted { previous, .. } = event.unwrap().unwrap() {
            gone.push(previous.key);
        }
    }
    assert_eq!(gone, ["/a/10", "/a/20", "/a/30"]);
}
