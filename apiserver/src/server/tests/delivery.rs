//! Clients that do not read, and clients that do not ask.

use std::{sync::Arc, time::Duration};

use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::support::*;
use crate::server::{accept::Bounds, chain::Manners, inflight::InFlight};

const ECHO: &str = "/apis/example.test/v1/namespaces/default/echoes/x";
const BIG_ONE: &str = "/apis/example.test/v1/namespaces/default/echoes/big";
const STREAM: &str = "/apis/example.test/v1/watch/namespaces/default/echoes/stream";

/// A server that works on few requests at a time, for at most this long each.
async fn busy(reads: usize, request_timeout: Duration) -> Running {
    let manners = Manners { in_flight: InFlight::new(reads, 1), request_timeout, ..Manners::default() };
    Running::start_with(Arc::new(AllowAll), None, |c| c.manners(manners), |_| {}).await
}

async fn with_bounds(bounds: Bounds) -> Running {
    Running::start_with(Arc::new(AllowAll), None, |config| config.bounds(bounds), |_| {}).await
}

/// Waits for something that must come soon.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.unwrap_or_else(|_| panic!("{what} does not come"))
}

#[tokio::test]
async fn strangers_who_do_not_read_keep_nobody_out() {
    let server = busy(4, Duration::from_secs(2)).await;
    let mut held = Vec::new();
    for _ in 0..8 {
        let (mut sender, connection) = server.http2_with(None, 0).await;
        let answer = sender.send_request(request(Method::GET, "/healthz", &[])).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        held.push((answer, sender, connection));
    }
    assert_eq!(server.get(ECHO).await.code, StatusCode::OK);
    // What nobody reads in time is given up, and then the connections, on which strangers cannot stay, end.
    for (answer, sender, connection) in held {
        assert!(soon("the end of the answer", answer.into_body().collect()).await.is_err());
        soon("the end of the connection", connection).await.unwrap().unwrap();
        drop(sender);
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_long_answer_counts_until_it_is_read_or_given_up() {
    let clients = Authority::new("client-ca");
    let server = busy(1, Duration::from_secs(2)).await;
    server.trust.set_client_ca(clients.bundle());
    let jane = clients.sign(&Leaf::named("jane"));
    // One byte of room is enough for HTTP/2 to take a whole piece, but not the whole answer.
    for window in [0, 1] {
        let (mut sender, _connection) = server.http2_with(Some(&jane), window).await;
        let answer = sender.send_request(request(Method::GET, BIG_ONE, &[])).await.unwrap();
        assert_eq!(server.get(ECHO).await.code, StatusCode::TOO_MANY_REQUESTS);
        eventually("the end of the answer", async || server.get(ECHO).await.code == StatusCode::OK).await;
        let end = async {
            // What has arrived can still be read, and makes room.
            answer.into_body().collect().await
        };
        assert!(soon("the end of the answer", end).await.is_err());
        let other = sender.send_request(request(Method::GET, ECHO, &[])).await.unwrap();
        assert_eq!(other.status(), StatusCode::OK, "the connection lives on");
    }
    let mut reader = server.http1(None).await;
    assert_eq!(reader.get(BIG_ONE, &[]).await.body.len(), BIG, "who reads gets all");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn over_http1_the_connection_ends_that_is_not_read() {
    let server = busy(1, Duration::from_secs(2)).await;
    let unread = async || {
        let mut stream = server.tls(None, b"http/1.1").await.unwrap();
        let head = format!("GET {BIG_ONE} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        eventually("the answer", async || server.get(ECHO).await.code == StatusCode::TOO_MANY_REQUESTS).await;
        eventually("its end", async || server.get(ECHO).await.code == StatusCode::OK).await;
        stream
    };
    let mut read = Vec::new();
    let outcome = soon("the end of the connection", unread().await.read_to_end(&mut read)).await;
    assert!(outcome.is_err() && read.len() < BIG, "{outcome:?} {}", read.len());

    // A connection that is read carries one answer after the other, whatever the time of the first was: as the server
    // measures it, which gives up another one meanwhile.
    let mut client = server.http1(None).await;
    assert_eq!(client.get(ECHO, &[]).await.code, StatusCode::OK);
    unread().await;
    assert_eq!(client.get(ECHO, &[]).await.code, StatusCode::OK);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn who_answers_for_long_can_end_the_answer() {
    let clients = Authority::new("client-ca");
    let server = Running::start().await;
    server.trust.set_client_ca(clients.bundle());
    let jane = clients.sign(&Leaf::named("jane"));
    let (mut sender, _connection) = server.http2_with(Some(&jane), 65_535).await;
    let answer = sender.send_request(request(Method::GET, STREAM, &[])).await.unwrap();
    assert!(soon("the end of the stream", answer.into_body().collect()).await.is_err());
    assert_eq!(sender.send_request(request(Method::GET, ECHO, &[])).await.unwrap().status(), StatusCode::OK);

    let mut client = server.http1(None).await;
    let answer = client.0.send_request(request(Method::GET, STREAM, &[])).await.unwrap();
    assert!(soon("the end of the stream", answer.into_body().collect()).await.is_err());
    server.stop().await.unwrap();
}

#[tokio::test]
async fn connections_without_a_request_end() {
    let running = with_bounds(Bounds { first_request: Duration::from_millis(500), ..Bounds::default() }).await;
    let silent = [
        (&b"http/1.1"[..], &b""[..]),
        (b"h2", b""),
        (b"h2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"),
        (b"", b""),
        (b"", b"GET / HT"),
    ];
    let server = &running;
    futures::future::join_all(silent.map(|(alpn, greeting)| async move {
        let mut stream = server.tls(None, alpn).await.unwrap();
        stream.write_all(greeting).await.unwrap();
        stream.flush().await.unwrap();
        let mut read = Vec::new();
        let _ended_either_way = soon("the end of the connection", stream.read_to_end(&mut read)).await;
    }))
    .await;
    eventually("no connection but one", async || {
        server.get("/metrics").await.body.contains("apiserver_open_connections 1\n")
    })
    .await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn idle_connections_end_and_used_ones_do_not() {
    let clients = Authority::new("client-ca");
    let bounds = Bounds { idle: Duration::from_millis(700), ..Bounds::default() };
    let server = with_bounds(bounds).await;
    server.trust.set_client_ca(clients.bundle());
    let jane = clients.sign(&Leaf::named("jane"));
    let (mut idle, idle_connection) = server.http2_with(Some(&jane), 65_535).await;
    let (mut used, used_connection) = server.http2_with(Some(&jane), 65_535).await;
    let mut first = server.http1(None).await;
    assert_eq!(first.get(ECHO, &[]).await.code, StatusCode::OK);
    let watch = used.send_request(request(Method::GET, "/apis/example.test/v1/echoes?watch=1", &[]));
    let watch = tokio::spawn(watch);
    assert_eq!(idle.send_request(request(Method::GET, ECHO, &[])).await.unwrap().status(), StatusCode::OK);
    // A goodbye, not a break.
    soon("the end of the idle connection", idle_connection).await.unwrap().unwrap();
    eventually("the end over HTTP/1.1", async || first.0.is_closed()).await;
    // So long that two more have come and gone, one after the other.
    for _ in 0..2 {
        let (mut idle, connection) = server.http2_with(Some(&jane), 65_535).await;
        assert_eq!(idle.send_request(request(Method::GET, ECHO, &[])).await.unwrap().status(), StatusCode::OK);
        soon("the end of an idle connection", connection).await.unwrap().unwrap();
    }
    assert_eq!(used.send_request(request(Method::GET, ECHO, &[])).await.unwrap().status(), StatusCode::OK);
    assert!(!watch.is_finished() && !used_connection.is_finished());
    server.stop().await.unwrap();
    assert_eq!(watch.await.unwrap().unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn who_agrees_on_nothing_speaks_http1() {
    let server = Running::start().await;
    let mut stream = server.tls(None, b"").await.unwrap();
    let head = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let mut answer = String::new();
    let _ended_either_way = soon("the answer", stream.read_to_string(&mut answer)).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    server.stop().await.unwrap();
}
