//! Watch streams: every option, compared with etcd's own.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use proto::{
    etcdserverpb::{
        DeleteRangeRequest, TxnRequest, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchResponse,
        watch_request::RequestUnion,
    },
    mvccpb::event::EventType,
};
use tonic::Code;

use crate::{
    relay::Relay,
    support::{
        Client, Etcd, PATIENCE, Proxy, Watching, at_least, create_request, delete_op, eventually, put_op, refusal,
        watch_all,
    },
};

/// An etcd asked directly, and a proxy on another.
async fn pair() -> (Etcd, Etcd, Proxy, [Client; 2]) {
    let (etcd, shared) = (Etcd::start().await, Etcd::start().await);
    let proxy = Proxy::start(&shared, "/a/").await;
    let clients = [etcd.client().await, proxy.client().await];
    (etcd, shared, proxy, clients)
}

fn progress() -> RequestUnion {
    RequestUnion::ProgressRequest(WatchProgressRequest {})
}

fn cancel(watch_id: i64) -> RequestUnion {
    RequestUnion::CancelRequest(WatchCancelRequest { watch_id })
}

fn create(create: WatchCreateRequest) -> RequestUnion {
    RequestUnion::CreateRequest(create)
}

/// What two etcds must agree on: everything but ids of the cluster. Revisions agree on fresh etcds, since the proxy writes
/// nothing of its own here.
fn comparable(mut response: WatchResponse) -> WatchResponse {
    let header = response.header.as_mut().unwrap();
    assert!(header.cluster_id != 0 && header.member_id != 0, "{header:?}");
    (header.cluster_id, header.member_id, header.raft_term) = (0, 0, 0);
    response
}

