//! The election service. What is expected here of the proxy is expected of an etcd, too, asked directly.

use bytes::Bytes;
use proto::{
    etcdserverpb::{LeaseRevokeRequest, LeaseTimeToLiveRequest},
    v3electionpb::{
        CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest, ResignRequest,
    },
};
use tokio::{task::JoinHandle, time::timeout};
use tonic::{Code, Status, Streaming};

use crate::{
    locks::{Library, Side, sides, stands},
    support::{Client, Etcd, PATIENCE, Proxy, eventually, refusal},
    transport::raw,
};

async fn campaign(
    client: &Client,
    name: impl Into<Bytes>,
    lease: i64,
    value: impl Into<Bytes>,
) -> Result<CampaignResponse, Status> {
    let mut client = client.clone();
    let elected = client.election.campaign(CampaignRequest { name: name.into(), lease, value: value.into() });
    timeout(PATIENCE, elected).await.expect("it waits in vain").map(tonic::Response::into_inner)
}

async fn proclaim(client: &Client, leader: Option<LeaderKey>, value: &'static str) -> Result<i64, Status> {
    let request = ProclaimRequest { leader, value: value.into() };
    let proclaimed = client.clone().election.proclaim(request).await?.into_inner();
    Ok(proclaimed.header.unwrap().revision)
}

async fn resign(client: &Client, leader: Option<LeaderKey>) -> Result<i64, Status> {
    let resigned = client.clone().election.resign(ResignRequest { leader }).await?.into_inner();
    Ok(resigned.header.unwrap().revision)
}

async fn leader(client: &Client, name: impl Into<Bytes>) -> Result<LeaderResponse, Status> {
    client.clone().election.leader(LeaderRequest { name: name.into() }).await.map(tonic::Response::into_inner)
}

/// Who stands for election, on a connection of its own. Returns when it does.
async fn candidate(side: &Side, lease: i64, value: &'static str) -> JoinHandle<Result<CampaignResponse, Status>> {
    let client = Client::connect(side.url()).await;
    let standing = tokio::spawn(async move { campaign(&client, "e", lease, value).await });
    stands(side, &format!("e/{lease:x}")).await;
    standing
}

async fn ended<T>(waiting: JoinHandle<T>) -> T {
    timeout(PATIENCE, waiting).await.expect("it waits in vain").unwrap()
}

/// Observes an election from now on; etcd says nothing, not even headers, before there is a leader.
fn observe(client: &Client, name: &'static str) -> JoinHandle<Result<Streaming<LeaderResponse>, Status>> {
    let mut election = client.election.clone();
    tokio::spawn(
        async move { election.observe(LeaderRequest { name: name.into() }).await.map(tonic::Response::into_inner) },
    )
}

async fn next(observed: &mut Streaming<LeaderResponse>) -> Result<Option<LeaderResponse>, Status> {
    timeout(PATIENCE, observed.message()).await.expect("nothing is observed")
}

/// Key and value of the next that is told, whose header is no older than it.
async fn told(observed: &mut Streaming<LeaderResponse>) -> (Bytes, Bytes) {
    let told = next(observed).await.unwrap().unwrap();
    let (header, kv) = (told.header.unwrap(), told.kv.unwrap());
    assert!(header.revision >= kv.mod_revision && header.cluster_id != 0 && header.member_id != 0);
    (kv.key, kv.value)
}

