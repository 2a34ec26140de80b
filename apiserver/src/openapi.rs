//! OpenAPI: what each kind looks like and what can be done with it, for `kubectl explain`, `kubectl apply`, validation and
//! documentation (k8s.io/kube-openapi, k8s.io/apiserver `pkg/server/routes/openapi.go`).
//!
//! `/openapi/v2` is one Swagger 2 document of everything, which kube-apiserver fetches from each server and merges.
//! `/openapi/v3` lists OpenAPI 3 documents, one for each version of each group, to which kube-apiserver leads its clients.
//! All are written once, when the server is put together.
//!
//! # What clients read from them
//!
//! - `kubectl apply` sends a strategic merge patch to types that have it among the media types of PATCH, and to others a
//!   merge patch (kubectl `pkg/cmd/apply/patcher.go`). Only the latter is told, because only that is served.
//! - kubectl leaves the validation of fields to the server if PATCH has the parameter `fieldValidation`, in the operation
//!   itself (cli-runtime `pkg/resource/query_param_verifier_v3.go`).
//! - `kubectl explain` finds the kind by the extension `x-kubernetes-group-version-kind` of the operations at the
//!   resource's path, and its schema by the same extension of the definition (kubectl
//!   `pkg/explain/v2/templates/plaintext.tmpl`).
//!
//! Documents are served as JSON. kube-apiserver asks for nothing else (kube-aggregator
//! `pkg/controllers/openapi/aggregator/downloader.go`), and makes protobuf of it for those of its clients that want that.

mod names;
mod operations;
mod schema;
mod serve;
mod shared;
mod v2;
mod v3;

use std::collections::BTreeMap;

use http::{Response, request::Parts};
use jiff::Timestamp;
use serde_json::{Value, json};

use self::{
    operations::Paths,
    schema::{Definitions, definitions},
    serve::Document,
};
use crate::{
    discovery::{ServedGroup, ServedVersion},
    endpoint::{ApiGroup, ResponseBody, Verb},
    query,
};

/// The title and version that documents bear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// For example `Restaurant`.
    pub title: String,
    /// The version of the server.
    pub version: String,
}

/// The OpenAPI documents of a server.
#[derive(Debug)]
pub struct OpenApi {
    v2: Document,
    /// By the path below `/openapi/v3/`, for example `apis/restaurant.programming-kubernetes.info/v1beta1`.
    v3: BTreeMap<String, Document>,
    v3_root: Document,
}

/// Why the documents cannot be written. It is the author's types that are at fault.
#[derive(Debug, thiserror::Error)]
pub enum OpenApiError {
    /// Two types would be published under one name.
    #[error(
        "two types of {group_version} would both be published as {name:?}, one of them a part of {kind}: \
         give one another name with #[schemars(rename = \"…\")]"
    )]
    NameTaken {
        /// Group and version.
        group_version: String,
        /// The kind whose type came second.
        kind: String,
        /// The name of the definition.
        name: String,
    },
    /// A schema refers to a type that it does not contain.
    #[error("the schema of {kind} in {group_version} refers to {name:?}, which is not among its $defs")]
    UnknownType {
        /// Group and version.
        group_version: String,
        /// The kind.
        kind: String,
        /// The name of the type.
        name: String,
    },
    /// A document refuses to be serialised.
    #[error("an OpenAPI document cannot be written: {0}")]
    Json(#[from] serde_json::Error),
}

/// The documents before they are made into bytes.
#[derive(Debug)]
struct Values {
    v2: Value,
    v3: BTreeMap<String, Value>,
}

// === impl OpenApi ===

impl OpenApi {
    /// Writes the documents.
    ///
    /// # Errors
    /// When the types of the groups cannot be published as they are.
    pub fn new(info: &Info, groups: &[ApiGroup]) -> Result<Self, OpenApiError> {
        let served: Vec<_> = groups.iter().filter_map(ServedGroup::of).collect();
        Self::from_values(&Values::build(info, &served)?)
    }

