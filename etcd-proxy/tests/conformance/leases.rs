//! Leases: mapped ids, owners, and what becomes of keys.

use std::time::Duration;

use proto::{
    etcdserverpb::{
        Compare, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
        LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, RangeRequest, TxnRequest, compare::TargetUnion,
    },
    mvccpb::event::EventType,
};
use tonic::Code;

use crate::{
    support::{Client, Etcd, PATIENCE, Proxy, eventually, put_op, refusal, watch_all},
    transport::raw_stream,
};

async fn time_to_live(client: &mut Client, id: i64) -> LeaseTimeToLiveResponse {
    client.lease.lease_time_to_live(LeaseTimeToLiveRequest { id, keys: true }).await.unwrap().into_inner()
}

async fn two_tenants() -> (Etcd, Proxy, Proxy, Client, Client, Client) {
    let etcd = Etcd::start().await;
    let (a, b) = (Proxy::start(&etcd, "/a/").await, Proxy::start(&etcd, "/b/").await);
    let clients = (a.client().await, b.client().await, etcd.client().await);
    (etcd, a, b, clients.0, clients.1, clients.2)
}

#[tokio::test(flavor = "multi_thread")]
async fn starting_and_reading_write_nothing() {
    let (_etcd, _a, _b, mut a, _, mut direct) = two_tenants().await;
    a.keys().await;
    a.leases().await;
    a.cluster.member_list(proto::etcdserverpb::MemberListRequest::default()).await.unwrap();
    let mut watching = a.watch([watch_all(1)]).await;
    assert!(watching.next().await.unwrap().created);
    let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
    assert_eq!(direct.range(all).await.unwrap().header.unwrap().revision, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_chosen_id_is_two_leases() {
    let (_etcd, _a, _b, mut a, mut b, mut direct) = two_tenants().await;
    for id in [7, -7, i64::MAX, i64::MIN] {
        assert_eq!(a.grant(id, 600).await.unwrap(), id);
        assert_eq!(b.grant(id, 700).await.unwrap(), id);
        assert_eq!(
            refusal(a.grant(id, 600).await),
            (Code::FailedPrecondition, "etcdserver: lease already exists".into())
        );
        a.put_with_lease("k", id).await.unwrap();
        b.put_with_lease("k", id).await.unwrap();
        assert_eq!(a.get("k").await.unwrap().lease, id);
        let (of_a, of_b) = (time_to_live(&mut a, id).await, time_to_live(&mut b, id).await);
        assert_eq!((of_a.id, of_a.granted_ttl, &of_a.keys[..]), (id, 600, &["k".into()][..]));
        assert_eq!((of_b.id, of_b.granted_ttl, &of_b.keys[..]), (id, 700, &["k".into()][..]));
        a.lease.lease_revoke(LeaseRevokeRequest { id }).await.unwrap();
        assert_eq!((a.get("k").await, a.leases().await), (None, vec![]));
        assert_eq!(b.get("k").await.unwrap().lease, id);
        assert_eq!(b.leases().await, [id]);
        b.lease.lease_revoke(LeaseRevokeRequest { id }).await.unwrap();
    }
    assert_eq!(direct.leases().await, Vec::<i64>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn anothers_lease_was_never_granted() {
    let (_etcd, _a, _b, mut a, mut b, mut direct) = two_tenants().await;
    let of_b = b.grant(0, 600).await.unwrap();
    assert!(of_b > 0);
    b.put_with_lease("k", of_b).await.unwrap();
    let of_upstream = direct.grant(0, 600).await.unwrap();
    let on_upstream = direct.leases().await;
    assert_eq!(on_upstream.len(), 2);
    // What b knows of it, what it is on the upstream, and a lease that is nobody's tenant's.
    for id in on_upstream.into_iter().chain([of_b, of_upstream, 12345, 0]) {
        let not_found = (Code::NotFound, "etcdserver: requested lease not found".to_owned());
        if id != 0 {
            assert_eq!(refusal(a.put_with_lease("k", id).await), not_found);
        }
        assert_eq!(refusal(a.lease.lease_revoke(LeaseRevokeRequest { id }).await), not_found);
        let ttl = time_to_live(&mut a, id).await;
        assert_eq!((ttl.id, ttl.ttl, ttl.granted_ttl, ttl.keys.len()), (id, -1, 0, 0));
        let renewed = a.keep_alive(id).await.unwrap();
        assert_eq!((renewed.id, renewed.ttl), (id, 0));
    }
    assert_eq!(a.leases().await, Vec::<i64>::new());
    assert_eq!(b.get("k").await.unwrap().lease, of_b);
}

/// A key that was there before the proxy may hang on a lease with keys of others, and tells the lease's id. Its time is told, and
/// may be made longer; it is not ended, and no key of others is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_others_share_is_not_the_tenants_to_end() {
    let (_etcd, proxy, _b, mut a, mut b, mut direct) = two_tenants().await;
    let own = a.grant(0, 600).await.unwrap();
    let shared = direct.grant(0, 600).await.unwrap();
    for key in ["/a/of-a", "/b/of-b"] {
        direct.put_with_lease(key, shared).await.unwrap();
    }
    let id = a.get("of-a").await.unwrap().lease;
    assert_ne!(id, shared);
    assert_eq!(
        refusal(a.lease.lease_revoke(LeaseRevokeRequest { id }).await),
        (Code::NotFound, "etcdserver: requested lease not found".into())
    );
    let renewed = a.keep_alive(id).await.unwrap();
    assert_eq!((renewed.id, renewed.ttl), (id, 600));
    let told = a.lease.lease_time_to_live(LeaseTimeToLiveRequest { id, keys: false }).await.unwrap().into_inner();
    assert_eq!((told.id, told.granted_ttl, told.keys.len()), (id, 600, 0));
    assert!((1..=600).contains(&told.ttl), "{told:?}");
    assert!(!proxy.saw_foreign_keys());
    let asked = a.lease.lease_time_to_live(LeaseTimeToLiveRequest { id, keys: true }).await;
    let held_back = asked.unwrap_err();
    let text = "etcd-proxy: the upstream's answer was held back because it does not belong to this tenant";
    assert_eq!((held_back.code(), held_back.message(), held_back.details()), (Code::Internal, text, &b""[..]));
    assert!(!format!("{held_back:?}").contains("of-b"), "{held_back:?}");
    assert!(proxy.saw_foreign_keys());
    assert!(b.get("of-b").await.is_some());
    assert_eq!(a.leases().await, [own]);
    a.lease.lease_revoke(LeaseRevokeRequest { id: own }).await.unwrap();
    assert!(a.leases().await.is_empty());
    // Nobody else's key hangs on it any more.
    b.delete_all().await;
    assert_eq!(time_to_live(&mut a, id).await.keys, ["of-a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_is_broken_off_leaves_no_lease_without_a_mark() {
    let (_etcd, _a, _b, mut a, _, mut direct) = two_tenants().await;
    a.grant(0, 600).await.unwrap();
    // From before the lease is there until after its mark is.
    for micros in (100..6000).step_by(50) {
        let mut request = tonic::Request::new(LeaseGrantRequest { ttl: 600, id: 0 });
        request.set_timeout(Duration::from_micros(micros));
        drop(a.lease.lease_grant(request).await);
    }
    eventually("a mark for each lease", || {
        let (mut a, mut direct) = (a.clone(), direct.clone());
        async move { direct.leases().await.len() == a.leases().await.len() }
    })
    .await;
    assert!(direct.leases().await.len() > 1, "none was granted");
}

#[tokio::test(flavor = "multi_thread")]
async fn compares_are_exact() {
    let (_etcd, _a, _b, mut a, _, _) = two_tenants().await;
    let (first, second) = (a.grant(0, 600).await.unwrap(), a.grant(0, 600).await.unwrap());
    a.put_with_lease("k", first).await.unwrap();
    let (equal, greater, less, not_equal) = (0, 1, 2, 3);
    for (key, result, lease, expected) in [
        ("k", equal, first, true),
        ("k", equal, second, false),
        ("k", not_equal, second, true),
        ("k", not_equal, first, false),
        ("k", greater, 0, true),
        ("k", less, 0, false),
        ("none", equal, 0, true),
        ("none", not_equal, first, true),
    ] {
        let compare = Compare {
            key: key.into(),
            result,
            target: 4,
            target_union: Some(TargetUnion::Lease(lease)),
            ..Default::default()
        };
        let request = TxnRequest { compare: vec![compare], ..Default::default() };
        assert_eq!(a.kv.txn(request).await.unwrap().into_inner().succeeded, expected, "{key} {result} {lease}");
    }
    let compare = Compare {
        key: "k".into(),
        result: less,
        target: 4,
        target_union: Some(TargetUnion::Lease(second)),
        ..Default::default()
    };
    assert_eq!(
        refusal(a.kv.txn(TxnRequest { compare: vec![compare], ..Default::default() }).await).0,
        Code::Unimplemented
    );
}

/// Keep-alives are passed on one for one, and the proxy renews nothing by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_lives_as_long_as_it_is_kept_alive() {
    let (_etcd, _a, _b, mut a, _, mut direct) = two_tenants().await;
    let id = a.grant(0, 2).await.unwrap();
    a.put_with_lease("k", id).await.unwrap();
    let mut watching = a.watch([watch_all(0)]).await;
    assert!(watching.next().await.unwrap().created);
    for _ in 0..3 {
        let renewed = a.keep_alive(id).await.unwrap();
        assert_eq!((renewed.id, renewed.ttl), (id, 2));
        assert!(renewed.header.unwrap().revision > 0);
    }
    // Not renewed any more: it expires, its key with it, and the mark.
    let events = watching.events(1).await;
    assert_eq!((events[0].r#type(), &events[0].kv.as_ref().unwrap().key[..]), (EventType::Delete, b"k".as_slice()));
    assert_eq!(events[0].prev_kv.as_ref().unwrap().lease, id);
    eventually("the lease's end", || {
        let (mut a, mut direct) = (a.clone(), direct.clone());
        async move { a.leases().await.is_empty() && direct.leases().await.is_empty() }
    })
    .await;
    let marks = RangeRequest {
        key: "/etcd-proxy.meta/tenants/2f612f/leases/".into(),
        range_end: "/etcd-proxy.meta/tenants/2f612f/leases0".into(),
        ..Default::default()
    };
    assert_eq!(direct.range(marks).await.unwrap().count, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keep_alive_stream_answers_in_order() {
    let (_etcd, _a, _b, mut a, _, _) = two_tenants().await;
    let ids = [a.grant(0, 600).await.unwrap(), a.grant(5, 700).await.unwrap(), 99];
    let requests: Vec<_> = ids.iter().cycle().take(30).map(|&id| LeaseKeepAliveRequest { id }).collect();
    let mut responses = a.lease.lease_keep_alive(futures::stream::iter(requests.clone())).await.unwrap().into_inner();
    for request in requests {
        let response = responses.message().await.unwrap().unwrap();
        let ttl = if request.id == ids[0] {
            600
        } else if request.id == 5 {
            700
        } else {
            0
        };
        assert_eq!((response.id, response.ttl), (request.id, ttl));
    }
    assert!(responses.message().await.unwrap().is_none());
}

/// Replicas that meet their first lease at the same time agree on one mapping.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_the_mapping() {
    let etcd = Etcd::start().await;
    let mut replicas = Vec::new();
    for _ in 0..4 {
        replicas.push(Proxy::start(&etcd, "/a/").await);
    }
    let mut clients = Vec::new();
    for replica in &replicas {
        clients.push(replica.client().await);
    }
    let grants =
        clients.iter().cloned().zip(1..).map(|(mut client, id)| async move { client.grant(id, 600).await.unwrap() });
    assert_eq!(futures::future::join_all(grants).await, [1, 2, 3, 4]);
    clients[0].put_with_lease("k", 3).await.unwrap();
    for client in &mut clients {
        assert_eq!(client.leases().await, [1, 2, 3, 4]);
        assert_eq!(client.get("k").await.unwrap().lease, 3);
    }
}

/// A replica that never saw a lease meets one in an event first.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_loads_the_mapping_when_it_needs_it() {
    let etcd = Etcd::start().await;
    let (first, second) = (Proxy::start(&etcd, "/a/").await, Proxy::start(&etcd, "/a/").await);
    let (mut granting, mut watching) = (first.client().await, second.client().await);
    let mut watch = watching.watch([watch_all(0)]).await;
    assert!(watch.next().await.unwrap().created);
    let id = granting.grant(0, 600).await.unwrap();
    granting.put_with_lease("k", id).await.unwrap();
    granting.put("l", "").await;
    let events = watch.events(2).await;
    assert_eq!(events[0].kv.as_ref().unwrap().lease, id);
    assert_eq!(events[1].kv.as_ref().unwrap().key, "l");
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_answer_as_etcds() {
    let (_etcd, _a, _b, mut a, _, mut direct) = two_tenants().await;
    for (id, ttl) in [(0, 9_000_000_001), (3, 0), (4, -5), (-1, 9_000_000_000)] {
        let request = LeaseGrantRequest { id, ttl };
        let (by_proxy, by_etcd) = (a.lease.lease_grant(request).await, direct.lease.lease_grant(request).await);
        match (by_proxy, by_etcd) {
            (Ok(by_proxy), Ok(by_etcd)) => {
                let (by_proxy, by_etcd) = (by_proxy.into_inner(), by_etcd.into_inner());
                assert_eq!((by_proxy.id, by_proxy.ttl, by_proxy.error), (by_etcd.id, by_etcd.ttl, by_etcd.error));
            }
            (by_proxy, by_etcd) => assert_eq!(refusal(by_proxy), refusal(by_etcd)),
        }
    }
}

/// A key that outlives a change of its lease, in a Txn as well.
#[tokio::test(flavor = "multi_thread")]
async fn keys_change_leases() {
    let (_etcd, _a, _b, mut a, _, _) = two_tenants().await;
    let (first, second) = (a.grant(0, 600).await.unwrap(), a.grant(0, 600).await.unwrap());
    a.put_with_lease("k", first).await.unwrap();
    a.put_with_lease("k", second).await.unwrap();
    a.lease.lease_revoke(LeaseRevokeRequest { id: first }).await.unwrap();
    assert_eq!(a.get("k").await.unwrap().lease, second);
    a.kv.txn(TxnRequest { success: vec![put_op("k", "detached")], ..Default::default() }).await.unwrap();
    a.lease.lease_revoke(LeaseRevokeRequest { id: second }).await.unwrap();
    assert_eq!(a.get("k").await.unwrap().lease, 0);
}

/// What comes before a message that is refused is carried out and answered, in whatever pieces it comes.
#[tokio::test(flavor = "multi_thread")]
async fn keep_alives_before_a_malformed_one_are_answered() {
    let (etcd, shared) = (Etcd::start().await, Etcd::start().await);
    let proxy = Proxy::start(&shared, "/a/").await;
    let good = |id: i64| prost::Message::encode_to_vec(&LeaseKeepAliveRequest { id });
    let malformed = vec![0x08];
    for mut client in [etcd.client().await, proxy.client().await] {
        client.grant(7, 600).await.unwrap();
        let body: Vec<u8> = [good(7), good(8), malformed.clone(), good(7)]
            .iter()
            .flat_map(|message| [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], &message[..]].concat())
            .collect();
        let (answers, status) = raw_stream(&client.channel, "/etcdserverpb.Lease/LeaseKeepAlive", body.into()).await;
        let ttls: Vec<(i64, i64)> = answers
            .into_iter()
            .map(|answer| <LeaseKeepAliveResponse as prost::Message>::decode(answer).unwrap())
            .map(|answer| (answer.id, answer.ttl))
            .collect();
        assert_eq!(ttls, [(7, 600), (8, 0)]);
        assert_eq!(status.code(), Code::Internal, "{status:?}");
    }
}

/// Whoever names a lease that was never granted gets that for an answer, and nothing is written for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_without_leases_needs_no_secret() {
    let (etcd, shared) = (Etcd::start().await, Etcd::start().await);
    let proxy = Proxy::start(&shared, "/a/").await;
    let mut direct = shared.client().await;
    let mut answers = Vec::new();
    for mut client in [etcd.client().await, proxy.client().await] {
        client.put("k", "v").await;
        let mut of_client = Vec::new();
        for id in [7, -9, i64::MAX] {
            of_client.push(refusal(client.put_with_lease("k", id).await));
            of_client.push(refusal(client.lease.lease_revoke(LeaseRevokeRequest { id }).await));
            let ttl = time_to_live(&mut client, id).await;
            of_client.push((Code::Ok, format!("{} {} {} {:?}", ttl.id, ttl.ttl, ttl.granted_ttl, ttl.keys)));
            let renewed = client.keep_alive(id).await.unwrap();
            of_client.push((Code::Ok, format!("{} {}", renewed.id, renewed.ttl)));
            for result in [0, 3] {
                let compare = Compare {
                    key: "k".into(),
                    result,
                    target: 4,
                    target_union: Some(TargetUnion::Lease(id)),
                    ..Default::default()
                };
                let txn = TxnRequest { compare: vec![compare], ..Default::default() };
                let succeeded = client.kv.txn(txn).await.unwrap().into_inner().succeeded;
                of_client.push((Code::Ok, format!("{result} {succeeded}")));
            }
        }
        answers.push(of_client);
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(direct.keys().await, ["/a/k"]);
    assert_eq!(direct.get("/a/k").await.unwrap().mod_revision, 2);
    let all = RangeRequest { key: "\0".into(), ..Default::default() };
    assert_eq!(direct.range(all).await.unwrap().header.unwrap().revision, 2);
}

/// A stream that was opened before the first lease serves those that come later, granted by whichever replica.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_lease_may_come_while_a_keep_alive_stream_is_open() {
    let etcd = Etcd::start().await;
    let (first, second) = (Proxy::start(&etcd, "/a/").await, Proxy::start(&etcd, "/a/").await);
    let (mut a, mut other) = (first.client().await, second.client().await);
    let (requests, stream) = tokio::sync::mpsc::channel(8);
    let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
    for id in [7, 0, 8] {
        requests.send(LeaseKeepAliveRequest { id }).await.unwrap();
    }
    let mut answers = a.lease.lease_keep_alive(stream).await.unwrap().into_inner();
    for id in [7, 0, 8] {
        let answer = next(&mut answers).await;
        assert_eq!((answer.id, answer.ttl), (id, 0));
    }
    assert_eq!(other.grant(7, 600).await.unwrap(), 7);
    for (id, ttl) in [(7, 600), (8, 0), (7, 600)] {
        requests.send(LeaseKeepAliveRequest { id }).await.unwrap();
        let answer = next(&mut answers).await;
        assert_eq!((answer.id, answer.ttl), (id, ttl));
    }
    assert_eq!(time_to_live(&mut a, 7).await.granted_ttl, 600);
}

async fn next(answers: &mut tonic::Streaming<LeaseKeepAliveResponse>) -> LeaseKeepAliveResponse {
    tokio::time::timeout(PATIENCE, answers.message()).await.expect("an answer in time").unwrap().unwrap()
}
