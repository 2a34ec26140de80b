//! What is known of a request before any object is looked at: who asks, for what, and under which identity in the logs.

pub mod info;

use std::collections::BTreeMap;

/// Who asks, as the authenticator found it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct UserInfo {
    /// The user's name, for example `system:serviceaccount:default:builder`.
    pub name: String,
    /// The user's unique id, where the authenticator gives one.
    pub uid: String,
    /// The groups, `system:authenticated` or `system:unauthenticated` among them.
    pub groups: Vec<String>,
    /// Further attributes, keys in lower case.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What a path and its query ask for (k8s.io/apiserver `pkg/endpoints/request/requestinfo.go`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// Whether the path names a resource (`/apis/<group>/<version>/…`).
    pub is_resource: bool,
    /// The decoded path.
    pub path: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or the HTTP method in lower case.
    pub verb: String,
    /// The API group.
    pub group: String,
    /// The API version.
    pub version: String,
    /// The namespace, empty for none.
    pub namespace: String,
    /// The plural name of the resource.
    pub resource: String,
    /// The subresource, for example `status`, empty for none.
    pub subresource: String,
    /// What follows the subresource in the path, empty for nothing.
    pub below_subresource: String,
    /// The object's name, empty for none.
    pub name: String,
    /// Whether the verb is a segment of the path, as in `/apis/<group>/<version>/watch/<resource>`.
    pub verb_in_path: bool,
    /// The query's `fieldSelector`, as text.
    pub field_selector: String,
    /// The query's `labelSelector`, as text.
    pub label_selector: String,
}

/// A request on its way through the handlers.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// Who asks.
    pub user: UserInfo,
    /// For what.
    pub info: RequestInfo,
    /// The id under which logs, audit and the `Audit-ID` header know this request.
    pub audit_id: String,
    /// Warnings for the client, sent as `Warning: 299` headers.
    pub warnings: Warnings,
    /// When the server gives up on the request.
    pub deadline: Option<tokio::time::Instant>,
    /// Cancelled when the server is going down: watches end then.
    pub shutdown: tokio_util::sync::CancellationToken,
    /// The answer's way to the client, for those who write an answer for as long as they like.
    pub delivery: crate::endpoint::Delivery,
}

/// Warnings gathered while a request is handled; clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Warnings(std::sync::Arc<parking_lot::Mutex<Vec<String>>>);

// === impl RequestContext ===

impl RequestContext {
    /// The context of what the server does by itself, as a user who may do everything.
    pub fn internal() -> Self {
        Self {
            user: UserInfo {
                name: "system:apiserver".to_owned(),
                groups: vec!["system:masters".to_owned(), "system:authenticated".to_owned()],
                ..UserInfo::default()
            },
            info: RequestInfo::default(),
            audit_id: uuid::Uuid::new_v4().to_string(),
            warnings: Warnings::default(),
            deadline: None,
            shutdown: tokio_util::sync::CancellationToken::new(),
            delivery: crate::endpoint::Delivery::default(),
        }
    }
}

// === impl Warnings ===

impl Warnings {
    /// Adds a warning unless it is there already.
    pub fn add(&self, text: impl Into<String>) {
        let text = text.into();
        let mut list = self.0.lock();
        if !list.contains(&text) {
            list.push(text);
        }
    }

    /// Takes what has been gathered so far.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}
