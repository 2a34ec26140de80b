//! Nobody gets in who should not.

use rcgen::ExtendedKeyUsagePurpose;

use super::support::*;
use crate::authentication::TokenReviewer;
use http::StatusCode;
use serde_json::json;
use std::{sync::Arc, time::Duration};

const ECHO: &str = "/apis/example.test/v1/namespaces/default/echoes/x";
const FORGED: [(&str, &str); 4] = [
    ("x-remote-user", "admin"),
    ("x-remote-group", "system:masters"),
    ("x-remote-uid", "1"),
    ("x-remote-extra-scopes", "all"),
];

#[tokio::test]
async fn headers_count_only_with_a_front_proxy_certificate() {
    let server = Running::start().await;
    let (proxies, clients, others) =
        (Authority::new("front-proxy-ca"), Authority::new("client-ca"), Authority::new("x"));
    server.trust.set_client_ca(clients.bundle());
    server.trust.set_request_header(front_proxy(&proxies, &["aggregator"]));

    let believed = proxies.sign(&Leaf::named("aggregator"));
    let answer = server.http1(Some(&believed)).await.get(ECHO, &FORGED).await;
    let seen = answer.json();
    assert_eq!((&seen["user"], &seen["uid"]), (&json!("admin"), &json!("1")));
    assert_eq!(seen["groups"], json!(["system:masters", "system:authenticated"]));
    assert_eq!(seen["extra"], json!({"scopes": ["all"]}));
    assert_eq!(seen["headers"], json!(["host"]), "headers of identity are to go no further");

    // Without a certificate the headers are so much paper.
    let answer = server.http1(None).await.get(ECHO, &FORGED).await;
    assert_eq!((answer.user().as_str(), answer.json()["headers"].clone()), ("system:anonymous", json!(["host"])));

    let refused = [
        ("a CN that is not allowed", proxies.sign(&Leaf::named("mallory"))),
        ("another CA", others.sign(&Leaf::named("aggregator"))),
        ("expired", proxies.sign(&Leaf { valid: (-2, -1), ..Leaf::named("aggregator") })),
        ("not valid yet", proxies.sign(&Leaf { valid: (1, 2), ..Leaf::named("aggregator") })),
        ("a server's", proxies.sign(&Leaf { usage: ExtendedKeyUsagePurpose::ServerAuth, ..Leaf::named("aggregator") })),
    ];
    for (what, certificate) in refused {
        let answer = server.http1(Some(&certificate)).await.get(ECHO, &FORGED).await;
        assert_eq!(answer.user(), "401", "{what}");
        assert_eq!(answer.json()["message"], "Unauthorized", "{what}");
    }

    // A client certificate makes nobody a front proxy: it is the certificate's own user who asks.
    let client = clients.sign(&Leaf { organization: Some("dev"), ..Leaf::named("aggregator") });
    let answer = server.http1(Some(&client)).await.get(ECHO, &FORGED).await;
    assert_eq!(answer.user(), "aggregator");
    assert_eq!(answer.json()["groups"], json!(["dev", "system:authenticated"]));
    assert!(
        answer.json()["extra"]["authentication.kubernetes.io/credential-id"][0]
            .as_str()
            .unwrap()
            .starts_with("X509SHA256=")
    );
    server.stop().await.unwrap();
}

