//! Compaction: of one tenant's history, not of everybody's.

use std::time::{Duration, Instant};

use etcd_proxy::tenant::CompactionPolicy;
use proto::etcdserverpb::{
    CompactionRequest, Compare, RangeRequest, TxnRequest, WatchCancelRequest, WatchCreateRequest, compare::TargetUnion,
    watch_request::RequestUnion,
};
use tokio::time::timeout;
use tonic::Code;

use crate::{
    relay::Relay,
    support::{Client, Etcd, PATIENCE, Proxy, at_least, put_op, range_op, refusal, txn_op, watch_all},
};

fn compacted() -> (Code, String) {
    (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted".into())
}

fn future() -> (Code, String) {
    (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision".into())
}

fn at(key: &'static str, revision: i64) -> RangeRequest {
    RangeRequest { key: key.into(), revision, ..Default::default() }
}

/// Writes ten revisions of `k`. Returns them.
async fn history(client: &mut Client) -> Vec<i64> {
    let mut revisions = Vec::new();
    for value in 0..10 {
        revisions.push(client.put("k", value.to_string()).await);
    }
    revisions
}

#[tokio::test(flavor = "multi_thread")]
async fn compacting_moves_the_tenants_watermark_alone() {
    let etcd = Etcd::start().await;
    let (proxy_a, proxy_b) = (Proxy::start(&etcd, "/a/").await, Proxy::start(&etcd, "/b/").await);
    let (mut a, mut b, mut direct) = (proxy_a.client().await, proxy_b.client().await, etcd.client().await);
    let revisions = history(&mut a).await;
    history(&mut b).await;
    let middle = revisions[5];

    a.compact(middle).await.unwrap();
    assert_eq!(refusal(a.range(at("k", middle - 1)).await), compacted());
    assert_eq!(a.range(at("k", middle)).await.unwrap().kvs[0].value, "5");
    assert_eq!(b.range(at("none", middle - 1)).await.unwrap().kvs.len(), 0);
    assert_eq!(direct.range(at("/a/k", middle - 1)).await.unwrap().kvs[0].value, "4");

    // As etcd answers what is at, below and beyond.
    assert_eq!(refusal(a.compact(middle).await), compacted());
    assert_eq!(refusal(a.compact(middle - 1).await), compacted());
    assert_eq!(refusal(a.compact(-1).await), compacted());
    assert_eq!(refusal(a.compact(i64::MAX).await), future());
    // `physical` returns as well.
    a.kv.compact(CompactionRequest { revision: middle + 1, physical: true }).await.unwrap();
    assert_eq!(refusal(a.range(at("k", middle)).await), compacted());
}

/// The same calls on etcd itself, answer by answer.
#[tokio::test(flavor = "multi_thread")]
async fn compact_answers_as_etcds() {
    let passed_on = |millis| CompactionPolicy::Passthrough { min_age: Duration::from_millis(millis) };
    for policy in [CompactionPolicy::Virtual, passed_on(1), passed_on(0)] {
        compact_answers_as_etcds_by(policy).await;
    }
}

async fn compact_answers_as_etcds_by(policy: CompactionPolicy) {
    let (etcd, shared) = (Etcd::start().await, Etcd::start().await);
    let proxy = Proxy::start_with(&shared, "/a/", |config| config.compaction = policy).await;
    let mut answers = Vec::new();
    for mut client in [etcd.client().await, proxy.client().await] {
        let mut of_client =
            vec![refusal(client.compact(-1).await), refusal(client.compact(0).await), refusal(client.compact(0).await)];
        let revisions = history(&mut client).await;
        for revision in [revisions[3], revisions[3], revisions[2], revisions[9], revisions[9] + 1000, 0, -7] {
            of_client.push(refusal(client.compact(revision).await));
        }
        for revision in [-1, 0, revisions[8], revisions[9]] {
            of_client.push(refusal(client.range(at("k", revision)).await));
            let txn = TxnRequest { success: vec![range_op(at("k", revision))], ..Default::default() };
            of_client.push(refusal(client.kv.txn(txn).await));
        }
        answers.push(of_client);
    }
    assert_eq!(answers[0], answers[1]);
}

/// In a Txn a compacted revision is an error if its branch is taken, and only then, before anything is written.
#[tokio::test(flavor = "multi_thread")]
async fn a_txn_is_refused_only_for_the_branch_it_takes() {
    let (etcd, shared) = (Etcd::start().await, Etcd::start().await);
    let proxy = Proxy::start(&shared, "/a/").await;
    let mut answers = Vec::new();
    for mut client in [etcd.client().await, proxy.client().await] {
        let revisions = history(&mut client).await;
        client.compact(revisions[5]).await.unwrap();
        let exists = |version| Compare {
            key: "k".into(),
            result: 1,
            target_union: Some(TargetUnion::Version(version)),
            ..Default::default()
        };
        let mut of_client = Vec::new();
        for (version, revision) in [(0, 4), (99, 4), (0, 5), (0, 400), (99, 400), (0, -3)] {
            let revision = match revision {
                400 => i64::MAX,
                -3 => -3,
                index => revisions[index as usize],
            };
            for nested in [false, true] {
                let read = TxnRequest {
                    success: vec![put_op("written", "v"), range_op(at("k", revision))],
                    ..Default::default()
                };
                let success = if nested { vec![txn_op(read)] } else { read.success };
                // The other branch is what is not taken with a version of 99.
                let txn = TxnRequest { compare: vec![exists(version)], success, failure: vec![put_op("other", "v")] };
                let answer = client.kv.txn(txn).await.map(|answer| answer.into_inner().succeeded);
                of_client.push((version, refusal(answer.clone()), answer.ok(), client.get("written").await.is_some()));
                client.delete_all().await;
                client.put("k", "again").await;
            }
        }
        answers.push(of_client);
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[1][0].1, compacted());
    assert_eq!(answers[1][2].2, Some(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_ranges_know_the_watermark() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let mut a = proxy.client().await;
    let revisions = history(&mut a).await;
    a.compact(revisions[5]).await.unwrap();
    let first = match a.kv.range_stream(at("k", revisions[4])).await {
        Ok(answer) => answer.into_inner().message().await.map(drop),
        Err(status) => Err(status),
    };
    if !at_least(7) {
        // Clients fall back to Range on this code only.
        return assert_eq!(refusal(first).0, Code::Unimplemented);
    }
    assert_eq!(refusal(first), compacted());
    let mut parts = a.kv.range_stream(at("k", revisions[5])).await.unwrap().into_inner();
    let part = parts.message().await.unwrap().unwrap().range_response.unwrap();
    assert_eq!((&part.kvs[0].key[..], &part.kvs[0].value[..]), (b"k".as_slice(), b"5".as_slice()));
}

/// A stream goes on at its first revision for as long as there is that, and its client is told when there is not.
#[tokio::test(flavor = "multi_thread")]
async fn streams_of_ranges_end_when_their_revision_is_compacted() {
    const KEYS: usize = 100;
    if !at_least(7) {
        return;
    }
    let (etcd, shared) = (Etcd::start().await, Etcd::start().await);
    let proxy = Proxy::start(&shared, "/a/").await;
    for mut client in [etcd.client().await, proxy.client().await] {
        // More than fits into the windows on the way.
        let mut last = 0;
        for number in 0..KEYS {
            last = client.put(format!("big{number:03}"), vec![b'x'; 200 << 10]).await;
        }
        for (revision, beyond) in [(0, None), (last, None), (last, Some(false)), (last, Some(true)), (0, Some(true))] {
            let all = RangeRequest { key: "big".into(), range_end: "bih".into(), revision, ..Default::default() };
            let mut parts = client.kv.range_stream(all).await.unwrap().into_inner();
            let mut count = parts.message().await.unwrap().unwrap().range_response.unwrap().kvs.len();
            let later = client.put("other", "v").await;
            if let Some(beyond) = beyond {
                client.compact(if beyond { later } else { last }).await.unwrap();
            }
            let ended = loop {
                match parts.message().await {
                    Ok(Some(part)) => count += part.range_response.unwrap().kvs.len(),
                    Ok(None) => break Ok(()),
                    Err(status) => break Err(status),
                }
            };
            if beyond == Some(true) {
                assert!(count < KEYS, "{revision}");
                assert_eq!(refusal(ended), compacted(), "{revision}");
            } else {
                assert_eq!((count, ended.is_ok()), (KEYS, true), "{revision} {beyond:?}");
            }
        }
    }
}

/// Watches below, at and above, with etcd's answers; and what the stream does afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn watches_below_are_cancelled_as_etcds() {
    let (etcd, shared) = (Etcd::start().await, Etcd::start().await);
    let proxy = Proxy::start(&shared, "/a/").await;
    let mut transcripts = Vec::new();
    for mut client in [etcd.client().await, proxy.client().await] {
        let revisions = history(&mut client).await;
        client.compact(revisions[5]).await.unwrap();
        let mut transcript = Vec::new();
        let mut watching = client.watch([WatchCreateRequest { key: "other".into(), ..Default::default() }]).await;
        assert!(watching.next().await.unwrap().created);
        let index = |revision: i64| {
            revisions.iter().position(|&known| known == revision).map(|index| index as i64).unwrap_or(revision.signum())
        };
        for start in [revisions[4], revisions[5], 1, -1] {
            watching.send(RequestUnion::CreateRequest(WatchCreateRequest {
                key: "k".into(),
                start_revision: start,
                ..Default::default()
            }));
            // Created, then events or the cancel.
            let mut answers = vec![watching.next().await.unwrap()];
            if !answers[0].canceled {
                answers.push(watching.next().await.unwrap());
            }
            for answer in answers {
                let header = answer.header.unwrap();
                assert!(header.cluster_id != 0 && header.member_id != 0 && header.raft_term != 0);
                transcript.push((
                    answer.watch_id,
                    answer.created,
                    answer.canceled,
                    answer.cancel_reason,
                    index(answer.compact_revision),
                    header.revision == 0,
                    answer.events.iter().map(|event| event.kv.as_ref().unwrap().value.clone()).collect::<Vec<_>>(),
                ));
            }
        }
        // The id of a watch that was cancelled so is taken until the client cancels it.
        for request in [
            RequestUnion::CreateRequest(WatchCreateRequest { key: "k".into(), watch_id: 1, ..Default::default() }),
            RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 1 }),
            RequestUnion::CreateRequest(WatchCreateRequest { key: "k".into(), watch_id: 1, ..Default::default() }),
        ] {
            watching.send(request);
            let answer = watching.next().await.unwrap();
            transcript.push((answer.watch_id, answer.created, answer.canceled, answer.cancel_reason, 0, false, vec![]));
        }
        transcripts.push(transcript);
    }
    assert_eq!(transcripts[0], transcripts[1]);
}

/// What an event replaced is told only where the revision before it is not compacted away, as etcd has it.
#[tokio::test(flavor = "multi_thread")]
async fn events_at_the_watermark_forget_what_was_before() {
    let (etcd, shared) = (Etcd::start().await, Etcd::start().await);
    let proxy = Proxy::start(&shared, "/a/").await;
    let mut transcripts = Vec::new();
    for mut client in [etcd.client().await, proxy.client().await] {
        let revisions = history(&mut client).await;
        client.compact(revisions[5]).await.unwrap();
        let create =
            WatchCreateRequest { key: "k".into(), start_revision: revisions[5], prev_kv: true, ..Default::default() };
        let mut watching = client.watch([create]).await;
        assert!(watching.next().await.unwrap().created);
        let mut told = Vec::new();
        while told.len() < 5 {
            let events = watching.next().await.unwrap().events;
            told.extend(events.into_iter().map(|event| (event.kv.unwrap().value, event.prev_kv.map(|kv| kv.value))));
        }
        transcripts.push(told);
    }
    assert_eq!(transcripts[0][0].1, None);
    assert_eq!(transcripts[0][1].1, Some("5".into()));
    assert_eq!(transcripts[0], transcripts[1]);
}

/// A watch that a compaction overtakes while it catches up is cancelled, as etcd does it, and the stream goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_lags_behind_a_compaction_is_cancelled() {
    // etcd gives a watch a thousand revisions ten times a second.
    const REVISIONS: usize = 5000;
    const AT_A_TIME: usize = 250;
    let (etcd, shared) = (Etcd::start().await, Etcd::start().await);
    let proxy = Proxy::start(&shared, "/a/").await;
    for mut client in [etcd.client().await, proxy.client().await] {
        let since = Instant::now();
        loop {
            assert!(since.elapsed() < 3 * PATIENCE, "it was never behind");
            let first = client.put("k", "first").await;
            for _ in 0..REVISIONS / AT_A_TIME {
                let puts = (0..AT_A_TIME).map(|_| {
                    let mut client = client.clone();
                    async move { client.put("k", "v").await }
                });
                futures::future::join_all(puts).await;
            }
            let last = client.put("k", "last").await;
            let create =
                WatchCreateRequest { key: "k".into(), start_revision: first, prev_kv: true, ..Default::default() };
            let mut watching = client.watch([create]).await;
            assert!(watching.next().await.unwrap().created);
            let mut told = first;
            let mut compacted = false;
            let cancel = loop {
                let answer = watching.next().await.unwrap();
                if answer.canceled {
                    break Some(answer);
                }
                for event in answer.events {
                    let revision = event.kv.unwrap().mod_revision;
                    assert!(revision == told + 1 || (revision, told) == (first, first), "{told}, then {revision}");
                    told = revision;
                }
                if told == last {
                    break None;
                }
                if !std::mem::replace(&mut compacted, true) {
                    client.compact(last).await.unwrap();
                }
            };
            // It was faster than the compaction.
            let Some(cancel) = cancel else { continue };
            assert_eq!((cancel.compact_revision, cancel.header.unwrap().revision), (last, 0));
            assert!(cancel.events.is_empty() && told < last);
            // Whatever is still to come of it, another watch of the stream gets its own.
            watching.send(RequestUnion::CreateRequest(WatchCreateRequest {
                key: "other".into(),
                watch_id: 7,
                ..Default::default()
            }));
            assert!(watching.next().await.unwrap().created);
            client.put("k", "later").await;
            client.put("other", "v").await;
            let answer = watching.next().await.unwrap();
            assert_eq!((answer.watch_id, answer.events[0].kv.as_ref().unwrap().value.clone()), (7, "v".into()));
            watching.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 0 }));
            let answer = watching.next().await.unwrap();
            assert_eq!((answer.watch_id, answer.canceled, answer.compact_revision), (0, true, 0));
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_replicas_follow() {
    let etcd = Etcd::start().await;
    let (first, second) = (Proxy::start(&etcd, "/a/").await, Proxy::start(&etcd, "/a/").await);
    let (mut a, mut other) = (first.client().await, second.client().await);
    let revisions = history(&mut a).await;
    // The second has loaded "never compacted" by now.
    assert_eq!(other.range(at("k", revisions[0])).await.unwrap().kvs[0].value, "0");
    for index in [3, 6] {
        a.compact(revisions[index]).await.unwrap();
        let started = Instant::now();
        while other.range(at("k", revisions[index] - 1)).await.is_ok() {
            assert!(started.elapsed() < PATIENCE, "the other replica does not follow");
        }
        assert_eq!(other.range(at("k", revisions[index])).await.unwrap().kvs.len(), 1);
        assert_eq!(refusal(other.compact(revisions[index]).await), compacted());
    }
    // A replica that starts later knows at once.
    let third = Proxy::start(&etcd, "/a/").await;
    assert_eq!(refusal(third.client().await.range(at("k", revisions[5])).await), compacted());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_upstreams_own_compaction_shows() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let (mut a, mut direct) = (proxy.client().await, etcd.client().await);
    let revisions = history(&mut a).await;
    direct.compact(revisions[5]).await.unwrap();
    assert_eq!(refusal(a.range(at("k", revisions[4])).await), compacted());
    assert_eq!(refusal(a.compact(revisions[4]).await), compacted());
    // It has it still, and so can nobody else compact up to it again.
    assert_eq!(a.range(at("k", revisions[5])).await.unwrap().kvs[0].value, "5");
    for revision in [revisions[5], 1, 0, -1, i64::MIN] {
        assert_eq!(refusal(direct.compact(revision).await), compacted(), "{revision}");
        assert_eq!(refusal(a.compact(revision).await), compacted(), "{revision}");
    }
    let mut watching = a.watch([watch_all(revisions[4])]).await;
    assert!(watching.next().await.unwrap().created);
    let cancel = watching.next().await.unwrap();
    assert!(cancel.canceled);
    assert_eq!(cancel.compact_revision, revisions[5]);
    a.compact(revisions[6]).await.unwrap();
}