#[tokio::test(flavor = "multi_thread")]
async fn leaders_come_proclaim_and_go() {
    for mut side in sides().await {
        let a = &mut side.client;
        let names: [&[u8]; 5] = [b"e", b"", b"/", b"\0", b"\xff\xfe\xff"];
        for (name, lease) in names.into_iter().flat_map(|name| [(name, 0x1f), (name, -7), (name, 0)]) {
            if lease != 0 {
                a.grant(lease, 600).await.unwrap();
            }
            assert_eq!(refusal(leader(a, name).await), (Code::Unknown, "election: no leader".into()));
            let elected = campaign(a, name, lease, "first").await.unwrap();
            let lease = match lease {
                0 => a.leases().await[0],
                lease => lease,
            };
            let hex = if lease < 0 { format!("-{:x}", -lease) } else { format!("{lease:x}") };
            let key = Bytes::from([name, b"/", hex.as_bytes()].concat());
            let rev = elected.header.unwrap().revision;
            let expected = LeaderKey { name: Bytes::copy_from_slice(name), key: key.clone(), rev, lease };
            assert_eq!(elected.leader, Some(expected.clone()));
            let kv = leader(a, name).await.unwrap().kv.unwrap();
            assert_eq!((&kv.key, &kv.value[..], kv.create_revision, kv.lease), (&key, &b"first"[..], rev, lease));

            // The same lease again: the same candidate, with another value if it has one.
            let again = campaign(a, name, lease, "first").await.unwrap();
            assert_eq!((again.header.unwrap().revision, again.leader), (rev, Some(expected.clone())));
            let changed = campaign(a, name, lease, "second").await.unwrap();
            assert_eq!((changed.header.unwrap().revision, changed.leader), (rev, Some(expected.clone())));
            assert_eq!(leader(a, name).await.unwrap().kv.unwrap().value, "second");

            let proclaimed = proclaim(a, Some(expected.clone()), "third").await.unwrap();
            let now = leader(a, name).await.unwrap();
            assert_eq!(now.header.unwrap().revision, proclaimed);
            let kv = now.kv.unwrap();
            assert_eq!((&kv.value[..], kv.mod_revision, kv.version, kv.lease), (&b"third"[..], proclaimed, 3, lease));
            assert_eq!(resign(a, Some(expected.clone())).await.unwrap(), proclaimed + 1);
            assert_eq!(a.get(key).await, None);
            // Who has resigned may do so again, and has nothing more to say.
            assert_eq!(resign(a, Some(expected.clone())).await.unwrap(), proclaimed + 1);
            let not_leader = (Code::Unknown, "election: not leader".to_owned());
            assert_eq!(refusal(proclaim(a, Some(expected), "fourth").await), not_leader);
            a.lease.lease_revoke(LeaseRevokeRequest { id: lease }).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn candidates_take_turns_and_may_withdraw() {
    for mut side in sides().await {
        for lease in 1..=4 {
            side.client.grant(lease, 600).await.unwrap();
        }
        let first = campaign(&side.client, "e", 1, "one").await.unwrap();
        let withdrawn = candidate(&side, 2, "two").await;
        let second = candidate(&side, 3, "three").await;
        let third = candidate(&side, 4, "four").await;
        withdrawn.abort();
        eventually("the candidate has withdrawn", || async {
            side.client.clone().keys().await == ["e/1", "e/3", "e/4"]
        })
        .await;
        assert!(!second.is_finished() && !third.is_finished());
        let resigned = resign(&side.client, first.leader).await.unwrap();
        let second = ended(second).await.unwrap();
        let leader_key = second.leader.clone().unwrap();
        // The header is that of the candidature.
        assert_eq!((&leader_key.key[..], leader_key.rev), (&b"e/3"[..], second.header.unwrap().revision));
        assert!(leader_key.rev < resigned && !third.is_finished());
        side.client.lease.lease_revoke(LeaseRevokeRequest { id: 3 }).await.unwrap();
        assert_eq!(ended(third).await.unwrap().leader.unwrap().lease, 4);
        // Not even its lease makes a former leader one.
        let not_leader = (Code::Unknown, "election: not leader".to_owned());
        assert_eq!(refusal(proclaim(&side.client, Some(LeaderKey { lease: 4, ..leader_key }), "x").await), not_leader);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn observers_see_leaders_in_their_order() {
    for mut side in sides().await {
        for lease in 1..=2 {
            side.client.grant(lease, 600).await.unwrap();
        }
        let observing = [observe(&side.client, "e"), observe(&side.client, "e")];
        if let Some(proxy) = &side.proxy {
            eventually("both watch", || async { proxy.tenant.usage().await.watches == 2 }).await;
        }
        // Others' elections are none of theirs.
        campaign(&side.client, "e0", 1, "elsewhere").await.unwrap();
        let first = campaign(&side.client, "e", 1, "a1").await.unwrap();
        let mut observers = Vec::new();
        for observing in observing {
            observers.push(ended(observing).await.unwrap());
        }
        for observed in &mut observers {
            assert_eq!(told(observed).await, ("e/1".into(), "a1".into()));
        }
        let next_leader = candidate(&side, 2, "b1").await;
        proclaim(&side.client, first.leader.clone(), "a2").await.unwrap();
        proclaim(&side.client, first.leader.clone(), "a3").await.unwrap();
        for observed in &mut observers {
            assert_eq!(told(observed).await, ("e/1".into(), "a2".into()));
            assert_eq!(told(observed).await, ("e/1".into(), "a3".into()));
        }
        resign(&side.client, first.leader).await.unwrap();
        let second = ended(next_leader).await.unwrap();
        for observed in &mut observers {
            assert_eq!(told(observed).await, ("e/2".into(), "b1".into()));
        }
        // Nobody leads for a while; a newcomer waits, too.
        resign(&side.client, second.leader).await.unwrap();
        let newcomer = observe(&side.client, "e");
        let third = campaign(&side.client, "e", 2, "c1").await.unwrap();
        observers.push(ended(newcomer).await.unwrap());
        for observed in &mut observers {
            assert_eq!(told(observed).await, ("e/2".into(), "c1".into()));
        }
        drop(observers);
        if let Some(proxy) = &side.proxy {
            eventually("nobody watches", || async { proxy.tenant.usage().await.watches == 0 }).await;
        }
        drop(third);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_read_the_same() {
    for side in sides().await {
        let a = &side.client;
        let no_field = (Code::Unknown, "\"leader\" field must be provided".to_owned());
        assert_eq!(refusal(proclaim(a, None, "v").await), no_field);
        assert_eq!(refusal(resign(a, None).await), no_field);
        assert!(a.clone().leases().await.is_empty());
        let no_lease = (Code::Unknown, "etcdserver: requested lease not found".to_owned());
        assert_eq!(refusal(campaign(a, "e", 7, "v").await), no_lease);
        let no_key = (Code::Unknown, "etcdserver: key is not provided".to_owned());
        assert_eq!(refusal(proclaim(a, Some(LeaderKey { lease: 7, ..Default::default() }), "v").await), no_key);
        assert_eq!(refusal(resign(a, Some(LeaderKey { lease: 7, ..Default::default() })).await), no_key);
        let too_large = campaign(a, "e", 0, vec![b'v'; 1600 * 1024]).await;
        assert_eq!(refusal(too_large), (Code::Unknown, "etcdserver: request is too large".into()));
        // A leader without a lease gets one, here as well.
        let elected = campaign(a, "e", 0, "v").await.unwrap().leader.unwrap();
        let before = a.clone().leases().await.len();
        proclaim(a, Some(LeaderKey { lease: 0, ..elected.clone() }), "w").await.unwrap();
        assert_eq!(a.clone().leases().await.len(), before + 1);
        let lease = leader(a, "e").await.unwrap().kv.unwrap().lease;
        assert!(lease != 0 && lease != elected.lease);
        let ttl = a.clone().lease.lease_time_to_live(LeaseTimeToLiveRequest { id: lease, keys: false }).await.unwrap();
        assert_eq!(ttl.get_ref().granted_ttl, 60);
        // Only with a lease that there is.
        assert_eq!(refusal(proclaim(a, Some(LeaderKey { lease: 7, ..elected.clone() }), "x").await), no_lease);
        resign(a, Some(LeaderKey { lease: 7, ..elected })).await.unwrap();
        assert_eq!(a.clone().get("e").await, None);
        if side.proxy.is_some() {
            // In the leader of a request as well.
            let odd = Bytes::from_static(&[0x0a, 3, 0x7a, 1, b'x']);
            for method in ["Proclaim", "Resign"] {
                let path: &'static str = format!("/v3electionpb.Election/{method}").leak();
                let (code, text) = refusal(raw(&a.channel, path, odd.clone()).await);
                assert_eq!(code, Code::Unimplemented);
                assert!(text.contains("field 15 of v3electionpb.LeaderKey"), "{text}");
            }
            let odd = Bytes::from_static(&[0x0a, 1, b'e', 0x7a, 1, b'x']);
            for method in ["Campaign", "Leader", "Observe"] {
                let path: &'static str = format!("/v3electionpb.Election/{method}").leak();
                assert_eq!(refusal(raw(&a.channel, path, odd.clone()).await).0, Code::Unimplemented);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tenants_elect_for_themselves() {
    let etcd = Etcd::start().await;
    let (a, b) = (Proxy::start(&etcd, "/a/").await, Proxy::start(&etcd, "/b/").await);
    let [mut of_a, mut of_b] = [a.client().await, b.client().await];
    for client in [&mut of_a, &mut of_b] {
        client.grant(1, 600).await.unwrap();
    }
    let observing = observe(&of_b, "e");
    eventually("it watches", || async { b.tenant.usage().await.watches == 1 }).await;
    let elected = timeout(PATIENCE, campaign(&of_a, "e", 1, "a")).await.unwrap().unwrap();
    assert_eq!(refusal(leader(&of_b, "e").await).1, "election: no leader");
    // What leads there is nothing here.
    assert_eq!(refusal(proclaim(&of_b, elected.leader.clone(), "b").await).1, "election: not leader");
    resign(&of_b, elected.leader).await.unwrap();
    assert_eq!(leader(&of_a, "e").await.unwrap().kv.unwrap().value, "a");
    timeout(PATIENCE, campaign(&of_b, "e", 1, "b")).await.unwrap().unwrap();
    assert_eq!(told(&mut ended(observing).await.unwrap()).await, ("e/1".into(), "b".into()));
    assert!(!a.saw_foreign_keys() && !b.saw_foreign_keys());
}

/// One election of etcd's library in Go, which knows KV, Watch and Lease, and of clients of the election service.
#[tokio::test(flavor = "multi_thread")]
async fn service_and_library_elect_together() {
    for mut side in sides().await {
        side.client.grant(1, 600).await.unwrap();
        let mut library = Library::start(&side, &["elect", "e", "library"]);
        let key = library.has_it().await;
        assert_eq!(leader(&side.client, "e").await.unwrap().kv.unwrap().key, key);
        let mut observed = ended(observe(&side.client, "e")).await.unwrap();
        assert_eq!(told(&mut observed).await.1, "library");
        let standing = candidate(&side, 1, "service").await;
        assert!(!standing.is_finished());
        library.stop().await;
        let elected = ended(standing).await.unwrap();
        assert_eq!(told(&mut observed).await, ("e/1".into(), "service".into()));
        let mut behind = Library::start(&side, &["elect", "e", "library again"]);
        eventually("the library stands", || async { side.client.clone().keys().await.len() == 2 }).await;
        resign(&side.client, elected.leader).await.unwrap();
        assert_eq!(told(&mut observed).await.1, "library again");
        behind.has_it().await;
        behind.stop().await;
    }
}

/// Who observes no more is watched for no more, whether anybody leads or not.
#[tokio::test(flavor = "multi_thread")]
async fn observers_that_leave_leave_no_watch() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let mut client = proxy.client().await;
    let watchers = || etcd.metric("etcd_debugging_mvcc_watcher_total");
    // The proxy follows its own watermark.
    eventually("the follower's watch", || async { watchers().await == 1.0 }).await;
    client.grant(1, 600).await.unwrap();
    campaign(&client, "e", 1, "v").await.unwrap();
    let mut observed = ended(observe(&client, "e")).await.unwrap();
    told(&mut observed).await;
    let vacant = observe(&client, "vacant");
    eventually("both watch", || async { watchers().await == 3.0 }).await;
    vacant.abort();
    eventually("one has left", || async { watchers().await == 2.0 }).await;
    drop(observed);
    eventually("both have left", || async { watchers().await == 1.0 }).await;
    assert_eq!(client.keys().await, ["e/1"], "the leader stays");
}

/// The end of the proxy and that of its upstream end observing, and a candidature, which then still stands.
#[tokio::test(flavor = "multi_thread")]
async fn observing_ends_with_the_proxy_and_with_the_upstream() {
    let mut etcd = Etcd::start().await;
    let (stopping, staying) = (Proxy::start(&etcd, "/a/").await, Proxy::start(&etcd, "/b/").await);
    let mut open = Vec::new();
    for proxy in [&stopping, &staying] {
        let mut client = proxy.client().await;
        for lease in 1..=2 {
            client.grant(lease, 600).await.unwrap();
        }
        campaign(&client, "e", 1, "v").await.unwrap();
        let mut observed = ended(observe(&client, "e")).await.unwrap();
        told(&mut observed).await;
        let vacant = observe(&client, "vacant");
        let standing = tokio::spawn(async move { campaign(&client, "e", 2, "w").await });
        eventually("all three watch", || async { proxy.tenant.usage().await.watches == 3 }).await;
        open.push((observed, vacant, standing));
    }
    let stopped = (Code::Unavailable, "etcdserver: server stopped".to_owned());
    stopping.stop.cancel();
    let (mut observed, vacant, standing) = open.remove(0);
    assert_eq!(refusal(next(&mut observed).await), stopped);
    assert_eq!(refusal(ended(vacant).await), stopped);
    assert_eq!(refusal(ended(standing).await), stopped);
    assert!(etcd.client().await.get("/a/e/2").await.is_some());
    etcd.kill();
    let (mut observed, vacant, standing) = open.remove(0);
    assert_eq!(refusal(next(&mut observed).await).0, Code::Unavailable);
    assert_eq!(refusal(ended(vacant).await).0, Code::Unavailable);
    assert_eq!(refusal(ended(standing).await).0, Code::Unavailable);
}
