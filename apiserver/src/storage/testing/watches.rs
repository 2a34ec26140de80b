//! Watches: reliable, in order, each event once, resumable.

use super::*;

/// Creation, update and removal are told with the states before and after.
pub async fn watch_tells_what_happens(store: Arc<dyn Storage>) {
    let store = &*store;
    let mut watch = watch(store, store.current_revision().await.unwrap()).await;
    let first = create(store, &key("a"), "1").await;
    let second = update(store, &key("a"), first, "2").await;
    let gone = remove(store, &key("a"), second).await;
    let again = create(store, &key("a"), "3").await;
    let (one, two) = (kv(&key("a"), "1", first), kv(&key("a"), "2", second));
    assert_put(&next(&mut watch).await, &one, None);
    assert_put(&next(&mut watch).await, &two, Some(&one));
    assert_deleted(&next(&mut watch).await, &two, gone);
    assert_put(&next(&mut watch).await, &kv(&key("a"), "3", again), None);
}

/// A watch of one key does not tell of keys that start alike.
pub async fn watch_one_key(store: Arc<dyn Storage>) {
    let store = &*store;
    let after = store.current_revision().await.unwrap();
    let mut watch = store.watch(WatchRange::Key("/things/a"), after).await.unwrap();
    create(store, "/things/aa", "no").await;
    create(store, "/things/a/b", "no").await;
    let first = create(store, "/things/a", "1").await;
    create(store, "/things/", "no").await;
    let gone = remove(store, "/things/a", first).await;
    assert_put(&next(&mut watch).await, &kv("/things/a", "1", first), None);
    assert_deleted(&next(&mut watch).await, &kv("/things/a", "1", first), gone);
}

/// Every event after the revision, which itself is excluded, then whatever comes.
pub async fn watch_from_the_past(store: Arc<dyn Storage>) {
    let store = &*store;
    let mut last = create(store, &key("a"), "0").await;
    let mut revisions = vec![last];
    for round in 1..6 {
        last = update(store, &key("a"), last, &round.to_string()).await;
        revisions.push(last);
    }
    for skipped in 0..revisions.len() {
        let mut watch = watch(store, revisions[skipped]).await;
        for expected in &revisions[skipped + 1..] {
            assert_eq!(revision_of(&next(&mut watch).await), *expected);
        }
    }
    let mut watch = watch(store, Revision(0)).await;
    for expected in &revisions {
        assert_eq!(revision_of(&next(&mut watch).await), *expected);
    }
    let new = update(store, &key("a"), last, "new").await;
    assert_put(&next(&mut watch).await, &kv(&key("a"), "new", new), Some(&kv(&key("a"), "5", last)));
}

