//! The listeners on real sockets, by real clients. What needs an API server is in `tests/`.

use std::{io, pin::pin};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::ConfigMap};
use kube::core::admission::AdmissionRequest;
use prometheus_client::{encoding::text::encode, registry::Registry};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{material::Material, *};

const NAME: &str = "proxy-controller-webhook.control.svc";

/// Both listeners, with a certificate that a test can change.
struct Server {
    probes: SocketAddr,
    webhook: SocketAddr,
    tls: Arc<certificate::ServingTls>,
    metrics: WebhookMetrics,
    readiness: Readiness,
    shutdown: Shutdown,
    connections: TaskTracker,
}

fn material() -> Material {
    Material::create(NAME, &[], Timestamp::now()).unwrap()
}

/// Decides by the data of a ConfigMap.
async fn decide(request: AdmissionRequest<ConfigMap>) -> Review {
    let data = request.object.and_then(|object| object.data).unwrap_or_default();
    let denial = |field: &str| Denial {
        field: field.to_owned(),
        reason: "Because",
        cause: "FieldValueForbidden",
        message: format!("Forbidden: {field}"),
    };
    match data.get("say").map(String::as_str) {
        Some("no") => Review::Denied(vec![denial("data.a")]),
        Some("no, no") => Review::Denied(vec![denial("data.a"), denial("data.b")]),
        Some("well") => Review::Allowed { warnings: vec!["mind the gap".to_owned()] },
        Some("later") => Review::Unable("the caches are empty".to_owned()),
        Some("slowly") => {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Review::Allowed { warnings: Vec::new() }
        }
        Some("never") => std::future::pending().await,
        _ => Review::Allowed { warnings: Vec::new() },
    }
}

async fn free(tls: bool) -> (Listener, SocketAddr) {
    // The port is free a moment later, most likely: etcd_proxy's listeners do not tell theirs.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    (bind(address, tls).await.unwrap(), address)
}

async fn serve(material: &Material) -> Server {
    let (shutdown, listeners, connections) = (Shutdown::default(), TaskTracker::new(), TaskTracker::new());
    let metrics = WebhookMetrics::default();
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let serving = Serving::new(shutdown.clone(), listeners, connections.clone(), ConnectionMetrics::default());
    let (readiness, tls) = (Readiness::default(), Arc::new(certificate::ServingTls::of_test(material)));
    let ((probes, probes_address), (webhook, webhook_address)) = (free(false).await, free(true).await);
    let answers = Probes::new(readiness.clone(), Arc::new(registry), shutdown.clone());
    serving.server().serve(probes, None::<Arc<ServerTls>>, answers);
    serving.server().serve(webhook, Some(tls.clone()), Webhook::new(decide, metrics.clone()));
    Server { probes: probes_address, webhook: webhook_address, tls, metrics, readiness, shutdown, connections }
}

fn trusting(material: &Material, alpn: &str) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(material.bundle().as_bytes()).map(Result::unwrap));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    config
}

type Stream = tokio_rustls::client::TlsStream<TcpStream>;

async fn connect(server: &Server, trusted: &Material, alpn: &str) -> io::Result<Stream> {
    let stream = TcpStream::connect(server.webhook).await?;
    let name = ServerName::try_from(NAME).unwrap();
    TlsConnector::from(Arc::new(trusting(trusted, alpn))).connect(name, stream).await
}

struct Answer {
    status: StatusCode,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }
}

async fn send(sender: &mut hyper::client::conn::http2::SendRequest<Full<Bytes>>, request: Request<Vec<u8>>) -> Answer {
    let request = request.map(|body| Full::from(Bytes::from(body)));
    let (head, body) = sender.send_request(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer { status: head.status, text: String::from_utf8(body.to_vec()).unwrap() }
}

async fn http2(server: &Server, trusted: &Material) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
    let stream = connect(server, trusted, "h2").await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    sender
}

fn post(body: impl Into<Vec<u8>>) -> Request<Vec<u8>> {
    let uri = format!("https://{NAME}/validate-etcdproxy?timeout=10s");
    let request = Request::builder().method(Method::POST).uri(uri).header("content-type", "application/json");
    request.body(body.into()).unwrap()
}

fn review(say: &str) -> Value {
    json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "7c5e", "name": "a", "namespace": "b", "operation": "CREATE", "userInfo": { "username": "alice" },
            "kind": { "group": "x.example", "version": "v1", "kind": "Thing" },
            "resource": { "group": "x.example", "version": "v1", "resource": "things" },
            "object": { "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "data": { "say": say } },
            "oldObject": null, "dryRun": false, "options": null,
        },
    })
}

