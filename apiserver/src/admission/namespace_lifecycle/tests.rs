//! Against namespaces that say what the test wants: a real cluster has them in the end-to-end tests.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Frame, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;
use crate::{
    meta::{GroupResource, GroupVersionKind},
    request::RequestContext,
};

/// The namespaces of a cluster with their phases, and whether it tells of them.
#[derive(Clone, Default)]
struct Cluster {
    namespaces: Arc<Mutex<BTreeMap<&'static str, &'static str>>>,
    secretive: bool,
}

impl Cluster {
    async fn client(&self) -> kube::Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cluster = self.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let cluster = cluster.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let response = cluster.answer(&request);
                    async move { Ok::<_, Infallible>(response) }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        kube::Client::try_from(kube::Config::new(format!("http://{address}").parse().unwrap())).unwrap()
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
        let status = |code: u16| json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no", "reason": if code == 404 { "NotFound" } else { "Forbidden" }});
        let namespace = |(name, phase): (&&str, &&str)| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "resourceVersion": "1"}, "status": {"phase": phase}});
        let namespaces = self.namespaces.lock();
        let name = request.uri().path().strip_prefix("/api/v1/namespaces/");
        let (code, body) = match name {
            _ if self.secretive => (403, status(403)),
            Some(name) => match namespaces.get_key_value(name) {
                Some(found) => (200, namespace(found)),
                None => (404, status(404)),
            },
            // A watch that never tells anything: the cache stays as it was.
            None if request.uri().query().unwrap_or_default().contains("watch") => {
                let silence = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>();
                return Response::new(StreamBody::new(silence).boxed_unsync());
            }
            None => {
                let items: Vec<Value> = namespaces.iter().map(namespace).collect();
                (
                    200,
                    json!({"kind": "NamespaceList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}),
                )
            }
        };
        let mut response = Response::new(Full::new(Bytes::from(body.to_string())).boxed_unsync());
        *response.status_mut() = StatusCode::from_u16(code).unwrap();
        response
    }
}

fn context() -> RequestContext {
    RequestContext {
        user: Default::default(),
        info: Default::default(),
        audit_id: String::new(),
        warnings: Default::default(),
        deadline: None,
        shutdown: CancellationToken::new(),
        delivery: Default::default(),
    }
}

async fn create(plugin: &NamespaceLifecycle, namespace: &str, group: &str, resource: &str) -> Result<(), Status> {
    let mut attributes = Attributes {
        context: &context(),
        operation: Operation::Create,
        kind: GroupVersionKind { group: group.into(), version: "v1".into(), kind: "Pizza".into() },
        resource: GroupResource { group: group.into(), resource: resource.into() },
        subresource: "",
        namespace,
        name: "x",
        dry_run: false,
        object: None,
        old_object: None,
    };
    plugin.admit(&mut attributes).await
}

#[tokio::test]
async fn only_what_is_there_and_stays_takes_new_objects() {
    let cluster = Cluster::default();
    cluster.namespaces.lock().extend([("here", "Active"), ("going", "Terminating")]);
    let (plugin, cache) = NamespaceLifecycle::new(cluster.client().await);
    let stop = CancellationToken::new();
    let running = tokio::spawn(cache.run(stop.clone()));

    create(&plugin, "here", "example.test", "pizzas").await.unwrap();
    create(&plugin, "", "example.test", "toppings").await.unwrap();

    let status = create(&plugin, "going", "example.test", "pizzas").await.unwrap_err();
    assert_eq!(
        status.message(),
        "pizzas.example.test \"x\" is forbidden: unable to create new content in namespace going because it is being terminated"
    );
    let cause = &status.as_v1().details.as_ref().unwrap().causes.as_ref().unwrap()[0];
    assert_eq!(
        (cause.reason.as_deref(), cause.message.as_deref(), cause.field.as_deref()),
        (Some("NamespaceTerminating"), Some("namespace going is being terminated"), Some("metadata.namespace"))
    );

    let status = create(&plugin, "nowhere", "example.test", "pizzas").await.unwrap_err();
    assert_eq!((status.code().as_u16(), status.message()), (404, "namespaces \"nowhere\" not found"));
    create(&plugin, "nowhere", "authorization.k8s.io", "localsubjectaccessreviews").await.unwrap();

    // The cache has not heard of it yet, the cluster has.
    cluster.namespaces.lock().insert("nowhere", "Active");
    create(&plugin, "nowhere", "example.test", "pizzas").await.unwrap();

    assert!(!plugin.handles(Operation::Delete) && !plugin.handles(Operation::Update), "leftovers can be cleaned up");
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_know_nothing_is_admitted() {
    let cluster = Cluster { secretive: true, ..Cluster::default() };
    let (plugin, cache) = NamespaceLifecycle::new(cluster.client().await);
    tokio::spawn(cache.run(CancellationToken::new()));
    let status = create(&plugin, "here", "example.test", "pizzas").await.unwrap_err();
    assert_eq!(status.message(), "pizzas.example.test \"x\" is forbidden: not yet ready to handle request");
}