async fn next(watching: &mut Watching) -> WatchResponse {
    comparable(watching.next().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn options_and_cancels_answer_as_etcds() {
    let (_etcd, _shared, _proxy, clients) = pair().await;
    let mut transcripts = Vec::new();
    for mut client in clients {
        client.put("a", "1").await;
        client.put("b", "1").await;
        client.put("a", "2").await;
        let mut transcript = Vec::new();
        let on = |key: &'static str| WatchCreateRequest { key: key.into(), ..Default::default() };
        let mut watching = client.watch([on("nothing")]).await;
        transcript.push(next(&mut watching).await);
        // One answer each.
        for request in [
            create(WatchCreateRequest { watch_id: 5, ..on("nothing") }),
            create(WatchCreateRequest { watch_id: -7, ..on("nothing") }),
            create(WatchCreateRequest { watch_id: 5, ..on("nothing") }),
            create(WatchCreateRequest { range_end: "a".into(), ..on("b") }),
            create(WatchCreateRequest { range_end: "b".into(), ..on("b") }),
            create(WatchCreateRequest { start_revision: -1, ..on("a") }),
            create(WatchCreateRequest { start_revision: i64::MIN, ..on("a") }),
            create(WatchCreateRequest { start_revision: 1000, ..on("a") }),
            create(on("nothing")),
            cancel(-7),
            cancel(0),
            create(WatchCreateRequest { watch_id: -7, ..on("nothing") }),
        ] {
            watching.send(request);
            transcript.push(next(&mut watching).await);
        }
        // Not answered at all: ids that are not there.
        for id in [99, -1, 0] {
            watching.send(cancel(id));
        }
        // With events.
        for request in [
            create(WatchCreateRequest { start_revision: 2, range_end: "c".into(), prev_kv: true, ..on("a") }),
            create(WatchCreateRequest { start_revision: 2, range_end: "\0".into(), ..on("b") }),
            create(WatchCreateRequest { start_revision: 2, range_end: "\0".into(), ..on("") }),
            create(WatchCreateRequest { start_revision: 3, fragment: true, ..on("a") }),
        ] {
            watching.send(request);
            transcript.push(next(&mut watching).await);
            transcript.push(next(&mut watching).await);
        }
        transcripts.push(transcript);
    }
    assert_eq!(transcripts[0], transcripts[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_and_previous_pairs() {
    let (_etcd, _shared, _proxy, clients) = pair().await;
    let mut transcripts = Vec::new();
    for mut client in clients {
        let mut transcript = Vec::new();
        for filters in [vec![], vec![0], vec![1], vec![0, 1], vec![7]] {
            client.put("k", "1").await;
            let mut watching = client.watch([WatchCreateRequest { filters, ..watch_all(0) }]).await;
            transcript.push(next(&mut watching).await);
            client.put("k", "2").await;
            client.delete_all().await;
            client
                .kv
                .txn(TxnRequest {
                    success: vec![put_op("k", "3"), put_op("l", "1"), delete_op("m", "")],
                    ..Default::default()
                })
                .await
                .unwrap();
            client.delete_all().await;
            watching.send(progress());
            loop {
                let response = next(&mut watching).await;
                let done = response.watch_id == -1;
                transcript.push(response);
                if done {
                    break;
                }
            }
        }
        transcripts.push(transcript);
    }
    assert_eq!(transcripts[0], transcripts[1]);
}

/// Progress requests are answered on an idle store with id -1 and the global revision, and never ahead of an event.
#[tokio::test(flavor = "multi_thread")]
async fn progress_is_answered_and_never_ahead() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let (mut a, mut direct) = (proxy.client().await, etcd.client().await);
    let mut watching = a.watch([watch_all(0)]).await;
    assert!(watching.next().await.unwrap().created);
    // Others' writes move it on: consistent reads of an API server wait for that.
    let elsewhere = direct.put("/b/k", "v").await;
    watching.send(progress());
    let answer = watching.next().await.unwrap();
    assert_eq!((answer.watch_id, answer.events.len()), (-1, 0));
    assert!(answer.header.unwrap().revision >= elsewhere);

    let mut seen = 0;
    let mut pending = 0;
    for round in 0..200 {
        a.put("k", round.to_string()).await;
        watching.send(progress());
        pending += 1;
    }
    while pending > 0 || seen < 200 {
        let response = watching.next().await.unwrap();
        if response.watch_id == -1 {
            pending -= 1;
            let revision = response.header.unwrap().revision;
            // The first put has the revision after `elsewhere`.
            assert!(seen >= revision - elsewhere, "progress at {revision} after {seen} events");
        }
        seen += i64::try_from(response.events.len()).unwrap();
    }
}

/// Asked for in one breath with the first watch, on a store where nothing ever happens.
#[tokio::test(flavor = "multi_thread")]
async fn progress_may_be_asked_for_at_once() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let mut a = proxy.client().await;
    let mut watching = a.watch([watch_all(0)]).await;
    watching.send(progress());
    // etcd promises no order between the two.
    let mut answers = [watching.next().await.unwrap(), watching.next().await.unwrap()];
    answers.sort_by_key(|answer| answer.watch_id);
    assert_eq!((answers[0].watch_id, answers[0].created, answers[0].events.len()), (-1, false, 0));
    assert!(answers[0].header.unwrap().revision > 0);
    assert_eq!((answers[1].watch_id, answers[1].created), (0, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn notifies_of_progress_by_itself() {
    let etcd = Etcd::start_with(&[if at_least(6) {
        "--watch-progress-notify-interval=200ms"
    } else {
        "--experimental-watch-progress-notify-interval=200ms"
    }])
    .await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let (mut a, mut direct) = (proxy.client().await, etcd.client().await);
    let mut watching = a.watch([WatchCreateRequest { progress_notify: true, ..watch_all(0) }]).await;
    assert!(watching.next().await.unwrap().created);
    let elsewhere = direct.put("/b/k", "v").await;
    loop {
        let response = watching.next().await.unwrap();
        assert_eq!((response.watch_id, response.events.len()), (0, 0));
        if response.header.unwrap().revision >= elsewhere {
            break;
        }
    }
}

/// A client that has said all it wants to say still gets its events.
#[tokio::test(flavor = "multi_thread")]
async fn half_closed_streams_stay_open() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let mut a = proxy.client().await;
    let requests = futures::stream::iter([create_request(watch_all(0))]);
    let mut responses = a.watch.watch(requests).await.unwrap().into_inner();
    assert!(responses.message().await.unwrap().unwrap().created);
    for value in ["1", "2"] {
        a.put("k", value).await;
        assert_eq!(responses.message().await.unwrap().unwrap().events.len(), 1);
    }
}

/// Many events of one revision, fragmented where asked for and in one message of more than 4 MiB where not.
#[tokio::test(flavor = "multi_thread")]
async fn large_answers_come_whole_or_in_fragments() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let mut a = proxy.client().await;
    let value = vec![b'x'; 1 << 20];
    for key in 0..8 {
        a.put(format!("k{key}"), value.clone()).await;
    }
    let mut watching = a.watch([watch_all(0), WatchCreateRequest { fragment: true, ..watch_all(0) }]).await;
    let request = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    let revision = a.kv.delete_range(request).await.unwrap().into_inner().header.unwrap().revision;
    let (mut whole, mut fragments, mut counted) = (0, Vec::new(), 0);
    while whole < 8 || counted < 8 {
        let response = watching.next().await.unwrap();
        if response.created {
            continue;
        }
        assert_eq!(response.header.unwrap().revision, revision);
        for event in &response.events {
            assert_eq!(event.r#type(), EventType::Delete);
            assert_eq!(event.prev_kv.as_ref().unwrap().value.len(), 1 << 20);
        }
        if response.watch_id == 0 {
            whole += response.events.len();
            assert!(!response.fragment);
        } else {
            counted += response.events.len();
            fragments.push(response.fragment);
        }
    }
    assert!(fragments.len() > 1, "{fragments:?}");
    let last = fragments.pop().unwrap();
    assert!(!last && fragments.iter().all(|&fragment| fragment));
}

/// The previous pair of an event may be gone; the event comes without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_compacted_previous_pair_is_missing_and_no_error() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let (mut a, mut direct) = (proxy.client().await, etcd.client().await);
    a.put("k", "1").await;
    let second = a.put("k", "2").await;
    let third = a.put("k", "3").await;
    direct.compact(third).await.unwrap();
    let mut watching = a.watch([watch_all(third)]).await;
    let events = watching.events(1).await;
    assert_eq!((events[0].kv.as_ref().unwrap().mod_revision, &events[0].prev_kv), (third, &None));
    assert!(second < third);
    // So it is with a deletion, by the tenant's own compaction, too.
    assert_eq!(a.delete_all().await, 1);
    let deleted = third + 1;
    a.compact(deleted).await.unwrap();
    let mut watching = a.watch([watch_all(deleted)]).await;
    let events = watching.events(1).await;
    assert_eq!(events[0].r#type(), EventType::Delete);
    assert_eq!((events[0].kv.as_ref().unwrap().mod_revision, &events[0].prev_kv), (deleted, &None));
}

/// Cancelled by the client, gone with it, or gone with its connection: the upstream's watcher goes too.
#[tokio::test(flavor = "multi_thread")]
async fn the_upstream_keeps_no_watch_that_nobody_wants() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let mut a = proxy.client().await;
    let watchers = || etcd.metric("etcd_debugging_mvcc_watcher_total");
    // The proxy follows its own watermark.
    eventually("the follower's watch", || async { watchers().await == 1.0 }).await;
    let mut watching = a.watch([watch_all(0), watch_all(0), watch_all(0)]).await;
    for _ in 0..3 {
        assert!(watching.next().await.unwrap().created);
    }
    assert_eq!(watchers().await, 4.0);
    watching.send(cancel(1));
    assert!(watching.next().await.unwrap().canceled);
    assert_eq!(watchers().await, 3.0);
    drop(watching);
    eventually("the end of the dropped stream's watches", || async { watchers().await == 1.0 }).await;
    let half_closed = a.watch.watch(futures::stream::iter([create_request(watch_all(0))])).await.unwrap();
    assert_eq!(watchers().await, 2.0);
    drop((half_closed, a));
    eventually("the end of the dropped connection's watches", || async { watchers().await == 1.0 }).await;
}

/// Never silence: when the upstream goes, the stream ends with `Unavailable`, and a new one takes up without a gap.
#[tokio::test(flavor = "multi_thread")]
async fn loss_of_the_upstream_ends_streams() {
    let mut etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let mut a = proxy.client().await;
    let mut watching = a.watch([watch_all(0)]).await;
    assert!(watching.next().await.unwrap().created);
    let first = a.put("k", "1").await;
    assert_eq!(watching.events(1).await.len(), 1);
    etcd.kill();
    assert_eq!(watching.next().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(a.range(Default::default()).await.unwrap_err().message(), "etcdserver: key is not provided");
    let put = proto::etcdserverpb::PutRequest { key: "k".into(), ..Default::default() };
    assert_eq!(a.kv.put(put).await.unwrap_err().code(), Code::Unavailable);
    etcd.restart().await;
    eventually("a write after the restart", || {
        let mut a = a.clone();
        async move {
            a.kv.put(proto::etcdserverpb::PutRequest { key: "k".into(), value: "2".into(), ..Default::default() })
                .await
                .is_ok()
        }
    })
    .await;
    let mut watching = a.watch([watch_all(first + 1)]).await;
    assert_eq!(watching.events(1).await[0].kv.as_ref().unwrap().value, "2");
}

/// A watch of what others watch already, begun when the upstream has gone: it ends as theirs do, and does not wait for what
/// will never come.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_without_an_upstream_ends() {
    let mut etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let (mut a, mut late) = (proxy.client().await, proxy.client().await);
    let mut before = [a.watch([watch_all(0)]).await, a.watch([watch_all(0)]).await];
    for watching in &mut before {
        assert!(watching.next().await.unwrap().created);
    }
    etcd.kill();
    for _ in 0..3 {
        assert_eq!(refusal(late.try_watch(watch_all(0)).await).0, Code::Unavailable);
    }
    for watching in &mut before {
        assert_eq!(watching.next().await.unwrap_err().code(), Code::Unavailable);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_proxy_ends_its_streams() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let mut a = proxy.client().await;
    let mut watching = a.watch([watch_all(0)]).await;
    assert!(watching.next().await.unwrap().created);
    proxy.stop.cancel();
    let status = watching.next().await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "etcdserver: server stopped"));
}

/// A reader that does not read holds up itself and nobody else, and memory does not grow for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_slows_itself_alone() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let (mut slow, mut fast, mut writer) = (proxy.client().await, proxy.client().await, proxy.client().await);
    let mut unread = slow.watch([watch_all(0)]).await;
    let mut read = fast.watch([watch_all(0)]).await;
    assert!(read.next().await.unwrap().created);
    let value = vec![b'x'; 256 << 10];
    for _ in 0..100 {
        writer.put("k", value.clone()).await;
        tokio::time::timeout(Duration::from_secs(5), read.events(1)).await.expect("the other reader is not held up");
    }
    // In the end the slow one gets everything as well.
    assert_eq!(unread.events(100).await.len(), 100);
}

/// Reads so many events. Returns when each revision was told of, in the order in which they were.
async fn told_when(mut watching: Watching, count: usize) -> Vec<(i64, Instant)> {
    let mut told = Vec::new();
    while told.len() < count {
        let events = watching.events(1).await;
        let now = Instant::now();
        told.extend(events.iter().map(|event| (event.kv.as_ref().unwrap().mod_revision, now)));
    }
    told
}

/// Clients of three proxies are told of everything once and in order, while it is written, and not much later than a client of
/// the etcd itself is.
#[tokio::test(flavor = "multi_thread")]
async fn many_watches_by_many_proxies_tell_one_story() {
    const PUTS: usize = 50;
    const WRITERS: usize = 6;
    let etcd = Etcd::start().await;
    let proxies =
        [Proxy::start(&etcd, "/a/").await, Proxy::start(&etcd, "/a/").await, Proxy::start(&etcd, "/a/").await];
    let open = async |mut client: Client| {
        let mut watching = client.watch([watch_all(0)]).await;
        assert!(watching.next().await.unwrap().created);
        watching
    };
    let told = |watching| tokio::spawn(told_when(watching, WRITERS * PUTS));
    let control = told(open(etcd.client().await).await);
    let (mut readers, mut writers) = (Vec::new(), Vec::new());
    for reader in 0..20 {
        readers.push(told(open(proxies[reader % proxies.len()].client().await).await));
    }
    for writer in 0..WRITERS {
        let mut client = proxies[writer % proxies.len()].client().await;
        writers.push(async move {
            let mut written = Vec::new();
            for round in 0..PUTS {
                written.push(client.put(format!("writer{writer}/{}", round % 7), round.to_string()).await);
            }
            written
        });
    }
    let mut written = futures::future::join_all(writers).await.concat();
    written.sort_unstable();
    let control = control.await.unwrap();
    let mut delays = Vec::new();
    for reader in readers {
        let told = reader.await.unwrap();
        assert_eq!(told.iter().map(|(revision, _)| *revision).collect::<Vec<_>>(), written);
        for ((revision, by_proxy), (same, by_etcd)) in told.into_iter().zip(&control) {
            assert_eq!(revision, *same);
            delays.push(by_proxy.saturating_duration_since(*by_etcd));
        }
    }
    delays.sort_unstable();
    let (median, longest) = (delays[delays.len() / 2], delays[delays.len() - 1]);
    let (usual, most) = (Duration::from_secs(1), Duration::from_secs(5));
    assert!(median < usual && longest < most, "events come {median:?} later as a rule, {longest:?} at most");
}

/// Reads until each watch has told of its revisions, one after the other, or that those from some on are compacted.
/// Returns the latter ones.
async fn told_or_compacted(watching: &mut Watching, mut due: BTreeMap<i64, &[i64]>, compacted: i64) -> BTreeSet<i64> {
    let mut ended = BTreeSet::new();
    while !due.is_empty() {
        let answer = watching.next().await.unwrap();
        let id = answer.watch_id;
        let left = due.get_mut(&id).unwrap_or_else(|| panic!("{id} tells more than there is: {answer:?}"));
        for event in &answer.events {
            let (next, later) =
                left.split_first().unwrap_or_else(|| panic!("{id} tells more than there is: {answer:?}"));
            assert_eq!(event.kv.as_ref().unwrap().mod_revision, *next, "{id}");
            *left = later;
        }
        if answer.canceled {
            assert_eq!(answer.compact_revision, compacted, "{answer:?}");
            assert!(
                left.first().is_some_and(|next| *next < compacted),
                "{answer:?}, though nothing was lost: {left:?}"
            );
            ended.insert(id);
        }
        if answer.canceled || left.is_empty() {
            due.remove(&id);
        }
    }
    ended
}

/// Hundreds of watches on one stream that is not read while the store is compacted: each tells every change in its order,
/// or up to some change and then that the rest is compacted. Those that had nothing to tell meanwhile go on.
#[tokio::test(flavor = "multi_thread")]
async fn no_watch_of_a_crowded_stream_loses_an_event_unsaid() {
    const WATCHES: i64 = 300;
    let quiet = |id: &i64| id % 10 == 0;
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let (mut a, mut writer, mut direct) = (proxy.client().await, proxy.client().await, etcd.client().await);
    let of = |key: &'static str| WatchCreateRequest { key: key.into(), prev_kv: true, ..Default::default() };
    let mut watching = a.watch((0..WATCHES).map(|id| of(if quiet(&id) { "quiet" } else { "k" }))).await;
    for id in 0..WATCHES {
        let answer = watching.next().await.unwrap();
        assert!(answer.created && answer.watch_id == id, "{answer:?}");
    }
    // Until etcd itself says that watches have fallen behind: only what these are not told of can be lost. One change of all
    // watches is more than everything on the way takes unread, so they stay behind.
    let value = || vec![b'x'; 64 << 10];
    let (mut written, started) = (Vec::new(), Instant::now());
    while etcd.metric("etcd_debugging_mvcc_slow_watcher_total").await == 0.0 {
        assert!(started.elapsed() < PATIENCE, "no watch falls behind within {} puts", written.len());
        written.push(writer.put("k", value()).await);
    }
    for _ in 0..5 {
        written.push(writer.put("k", value()).await);
    }
    let compacted = *written.last().unwrap();
    direct.compact(compacted).await.unwrap();

    let due = (0..WATCHES).filter(|id| !quiet(id)).map(|id| (id, &written[..])).collect();
    let ended = told_or_compacted(&mut watching, due, compacted).await;
    assert!(!ended.is_empty(), "no watch lost anything");
    let both = TxnRequest { success: vec![put_op("k", "last"), put_op("quiet", "last")], ..Default::default() };
    let last = [writer.kv.txn(both).await.unwrap().into_inner().header.unwrap().revision];
    let due = (0..WATCHES).filter(|id| !ended.contains(id)).map(|id| (id, &last[..])).collect();
    assert_eq!(told_or_compacted(&mut watching, due, compacted).await, BTreeSet::new());
}

fn watch_of(key: &'static str) -> WatchCreateRequest {
    WatchCreateRequest { key: key.into(), ..Default::default() }
}

/// A proxy that hears nothing of watches of `held` while the relay holds.
async fn behind_relay(etcd: &Etcd) -> (Relay, Proxy) {
    let relay = Relay::before(etcd, "/etcdserverpb.Watch/Watch", "/a/held").await;
    let proxy = Proxy::start_at(&relay.url, "/a/", |_| {}).await;
    (relay, proxy)
}

/// A stream with one watch.
async fn created(client: &mut Client, key: &'static str) -> Watching {
    let mut watching = client.watch([watch_of(key)]).await;
    assert!(watching.next().await.unwrap().created);
    watching
}

/// Two watches of `held` that nobody answers any more, one of them cancelled and one dropped with its stream; everybody else
/// goes on, on old streams and connections and new ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_is_not_answered_holds_up_nobody() {
    let etcd = Etcd::start().await;
    let (relay, proxy) = behind_relay(&etcd).await;
    let mut a = proxy.client().await;
    let lease = a.grant(0, 1000).await.unwrap();
    let (mut cancelled, dropped) = (created(&mut a, "held").await, created(&mut a, "held").await);
    let mut other = created(&mut a, "k").await;
    assert_eq!(relay.seen(), 2);

    relay.hold();
    cancelled.send(cancel(0));
    drop(dropped);
    for round in 1..=5 {
        let everybody = async {
            let revision = a.put("k", "v").await;
            assert_eq!(other.events(1).await[0].kv.as_ref().unwrap().mod_revision, revision);
            other.send(create(watch_of("elsewhere")));
            let answer = other.next().await.unwrap();
            assert_eq!((answer.created, answer.watch_id), (true, round));
            other.send(cancel(round));
            let answer = other.next().await.unwrap();
            assert_eq!((answer.canceled, answer.watch_id), (true, round));

            let mut newcomer = proxy.client().await;
            let mut streams = [created(&mut a, "k").await, created(&mut newcomer, "k").await];
            let revision = newcomer.put("k", "v").await;
            for watching in streams.iter_mut().chain([&mut other]) {
                assert_eq!(watching.events(1).await[0].kv.as_ref().unwrap().mod_revision, revision);
            }
            assert_eq!(a.keep_alive(lease).await.unwrap().ttl, 1000);
            assert_eq!(a.get("k").await.unwrap().mod_revision, revision);
        };
        tokio::time::timeout(PATIENCE, everybody).await.expect("everybody else goes on");
    }

    relay.release();
    let answer = cancelled.next().await.unwrap();
    assert_eq!((answer.canceled, answer.watch_id), (true, 0), "{answer:?}");
}

/// However much a watch has not been told: what shares its connection to the upstream is told all the same.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_are_kept_back_hold_up_no_other_stream() {
    const PUTS: usize = 16;
    let etcd = Etcd::start().await;
    let (relay, proxy) = behind_relay(&etcd).await;
    let (mut a, mut direct) = (proxy.client().await, etcd.client().await);
    let (mut held, mut other) = (created(&mut a, "held").await, created(&mut a, "k").await);
    relay.hold();
    let value = vec![b'x'; 512 << 10];
    for _ in 0..PUTS {
        direct.put("/a/held", value.clone()).await;
        let revision = a.put("k", "v").await;
        assert_eq!(other.events(1).await[0].kv.as_ref().unwrap().mod_revision, revision);
    }
    relay.release();
    assert_eq!(held.events(PUTS).await.len(), PUTS);
}