async fn reviewed(server: &Server, trusted: &Material, say: &str) -> Answer {
    send(&mut http2(server, trusted).await, post(review(say).to_string())).await
}

#[tokio::test]
async fn reviews_are_answered() {
    let material = material();
    let server = serve(&material).await;
    let allowed = reviewed(&server, &material, "yes").await;
    assert_eq!(
        allowed.json(),
        json!({ "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
            "response": { "uid": "7c5e", "allowed": true, "status": {} } })
    );
    let warned = reviewed(&server, &material, "well").await.json();
    assert_eq!(warned.pointer("/response/warnings"), Some(&json!(["mind the gap"])));
    let denied = reviewed(&server, &material, "no").await.json();
    let status = denied.pointer("/response/status").unwrap();
    assert_eq!(denied.pointer("/response/allowed"), Some(&json!(false)));
    assert_eq!(
        *status,
        json!({ "status": "Failure", "code": 422, "reason": "Invalid",
            "message": "Thing.x.example \"a\" is invalid: data.a: Forbidden: data.a",
            "details": { "name": "a", "group": "x.example", "kind": "Thing", "causes": [
                { "reason": "FieldValueForbidden", "field": "data.a", "message": "Forbidden: data.a" }] } })
    );
    let denied = reviewed(&server, &material, "no, no").await.json();
    let message = denied.pointer("/response/status/message").and_then(Value::as_str).unwrap();
    assert!(message.ends_with("is invalid: [data.a: Forbidden: data.a, data.b: Forbidden: data.b]"), "{message}");
    let unable = reviewed(&server, &material, "later").await;
    assert_eq!(unable.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(unable.text.contains("the caches are empty"), "{}", unable.text);
    let mut registry = Registry::default();
    server.metrics.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    assert!(text.contains("webhook_decisions_total{decision=\"denied\",reason=\"Because\"} 2"), "{text}");
    assert!(text.contains("webhook_requests_refused_total{code=\"503\"} 1"), "{text}");
}

#[tokio::test]
async fn what_is_no_review_is_refused_and_harms_nothing() {
    let material = material();
    let server = serve(&material).await;
    let mut sender = http2(&server, &material).await;
    let without = |path: &str| {
        let mut review = review("yes");
        let (parent, key) = path.rsplit_once('/').unwrap();
        review.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(key);
        review.to_string().into_bytes()
    };
    let mut beta = review("yes");
    beta["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let mut wrong = review("yes");
    wrong["request"]["object"]["data"] = json!([1]);
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    for body in [
        Vec::new(),
        b"{".to_vec(),
        b"null".to_vec(),
        b"[]".to_vec(),
        b"\xff\xfe".to_vec(),
        deep,
        without("/request"),
        without("/request/uid"),
        without("/kind"),
        beta.to_string().into_bytes(),
        wrong.to_string().into_bytes(),
    ] {
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        let answer = send(&mut sender, post(body)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{shown}: {}", answer.text);
    }
    let large = post(vec![b' '; (3 << 20) + 1]);
    assert_eq!(send(&mut sender, large).await.status, StatusCode::PAYLOAD_TOO_LARGE);
    let mut get = post("");
    *get.method_mut() = Method::GET;
    assert_eq!(send(&mut sender, get).await.status, StatusCode::METHOD_NOT_ALLOWED);
    let mut elsewhere = post(review("yes").to_string());
    *elsewhere.uri_mut() = format!("https://{NAME}/validate").parse().unwrap();
    assert_eq!(send(&mut sender, elsewhere).await.status, StatusCode::NOT_FOUND);
    let mut yaml = post(review("yes").to_string());
    yaml.headers_mut().insert("content-type", "application/yaml".parse().unwrap());
    assert_eq!(send(&mut sender, yaml).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    // The same connection, as good as before.
    assert_eq!(send(&mut sender, post(review("yes").to_string())).await.status, StatusCode::OK);
}

#[tokio::test]
async fn http1_is_spoken_too() {
    let material = material();
    let server = serve(&material).await;
    let mut stream = connect(&server, &material, "http/1.1").await.unwrap();
    let body = review("no").to_string();
    let head = format!(
        "POST /validate-etcdproxy HTTP/1.1\r\nHost: {NAME}\r\nContent-Type: application/json; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\"allowed\":false"), "{answer}");
}

#[tokio::test]
async fn a_new_certificate_is_shown_to_new_connections_and_keeps_the_old_ones() {
    let (old, new) = (material(), material());
    let server = serve(&old).await;
    let mut open = http2(&server, &old).await;
    assert!(connect(&server, &new, "h2").await.is_err());
    server.tls.change_for_test(&new);
    assert!(connect(&server, &old, "h2").await.is_err());
    assert_eq!(reviewed(&server, &new, "yes").await.status, StatusCode::OK);
    assert_eq!(send(&mut open, post(review("yes").to_string())).await.status, StatusCode::OK);
}

#[tokio::test]
async fn reviews_under_way_end_in_order() {
    let material = material();
    let server = serve(&material).await;
    let mut sender = http2(&server, &material).await;
    let answer = tokio::spawn(async move { send(&mut sender, post(review("slowly").to_string())).await });
    let begun = || server.connections.len() == 1;
    timeout(Duration::from_secs(5), async {
        while !begun() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    // Sent, but not answered.
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.shutdown.closing().cancel();
    assert_eq!(answer.await.unwrap().status, StatusCode::OK);
    server.connections.close();
    timeout(Duration::from_secs(5), server.connections.wait()).await.unwrap();
    assert!(connect(&server, &material, "h2").await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn whoever_holds_on_to_connections_keeps_no_api_server_out() {
    let material = material();
    let server = serve(&material).await;
    let mut api_server = http2(&server, &material).await;
    assert_eq!(send(&mut api_server, post(review("yes").to_string())).await.status, StatusCode::OK);
    let mut held = Vec::new();
    for _ in 0..3 * CONNECTIONS_PER_CLIENT {
        held.push(connect(&server, &material, "h2").await.unwrap());
    }
    // What was of use is kept, what is new is served, and what was held on to is closed.
    assert_eq!(send(&mut api_server, post(review("yes").to_string())).await.status, StatusCode::OK);
    let mut another = http2(&server, &material).await;
    assert_eq!(send(&mut another, post(review("yes").to_string())).await.status, StatusCode::OK);
    let mut closed = pin!(async {
        let mut rest = Vec::new();
        _ = held[0].read_to_end(&mut rest).await;
    });
    timeout(Duration::from_secs(5), closed.as_mut()).await.unwrap();
}

#[tokio::test]
async fn probes_say_what_is_missing() {
    let server = serve(&material()).await;
    let caches = server.readiness.wait_for("caches");
    let get = async |path: &str| {
        let stream = TcpStream::connect(server.probes).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::builder().uri(path).header("host", "x").body(Full::<Bytes>::default()).unwrap();
        let (head, body) = sender.send_request(request).await.unwrap().into_parts();
        let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        (head.status.as_u16(), text)
    };
    assert_eq!(get("/livez").await, (200, "ok\n".to_owned()));
    assert_eq!(get("/readyz").await, (503, "[-]caches failed\n[+]shutdown ok\n".to_owned()));
    caches.done();
    assert_eq!(get("/readyz").await, (200, "ok\n".to_owned()));
    assert_eq!(get("/readyz?verbose").await, (200, "[+]caches ok\n[+]shutdown ok\n".to_owned()));
    server.shutdown.leaving().cancel();
    assert_eq!(get("/readyz").await, (503, "[+]caches ok\n[-]shutdown failed\n".to_owned()));
    assert_eq!(get("/livez").await.0, 200);
    let (status, metrics) = get("/metrics").await;
    assert!(status == 200 && metrics.ends_with("# EOF\n"), "{metrics}");
    assert_eq!(get("/").await.0, 404);
}

#[test]
fn only_what_is_wrong_is_patched_and_only_the_bundle() {
    let configuration = |bundles: &[Option<&str>]| {
        let webhooks: Vec<_> = bundles
            .iter()
            .enumerate()
            .map(|(index, bundle)| {
                let bundle = bundle.map(|bundle| ByteString(bundle.as_bytes().to_vec()));
                json!({ "name": format!("{index}.example"), "clientConfig": { "caBundle": bundle },
                    "admissionReviewVersions": ["v1"], "sideEffects": "None" })
            })
            .collect();
        let object = json!({ "metadata": { "name": "proxy-controller", "uid": "1" }, "webhooks": webhooks });
        serde_json::from_value(object).unwrap()
    };
    assert_eq!(certificate::patch(&configuration(&[]), "new"), None);
    assert_eq!(certificate::patch(&configuration(&[Some("new"), Some("new")]), "new"), None);
    for wrong in [None, Some("old"), Some("")] {
        let patch = certificate::patch(&configuration(&[Some("new"), wrong]), "new").unwrap();
        let bundle = json!({ "caBundle": ByteString(b"new".to_vec()) });
        assert_eq!(
            patch,
            json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
                "metadata": { "name": "proxy-controller", "uid": "1" },
                "webhooks": [{ "name": "0.example", "clientConfig": bundle }, { "name": "1.example", "clientConfig": bundle }] })
        );
    }
}
