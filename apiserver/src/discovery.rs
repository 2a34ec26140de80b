//! Discovery: which groups, versions and resources there are
//! (k8s.io/apiserver `pkg/endpoints/discovery`).
//!
//! Everything is written once, when the server is put together, and answered from memory: discovery works while storage is
//! down, so that one broken server does not stop clients, the namespace controller and the garbage collector.

mod documents;
mod negotiation;

use std::collections::BTreeMap;

use http::{
    HeaderMap, HeaderValue, Method, Response, StatusCode,
    header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH, VARY},
    request::Parts,
};
use sha2::{Digest as _, Sha512};

use self::{
    documents::{Document, aggregated, group_list, groups, resource_list},
    negotiation::Answer,
};
use crate::{
    codec,
    endpoint::{ApiGroup, ResourceDescription, ResponseBody, empty, response},
    status::Status,
};

/// The discovery documents of a server.
#[derive(Clone, Debug)]
pub struct Discovery {
    /// Compact JSON by path, without a slash at the end.
    documents: BTreeMap<String, Vec<u8>>,
    aggregated: Aggregated,
}

#[derive(Clone, Debug)]
struct Aggregated {
    json: Vec<u8>,
    /// In quotes. Clients keep it; it is the SHA-512 of the document, as the original has it.
    etag: HeaderValue,
}

/// What of a group is served: the versions that have resources, and those.
pub(crate) struct ServedGroup<'a> {
    pub(crate) name: &'a str,
    /// The preferred one first.
    pub(crate) versions: Vec<ServedVersion<'a>>,
}

/// A version and the resources that are served in it, sorted by name.
pub(crate) struct ServedVersion<'a> {
    pub(crate) name: &'a str,
    pub(crate) resources: Vec<&'a ResourceDescription>,
}

// === impl Discovery ===

impl Discovery {
    /// Writes the documents. `server_address` is host and port under which the server is reached, which `/apis` tells
    /// clients of networks that it does not know (`ServerAddressByClientCIDRs`).
    ///
    /// Groups keep their order in `/apis`. Versions keep theirs everywhere: in aggregated discovery the original sorts them
    /// by their names instead, so that there another one can come first than the one that `/apis/<group>` prefers.
    ///
    /// # Errors
    /// When a document refuses to be serialised, which it does not.
    pub fn new(groups: &[ApiGroup], server_address: &str) -> Result<Self, serde_json::Error> {
        let served: Vec<_> = groups.iter().filter_map(ServedGroup::of).collect();
        Self::of(&served, server_address)
    }

    fn of(served: &[ServedGroup<'_>], server_address: &str) -> Result<Self, serde_json::Error> {
        let mut documents = BTreeMap::new();
        documents.insert("/apis".to_owned(), codec::to_vec(&group_list(served, server_address))?);
        for (group, document) in served.iter().zip(groups(served)) {
            let path = format!("/apis/{}", group.name);
            for version in &group.versions {
                let list = Document::v1("APIResourceList", resource_list(group.name, version));
                documents.insert(format!("{path}/{}", version.name), codec::to_vec(&list)?);
            }
            documents.insert(path, codec::to_vec(&Document::v1("APIGroup", document))?);
        }
        Ok(Self { documents, aggregated: Aggregated::new(served)? })
    }

    /// Answers a request to one of the paths of discovery. `None` for any other path: whoever calls this has answers of
    /// its own for those.
    ///
    /// The aggregated document comes with `Cache-Control: public`, which nothing may be added to.
    pub fn respond(&self, parts: &Parts) -> Option<Response<ResponseBody>> {
        let path = parts.uri.path();
        let path = path.strip_suffix('/').unwrap_or(path);
        let json = self.documents.get(path)?;
        let query = parts.uri.query();
        if parts.method != Method::GET {
            let status = Status::method_not_allowed();
            return Some(response::status(&parts.headers, query, &status));
        }
        Some(match negotiation::negotiate(&parts.headers, query, path == "/apis") {
            Ok(Answer::Plain(format)) => response::json(StatusCode::OK, &format, &parts.headers, json.clone()),
            Ok(Answer::Aggregated(format)) => self.aggregated.respond(&parts.headers, &format),
            Err(status) => response::status(&parts.headers, query, &status),
        })
    }

    /// The paths of discovery, sorted: what the index of the server lists.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.documents.keys().map(String::as_str)
    }
}

// === impl Aggregated ===

impl Aggregated {
    fn new(groups: &[ServedGroup<'_>]) -> Result<Self, serde_json::Error> {
        let list = aggregated(groups);
        let digest = Sha512::digest(codec::to_vec(&list)?);
        // Digits and quotes only.
        let etag = HeaderValue::from_str(&format!("\"{}\"", hex::encode_upper(digest)))
            .unwrap_or_else(|_| HeaderValue::from_static("\"\""));
        let json = codec::to_vec(&Document::new("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2", list))?;
        Ok(Self { json, etag })
    }

    fn respond(&self, headers: &HeaderMap, format: &crate::negotiate::OutputFormat) -> Response<ResponseBody> {
        let mut response = if headers.get(IF_NONE_MATCH) == Some(&self.etag) {
            let mut response = Response::new(empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            match codec::render(format, self.json.clone()) {
                Ok(body) => {
                    let content_type = negotiation::aggregated_content_type(format.media);
                    response::bytes(StatusCode::OK, content_type, headers, body)
                }
                Err(error) => {
                    let status = Status::internal_error(format_args!("discovery could not be rendered: {error}"));
                    return response::status(headers, None, &status);
                }
            }
        };
        let headers = response.headers_mut();
        headers.insert(ETAG, self.etag.clone());
        headers.append(VARY, HeaderValue::from_static("Accept"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
        response
    }
}

// === impl ServedGroup ===

impl<'a> ServedGroup<'a> {
    /// `None` when nothing of the group is served.
    pub(crate) fn of(group: &'a ApiGroup) -> Option<Self> {
        Self::new(&group.name, &group.versions, group.endpoints.iter().map(|e| e.description()).collect())
    }

    /// The same of resources that are described only.
    pub(crate) fn new(
        name: &'a str,
        versions: &'a [String],
        mut resources: Vec<&'a ResourceDescription>,
    ) -> Option<Self> {
        resources.sort_by_key(|r| r.names.plural);
        let versions: Vec<_> = versions
            .iter()
            .map(|version| ServedVersion {
                name: version,
                resources: resources.iter().copied().filter(|r| r.serves(version)).collect(),
            })
            .filter(|v| !v.resources.is_empty())
            .collect();
        (!versions.is_empty()).then_some(Self { name, versions })
    }
}

#[cfg(test)]
mod tests;
