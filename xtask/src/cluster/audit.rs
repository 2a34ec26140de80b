//! kube-apiserver's audit log: who asked for what.

use std::{
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
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: String,
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
        let code = self.response_status.map_or(0, |status| status.code);
        match self.object_ref {
            Some(ObjectRef { resource, subresource, namespace, name, api_group }) => Request {
                verb: self.verb,
                group: api_group,
                resource: if subresource.is_empty() { resource } else { format!("{resource}/{subresource}") },
                namespace,
                name,
                code,
            },
            None => Request {
                verb: self.verb,
                group: String::new(),
                resource: self.request_uri,
                namespace: String::new(),
                name: String::new(),
                code,
            },
        }
    }
}
