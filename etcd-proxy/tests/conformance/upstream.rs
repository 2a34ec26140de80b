//! Connections to the upstream that nobody uses for a while, endpoints that hang, and requests that one does not look at.

use std::{
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use etcd_proxy::upstream::{Endpoint, Upstream, UpstreamConfig, UpstreamMetrics};
use futures::{StreamExt as _, stream};
use prometheus_client::registry::Registry;
use proto::etcdserverpb::{
    PutRequest, RangeRequest, WatchCreateRequest, WatchProgressRequest, watch_client::WatchClient,
    watch_request::RequestUnion,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tonic::Code;

use crate::{
    relay::Relay,
    support::{Client, Etcd, PATIENCE, Proxy, create_request, eventually, refusal, watch_all},
    wire::{GOAWAY, HEADERS, PREFACE, RST_STREAM, frame, read_frame},
};

/// Between pings; far less than a configuration may say.
const PINGS: Duration = Duration::from_millis(100);

fn upstream(etcd: &Etcd) -> (Upstream, Registry) {
    let metrics = UpstreamMetrics::default();
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    (Upstream::new(UpstreamConfig { metrics, ..pinging(etcd) }), registry)
}

fn pinging(etcd: &Etcd) -> UpstreamConfig {
    let endpoint = Endpoint::parse(&etcd.url(), false).unwrap();
    UpstreamConfig {
        keepalive_time: Some(PINGS),
        keepalive_timeout: PINGS * 5,
        ..UpstreamConfig::new(vec![endpoint], None)
    }
}

fn get() -> RangeRequest {
    RangeRequest { key: "k".into(), ..Default::default() }
}

fn watch_k(start_revision: i64) -> WatchCreateRequest {
    WatchCreateRequest { key: "k".into(), start_revision, ..Default::default() }
}

/// etcd hangs up on whoever pings without a stream, however seldom.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_stays() {
    let etcd = Etcd::start_with(&["--grpc-keepalive-min-time=10ms"]).await;
    let (upstream, registry) = upstream(&etcd);
    for _ in 0..3 {
        upstream.kv().range(get()).await.unwrap();
        tokio::time::sleep(PINGS * 10).await;
    }
    upstream.kv().range(get()).await.unwrap();
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let dials = format!("upstream_dials_total{{endpoint=\"{}\",result=\"ok\"}} 1\n", etcd.url());
    assert!(text.contains(&dials), "{text}");
}

/// Not pinging the idle ones, a dead one is found by the next request, in the time that pings take.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_died_idle_is_found_out() {
    let etcd = Etcd::start_with(&["--grpc-keepalive-min-time=10ms"]).await;
    let (upstream, _registry) = upstream(&etcd);
    upstream.kv().range(get()).await.unwrap();
    tokio::time::sleep(PINGS * 3).await;
    etcd.signal("STOP");
    let asked = Instant::now();
    let refused = tokio::time::timeout(PATIENCE, upstream.kv().range(get())).await.expect("an end in time");
    etcd.signal("CONT");
    assert_eq!(refused.unwrap_err().code(), Code::Unavailable);
    assert!(asked.elapsed() < PINGS * 20, "{:?}", asked.elapsed());
}

/// A watch on such a connection ends, so that its client can resume it, and misses nothing then.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_of_an_upstream_that_falls_silent_ends() {
    let etcd = Etcd::start_with(&["--grpc-keepalive-min-time=10ms"]).await;
    let proxy = Proxy::start_on(pinging(&etcd), "/a/", |_| {}).await;
    let mut a = proxy.client().await;
    let before = a.put("k", "before").await;
    let mut watching = a.watch([watch_all(0)]).await;
    assert!(watching.next().await.unwrap().created);
    etcd.signal("STOP");
    let ended = tokio::time::timeout(PATIENCE, watching.next()).await.expect("an end in time");
    assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
    etcd.signal("CONT");
    etcd.client().await.put("/a/k", "after").await;
    // It is left alone for a while.
    eventually("an answer", || {
        let mut a = a.clone();
        async move { a.range(get()).await.is_ok() }
    })
    .await;
    let mut watching = a.watch([watch_all(before + 1)]).await;
    assert!(watching.next().await.unwrap().created);
    assert_eq!(watching.events(1).await[0].kv.as_ref().unwrap().value, "after");
}

