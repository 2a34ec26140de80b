//! PATCH: an object in one version of its kind, changed as RFC 6902 or RFC 7386 say, with the semantics, limits and errors
//! of the Go originals (k8s.io/apiserver `pkg/endpoints/handlers/patch.go`, github.com/evanphx/json-patch v4).

mod document;
mod json;
mod merge;

use self::document::Document;
use crate::{
    codec::{self, json::Node, typed},
    meta::{GroupKind, Object},
    negotiate::PatchType,
    scheme::{Decoded, Kind, Strictness, strict_message},
    status::Status,
    validation::{FieldError, Path},
};

/// How many operations a JSON patch may have.
const MAX_OPERATIONS: usize = 10_000;

/// How many bytes the `copy` operations of a JSON patch may add.
const MAX_COPIED: usize = 3 * 1024 * 1024;

/// Checks that a patch is JSON, before anything is read from the storage.
///
/// # Errors
/// 400 when it is not.
pub fn check(patch: &[u8]) -> Result<(), Status> {
    codec::json::parse_untyped(patch).map(drop).map_err(|_| Status::bad_request("invalid JSON patch"))
}

/// Applies a patch to an object, which is given as JSON in `version` of `kind`.
///
/// Pure, so that a write that lost a race can apply it again.
///
/// # Errors
/// 400 for a malformed patch, 413 for one with too many operations or with operations that are too much work, 422 for one that does not apply or whose outcome is no
/// object of the kind.
pub fn apply<H: Object>(
    kind: &Kind<H>,
    version: &str,
    patch_type: PatchType,
    current: &[u8],
    patch: &[u8],
    strictness: Strictness,
) -> Result<Decoded<H>, Status> {
    let document = codec::json::parse_untyped(current)
        .map_err(|e| Status::internal_error(format_args!("the stored object is no JSON: {e}")))?;
    let mut document = Document::from(document);
    let problems = match patch_type {
        PatchType::Json => apply_json(&mut document, patch, strictness)?,
        PatchType::Merge => apply_merge(&mut document, patch, strictness)?,
    };
    let unsuitable = |document: &Document, message: String| {
        let error = FieldError::invalid(&Path::new("patch"), document.to_text(), message);
        Status::invalid(&GroupKind { group: String::new(), kind: String::new() }, "", &error.into())
    };
    if strictness == Strictness::Strict && !problems.is_empty() {
        // The object's own problems belong to the same message.
        return match kind.decode_patched(version, &document.to_node(), Strictness::Warn, problems) {
            Ok(decoded) => Err(unsuitable(&document, strict_message(&decoded.warnings))),
            Err(error) => Err(unsuitable(&document, error.to_string())),
        };
    }
    kind.decode_patched(version, &document.to_node(), strictness, problems)
        .map_err(|error| unsuitable(&document, error.to_string()))
}

/// Gives what strict reading finds wrong with the patch itself.
fn apply_json(document: &mut Document, patch: &[u8], strictness: Strictness) -> Result<Vec<String>, Status> {
    let node = codec::json::parse_untyped(patch).map_err(|e| undecodable(&e, strictness))?;
    let mut problems = typed::Problems::new(true);
    if strictness != Strictness::Ignore {
        json::check_fields(&node, &mut problems).map_err(|e| undecodable(&e, strictness))?;
    }
    let operations = json::Operation::list(node).map_err(Status::bad_request)?;
    if operations.len() > MAX_OPERATIONS {
        return Err(Status::request_entity_too_large(format_args!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    json::apply(document, operations, MAX_COPIED).map_err(|error| match error {
        json::ApplyError::Work => Status::request_entity_too_large(error),
        error => unprocessable(error),
    })?;
    Ok(problems.into_texts().into_iter().map(|text| format!("json patch {text}")).collect())
}

fn apply_merge(document: &mut Document, patch: &[u8], strictness: Strictness) -> Result<Vec<String>, Status> {
    let node = codec::json::parse_untyped(patch).map_err(|e| match strictness {
        Strictness::Ignore => Status::bad_request(merge::BAD_PATCH),
        _ => undecodable(&e, strictness),
    })?;
    let mut problems = typed::Problems::new(true);
    if strictness != Strictness::Ignore {
        merge::check_fields(&node, &mut problems).map_err(|e| undecodable(&e, strictness))?;
    }
    merge::apply(document, Document::from(node)).map_err(Status::bad_request)?;
    Ok(problems.into_texts())
}

#[cfg(test)]
pub(crate) use self::merge::check_fields as check_merge_fields;

/// 400; strict reading puts its own words before the error.
fn undecodable(error: &dyn std::fmt::Display, strictness: Strictness) -> Status {
    match strictness {
        Strictness::Ignore => Status::bad_request(error.to_string()),
        _ => Status::bad_request(format!("error decoding patch: {error}")),
    }
}

/// 422, as the original words it: the reason why is in the log of the client's own making only.
fn unprocessable(error: json::ApplyError) -> Status {
    let nothing = crate::meta::GroupResource { group: String::new(), resource: String::new() };
    Status::generic(http::StatusCode::UNPROCESSABLE_ENTITY, "", &nothing, "", &error.to_string(), 0, false)
}

/// Reads the outcome of a patch.
impl From<Node> for Document {
    fn from(node: Node) -> Self {
        Document::from_node(node)
    }
}

#[cfg(test)]
mod tests;
