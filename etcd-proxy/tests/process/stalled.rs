//! Clients that ask for a lot and do not read it.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use proto::etcdserverpb::{
    PutRequest, RangeRequest, SnapshotRequest, WatchCreateRequest, WatchRequest, WatchResponse, kv_client::KvClient,
    maintenance_client::MaintenanceClient, watch_client::WatchClient, watch_request::RequestUnion,
};
use tokio::{net::TcpStream, task::JoinSet, time::timeout};
use tokio_stream::StreamExt;
use tonic::{Code, Status, Streaming, transport::Channel};

use crate::{
    child::{Etcd, Proxy, SOON, eventually},
    http::get,
    wire::grpc_frame,
};

/// As long as other requests may take while readers stall.
const PROMPT: Duration = Duration::from_secs(5);
const MIB: u64 = 1 << 20;
/// Watches whose clients read nothing that may go on.
const STALLED_STREAMS: usize = 32;

fn everything() -> RangeRequest {
    RangeRequest { key: "big".into(), range_end: "bih".into(), ..Default::default() }
}

/// Twelve megabytes, of which etcd sends four at first.
async fn fill(proxy: &Proxy) -> KvClient<Channel> {
    let mut kv = KvClient::new(proxy.channel()).max_decoding_message_size(usize::MAX);
    for number in 0..30 {
        let (key, value) = (format!("big{number:02}").into(), vec![b'x'; 400 << 10].into());
        kv.put(PutRequest { key, value, ..Default::default() }).await.unwrap();
    }
    kv
}

/// A client's connection that takes little at a time.
pub(crate) async fn narrow(proxy: &Proxy) -> http2::SendRequest<Full<Bytes>> {
    narrower(proxy, 1 << 16).await
}

/// The same, with so many bytes that a stream may send unread.
pub(crate) async fn narrower(proxy: &Proxy, window: u32) -> http2::SendRequest<Full<Bytes>> {
    let connection = TcpStream::connect(proxy.url.strip_prefix("http://").unwrap()).await.unwrap();
    connection.set_nodelay(true).unwrap();
    let (sender, driver) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .initial_connection_window_size(1 << 24)
        .handshake(TokioIo::new(connection))
        .await
        .unwrap();
    tokio::spawn(driver);
    sender
}

/// A call whose answer is left where it is.
pub(crate) async fn unread(
    sender: http2::SendRequest<Full<Bytes>>,
    method: &str,
    request: &RangeRequest,
) -> Result<(http2::SendRequest<Full<Bytes>>, Response<Incoming>), Status> {
    ask(sender, &format!("etcdserverpb.KV/{method}"), request).await
}

/// A watch whose stream is left where it is.
pub(crate) async fn unread_watch(
    sender: http2::SendRequest<Full<Bytes>>,
    create: WatchCreateRequest,
) -> (http2::SendRequest<Full<Bytes>>, Response<Incoming>) {
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    ask(sender, "etcdserverpb.Watch/Watch", &create).await.unwrap()
}

