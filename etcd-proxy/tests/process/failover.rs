//! Loss of the upstream, and several endpoints.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use proto::etcdserverpb::{
    PutRequest, RangeRequest, StatusRequest, WatchCreateRequest, WatchRequest, kv_client::KvClient,
    maintenance_client::MaintenanceClient, watch_client::WatchClient, watch_request::RequestUnion,
};
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::Code;

use crate::{
    child::{Etcd, Proxy, SOON, eventually, free_address},
    forwarder::Forwarder,
};

fn put(key: &'static str) -> PutRequest {
    PutRequest { key: key.into(), value: "v".into(), ..Default::default() }
}

fn watch(key: &'static str) -> WatchRequest {
    let create = WatchCreateRequest { key: key.into(), ..Default::default() };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_upstream_is_unavailable_at_once_cheap_to_wait_for_and_found_again() {
    let mut etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let mut kv = KvClient::new(proxy.channel());
    kv.put(put("k")).await.unwrap();
    let (_sender, requests) = tokio::sync::mpsc::channel(1);
    _sender.send(watch("k")).await.unwrap();
    let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
    let mut events = WatchClient::new(proxy.channel()).watch(requests).await.unwrap().into_inner();
    assert!(events.next().await.unwrap().unwrap().created);

    etcd.kill();
    let ended = timeout(SOON, events.next()).await.expect("the watch ends").unwrap().unwrap_err();
    assert_eq!(ended.code(), Code::Unavailable, "{ended:?}");

    // Many impatient clients and no upstream: answered at once, and the processor rests.
    let (before, start) = (proxy.program.cpu(), Instant::now());
    let mut answers = 0;
    while start.elapsed() < Duration::from_secs(2) {
        let asked = Instant::now();
        let error = kv.put(put("k")).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error:?}");
        if answers > 0 {
            // By this text etcd's Go client knows that it may send a write again.
            assert_eq!(error.message(), "there is no connection available");
        }
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        answers += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(answers > 20, "{answers}");
    let metrics = crate::http::get(&format!("{}/metrics", proxy.metrics)).await.unwrap().body;
    let failed = metrics.lines().find(|line| line.contains("upstream_dials") && line.contains("failed")).unwrap();
    let failed: u32 = failed.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(failed < 15, "{failed} attempts to connect for {answers} refusals");
    let used = proxy.program.cpu() - before;
    assert!(used < Duration::from_millis(600), "{used:?} of processor time for {answers} refusals");
    let (before, start) = (proxy.program.cpu(), Instant::now());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let used = proxy.program.cpu() - before;
    assert!(used <= Duration::from_millis(50), "{used:?} of processor time in {:?} of doing nothing", start.elapsed());

    etcd.run().await;
    eventually("puts work again", async || kv.put(put("k")).await.ok()).await;
    // And rests again.
    let (before, start) = (proxy.program.cpu(), Instant::now());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let used = proxy.program.cpu() - before;
    assert!(used <= Duration::from_millis(50), "{used:?} of processor time in {:?} after the return", start.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn it_comes_up_before_its_upstream() {
    let address = free_address();
    let mut etcd = Etcd::prepare(format!("http://{address}"), &[]);
    let proxy = Proxy::spawn("/a/", &address, &[]);
    let livez = format!("{}/livez", proxy.metrics);
    eventually("it lives", async || crate::http::get(&livez).await.filter(|answer| answer.status == 200)).await;
    assert_eq!(crate::http::get(&format!("{}/readyz", proxy.metrics)).await.unwrap().status, 503);
    let mut kv = KvClient::new(proxy.channel());
    assert_eq!(kv.put(put("k")).await.unwrap_err().code(), Code::Unavailable);
    etcd.run().await;
    proxy.ready().await;
    kv.put(put("k")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_fails_over_unseen() {
    let etcd = Etcd::start().await;
    let endpoints = format!("{},{}", free_address(), etcd.url);
    let proxy = Proxy::spawn("/a/", &endpoints, &["--upstream-connections=1"]);
    proxy.ready().await;
    let mut kv = KvClient::new(proxy.channel());
    for _ in 0..20 {
        kv.put(put("k")).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_endpoint_is_replaced_by_another() {
    let etcd = Etcd::start().await;
    let (first, second) = (Forwarder::start(&etcd.url).await, Forwarder::start(&etcd.url).await);
    let proxy = Proxy::spawn("/a/", &format!("{},{}", first.address, second.address), &["--upstream-connections=1"]);
    proxy.ready().await;
    let mut kv = KvClient::new(proxy.channel());
    kv.put(put("k")).await.unwrap();
    assert!(first.accepted.load(Ordering::SeqCst) > 0);
    drop(first);
    eventually("the other endpoint serves", async || kv.put(put("k")).await.ok()).await;
    assert!(second.accepted.load(Ordering::SeqCst) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_may_have_arrived_is_not_sent_again() {
    let etcd = Etcd::start().await;
    // One has the connection, on a busy machine not always the first; both take new ones, which tempts.
    let (first, second) = (Forwarder::start(&etcd.url).await, Forwarder::start(&etcd.url).await);
    let proxy = Proxy::spawn("/a/", &format!("{},{}", first.address, second.address), &["--upstream-connections=1"]);
    proxy.ready().await;
    let mut kv = KvClient::new(proxy.channel());
    kv.put(put("k")).await.unwrap();
    first.lose_answers();
    second.lose_answers();
    let unheard = tokio::spawn(async move { kv.put(put("k")).await });
    // Asked of etcd itself.
    let mut version = KvClient::connect(etcd.url.clone()).await.unwrap();
    let range = RangeRequest { key: "/a/k".into(), ..Default::default() };
    let mut version = async || version.range(range.clone()).await.unwrap().into_inner().kvs[0].version;
    eventually("it is carried out", async || (version().await == 2).then_some(())).await;
    first.cut();
    second.cut();
    let error = unheard.await.unwrap().unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error:?}");
    // A third would be one sent twice.
    assert_eq!(version().await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_its_client_left_is_left_upstream_too() {
    let etcd = Etcd::start().await;
    let watchers = async || -> Option<u32> {
        let metrics = crate::http::get(&format!("{}/metrics", etcd.url)).await?.body;
        let line = metrics.lines().find(|line| line.starts_with("etcd_debugging_mvcc_watcher_total "))?;
        line.rsplit(' ').next()?.parse().ok()
    };
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let before = eventually("etcd counts watchers", watchers).await;
    let (sender, requests) = tokio::sync::mpsc::channel(100);
    let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
    for _ in 0..100 {
        sender.send(watch("k")).await.unwrap();
    }
    let channel = proxy.channel();
    let mut events = WatchClient::new(channel.clone()).watch(requests).await.unwrap().into_inner();
    for _ in 0..100 {
        assert!(events.next().await.unwrap().unwrap().created);
    }
    assert!(watchers().await.unwrap() >= before + 100);
    drop((sender, events, channel));
    eventually("etcd's watchers are gone", async || (watchers().await? < before + 50).then_some(())).await;
}

/// A member that hangs accepts connections all the same: its kernel does.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_hangs_is_passed_over() {
    let hung = Etcd::start().await;
    let etcd = Etcd::start().await;
    hung.signal("STOP");
    let flags = ["--upstream-connections=1", "--dial-timeout=1s"];
    let proxy = Proxy::spawn("/a/", &format!("{},{}", hung.url, etcd.url), &flags);
    proxy.ready().await;
    let mut kv = KvClient::new(proxy.channel());
    timeout(Duration::from_secs(3), kv.put(put("k"))).await.expect("an answer in time").unwrap();
    eventually("it is noted", async || proxy.program.log().contains("no answer within 1s").then_some(())).await;
    hung.signal("CONT");
}

/// Status says the lowest version among the members, also of one that hangs, and waits for it once at most.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_hangs_does_not_hold_up_status() {
    let (new, old) = (Etcd::start().await, Etcd::start_binary("TEST_ETCD_3_5").await);
    let proxy = Proxy::spawn("/a/", &format!("{},{}", new.url, old.url), &["--upstream-connections=1"]);
    proxy.ready().await;
    let mut maintenance = MaintenanceClient::new(proxy.channel());
    let mut version = async || maintenance.status(StatusRequest {}).await.unwrap().into_inner().version;
    assert!(version().await.starts_with("3.5."));
    old.signal("STOP");
    let asked = Instant::now();
    for _ in 0..20 {
        assert!(version().await.starts_with("3.5."));
    }
    old.signal("CONT");
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
}