/// A watch that begins while the others on its connection have heard nothing yet of its end, on a stream of its own or on one
/// that is there: it ends as they do, and whoever resumes is told once what happened meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_joins_a_silent_upstream_ends() {
    let etcd = Etcd::start_with(&["--grpc-keepalive-min-time=10ms"]).await;
    let proxy = Proxy::start_on(pinging(&etcd), "/a/", |_| {}).await;
    let (mut first, mut second, mut third) = (proxy.client().await, proxy.client().await, proxy.client().await);
    let before = first.put("k", "before").await;
    let mut watching = [first.watch([watch_k(0)]).await, second.watch([watch_k(0)]).await];
    for watching in &mut watching {
        assert!(watching.next().await.unwrap().created);
    }
    etcd.signal("STOP");
    watching[0].send(RequestUnion::CreateRequest(watch_k(0)));
    let [older, other] = &mut watching;
    let (joined, older, other) = tokio::join!(third.try_watch(watch_k(0)), older.next(), other.next());
    etcd.signal("CONT");
    assert_eq!(refusal(joined).0, Code::Unavailable);
    assert_eq!((refusal(older).0, refusal(other).0), (Code::Unavailable, Code::Unavailable));

    let after = etcd.client().await.put("/a/k", "after").await;
    // It is left alone for a while.
    eventually("an answer", || {
        let mut first = first.clone();
        async move { first.range(get()).await.is_ok() }
    })
    .await;
    for client in [&mut first, &mut second, &mut third] {
        let mut watching = client.watch([watch_k(before + 1)]).await;
        assert!(watching.next().await.unwrap().created);
        let events = watching.events(1).await;
        assert_eq!((events.len(), events[0].kv.as_ref().unwrap().mod_revision), (1, after));
        // Nothing that comes before this is left out.
        watching.send(RequestUnion::ProgressRequest(WatchProgressRequest {}));
        let progress = watching.next().await.unwrap();
        assert_eq!((progress.watch_id, progress.events.len()), (-1, 0), "{progress:?}");
        assert!(progress.header.unwrap().revision >= after);
    }
}

/// The first watch after a while without any, on a connection that died meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_on_a_connection_that_died_idle_ends() {
    let etcd = Etcd::start_with(&["--grpc-keepalive-min-time=10ms"]).await;
    let (upstream, _registry) = upstream(&etcd);
    let watches = WatchClient::new(upstream.streams());
    let watch = || {
        let mut watches = watches.clone();
        async move {
            let requests = stream::iter([create_request(watch_k(0))]).chain(stream::pending());
            let mut responses = watches.watch(requests).await?.into_inner();
            responses.message().await.map(|created| (created, responses))
        }
    };
    let (created, responses) = watch().await.unwrap();
    assert!(created.unwrap().created);
    drop(responses);
    eventually("the end of the only watch", || async { etcd.metric("etcd_debugging_mvcc_watcher_total").await == 0.0 })
        .await;
    // Until it is not pinged any more.
    tokio::time::sleep(PINGS * 3).await;
    etcd.signal("STOP");
    let ended = tokio::time::timeout(PATIENCE, watch()).await.expect("an end in time");
    etcd.signal("CONT");
    assert_eq!(refusal(ended).0, Code::Unavailable);
    // The next one finds a connection of its own.
    eventually("a watch", || async { watch().await.is_ok() }).await;
}

/// A proxy and a client of its, and a relay that never answers the first read of the tenant's meta key that ends so.
async fn deaf_to_the_first(etcd: &Etcd, key: &'static str) -> (Relay, Proxy, Client) {
    let relay = Relay::before(etcd, "/etcdserverpb.KV/Range", key).await;
    relay.hold();
    let proxy = Proxy::start_at(&relay.url, "/a/", |_| {}).await;
    let client = proxy.client().await;
    (relay, proxy, client)
}

/// All that need the watermark wait for one read of it. If that is never answered, they are refused after a while, and it is
/// read again.
#[tokio::test(flavor = "multi_thread")]
async fn a_watermark_that_is_not_told_is_not_waited_for_for_ever() {
    let etcd = Etcd::start().await;
    let (relay, _proxy, mut a) = deaf_to_the_first(&etcd, "/watermark").await;
    // Read by the proxy itself, to follow it.
    eventually("a read of the watermark", || async { relay.seen() == 1 }).await;
    relay.forsake();
    let (mut b, at) = (a.clone(), RangeRequest { revision: 1, ..get() });
    let both = async { tokio::join!(a.try_watch(watch_k(1)), b.range(at.clone())) };
    let (watched, read) = tokio::time::timeout(PATIENCE, both).await.expect("an end in time");
    assert_eq!((refusal(watched).0, refusal(read).0), (Code::Unavailable, Code::Unavailable));
    // What needs no watermark has not waited, and the next one finds it.
    b.range(get()).await.unwrap();
    b.range(at).await.unwrap();
    assert!(a.try_watch(watch_k(1)).await.unwrap().unwrap().created);
}

