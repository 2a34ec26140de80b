//! Gets and lists.

use super::*;

/// A key that does not exist is no error, and the answer says as of when.
pub async fn get_of_nothing(store: Arc<dyn Storage>) {
    let got = store.get(&key("a"), Freshness::Latest).await.unwrap();
    assert_eq!(got.kv, None);
    assert_eq!(got.revision, store.current_revision().await.unwrap());
    // Zero stands for "no revision", also in a store without a write.
    assert!(got.revision > Revision(0));
}

/// What was acknowledged is read, with the revision of its write, and the state's own revision besides.
pub async fn get_sees_writes(store: Arc<dyn Storage>) {
    let store = &*store;
    let first = create(store, &key("a"), "1").await;
    let other = create(store, &key("b"), "2").await;
    let got = store.get(&key("a"), Freshness::Latest).await.unwrap();
    assert_eq!(got.kv, Some(kv(&key("a"), "1", first)));
    assert_eq!(got.revision, other);
    let second = update(store, &key("a"), first, "3").await;
    assert_eq!(get(store, &key("a"), Freshness::Latest).await, Some(kv(&key("a"), "3", second)));
    remove(store, &key("a"), second).await;
    assert_eq!(get(store, &key("a"), Freshness::Latest).await, None);
    // A key is found by its whole name only.
    assert_eq!(get(store, "/things", Freshness::Latest).await, None);
    assert_eq!(get(store, &key("bb"), Freshness::Latest).await, None);
}

/// The past is read as it was, the future is told as such.
pub async fn get_at_a_revision(store: Arc<dyn Storage>) {
    let store = &*store;
    let empty = store.current_revision().await.unwrap();
    let first = create(store, &key("a"), "1").await;
    let second = update(store, &key("a"), first, "2").await;
    let gone = remove(store, &key("a"), second).await;
    let again = create(store, &key("a"), "3").await;
    for (at, expected) in [
        (empty, None),
        (first, Some(kv(&key("a"), "1", first))),
        (second, Some(kv(&key("a"), "2", second))),
        (gone, None),
        (again, Some(kv(&key("a"), "3", again))),
    ] {
        let got = store.get(&key("a"), Freshness::Exact(at)).await.unwrap();
        assert_eq!(got.kv, expected, "at {at:?}");
        assert_eq!(got.revision, at);
    }
    for ahead in [Revision(again.0 + 1), Revision(again.0 + 1000), Revision(u64::MAX)] {
        match store.get(&key("a"), Freshness::Exact(ahead)).await {
            Err(StorageError::Future { requested, current }) => assert_eq!((requested, current), (ahead, again)),
            other => panic!("{other:?} at {ahead:?}"),
        }
    }
    let zero = store.get(&key("a"), Freshness::Exact(Revision(0))).await;
    assert!(matches!(zero, Err(StorageError::Compacted { .. })), "{zero:?}");
}

/// "Not older" gives the newest, and refuses what is not there yet.
pub async fn get_not_older_than(store: Arc<dyn Storage>) {
    let store = &*store;
    let first = create(store, &key("a"), "1").await;
    let second = update(store, &key("a"), first, "2").await;
    for at in [Revision(0), first, second] {
        let got = store.get(&key("a"), Freshness::NotOlderThan(at)).await.unwrap();
        assert!(got.revision >= at);
        // One server alone is never behind what it acknowledged itself; several may be, within what was asked for.
        let kv = got.kv.unwrap();
        assert!(kv.mod_revision >= first.max(at), "{kv:?}");
    }
    match store.get(&key("a"), Freshness::NotOlderThan(Revision(second.0 + 1))).await {
        Err(StorageError::Future { requested, current }) => {
            assert_eq!((requested, current), (Revision(second.0 + 1), second));
        }
        other => panic!("{other:?}"),
    }
}

/// "Any" may be old, but not for ever.
pub async fn get_any_converges(store: Arc<dyn Storage>) {
    let revision = create(&*store, &key("a"), "1").await;
    eventually("a stale read sees the write", || async {
        let got = store.get(&key("a"), Freshness::Any).await.unwrap();
        got.revision >= revision && got.kv == Some(kv(&key("a"), "1", revision))
    })
    .await;
}

/// An empty list has a revision, from which it can be watched.
pub async fn list_of_nothing(store: Arc<dyn Storage>) {
    let current = store.current_revision().await.unwrap();
    for at in [Freshness::Latest, Freshness::Any, Freshness::NotOlderThan(current), Freshness::Exact(current)] {
        let page = list(&*store, at).await;
        assert!(page.items.is_empty() && page.remaining == 0);
        assert_eq!(page.revision, current);
    }
}

/// In the order of bytes, without the neighbours that only start alike, without the directory itself.
pub async fn list_is_ordered_and_bounded_by_its_prefix(store: Arc<dyn Storage>) {
    let store = &*store;
    for outside in ["/thing/a", "/things", "/things-old/a", "/things.x/a", "/things0", "/thingsa/b", "/a/things/a"] {
        create(store, outside, "no").await;
    }
    let inside = ["z", "a/2", "a", "Z", "a-1", "a/1", "a.b", "\u{e9}", "0"];
    for name in inside {
        create(store, &key(name), name).await;
    }
    let page = list(store, Freshness::Latest).await;
    assert_eq!(names(&page), ["0", "Z", "a", "a-1", "a.b", "a/1", "a/2", "z", "\u{e9}"]);
    assert!(page.items.iter().all(|kv| kv.key == key(std::str::from_utf8(&kv.value).unwrap())));
    let nested = store.list(ListRange { prefix: "/things/a/", start: None, limit: 0, at: Freshness::Latest }).await;
    assert_eq!(names(&nested.unwrap()), ["a/1", "a/2"]);
}

