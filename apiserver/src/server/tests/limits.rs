//! Refusals, limits, and what must not spread.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use http::{Method, StatusCode};
use serde_json::json;

use super::support::*;
use crate::{
    authorization::{
        AlwaysAllowPaths, AuthorizationAttributes, Authorizer, Decision, PrivilegedGroups, SYSTEM_MASTERS, Union,
        delegated::DelegatedAuthorizer,
    },
    server::{accept::Bounds, chain::Manners, inflight::InFlight},
};

const ECHO: &str = "/apis/example.test/v1/namespaces/default/echoes/x";

pub(super) struct Refuse;

#[async_trait]
impl Authorizer for Refuse {
    async fn authorize(&self, _: &AuthorizationAttributes<'_>) -> Decision {
        Decision::NoOpinion { reason: "no rule".to_owned() }
    }
}

fn delegating(cluster: &Cluster, ttl: Duration) -> Arc<dyn Authorizer> {
    Arc::new(Union::new(vec![
        Arc::new(PrivilegedGroups::new([SYSTEM_MASTERS])),
        Arc::new(AlwaysAllowPaths::new(&["/healthz".into(), "/livez".into(), "/readyz".into()]).unwrap()),
        Arc::new(DelegatedAuthorizer::new(cluster.client(), Duration::from_secs(5), ttl, ttl)),
    ]))
}