/// The request of a call, which says that no more is to come.
pub(crate) fn request(method: &str, frames: Bytes) -> Request<Bytes> {
    Request::post(format!("http://etcd/{method}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header("te", "trailers")
        .body(frames)
        .unwrap()
}

pub(crate) async fn ask(
    mut sender: http2::SendRequest<Full<Bytes>>,
    method: &str,
    message: &impl Message,
) -> Result<(http2::SendRequest<Full<Bytes>>, Response<Incoming>), Status> {
    let response =
        sender.send_request(request(method, grpc_frame(&message.encode_to_vec())).map(Full::new)).await.unwrap();
    match Status::from_header_map(response.headers()) {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => Ok((sender, response)),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_stall_hold_up_nobody_and_are_bounded() {
    const PLACES: usize = 40;
    const ASKED: usize = 120;
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &["--max-range-streams=40"]).await;
    let mut kv = fill(&proxy).await;
    let mut events = events(&proxy, "k").await;

    let sender = narrow(&proxy).await;
    let mut stalled = JoinSet::new();
    for _ in 0..ASKED {
        let sender = sender.clone();
        stalled.spawn(async move { unread(sender, "RangeStream", &everything()).await });
    }
    let metrics = format!("{}/metrics", proxy.metrics);
    let under_way = format!("etcd_proxy_range_streams {PLACES}\n");
    eventually("readers stall", async || get(&metrics).await?.body.contains(&under_way).then_some(())).await;

    for round in 0..10 {
        let put = PutRequest { key: "k".into(), value: "v".into(), ..Default::default() };
        timeout(PROMPT, kv.put(put)).await.unwrap_or_else(|_| panic!("put {round} is held up")).unwrap();
        let event = timeout(PROMPT, events.next()).await.unwrap_or_else(|_| panic!("event {round} is held up"));
        assert_eq!(event.unwrap().unwrap().events.len(), 1);
        let answer = timeout(PROMPT, kv.range(everything())).await.unwrap_or_else(|_| panic!("get {round} is held up"));
        assert_eq!(answer.unwrap().get_ref().count, 30);
    }

    let (mut held, mut refused) = (Vec::new(), 0);
    while held.len() + refused < ASKED {
        match timeout(SOON, stalled.join_next()).await.expect("an answer in time").unwrap().unwrap() {
            Ok(response) => held.push(response),
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                assert_eq!(status.message(), "etcdserver: too many requests");
                refused += 1;
            }
        }
    }
    assert_eq!((held.len(), refused), (PLACES, ASKED - PLACES));
    let resident = proxy.program.resident();
    assert!(resident < 350 * MIB, "{} MiB resident", resident / MIB);

    // Places get free.
    drop((held, sender));
    let mut parts = timeout(SOON, kv.range_stream(everything())).await.expect("a place").unwrap().into_inner();
    let mut count = 0;
    while let Some(part) = timeout(SOON, parts.next()).await.expect("the next part") {
        count += part.unwrap().range_response.unwrap().kvs.len();
    }
    assert_eq!(count, 30);
}

/// A watch on `key` that is read.
async fn events(proxy: &Proxy, key: &str) -> Streaming<WatchResponse> {
    let create = WatchCreateRequest { key: key.to_owned().into(), ..Default::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let mut events = WatchClient::new(proxy.channel()).watch(requests).await.unwrap().into_inner();
    assert!(events.next().await.unwrap().unwrap().created);
    events
}

/// Puts a value again and again and sees to it that a watch gets each.
async fn followed(kv: &mut KvClient<Channel>, events: &mut Streaming<WatchResponse>, value: Vec<u8>, rounds: usize) {
    for round in 0..rounds {
        let put = PutRequest { key: "k".into(), value: value.clone().into(), ..Default::default() };
        timeout(PROMPT, kv.put(put)).await.unwrap_or_else(|_| panic!("put {round} is held up")).unwrap();
        let event = timeout(PROMPT, events.next()).await.unwrap_or_else(|_| panic!("event {round} is held up"));
        assert_eq!(event.unwrap().unwrap().events.len(), 1);
    }
}

/// More watches that nobody reads than one connection has room for, and more data than its window: those that are read go on,
/// and most of the others lose their streams, which frees what they hold.
#[tokio::test(flavor = "multi_thread")]
async fn watches_that_stall_hold_up_nobody_and_are_bounded() {
    const STALLED: usize = 600;
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let mut kv = KvClient::new(proxy.channel());
    let mut read = events(&proxy, "k").await;
    let sender = narrow(&proxy).await;
    let mut stalled = JoinSet::new();
    for _ in 0..STALLED {
        let create = WatchCreateRequest { key: "k".into(), ..Default::default() };
        stalled.spawn(unread_watch(sender.clone(), create));
    }
    let metrics = format!("{}/metrics", proxy.metrics);
    let open = format!("etcd_proxy_limit_used{{limit=\"watches\"}} {}\n", STALLED + 1);
    eventually("all watch", async || get(&metrics).await?.body.contains(&open).then_some(())).await;
    // Far more than any window holds.
    followed(&mut kv, &mut read, vec![b'x'; 16 << 10], 120).await;
    let left = format!("etcd_proxy_watch_streams {}\n", STALLED_STREAMS + 1);
    eventually("the others are given up", async || get(&metrics).await?.body.contains(&left).then_some(())).await;
    let given_up = format!("etcd_proxy_readers_given_up_total {}\n", STALLED - STALLED_STREAMS);
    assert!(get(&metrics).await.unwrap().body.contains(&given_up));
    followed(&mut kv, &mut read, b"v".to_vec(), 10).await;
    let most = proxy.program.most_resident();
    assert!(most < 400 * MIB, "{} MiB resident", most / MIB);
    drop(sender);
}

/// A client that has room for everything and stops reading from its socket: what is ready for it is bounded.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_deaf_keeps_little() {
    const STREAMS: usize = 200;
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let mut kv = KvClient::new(proxy.channel());
    let mut read = events(&proxy, "k").await;
    let connection = TcpStream::connect(proxy.url.strip_prefix("http://").unwrap()).await.unwrap();
    let (sender, mut driver) = h2::client::Builder::new()
        .initial_window_size(1 << 30)
        .initial_connection_window_size(1 << 30)
        .handshake::<_, Bytes>(connection)
        .await
        .unwrap();
    let deaf = Arc::new(AtomicBool::new(false));
    let deafness = deaf.clone();
    let driven = tokio::spawn(poll_fn(move |cx| {
        if deafness.load(Ordering::Relaxed) { Poll::Pending } else { Pin::new(&mut driver).poll(cx).map(drop) }
    }));
    let create = WatchCreateRequest { key: "k".into(), ..Default::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let mut held = Vec::new();
    for _ in 0..STREAMS {
        let (head, frame) = request("etcdserverpb.Watch/Watch", grpc_frame(&create.encode_to_vec())).into_parts();
        let mut sender = sender.clone().ready().await.unwrap();
        let (response, mut stream) = sender.send_request(Request::from_parts(head, ()), false).unwrap();
        stream.send_data(frame, true).unwrap();
        held.push(response.await.unwrap());
    }
    deaf.store(true, Ordering::Relaxed);
    let before = proxy.program.resident();
    followed(&mut kv, &mut read, vec![b'x'; 8 << 10], 120).await;
    let growth = proxy.program.most_resident().saturating_sub(before) / MIB;
    assert!(growth < 130, "grown by {growth} MiB");
    let metrics = format!("{}/metrics", proxy.metrics);
    let left = format!("etcd_proxy_watch_streams {}\n", STALLED_STREAMS + 1);
    eventually("the others are given up", async || get(&metrics).await?.body.contains(&left).then_some(())).await;
    assert_eq!(held.len(), STREAMS);
    driven.abort();
}

/// Puts a value of 1 MiB so many times. Returns the revision of the first.
async fn change_big(kv: &mut KvClient<Channel>, times: usize) -> i64 {
    let mut first = None;
    for _ in 0..times {
        let put = PutRequest { key: "big".into(), value: vec![b'x'; 1 << 20].into(), ..Default::default() };
        let revision = kv.put(put).await.unwrap().into_inner().header.unwrap().revision;
        first = first.or(Some(revision));
    }
    first.unwrap()
}

/// What catches up over large changes comes in one message, of which there are only so many at a time.
#[tokio::test(flavor = "multi_thread")]
async fn long_messages_of_watches_share_a_bounded_memory() {
    const WATCHES: usize = 5;
    const CHANGES: usize = 30;
    let etcd = Etcd::start().await;
    let flags = ["--max-buffered-bytes=80000000", "--stalled-reader-timeout=1s"];
    let proxy = Proxy::start("/a/", &etcd, &flags).await;
    let mut kv = KvClient::new(proxy.channel());
    let first = change_big(&mut kv, CHANGES).await;
    let create = WatchCreateRequest { key: "big".into(), start_revision: first, ..Default::default() };
    let mut stalled = Vec::new();
    for _ in 0..WATCHES {
        stalled.push(unread_watch(narrow(&proxy).await, create.clone()).await);
    }
    // One after the other has its message, of which it reads nothing, and is given up. Meanwhile others go on.
    let mut read = events(&proxy, "k").await;
    let metrics = format!("{}/metrics", proxy.metrics);
    eventually("all are given up", async || {
        followed(&mut kv, &mut read, b"v".to_vec(), 1).await;
        get(&metrics).await?.body.contains("etcd_proxy_watch_streams 1\n").then_some(())
    })
    .await;
    for (_sender, response) in stalled {
        let ended = timeout(SOON, response.into_body().collect()).await.expect("an end").unwrap();
        let status = Status::from_header_map(ended.trailers().unwrap()).unwrap();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    }
    let most = proxy.program.most_resident();
    assert!(most < 180 * MIB, "{} MiB resident", most / MIB);

    // Who reads gets all of it.
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let mut client = WatchClient::new(proxy.channel()).max_decoding_message_size(usize::MAX);
    let mut all = timeout(SOON, client.watch(requests)).await.expect("a stream").unwrap().into_inner();
    let mut revisions = Vec::new();
    while revisions.len() < CHANGES {
        let message = timeout(SOON, all.next()).await.expect("a message").unwrap().unwrap();
        revisions.extend(message.events.iter().map(|event| event.kv.as_ref().unwrap().mod_revision));
    }
    assert_eq!(revisions, (first..).take(CHANGES).collect::<Vec<_>>());
}

/// A message that is longer than all of the memory comes alone, and everybody else goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_beyond_the_whole_bound_comes_alone() {
    const CHANGES: usize = 12;
    const WATCHES: usize = 3;
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &["--max-buffered-bytes=4000000", "--stalled-reader-timeout=2s"]).await;
    let mut kv = KvClient::new(proxy.channel());
    let first = change_big(&mut kv, CHANGES).await;
    let create = WatchCreateRequest { key: "big".into(), start_revision: first, ..Default::default() };
    // One that reads nothing has all of the memory for as long as it is borne with.
    let (_sender, stalled) = unread_watch(narrow(&proxy).await, create.clone()).await;
    let metrics = format!("{}/metrics", proxy.metrics);
    let taken = "etcd_proxy_buffered_bytes 4000000\n";
    eventually("it takes all", async || get(&metrics).await?.body.contains(taken).then_some(())).await;
    let mut read = events(&proxy, "k").await;
    let mut reading = JoinSet::new();
    for _ in 0..WATCHES {
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create.clone())) };
        let requests = tokio_stream::once(create).chain(tokio_stream::pending());
        let mut client = WatchClient::new(proxy.channel()).max_decoding_message_size(usize::MAX);
        reading.spawn(async move {
            let mut all = timeout(SOON, client.watch(requests)).await.expect("a stream").unwrap().into_inner();
            let (mut events, mut longest) = (0, 0);
            while events < CHANGES {
                let message = timeout(SOON, all.next()).await.expect("a message").unwrap().unwrap();
                events += message.events.len();
                longest = longest.max(message.encoded_len());
            }
            longest
        });
    }
    followed(&mut kv, &mut read, b"v".to_vec(), 10).await;
    while let Some(longest) = timeout(SOON, reading.join_next()).await.expect("all of it in time") {
        assert!(longest.unwrap() > 4_000_000, "it does not come whole");
    }
    let one = RangeRequest { key: "big".into(), ..Default::default() };
    assert_eq!(timeout(SOON, kv.range(one)).await.expect("an answer").unwrap().get_ref().count, 1);
    let ended = timeout(SOON, stalled.into_body().collect()).await.expect("an end").unwrap();
    assert_eq!(Status::from_header_map(ended.trailers().unwrap()).unwrap().code(), Code::Unavailable);
}