/// A list and a watch after it, together, are the state at every later time, however many write meanwhile.
pub async fn watch_misses_nothing_between_list_and_watch(store: Arc<dyn Storage>) {
    let write = |store: Arc<dyn Storage>, writer: u32| async move {
        for round in 0..20 {
            let name = key(&format!("{writer}-{}", round % 3));
            let seen = get(&*store, &name, Freshness::Latest).await;
            match seen {
                Some(seen) if round % 4 == 3 => drop(store.delete(&name, seen.mod_revision).await.unwrap()),
                Some(seen) => {
                    done(store.put(&name, Expected::At(seen.mod_revision), value(&round.to_string()), None).await);
                }
                None => {
                    done(store.put(&name, Expected::Absent, value(&round.to_string()), None).await);
                }
            }
        }
    };
    let writers: Vec<_> = (0..4).map(|writer| tokio::spawn(write(Arc::clone(&store), writer))).collect();
    let mut followers = Vec::new();
    for _ in 0..5 {
        tokio::task::yield_now().await;
        let page = list(&*store, Freshness::Latest).await;
        let watch = watch(&*store, page.revision).await;
        followers.push((page, watch));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let end = list(&*store, Freshness::Latest).await;
    for (page, mut watch) in followers {
        let mut state: std::collections::BTreeMap<_, _> =
            page.items.into_iter().map(|kv| (kv.key.clone(), kv)).collect();
        let mut last = page.revision;
        let (events, _) = progress(&mut watch, end.revision).await;
        for event in events {
            assert!(revision_of(&event) > last, "in order, each once: {event:?} after {last:?}");
            last = revision_of(&event);
            match event {
                Event::Put { kv, previous } => assert_eq!(state.insert(kv.key.clone(), kv), previous),
                Event::Deleted { previous, .. } => assert_eq!(state.remove(&previous.key), Some(previous)),
                Event::Progress(_) => {}
            }
        }
        assert_eq!(state.into_values().collect::<Vec<_>>(), end.items);
    }
}

/// A revision that is not there yet is waited for, and what comes before it is not told.
pub async fn watch_from_the_future_waits(store: Arc<dyn Storage>) {
    let store = &*store;
    let current = store.current_revision().await.unwrap();
    let mut watch = watch(store, Revision(current.0 + 2)).await;
    (watch.progress)();
    let early = timeout(Duration::from_millis(200), watch.events.next()).await;
    assert!(early.is_err(), "nothing is to be told of a revision that does not exist: {early:?}");
    let mut last = create(store, &key("a"), "0").await;
    for round in 1..4 {
        last = update(store, &key("a"), last, &round.to_string()).await;
    }
    let first = match in_time(watch.events.next()).await {
        Some(Ok(event)) => event,
        other => panic!("{other:?}"),
    };
    assert!(revision_of(&first) >= Revision(current.0 + 2), "{first:?}");
    let event = if matches!(first, Event::Progress(_)) { next(&mut watch).await } else { first };
    assert_eq!(revision_of(&event), Revision(current.0 + 3));
    // As far ahead as can be said.
    let mut never = store.watch(WatchRange::Prefix(DIR), Revision(u64::MAX)).await.unwrap();
    update(store, &key("a"), last, "x").await;
    assert!(timeout(Duration::from_millis(200), never.events.next()).await.is_err());
}

/// Keys that only start like the directory are not told.
pub async fn watch_stays_in_its_range(store: Arc<dyn Storage>) {
    let store = &*store;
    let mut watch = watch(store, store.current_revision().await.unwrap()).await;
    for outside in ["/thing/a", "/things", "/things-old/a", "/things0", "/thingsa"] {
        create(store, outside, "no").await;
    }
    let inside = create(store, &key("a/b/c"), "yes").await;
    assert_put(&next(&mut watch).await, &kv(&key("a/b/c"), "yes", inside), None);
}

/// A key removed and made again is new; its older life is told of as removed.
pub async fn watch_tells_removal_and_creation_apart(store: Arc<dyn Storage>) {
    let store = &*store;
    let before = store.current_revision().await.unwrap();
    for text in ["1", "2", "3"] {
        let revision = create(store, &key("a"), text).await;
        remove(store, &key("a"), revision).await;
    }
    let mut watch = watch(store, before).await;
    for text in ["1", "2", "3"] {
        let event = next(&mut watch).await;
        let created = revision_of(&event);
        assert_put(&event, &kv(&key("a"), text, created), None);
        assert_deleted(&next(&mut watch).await, &kv(&key("a"), text, created), Revision(created.0 + 1));
    }
}

/// A key that ends by itself is told like one that was removed.
pub async fn watch_tells_the_end_of_a_ttl(store: Arc<dyn Storage>) {
    let mut watch = watch(&*store, store.current_revision().await.unwrap()).await;
    let ttl = Some(Duration::from_secs(1));
    let revision = done(store.put(&key("a"), Expected::Absent, value("1"), ttl).await);
    assert_put(&next(&mut watch).await, &kv(&key("a"), "1", revision), None);
    match next(&mut watch).await {
        Event::Deleted { previous, revision: gone } => {
            assert_eq!(previous, kv(&key("a"), "1", revision));
            assert_eq!(gone, store.current_revision().await.unwrap());
        }
        other => panic!("{other:?}"),
    }
}

/// On an idle store the watch can be made to say that there is nothing to tell, again and again.
pub async fn watch_progress_without_writes(store: Arc<dyn Storage>) {
    let current = create(&*store, &key("a"), "1").await;
    // One before, since etcd has nothing to say while the store is not past where the watch began.
    let mut watch = watch(&*store, Revision(current.0 - 1)).await;
    assert_eq!(revision_of(&next(&mut watch).await), current);
    for _ in 0..3 {
        let (told, revision) = progress(&mut watch, current).await;
        assert!(told.is_empty() && revision == current, "{told:?} {revision:?}");
    }
}

/// A notice comes after all that it covers.
pub async fn watch_progress_comes_after_events(store: Arc<dyn Storage>) {
    let store = &*store;
    let mut watch = watch(store, store.current_revision().await.unwrap()).await;
    for round in 0..20 {
        let revision = create(store, &key(&round.to_string()), "x").await;
        let (told, upto) = progress(&mut watch, revision).await;
        assert_eq!(told.iter().map(revision_of).collect::<Vec<_>>(), [revision]);
        assert!(upto >= revision);
    }
}

/// What is written elsewhere moves the watch on: a consistent read can wait for it.
pub async fn watch_progress_advances_with_foreign_writes(store: Arc<dyn Storage>) {
    let store = &*store;
    let mut watch = watch(store, store.current_revision().await.unwrap()).await;
    for round in 0..3 {
        let revision = create(store, &format!("/others/{round}"), "x").await;
        let (told, upto) = progress(&mut watch, revision).await;
        assert!(told.is_empty() && upto >= revision, "{told:?}");
    }
}

/// A reader that comes late to a burst gets all of it, in order. (A burst that every backend has room for.)
pub async fn watch_delivers_bursts_to_a_late_reader(store: Arc<dyn Storage>) {
    let store = &*store;
    let mut watch = watch(store, store.current_revision().await.unwrap()).await;
    let text = "x".repeat(4096);
    let mut revisions = Vec::new();
    for number in 0..500 {
        revisions.push(create(store, &key(&number.to_string()), &text).await);
    }
    for revision in revisions {
        assert_eq!(revision_of(&next(&mut watch).await), revision);
    }
}

/// A watch that nobody reads does not hold up others, nor the writers.
pub async fn watches_are_independent(store: Arc<dyn Storage>) {
    let store = &*store;
    let current = store.current_revision().await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(watch(store, current).await);
    }
    let mut read = watch(store, current).await;
    for number in 0..100 {
        let revision = create(store, &key(&number.to_string()), "x").await;
        assert_eq!(revision_of(&next(&mut read).await), revision);
    }
    for mut late in idle {
        assert_eq!(revision_of(&next(&mut late).await), Revision(current.0 + 1));
    }
}

