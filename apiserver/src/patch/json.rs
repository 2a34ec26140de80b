//! JSON patch (RFC 6902), with what the original allows beyond it: negative indices, `replace` of a field that is not
//! there, `test` of one against null.

use serde::Deserialize;
use serde_json::Value;

use super::document::Document;
use crate::codec::{
    json::{MAX_DEPTH, Node, NodeKind},
    typed,
};

/// How many values the operations may look at or move, in all. Each insertion at the front of an array moves the rest,
/// each `move` looks at what it moves: a patch of a few thousand operations could keep a processor busy for minutes.
const MAX_WORK: usize = 10_000_000;

/// One operation. What is missing shows when it is applied.
#[derive(Debug)]
pub(super) struct Operation {
    /// `None` when it is no text.
    kind: Option<String>,
    path: Option<String>,
    from: Option<String>,
    /// Missing and null are the same.
    value: Document,
}

/// Why a patch does not apply. The texts are the original's.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    #[error("{0}")]
    Missing(String),
    #[error("{0}")]
    Index(String),
    #[error("testing value {0} failed: test failed")]
    Test(String),
    #[error("Unexpected kind: {0}")]
    Kind(String),
    #[error(
        "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {limit}"
    )]
    Copied { copied: usize, limit: usize },
    #[error("replace operation value must be object or array")]
    Scalar,
    #[error("the operations of the JSON patch move more than {MAX_WORK} values; split it into several patches")]
    Work,
    #[error("the patched document is nested deeper than {MAX_DEPTH} levels")]
    Depth,
}

/// The fields of an operation that strict reading knows.
#[derive(Deserialize)]
#[expect(dead_code, reason = "read for its errors")]
struct Fields {
    #[serde(default)]
    op: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    from: String,
    #[serde(default)]
    value: Value,
}

/// Looks for fields of operations that are unknown or given twice.
///
/// # Errors
/// When an operation, or a field of it, has the wrong type.
pub(super) fn check_fields(patch: &Node, problems: &mut typed::Problems) -> Result<(), typed::Error> {
    typed::decode::<Vec<Fields>>(patch, problems).map(drop)
}

impl Operation {
    /// Reads a patch.
    ///
    /// # Errors
    /// When it is no list of objects.
    pub(super) fn list(patch: Node) -> Result<Vec<Self>, String> {
        let found = patch.type_name();
        match patch.kind {
            NodeKind::Null => Ok(Vec::new()),
            NodeKind::Array(items) => items.into_iter().map(Self::from_node).collect(),
            _ => Err(format!("json: cannot unmarshal {found} into a JSON patch, which is a list of operations")),
        }
    }

    fn from_node(node: Node) -> Result<Self, String> {
        let found = node.type_name();
        let mut operation = Self { kind: None, path: None, from: None, value: Document::Null };
        match node.kind {
            NodeKind::Null => {}
            NodeKind::Object(entries) => {
                let text = |node: Node| match node.kind {
                    NodeKind::String(text) => Some(text),
                    _ => None,
                };
                for entry in entries {
                    match entry.key.as_str() {
                        "op" => operation.kind = text(entry.value),
                        "path" => operation.path = text(entry.value),
                        "from" => operation.from = text(entry.value),
                        "value" => operation.value = Document::from_node(entry.value),
                        _ => {}
                    }
                }
            }
            _ => return Err(format!("json: cannot unmarshal {found} into an operation of a JSON patch")),
        }
        Ok(operation)
    }
}

/// Applies operations in order, up to the first that fails. `copy` may add `copy_limit` bytes in all; zero is no limit.
pub(super) fn apply(document: &mut Document, operations: Vec<Operation>, copy_limit: usize) -> Result<(), ApplyError> {
    let mut patcher = Patcher { document, copied: 0, copy_limit, work: 0 };
    for operation in operations {
        let Operation { kind, path, from, value } = operation;
        match kind.as_deref() {
            Some("add") => {
                patcher.add(&required(path, "add operation failed to decode path: missing value")?, value)?
            }
            Some("remove") => {
                patcher.remove(&required(path, "remove operation failed to decode path: missing value")?)?;
            }
            Some("replace") => {
                let message = "replace operation failed to decode path: operation missing path field: missing value";
                patcher.replace(&required(path, message)?, value)?;
            }
            Some("move") => {
                let message = "move operation failed to decode from: operation, missing from field: missing value";
                patcher.shift(&required(from, message)?, path)?;
            }
            Some("copy") => {
                let message = "copy operation failed to decode from: operation, missing from field: missing value";
                patcher.copy(&required(from, message)?, path)?;
            }
            Some("test") => {
                let message = "test operation failed to decode path: operation missing path field: missing value";
                patcher.test(&required(path, message)?, &value)?;
            }
            other => return Err(ApplyError::Kind(other.unwrap_or("unknown").to_owned())),
        }
    }
    Ok(())
}

