//! Calls below the generated clients: any bytes to any path.

use bytes::Bytes;
use http::{HeaderMap, Request, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tonic::{Code, Status, body::Body, transport::Channel};
use tower::{Service as _, ServiceExt as _};

use crate::{
    support::{Etcd, Proxy},
    wire::grpc_frame,
};

/// Sends a message to a path. Returns the frames of the answer.
pub(crate) async fn raw(channel: &Channel, path: &'static str, message: Bytes) -> Result<Bytes, Status> {
    raw_frame(channel, path, grpc_frame(&message), None).await
}

/// Sends a body to a path.
pub(crate) async fn raw_frame(
    channel: &Channel,
    path: &'static str,
    body: Bytes,
    encoding: Option<&'static str>,
) -> Result<Bytes, Status> {
    let mut request = Request::post(path).header(CONTENT_TYPE, "application/grpc").header("te", "trailers");
    if let Some(encoding) = encoding {
        request = request.header("grpc-encoding", encoding);
    }
    let request = request.body(Body::new(Full::new(body))).unwrap();
    let (body, status) = send(channel, request).await?;
    if status.code() == Code::Ok { Ok(body) } else { Err(status) }
}

/// Sends a body to the path of a stream. Returns the messages of the answer and the status after them.
pub(crate) async fn raw_stream(channel: &Channel, path: &'static str, body: Bytes) -> (Vec<Bytes>, Status) {
    let request = Request::post(path).header(CONTENT_TYPE, "application/grpc").header("te", "trailers");
    let (mut body, status) = send(channel, request.body(Body::new(Full::new(body))).unwrap()).await.unwrap();
    let mut messages = Vec::new();
    while !body.is_empty() {
        let head = body.split_to(5);
        messages.push(body.split_to(u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize));
    }
    (messages, status)
}

async fn send(channel: &Channel, request: Request<Body>) -> Result<(Bytes, Status), Status> {
    let response = channel
        .clone()
        .ready()
        .await
        .unwrap()
        .call(request)
        .await
        .map_err(|error| Status::unavailable(format!("{error:?}")))?;
    let (parts, body) = response.into_parts();
    let collected = body.collect().await?;
    let status = collected
        .trailers()
        .and_then(Status::from_header_map)
        .or_else(|| Status::from_header_map(&parts.headers))
        .unwrap();
    Ok((collected.to_bytes(), status))
}

/// What is not gRPC is not answered as if it were.
#[tokio::test(flavor = "multi_thread")]
async fn other_content_types_are_refused() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let client = proxy.client().await;
    for content_type in ["text/plain", "application/json", "application/grpcx"] {
        let request =
            Request::post("/etcdserverpb.KV/Range").header(CONTENT_TYPE, content_type).body(Body::empty()).unwrap();
        let response = client.channel.clone().ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(response.status(), http::StatusCode::UNSUPPORTED_MEDIA_TYPE, "{content_type}");
    }
}

/// A subtype that grpc-go does not know is protobuf to it, and a query is a part of the method's name.
#[tokio::test(flavor = "multi_thread")]
async fn subtypes_and_queries_are_taken_as_grpc_go_takes_them() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let client = proxy.client().await;
    let theirs = Channel::from_shared(etcd.url().to_owned()).unwrap().connect().await.unwrap();
    let range = proto::etcdserverpb::RangeRequest { key: "a".into(), ..Default::default() };
    let range = grpc_frame(&prost::Message::encode_to_vec(&range));
    for (path, content_type) in [
        ("/etcdserverpb.KV/Range", "application/grpc+json"),
        ("/etcdserverpb.KV/Range", "application/grpc;proto"),
        ("/etcdserverpb.KV/Range?x=1", "application/grpc"),
        ("/etcdserverpb.KV/Range?x=1/2", "application/grpc"),
        ("/grpc.health.v1.Health/Check?x=1", "application/grpc"),
    ] {
        let asked = async |channel| {
            let request = Request::post(path).header(CONTENT_TYPE, content_type).header("te", "trailers");
            let (_, status) = send(channel, request.body(Body::new(Full::new(range.clone()))).unwrap()).await.unwrap();
            (status.code(), status.message().to_owned())
        };
        let (ours, theirs) = (asked(&client.channel).await, asked(&theirs).await);
        assert_eq!(ours, theirs, "{path} {content_type}");
        assert_eq!(ours.0 == Code::Ok, !path.contains('?'), "{path} {content_type}");
    }
}

