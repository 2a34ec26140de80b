//! Requests of which a part has come: what they take together is bounded, and who sends nothing on holds up nobody for ever.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, header::CONTENT_TYPE};
use prost::Message as _;
use proto::etcdserverpb::{LeaseKeepAliveRequest, PutRequest, kv_client::KvClient};
use tokio::{net::TcpStream, task::JoinSet, time::timeout};

use crate::{
    child::{Etcd, Proxy, eventually},
    http::get,
    wire::grpc_frame,
};

const MIB: u64 = 1 << 20;
/// As long as other requests may take meanwhile.
const PROMPT: Duration = Duration::from_secs(10);
const LENGTH: usize = 1_400_000;

fn put(length: usize) -> PutRequest {
    PutRequest { key: "k".into(), value: vec![b'x'; length].into(), ..Default::default() }
}

/// A client's connection, which goes on as long as it is kept.
pub(crate) async fn connect(proxy: &Proxy) -> (h2::client::SendRequest<Bytes>, JoinSet<()>) {
    let (sender, _, connected) = connect_and_ping(proxy).await;
    (sender, connected)
}

async fn connect_and_ping(proxy: &Proxy) -> (h2::client::SendRequest<Bytes>, h2::PingPong, JoinSet<()>) {
    let connection = TcpStream::connect(proxy.url.strip_prefix("http://").unwrap()).await.unwrap();
    let (sender, mut driver) = h2::client::handshake(connection).await.unwrap();
    let pings = driver.ping_pong().unwrap();
    let mut connected = JoinSet::new();
    connected.spawn(async move { drop(driver.await) });
    (sender, pings, connected)
}

/// The beginning of a call.
pub(crate) fn head(method: &str) -> Request<()> {
    Request::post(format!("http://etcd/{method}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap()
}

/// Sends all of a long Put but its end. It goes on as long as it is kept.
async fn begin(proxy: &Proxy) -> (h2::SendStream<Bytes>, JoinSet<()>) {
    let (sender, connected) = connect(proxy).await;
    let head = head("etcdserverpb.KV/Put");
    let (_response, mut stream) = sender.ready().await.unwrap().send_request(head, false).unwrap();
    let frame = grpc_frame(&put(LENGTH).encode_to_vec());
    stream.send_data(frame.slice(..frame.len() - 1), false).unwrap();
    (stream, connected)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_come_in_part_share_a_bounded_memory() {
    const CLIENTS: usize = 300;
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let mut kv = KvClient::new(proxy.channel());
    kv.put(put(1)).await.unwrap();
    let mut begun = Vec::new();
    for _ in 0..CLIENTS {
        begun.push(begin(&proxy).await);
    }
    let metrics = format!("{}/metrics", proxy.metrics);
    // Some have sent what they had, others wait with a part of it, and for more than that there is no room.
    eventually("what was sent has come", async || {
        let text = get(&metrics).await?.body;
        let refused = text.lines().find(|line| line.contains("\"Put\"") && line.contains("ResourceExhausted"));
        refused.map(drop)
    })
    .await;
    for round in 0..20 {
        timeout(PROMPT, kv.put(put(1))).await.unwrap_or_else(|_| panic!("put {round} is held up")).unwrap();
    }
    // Who sends all of his gets through in the end: the others are given up.
    eventually("a long request gets through", async || kv.put(put(LENGTH)).await.ok()).await;
    let most = proxy.program.most_resident();
    assert!(most < 120 * MIB, "{} MiB resident", most / MIB);
    drop(begun);
    eventually("the memory is given back", async || {
        let text = get(&metrics).await?.body;
        let free = ["etcd_proxy_arriving_bytes 0\n", "etcd_proxy_requests_waiting 0\n"];
        free.iter().all(|line| text.contains(line)).then_some(())
    })
    .await;
}

/// Sends as much as the windows of the stream and of its connection let pass. Returns how much that was.
fn flood(stream: &mut h2::SendStream<Bytes>, sent: usize, messages: &Bytes, message: usize) -> usize {
    // A message that was cut off goes on.
    let rest = messages.slice(sent % message..);
    let passes = rest.slice(..stream.capacity().min(rest.len()));
    let length = passes.len();
    if length > 0 {
        stream.send_data(passes, false).unwrap();
    }
    stream.reserve_capacity(rest.len());
    length
}

/// What waits for its turn is held back at the client, but for the windows of its stream and of its connection.
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_wait_for_their_turn_take_a_bounded_memory() {
    const STREAMS: usize = 100;
    /// Of a connection.
    const WINDOW: usize = 4 << 20;
    /// What is read of the streams before they wait, twice.
    const READ: usize = STREAMS * (32 << 10);
    let etcd = Etcd::start().await;
    let flags = ["--max-requests-per-second=1", "--max-requests-burst=150"];
    let proxy = Proxy::start("/a/", &etcd, &flags).await;
    let (mut sender, mut pings, _connected) = connect_and_ping(&proxy).await;
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        sender = sender.ready().await.unwrap();
        streams.push((sender.send_request(head("etcdserverpb.Lease/LeaseKeepAlive"), false).unwrap(), 0));
    }
    let metrics = format!("{}/metrics", proxy.metrics);
    let open = format!("etcd_proxy_limit_used{{limit=\"streams\"}} {STREAMS}\n");
    eventually("streams are open", async || get(&metrics).await?.body.contains(&open).then_some(())).await;
    let before = proxy.program.resident();

    let message = grpc_frame(&LeaseKeepAliveRequest { id: 1 }.encode_to_vec());
    let messages = Bytes::from(message.repeat(40_000));
    let (mut all, mut full) = (0, 0);
    let deadline = Instant::now() + Duration::from_secs(60);
    while full < 200 {
        assert!(Instant::now() < deadline, "only {all} bytes were taken");
        let before = all;
        for ((_, stream), sent) in &mut streams {
            let passed = flood(stream, *sent, &messages, message.len());
            *sent += passed;
            all += passed;
        }
        full = if all == before && all > WINDOW { full + 1 } else { 0 };
        assert!(all < WINDOW + READ, "{all} bytes were taken");
        // Once this is answered, what the proxy had to say of the windows has come.
        timeout(PROMPT, pings.ping(h2::Ping::opaque())).await.unwrap().unwrap();
    }
    let most = streams.iter().map(|(_, sent)| *sent).max().unwrap();
    assert!(most < 300 << 10, "{most} bytes of a stream were taken");
    let growth = proxy.program.most_resident().saturating_sub(before) / MIB;
    assert!(growth < 28, "grown by {growth} MiB");
}