#[tokio::test]
async fn refusals_say_what_was_refused() {
    let server = Running::start_with(Arc::new(Refuse), None, |config| config, |_| {}).await;
    let status = server.get("/apis/example.test/v1/namespaces/default/echoes").await.json();
    assert_eq!(
        status["message"],
        r#"echoes.example.test is forbidden: User "system:anonymous" cannot list resource "echoes" in API group "example.test" in the namespace "default": no rule"#
    );
    assert_eq!((&status["code"], &status["reason"]), (&json!(403), &json!("Forbidden")));
    // Whether there is something at a path is not told to those who may not know.
    for path in ["/metrics", "/nosuch", "/apis/example.test/v1/others"] {
        assert_eq!(server.get(path).await.code, StatusCode::FORBIDDEN, "{path}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn with_the_authorizer_down_only_what_is_certain_is_allowed() {
    let cluster = Cluster::start(StatusCode::OK, json!({"allowed": true})).await;
    let authorizer = delegating(&cluster, Duration::from_secs(600));
    let server = Running::start_with(authorizer, None, |config| config, |_| {}).await;
    let clients = Authority::new("client-ca");
    server.trust.set_client_ca(clients.bundle());
    let mut jane = server.http1(Some(&clients.sign(&Leaf::named("jane")))).await;
    let admin = Leaf { organization: Some(SYSTEM_MASTERS), ..Leaf::named("admin") };
    let mut admin = server.http1(Some(&clients.sign(&admin))).await;
    for _ in 0..3 {
        assert_eq!(jane.get(ECHO, &[]).await.code, StatusCode::OK);
    }
    assert_eq!(cluster.count(), 1, "permissions are remembered");
    let spec = cluster.last.lock().clone();
    assert_eq!((&spec["user"], &spec["groups"]), (&json!("jane"), &json!(["system:authenticated"])));
    assert_eq!(
        spec["resourceAttributes"],
        json!({"namespace": "default", "verb": "get", "group": "example.test", "version": "v1", "resource": "echoes", "name": "x"})
    );
    jane.get("/apis/example.test/v1/echoes?fieldSelector=metadata.name!%3Dx&labelSelector=a%20in%20(b,c),!d", &[])
        .await;
    let spec = cluster.last.lock()["resourceAttributes"].clone();
    assert_eq!(
        spec["fieldSelector"]["requirements"],
        json!([{"key": "metadata.name", "operator": "NotIn", "values": ["x"]}])
    );
    assert_eq!(
        spec["labelSelector"]["requirements"],
        json!([{"key": "a", "operator": "In", "values": ["b", "c"]}, {"key": "d", "operator": "DoesNotExist"}])
    );

    *cluster.answer.lock() = (StatusCode::FORBIDDEN, json!({}));
    assert_eq!(jane.get(ECHO, &[]).await.code, StatusCode::OK, "what was allowed is still allowed for a while");
    assert_eq!(admin.get("/apis/example.test/v1/namespaces/default/echoes/y", &[]).await.code, StatusCode::OK);
    assert_eq!(jane.get("/healthz", &[]).await.code, StatusCode::OK);
    for path in ["/apis/example.test/v1/namespaces/default/echoes/y", "/metrics", "/healthz/ping"] {
        let status = jane.get(path, &[]).await.json();
        assert_eq!((&status["code"], &status["reason"]), (&json!(500), &json!("InternalError")), "{path}");
    }
    let before = cluster.count();
    // Nothing of that is remembered.
    *cluster.answer.lock() = (StatusCode::OK, json!({"allowed": true}));
    assert_eq!(jane.get("/metrics", &[]).await.code, StatusCode::OK);
    assert_eq!(cluster.count(), before + 1);

    *cluster.answer.lock() = (StatusCode::OK, json!({"allowed": false, "reason": "no"}));
    let other = "/apis/example.test/v1/namespaces/default/echoes/z";
    for _ in 0..2 {
        assert_eq!(jane.get(other, &[]).await.code, StatusCode::FORBIDDEN);
    }
    assert_eq!(cluster.count(), before + 2, "refusals are remembered");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn the_question_has_the_selectors() {
    let cluster = Cluster::start(StatusCode::OK, json!({"allowed": true})).await;
    let authorizer = delegating(&cluster, Duration::ZERO);
    let server = Running::start_with(authorizer, None, |config| config, |_| {}).await;
    let echoes = "/apis/example.test/v1/namespaces/default/echoes";
    for (labels, requirements) in [
        ("size%3Dbig", json!([{ "key": "size", "operator": "In", "values": ["big"] }])),
        ("size!%3Dbig", json!([{ "key": "size", "operator": "NotIn", "values": ["big"] }])),
        (
            "size%20in%20(b,a),!old,tier",
            json!([
                { "key": "old", "operator": "DoesNotExist" },
                { "key": "size", "operator": "In", "values": ["a", "b"] },
                { "key": "tier", "operator": "Exists" },
            ]),
        ),
        ("size%3E3", json!(null)),
    ] {
        server.get(&format!("{echoes}?labelSelector={labels}&fieldSelector=metadata.name%3Dx")).await;
        let asked = cluster.last.lock().clone();
        let asked = &asked["resourceAttributes"];
        assert_eq!(asked["labelSelector"]["requirements"], requirements, "{labels}: {asked}");
        let name = json!([{ "key": "metadata.name", "operator": "In", "values": ["x"] }]);
        assert_eq!(asked["fieldSelector"]["requirements"], name);
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn the_same_question_is_asked_once_at_a_time() {
    let cluster = Cluster::start(StatusCode::OK, json!({"allowed": true})).await;
    let server = Running::start_with(delegating(&cluster, Duration::from_secs(600)), None, |c| c, |_| {}).await;
    let mut clients = Vec::new();
    for _ in 0..10 {
        clients.push(server.http1(None).await);
    }
    let answers = futures::future::join_all(clients.iter_mut().map(|client| client.get(ECHO, &[]))).await;
    assert!(answers.iter().all(|a| a.code == StatusCode::OK));
    assert_eq!(cluster.count(), 1);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn too_many_requests_are_told_so_in_plain_text() {
    let manners = Manners { in_flight: InFlight::new(1, 1), ..Manners::default() };
    let server = Running::start_with(Arc::new(AllowAll), None, |c| c.manners(manners), |_| {}).await;
    let waiting = "/apis/example.test/v1/namespaces/default/echoes/wait";
    let mut first = server.http1(None).await;
    let blocked = tokio::spawn(async move { first.get(waiting, &[]).await });
    eventually("the first request", async || server.echo.started.load(Ordering::SeqCst) == 1).await;

    let answer = server.get(ECHO).await;
    assert_eq!(answer.code, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        (answer.body.as_str(), &answer.headers["retry-after"]),
        ("Too many requests, please try again later.\n", &http::HeaderValue::from_static("1"))
    );
    // Writes have a limit of their own, watches have none, and administrators always get through.
    let mut client = server.http1(None).await;
    assert_eq!(client.send(Method::DELETE, ECHO, &[]).await.code, StatusCode::OK);
    let mut watcher = server.http1(None).await;
    let watch = tokio::spawn(async move { watcher.get("/apis/example.test/v1/echoes?watch=1", &[]).await });
    eventually("the watch", async || server.echo.started.load(Ordering::SeqCst) == 3).await;
    let clients = Authority::new("client-ca");
    server.trust.set_client_ca(clients.bundle());
    let admin = clients.sign(&Leaf { organization: Some(SYSTEM_MASTERS), ..Leaf::named("admin") });
    assert_eq!(server.http1(Some(&admin)).await.get(ECHO, &[]).await.code, StatusCode::OK);

    server.echo.release.notify_one();
    assert_eq!(blocked.await.unwrap().code, StatusCode::OK);
    assert_eq!(server.get(ECHO).await.code, StatusCode::OK);
    server.stop().await.unwrap();
    assert_eq!(watch.await.unwrap().code, StatusCode::OK);
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_given_up() {
    let server = Running::start().await;
    let waiting = "/apis/example.test/v1/namespaces/default/echoes/wait";
    let status = server.get(&format!("{waiting}?timeout=50ms")).await.json();
    assert_eq!((&status["code"], &status["reason"]), (&json!(504), &json!("Timeout")));
    assert_eq!(server.get(&format!("{ECHO}?timeout=-1s")).await.code, StatusCode::OK);
    let status = server.get(&format!("{ECHO}?timeout=soon")).await.json();
    assert_eq!(status["code"], 400);
    assert!(
        status["message"].as_str().unwrap().starts_with("invalid timeout specified in the request URL"),
        "{status}"
    );
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_panic_stays_in_its_request() {
    let server = Running::start().await;
    let mut client = server.http1(None).await;
    for method in [Method::GET, Method::DELETE] {
        let answer = client.send(method, "/apis/example.test/v1/namespaces/default/echoes/panic", &[]).await;
        assert_eq!((answer.code, answer.json()["kind"].clone()), (StatusCode::INTERNAL_SERVER_ERROR, json!("Status")));
        assert!(!answer.body.contains("as was asked for"), "the panic's text is not for clients");
    }
    assert_eq!(client.get(ECHO, &[]).await.code, StatusCode::OK);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_write_goes_on_without_its_client() {
    let server = Running::start().await;
    let mut client = server.http1(None).await;
    let waiting = "/apis/example.test/v1/namespaces/default/echoes/wait";
    let request = client.0.send_request(request(Method::DELETE, waiting, &[]));
    assert!(tokio::time::timeout(Duration::from_millis(500), request).await.is_err());
    eventually("the request", async || server.echo.started.load(Ordering::SeqCst) == 1).await;
    drop(client);
    // The server must have noticed: only the connection that asks is left.
    let alone = async || server.get("/metrics").await.body.contains("apiserver_open_connections 1\n");
    eventually("the end of the connection", alone).await;
    server.echo.release.notify_one();
    eventually("the end of the write", async || server.echo.finished.load(Ordering::SeqCst) == 1).await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn broken_handshakes_end_nothing() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let server = Running::start().await;
    for _ in 0..20 {
        let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    }
    let metrics = server.get("/metrics").await;
    assert!(metrics.body.contains("apiserver_tls_handshake_errors_total 20"), "{}", metrics.body);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn http2_carries_many_streams() {
    let clients = Authority::new("client-ca");
    let server = Running::start().await;
    server.trust.set_client_ca(clients.bundle());
    let jane = clients.sign(&Leaf::named("jane"));
    let stream = server.tls(Some(&jane), b"h2").await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
        .handshake::<_, http_body_util::Full<bytes::Bytes>>(hyper_util::rt::TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    // The settings frame must be here before the client may open more than a hundred streams.
    assert_eq!(sender.send_request(request(Method::GET, ECHO, &[])).await.unwrap().status(), StatusCode::OK);
    let watches: Vec<_> = (0..1000)
        .map(|_| sender.send_request(request(Method::GET, "/apis/example.test/v1/echoes?watch=1", &[])))
        .map(tokio::spawn)
        .collect();
    eventually("a thousand watches", async || server.echo.started.load(Ordering::SeqCst) == 1001).await;
    server.stop().await.unwrap();
    for watch in watches {
        assert_eq!(watch.await.unwrap().unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn connections_are_bounded_and_the_rest_waits() {
    let server = Running::start_with(
        Arc::new(AllowAll),
        None,
        |config| config.bounds(Bounds { connections: 2, ..Bounds::default() }),
        |_| {},
    )
    .await;
    let (mut first, _second) = (server.http1(None).await, server.http1(None).await);
    assert_eq!(first.get(ECHO, &[]).await.code, StatusCode::OK);
    // The kernel takes the third connection, the server does not.
    let third = server.tls(None, b"http/1.1");
    assert!(tokio::time::timeout(Duration::from_millis(500), third).await.is_err());
    drop(first);
    assert_eq!(server.get(ECHO).await.code, StatusCode::OK);
    server.stop().await.unwrap();
}
