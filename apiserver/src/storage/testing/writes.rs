//! Conditional writes, and keys that end by themselves.

use super::*;

/// Of two creations one happens; the other is told what is there.
pub async fn put_creates_once(store: Arc<dyn Storage>) {
    let first = create(&*store, &key("a"), "1").await;
    let second = store.put(&key("a"), Expected::Absent, value("2"), None).await;
    assert_eq!(conflict(second), Some(kv(&key("a"), "1", first)));
    assert_eq!(store.current_revision().await.unwrap(), first, "what did not happen has no revision");
    let gone = remove(&*store, &key("a"), first).await;
    let again = create(&*store, &key("a"), "3").await;
    assert!(first < gone && gone < again);
}

/// An update happens on what was seen and on nothing else.
pub async fn put_updates_what_was_seen(store: Arc<dyn Storage>) {
    let missing = store.put(&key("a"), Expected::At(Revision(1)), value("0"), None).await;
    assert_eq!(conflict(missing), None);
    let first = create(&*store, &key("a"), "1").await;
    let second = update(&*store, &key("a"), first, "2").await;
    for stale in [first, Revision(first.0 - 1), Revision(second.0 + 1), Revision(u64::MAX)] {
        let outcome = store.put(&key("a"), Expected::At(stale), value("3"), None).await;
        assert_eq!(conflict(outcome), Some(kv(&key("a"), "2", second)), "at {stale:?}");
    }
    // Writing the same value again is a write.
    let third = update(&*store, &key("a"), second, "2").await;
    assert!(third > second);
    assert_eq!(get(&*store, &key("a"), Freshness::Latest).await, Some(kv(&key("a"), "2", third)));
}

/// A removal happens on what was seen and on nothing else.
pub async fn delete_removes_what_was_seen(store: Arc<dyn Storage>) {
    assert_eq!(conflict(store.delete(&key("a"), Revision(1)).await), None);
    let first = create(&*store, &key("a"), "1").await;
    let second = update(&*store, &key("a"), first, "2").await;
    assert_eq!(conflict(store.delete(&key("a"), first).await), Some(kv(&key("a"), "2", second)));
    create(&*store, &key("aa"), "neighbour").await;
    let gone = remove(&*store, &key("a"), second).await;
    assert_eq!(store.current_revision().await.unwrap(), gone);
    assert_eq!(conflict(store.delete(&key("a"), second).await), None);
    assert_eq!(names(&list(&*store, Freshness::Latest).await), ["aa"]);
}

/// In etcd a comparison with revision zero says "absent"; here it says nothing.
pub async fn revision_zero_is_never_met(store: Arc<dyn Storage>) {
    let zero = Revision(0);
    let before = store.current_revision().await.unwrap();
    assert_eq!(conflict(store.put(&key("a"), Expected::At(zero), value("1"), None).await), None);
    assert_eq!(conflict(store.delete(&key("a"), zero).await), None);
    assert_eq!(store.current_revision().await.unwrap(), before);
    let there = create(&*store, &key("a"), "1").await;
    let found = Some(kv(&key("a"), "1", there));
    assert_eq!(conflict(store.put(&key("a"), Expected::At(zero), value("2"), None).await), found);
    assert_eq!(conflict(store.delete(&key("a"), zero).await), found);
}

/// Revisions are the store's and not the key's, and each is higher than the last.
pub async fn writes_have_revisions_of_their_own(store: Arc<dyn Storage>) {
    let mut last = store.current_revision().await.unwrap();
    for round in 0..10 {
        for dir in ["/things", "/others"] {
            let revision = create(&*store, &format!("{dir}/{round}"), "x").await;
            assert!(revision > last);
            assert_eq!(store.current_revision().await.unwrap(), revision);
            last = revision;
        }
    }
}

/// Values are bytes and nothing is done to them.
pub async fn values_come_back_as_they_were(store: Arc<dyn Storage>) {
    let all: Vec<u8> = (0..=255).collect();
    let large = vec![0xa5; 1 << 20];
    for (name, bytes) in [("empty", Vec::new()), ("all", all), ("large", large), ("k8s", b"k8s\0\n\x0c".to_vec())] {
        let bytes = Bytes::from(bytes);
        done(store.put(&key(name), Expected::Absent, bytes.clone(), None).await);
        assert_eq!(get(&*store, &key(name), Freshness::Latest).await.unwrap().value, bytes, "{name}");
    }
    assert_eq!(list(&*store, Freshness::Latest).await.items.iter().map(|kv| kv.value.len()).sum::<usize>(), {
        256 + (1 << 20) + 6
    });
}

