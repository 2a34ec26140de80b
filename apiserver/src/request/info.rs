//! From a method and a URL to what is asked for.
//!
//! Routing follows what is found here and nothing else, so that what is authorised and what is done cannot differ, however
//! strange the path (k8s.io/apiserver `pkg/endpoints/request/requestinfo.go`).

use http::{Method, Uri};
use percent_encoding::percent_decode_str;

use super::RequestInfo;
use crate::query;

/// Why a URL makes no sense at all. Go's HTTP server answers such a request with 400 before any handler sees it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InfoError {
    /// A `%` without two hexadecimal digits after it.
    #[error("invalid URL escape in the path")]
    Escape,
    /// The decoded path is no UTF-8.
    #[error("the decoded path is not valid UTF-8")]
    Utf8,
    /// `/apis/<group>/<version>/watch` with nothing after it.
    #[error("unable to determine kind and namespace from url, {0}")]
    NothingAfterVerb(String),
}

/// Subresources of namespaces, which `/namespaces/<name>/…` must not take for resources in the namespace.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

// === impl RequestInfo ===

impl RequestInfo {
    /// Reads what a request asks for.
    ///
    /// # Errors
    /// When the path cannot be decoded or stops in the middle.
    pub fn parse(method: &Method, uri: &Uri) -> Result<Self, InfoError> {
        let path = decode(uri.path())?;
        let mut info = Self { verb: method.as_str().to_ascii_lowercase(), path, ..Self::default() };
        let path = info.path.clone();
        let trimmed = path.trim_matches('/');
        let parts: Vec<&str> = if trimmed.is_empty() { Vec::new() } else { trimmed.split('/').collect() };
        let (group, version, parts) = match parts.as_slice() {
            ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
            ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
            _ => return Ok(info),
        };
        info.is_resource = true;
        info.group = group.to_owned();
        info.version = version.to_owned();
        info.find_resource(method, uri, parts)?;
        info.find_verb_without_name(uri.query().unwrap_or_default());
        Ok(info)
    }

    /// Whether the request may stay open for long: it is exempt from time and in-flight limits then
    /// (k8s.io/apiserver `pkg/server/filters/longrunning.go`).
    pub fn is_long_running(&self) -> bool {
        matches!(self.verb.as_str(), "watch" | "proxy")
            || (self.is_resource
                && matches!(self.subresource.as_str(), "attach" | "exec" | "proxy" | "log" | "portforward"))
    }

    /// Whether nothing is changed by the request (k8s.io/apiserver `pkg/server/filters/maxinflight.go`).
    pub fn is_read_only(&self) -> bool {
        matches!(self.verb.as_str(), "get" | "list" | "watch")
    }

    fn find_resource(&mut self, method: &Method, uri: &Uri, mut parts: &[&str]) -> Result<(), InfoError> {
        match parts {
            [verb @ ("watch" | "proxy"), rest @ ..] => {
                if rest.is_empty() {
                    return Err(InfoError::NothingAfterVerb(uri.to_string()));
                }
                self.verb = (*verb).to_owned();
                self.verb_in_path = true;
                parts = rest;
            }
            _ => self.verb = verb_of(method).to_owned(),
        }
        if let ["namespaces", namespace, rest @ ..] = parts {
            self.namespace = (*namespace).to_owned();
            if rest.first().is_some_and(|first| !NAMESPACE_SUBRESOURCES.contains(first)) {
                parts = rest;
            }
        }
        let part = |index: usize| parts.get(index).copied().unwrap_or_default().to_owned();
        self.resource = part(0);
        self.name = part(1);
        if self.verb != "proxy" {
            self.subresource = part(2);
            self.below_subresource = parts.get(3..).unwrap_or_default().join("/");
        }
        Ok(())
    }

    /// A name may be absent from the path: then get is a list or a watch, and delete is that of a collection.
    fn find_verb_without_name(&mut self, query: &str) {
        if self.name.is_empty() && self.verb == "get" {
            let watch = query::first(query, "watch").is_some_and(|v| !v.eq_ignore_ascii_case("false") && v != "0");
            if watch { "watch" } else { "list" }.clone_into(&mut self.verb);
            if let Some(name) = query::first(query, "fieldSelector").and_then(|text| single_name(&text)) {
                self.name = name;
            }
        }
        if self.name.is_empty() && self.verb == "delete" {
            "deletecollection".clone_into(&mut self.verb);
        }
        if !self.verb_in_path && matches!(self.verb.as_str(), "list" | "watch" | "deletecollection") {
            self.field_selector = query::first(query, "fieldSelector").unwrap_or_default().into_owned();
            self.label_selector = query::first(query, "labelSelector").unwrap_or_default().into_owned();
        }
    }
}

fn verb_of(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET | Method::HEAD => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// Decodes a path once, as Go's `url.Parse` does: an encoded slash separates segments like a plain one.
fn decode(path: &str) -> Result<String, InfoError> {
    let mut rest = path;
    while let Some((_, after)) = rest.split_once('%') {
        if !after.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            return Err(InfoError::Escape);
        }
        rest = after;
    }
    percent_decode_str(path).decode_utf8().map(Into::into).map_err(|_| InfoError::Utf8)
}

/// The name that a field selector demands, if it demands one that a path could hold.
fn single_name(selector: &str) -> Option<String> {
    let selector = crate::selector::FieldSelector::parse(selector).ok()?;
    let name = selector.requires_exact("metadata.name")?;
    is_path_segment(name).then(|| name.to_owned())
}

/// Whether a name can be a segment of a path (k8s.io/apimachinery `pkg/api/validation/path`).
pub(crate) fn is_path_segment(name: &str) -> bool {
    name != "." && name != ".." && !name.contains(['/', '%'])
}

#[cfg(test)]
mod tests;
