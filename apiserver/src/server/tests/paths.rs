//! Where requests go, and where not.

use http::{Method, StatusCode};
use serde_json::json;

use super::support::*;

#[tokio::test]
async fn resources_are_served_by_verb_and_place() {
    let server = Running::start().await;
    let all = "/apis/example.test/v1/echoes";
    let space = "/apis/example.test/v1/namespaces/default/echoes";
    let one = "/apis/example.test/v1/namespaces/default/echoes/a";
    let mut client = server.http1(None).await;
    for (method, path, expected) in [
        (Method::GET, all, Ok("list")),
        (Method::GET, space, Ok("list")),
        (Method::GET, one, Ok("get")),
        (Method::POST, space, Ok("create")),
        (Method::PUT, one, Ok("update")),
        (Method::PATCH, one, Ok("patch")),
        (Method::DELETE, one, Ok("delete")),
        (Method::DELETE, space, Ok("deletecollection")),
        (Method::GET, "/apis/example.test/v1/namespaces/default/echoes/a/", Ok("get")),
        (Method::GET, "/apis/example.test/v1/namespaces/default%2Fechoes", Ok("list")),
        // Writes across all namespaces, and methods that no resource has.
        (Method::POST, all, Err(405)),
        (Method::DELETE, all, Err(405)),
        (Method::PUT, space, Err(405)),
        (Method::POST, one, Err(405)),
        (Method::OPTIONS, space, Err(405)),
        (Method::POST, "/apis/example.test/v1/watch/echoes", Err(405)),
        // Nothing is there.
        (Method::GET, "/apis/example.test/v1/echoes/a", Err(404)),
        (Method::GET, "/apis/example.test/v1/others", Err(404)),
        (Method::GET, "/apis/example.test/v2/echoes", Err(404)),
        (Method::GET, "/apis/example.test/v1/namespaces/default/echoes/a/status", Err(404)),
        (Method::GET, "/apis/example.test/v1/proxy/echoes/a", Err(404)),
        (Method::GET, "/apis/example.test/v2", Err(404)),
    ] {
        let answer = client.send(method.clone(), path, &[]).await;
        match expected {
            Ok(verb) => assert_eq!(answer.json()["verb"], verb, "{method} {path}"),
            Err(code) => {
                let status = answer.json();
                assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(code)), "{method} {path}");
            }
        }
    }
    // HEAD has no body to say it in.
    assert_eq!(client.send(Method::HEAD, one, &[]).await.code, StatusCode::METHOD_NOT_ALLOWED);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn odd_paths_lead_nowhere() {
    let server = Running::start().await;
    let mut client = server.http1(None).await;
    for path in [
        "/nosuch",
        "/api",
        "/apis/other.test/v1/echoes",
        "//apis/example.test/v1/echoes",
        "/apis//example.test/v1/echoes",
        "/apis/example.test/v1//echoes",
        "/apis/example.test/v1/namespaces//echoes",
        "/healthz/nosuch",
        "/healthz/../apis",
        "/HEALTHZ",
    ] {
        let answer = client.get(path, &[]).await;
        assert_eq!(answer.code, StatusCode::NOT_FOUND, "{path}: {}", answer.body);
        assert!(answer.json()["paths"].as_array().unwrap().contains(&json!("/apis")), "{path}");
    }
    for path in ["/apis/example.test/v1/namespaces/%zz/echoes", "/apis/example.test/v1/namespaces/%ff/echoes"] {
        assert_eq!(client.get(path, &[]).await.code, StatusCode::BAD_REQUEST, "{path}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn documents_about_the_server_are_served() {
    let server = Running::start().await;
    let mut client = server.http1(None).await;
    let index = client.get("/", &[]).await;
    assert_eq!(index.code, StatusCode::OK);
    let paths = index.json()["paths"].clone();
    for path in [
        "/apis",
        "/apis/example.test",
        "/apis/example.test/v1",
        "/healthz",
        "/livez/ping",
        "/readyz/shutdown",
        "/metrics",
        "/openapi/v2",
        "/version",
    ] {
        assert!(paths.as_array().unwrap().contains(&json!(path)), "{path}: {paths}");
        assert_eq!(client.get(path, &[]).await.code, StatusCode::OK, "{path}");
    }
    assert_eq!(client.get("/version", &[]).await.json()["gitVersion"], "v1.2.3");
    assert_eq!(client.get("/apis", &[]).await.json()["groups"][0]["name"], "example.test");
    client.get("/apis/example.test/v1/echoes", &[]).await;
    let metrics = client.get("/metrics", &[]).await;
    assert_eq!(metrics.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let line = r#"apiserver_request_total{verb="LIST",dry_run="",group="example.test",version="v1",resource="echoes",subresource="",scope="cluster",component="apiserver",code="200"} 1"#;
    assert!(metrics.body.lines().any(|l| l == line), "{}", metrics.body);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn answers_carry_the_usual_headers() {
    let server = Running::start().await;
    let mut client = server.http1(None).await;
    let answer = client.get("/apis/example.test/v1/namespaces/default/echoes/warn", &[("audit-id", "mine")]).await;
    assert_eq!(answer.headers["audit-id"], "mine");
    assert_eq!(answer.headers["cache-control"], "no-cache, private");
    assert_eq!(answer.headers["warning"], r#"299 - "mind the \"gap\"""#);
    let (a, b) = (client.get("/nosuch", &[]).await, client.get("/nosuch", &[]).await);
    assert_ne!(a.headers["audit-id"], b.headers["audit-id"]);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn requests_through_the_loopback_client_are_the_servers_own() {
    let mut loopback = None;
    let forbid = std::sync::Arc::new(super::limits::Refuse);
    let server =
        Running::start_with(forbid, None, |config| config, |server| loopback = Some(server.loopback().client())).await;
    let client = loopback.unwrap();
    let request = http::Request::get("/apis/example.test/v1/namespaces/default/echoes/x").body(Vec::new()).unwrap();
    let seen: serde_json::Value = client.request(request).await.unwrap();
    assert_eq!(seen["user"], "system:apiserver");
    assert_eq!(seen["groups"], json!(["system:authenticated", "system:masters"]));
    assert_eq!(server.get("/apis/example.test/v1/namespaces/default/echoes/x").await.code, StatusCode::FORBIDDEN);
    server.stop().await.unwrap();
}
