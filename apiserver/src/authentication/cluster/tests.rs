use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::*;
use crate::server::certificates::EphemeralCa;

/// A cluster that answers every read with this, and whose one watch tells what is sent.
async fn cluster(code: u16, answer: Value) -> (kube::Client, mpsc::UnboundedSender<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = mpsc::unbounded_channel::<Value>();
    let receiver = Arc::new(parking_lot::Mutex::new(Some(receiver)));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (receiver, answer) = (receiver.clone(), answer.clone());
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                let watched = request.uri().query().unwrap_or_default().contains("watch");
                let events = watched.then(|| receiver.lock().take()).flatten();
                let mut response = match events {
                    Some(events) => {
                        let lines = futures::StreamExt::map(UnboundedReceiverStream::new(events), |event| {
                            Ok::<_, Infallible>(Frame::data(Bytes::from(format!("{event}\n"))))
                        });
                        Response::new(StreamBody::new(lines).boxed_unsync())
                    }
                    None => Response::new(Full::new(Bytes::from(answer.to_string())).boxed_unsync()),
                };
                *response.status_mut() = StatusCode::from_u16(code).unwrap();
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    });
    let client = kube::Client::try_from(kube::Config::new(format!("http://{address}").parse().unwrap())).unwrap();
    (client, sender)
}

fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no", "reason": reason})
}

const ALL: Wanted = Wanted { client_ca: true, request_header: true };

#[tokio::test]
async fn the_first_look_says_what_is_wrong() {
    let (client, _watch) = cluster(403, status(403, "Forbidden")).await;
    let outcome = look_up(&client, ALL, &Trust::default()).await;
    assert!(matches!(outcome, Err(LookupError::Forbidden(_))), "{outcome:?}");
    let (client, _watch) = cluster(404, status(404, "NotFound")).await;
    look_up(&client, ALL, &Trust::default()).await.unwrap();
}

#[tokio::test]
async fn changes_take_effect_as_they_come() {
    let (old, new) = (EphemeralCa::new("old").unwrap(), EphemeralCa::new("new").unwrap());
    let object = |ca: &EphemeralCa, version: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": CONFIG_MAP_NAME, "namespace": CONFIG_MAP_NAMESPACE, "resourceVersion": version},
            "data": {"client-ca-file": ca.pem()},
        })
    };
    let list = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [object(&old, "1")]});
    let (client, watch) = cluster(200, list).await;
    let trust = Arc::new(Trust::default());
    let mut changes = trust.subscribe();
    let following = tokio::spawn(follow(client, ALL, trust.clone()));
    let pem = |ca: &EphemeralCa| CaBundle::from_pem(ca.pem().as_bytes()).unwrap();
    changes.changed().await.unwrap();
    assert!(trust.client_ca().unwrap().same(&pem(&old)));
    watch.send(json!({"type": "MODIFIED", "object": object(&new, "2")})).unwrap();
    changes.changed().await.unwrap();
    assert!(trust.client_ca().unwrap().same(&pem(&new)));
    following.abort();
}

fn map(data: serde_json::Value) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": CONFIG_MAP_NAME}, "data": data})).unwrap()
}

#[test]
fn the_config_map_is_applied_and_nonsense_is_not() {
    let (clients, proxies) = (EphemeralCa::new("c").unwrap(), EphemeralCa::new("p").unwrap());
    let all = Wanted { client_ca: true, request_header: true };
    let trust = Trust::default();
    let good = json!({
        "client-ca-file": clients.pem(),
        "requestheader-client-ca-file": proxies.pem(),
        "requestheader-allowed-names": r#"["aggregator"]"#,
        "requestheader-username-headers": r#"["X-Remote-User"]"#,
        "requestheader-group-headers": r#"["X-Remote-Group"]"#,
        "requestheader-extra-headers-prefix": r#"["X-Remote-Extra-"]"#,
    });
    apply(&map(good.clone()), all, &trust);
    let believed = trust.request_header().unwrap();
    assert_eq!((believed.allowed_names[0].as_str(), believed.names.user[0].as_str()), ("aggregator", "X-Remote-User"));
    assert!(believed.names.uid.is_empty(), "there is no default for uids");
    let ca = trust.client_ca().unwrap();

    // The same again replaces nothing: what is known of connections stays.
    apply(&map(good.clone()), all, &trust);
    assert!(Arc::ptr_eq(&ca, &trust.client_ca().unwrap()));
    assert!(Arc::ptr_eq(&believed, &trust.request_header().unwrap()));

    let mut bad = good;
    bad["client-ca-file"] = "no pem".into();
    bad["requestheader-allowed-names"] = "aggregator".into();
    apply(&map(bad), all, &trust);
    apply(&map(json!({})), all, &trust);
    assert!(Arc::ptr_eq(&ca, &trust.client_ca().unwrap()));
    assert!(Arc::ptr_eq(&believed, &trust.request_header().unwrap()));

    apply(&map(json!({"client-ca-file": proxies.pem()})), Wanted { client_ca: false, request_header: true }, &trust);
    assert!(Arc::ptr_eq(&ca, &trust.client_ca().unwrap()), "flags come before the ConfigMap");
    apply(&map(json!({"client-ca-file": proxies.pem()})), all, &trust);
    assert!(!Arc::ptr_eq(&ca, &trust.client_ca().unwrap()));
}

#[test]
fn missing_rights_are_told_with_their_remedy() {
    let text = LookupError::Forbidden("configmaps is forbidden".into()).to_string();
    assert!(text.contains("kube-system/extension-apiserver-authentication"), "{text}");
    assert!(
        text.contains(
            "kubectl create rolebinding -n kube-system NAME --role=extension-apiserver-authentication-reader"
        ),
        "{text}"
    );
}
