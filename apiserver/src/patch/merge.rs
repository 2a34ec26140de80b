//! JSON merge patch (RFC 7386).

use serde_json::Value;

use super::document::Document;
use crate::codec::{
    json::{Node, NodeKind},
    typed,
};

/// What is said of a patch that is none.
pub(super) const BAD_PATCH: &str = "Invalid JSON Patch";

/// What is said of a document that cannot be patched.
const BAD_DOCUMENT: &str = "Invalid JSON Document";

/// Looks for fields that are given twice.
///
/// # Errors
/// When the patch is no object.
pub(crate) fn check_fields(patch: &Node, problems: &mut typed::Problems) -> Result<(), typed::Error> {
    match patch.kind {
        NodeKind::Null => Ok(()),
        NodeKind::Object(_) => typed::decode::<Value>(patch, problems).map(drop),
        _ => Err(typed::Error::root_mismatch(patch, "object")),
    }
}

/// Merges `patch` into `document`.
pub(super) fn apply(document: &mut Document, patch: Document) -> Result<(), &'static str> {
    match (&*document, &patch) {
        (Document::Null, _) => return Err(BAD_DOCUMENT),
        (_, Document::Object(_) | Document::Array(_)) => {}
        _ => return Err(BAD_PATCH),
    }
    merge(document, patch);
    Ok(())
}

fn merge(document: &mut Document, patch: Document) {
    match (document, patch) {
        (Document::Object(fields), Document::Object(patch)) => {
            for (key, value) in patch {
                match (fields.get_mut(&key), value) {
                    (_, Document::Null) => {
                        fields.remove(&key);
                    }
                    (Some(current), value) if *current != Document::Null => merge(current, value),
                    (_, value) => {
                        fields.insert(key, without_nulls(value));
                    }
                }
            }
        }
        // What is replaced keeps the nulls of arrays, not those of objects. The original looks into arrays only where
        // there is something new.
        (document @ Document::Object(_), patch @ Document::Array(_)) => *document = patch,
        (document, patch) => *document = without_nulls(patch),
    }
}

/// Drops the fields that are null, in arrays too.
fn without_nulls(document: Document) -> Document {
    match document {
        Document::Object(fields) => Document::Object(
            fields
                .into_iter()
                .filter(|(_, value)| *value != Document::Null)
                .map(|(key, value)| (key, without_nulls(value)))
                .collect(),
        ),
        Document::Array(items) => Document::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}
