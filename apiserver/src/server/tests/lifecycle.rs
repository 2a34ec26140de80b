//! Starting and stopping in order.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::{Method, StatusCode};
use tokio::sync::oneshot;

use super::support::*;
use crate::server::{Check, chain::Manners};

const ECHO: &str = "/apis/example.test/v1/namespaces/default/echoes/x";
const WAITING: &str = "/apis/example.test/v1/namespaces/default/echoes/wait";

#[tokio::test]
async fn health_waits_for_the_hooks() {
    let (release, released) = oneshot::channel::<()>();
    let server = Running::start_with(
        Arc::new(AllowAll),
        None,
        |config| config,
        |server| {
            server.add_post_start_hook("slow", |_| async { released.await.map_err(Into::into) });
            server.add_readiness_check(Check::new("informer-sync", || async { Ok(()) }));
        },
    )
    .await;
    for path in ["/healthz", "/livez", "/readyz"] {
        let answer = server.get(path).await;
        assert_eq!(answer.code, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(answer.body.contains("[-]poststarthook/slow failed: reason withheld\n"), "{}", answer.body);
        assert_eq!(server.get(&format!("{path}?exclude=poststarthook/slow")).await.body, "ok");
    }
    assert_eq!(server.get(ECHO).await.code, StatusCode::OK, "requests are served all the same");
    release.send(()).unwrap();
    eventually("health", async || server.get("/healthz").await.code == StatusCode::OK).await;
    assert_eq!(
        server.get("/readyz?verbose").await.body,
        "[+]ping ok\n[+]log ok\n[+]poststarthook/slow ok\n[+]informer-sync ok\n[+]shutdown ok\nreadyz check passed\n"
    );
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_failing_hook_ends_the_server() {
    let server = Running::start_with(
        Arc::new(AllowAll),
        None,
        |config| config,
        |server| server.add_post_start_hook("broken", |_| async { Err("no luck".into()) }),
    )
    .await;
    let error = server.ended().await.unwrap_err().to_string();
    assert!(error.contains("\"broken\"") && error.contains("no luck"), "{error}");
}

#[tokio::test]
async fn the_end_comes_in_order() {
    let (order, mut told) = tokio::sync::mpsc::unbounded_channel();
    let server = Running::start_with(
        Arc::new(AllowAll),
        None,
        |config| config.shutdown_delay(Duration::from_millis(1500)),
        move |server| {
            server.add_pre_shutdown_hook("tell", move |context| async move {
                let version: serde_json::Value =
                    context.loopback.request(http::Request::get("/version").body(Vec::new())?).await?;
                order.send(version["gitVersion"].clone()).map_err(Into::into)
            });
        },
    )
    .await;
    let mut waiting = server.http1(None).await;
    let in_flight = tokio::spawn(async move { waiting.get(WAITING, &[]).await });
    let mut watching = server.http1(None).await;
    let watch = tokio::spawn(async move { watching.get("/apis/example.test/v1/echoes?watch=1", &[]).await });
    eventually("the requests", async || server.echo.started.load(Ordering::SeqCst) == 2).await;

    server.stop.cancel();
    eventually("unreadiness", async || server.get("/readyz").await.body.contains("[-]shutdown failed")).await;
    // Load balancers have not noticed yet: everything else is as before, new connections included.
    assert_eq!(server.get("/livez").await.code, StatusCode::OK);
    assert_eq!(server.get(ECHO).await.code, StatusCode::OK);
    assert_eq!(told.recv().await.unwrap(), "v1.2.3");
    assert!(!watch.is_finished());

    assert_eq!(watch.await.unwrap().code, StatusCode::OK, "watches end by themselves");
    eventually("a closed port", async || tokio::net::TcpStream::connect(server.address).await.is_err()).await;
    assert!(!in_flight.is_finished());
    server.echo.release.notify_one();
    assert_eq!(in_flight.await.unwrap().code, StatusCode::OK, "what was begun is answered");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn late_requests_can_be_told_to_try_elsewhere() {
    let manners = Manners { send_retry_after: true, ..Manners::default() };
    let server = Running::start_with(Arc::new(AllowAll), None, |c| c.manners(manners), |_| {}).await;
    let mut waiting = server.http1(None).await;
    let in_flight = tokio::spawn(async move { waiting.get(WAITING, &[]).await });
    eventually("the request", async || server.echo.started.load(Ordering::SeqCst) == 1).await;
    server.stop.cancel();
    eventually("refusals", async || server.get(ECHO).await.code == StatusCode::TOO_MANY_REQUESTS).await;
    let answer = server.get(ECHO).await;
    assert_eq!(
        (&answer.headers["retry-after"], &answer.headers["connection"]),
        (&"5".parse().unwrap(), &"close".parse().unwrap())
    );
    assert_eq!(answer.body, "The apiserver is shutting down, please try again later.\n");
    for path in ["/readyz", "/livez/ping", "/healthz", "/metrics"] {
        assert_ne!(server.get(path).await.code, StatusCode::TOO_MANY_REQUESTS, "{path}");
    }
    let agent = ("user-agent", "kube-apiserver/v1.37.2");
    assert_eq!(server.http1(None).await.get(ECHO, &[agent]).await.code, StatusCode::OK);
    // HTTP/2 knows no `Connection: close`, and is closed all the same. The client is somebody, whose connections are kept.
    let clients = Authority::new("client-ca");
    server.trust.set_client_ca(clients.bundle());
    let jane = clients.sign(&Leaf::named("jane"));
    let (mut sender, connection) = server.http2_with(Some(&jane), 65_535).await;
    let answer = sender.send_request(request(Method::GET, ECHO, &[])).await.unwrap();
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(!answer.headers().contains_key("connection"));
    drop(answer);
    tokio::time::timeout(Duration::from_secs(20), connection)
        .await
        .expect("the connection stays open")
        .unwrap()
        .unwrap();
    server.echo.release.notify_one();
    assert_eq!(in_flight.await.unwrap().code, StatusCode::OK);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn what_outlives_its_request_is_waited_for() {
    let (release, released) = oneshot::channel::<()>();
    let (done, mut is_done) = oneshot::channel();
    let mut seen = None;
    let server = Running::start_with(
        Arc::new(AllowAll),
        None,
        |config| {
            config.tasks().spawn(async move {
                released.await.unwrap();
                done.send(()).unwrap();
            });
            seen = Some((config.tasks().clone(), config.lifecycle().drained.clone()));
            config
        },
        |_| {},
    )
    .await;
    let (tasks, drained) = seen.unwrap();
    let stopping = tokio::spawn(server.stop());
    // Only this task is left. Who did not wait for it would have drained the server by the same step.
    eventually("the end of all requests", async || tasks.is_closed()).await;
    assert!(!drained.is_cancelled() && !stopping.is_finished());
    release.send(()).unwrap();
    stopping.await.unwrap().unwrap();
    is_done.try_recv().unwrap();
}

#[tokio::test]
async fn probes_do_not_hold_the_end_up() {
    let manners = Manners { send_retry_after: true, request_timeout: Duration::from_secs(20), ..Manners::default() };
    let (check, mut asked) = (Arc::new(tokio::sync::Notify::new()), false);
    let pending = check.clone();
    let server = Running::start_with(
        Arc::new(AllowAll),
        None,
        |c| c.manners(manners),
        |server| {
            server.add_readiness_check(Check::new("slow", move || {
                let pending = pending.clone();
                async move {
                    pending.notify_one();
                    std::future::pending().await
                }
            }));
        },
    )
    .await;
    let mut prober = server.http1(None).await;
    let probe = tokio::spawn(async move { prober.0.send_request(request(Method::GET, "/readyz/slow", &[])).await });
    while !asked {
        asked = tokio::time::timeout(Duration::from_secs(20), check.notified()).await.is_ok();
    }
    let begin = std::time::Instant::now();
    server.stop().await.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    assert!(probe.await.unwrap().is_err());
}

#[tokio::test]
async fn a_request_that_never_ends_does_not_hold_the_server() {
    let manners = Manners { request_timeout: Duration::from_millis(300), ..Manners::default() };
    let server = Running::start_with(Arc::new(AllowAll), None, |c| c.manners(manners), |_| {}).await;
    let mut waiting = server.http1(None).await;
    let in_flight = tokio::spawn(async move { waiting.get(WAITING, &[]).await });
    eventually("the request", async || server.echo.started.load(Ordering::SeqCst) == 1).await;
    server.stop().await.unwrap();
    assert_eq!(in_flight.await.unwrap().code, StatusCode::GATEWAY_TIMEOUT);
}
