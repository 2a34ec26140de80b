//! What a tenant may use, and that nobody else notices.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    time::{Duration, Instant},
};

use etcd_proxy::limits::{LimitSettings, RateSettings, Usage};
use proto::{
    etcdserverpb::{
        AlarmMember, AlarmRequest, AlarmType, CompactionRequest, Compare, DeleteRangeRequest, LeaseGrantRequest,
        LeaseKeepAliveRequest, LeaseLeasesRequest, LeaseRevokeRequest, PutRequest, RangeRequest, StatusRequest,
        TxnRequest, WatchCancelRequest, WatchCreateRequest,
        alarm_request::AlarmAction,
        compare::{CompareResult, CompareTarget, TargetUnion},
        watch_request::RequestUnion,
    },
    v3lockpb::LockRequest,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Code;

use crate::relay::Relay;
use crate::support::{Client, Etcd, Proxy, delete_op, eventually, put_op, refusal, txn_op, watch_all};

fn no_space() -> (Code, String) {
    (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded".into())
}

fn too_many() -> (Code, String) {
    (Code::ResourceExhausted, "etcdserver: too many requests".into())
}

async fn limited(etcd: &Etcd, prefix: &'static str, limits: LimitSettings) -> Proxy {
    Proxy::start_with(etcd, prefix, |config| config.limits = limits).await
}

fn bytes(bytes: usize) -> LimitSettings {
    LimitSettings { quota_bytes: NonZeroUsize::new(bytes), ..Default::default() }
}

fn keys(keys: usize) -> LimitSettings {
    LimitSettings { quota_keys: NonZeroUsize::new(keys), ..Default::default() }
}

async fn put(client: &Client, key: &str, length: usize) -> (Code, String) {
    let request = PutRequest { key: key.to_owned().into(), value: vec![b'v'; length].into(), ..Default::default() };
    refusal(client.clone().kv.put(request).await)
}

async fn delete(client: &mut Client, key: &'static str) -> i64 {
    client
        .kv
        .delete_range(DeleteRangeRequest { key: key.into(), ..Default::default() })
        .await
        .unwrap()
        .get_ref()
        .deleted
}

fn ok() -> (Code, String) {
    (Code::Ok, String::new())
}

/// What is stored, read from the store itself.
async fn stored(client: &mut Client) -> (i64, i64) {
    let all = client.range(RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() });
    let kvs = all.await.unwrap().kvs;
    (kvs.len() as i64, kvs.iter().map(|kv| (kv.key.len() + kv.value.len()) as i64).sum())
}

/// Waits until the proxy's count is that of the store.
async fn counted(proxy: &Proxy) -> Usage {
    let mut client = proxy.client().await;
    let stored = stored(&mut client).await;
    eventually(&format!("{stored:?} are counted"), || async {
        let usage = proxy.tenant.usage().await;
        usage.keys.zip(usage.bytes) == Some(stored)
    })
    .await;
    proxy.tenant.usage().await
}

#[tokio::test(flavor = "multi_thread")]
async fn at_its_quota_a_tenant_cannot_grow_and_everything_else_goes_on() {
    let etcd = Etcd::start().await;
    let mut direct = etcd.client().await;
    direct.put("/a/before", "12345").await;
    direct.put("/a/", "a bare prefix is nobody's").await;
    let (first, other) = (limited(&etcd, "/a/", bytes(1000)).await, Proxy::start(&etcd, "/b/").await);
    let (mut a, b) = (first.client().await, other.client().await);
    assert_eq!(counted(&first).await.bytes, Some(11));

    assert_eq!(put(&a, "k1", 498).await, ok());
    assert_eq!(put(&a, "k2", 488).await, no_space());
    assert_eq!(put(&a, "k2", 487).await, ok());
    assert_eq!(counted(&first).await.bytes, Some(1000));
    assert_eq!(put(&a, "k3", 0).await, no_space());
    // Neither others nor the upstream notice.
    assert_eq!(put(&b, "k", 5000).await, ok());
    assert!(direct.maintenance.alarm(AlarmRequest::default()).await.unwrap().into_inner().alarms.is_empty());

    // The tenant sees an etcd without space.
    let status = a.maintenance.status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.db_size, status.db_size_in_use, status.db_size_quota), (1000, 1000, 1000));
    let member_id = status.header.unwrap().member_id;
    assert_eq!(status.errors, [format!("memberID:{member_id} alarm:NOSPACE ")]);
    let alarms = a.maintenance.alarm(AlarmRequest::default()).await.unwrap().into_inner().alarms;
    assert_eq!(alarms, [AlarmMember { member_id, alarm: AlarmType::Nospace as i32 }]);
    let corrupt = AlarmRequest { alarm: AlarmType::Corrupt as i32, ..Default::default() };
    assert!(a.maintenance.alarm(corrupt).await.unwrap().into_inner().alarms.is_empty());
    // What `etcdctl alarm disarm` asks for, here and where there is nothing of the tenant's to disarm.
    let disarm = |alarm| AlarmRequest { action: AlarmAction::Deactivate as i32, member_id, alarm: alarm as i32 };
    let (code, text) = refusal(a.maintenance.alarm(disarm(AlarmType::Nospace)).await);
    assert!(code == Code::PermissionDenied && text.contains("once keys are deleted"), "{text}");
    for (mut client, alarm) in [(a.clone(), AlarmType::Corrupt), (b.clone(), AlarmType::Nospace)] {
        let (code, text) = refusal(client.maintenance.alarm(disarm(alarm)).await);
        assert!(code == Code::PermissionDenied && text.contains("by its operator"), "{text}");
    }
    let usage = first.tenant.usage().await;
    assert!(usage.quota_exceeded && usage.hits.quota_bytes == 2, "{usage:?}");
    for line in [
        r#"etcd_proxy_limit{limit="quota_bytes"} 1000"#,
        r#"etcd_proxy_limit_used{limit="quota_bytes"} 1000"#,
        r#"etcd_proxy_limit_hits_total{limit="quota_bytes"} 2"#,
        "etcd_proxy_quota_exceeded 1",
    ] {
        assert!(first.metrics().contains(line), "{line} is missing in\n{}", first.metrics());
    }

    // What does not grow passes: the same again, less, deletions, reads; and makes room.
    assert_eq!(put(&a, "k1", 498).await, ok());
    let touch = PutRequest { key: "k1".into(), ignore_value: true, ..Default::default() };
    assert_eq!(refusal(a.kv.put(touch).await), ok());
    assert_eq!(put(&a, "k1", 497).await, ok());
    assert_eq!(put(&a, "k1", 498).await, ok());
    assert_eq!(put(&a, "k1", 499).await, no_space());
    assert_eq!(delete(&mut a, "k1").await, 1);
    counted(&first).await;
    assert!(a.maintenance.alarm(AlarmRequest::default()).await.unwrap().into_inner().alarms.is_empty());
    assert_eq!(put(&a, "k3", 498).await, ok());
    // Room that somebody else makes counts, too.
    assert_eq!(put(&a, "k4", 100).await, no_space());
    delete(&mut direct, "/a/k2").await;
    eventually("room is seen", || async { put(&a, "k4", 100).await == ok() }).await;
    assert_eq!(counted(&first).await.bytes, Some(11 + 500 + 102));
}

