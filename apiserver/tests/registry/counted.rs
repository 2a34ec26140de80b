//! How often the storage is asked, and what becomes of a copy that it was not told everything: on the storage in memory,
//! where that can be brought about.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use apiserver::{
    registry::Informer,
    storage::{Expected, Freshness, Storage as _, memory::MemoryOptions},
};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    api::{Api, FLUNDERS, flunder},
    counting::Counting,
    flunder::{Flunder, Flunders},
    informer::{follow, key, stored, told},
};

#[tokio::test(start_paused = true)]
async fn a_read_of_the_future_asks_the_storage_seldom() {
    let storage = Arc::new(Counting::default());
    let api = Api::over(storage.clone(), Flunders::default(), Vec::new()).await;
    api.make("a").await;
    for uri in [
        format!("{FLUNDERS}/a?resourceVersion=1000000"),
        format!("{FLUNDERS}?resourceVersion=1000000&resourceVersionMatch=NotOlderThan"),
    ] {
        let before = storage.reads();
        let begin = tokio::time::Instant::now();
        api.get(&uri).await.fails(504);
        let reads = storage.reads() - before;
        assert!((5..=12).contains(&reads), "{uri}: {reads} reads");
        assert_eq!(begin.elapsed().as_secs(), 3, "{uri}");
    }
}

#[tokio::test]
async fn a_long_list_keeps_nobody_waiting() {
    let api = Api::new().await;
    let turns = Arc::new(AtomicUsize::new(0));
    let others = Arc::clone(&turns);
    let _others = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            others.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    }));
    for i in 0..2_048 {
        api.storage.put(&key(&format!("f{i}")), Expected::Absent, stored("f", 1), None).await.unwrap();
    }
    let gzip = ("accept-encoding", "gzip");
    for accept in ["application/json", "application/json;as=Table;g=meta.k8s.io;v=v1"] {
        let before = turns.load(Ordering::Relaxed);
        let list = api.send("GET", FLUNDERS, &[("accept", accept), gzip], b"").await;
        let turns = turns.load(Ordering::Relaxed) - before;
        assert!(list.code == 200 && turns >= 2 * (2_048 / 256), "{turns} turns while objects are read and written");
    }

    // Few objects, and large ones: it is the compression that takes its time.
    let large = FLUNDERS.replace("default", "large");
    for i in 0..20 {
        let mut object = flunder(&format!("f{i}"));
        object["metadata"]["annotations"] = json!({ "text": "x".repeat(100_000) });
        api.post(&large, &object).await.is(201);
    }
    let before = turns.load(Ordering::Relaxed);
    assert_eq!(api.send("GET", &large, &[gzip], b"").await.code, 200);
    assert!(turns.load(Ordering::Relaxed) > before);
}

/// Names and versions of all objects in the copy.
fn shown(informer: &Informer<Flunder>) -> Vec<(String, i64)> {
    informer.all().iter().map(|f| (f.metadata.name.clone().unwrap(), f.size)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_copy_loses_nothing_to_an_interruption() {
    let options = MemoryOptions { watch_queue: 3, ..MemoryOptions::default() };
    let storage = Arc::new(Counting::new(options));
    let api = Api::over(storage.clone(), Flunders::default(), Vec::new()).await;
    let store = api.handler.store().clone();
    for name in ["kept", "changed", "gone"] {
        storage.put(&key(name), Expected::Absent, stored(name, 1), None).await.unwrap();
    }
    let (informer, log) = told();
    let _following = follow(&informer, &store);
    informer.ready().await;
    informer.confirm(&store, Duration::from_secs(1)).await.unwrap();
    assert_eq!(log.take(), ["applied changed 1", "applied gone 1", "applied kept 1"]);
    assert_eq!(storage.watches(), 1);

    // More than the watch takes, at once: it ends, and the copy goes on where it was.
    for i in 0..10 {
        storage.put(&key(&format!("new{i}")), Expected::Absent, stored(&format!("new{i}"), i + 1), None).await.unwrap();
    }
    informer.confirm(&store, Duration::from_secs(10)).await.unwrap();
    assert_eq!(storage.watches(), 2, "it was interrupted");
    assert_eq!(log.take(), (0..10).map(|i| format!("applied new{i} {}", i + 1)).collect::<Vec<_>>());

    // The same, and what comes after the interruption is compacted before the copy goes on.
    for i in 0..10 {
        let name = key(&format!("new{i}"));
        let at = storage.get(&name, Freshness::Latest).await.unwrap().kv.unwrap().mod_revision;
        storage.delete(&name, at).await.unwrap();
    }
    let revision = |name: &str| {
        let (storage, name) = (storage.clone(), key(name));
        async move { storage.get(&name, Freshness::Latest).await.unwrap().kv.unwrap().mod_revision }
    };
    storage.delete(&key("gone"), revision("gone").await).await.unwrap();
    storage.put(&key("changed"), Expected::At(revision("changed").await), stored("changed", 2), None).await.unwrap();
    let now = storage.current_revision().await.unwrap();
    storage.compact(now).await.unwrap();
    let reads = storage.reads();
    informer.confirm(&store, Duration::from_secs(10)).await.unwrap();
    assert_eq!((storage.watches(), storage.reads()), (4, reads + 1), "it was filled anew");
    assert_eq!(shown(&informer), [("changed".to_owned(), 2), ("kept".to_owned(), 1)]);
    let mut changes = log.take();
    changes.sort();
    let mut expected: Vec<_> = (0..10).map(|i| format!("deleted new{i} {}", i + 1)).collect();
    expected.extend(["applied changed 2 was 1".to_owned(), "deleted gone 1".to_owned()]);
    expected.sort();
    assert_eq!(changes, expected, "each change is told once, and what has not changed is not told");
}
