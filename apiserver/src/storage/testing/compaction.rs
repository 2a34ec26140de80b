//! The end of history.

use super::*;
use crate::storage::compactor::CompactionTurn;

/// Writes a little history: `a` is written three times, `b` once and removed, `c` stays as it was.
async fn history(store: &dyn Storage) -> [Revision; 6] {
    let c = create(store, &key("c"), "c").await;
    let a1 = create(store, &key("a"), "1").await;
    let b = create(store, &key("b"), "b").await;
    let a2 = update(store, &key("a"), a1, "2").await;
    let gone = remove(store, &key("b"), b).await;
    let a3 = update(store, &key("a"), a2, "3").await;
    [c, a1, b, a2, gone, a3]
}

#[track_caller]
fn assert_compacted<T>(outcome: Result<T, StorageError>) {
    match outcome {
        Err(StorageError::Compacted { .. }) => {}
        Err(other) => panic!("compacted, not {other:?}"),
        Ok(_) => panic!("compacted, not an answer"),
    }
}

/// Before the compacted revision nothing is read; at it and after it everything is, keys without a newer version included.
pub async fn compaction_forgets_the_past(store: Arc<dyn Storage>) {
    let [c, a1, b, a2, gone, a3] = history(&*store).await;
    let at_a2 = list(&*store, Freshness::Exact(a2)).await.items;
    store.compact(a2).await.unwrap();
    for old in [c, a1, b] {
        assert_compacted(store.get(&key("a"), Freshness::Exact(old)).await);
        assert_compacted(list_from(&*store, None, 0, Freshness::Exact(old)).await);
    }
    assert_eq!(list(&*store, Freshness::Exact(a2)).await.items, at_a2);
    assert_eq!(at_a2, [kv(&key("a"), "2", a2), kv(&key("b"), "b", b), kv(&key("c"), "c", c)]);
    assert_eq!(names(&list(&*store, Freshness::Exact(gone)).await), ["a", "c"]);
    assert_eq!(get(&*store, &key("a"), Freshness::Exact(a3)).await, Some(kv(&key("a"), "3", a3)));
}

/// Compaction changes nothing of what is there now, and has no revision of its own.
pub async fn compaction_keeps_the_present(store: Arc<dyn Storage>) {
    let [c, .., a3] = history(&*store).await;
    let before = list(&*store, Freshness::Latest).await;
    store.compact(a3).await.unwrap();
    let after = list(&*store, Freshness::Latest).await;
    assert_eq!((&after.items, after.revision), (&before.items, before.revision));
    assert_eq!(list(&*store, Freshness::NotOlderThan(c)).await.items, before.items);
    // What was seen before can be written on.
    let c2 = update(&*store, &key("c"), c, "c2").await;
    create(&*store, &key("b"), "again").await;
    assert_eq!(get(&*store, &key("c"), Freshness::Latest).await, Some(kv(&key("c"), "c2", c2)));
}

/// History is not compacted backwards, twice, or ahead of itself.
pub async fn compaction_refuses_the_past_and_the_future(store: Arc<dyn Storage>) {
    let [_, _, b, a2, _, a3] = history(&*store).await;
    store.compact(a2).await.unwrap();
    for past in [a2, b, Revision(0)] {
        assert_compacted(store.compact(past).await);
    }
    for ahead in [Revision(a3.0 + 1), Revision(u64::MAX)] {
        let outcome = store.compact(ahead).await;
        assert!(
            matches!(outcome, Err(StorageError::Future { requested, current }) if (requested, current) == (ahead, a3)),
            "{outcome:?}"
        );
    }
    store.compact(a3).await.unwrap();
}

/// A watch that would have a gap ends with the error that makes its reader list again.
pub async fn watch_from_a_compacted_revision_ends(store: Arc<dyn Storage>) {
    let [_, a1, b, a2, gone, _] = history(&*store).await;
    store.compact(gone).await.unwrap();
    for after in [Revision(0), a1, b, Revision(a2.0 - 1)] {
        for range in [WatchRange::Prefix(DIR), WatchRange::Key("/things/a"), WatchRange::Prefix("/elsewhere/")] {
            let ended = end(store.watch(range, after).await).await;
            assert!(matches!(ended, StorageError::Compacted { .. }), "{ended:?} after {after:?}");
        }
    }
}

/// A list at the compacted revision can be followed.
pub async fn watch_from_the_compacted_revision_works(store: Arc<dyn Storage>) {
    let [_, _, _, a2, gone, a3] = history(&*store).await;
    store.compact(gone).await.unwrap();
    let mut after_it = watch(&*store, gone).await;
    assert_put(&next(&mut after_it).await, &kv(&key("a"), "3", a3), Some(&kv(&key("a"), "2", a2)));
    let d = create(&*store, &key("d"), "d").await;
    assert_put(&next(&mut after_it).await, &kv(&key("d"), "d", d), None);
}