#[tokio::test]
async fn without_a_request_header_ca_headers_never_count() {
    let server = Running::start().await;
    let clients = Authority::new("client-ca");
    server.trust.set_client_ca(clients.bundle());
    for certificate in [None, Some(clients.sign(&Leaf::named("jane")))] {
        let answer = server.http1(certificate.as_ref()).await.get(ECHO, &FORGED).await;
        assert_eq!(answer.user(), if certificate.is_some() { "jane" } else { "system:anonymous" });
        assert_eq!(answer.json()["headers"], json!(["host"]), "whoever might believe them later");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn client_certificates_are_of_the_client_ca_or_nothing() {
    let server = Running::start().await;
    let (proxies, clients) = (Authority::new("front-proxy-ca"), Authority::new("client-ca"));
    // Nothing is trusted yet: nobody can be checked, so the certificate counts for nothing, as in Go.
    let jane = clients.sign(&Leaf::named("jane"));
    assert_eq!(server.http1(Some(&jane)).await.get(ECHO, &[]).await.user(), "system:anonymous");

    server.trust.set_client_ca(clients.bundle());
    server.trust.set_request_header(front_proxy(&proxies, &[]));
    assert_eq!(server.http1(Some(&jane)).await.get(ECHO, &[]).await.user(), "jane");
    for leaf in [
        Leaf { valid: (-2, -1), ..Leaf::named("jane") },
        Leaf { usage: ExtendedKeyUsagePurpose::ServerAuth, ..Leaf::named("jane") },
    ] {
        assert_eq!(server.http1(Some(&clients.sign(&leaf))).await.get(ECHO, &[]).await.user(), "401");
    }
    // A front proxy that tells of nobody is nobody itself: its CA is not the clients' CA.
    let proxy = proxies.sign(&Leaf { organization: Some("system:masters"), ..Leaf::named("aggregator") });
    assert_eq!(server.http1(Some(&proxy)).await.get(ECHO, &[]).await.user(), "401");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_certificate_of_an_old_version_is_nobody_but_can_connect() {
    let (pem, key) = (include_bytes!("testdata/version1.pem"), include_bytes!("testdata/version1.key"));
    let old = ClientCertificate::from_pem(pem, key);
    let stranger = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let stolen = ClientCertificate::from_pem(pem, stranger.as_bytes());
    let server = Running::start().await;
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let answer = async |certificate: &ClientCertificate| {
            let stream = server.tls_of(&[version], Some(certificate), b"http/1.1").await?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake::<_, http_body_util::Full<bytes::Bytes>>(
                    hyper_util::rt::TokioIo::new(stream),
                )
                .await
                .map_err(std::io::Error::other)?;
            tokio::spawn(connection);
            let request = request(http::Method::GET, ECHO, &[]);
            let response = sender.send_request(request).await.map_err(std::io::Error::other)?;
            Ok::<_, std::io::Error>(Answer::read(response).await.user())
        };
        server.trust.set_client_ca(Authority::new("client-ca").bundle());
        assert_eq!(answer(&old).await.unwrap(), "401");
        // Even of itself it does not vouch for anybody.
        server.trust.set_client_ca(crate::authentication::CaBundle::from_pem(pem).unwrap());
        assert_eq!(answer(&old).await.unwrap(), "401");
        assert!(answer(&stolen).await.is_err(), "who does not hold its key does not get that far");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_new_ca_takes_effect_on_open_connections() {
    let server = Running::start().await;
    let (old, new) = (Authority::new("client-ca"), Authority::new("client-ca"));
    server.trust.set_client_ca(old.bundle());
    let (jane, john) = (old.sign(&Leaf::named("jane")), new.sign(&Leaf::named("john")));
    let (mut janes, mut johns) = (server.http1(Some(&jane)).await, server.http1(Some(&john)).await);
    assert_eq!(janes.get(ECHO, &[]).await.user(), "jane");
    assert_eq!(johns.get(ECHO, &[]).await.user(), "401");
    server.trust.set_client_ca(new.bundle());
    assert_eq!(janes.get(ECHO, &[]).await.user(), "401");
    assert_eq!(johns.get(ECHO, &[]).await.user(), "john");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn tokens_are_what_the_cluster_says() {
    let cluster = Cluster::start(
        StatusCode::OK,
        json!({"authenticated": true, "user": {"username": "system:serviceaccount:a:b", "uid": "7", "groups": ["g"], "extra": {"k": ["v"]}}}),
    )
    .await;
    let reviewer = TokenReviewer::new(cluster.client(), Duration::from_secs(5), Duration::from_secs(600));
    let server = Running::start_with(Arc::new(AllowAll), Some(reviewer), |config| config, |_| {}).await;
    let mut client = server.http1(None).await;
    for _ in 0..3 {
        let answer = client.get(ECHO, &[("authorization", "bearer abc")]).await;
        assert_eq!(answer.user(), "system:serviceaccount:a:b");
        assert_eq!(answer.json()["headers"], json!(["host"]), "the token is to go no further");
    }
    assert_eq!((cluster.count(), cluster.last.lock()["token"].clone()), (1, json!("abc")), "answers are remembered");

    *cluster.answer.lock() = (StatusCode::OK, json!({"authenticated": false}));
    for _ in 0..2 {
        assert_eq!(client.get(ECHO, &[("authorization", "Bearer other")]).await.user(), "401");
    }
    assert_eq!(cluster.count(), 2, "refusals are remembered too");

    // What could not be found out is refused and forgotten.
    *cluster.answer.lock() = (StatusCode::FORBIDDEN, json!({}));
    assert_eq!(client.get(ECHO, &[("authorization", "Bearer third")]).await.user(), "401");
    *cluster.answer.lock() = (StatusCode::OK, json!({"authenticated": true, "user": {"username": "third"}}));
    assert_eq!(client.get(ECHO, &[("authorization", "Bearer third")]).await.user(), "third");

    // No token at all, or one of another kind, is anonymous.
    for header in ["Basic abc", "Bearer", "Bearer ", "abc"] {
        assert_eq!(client.get(ECHO, &[("authorization", header)]).await.user(), "system:anonymous", "{header}");
    }
    let answer = client.get(ECHO, &[("authorization", "Bearer  spaced")]).await;
    assert_eq!(answer.user(), "system:anonymous");
    assert!(answer.headers["warning"].to_str().unwrap().contains("extra space before the bearer token"));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn strangers_do_not_keep_http2_connections() {
    let server = Running::start().await;
    let mut client = server.http2().await;
    let response = client.send_request(request(http::Method::GET, ECHO, &[])).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    eventually("the end of the connection", async || client.ready().await.is_err()).await;
    server.stop().await.unwrap();
}