/// The tenant's credentials are its business with the proxy, and what the upstream would keep for ever is nobody's.
#[tokio::test(flavor = "multi_thread")]
async fn credentials_of_the_tenant_stay_here() {
    let mut headers = HeaderMap::new();
    let names =
        "token authorization hasleader traceparent tracestate grpc-timeout cookie x-remote-user client-api-version";
    for name in names.split(' ') {
        headers.insert(name, "1S".parse().unwrap());
    }
    let upstream = etcd_proxy::grpc::UpstreamHeaders::from_client(&headers).request("/a/b", Body::empty());
    let mut names: Vec<_> = upstream.headers().keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["grpc-timeout", "hasleader", "traceparent"]);
    // An invalid token would be refused by an etcd that looks at it; see also that calls with one work.
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let mut client = proxy.client().await;
    let mut request = tonic::Request::new(proto::etcdserverpb::RangeRequest { key: "a".into(), ..Default::default() });
    request.metadata_mut().insert("token", "nonsense".parse().unwrap());
    client.kv.range(request).await.unwrap();
}

/// etcd counts requests by the version that their client claims to have, and keeps every version it was ever told.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_adds_no_metrics_to_the_upstream() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let (mut direct, mut a) = (etcd.client().await, proxy.client().await);
    for (client, version) in [(&mut direct, "direct"), (&mut a, "by-proxy")] {
        let mut request =
            tonic::Request::new(proto::etcdserverpb::RangeRequest { key: "a".into(), ..Default::default() });
        request.metadata_mut().insert("client-api-version", version.parse().unwrap());
        client.kv.range(request).await.unwrap();
    }
    let metrics = etcd.metrics().await;
    assert!(metrics.contains(r#"client_api_version="direct""#), "{metrics}");
    assert!(!metrics.contains("by-proxy"), "{metrics}");
}

/// A deadline ends a stream although nothing moves on it, and also one that is held up before it opens.
#[tokio::test(flavor = "multi_thread")]
async fn deadlines_hold() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    // Not tonic's channel, which watches over the deadline itself.
    let connection = tokio::net::TcpStream::connect(proxy.address).await.unwrap();
    let (mut sender, driver) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(connection)).await.unwrap();
    tokio::spawn(driver);
    let create = Bytes::from_static(&[0, 0, 0, 0, 5, 0x0a, 3, 0x0a, 1, b'a']);
    // With and without a watch: etcd answers nothing at all to the second.
    for body in [create, Bytes::new()] {
        let request = Request::post("http://etcd/etcdserverpb.Watch/Watch")
            .header(CONTENT_TYPE, "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", "300m")
            .body(Full::new(body))
            .unwrap();
        let started = std::time::Instant::now();
        let answer = async {
            let response = sender.send_request(request).await.unwrap();
            let (parts, body) = response.into_parts();
            let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or(parts.headers);
            Status::from_header_map(&trailers).unwrap()
        };
        let status = tokio::time::timeout(crate::support::PATIENCE, answer).await.unwrap();
        assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, "context deadline exceeded"));
        assert!(started.elapsed() >= std::time::Duration::from_millis(250));
    }
}

