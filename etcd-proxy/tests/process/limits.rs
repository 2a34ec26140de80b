//! Limits as operators set them and as etcd's own tools meet them.

use std::{
    collections::BTreeMap,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use proto::etcdserverpb::{
    LeaseKeepAliveRequest, PutRequest, RequestOp, TxnRequest, WatchRequest, kv_client::KvClient,
    lease_client::LeaseClient, request_op::Request, watch_client::WatchClient,
};
use proto::v3lockpb::{LockRequest, lock_client::LockClient};
use tempfile::TempDir;
use tokio::task::{AbortHandle, JoinSet};
use tokio_stream::StreamExt as _;
use tonic::{Code, Status};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::{
    child::{Etcd, Program, Proxy, binary, etcdctl, eventually, fails, free_address},
    deep::ask,
    http::get,
};

/// A body of `/usage`, flattened: `limits.quotaBytes` and so on.
async fn usage(metrics: &str) -> BTreeMap<String, serde_json::Value> {
    let answer = get(&format!("{metrics}/usage")).await.unwrap();
    assert_eq!((answer.status, &answer.headers["content-type"][..]), (200, "application/json"));
    let serde_json::Value::Object(fields) = serde_json::from_str(&answer.body).unwrap() else { panic!("no object") };
    let mut flat = BTreeMap::new();
    for (name, value) in fields {
        match value {
            serde_json::Value::Object(inner) => {
                flat.extend(inner.into_iter().map(|(field, value)| (format!("{name}.{field}"), value)));
            }
            value => _ = flat.insert(name, value),
        }
    }
    flat
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_and_counts_by_etcdctl() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(
        "/a/",
        &etcd,
        &[
            "--quota-bytes=1000",
            "--quota-keys=20",
            "--max-requests-per-second=500",
            "--max-requests-burst=1000",
            "--max-concurrent-requests=200",
            "--max-watches=1",
            "--max-leases=1",
        ],
    )
    .await;
    let verbose = get(&format!("{}/readyz?verbose", proxy.metrics)).await.unwrap().body;
    assert!(verbose.ends_with("[+]meta ok\n[+]limits ok\nok\n"), "{verbose}");
    assert_eq!(proxy.ctl(&["put", "k", &"v".repeat(899)]), "OK\n");
    let refused = fails(etcdctl(&proxy.url, &[], &["put", "other", &"v".repeat(100)]));
    assert!(refused.contains("etcdserver: mvcc: database space exceeded"), "{refused}");
    let alarms = proxy.ctl(&["alarm", "list"]);
    assert!(alarms.contains("alarm:NOSPACE"), "{alarms}");
    assert!(!etcd.ctl(&["alarm", "list"]).contains("NOSPACE"));
    let status: serde_json::Value =
        serde_json::from_str(&proxy.ctl(&["endpoint", "status", "--write-out=json"])).unwrap();
    let of = |field: &str| status[0]["Status"][field].as_i64();
    assert_eq!((of("dbSize"), of("dbSizeInUse"), of("dbSizeQuota")), (Some(900), Some(900), Some(1000)));
    assert_eq!(proxy.ctl(&["put", "k", "v"]), "OK\n");
    eventually("the alarm goes off", async || proxy.ctl(&["alarm", "list"]).is_empty().then_some(())).await;

    proxy.ctl(&["lease", "grant", "600"]);
    let refused = fails(etcdctl(&proxy.url, &[], &["lease", "grant", "600"]));
    assert!(refused.contains("etcdserver: too many requests"), "{refused}");

    let dir = TempDir::new().unwrap();
    let watch = |name: &str| {
        let mut command = Command::new(binary("TEST_ETCDCTL"));
        command.args(["--endpoints", &proxy.url, "watch", "k"]).stdin(Stdio::null());
        Program::spawn(command, dir.path().join(name))
    };
    let watching = watch("first");
    eventually("the watch sees events", async || {
        proxy.ctl(&["put", "k", "seen"]);
        watching.log().contains("seen").then_some(())
    })
    .await;
    // The client library takes it for what it is, and neither waits nor tries again.
    let mut denied = watch("second");
    denied.exit().await;
    assert!(denied.log().contains("etcdserver: too many requests"), "{}", denied.log());

    let usage = usage(&proxy.metrics).await;
    for (field, value) in [
        ("prefix", "\"/a/\""),
        ("keys", "1"),
        ("bytes", "5"),
        ("leases", "1"),
        ("watches", "1"),
        ("requestsInFlight", "0"),
        ("quotaExceeded", "false"),
        ("limits.quotaBytes", "1000"),
        ("limits.quotaKeys", "20"),
        ("limits.maxRequestsPerSecond", "500"),
        ("limits.maxRequestsBurst", "1000"),
        ("limits.maxConcurrentRequests", "200"),
        ("limits.maxWatches", "1"),
        ("limits.maxLeases", "1"),
        ("hits.quotaBytes", "1"),
        ("hits.quotaKeys", "0"),
        ("hits.maxWatches", "1"),
        ("hits.maxLeases", "1"),
    ] {
        assert_eq!(usage.get(field).map(ToString::to_string).as_deref(), Some(value), "{field} of {usage:?}");
    }
}

/// The operator's look at a proxy is no request of the tenant: a tenant that floods makes it neither unready nor blind.
#[tokio::test(flavor = "multi_thread")]
async fn probes_do_not_count_as_the_tenants() {
    let etcd = Etcd::start().await;
    let metrics = format!("0.0.0.0:{}", free_address().rsplit_once(':').unwrap().1);
    let flags =
        ["--max-requests-per-second=1", "--max-requests-burst=2", &format!("--listen-metrics-urls=http://{metrics}")];
    // Plaintext on every address, which only the metrics may have unasked. The first URL is the test's own.
    let proxy = Proxy::spawn("/a/", &etcd.url, &flags);
    let metrics = metrics.replace("0.0.0.0", "http://127.0.0.1");
    eventually("it is ready", async || get(&format!("{metrics}/readyz")).await.filter(|answer| answer.status == 200))
        .await;
    let mut refused = 0;
    for _ in 0..20 {
        let answer = etcdctl(&proxy.url, &[], &["put", "k", "v"]);
        if !answer.status.success() {
            let message = fails(answer);
            assert!(message.contains("etcdserver: too many requests"), "{message}");
            refused += 1;
        }
        for path in ["readyz", "health", "usage", "metrics"] {
            assert_eq!(get(&format!("{metrics}/{path}")).await.unwrap().status, 200, "{path}");
        }
    }
    assert!(refused > 5, "{refused} were refused");
    let usage = usage(&metrics).await;
    assert_eq!(usage["hits.maxRequestsPerSecond"], serde_json::json!(refused));
    assert_eq!(usage["keys"], serde_json::json!(1));
}

/// A stream that its client opens and then says nothing on.
fn idle(proxy: &Proxy, number: usize, opened: &mut JoinSet<Status>) -> AbortHandle {
    let channel = proxy.channel();
    if number.is_multiple_of(2) {
        let mut watch = WatchClient::new(channel);
        opened.spawn(async move { watch.watch(tokio_stream::pending::<WatchRequest>()).await.map(drop).unwrap_err() })
    } else {
        let mut lease = LeaseClient::new(channel);
        let nothing = tokio_stream::pending::<LeaseKeepAliveRequest>();
        opened.spawn(async move { lease.lease_keep_alive(nothing).await.map(drop).unwrap_err() })
    }
}

/// Streams are bounded in the process, whatever connections they are on, and leave unary requests alone.
#[tokio::test(flavor = "multi_thread")]
async fn idle_streams_are_bounded() {
    const PLACES: usize = 20;
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &["--max-streams=20"]).await;
    let metrics = format!("{}/metrics", proxy.metrics);
    let open = async |count: usize| {
        let line = format!("etcd_proxy_limit_used{{limit=\"streams\"}} {count}\n");
        eventually("streams are open", async || get(&metrics).await?.body.contains(&line).then_some(())).await;
    };
    let (mut streams, mut handles) = (JoinSet::new(), Vec::new());
    for number in 0..PLACES {
        handles.push(idle(&proxy, number, &mut streams));
    }
    open(PLACES).await;
    for number in 0..3 {
        idle(&proxy, number, &mut streams);
        let refused = streams.join_next().await.unwrap().unwrap();
        assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, "etcdserver: too many requests"));
    }
    let lock = LockRequest { name: "name".into(), lease: 0 };
    let start = Instant::now();
    let refused = LockClient::new(proxy.channel()).lock(lock).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, "etcdserver: too many requests"));
    // Who asks again at once takes little of what is others'.
    assert!(start.elapsed() >= Duration::from_millis(100), "{:?}", start.elapsed());
    assert_eq!(proxy.ctl(&["put", "k", "v"]), "OK\n");
    let usage = usage(&proxy.metrics).await;
    assert_eq!((&usage["streams"], &usage["limits.maxStreams"]), (&PLACES.into(), &PLACES.into()));
    assert!(usage["hits.maxStreams"].as_u64() >= Some(4), "{usage:?}");

    // A place gets free with its stream.
    handles.pop().unwrap().abort();
    open(PLACES - 1).await;
    idle(&proxy, 0, &mut streams);
    open(PLACES).await;
}