/// The lowest revisions there are, on stores of which nothing was compacted.
#[tokio::test(flavor = "multi_thread")]
async fn compactions_of_the_beginning_answer_as_etcds() {
    for calls in [[1, 1, 2], [0, 0, 1], [-1, 0, 0], [2, 1, 0]] {
        let (etcd, shared) = (Etcd::start().await, Etcd::start().await);
        let proxy = Proxy::start(&shared, "/a/").await;
        let mut answers = Vec::new();
        for mut client in [etcd.client().await, proxy.client().await] {
            let mut of_client = Vec::new();
            client.put("k", "v").await;
            for revision in calls {
                of_client.push(refusal(client.compact(revision).await));
            }
            answers.push(of_client);
        }
        assert_eq!(answers[0], answers[1], "{calls:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_compactions_agree() {
    let etcd = Etcd::start().await;
    let (first, second) = (Proxy::start(&etcd, "/a/").await, Proxy::start(&etcd, "/a/").await);
    let (mut a, b) = (first.client().await, second.client().await);
    let revisions = history(&mut a).await;
    let calls = revisions.iter().map(|&revision| {
        let mut clients = [a.clone(), b.clone()];
        async move { (revision, clients[(revision % 2) as usize].compact(revision).await) }
    });
    let answers = futures::future::join_all(calls).await;
    for (revision, answer) in &answers {
        assert!(answer.is_ok() || refusal(answer.clone()) == compacted(), "{revision}: {answer:?}");
    }
    // The greatest always gets through.
    assert!(answers.last().unwrap().1.is_ok());
    assert_eq!(refusal(a.compact(*revisions.last().unwrap()).await), compacted());
}

#[tokio::test(flavor = "multi_thread")]
async fn it_can_be_switched_off() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start_with(&etcd, "/a/", |config| config.compaction = CompactionPolicy::Deny).await;
    let mut a = proxy.client().await;
    let revision = a.put("k", "v").await;
    let (code, text) = refusal(a.compact(revision).await);
    assert_eq!(code, Code::PermissionDenied);
    assert!(text.contains("compaction"), "{text}");
}

/// Passed through, a compaction reaches what is old of the shared history and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_that_is_passed_on_spares_what_is_young() {
    const MIN_AGE: Duration = Duration::from_secs(3);
    let etcd = Etcd::start().await;
    let policy = CompactionPolicy::Passthrough { min_age: MIN_AGE };
    let proxy = Proxy::start_with(&etcd, "/a/", |config| config.compaction = policy).await;
    let (mut a, mut direct) = (proxy.client().await, etcd.client().await);
    let other = Proxy::start(&etcd, "/b/").await;
    let revisions = history(&mut a).await;
    let (middle, last) = (revisions[5], revisions[9]);
    // As soon after the start nothing is old.
    a.compact(middle).await.unwrap();
    assert_eq!(refusal(a.range(at("k", middle - 1)).await), compacted());
    assert_eq!(direct.range(at("/a/k", middle - 1)).await.unwrap().kvs[0].value, "4");

    let written = Instant::now();
    let mut compactions = 0;
    let reached = loop {
        let head = a.put("k", "young").await;
        let asked = Instant::now();
        a.compact(head).await.unwrap();
        compactions += 1;
        assert_eq!(refusal(a.range(at("k", head - 1)).await), compacted());
        match direct.range(at("/a/k", last)).await {
            // What was written a moment ago is there for everybody else.
            Ok(_) => assert!(written.elapsed() < PATIENCE, "never compacted"),
            Err(status) => {
                assert_eq!(refusal::<()>(Err(status)), compacted());
                assert!(asked - written >= MIN_AGE, "compacted after {:?}", asked - written);
                assert_eq!(direct.range(at("/a/k", head - 1)).await.unwrap().kvs[0].value, "young");
                break head;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(compactions > 2);
    // It shows through to the others, and to nobody else's watermark.
    let mut b = other.client().await;
    assert_eq!(refusal(b.range(at("none", middle)).await), compacted());
    assert_eq!(b.range(at("none", reached - 1)).await.unwrap().kvs.len(), 0);
    // A compaction that the tenant wants no further goes no further, however old the rest is.
    let early = a.put("k", "early").await;
    let late = a.put("k", "late").await;
    let since = Instant::now();
    while since.elapsed() < MIN_AGE + Duration::from_secs(1) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    a.kv.compact(CompactionRequest { revision: early, physical: true }).await.unwrap();
    // The tenant's is done, everybody's follows.
    let answered = Instant::now();
    while direct.range(at("/a/k", early - 1)).await.is_ok() {
        assert!(answered.elapsed() < PATIENCE, "never compacted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(refusal(direct.range(at("/a/k", early - 1)).await), compacted());
    assert_eq!(direct.range(at("/a/k", early)).await.unwrap().kvs[0].value, "early");
    assert!(late > early);
}

/// Passed on or not: the tenant's compaction is done when its watermark is written.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_compaction_that_is_passed_on() {
    let etcd = Etcd::start().await;
    let relay = Relay::before(&etcd, "/etcdserverpb.KV/Compact", "").await;
    relay.hold();
    let policy = CompactionPolicy::Passthrough { min_age: Duration::from_millis(1) };
    let proxy = Proxy::start_at(&relay.url, "/a/", |config| config.compaction = policy).await;
    let mut a = proxy.client().await;
    let started = Instant::now();
    // Sooner or later something is old enough.
    while started.elapsed() < Duration::from_secs(1) {
        let revision = a.put("k", "v").await;
        timeout(PATIENCE, a.compact(revision)).await.expect("an answer in time").unwrap();
        assert_eq!(refusal(a.range(at("k", revision - 1)).await), compacted());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Where the upstream itself is compacted as far as the tenant asks, there is nothing to keep a book on.
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_that_is_handed_on_whole_takes_no_revision() {
    let etcd = Etcd::start().await;
    let policy = CompactionPolicy::Passthrough { min_age: Duration::ZERO };
    let proxy = Proxy::start_with(&etcd, "/a/", |config| config.compaction = policy).await;
    let (mut a, mut direct) = (proxy.client().await, etcd.client().await);
    let revisions = history(&mut a).await;
    let (middle, last) = (revisions[5], revisions[9]);
    let answer = a.kv.compact(CompactionRequest { revision: middle, physical: true }).await.unwrap().into_inner();
    assert_eq!(answer.header.unwrap().revision, last);
    assert_eq!(a.put("k", "next").await, last + 1);
    assert_eq!(refusal(a.range(at("k", middle - 1)).await), compacted());
    assert_eq!(refusal(direct.range(at("/a/k", middle - 1)).await), compacted());
    assert_eq!(a.range(at("k", middle)).await.unwrap().kvs[0].value, "5");

    // A watermark of the tenant's own, from when it had another policy, counts as before.
    let elsewhere = Proxy::start(&etcd, "/a/").await;
    elsewhere.client().await.compact(last).await.unwrap();
    assert_eq!(refusal(a.compact(last - 1).await), compacted());
    assert_eq!(refusal(a.compact(last).await), compacted());
    assert_eq!(direct.range(at("/a/k", last - 1)).await.unwrap().kvs[0].value, "8");
    a.compact(last + 1).await.unwrap();
    assert_eq!(refusal(direct.range(at("/a/k", last)).await), compacted());
}
