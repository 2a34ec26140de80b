//! The end on a signal.

use std::time::{Duration, Instant};

use proto::etcdserverpb::{
    PutRequest, WatchCreateRequest, WatchRequest, kv_client::KvClient, watch_client::WatchClient,
    watch_request::RequestUnion,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_stream::StreamExt;
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use crate::{
    child::{Etcd, Proxy, SOON, eventually},
    http::get,
    wire::{DATA, PING, PREFACE, frame, headers, read_frame},
};

fn put() -> PutRequest {
    PutRequest { key: "k".into(), value: "v".into(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_requests_finish_and_nothing_new_begins() {
    let etcd = Etcd::start().await;
    let mut proxy = Proxy::start("/a/", &etcd, &["--drain-timeout=30s"]).await;
    let create = WatchCreateRequest { key: "another".into(), ..Default::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let mut events = WatchClient::new(proxy.channel()).watch(requests).await.unwrap().into_inner();
    assert!(events.next().await.unwrap().unwrap().created);
    let mut health =
        HealthClient::new(proxy.channel()).watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(health.next().await.unwrap().unwrap().status(), ServingStatus::Serving);

    // A request is under way while etcd holds still.
    let mut kv = KvClient::new(proxy.channel());
    kv.put(put()).await.unwrap();
    etcd.signal("STOP");
    let under_way = tokio::spawn(async move { kv.put(put()).await });
    eventually("the put is under way", async || {
        let metrics = get(&format!("{}/metrics", proxy.metrics)).await?;
        metrics.body.contains(r#"grpc_method="Put"} 2"#).then_some(())
    })
    .await;

    proxy.program.signal("TERM");
    let ended = timeout(SOON, events.next()).await.expect("the watch ends").unwrap().unwrap_err();
    assert_eq!((ended.code(), ended.message()), (Code::Unavailable, "etcdserver: server stopped"));
    let last = timeout(SOON, async {
        loop {
            if let Err(status) = health.next().await.unwrap() {
                return status;
            }
        }
    });
    assert_eq!(last.await.expect("the health watch ends").code(), Code::Unavailable);
    let address = proxy.url.strip_prefix("http://").unwrap().to_owned();
    eventually("the port is closed", async || TcpStream::connect(&address).await.is_err().then_some(())).await;
    assert!(proxy.program.child.try_wait().unwrap().is_none(), "the put is still under way");

    etcd.signal("CONT");
    under_way.await.unwrap().expect("the put is answered");
    assert_eq!(proxy.program.exit().await.code(), Some(0), "{}", proxy.program.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_goes_first_while_everything_still_works() {
    let etcd = Etcd::start().await;
    let mut proxy = Proxy::start("/a/", &etcd, &["--shutdown-delay=2s"]).await;
    proxy.program.signal("INT");
    let readyz = format!("{}/readyz", proxy.metrics);
    let answer = eventually("unready", async || get(&readyz).await.filter(|answer| answer.status == 503)).await;
    assert!(answer.body.contains("[-]shutdown failed"), "{}", answer.body);
    assert_eq!(proxy.ctl(&["put", "k", "v"]), "OK\n");
    assert_eq!(proxy.program.exit().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_finish_is_cut_off_by_the_deadline_or_a_second_signal() {
    let etcd = Etcd::start().await;
    for (timeout_flag, second_signal) in [("--drain-timeout=500ms", false), ("--drain-timeout=1h", true)] {
        let mut proxy = Proxy::start("/a/", &etcd, &[timeout_flag]).await;
        let mut kv = KvClient::new(proxy.channel());
        kv.put(put()).await.unwrap();
        etcd.signal("STOP");
        let under_way = tokio::spawn(async move { kv.put(put()).await });
        eventually("the put is under way", async || {
            let metrics = get(&format!("{}/metrics", proxy.metrics)).await?;
            metrics.body.contains(r#"grpc_method="Put"} 2"#).then_some(())
        })
        .await;
        let start = Instant::now();
        proxy.program.signal("TERM");
        if second_signal {
            eventually("it is closing", async || proxy.program.log().contains("closing").then_some(())).await;
            proxy.program.signal("TERM");
        }
        assert_eq!(proxy.program.exit().await.code(), Some(0), "{}", proxy.program.log());
        assert!(start.elapsed() < Duration::from_secs(10));
        assert!(under_way.await.unwrap().is_err());
        etcd.signal("CONT");
    }
}

/// The last answer reaches a client that goes on talking before it has read it: a socket that is closed then would reset
/// the connection, and what is still on its way would be lost.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_answer_is_heard_to_its_end() {
    let etcd = Etcd::start().await;
    let mut proxy = Proxy::start("/a/", &etcd, &[]).await;
    let mut kv = KvClient::new(proxy.channel());
    kv.put(PutRequest { value: vec![b'x'; 50_000].into(), ..put() }).await.unwrap();
    drop(kv);
    etcd.signal("STOP");
    let mut stream = TcpStream::connect(proxy.url.strip_prefix("http://").unwrap()).await.unwrap();
    let range = frame(DATA, 1, 1, &[0, 0, 0, 0, 3, 0x0a, 1, b'k']);
    stream.write_all(&[PREFACE, &headers(1, "/etcdserverpb.KV/Range"), &range].concat()).await.unwrap();
    eventually("the range is under way", async || {
        let metrics = get(&format!("{}/metrics", proxy.metrics)).await?;
        let line =
            r#"grpc_server_started_total{grpc_type="unary",grpc_service="etcdserverpb.KV",grpc_method="Range"} "#;
        // Besides those of the probe.
        metrics
            .body
            .lines()
            .find_map(|metric| metric.strip_prefix(line))?
            .parse::<u32>()
            .ok()
            .filter(|count| *count > 1)
    })
    .await;
    proxy.program.signal("TERM");
    // It asks whether the client has heard that there will be no more calls.
    loop {
        let (kind, flags, _, payload) = read_frame(&mut stream).await;
        if (kind, flags) == (PING, 0) {
            stream.write_all(&frame(PING, 1, 0, &payload)).await.unwrap();
            break;
        }
    }
    etcd.signal("CONT");
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        stream.write_all(&frame(PING, 0, 0, b"anything")).await.expect("the proxy listens");
    }
    let mut answer = Vec::new();
    timeout(SOON, stream.read_to_end(&mut answer)).await.expect("the end").expect("no reset");
    let values = answer.iter().filter(|byte| **byte == b'x').count();
    assert!(values >= 50_000, "{values} of the answer's bytes");
    drop(stream);
    assert_eq!(proxy.program.exit().await.code(), Some(0), "{}", proxy.program.log());
}