fn required(text: Option<String>, message: &str) -> Result<String, ApplyError> {
    text.ok_or_else(|| ApplyError::Missing(message.to_owned()))
}

struct Patcher<'d> {
    document: &'d mut Document,
    copied: usize,
    copy_limit: usize,
    /// How many values were looked at or moved so far.
    work: usize,
}

impl Patcher<'_> {
    fn add(&mut self, path: &str, value: Document) -> Result<(), ApplyError> {
        let (container, key) = find(self.document, path).ok_or_else(|| {
            ApplyError::Missing(format!("add operation does not apply: doc is missing path: \"{path}\": missing value"))
        })?;
        charge(&mut self.work, check_depth(path, &value)? + moved(container, &key))?;
        add_to(container, key, value).map_err(|e| ApplyError::Index(format!("error in add for path: '{path}': {e}")))
    }

    fn remove(&mut self, path: &str) -> Result<(), ApplyError> {
        let (container, key) = find(self.document, path).ok_or_else(|| {
            ApplyError::Missing(format!(
                "remove operation does not apply: doc is missing path: \"{path}\": missing value"
            ))
        })?;
        charge(&mut self.work, moved(container, &key))?;
        remove_from(container, &key)
            .map(drop)
            .map_err(|e| ApplyError::Index(format!("error in remove for path: '{path}': {e}")))
    }

    fn replace(&mut self, path: &str, value: Document) -> Result<(), ApplyError> {
        charge(&mut self.work, check_depth(path, &value)?)?;
        if path.is_empty() {
            if !matches!(value, Document::Object(_) | Document::Array(_)) {
                return Err(ApplyError::Scalar);
            }
            *self.document = value;
            return Ok(());
        }
        let (container, key) = find(self.document, path).ok_or_else(|| {
            ApplyError::Missing(format!("replace operation does not apply: doc is missing path: {path}: missing value"))
        })?;
        match container {
            Document::Object(fields) => {
                fields.insert(key, value);
            }
            container => {
                let place = index_of(container, &key).ok().and_then(|at| match container {
                    Document::Array(items) => items.get_mut(at),
                    _ => None,
                });
                *place.ok_or_else(|| {
                    ApplyError::Missing(format!(
                        "replace operation does not apply: doc is missing key: {path}: missing value"
                    ))
                })? = value;
            }
        }
        Ok(())
    }

    /// The operation `move`.
    fn shift(&mut self, from: &str, path: Option<String>) -> Result<(), ApplyError> {
        let (container, key) = find(self.document, from).ok_or_else(|| {
            ApplyError::Missing(format!(
                "move operation does not apply: doc is missing from path: {from}: missing value"
            ))
        })?;
        charge(&mut self.work, moved(container, &key))?;
        let value = remove_from(container, &key)
            .map_err(|e| ApplyError::Index(format!("error in move for path: '{key}': {e}")))?;
        let path = required(path, "move operation failed to decode path: operation missing path field: missing value")?;
        let (container, key) = find(self.document, &path).ok_or_else(|| {
            ApplyError::Missing(format!(
                "move operation does not apply: doc is missing destination path: {path}: missing value"
            ))
        })?;
        charge(&mut self.work, check_depth(&path, &value)? + moved(container, &key))?;
        add_to(container, key, value).map_err(|e| ApplyError::Index(format!("error in move for path: '{path}': {e}")))
    }

    fn copy(&mut self, from: &str, path: Option<String>) -> Result<(), ApplyError> {
        let (container, key) = find(self.document, from).ok_or_else(|| {
            ApplyError::Missing(format!(
                "copy operation does not apply: doc is missing from path: {from}: missing value"
            ))
        })?;
        let value = get(container, &key)
            .map_err(|e| ApplyError::Index(format!("error in copy for from: '{from}': {e}")))?
            .cloned();
        let path = required(path, "copy operation failed to decode path: missing value")?;
        if let Some(value) = value.as_ref().filter(|v| **v != Document::Null) {
            self.copied += value.to_text().len();
            if self.copy_limit > 0 && self.copied > self.copy_limit {
                return Err(ApplyError::Copied { copied: self.copied, limit: self.copy_limit });
            }
        }
        let value = value.unwrap_or(Document::Null);
        let (container, key) = find(self.document, &path).ok_or_else(|| {
            ApplyError::Missing(format!(
                "copy operation does not apply: doc is missing destination path: {path}: missing value"
            ))
        })?;
        charge(&mut self.work, check_depth(&path, &value)? + moved(container, &key))?;
        add_to(container, key, value)
            .map_err(|e| ApplyError::Index(format!("error while adding value during copy: {e}")))
    }

    fn test(&mut self, path: &str, value: &Document) -> Result<(), ApplyError> {
        let failed = || ApplyError::Test(path.to_owned());
        if path.is_empty() {
            return if self.document == value { Ok(()) } else { Err(failed()) };
        }
        let (container, key) = find(self.document, path).ok_or_else(|| {
            ApplyError::Missing(format!("test operation does not apply: is missing path: {path}: missing value"))
        })?;
        let found =
            get(container, &key).map_err(|e| ApplyError::Index(format!("error in test for path: '{path}': {e}")))?;
        if found.unwrap_or(&Document::Null) == value { Ok(()) } else { Err(failed()) }
    }
}