/// Who keeps up does not notice compaction.
pub async fn running_watches_outlive_compaction(store: Arc<dyn Storage>) {
    let mut running = watch(&*store, store.current_revision().await.unwrap()).await;
    let [c, a1, b, a2, gone, a3] = history(&*store).await;
    for revision in [c, a1, b, a2, gone, a3] {
        assert_eq!(revision_of(&next(&mut running).await), revision);
    }
    store.compact(a3).await.unwrap();
    let a4 = update(&*store, &key("a"), a3, "4").await;
    assert_put(&next(&mut running).await, &kv(&key("a"), "4", a4), Some(&kv(&key("a"), "3", a3)));
}

/// The next page of a list whose revision is gone says so; from its start on at the latest revision it goes on.
pub async fn paged_lists_end_at_compaction(store: Arc<dyn Storage>) {
    for name in ["a", "b", "c"] {
        create(&*store, &key(name), name).await;
    }
    let first = list_from(&*store, None, 1, Freshness::Latest).await.unwrap();
    let later = create(&*store, &key("d"), "d").await;
    store.compact(later).await.unwrap();
    let start = Some("/things/a\0");
    assert_compacted(list_from(&*store, start, 1, Freshness::Exact(first.revision)).await);
    let rest = list_from(&*store, start, 2, Freshness::Latest).await.unwrap();
    assert_eq!((names(&rest), rest.remaining), (vec!["b", "c"], 1));
}

/// The first turn notes where history is, each further one forgets what was before the last.
pub async fn turns_compact_to_the_turn_before(store: Arc<dyn Storage>) {
    let store = &*store;
    let old = create(store, &key("a"), "1").await;
    let mut turn = CompactionTurn::default();
    assert_eq!(store.compaction_turn(&mut turn).await.unwrap(), None);
    let noted = turn.revision;
    assert!(noted >= old && turn.time == 1);
    let seen = get(store, &key("a"), Freshness::Exact(old)).await;
    assert_eq!(seen, Some(kv(&key("a"), "1", old)), "the first turn forgets nothing");

    let newer = update(store, &key("a"), old, "2").await;
    assert_eq!(store.compaction_turn(&mut turn).await.unwrap(), Some(noted));
    assert!(turn.revision >= newer && turn.time == 2);
    let past = list_from(store, None, 0, Freshness::Exact(Revision(noted.0 - 1))).await;
    assert!(matches!(past, Err(StorageError::Compacted { .. })), "{past:?}");
    assert_eq!(names(&list(store, Freshness::Exact(noted)).await), ["a"]);
    assert_eq!(names(&list(store, Freshness::Latest).await), ["a"]);
}

/// Two servers that take turns in one store keep at least one interval of history between them, and neither fails.
pub async fn turns_are_shared(store: Arc<dyn Storage>) {
    let store = &*store;
    let (mut one, mut other) = (CompactionTurn::default(), CompactionTurn::default());
    let mut kept = create(store, &key("a"), "0").await;
    for round in 0..4 {
        for turn in [&mut one, &mut other] {
            match store.compaction_turn(turn).await {
                Ok(_) | Err(StorageError::Compacted { .. }) => {}
                Err(error) => panic!("{error:?} in round {round}"),
            }
        }
        // What was written since the round before can still be read.
        let readable = get(store, &key("a"), Freshness::Exact(kept)).await;
        assert_eq!(readable.unwrap().mod_revision, kept, "round {round}");
        kept = update(store, &key("a"), kept, &round.to_string()).await;
    }
    let first = store.get(&key("a"), Freshness::Exact(Revision(1))).await;
    assert!(matches!(first, Err(StorageError::Compacted { .. })), "somebody compacted: {first:?}");
}

/// When the server that compacted is gone, another does, and what that one has seen is not compacted too early.
pub async fn turns_are_taken_over(store: Arc<dyn Storage>) {
    let store = &*store;
    let mut gone = CompactionTurn::default();
    let first = create(store, &key("a"), "1").await;
    for _ in 0..3 {
        match store.compaction_turn(&mut gone).await {
            Ok(_) | Err(StorageError::Compacted { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    let old = update(store, &key("a"), first, "2").await;
    let second = update(store, &key("a"), old, "3").await;
    let mut other = CompactionTurn::default();
    store.compaction_turn(&mut other).await.unwrap();
    assert!(other.revision >= second);
    let third = update(store, &key("a"), second, "4").await;
    assert!(get(store, &key("a"), Freshness::Exact(old)).await.is_some(), "its first turn forgets nothing new");
    store.compaction_turn(&mut other).await.unwrap();
    assert_compacted(store.get(&key("a"), Freshness::Exact(old)).await);
    assert_eq!(get(store, &key("a"), Freshness::Exact(third)).await, Some(kv(&key("a"), "4", third)));
}