/// HTTP status, length of the data, and gRPC status of the answer to a call by hand.
async fn answer_to(url: &str, request: http::request::Builder, body: &'static [u8]) -> (u16, usize, Code, String) {
    let address = url.strip_prefix("http://").unwrap();
    let connection = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut sender, driver) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(connection)).await.unwrap();
    tokio::spawn(driver);
    let request = request.method("POST").header(CONTENT_TYPE, "application/grpc").header("te", "trailers");
    let request = request.body(Full::new(Bytes::from_static(body))).unwrap();
    let answer = async {
        let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned().unwrap_or(parts.headers);
        let status = Status::from_header_map(&trailers).unwrap();
        (parts.status.as_u16(), body.to_bytes().len(), status.code(), status.message().to_owned())
    };
    tokio::time::timeout(crate::support::PATIENCE, answer).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_deadlines_are_refused_as_by_etcd() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let urls = [etcd.url(), format!("http://{}", proxy.address)];
    for path in ["/etcdserverpb.KV/Range", "/etcdserverpb.Watch/Watch", "/no.such/Method"] {
        for timeout in ["S", "1s", "1.5S", "+1S", "100000000S", "1H 1H"] {
            let mut answers = Vec::new();
            for url in &urls {
                let call = http::Request::builder().uri(format!("http://etcd{path}")).header("grpc-timeout", timeout);
                answers.push(answer_to(url, call, &[0, 0, 0, 0, 3, 0x0a, 1, b'a']).await);
            }
            assert_eq!(answers[0], answers[1], "{path} {timeout:?}");
            assert_eq!((answers[0].0, answers[0].2), (400, Code::Internal), "{path} {timeout:?}");
        }
    }
}

/// grpc-go has other words for a message of a stream, and for a request that a stream answers, than for a unary one.
#[tokio::test(flavor = "multi_thread")]
async fn malformed_messages_end_streams_with_etcds_words() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let urls = [etcd.url(), format!("http://{}", proxy.address)];
    for (path, words) in [
        ("etcdserverpb.KV/Range", "error unmarshalling request"),
        ("etcdserverpb.KV/RangeStream", "failed to unmarshal the received message"),
        ("etcdserverpb.Watch/Watch", "failed to unmarshal the received message"),
        ("etcdserverpb.Lease/LeaseKeepAlive", "failed to unmarshal the received message"),
        ("etcdserverpb.Maintenance/Snapshot", "failed to unmarshal the received message"),
        ("v3electionpb.Election/Observe", "failed to unmarshal the received message"),
    ] {
        let mut answers = Vec::new();
        for url in &urls {
            let call = http::Request::builder().uri(format!("http://etcd/{path}"));
            // Half a tag.
            let (http, length, code, text) = answer_to(url, call, &[0, 0, 0, 0, 1, 0x80]).await;
            // Go's protobuf writes one space or the other, so that nobody relies on its words.
            let text = text.replace('\u{a0}', " ");
            // The protobuf of etcd 3.5 and 3.6 has other words for it.
            let text = text.replace("unexpected EOF", "proto: cannot parse invalid wire-format data");
            answers.push((http, length, code, text));
        }
        // An etcd that has no RangeStream does not look at the message; nor does the proxy before it.
        let there = answers[0].2 != Code::Unimplemented;
        assert!(there == answers[0].3.contains(words), "{path}: {answers:?}");
        assert_eq!(answers[0], answers[1], "{path}");
    }
}

/// What came before the message that cannot be read is answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_question_of_reflection_ends_the_stream_with_the_reason() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let url = format!("http://{}", proxy.address);
    for version in ["v1", "v1alpha"] {
        let path = format!("http://etcd/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        // "List the services", and half a tag.
        let questions = &[0, 0, 0, 0, 2, 0x3a, 0, 0, 0, 0, 0, 1, 0x80];
        let (http, length, code, text) = answer_to(&url, http::Request::builder().uri(path), questions).await;
        let reason = "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data";
        assert_eq!((http, code, text.as_str()), (200, Code::Internal, reason), "{version}");
        assert!(length > 100, "{version}: {length}");
    }
}
