//! Objects at hand: the copy that an informer keeps.

use std::{sync::Arc, time::Duration};

use apiserver::{
    registry::{Change, Informer, Store},
    storage::{Expected, Freshness, Storage},
};
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    api::{Api, FLUNDERS, flunder},
    flunder::{Flunder, Flunders},
};

const PATIENCE: Duration = Duration::from_secs(20);

/// What an informer's handler was told.
#[derive(Clone, Default)]
pub(crate) struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    /// What was told since the last time.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// An informer, and what its handler is told.
pub(crate) fn told() -> (Arc<Informer<Flunder>>, Told) {
    let told = Told::default();
    let log = Arc::clone(&told.0);
    let informer = Informer::new().on_change(move |change: &Change<'_, Flunder>| {
        let line = |verb: &str, object: &Flunder| {
            format!("{verb} {} {}", object.metadata.name.as_deref().unwrap_or_default(), object.size)
        };
        log.lock().push(match change {
            Change::Applied { old: Some(old), new } => format!("{} was {}", line("applied", new), old.size),
            Change::Applied { old: None, new } => line("applied", new),
            Change::Deleted { old } => line("deleted", old),
        });
    });
    (Arc::new(informer), told)
}

/// The key of a flunder in `default`.
pub(crate) fn key(name: &str) -> String {
    format!("/wardle.example.com/flunders/default/{name}")
}

/// A flunder as it is stored.
pub(crate) fn stored(name: &str, size: i64) -> Bytes {
    let object = json!({
        "apiVersion": "wardle.example.com/v1beta1", "kind": "Flunder",
        "metadata": { "name": name, "namespace": "default" }, "spec": { "size": size },
    });
    object.to_string().into()
}

/// Follows until the handle is dropped.
pub(crate) fn follow(informer: &Arc<Informer<Flunder>>, store: &Store<Flunders>) -> AbortOnDropHandle<()> {
    let (informer, store) = (Arc::clone(informer), store.clone());
    AbortOnDropHandle::new(tokio::spawn(async move { informer.follow(&store, CancellationToken::new()).await }))
}

#[tokio::test]
async fn a_copy_is_filled_and_followed_and_tells_each_change_once() {
    let api = Api::new().await;
    let store = api.handler.store().clone();
    api.make("a").await;
    let (informer, log) = told();
    assert!(informer.get("default", "a").is_none());
    let _following = follow(&informer, &store);
    informer.ready().await;
    assert_eq!((informer.all().len(), log.take()), (1, vec!["applied a 3".to_owned()]));

    api.post(&FLUNDERS.replace("default", "other"), &flunder("a")).await.is(201);
    let changed = api.merge(&format!("{FLUNDERS}/a"), &json!({ "spec": { "size": 4 } })).await.is(200);
    informer.confirm(&store, PATIENCE).await.unwrap();
    let seen = informer.get("default", "a").unwrap();
    assert_eq!(seen.metadata.resource_version.as_deref(), changed["metadata"]["resourceVersion"].as_str());
    assert_eq!(informer.get("other", "a").unwrap().size, 3);
    api.delete(&format!("{FLUNDERS}/a"), None).await.is(200);
    informer.confirm(&store, PATIENCE).await.unwrap();
    assert!(informer.get("default", "a").is_none());
    assert_eq!(log.take(), ["applied a 3", "applied a 4 was 3", "deleted a 4"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_before_a_confirmation_is_seen_after_it() {
    let api = Api::new().await;
    let store = api.handler.store().clone();
    let (informer, _) = told();
    let _following = follow(&informer, &store);
    let storage = Arc::clone(&api.storage);
    // Somebody else writes all the time, to keys that the copy is not told of.
    let _others = AbortOnDropHandle::new(tokio::spawn(async move {
        for i in 0.. {
            write(&*storage, "/wardle.example.com/fischers/default/f", i).await;
            tokio::task::yield_now().await;
        }
    }));
    for size in 1..=30 {
        write(&*api.storage, &key("a"), size).await;
        informer.confirm(&store, PATIENCE).await.unwrap();
        assert!(informer.get("default", "a").unwrap().size >= size, "{size}");
        if size % 10 == 0 {
            let kv = api.storage.get(&key("a"), Freshness::Latest).await.unwrap().kv.unwrap();
            api.storage.delete(&key("a"), kv.mod_revision).await.unwrap();
            informer.confirm(&store, PATIENCE).await.unwrap();
            assert!(informer.get("default", "a").is_none());
        }
    }
}

/// Writes a flunder, whatever is there.
async fn write(storage: &dyn Storage, key: &str, size: i64) {
    let now = storage.get(key, Freshness::Latest).await.unwrap().kv;
    let expected = now.map_or(Expected::Absent, |kv| Expected::At(kv.mod_revision));
    storage.put(key, expected, stored("a", size), None).await.unwrap();
}

#[tokio::test]
async fn a_copy_that_nobody_keeps_is_not_confirmed() {
    let api = Api::new().await;
    api.make("a").await;
    let status = told().0.confirm(api.handler.store(), Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(status.code(), 504);
}

#[tokio::test]
async fn what_can_no_longer_be_read_is_no_longer_seen() {
    let api = Api::new().await;
    let store = api.handler.store().clone();
    let (informer, log) = told();
    let _following = follow(&informer, &store);
    write(&*api.storage, &key("a"), 1).await;
    informer.confirm(&store, PATIENCE).await.unwrap();
    let now = api.storage.get(&key("a"), Freshness::Latest).await.unwrap().kv.unwrap();
    let garbage = Bytes::from_static(b"garbage");
    api.storage.put(&key("a"), Expected::At(now.mod_revision), garbage, None).await.unwrap();
    informer.confirm(&store, PATIENCE).await.unwrap();
    assert!(informer.get("default", "a").is_none(), "not what it was before");
    // Being gone is not told twice, and what comes back is new.
    let now = api.storage.get(&key("a"), Freshness::Latest).await.unwrap().kv.unwrap();
    api.storage.delete(&key("a"), now.mod_revision).await.unwrap();
    write(&*api.storage, &key("a"), 2).await;
    informer.confirm(&store, PATIENCE).await.unwrap();
    assert_eq!(log.take(), ["applied a 1", "deleted a 1", "applied a 2"]);
}