/// Only so many watches wait for memory. The others are told to come again.
#[tokio::test(flavor = "multi_thread")]
async fn watches_that_find_no_memory_are_resumed() {
    /// As many as wait at a time.
    const WAITING: usize = 128;
    const REFUSED: usize = 7;
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &["--max-buffered-bytes=700000"]).await;
    let mut kv = KvClient::new(proxy.channel());
    let put = PutRequest { key: "big".into(), value: vec![b'x'; 300 << 10].into(), ..Default::default() };
    let start_revision = kv.put(put).await.unwrap().into_inner().header.unwrap().revision;
    let create = WatchCreateRequest { key: "big".into(), start_revision, ..Default::default() };
    let sender = narrow(&proxy).await;
    let mut held = Vec::new();
    for _ in 0..1 + WAITING + REFUSED {
        held.push(unread_watch(sender.clone(), create.clone()).await);
    }
    let metrics = format!("{}/metrics", proxy.metrics);
    let waiting = format!("etcd_proxy_answers_waiting {WAITING}\n");
    let left = format!("etcd_proxy_watch_streams {}\n", 1 + WAITING);
    let metrics = eventually("the others are refused", async || {
        Some(get(&metrics).await?.body).filter(|body| body.contains(&waiting) && body.contains(&left))
    })
    .await;
    let refused = metrics.lines().find(|line| line.contains("Watch\"") && line.contains("Unavailable"));
    assert!(refused.is_some_and(|line| line.ends_with(&format!(" {REFUSED}"))), "{refused:?}");
}

