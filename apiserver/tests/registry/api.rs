//! A resource over a storage, and requests to it.

use std::{any::Any, sync::Arc, time::Duration};

use apiserver::{
    admission::{Chain, Plugin},
    authorization::{AuthorizationAttributes, Authorizer, Decision},
    endpoint::{Delivery, Endpoint as _, RequestBody, ResponseBody},
    registry::{Environment, ResourceHandler},
    request::{RequestContext, RequestInfo, UserInfo, Warnings},
    storage::Storage,
};
use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    backend,
    flunder::{Flunders, kind},
};

/// The collection that most tests use.
pub(crate) const FLUNDERS: &str = "/apis/wardle.example.com/v1beta1/namespaces/default/flunders";

/// A watch that begins with what is there and says where that ends.
pub(crate) const WATCH_LIST: &str = "/apis/wardle.example.com/v1beta1/namespaces/default/flunders?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

pub(crate) struct Api {
    pub(crate) handler: Arc<ResourceHandler<Flunders>>,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) shutdown: CancellationToken,
    /// The way of every answer.
    pub(crate) delivery: Delivery,
    pub(crate) tasks: TaskTracker,
    pub(crate) allowed: Arc<Mutex<Decision>>,
    /// What the storage needs for as long as it is used.
    _fixture: Box<dyn Any + Send + Sync>,
}

pub(crate) struct Answer {
    pub(crate) code: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A running watch.
pub(crate) struct Watching {
    pub(crate) headers: HeaderMap,
    body: ResponseBody,
    unread: Vec<u8>,
}

/// Decides as the test says.
struct Says(Arc<Mutex<Decision>>);

#[async_trait]
impl Authorizer for Says {
    async fn authorize(&self, _attributes: &AuthorizationAttributes<'_>) -> Decision {
        self.0.lock().clone()
    }
}

impl Api {
    pub(crate) async fn new() -> Self {
        Self::with(Flunders::default(), Vec::new()).await
    }

    pub(crate) async fn with(strategy: Flunders, plugins: Vec<Arc<dyn Plugin>>) -> Self {
        let (storage, fixture) = backend::start().await;
        Self { _fixture: fixture, ..Self::over(storage, strategy, plugins).await }
    }

    pub(crate) async fn over(storage: Arc<dyn Storage>, strategy: Flunders, plugins: Vec<Arc<dyn Plugin>>) -> Self {
        let (tasks, allowed) = (TaskTracker::new(), Arc::new(Mutex::new(Decision::Allow)));
        let environment = Environment {
            storage: Arc::clone(&storage),
            admission: Arc::new(Chain::new(plugins)),
            authorizer: Arc::new(Says(Arc::clone(&allowed))),
            tasks: tasks.clone(),
            min_request_timeout: Duration::from_secs(1800),
        };
        let handler = Arc::new(ResourceHandler::new(kind(), strategy, environment));
        Self {
            handler,
            storage,
            shutdown: CancellationToken::new(),
            delivery: Delivery::default(),
            tasks,
            allowed,
            _fixture: Box::new(()),
        }
    }

    pub(crate) fn context(&self, method: &Method, uri: &str) -> RequestContext {
        RequestContext {
            user: UserInfo { name: "alice".to_owned(), ..UserInfo::default() },
            info: RequestInfo::parse(method, &uri.parse().unwrap()).unwrap(),
            audit_id: "1".to_owned(),
            warnings: Warnings::default(),
            deadline: None,
            shutdown: self.shutdown.clone(),
            delivery: self.delivery.clone(),
        }
    }

    pub(crate) async fn raw(
        &self,
        method: &str,
        uri: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response<ResponseBody> {
        let method: Method = method.parse().unwrap();
        let mut request = http::Request::builder().method(method.clone()).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let body = RequestBody::from_bytes(body.to_vec());
        self.handler.serve(self.context(&method, uri), parts, body).await
    }

    pub(crate) async fn send(&self, method: &str, uri: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let response = self.raw(method, uri, headers, body).await;
        let (parts, body) = response.into_parts();
        Answer { code: parts.status, headers: parts.headers, body: body.collect().await.unwrap().to_bytes() }
    }

    pub(crate) async fn get(&self, uri: &str) -> Answer {
        self.send("GET", uri, &[], b"").await
    }

    pub(crate) async fn post(&self, uri: &str, body: &Value) -> Answer {
        self.send("POST", uri, &[], body.to_string().as_bytes()).await
    }

    pub(crate) async fn put(&self, uri: &str, body: &Value) -> Answer {
        self.send("PUT", uri, &[], body.to_string().as_bytes()).await
    }

    pub(crate) async fn merge(&self, uri: &str, body: &Value) -> Answer {
        let headers = [("content-type", "application/merge-patch+json")];
        self.send("PATCH", uri, &headers, body.to_string().as_bytes()).await
    }

    pub(crate) async fn delete(&self, uri: &str, options: Option<&Value>) -> Answer {
        let body = options.map(ToString::to_string).unwrap_or_default();
        self.send("DELETE", uri, &[], body.as_bytes()).await
    }

    /// Creates a flunder in `default`.
    pub(crate) async fn make(&self, name: &str) -> Value {
        self.post(FLUNDERS, &flunder(name)).await.is(201)
    }

    pub(crate) async fn watch(&self, uri: &str) -> Watching {
        self.watch_with(uri, &[]).await
    }

    pub(crate) async fn watch_with(&self, uri: &str, headers: &[(&str, &str)]) -> Watching {
        let response = self.raw("GET", uri, headers, b"").await;
        assert_eq!(response.status(), 200);
        let (parts, body) = response.into_parts();
        Watching { headers: parts.headers, body, unread: Vec::new() }
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The answer's body, if its code is this one.
    #[track_caller]
    pub(crate) fn is(&self, code: u16) -> Value {
        assert_eq!(self.code.as_u16(), code, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// A failure's reason and message.
    #[track_caller]
    pub(crate) fn fails(&self, code: u16) -> (String, String) {
        let status = self.is(code);
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["code"], code);
        (text(&status["reason"]), text(&status["message"]))
    }

    pub(crate) fn warnings(&self) -> Vec<&str> {
        self.headers.get_all("warning").iter().map(|v| v.to_str().unwrap()).collect()
    }
}

impl Watching {
    /// The next event, within a bound; `None` when the watch has ended.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.unread.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let chunk = self.chunk().await?;
            self.unread.extend_from_slice(&chunk);
        }
    }

    pub(crate) async fn chunk(&mut self) -> Option<Bytes> {
        let frame = tokio::time::timeout(Duration::from_secs(300), self.body.frame()).await.expect("no event in time");
        Some(frame?.unwrap().into_data().unwrap())
    }

    /// Type and name of the next events.
    pub(crate) async fn take(&mut self, count: usize) -> Vec<(String, String)> {
        let mut events = Vec::new();
        for _ in 0..count {
            let event = self.next().await.expect("the watch ended early");
            events.push((text(&event["type"]), text(&event["object"]["metadata"]["name"])));
        }
        events
    }
}

pub(crate) fn flunder(name: &str) -> Value {
    serde_json::json!({
        "apiVersion": "wardle.example.com/v1beta1",
        "kind": "Flunder",
        "metadata": { "name": name },
        "spec": { "size": 3 },
    })
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// An object's resource version.
pub(crate) fn version(object: &Value) -> u64 {
    text(&object["metadata"]["resourceVersion"]).parse().unwrap()
}

/// The names in a list.
pub(crate) fn names(list: &Value) -> Vec<String> {
    list["items"].as_array().unwrap().iter().map(|item| text(&item["metadata"]["name"])).collect()
}