    fn from_values(values: &Values) -> Result<Self, OpenApiError> {
        let now = Timestamp::now();
        let mut v3 = BTreeMap::new();
        for (path, value) in &values.v3 {
            v3.insert(path.clone(), Document::new(value, now)?);
        }
        let paths: serde_json::Map<_, _> = v3
            .iter()
            .map(|(path, document)| {
                let url = format!("/openapi/v3/{path}?hash={}", document.hash());
                (path.clone(), json!({ "serverRelativeURL": url }))
            })
            .collect();
        let v3_root = Document::new(&json!({ "paths": paths }), now)?;
        Ok(Self { v2: Document::new(&values.v2, now)?, v3, v3_root })
    }

    /// Answers a request to one of the paths of OpenAPI. `None` for any other path, also for a group and version that are
    /// not served, where the original answers 200 with nothing.
    ///
    /// The method does not matter, as in the original. Documents at addresses with their hash come with a `Cache-Control`
    /// of their own, which nothing may be added to.
    pub fn respond(&self, parts: &Parts) -> Option<Response<ResponseBody>> {
        let path = parts.uri.path();
        match path.strip_prefix("/openapi/")? {
            "v2" => Some(self.v2.respond(&parts.headers)),
            "v3" => Some(self.v3_root.send(&parts.headers)),
            below => {
                let document = self.v3.get(below.strip_prefix("v3/")?)?;
                let hash = parts.uri.query().and_then(|q| query::first(q, "hash"));
                Some(document.respond_at(path, hash.as_deref(), &parts.headers))
            }
        }
    }
}

// === impl Values ===

impl Values {
    fn build(info: &Info, groups: &[ServedGroup<'_>]) -> Result<Self, OpenApiError> {
        let mut all_paths = Paths::new();
        let mut all_definitions = Definitions::new();
        let mut versions = Vec::new();
        let mut v3 = BTreeMap::new();
        for (name, paths) in operations::root() {
            v3.insert(name, v3::document(info, &paths, &Definitions::new(), None));
            all_paths.extend(paths);
        }
        for group in groups {
            let paths = operations::group(group);
            v3.insert(format!("apis/{}", group.name), v3::document(info, &paths, &Definitions::new(), None));
            all_paths.extend(paths);
            for version in &group.versions {
                let definitions = version_definitions(group.name, version)?;
                let paths = operations::version(group.name, version, &|name| definitions.contains_key(name));
                let document = v3::document(info, &paths, &definitions, Some((group.name, version.name)));
                v3.insert(format!("apis/{}/{}", group.name, version.name), document);
                versions.push((group.name, version.name));
                all_paths.extend(paths);
                all_definitions.extend(definitions);
            }
        }
        Ok(Self { v2: v2::document(info, &all_paths, &all_definitions, &versions), v3 })
    }
}

/// The definitions of all kinds of a version.
fn version_definitions(group: &str, version: &ServedVersion<'_>) -> Result<Definitions, OpenApiError> {
    let mut all = Definitions::new();
    for resource in &version.resources {
        let Some(description) = resource.versions.iter().find(|v| v.name == version.name) else { continue };
        let list_kind = resource.verbs.contains(&Verb::List).then_some(resource.list_kind.as_str());
        let kind = resource.names.kind;
        for (name, definition) in definitions(group, version.name, kind, list_kind, &description.schema)? {
            if all.get(&name).is_some_and(|other| *other != definition) {
                let group_version = format!("{group}/{}", version.name);
                return Err(OpenApiError::NameTaken { group_version, kind: kind.to_owned(), name });
            }
            all.insert(name, definition);
        }
    }
    Ok(all)
}

// === impl Info ===

impl Info {
    fn value(&self) -> Value {
        json!({ "title": self.title, "version": self.version })
    }
}

#[cfg(test)]
mod tests;