/// Pages of one revision follow each other without gap or overlap, whatever is written meanwhile, and know what is left.
pub async fn list_pages(store: Arc<dyn Storage>) {
    let store = &*store;
    let mut expected = Vec::new();
    for number in 0..7 {
        let name = format!("{number:02}");
        create(store, &key(&name), &name).await;
        expected.push(name);
    }
    let first = list_from(store, None, 3, Freshness::Latest).await.unwrap();
    let at = first.revision;
    assert_eq!((names(&first), first.remaining), (vec!["00", "01", "02"], 4));

    create(store, &key("021"), "late").await;
    remove(store, &key("05"), first.items[0].mod_revision.max(Revision(at.0 - 1))).await;

    let mut seen: Vec<String> = names(&first).into_iter().map(str::to_owned).collect();
    let mut last = first;
    while last.remaining > 0 {
        let start = format!("{}\0", last.items.last().unwrap().key);
        let page = list_from(store, Some(&start), 3, Freshness::Exact(at)).await.unwrap();
        assert_eq!(page.revision, at);
        seen.extend(names(&page).into_iter().map(str::to_owned));
        assert_eq!(seen.len() as u64 + page.remaining, 7);
        last = page;
    }
    assert_eq!(seen, expected);
    // A limit that is just enough leaves nothing.
    let all = list_from(store, None, 7, Freshness::Exact(at)).await.unwrap();
    assert_eq!((all.items.len(), all.remaining), (7, 0));
    // At the latest revision the list goes on with what there is now.
    let rest = list_from(store, Some("/things/02\0"), 0, Freshness::Latest).await.unwrap();
    assert_eq!(names(&rest), ["021", "03", "04", "06"]);
}

/// Any kept revision can be listed as it was.
pub async fn list_at_a_revision(store: Arc<dyn Storage>) {
    let store = &*store;
    let mut states = vec![(store.current_revision().await.unwrap(), vec![])];
    let a = create(store, &key("a"), "a1").await;
    states.push((a, vec![kv(&key("a"), "a1", a)]));
    let b = create(store, &key("b"), "b1").await;
    states.push((b, vec![kv(&key("a"), "a1", a), kv(&key("b"), "b1", b)]));
    let a2 = update(store, &key("a"), a, "a2").await;
    states.push((a2, vec![kv(&key("a"), "a2", a2), kv(&key("b"), "b1", b)]));
    let gone = remove(store, &key("a"), a2).await;
    states.push((gone, vec![kv(&key("b"), "b1", b)]));
    for (at, items) in &states {
        let page = list(store, Freshness::Exact(*at)).await;
        assert_eq!(&page.items, items, "at {at:?}");
        assert_eq!(page.revision, *at);
    }
    match list_from(store, None, 0, Freshness::Exact(Revision(gone.0 + 1))).await {
        Err(StorageError::Future { requested, current }) => assert_eq!((requested.0, current), (gone.0 + 1, gone)),
        other => panic!("{other:?}"),
    }
}

/// As for single keys.
pub async fn list_not_older_than(store: Arc<dyn Storage>) {
    let store = &*store;
    let revision = create(store, &key("a"), "1").await;
    for at in [Revision(0), revision] {
        let page = list(store, Freshness::NotOlderThan(at)).await;
        assert!(page.revision >= at);
    }
    assert_eq!(names(&list(store, Freshness::NotOlderThan(revision)).await), ["a"]);
    let ahead = list_from(store, None, 0, Freshness::NotOlderThan(Revision(revision.0 + 5))).await;
    assert!(matches!(ahead, Err(StorageError::Future { current, .. }) if current == revision), "{ahead:?}");
}

/// The start is inclusive, need not exist, and may lie after all keys.
pub async fn list_starts_anywhere(store: Arc<dyn Storage>) {
    let store = &*store;
    for name in ["a", "b", "c"] {
        create(store, &key(name), name).await;
    }
    for (start, expected) in [
        ("/things/", vec!["a", "b", "c"]),
        ("/things/b", vec!["b", "c"]),
        ("/things/b\0", vec!["c"]),
        ("/things/aa", vec!["b", "c"]),
        ("/things/zzz", vec![]),
        ("/things/\u{10ffff}", vec![]),
    ] {
        let page = list_from(store, Some(start), 0, Freshness::Latest).await.unwrap();
        assert_eq!((names(&page), page.remaining), (expected, 0), "from {start:?}");
    }
}

/// A slip in a key is an error and not an answer from elsewhere in the store.
pub async fn reads_refuse_what_is_no_key(store: Arc<dyn Storage>) {
    let internal = |error: StorageError| assert!(matches!(error, StorageError::Internal(_)), "{error:?}");
    for wrong in ["", "/", "a", "things/a"] {
        internal(store.get(wrong, Freshness::Latest).await.unwrap_err());
        internal(store.put(wrong, Expected::Absent, value("1"), None).await.unwrap_err());
        internal(store.delete(wrong, Revision(1)).await.unwrap_err());
    }
    for prefix in ["", "things/", "/things"] {
        let range = ListRange { prefix, start: None, limit: 0, at: Freshness::Latest };
        internal(store.list(range).await.unwrap_err());
        internal(store.watch(WatchRange::Prefix(prefix), Revision(0)).await.err().unwrap());
    }
    internal(list_from(&*store, Some("/other/a"), 0, Freshness::Latest).await.unwrap_err());
}