/// Who reads nothing for long enough has to ask again: the place, and what was held for it, get free.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stalls_for_long_is_given_up() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &["--max-range-streams=1", "--stalled-reader-timeout=2s"]).await;
    let mut kv = fill(&proxy).await;
    let sender = narrow(&proxy).await;
    let (sender, stalled) = unread(sender, "RangeStream", &everything()).await.unwrap();
    // The one place there is comes free before the patience of those that wait for it ends.
    let mut parts = timeout(SOON, kv.range_stream(everything())).await.expect("a place").unwrap().into_inner();
    let mut count = 0;
    while let Some(part) = timeout(SOON, parts.next()).await.expect("the next part") {
        count += part.unwrap().range_response.unwrap().kvs.len();
    }
    assert_eq!(count, 30);
    let ended = stalled.into_body().collect().await.unwrap();
    let status = Status::from_header_map(ended.trailers().unwrap()).unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains("given up"), "{status:?}");
    drop(sender);
}

/// Likewise a snapshot, of which two are under way at a time.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_nobody_reads_is_given_up() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &["--stalled-reader-timeout=2s"]).await;
    drop(fill(&proxy).await);
    let sender = narrow(&proxy).await;
    let mut stalled = Vec::new();
    for _ in 0..2 {
        let method = "etcdserverpb.Maintenance/Snapshot";
        stalled.push(ask(sender.clone(), method, &SnapshotRequest {}).await.unwrap());
    }
    let mut pieces = MaintenanceClient::new(proxy.channel()).snapshot(SnapshotRequest {}).await.unwrap().into_inner();
    let mut remaining = u64::MAX;
    while let Some(piece) = timeout(SOON, pieces.next()).await.expect("the next piece") {
        remaining = piece.unwrap().remaining_bytes;
    }
    assert_eq!(remaining, 0);
    // The second may not have stalled for long enough when the first one's place came free.
    let metrics = format!("{}/metrics", proxy.metrics);
    eventually("both are given up", async || {
        let metrics = get(&metrics).await?.body;
        let given_up = metrics.lines().find(|line| {
            line.starts_with("grpc_server_handled_total")
                && line.contains("\"Snapshot\"")
                && line.contains("ResourceExhausted")
        });
        given_up?.ends_with(" 2").then_some(())
    })
    .await;
    for (_sender, response) in stalled {
        let ended = timeout(SOON, response.into_body().collect()).await.expect("an end").unwrap();
        let status = Status::from_header_map(ended.trailers().unwrap()).unwrap();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    }
}

/// A range is a request: on SIGTERM it is finished, not cut.
#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_range_is_finished_before_the_end() {
    let etcd = Etcd::start().await;
    let mut proxy = Proxy::start("/a/", &etcd, &["--drain-timeout=60s"]).await;
    let mut kv = fill(&proxy).await;
    let mut parts = kv.range_stream(everything()).await.unwrap().into_inner();
    proxy.program.signal("TERM");
    eventually("it is closing", async || proxy.program.log().contains("closing").then_some(())).await;
    let address = proxy.url.strip_prefix("http://").unwrap().to_owned();
    eventually("the port is closed", async || TcpStream::connect(&address).await.is_err().then_some(())).await;
    let mut count = 0;
    while let Some(part) = timeout(SOON, parts.next()).await.expect("the next part") {
        let part = part.unwrap_or_else(|status| panic!("{status:?} after {count}: {}", proxy.program.log()));
        count += part.range_response.unwrap().kvs.len();
    }
    assert_eq!(count, 30);
    drop((parts, kv));
    assert_eq!(proxy.program.exit().await.code(), Some(0), "{}", proxy.program.log());
}
