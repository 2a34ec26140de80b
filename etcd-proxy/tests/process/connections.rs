//! Connections: how many there may be, whose, and what one client may do on its own.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use crate::{
    child::{Etcd, Proxy, SOON},
    http::get,
    wire::{DATA, GOAWAY, PING, PREFACE, RST_STREAM, frame, grpc_frame, headers, read_frame},
};

/// A client that gives up many calls at once keeps its watches. etcd takes it as well.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_cancelled_in_a_burst_end_nothing_else() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    for url in [&etcd.url, &proxy.url] {
        let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap();
        let create = frame(DATA, 0, 1, &[0, 0, 0, 0, 5, 0x0a, 3, 0x0a, 1, b'k']);
        stream.write_all(&[PREFACE, &headers(1, "/etcdserverpb.Watch/Watch"), &create].concat()).await.unwrap();
        loop {
            let (kind, _, id, _) = read_frame(&mut stream).await;
            if (kind, id) == (DATA, 1) {
                break;
            }
        }
        let mut burst = Vec::new();
        for call in 1..=500 {
            burst.extend(headers(2 * call + 1, "/etcdserverpb.KV/Range"));
            burst.extend(frame(RST_STREAM, 0, 2 * call + 1, &8u32.to_be_bytes()));
        }
        burst.extend(frame(PING, 0, 0, b"still on"));
        stream.write_all(&burst).await.unwrap();
        loop {
            let (kind, flags, _, payload) = read_frame(&mut stream).await;
            assert_ne!(kind, GOAWAY, "{url}: {}", payload.escape_ascii());
            if (kind, flags) == (PING, 1) && payload == b"still on" {
                break;
            }
        }
        // The watch lives.
        let ctl = if url == &proxy.url { proxy.ctl(&["put", "k", "v"]) } else { etcd.ctl(&["put", "k", "v"]) };
        assert_eq!(ctl, "OK\n");
        loop {
            let (kind, _, id, payload) = read_frame(&mut stream).await;
            assert_ne!(kind, GOAWAY, "{url}: {}", payload.escape_ascii());
            if (kind, id) == (DATA, 1) {
                break;
            }
        }
    }
}

/// A byte that is not read on takes hundreds, of which the client's window says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_wait_in_small_pieces_stay_small() {
    const CONNECTIONS: usize = 10;
    const PIECES: usize = 20_000;
    const EACH: u64 = 3 << 20;
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &["--max-requests-per-second=1", "--max-requests-burst=1"]).await;
    let before = proxy.program.resident();
    let create = frame(DATA, 0, 1, &grpc_frame(&[0x0a, 3, 0x0a, 1, b'k']));
    let pieces = frame(DATA, 0, 1, &[0]).repeat(PIECES);
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(proxy.url.strip_prefix("http://").unwrap()).await.unwrap();
        // The first goes on, another waits, and what comes behind it is not read.
        let watches = create.repeat(50);
        stream.write_all(&[PREFACE, &headers(1, "/etcdserverpb.Watch/Watch"), &watches].concat()).await.unwrap();
        // It may be closed before all are written.
        let _closed = stream.write_all(&pieces).await;
        let ended = async {
            loop {
                let (kind, _, _, payload) = read_frame(&mut stream).await;
                if kind == GOAWAY {
                    return payload[4..8].to_vec();
                }
            }
        };
        assert_eq!(ended.await, 11u32.to_be_bytes(), "ENHANCE_YOUR_CALM");
        open.push(stream);
    }
    let grown = proxy.program.most_resident() - before;
    assert!(grown < CONNECTIONS as u64 * EACH, "{} KiB", grown >> 10);
}

/// A connection that has said enough to be served and got its answer; `None` if it was closed.
async fn speak(proxy: &Proxy, from: &str) -> Option<TcpStream> {
    let to: SocketAddr = proxy.url.strip_prefix("http://").unwrap().parse().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let mut stream = timeout(SOON, socket.connect(to)).await.unwrap().unwrap();
    stream.write_all(PREFACE).await.ok()?;
    let read = timeout(SOON, stream.read(&mut [0; 64])).await.expect("an answer or the end in time");
    read.is_ok_and(|length| length > 0).then_some(stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_have_bounds_and_probes_have_places_of_their_own() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &["--max-connections=3", "--max-connections-per-client=2"]).await;
    let first = speak(&proxy, "127.0.0.1").await.expect("the first connection");
    let second = speak(&proxy, "127.0.0.1").await.expect("the second connection");
    assert!(speak(&proxy, "127.0.0.1").await.is_none(), "one client has two places");
    let other = speak(&proxy, "127.0.0.2").await.expect("another client's connection");
    assert!(speak(&proxy, "127.0.0.3").await.is_none(), "all have three places");

    for path in ["/livez", "/readyz", "/metrics"] {
        let answer = get(&format!("{}{path}", proxy.metrics)).await.unwrap_or_else(|| panic!("no answer to {path}"));
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    let metrics = get(&format!("{}/metrics", proxy.metrics)).await.unwrap().body;
    for reason in ["limit", "client_limit"] {
        let line = format!("etcd_proxy_client_connections_refused_total{{reason=\"{reason}\"}} 1");
        assert!(metrics.contains(&line), "{line} is missing in\n{metrics}");
    }
    drop((first, second, other));
}