/// On an upstream whose own quota is real: neither what a tenant stores nor, with an operator who compacts, what it writes fills
/// it up for everybody.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_with_a_quota_leaves_the_upstream_its_space() {
    const MIB: usize = 1 << 20;
    const VALUE: usize = 100 << 10;
    let etcd = Etcd::start_with(&["--quota-backend-bytes=16777216"]).await;
    let (first, other) = (limited(&etcd, "/a/", bytes(2 * MIB)).await, Proxy::start(&etcd, "/b/").await);
    let (a, b, mut direct) = (first.client().await, other.client().await, etcd.client().await);
    let nobody_is_hurt = async |direct: &mut Client| {
        let alarms = direct.maintenance.alarm(AlarmRequest::default()).await.unwrap().into_inner().alarms;
        assert!(alarms.is_empty(), "{alarms:?}");
        assert_eq!(put(&b, "k", 1000).await, ok());
    };
    // Twenty fit, and one more than the upstream could take is asked for.
    let mut fit = 0;
    for key in 0..=16 * MIB / VALUE {
        match put(&a, &format!("k{key}"), VALUE).await {
            (Code::Ok, _) => fit += 1,
            refused => assert_eq!(refused, no_space()),
        }
    }
    assert_eq!(fit, 2 * MIB / VALUE);
    nobody_is_hurt(&mut direct).await;

    // Twice the upstream's space in changes of one key, which the quota lets pass.
    for _ in 0..32 {
        for _ in 0..MIB.div_ceil(VALUE) {
            assert_eq!(put(&a, "k0", VALUE).await, ok());
        }
        let all = RangeRequest { key: "\0".into(), ..Default::default() };
        let revision = direct.range(all).await.unwrap().header.unwrap().revision;
        direct.kv.compact(CompactionRequest { revision, physical: true }).await.unwrap();
        nobody_is_hurt(&mut direct).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_of_keys() {
    let etcd = Etcd::start().await;
    let proxy = limited(&etcd, "/a/", keys(3)).await;
    let mut a = proxy.client().await;
    let lease = a.grant(0, 2).await.unwrap();
    for key in ["k1", "k2"] {
        assert_eq!(put(&a, key, 5000).await, ok());
    }
    a.put_with_lease("k3", lease).await.unwrap();
    assert_eq!(put(&a, "k4", 0).await, no_space());
    assert_eq!(put(&a, "k1", 9000).await, ok());
    assert_eq!(proxy.tenant.usage().await.hits.quota_keys, 1);
    let status = a.maintenance.status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.db_size, counted(&proxy).await.bytes.unwrap());
    // Keys that expire make room.
    eventually("the lease expires", || async { put(&a, "k4", 0).await == ok() }).await;
    assert_eq!(counted(&proxy).await.keys, Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_txn_is_judged_by_the_branch_that_adds_more() {
    let etcd = Etcd::start().await;
    let proxy = limited(&etcd, "/a/", keys(2)).await;
    let mut a = proxy.client().await;
    assert_eq!(put(&a, "k1", 1).await, ok());
    counted(&proxy).await;
    let absent = |key: &'static str| Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Create as i32,
        key: key.into(),
        target_union: Some(TargetUnion::CreateRevision(0)),
        ..Default::default()
    };
    let txn = |success, failure| TxnRequest { compare: vec![absent("k1")], success, failure };
    // Two new keys in the branch that is not taken, and as many below it.
    let two = || vec![put_op("k2", "v"), put_op("k3", "v")];
    let nested = || vec![txn_op(TxnRequest { success: two(), ..Default::default() })];
    for request in [txn(two(), vec![]), txn(vec![], two()), txn(nested(), vec![]), txn(vec![], nested())] {
        assert_eq!(refusal(a.kv.txn(request).await), no_space());
    }
    assert_eq!(counted(&proxy).await.keys, Some(1));
    // A key that is there already adds nothing, in either branch; deletions do not make room for what is put with them.
    let update = txn(vec![put_op("k1", "w"), put_op("k2", "w")], vec![put_op("k1", "w"), put_op("k2", "w")]);
    assert_eq!(refusal(a.kv.txn(update).await), ok());
    let replace = txn(vec![], vec![delete_op("k2", ""), put_op("k3", "v")]);
    assert_eq!(refusal(a.kv.txn(replace).await), no_space());
    let read = txn(vec![], vec![delete_op("k2", "")]);
    assert_eq!(refusal(a.kv.txn(read).await), ok());
    assert_eq!(counted(&proxy).await.keys, Some(1));
}

/// Many writers at once: one process does not overshoot at all, and two by what is under way at most.
#[tokio::test(flavor = "multi_thread")]
async fn writers_at_once_do_not_overshoot() {
    const QUOTA: i64 = 100_000;
    const WRITERS: usize = 32;
    let etcd = Etcd::start().await;
    for replicas in [1, 2] {
        let prefix = ["", "/one/", "/two/"][replicas];
        let mut proxies = Vec::new();
        let mut clients = Vec::new();
        for _ in 0..replicas {
            let proxy = limited(&etcd, prefix, bytes(QUOTA as usize)).await;
            clients.push(proxy.client().await);
            proxies.push(proxy);
        }
        let writers = (0..WRITERS).map(|writer| {
            let client = clients[writer % replicas].clone();
            async move {
                let mut refused = 0;
                for number in 0..40 {
                    if put(&client, &format!("{writer:03}-{number:03}"), 493).await != ok() {
                        refused += 1;
                    }
                }
                refused
            }
        });
        let refused: i32 = futures::future::join_all(writers).await.into_iter().sum();
        let (_, stored) = stored(&mut clients[0]).await;
        let most = if replicas == 1 { QUOTA } else { QUOTA + 500 * WRITERS as i64 };
        assert!(stored <= most, "{replicas} replicas: {stored} stored");
        // And it is used up, not kept back.
        assert!(stored > QUOTA - 500, "{replicas} replicas: {stored} stored");
        assert!(refused > 0);
        for proxy in &proxies {
            assert_eq!(counted(proxy).await.bytes, Some(stored));
        }
    }
}

/// Whatever happens to the upstream, the count is right afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn the_count_survives_loss_and_compaction() {
    let mut etcd = Etcd::start().await;
    let proxy = limited(&etcd, "/a/", bytes(1 << 20)).await;
    let a = proxy.client().await;
    for key in 0..50 {
        assert_eq!(put(&a, &format!("k{key}"), 100 + key).await, ok());
    }
    counted(&proxy).await;
    for compact in [false, true, true] {
        etcd.kill();
        etcd.restart().await;
        // Before the proxy looks again, most likely.
        let mut direct = etcd.client().await;
        let mut last = 0;
        for key in 0..30 {
            last = direct.put(format!("/a/k{key}"), vec![b'x'; 10 * (key + 1)]).await;
            delete(&mut direct, ["/a/k40", "/a/k41"][key % 2]).await;
        }
        if compact {
            direct.compact(last).await.unwrap();
        }
        counted(&proxy).await;
        assert_eq!(put(&a, "k40", 7).await, ok());
        assert_eq!(put(&a, "k41", 9).await, ok());
        counted(&proxy).await;
    }
}

