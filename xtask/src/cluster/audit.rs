//! kube-apiserver's audit log: who asked for what.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::Path,
};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::process::Spec;

/// An answered request, in the terms of RBAC.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// The verb, such as `list`; of a request for no resource the lower-case HTTP method.
    pub verb: String,
    /// The API group; empty for the core group.
    pub group: String,
    /// The resource, with a subresource behind a slash; of a request for no resource the path.
    pub resource: String,
    /// The namespace; empty for none.
    pub namespace: String,
    /// The object's name; empty for none.
    pub name: String,
    /// The status code of the answer.
    pub code: u16,
    /// When it came, by kube-apiserver's clock; such texts sort as the times do.
    pub received: String,
    /// Which of the user's credentials it was made with, as kube-apiserver names it; empty if it does not. Every token of a
    /// ServiceAccount has its own.
    pub credential: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: String,
    request_received_timestamp: String,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    user: User,
    object_ref: Option<ObjectRef>,
    response_status: Option<Status>,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
    #[serde(default)]
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectRef {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    api_group: String,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
}

/// Where kube-apiserver tells which credential it was (`staging/src/k8s.io/apiserver/pkg/authentication/user/user.go`).
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// Has kube-apiserver log every request, without bodies: Secrets are among them.
pub(super) fn flags(spec: Spec, policy: &Path, log: &Path) -> Result<Spec> {
    let rules: Value = json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}],
    });
    crate::pki::write(policy, rules.to_string().as_bytes(), 0o600)?;
    // Blocking: what a client has an answer to stands in the log.
    Ok(spec.flag("audit-policy-file", policy).flag("audit-log-path", log).flag("audit-log-mode", "blocking"))
}

pub(super) fn read(log: &Path, user: &str) -> Result<Vec<Request>> {
    let file = std::fs::File::open(log).with_context(|| format!("opening {}", log.display()))?;
    let mut requests = Vec::new();
    for line in BufReader::new(file).lines() {
        let line = line?;
        // The last line may be half written.
        let Ok(event) = serde_json::from_str::<Event>(&line) else { continue };
        // A watch is answered when it starts; its end is no further request.
        let long = event.verb == "watch";
        let counts = if long { event.stage == "ResponseStarted" } else { event.stage == "ResponseComplete" };
        if event.user.username == user && counts {
            requests.push(event.request());
        }
    }
    Ok(requests)
}

impl Event {
    fn request(self) -> Request {
        // Of a request for no resource there is the path alone.
        let no_resource = ObjectRef {
            resource: self.request_uri,
            subresource: String::new(),
            namespace: String::new(),
            name: String::new(),
            api_group: String::new(),
        };
        let ObjectRef { resource, subresource, namespace, name, api_group } = self.object_ref.unwrap_or(no_resource);
        Request {
            verb: self.verb,
            group: api_group,
            resource: if subresource.is_empty() { resource } else { format!("{resource}/{subresource}") },
            namespace,
            name,
            code: self.response_status.map_or(0, |status| status.code),
            received: self.request_received_timestamp,
            credential: self.user.extra.get(CREDENTIAL).and_then(|values| values.first()).cloned().unwrap_or_default(),
        }
    }
}