/// The same of the secret of the tenant's lease ids.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_is_not_told_is_not_waited_for_for_ever() {
    let etcd = Etcd::start().await;
    let (relay, _proxy, mut a) = deaf_to_the_first(&etcd, "/secret").await;
    let mut b = a.clone();
    let first = async {
        tokio::join!(a.grant(0, 1000), async {
            eventually("a read of the secret", || async { relay.seen() == 1 }).await;
            relay.forsake();
            b.grant(0, 1000).await
        })
    };
    let (first, second) = tokio::time::timeout(PATIENCE, first).await.expect("an end in time");
    assert_eq!((refusal(first).0, refusal(second).0), (Code::Unavailable, Code::Unavailable));
    let lease = a.grant(0, 1000).await.unwrap();
    assert_eq!(a.leases().await, [lease]);
}

/// A stand-in for an endpoint that meets the first request of its only connection with `reply`, which is told the stream, and
/// hangs up.
async fn endpoint_that(reply: fn(u32) -> Vec<u8>) -> Endpoint {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        drop(listener);
        let settings = frame(4, 0, 0, &[]);
        let mut magic = vec![0; PREFACE.len() - settings.len()];
        connection.read_exact(&mut magic).await.unwrap();
        connection.write_all(&settings).await.unwrap();
        let stream = loop {
            let (kind, _, stream, _) = read_frame(&mut connection).await;
            if kind == HEADERS {
                break stream;
            }
        };
        connection.write_all(&reply(stream)).await.unwrap();
        connection.shutdown().await.unwrap();
        // Closed with something unread, it would be reset, and the reply lost.
        let _rest = connection.read_to_end(&mut Vec::new()).await;
    });
    Endpoint::parse(&address, false).unwrap()
}

/// A GOAWAY without an error.
fn go_away(last: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat())
}

fn reset(stream: u32, reason: u32) -> Vec<u8> {
    [frame(RST_STREAM, 0, stream, &reason.to_be_bytes()), go_away(stream)].concat()
}

/// How a put ends that meets such an endpoint first, and how often etcd, which is the second, wrote it.
async fn put_by_way_of(reply: fn(u32) -> Vec<u8>) -> (Result<(), Code>, i64) {
    let etcd = Etcd::start().await;
    let endpoints = vec![endpoint_that(reply).await, Endpoint::parse(&etcd.url(), false).unwrap()];
    let one = NonZeroUsize::MIN;
    let upstream = Upstream::new(UpstreamConfig { unary_connections: one, ..UpstreamConfig::new(endpoints, None) });
    let put = PutRequest { key: "k".into(), value: "v".into(), ..Default::default() };
    let answer = tokio::time::timeout(PATIENCE, upstream.kv().put(put)).await.expect("an end in time");
    let stored = etcd.client().await.kv.range(get()).await.unwrap().into_inner();
    (answer.map(drop).map_err(|status| status.code()), stored.kvs.first().map_or(0, |kv| kv.version))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_not_looked_at_is_sent_again() {
    const REFUSED_STREAM: u32 = 7;
    assert_eq!(put_by_way_of(|stream| reset(stream, REFUSED_STREAM)).await, (Ok(()), 1));
    assert_eq!(put_by_way_of(|_| go_away(0)).await, (Ok(()), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_may_have_been_looked_at_is_not_sent_again() {
    const CANCEL: u32 = 8;
    assert_eq!(put_by_way_of(|stream| reset(stream, CANCEL)).await, (Err(Code::Cancelled), 0));
    assert_eq!(put_by_way_of(go_away).await, (Err(Code::Unavailable), 0));
    assert_eq!(put_by_way_of(|_| Vec::new()).await, (Err(Code::Unavailable), 0));
}

/// Members that hang take no more time together than one, and none to speak of where there is another.
#[tokio::test(flavor = "multi_thread")]
async fn members_that_hang_are_waited_for_together() {
    // Their kernels accept connections.
    let hung = [(); 3].map(|()| std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap());
    let hung =
        hung.each_ref().map(|listener| Endpoint::parse(&listener.local_addr().unwrap().to_string(), false).unwrap());
    let upstream = |endpoints, dial_timeout| {
        Upstream::new(UpstreamConfig { dial_timeout, ..UpstreamConfig::new(endpoints, None) })
    };
    let only_these = upstream(hung.to_vec(), PATIENCE / 4);
    let refused = tokio::time::timeout(PATIENCE, only_these.kv().range(get())).await.expect("a refusal in time");
    assert_eq!(refused.unwrap_err().code(), Code::Unavailable);

    let etcd = Etcd::start().await;
    let endpoints = hung.into_iter().chain([Endpoint::parse(&etcd.url(), false).unwrap()]).collect();
    let upstream = upstream(endpoints, PATIENCE);
    tokio::time::timeout(PATIENCE / 2, upstream.kv().range(get())).await.expect("an answer in time").unwrap();
}