/// Refuses a value that would be too deep where it goes. Otherwise gives the number of values that were looked at.
///
/// Nothing else can make a document deeper, so that a document that was not too deep before is not afterwards.
fn check_depth(path: &str, value: &Document) -> Result<usize, ApplyError> {
    let extent = value.extent();
    // Each segment of a path leads through one array or object.
    let deepest = path.matches('/').count() + extent.depth;
    if deepest > MAX_DEPTH { Err(ApplyError::Depth) } else { Ok(extent.values) }
}

/// How many values an insertion or removal at `key` moves.
fn moved(container: &Document, key: &str) -> usize {
    match container {
        Document::Array(items) if key != "-" => {
            position(key, items.len()).map_or(0, |at| items.len().saturating_sub(at))
        }
        _ => 0,
    }
}

fn charge(work: &mut usize, values: usize) -> Result<(), ApplyError> {
    *work += values;
    if *work > MAX_WORK { Err(ApplyError::Work) } else { Ok(()) }
}

/// The container that holds what `path` names, and the key there. `None` when it does not exist, or the path does not start
/// with a slash.
fn find<'d>(document: &'d mut Document, path: &str) -> Option<(&'d mut Document, String)> {
    let mut segments = path.split('/').skip(1).peekable();
    let mut container = document;
    loop {
        let key = decode_segment(segments.next()?);
        if segments.peek().is_none() {
            return matches!(container, Document::Object(_) | Document::Array(_)).then_some((container, key));
        }
        container = match container {
            Document::Object(fields) => fields.get_mut(&key)?,
            Document::Array(items) => {
                let at = position(&key, items.len()).ok()?;
                items.get_mut(at)?
            }
            _ => return None,
        };
    }
}

fn decode_segment(segment: &str) -> String {
    segment.replace("~1", "/").replace("~0", "~")
}

fn get<'d>(container: &'d Document, key: &str) -> Result<Option<&'d Document>, String> {
    match container {
        Document::Object(fields) => Ok(fields.get(key)),
        _ => {
            let at = index_of(container, key)?;
            Ok(match container {
                Document::Array(items) => items.get(at),
                _ => None,
            })
        }
    }
}

fn add_to(container: &mut Document, key: String, value: Document) -> Result<(), String> {
    match container {
        Document::Object(fields) => {
            fields.insert(key, value);
        }
        Document::Array(items) if key == "-" => items.push(value),
        Document::Array(items) => {
            let at = position(&key, items.len() + 1).map_err(|e| match e {
                PositionError::NoNumber(e) => format!("value was not a proper array index: '{key}': {e}"),
                PositionError::OutOfRange(e) => e,
            })?;
            items.insert(at, value);
        }
        _ => {}
    }
    Ok(())
}

fn remove_from(container: &mut Document, key: &str) -> Result<Document, String> {
    if let Document::Object(fields) = container {
        return fields.remove(key).ok_or_else(|| format!("Unable to remove nonexistent key: {key}: missing value"));
    }
    let at = index_of(container, key)?;
    match container {
        Document::Array(items) => Ok(items.remove(at)),
        _ => Ok(Document::Null),
    }
}

fn index_of(container: &Document, key: &str) -> Result<usize, String> {
    let length = match container {
        Document::Array(items) => items.len(),
        _ => 0,
    };
    position(key, length).map_err(|e| match e {
        PositionError::NoNumber(e) | PositionError::OutOfRange(e) => e,
    })
}

enum PositionError {
    NoNumber(String),
    OutOfRange(String),
}

/// An index below `length`; negative ones count from the end.
fn position(key: &str, length: usize) -> Result<usize, PositionError> {
    let invalid =
        || PositionError::NoNumber(format!("strconv.Atoi: parsing {}: invalid syntax", crate::quote::quote(key)));
    let index: i64 = key.parse().map_err(|_| invalid())?;
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let position = if index < 0 { index + length } else { index };
    if (0..length).contains(&position) {
        usize::try_from(position).map_err(|_| invalid())
    } else {
        Err(PositionError::OutOfRange(format!("Unable to access invalid index: {index}: invalid index referenced")))
    }
}