/// Upstreams without RangeStream are counted page by page.
#[tokio::test(flavor = "multi_thread")]
async fn old_upstreams_are_counted_too() {
    for variable in ["TEST_ETCD_3_5", "TEST_ETCD"] {
        let etcd = Etcd::start_binary(variable, &[]).await;
        let mut direct = etcd.client().await;
        for key in 0..300 {
            direct.put(format!("/a/{key}"), vec![b'v'; 1 + 10 * key]).await;
        }
        for key in 0..6 {
            direct.put(format!("/a/large{key}"), vec![b'v'; 900_000]).await;
        }
        let proxy = limited(&etcd, "/a/", bytes(1 << 30)).await;
        assert_eq!(counted(&proxy).await.keys, Some(306), "{variable}");
    }
}

/// Messages on a stream are slowed down by the rate, and end nothing. Unary requests get their part beside them.
#[tokio::test(flavor = "multi_thread")]
async fn messages_on_streams_wait_for_the_rate() {
    const WATCHES: u32 = 100;
    const KEPT: u32 = 10;
    let etcd = Etcd::start().await;
    let (per_second, burst) = (NonZeroU32::new(40).unwrap(), NonZeroU32::new(20).unwrap());
    let rate = RateSettings { per_second, burst };
    let proxy = limited(&etcd, "/a/", LimitSettings { requests_per_second: Some(rate), ..Default::default() }).await;
    let mut a = proxy.client().await;
    let lease = a.grant(0, 600).await.unwrap();
    let (keep, requests) = mpsc::unbounded_channel();
    keep.send(LeaseKeepAliveRequest { id: lease }).unwrap();
    let mut kept = a.lease.lease_keep_alive(UnboundedReceiverStream::new(requests)).await.unwrap().into_inner();

    let start = Instant::now();
    let mut watching = a.watch((0..WATCHES).map(|_| watch_all(0))).await;
    for _ in 0..KEPT {
        keep.send(LeaseKeepAliveRequest { id: lease }).unwrap();
    }
    eventually("a put passes beside the creations", || async { put(&a, "k", 1).await == ok() }).await;
    for _ in 0..=KEPT {
        assert_eq!(kept.message().await.unwrap().unwrap().ttl, 600);
    }
    for _ in 0..WATCHES {
        while !watching.next().await.unwrap().created {}
    }
    let least = Duration::from_secs(1) * (WATCHES + KEPT - burst.get()) / per_second.get();
    assert!(start.elapsed() >= least, "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_the_rate_are_refused() {
    let etcd = Etcd::start().await;
    let (per_second, burst) = (NonZeroU32::new(5).unwrap(), NonZeroU32::new(20).unwrap());
    let rate = RateSettings { per_second, burst };
    let proxy = limited(&etcd, "/a/", LimitSettings { requests_per_second: Some(rate), ..Default::default() }).await;
    let mut a = proxy.client().await;
    let read = || RangeRequest { key: "k".into(), ..Default::default() };
    let answers = futures::future::join_all((0..60).map(|_| {
        let mut a = a.clone();
        async move { refusal(a.range(read()).await) }
    }));
    let started = Instant::now();
    let answers = answers.await;
    let passed = answers.iter().filter(|answer| **answer == ok()).count();
    let most = 20 + 5 * (started.elapsed().as_secs() as usize + 1);
    assert!((20..=most).contains(&passed), "{passed} passed");
    assert!(answers.iter().all(|answer| *answer == ok() || *answer == too_many()), "{answers:?}");
    assert_eq!(proxy.tenant.usage().await.hits.max_requests_per_second as usize, 60 - passed);
    // Streams are requests, too. Those that are open go on.
    let refused = loop {
        if let Err(status) = a.watch.watch(futures::stream::pending()).await {
            break status;
        }
    };
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, "etcdserver: too many requests"));
    eventually("a token falls", || async { a.clone().range(read()).await.is_ok() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_a_time() {
    let etcd = Etcd::start().await;
    let limits = LimitSettings { concurrent_requests: NonZeroUsize::new(4), ..Default::default() };
    let proxy = limited(&etcd, "/a/", limits).await;
    let a = proxy.client().await;
    assert_eq!(put(&a, "k", 1).await, ok());
    etcd.signal("STOP");
    let waiting: Vec<_> = (0..4)
        .map(|key| {
            let a = a.clone();
            tokio::spawn(async move { put(&a, &format!("k{key}"), 1).await })
        })
        .collect();
    eventually("four are under way", || async {
        proxy.metrics().contains(r#"etcd_proxy_limit_used{limit="concurrent_requests"} 4"#)
    })
    .await;
    assert_eq!(put(&a, "k", 1).await, too_many());
    etcd.signal("CONT");
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), ok());
    }
    eventually("there is room again", || async { put(&a, "k", 1).await == ok() }).await;
    assert!(proxy.metrics().contains(r#"etcd_proxy_limit_used{limit="concurrent_requests"} 0"#));
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_beyond_the_limit_are_denied_on_their_stream() {
    let etcd = Etcd::start().await;
    let proxy = limited(&etcd, "/a/", LimitSettings { watches: NonZeroUsize::new(3), ..Default::default() }).await;
    let mut a = proxy.client().await;
    // All at once: the answers come in their order.
    let mut watching = a.watch([watch_all(0), watch_all(0), watch_all(0), watch_all(0), watch_all(0)]).await;
    for watch_id in 0..3 {
        let answer = watching.next().await.unwrap();
        assert!(answer.created && !answer.canceled && answer.watch_id == watch_id, "{answer:?}");
    }
    for _ in 0..2 {
        let answer = watching.next().await.unwrap();
        assert!(answer.created && answer.canceled, "{answer:?}");
        assert_eq!((answer.watch_id, &answer.cancel_reason[..]), (-1, "etcdserver: too many requests"));
        assert!(answer.header.unwrap().revision > 0);
    }
    // The stream goes on, and so does another one.
    assert_eq!(put(&a, "k", 1).await, ok());
    for _ in 0..3 {
        assert_eq!(watching.events(1).await[0].kv.as_ref().unwrap().key, "k");
    }
    let mut second = a.watch([watch_all(0)]).await;
    assert!(second.next().await.unwrap().canceled);
    assert_eq!(proxy.tenant.usage().await.watches, 3);
    assert_eq!(proxy.tenant.usage().await.hits.max_watches, 3);
    // A watch that is cancelled makes room on any stream.
    watching.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 1 }));
    assert!(watching.next().await.unwrap().canceled);
    second.send(RequestUnion::CreateRequest(watch_all(0)));
    assert!(!second.next().await.unwrap().canceled);
    // One that etcd refuses takes none, and neither do those of a stream that ended.
    second.send(RequestUnion::CreateRequest(WatchCreateRequest {
        key: "b".into(),
        range_end: "a".into(),
        ..Default::default()
    }));
    assert_eq!(second.next().await.unwrap().cancel_reason, "etcdserver: too many requests");
    drop(watching);
    eventually("places are free", || async { proxy.tenant.usage().await.watches == 1 }).await;
    second.send(RequestUnion::CreateRequest(WatchCreateRequest {
        key: "b".into(),
        range_end: "a".into(),
        ..Default::default()
    }));
    assert_eq!(second.next().await.unwrap().cancel_reason, "mvcc: watcher range is empty");
    assert_eq!(proxy.tenant.usage().await.watches, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_below_a_compaction_counts_until_it_is_cancelled() {
    let etcd = Etcd::start().await;
    let proxy = limited(&etcd, "/a/", LimitSettings { watches: NonZeroUsize::new(3), ..Default::default() }).await;
    let mut a = proxy.client().await;
    for number in 0..3 {
        assert_eq!(put(&a, "k", number).await, ok());
    }
    etcd.client().await.compact(3).await.unwrap();
    let mut watching = a.watch([watch_all(0), watch_all(0)]).await;
    for _ in 0..2 {
        assert!(!watching.next().await.unwrap().canceled);
    }
    for _ in 0..3 {
        watching.send(RequestUnion::CreateRequest(watch_all(1)));
        let created = watching.next().await.unwrap();
        assert!(created.created && !created.canceled, "{created:?}");
        let ended = watching.next().await.unwrap();
        assert!(ended.canceled && ended.compact_revision > 0, "{ended:?}");
        // Such a watch has its id until the client cancels it, and only then is its place free.
        assert_eq!(proxy.tenant.usage().await.watches, 3);
        watching.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: created.watch_id }));
        assert!(watching.next().await.unwrap().canceled);
        assert_eq!(proxy.tenant.usage().await.watches, 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_beyond_the_limit_are_refused() {
    let etcd = Etcd::start().await;
    let limits = LimitSettings { leases: NonZeroUsize::new(2), ..Default::default() };
    let (first, second) = (limited(&etcd, "/a/", limits).await, limited(&etcd, "/a/", limits).await);
    let (mut a, mut other) = (first.client().await, second.client().await);
    let long = a.grant(0, 600).await.unwrap();
    a.grant(0, 1).await.unwrap();
    assert_eq!(refusal(a.grant(0, 600).await), too_many());
    // One for all replicas.
    eventually("the other replica sees them", || async { second.tenant.usage().await.leases == Some(2) }).await;
    assert_eq!(refusal(other.grant(0, 600).await), too_many());
    assert_eq!(first.tenant.usage().await.hits.max_leases, 1);
    // What expires and what is revoked makes room.
    eventually("one expires", || async { a.clone().grant(0, 600).await.is_ok() }).await;
    eventually("the other replica sees that", || async {
        other.clone().grant(0, 600).await.map_err(|status| status.code()) == Err(Code::ResourceExhausted)
    })
    .await;
    other.lease.lease_revoke(LeaseRevokeRequest { id: long }).await.unwrap();
    eventually("there is room", || async { other.clone().grant(0, 600).await.is_ok() }).await;
    assert_eq!(a.leases().await.len(), 2);
    // A grant that etcd refuses takes no place.
    let granted = a.leases().await;
    let (taken, other) = (granted[0], granted[1]);
    a.lease.lease_revoke(LeaseRevokeRequest { id: other }).await.unwrap();
    for _ in 0..3 {
        eventually("it is refused by etcd", || async {
            let request = LeaseGrantRequest { id: taken, ttl: 600 };
            let answer = a.clone().lease.lease_grant(request).await;
            refusal(answer) == (Code::FailedPrecondition, "etcdserver: lease already exists".into())
        })
        .await;
    }
    a.grant(0, 600).await.unwrap();
}

/// Without limits nothing is followed, and still it can be asked for.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_limited_unless_asked_for() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let mut a = proxy.client().await;
    assert_eq!(put(&a, "k", 100).await, ok());
    a.grant(0, 600).await.unwrap();
    let usage = proxy.tenant.usage().await;
    assert_eq!((usage.keys, usage.bytes, usage.leases, usage.quota_exceeded), (Some(1), None, Some(1), false));
    assert!(!proxy.metrics().contains("etcd_proxy_limit{"));
}

/// Sizes are the tenant's without a quota, too; what others store does not show.
#[tokio::test(flavor = "multi_thread")]
async fn sizes_are_the_tenants_own() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let a = proxy.client().await;
    let b = Proxy::start(&etcd, "/b/").await.client().await;
    let sizes = async || {
        let status = a.clone().maintenance.status(StatusRequest {}).await.unwrap().into_inner();
        (status.db_size, status.db_size_in_use)
    };
    // What is not there has a size, too: etcdctl divides by it.
    assert_eq!(sizes().await, (1, 1));
    assert_eq!(put(&a, "k", 100).await, ok());
    assert_eq!(put(&b, "neighbour", 5000).await, ok());
    eventually("the key is seen", async || sizes().await == (101, 101)).await;
    assert_eq!(put(&a, "k", 10).await, ok());
    assert_eq!(put(&b, "another", 5000).await, ok());
    eventually("the change is seen", async || sizes().await == (11, 11)).await;
    let quota = async |mut client: Client| {
        client.maintenance.status(StatusRequest {}).await.unwrap().into_inner().db_size_quota
    };
    assert_eq!(quota(a.clone()).await, quota(etcd.client().await).await);
}

