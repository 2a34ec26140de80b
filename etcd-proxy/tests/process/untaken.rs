//! Short answers that nobody takes: they are counted, and given up in the end.

use std::time::Duration;

use http::Request;
use http_body_util::{BodyExt as _, Full};
use proto::etcdserverpb::{PutRequest, RangeRequest, kv_client::KvClient};
use tokio::{task::JoinSet, time::timeout};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest,
};

use crate::{
    child::{Etcd, Proxy, SOON, eventually},
    http::get,
    stalled::{ask, narrower, unread},
};

fn key(key: &'static str) -> RangeRequest {
    RangeRequest { key: key.into(), ..Default::default() }
}

async fn put(proxy: &Proxy, key: &'static str, length: usize) {
    let put = PutRequest { key: key.into(), value: vec![b'x'; length].into(), ..Default::default() };
    KvClient::new(proxy.channel()).put(put).await.unwrap();
}

/// Not even the first byte of an answer fits in the client's window, or only that one does: the call is under way until it is
/// given up. Of the latter half of all places stay taken, since HTTP/2 has all of the answer.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_taken_is_under_way_until_it_is_given_up() {
    const PLACES: usize = 10;
    for (window, left) in [(0, 0), (1, PLACES / 2)] {
        let etcd = Etcd::start().await;
        let flags = ["--max-concurrent-requests=10", "--stalled-reader-timeout=5s"];
        let proxy = Proxy::start("/a/", &etcd, &flags).await;
        put(&proxy, "small", 1000).await;
        let sender = narrower(&proxy, window).await;
        let mut held = Vec::new();
        for _ in 0..PLACES {
            held.push(unread(sender.clone(), "Range", &key("small")).await.unwrap());
        }
        let mut kv = KvClient::new(proxy.channel());
        let answer = timeout(SOON, kv.range(key("small"))).await.expect("an answer");
        let refused = answer.map(drop).expect_err(&format!("window {window}"));
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
        let metrics = format!("{}/metrics", proxy.metrics);
        let given_up = format!("etcd_proxy_readers_given_up_total {}\n", PLACES - left);
        eventually("they are given up", async || get(&metrics).await?.body.contains(&given_up).then_some(())).await;
        timeout(SOON, kv.range(key("small"))).await.expect("an answer").unwrap();
        let mut lost = 0;
        for (_sender, response) in held {
            let ended = timeout(SOON, response.into_body().collect()).await.expect("an end");
            lost += usize::from(ended.is_err());
        }
        assert_eq!(lost, PLACES - left);
    }
}

/// Answers that are neither long nor small share a memory, for which others wait.
#[tokio::test(flavor = "multi_thread")]
async fn answers_of_some_length_share_a_bounded_memory() {
    const LENGTH: usize = 200 << 10;
    /// As many as a MiB holds.
    const FIT: usize = 5;
    const ASKED: usize = 12;
    let etcd = Etcd::start().await;
    let flags = ["--max-buffered-bytes=4000000", "--stalled-reader-timeout=3s"];
    let proxy = Proxy::start("/a/", &etcd, &flags).await;
    put(&proxy, "some", LENGTH).await;
    put(&proxy, "small", 1000).await;
    let metrics = format!("{}/metrics", proxy.metrics);
    let sender = narrower(&proxy, 1).await;
    let mut asked = JoinSet::new();
    for _ in 0..ASKED {
        let sender = sender.clone();
        asked.spawn(async move { unread(sender, "Range", &key("some")).await });
    }
    let waiting = format!("etcd_proxy_answers_waiting {}\n", ASKED - FIT);
    eventually("the others wait", async || get(&metrics).await?.body.contains(&waiting).then_some(())).await;
    let mut kv = KvClient::new(proxy.channel());
    timeout(SOON, kv.range(key("small"))).await.expect("a short answer waits").unwrap();
    // Who takes his answer gets it once it is his turn, and nothing is left in the end.
    let some = timeout(SOON, kv.range(key("some"))).await.expect("an answer").unwrap();
    assert_eq!(some.get_ref().kvs.first().unwrap().value.len(), LENGTH);
    let mut held = Vec::new();
    while let Some(answer) = timeout(Duration::from_secs(60), asked.join_next()).await.expect("an answer") {
        held.push(answer.unwrap().unwrap());
    }
    let free = "etcd_proxy_buffered_bytes 0\n";
    eventually("the memory is given back", async || get(&metrics).await?.body.contains(free).then_some(())).await;
    assert_eq!(held.len(), ASKED);
}

/// What is no tenant's call is given up as well, and of what is no gRPC call there is only so much.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_tenants_call_is_given_up_too() {
    const PLACES: usize = 1024;
    let etcd = Etcd::start().await;
    for window in [0, 1] {
        let proxy = Proxy::start("/a/", &etcd, &["--stalled-reader-timeout=5s"]).await;
        let mut sender = narrower(&proxy, window).await;
        let (_sender, check) =
            ask(sender.clone(), "grpc.health.v1.Health/Check", &HealthCheckRequest::default()).await.unwrap();
        let mut held = vec![check];
        for path in std::iter::once("version").chain(std::iter::repeat_n("x", PLACES - 1)) {
            let request = Request::get(format!("http://etcd/{path}")).body(Full::default()).unwrap();
            held.push(sender.send_request(request).await.unwrap());
        }
        let path = format!("{}/x", proxy.url);
        assert_eq!(get(&path).await.unwrap().status, 503, "window {window}");
        // The operator has places of his own.
        let metrics = format!("{}/metrics", proxy.metrics);
        let given_up = format!("etcd_proxy_readers_given_up_total {}\n", held.len());
        eventually("they are given up", async || get(&metrics).await?.body.contains(&given_up).then_some(())).await;
        assert_eq!(get(&path).await.unwrap().status, 404, "window {window}");
        for response in held {
            timeout(SOON, response.into_body().collect()).await.expect("an end").unwrap_err();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_that_is_not_taken_is_given_up() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &["--max-streams=1", "--stalled-reader-timeout=5s"]).await;
    let question = MessageRequest::ListServices(String::new());
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
    let method = "grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let _held = ask(narrower(&proxy, 0).await, method, &request).await.unwrap();
    let mut client = ServerReflectionClient::new(proxy.channel());
    let mut other = async || client.server_reflection_info(tokio_stream::iter([request.clone()])).await;
    assert_eq!(other().await.unwrap_err().code(), Code::ResourceExhausted);
    eventually("the stream is given up", async || other().await.ok()).await;
    let metrics = get(&format!("{}/metrics", proxy.metrics)).await.unwrap().body;
    assert!(metrics.contains("etcd_proxy_readers_given_up_total 1\n"), "{metrics}");
}