/// Who watches the health of the server counts as nothing of the tenant's, but there is an end to them.
#[tokio::test(flavor = "multi_thread")]
async fn watchers_of_the_health_are_bounded() {
    const PLACES: usize = 128;
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let mut health = HealthClient::new(proxy.channel());
    let mut watches = Vec::new();
    for _ in 0..PLACES {
        let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
        watch.next().await.unwrap().unwrap();
        watches.push(watch);
    }
    let refused = health.watch(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, "etcdserver: too many requests"));
    health.check(HealthCheckRequest::default()).await.unwrap();
    watches.pop();
    eventually("a place gets free", async || health.watch(HealthCheckRequest::default()).await.ok()).await;
}

/// A method that there is not is asked for as often as one that there is.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_methods_count_as_requests() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &["--max-requests-per-second=1", "--max-requests-burst=3"]).await;
    let ask = async || ask(&proxy, "/etcdserverpb.KV/Nope", b"").await;
    let answer = ask().await;
    assert_eq!(
        (answer.code(), answer.message()),
        (Code::Unimplemented, "unknown method Nope for service etcdserverpb.KV")
    );
    let refused = async || {
        let start = Instant::now();
        (ask().await.code() == Code::ResourceExhausted).then(|| start.elapsed())
    };
    let waited = eventually("they are refused", refused).await;
    assert!(waited >= Duration::from_millis(100), "{waited:?}");
    let usage = usage(&proxy.metrics).await;
    assert!(usage["hits.maxRequestsPerSecond"].as_u64() >= Some(1), "{usage:?}");
}