/// A value is taken whole, or refused for its size and not written.
pub async fn large_values_pass_or_are_refused_as_such(store: Arc<dyn Storage>) {
    // Over etcd's limit for a request, and over what its gRPC server reads at all.
    for (name, size) in [("a", 1_600_000), ("b", 4_000_000)] {
        let bytes = Bytes::from(vec![7; size]);
        match store.put(&key(name), Expected::Absent, bytes.clone(), None).await {
            Ok(Written::Done(_)) => {
                assert_eq!(get(&*store, &key(name), Freshness::Latest).await.unwrap().value, bytes);
            }
            Err(StorageError::TooLarge(why)) => {
                assert!(!why.is_empty());
                assert_eq!(get(&*store, &key(name), Freshness::Latest).await, None);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Ten writers count one key up. Each success is one step, and the values tell the same as the revisions.
pub async fn racing_writers_lose_nothing(store: Arc<dyn Storage>) {
    create(&*store, &key("count"), "0").await;
    let count_up = |store: Arc<dyn Storage>| async move {
        for _ in 0..10 {
            let mut seen = get(&*store, &key("count"), Freshness::Latest).await.unwrap();
            loop {
                let count: u32 = std::str::from_utf8(&seen.value).unwrap().parse().unwrap();
                let next = value(&(count + 1).to_string());
                tokio::task::yield_now().await;
                match store.put(&key("count"), Expected::At(seen.mod_revision), next, None).await.unwrap() {
                    Written::Done(_) => break,
                    Written::Conflict(now) => seen = now.unwrap(),
                }
            }
        }
    };
    let writers: Vec<_> = (0..10).map(|_| tokio::spawn(count_up(Arc::clone(&store)))).collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(get(&*store, &key("count"), Freshness::Latest).await.unwrap().value, value("100"));
}

/// A key with a time to live ends, and not before its time.
pub async fn keys_with_a_ttl_end(store: Arc<dyn Storage>) {
    let began = Instant::now();
    let ttl = Duration::from_millis(1500); // rounded up to 2 s
    let revision = done(store.put(&key("a"), Expected::Absent, value("1"), Some(ttl)).await);
    create(&*store, &key("b"), "stays").await;
    assert_eq!(get(&*store, &key("a"), Freshness::Latest).await, Some(kv(&key("a"), "1", revision)));
    eventually("the key ends", || async { get(&*store, &key("a"), Freshness::Latest).await.is_none() }).await;
    assert!(began.elapsed() >= Duration::from_secs(2), "it ended after {:?}", began.elapsed());
    assert_eq!(names(&list(&*store, Freshness::Latest).await), ["b"]);
    // Then the key is free, and what was there can still be read.
    create(&*store, &key("a"), "2").await;
    assert_eq!(get(&*store, &key("a"), Freshness::Exact(revision)).await, Some(kv(&key("a"), "1", revision)));
}

/// The time to live belongs to the write, not to the key.
pub async fn a_write_without_ttl_releases_the_key(store: Arc<dyn Storage>) {
    let ttl = Some(Duration::from_secs(1));
    let first = done(store.put(&key("kept"), Expected::Absent, value("1"), ttl).await);
    let kept = update(&*store, &key("kept"), first, "2").await;
    let first = done(store.put(&key("renewed"), Expected::Absent, value("1"), ttl).await);
    let renewed =
        done(store.put(&key("renewed"), Expected::At(first), value("2"), Some(Duration::from_secs(3600))).await);
    done(store.put(&key("ends"), Expected::Absent, value("1"), ttl).await);
    eventually("the other key ends", || async { get(&*store, &key("ends"), Freshness::Latest).await.is_none() }).await;
    assert_eq!(
        list(&*store, Freshness::Latest).await.items,
        [kv(&key("kept"), "2", kept), kv(&key("renewed"), "2", renewed),]
    );
}

/// A store that answers reads says that it is ready.
pub async fn a_ready_store_says_so(store: Arc<dyn Storage>) {
    let before = store.current_revision().await.unwrap();
    store.ready().await.unwrap();
    store.ready().await.unwrap();
    assert_eq!(store.current_revision().await.unwrap(), before, "to ask writes nothing");
}
