//! Watches that a compaction overtakes.

use super::*;

/// Events of these revisions, read when the store was at `read_at`.
fn events(watch_id: i64, read_at: i64, revisions: &[i64]) -> WatchResponse {
    let event = |&mod_revision: &i64| Event {
        kv: Some(KeyValue { mod_revision, ..kv("/t/k", 0) }),
        prev_kv: Some(kv("/t/k", 0)),
        ..Default::default()
    };
    WatchResponse {
        header: header(read_at),
        watch_id,
        events: revisions.iter().map(event).collect(),
        ..Default::default()
    }
}

fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { cluster_id: 1, member_id: 2, revision, raft_term: 4 })
}

fn cancel(watch_id: i64) -> WatchResponse {
    WatchResponse { header: header(0), watch_id, canceled: true, compact_revision: 20, ..Default::default() }
}

/// The revisions of the events that get through, each with whether it is told what was before.
fn told(answers: &[WatchResponse]) -> Vec<(i64, bool)> {
    let events = answers.iter().flat_map(|answer| &answer.events);
    events.map(|event| (event.kv.as_ref().unwrap().mod_revision, event.prev_kv.is_some())).collect()
}

/// The tenant has compacted up to 20 when the store was at 30.
fn view(fixture: &Fixture) -> View<'_> {
    View { compacted_at: 30, ..fixture.view(20) }
}

#[test]
fn who_has_not_caught_up_is_cancelled() {
    let fixture = Fixture::new();
    let (view, before) = (view(&fixture), fixture.view(-1));
    let stream = WatchStream::new(schema().unwrap(), Arc::default()).unwrap();
    let passes = |view, response: &WatchResponse| watch_answers(view, &stream, response).unwrap();
    for id in [0, 1] {
        assert_eq!(passes(&before, &created(id)), [created(id)]);
    }
    assert_eq!(told(&passes(&before, &events(0, 29, &[5, 6]))), [(5, true), (6, true)]);
    assert_eq!(passes(&view, &events(0, 31, &[7, 25])), [cancel(0)]);
    // Whatever the upstream goes on to say of it, and of the progress of all.
    let progress = WatchResponse { header: header(33), watch_id: -1, ..Default::default() };
    for more in [events(0, 31, &[26]), events(0, 40, &[40]), events(0, 41, &[]), cancel(0), progress.clone()] {
        assert_eq!(passes(&view, &more), [], "{more:?}");
    }
    assert_eq!(told(&passes(&view, &events(1, 31, &[21]))), [(21, true)]);
    // Its id is taken until the client cancels it.
    let refused = WatchResponse { canceled: true, cancel_reason: "duplicate".to_owned(), ..created(-1) };
    assert_eq!(passes(&view, &refused), std::slice::from_ref(&refused));
    assert_eq!(passes(&view, &events(0, 42, &[42])), []);
    let over = WatchResponse { header: header(43), canceled: true, ..Default::default() };
    assert_eq!(passes(&view, &over), std::slice::from_ref(&over));
    assert_eq!(passes(&view, &progress), std::slice::from_ref(&progress));
    assert_eq!(passes(&view, &created(0)), [created(0)]);
    assert_eq!(told(&passes(&view, &events(0, 44, &[44]))), [(44, true)]);
}

/// Events that were read before the compaction come to one that is in sync, and to one that is not: what they replaced is gone.
#[test]
fn what_was_read_before_the_compaction_still_comes() {
    let fixture = Fixture::new();
    let view = view(&fixture);
    let stream = WatchStream::new(schema().unwrap(), Arc::default()).unwrap();
    let passes = |response: &WatchResponse| watch_answers(&view, &stream, response).unwrap();
    assert_eq!(passes(&created(0)), [created(0)]);
    assert_eq!(told(&passes(&events(0, 15, &[15]))), [(15, false)]);
    assert_eq!(told(&passes(&events(0, 29, &[16, 20, 21]))), [(16, false), (20, false), (21, true)]);
    // And what the compaction has left comes at any time.
    assert_eq!(told(&passes(&events(0, 35, &[20, 22]))), [(20, false), (22, true)]);
}

#[test]
fn a_message_in_parts_is_passed_on_whole_or_not_at_all() {
    let fixture = Fixture::new();
    let (view, before) = (view(&fixture), fixture.view(-1));
    let stream = WatchStream::new(schema().unwrap(), Arc::default()).unwrap();
    let part = |revision| WatchResponse { fragment: true, ..events(0, 31, &[revision]) };
    let passes = |view, response: &WatchResponse| watch_answers(view, &stream, response).unwrap();
    assert_eq!(passes(&before, &created(0)), [created(0)]);
    assert_eq!(told(&passes(&before, &part(5))), [(5, true)]);
    // This replica hears of the compaction in between.
    let unloaded = View { leases: None, ..view };
    let leased = {
        let mut part = part(5);
        part.events[0].kv.as_mut().unwrap().lease = fixture.leases.to_upstream(5).unwrap();
        part
    };
    assert!(matches!(watch_answers(&unloaded, &stream, &leased), Err(Interrupt::MeetsLease)));
    assert_eq!(told(&passes(&view, &leased)), [(5, false)]);
    assert_eq!(told(&passes(&view, &events(0, 31, &[5, 6]))), [(5, false), (6, false)]);
    assert_eq!(passes(&view, &part(7)), [cancel(0)]);
    assert_eq!(passes(&view, &events(0, 31, &[7])), []);
}