/// Asks for something that needs a new lease, and goes away while the upstream grants it without an answer.
async fn keeps_its_place<F>(ask: impl FnOnce(Client) -> F + Send + 'static)
where
    F: Future + Send,
{
    let etcd = Etcd::start().await;
    let relay = Relay::before(&etcd, "/etcdserverpb.Lease/LeaseGrant", "").await;
    let limits = LimitSettings { concurrent_requests: NonZeroUsize::new(1), ..Default::default() };
    let proxy = Proxy::start_at(&relay.url, "/a/", |config| config.limits = limits).await;
    let mut client = proxy.client().await;
    relay.hold();
    let asking = tokio::spawn({
        let client = client.clone();
        async move {
            ask(client).await;
        }
    });
    eventually("it is under way", || async { relay.seen() == 1 }).await;
    asking.abort();
    let cancelled = |line: &str| line.contains("\"Canceled\"") && line.ends_with(" 1");
    eventually("the client has gone", || async { proxy.metrics().lines().any(cancelled) }).await;
    assert_eq!(put(&client, "k", 1).await, too_many());
    eventually("it is given up", || async { put(&client, "k", 1).await == ok() }).await;
    assert_eq!(proxy.tenant.usage().await.requests_in_flight, 0);
    // It was granted all the same.
    let listed = async |client: &mut Client| client.lease.lease_leases(LeaseLeasesRequest {}).await;
    eventually("it is the tenant's", async || {
        listed(&mut client.clone()).await.unwrap().into_inner().leases.len() == 1
    })
    .await;
    let id = listed(&mut client).await.unwrap().into_inner().leases[0].id;
    client.put_with_lease("leased", id).await.unwrap();
}

/// A grant goes on without its client. It keeps its place for as long as it does, which is not for ever, and what comes of it
/// is listed.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_keeps_its_place_when_its_client_has_gone() {
    keeps_its_place(|mut client| async move { client.grant(0, 60).await }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_does_that_for_a_lock() {
    let lock = LockRequest { name: "l".into(), lease: 0 };
    keeps_its_place(|mut client| async move { client.lock.lock(lock).await }).await;
}