/// What etcd has sent since it started, in bytes.
async fn sent(etcd: &Etcd) -> f64 {
    let text = get(&format!("{}/metrics", etcd.url)).await.unwrap().body;
    let line = text.lines().find_map(|line| line.strip_prefix("etcd_network_client_grpc_sent_bytes_total "));
    line.unwrap().parse().unwrap()
}

/// At a quota of keys a write is judged by the keys that are there, not by their values.
#[tokio::test(flavor = "multi_thread")]
async fn values_are_not_read_for_a_quota_of_keys() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &["--quota-keys=1"]).await;
    let mut kv = KvClient::new(proxy.channel());
    let put =
        |key: &'static str, value: Vec<u8>| PutRequest { key: key.into(), value: value.into(), ..Default::default() };
    kv.put(put("there", vec![b'v'; 1 << 20])).await.unwrap();
    let metrics = format!("{}/metrics", proxy.metrics);
    let used = "etcd_proxy_limit_used{limit=\"quota_keys\"} 1\n";
    eventually("it is counted", async || get(&metrics).await?.body.contains(used).then_some(())).await;
    let before = sent(&etcd).await;
    for _ in 0..10 {
        let ops =
            ["there", "new"].map(|key| RequestOp { request: Some(Request::RequestPut(put(key, vec![b'w'; 10]))) });
        let refused = kv.txn(TxnRequest { success: ops.into(), ..Default::default() }).await.unwrap_err();
        assert_eq!(refused.message(), "etcdserver: mvcc: database space exceeded");
    }
    let sent = sent(&etcd).await - before;
    assert!(sent < 1e6, "{sent} bytes");
}