/// Whatever is dropped first, and whatever is asked of what is left.
pub async fn dropped_watches_do_no_harm(store: Arc<dyn Storage>) {
    let store = &*store;
    let current = store.current_revision().await.unwrap();
    let Watch { events, progress } = watch(store, current).await;
    drop(events);
    progress();
    let Watch { mut events, progress } = watch(store, current).await;
    drop(progress);
    let revision = create(store, &key("a"), "1").await;
    let event = in_time(events.next()).await;
    assert_eq!(revision_of(&event.unwrap().unwrap()), revision);
    for _ in 0..100 {
        drop(watch(store, Revision(0)).await);
    }
    assert_eq!(get(store, &key("a"), Freshness::Latest).await, Some(kv(&key("a"), "1", revision)));
}

/// Watches begun at different times tell the same story.
pub async fn all_watches_tell_the_same(store: Arc<dyn Storage>) {
    let store = &*store;
    let before = store.current_revision().await.unwrap();
    let mut watches = vec![watch(store, before).await];
    let mut revisions = Vec::new();
    for number in 0..60 {
        revisions.push(create(store, &key(&number.to_string()), "x").await);
        if number % 20 == 10 {
            watches.push(watch(store, before).await);
        }
    }
    let last = revisions[revisions.len() - 1];
    for mut watch in watches {
        let (events, _) = progress(&mut watch, last).await;
        assert_eq!(events.iter().map(revision_of).collect::<Vec<_>>(), revisions);
    }
}
