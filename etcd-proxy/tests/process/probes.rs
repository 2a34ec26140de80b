//! Health, readiness, version, metrics; and HTTP/1.1 beside HTTP/2 on one port.

use std::time::Duration;

use http::{Request, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tonic::{Code, Status};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use crate::{
    child::{Etcd, Proxy, SOON, eventually},
    http::{get, request},
    stalled::narrow,
    wire::grpc_frame,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_client_port_answers_as_etcds_does() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    for path in ["/health", "/health?serializable=true", "/version"] {
        let ours = get(&format!("{}{path}", proxy.url)).await.unwrap();
        let theirs = get(&format!("{}{path}", etcd.url)).await.unwrap();
        assert_eq!((ours.status, &ours.body), (theirs.status, &theirs.body), "{path}");
        let kind = |answer: &crate::http::Answer| answer.headers.get("content-type").cloned();
        assert_eq!(kind(&ours), kind(&theirs), "{path}");
    }
    for path in ["/health", "/version"] {
        let ours = request("POST", &format!("{}{path}", proxy.url)).await.unwrap();
        let theirs = request("POST", &format!("{}{path}", etcd.url)).await.unwrap();
        assert_eq!((ours.status, &ours.body), (theirs.status, &theirs.body), "{path}");
        assert_eq!(ours.headers.get("allow"), theirs.headers.get("allow"), "{path}");
    }
    assert_eq!(get(&format!("{}/metrics", proxy.url)).await.unwrap().status, 404);
    // gRPC on the same port.
    let mut health = HealthClient::new(proxy.channel());
    let answer = health.check(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(answer.status(), ServingStatus::Serving);
    assert_eq!(proxy.ctl(&["put", "k", "v"]), "OK\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_port_tells_alive_from_ready() {
    let mut etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let path = |path: &str| format!("{}{path}", proxy.metrics);
    assert_eq!(get(&path("/livez")).await.unwrap().body, "ok\n");
    let verbose = get(&path("/readyz?verbose")).await.unwrap();
    assert_eq!(verbose.body, "[+]shutdown ok\n[+]claims ok\n[+]upstream ok\n[+]meta ok\nok\n");

    proxy.ctl(&["put", "k", "v"]);
    let metrics = get(&path("/metrics")).await.unwrap();
    assert!(metrics.headers["content-type"].starts_with("application/openmetrics-text"));
    for family in [
        r#"grpc_server_handled_total{grpc_type="unary",grpc_service="etcdserverpb.KV",grpc_method="Put",grpc_code="OK"} 1"#,
        "etcd_proxy_client_connections ",
        "etcd_proxy_upstream_connections{",
        r#"etcd_proxy_upstream_dials_total{endpoint="http://"#,
        "etcd_proxy_upstream_latency_seconds_count ",
        "# EOF",
    ] {
        assert!(metrics.body.contains(family), "{family} is missing in\n{}", metrics.body);
    }

    etcd.kill();
    let unready = get(&path("/readyz")).await.unwrap();
    assert_eq!(unready.status, 503);
    assert!(unready.body.contains("[-]upstream failed"), "{}", unready.body);
    assert_eq!(get(&path("/readyz?exclude=upstream")).await.unwrap().status, 200);
    assert_eq!(get(&path("/livez")).await.unwrap().status, 200);
    let health = get(&format!("{}/health", proxy.url)).await.unwrap();
    assert_eq!(health.status, 503);
    assert!(health.body.starts_with(r#"{"health":"false","reason":"RANGE ERROR:"#), "{}", health.body);
}

/// A probe asks every few seconds, for as long as an outage takes.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_tells_when_health_changes_and_no_more() {
    let mut etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let health = async || get(&format!("{}/health", proxy.url)).await.unwrap();
    let logged = |words: &str| proxy.program.log().matches(words).count();
    assert_eq!(health().await.status, 200);
    etcd.kill();
    let mut reasons = std::collections::BTreeSet::new();
    for _ in 0..20 {
        reasons.insert(health().await.body);
    }
    // It may change while connections end.
    let changes = logged("serving /health false");
    assert!(changes >= 1 && changes <= reasons.len(), "{reasons:?}: {}", proxy.program.log());
    etcd.run().await;
    eventually("health", async || (health().await.status == 200).then_some(())).await;
    for _ in 0..3 {
        assert_eq!(health().await.status, 200);
    }
    proxy.program.logged("serving /health true again").await;
    assert_eq!(logged("serving /health true"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_and_surplus_connections_are_closed() {
    let etcd = Etcd::start().await;
    let flags = ["--handshake-timeout=300ms", "--max-connections=2"];
    let proxy = Proxy::start("/a/", &etcd, &flags).await;
    let address = proxy.url.strip_prefix("http://").unwrap();
    let mut buffer = [0; 16];

    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut dawdling = TcpStream::connect(address).await.unwrap();
    dawdling.write_all(b"PRI * HTTP/2.0").await.unwrap();
    for stream in [&mut silent, &mut dawdling] {
        let ended = timeout(SOON, stream.read(&mut buffer)).await.expect("closed in time");
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    }

    // Two that speak stay, the third has no place.
    let mut speaking = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        assert!(timeout(SOON, stream.read(&mut buffer)).await.unwrap().unwrap() > 0);
        speaking.push(stream);
    }
    let mut surplus = TcpStream::connect(address).await.unwrap();
    let ended = timeout(SOON, surplus.read(&mut buffer)).await.expect("closed at once");
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    drop(speaking);
    eventually("places are free again", async || {
        tokio::time::sleep(Duration::from_millis(10)).await;
        get(&format!("{}/version", proxy.url)).await.filter(|answer| answer.status == 200)
    })
    .await;
}

/// What comes first of a call of grpc.health.v1: its first message, or the status that it ends with.
async fn first(url: &str, method: &str, message: &[u8]) -> Result<Vec<u8>, (Code, String)> {
    let address = url.strip_prefix("http://").unwrap();
    let request = Request::post(format!("http://etcd/grpc.health.v1.Health/{method}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header("te", "trailers")
        .body(Full::new(grpc_frame(message)))
        .unwrap();
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let response = sender.send_request(request).await.unwrap();
    let refused = Status::from_header_map(response.headers());
    let first = match refused {
        Some(status) => Err((status.code(), status.message().to_owned())),
        None => {
            let frame = timeout(SOON, response.into_body().frame()).await.expect("a message in time").unwrap().unwrap();
            frame.into_data().map(|data| data.to_vec()).map_err(|trailers| {
                let status = Status::from_header_map(trailers.trailers_ref().unwrap()).unwrap();
                (status.code(), status.message().to_owned())
            })
        }
    };
    connection.abort();
    first
}

#[tokio::test(flavor = "multi_thread")]
async fn the_health_service_answers_as_etcds_does() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let unknown = HealthCheckRequest { service: "etcdserverpb.KV".to_owned() }.encode_to_vec();
    for method in ["Check", "Watch", "List", "Nope"] {
        for message in [&b""[..], &unknown] {
            let (ours, theirs) = (first(&proxy.url, method, message).await, first(&etcd.url, method, message).await);
            assert_eq!(ours, theirs, "{method} {message:?}");
        }
    }
    // Who watches what is not known goes on watching.
    let request = HealthCheckRequest { service: "etcdserverpb.KV".to_owned() };
    let mut watch = HealthClient::new(proxy.channel()).watch(request).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::ServiceUnknown);
    assert!(timeout(Duration::from_millis(300), watch.message()).await.is_err());
}

/// A deadline holds for a client that does not watch over it itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_of_health_ends_at_its_deadline() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let request = Request::post("http://etcd/grpc.health.v1.Health/Watch")
        .header(CONTENT_TYPE, "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", "300m")
        .body(Full::new(grpc_frame(b"")))
        .unwrap();
    let response = narrow(&proxy).await.send_request(request).await.unwrap();
    let body = timeout(SOON, response.into_body().collect()).await.expect("an end in time").unwrap();
    let status = Status::from_header_map(body.trailers().unwrap()).unwrap();
    assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, "context deadline exceeded"));
}

#[tokio::test(flavor = "multi_thread")]
async fn running_out_of_file_descriptors_is_survived() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::spawn_limited("/a/", &etcd.url, 32);
    proxy.ready().await;
    assert_eq!(proxy.ctl(&["put", "k", "v"]), "OK\n");
    let address = proxy.url.strip_prefix("http://").unwrap();
    let mut connections = Vec::new();
    for _ in 0..64 {
        connections.push(TcpStream::connect(address).await.unwrap());
    }
    eventually("it cannot accept", async || proxy.program.log().contains("cannot accept").then_some(())).await;
    drop(connections);
    eventually("it serves again", async || {
        get(&format!("{}/version", proxy.url)).await.filter(|answer| answer.status == 200)
    })
    .await;
    assert_eq!(proxy.ctl(&["get", "k"]), "k\nv\n");
}
