//! Requests of which a part has come: what they take together is bounded, and who sends nothing on holds up nobody for ever.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, header::CONTENT_TYPE};
use prost::Message as _;
use proto::etcdserverpb::{PutRequest, kv_client::KvClient};
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

/// Sends all of a long Put but its end. It goes on as long as it is kept.
async fn begin(proxy: &Proxy) -> (h2::SendStream<Bytes>, JoinSet<()>) {
    let connection = TcpStream::connect(proxy.url.strip_prefix("http://").unwrap()).await.unwrap();
    let (sender, driver) = h2::client::handshake(connection).await.unwrap();
    let mut connected = JoinSet::new();
    connected.spawn(async move { drop(driver.await) });
    let head = Request::post("http://etcd/etcdserverpb.KV/Put")
        .header(CONTENT_TYPE, "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
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
