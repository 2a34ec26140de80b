//! Objects to bytes and back, value for value as Go's encoders write them.
//!
//! JSON is compact, with `kind` and `apiVersion` first, floats as [`number::format_json`](crate::number::format_json)
//! prints them and `<`, `>`, `&` escaped (Go's `encoding/json`). The fields of an API's own types come in the order in which
//! they are declared; those of the types that all APIs share (`metav1.ObjectMeta`, `metav1.Status`) come by name, not in
//! Go's order, which no client can rely on. Encoded pieces are joined, never parsed again; only YAML
//! and pretty answers go through the bytes once more.

mod format;
pub(crate) mod json;
pub mod protobuf;
pub(crate) mod time;
pub(crate) mod typed;
pub(crate) mod yaml;

use serde::Serialize;
use serde_json::Value;

use self::format::GoFormatter;
pub use self::time::human_duration;
use crate::{
    meta::ListMeta,
    negotiate::{MediaType, OutputFormat},
};

/// Encodes a value as compact JSON.
///
/// # Errors
/// When the value refuses to be serialised, for example a map whose keys are no texts.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut buffer = Vec::with_capacity(256);
    write(&mut buffer, value)?;
    Ok(buffer)
}

/// Encodes a value as compact JSON, to the end of `buffer`.
///
/// # Errors
/// As [`to_vec`].
pub fn write<T: Serialize + ?Sized>(buffer: &mut Vec<u8>, value: &T) -> Result<(), serde_json::Error> {
    value.serialize(&mut serde_json::Serializer::with_formatter(buffer, GoFormatter))
}

/// A JSON value as text.
pub(crate) fn to_text(value: &Value) -> String {
    // A value has text keys only: nothing can refuse.
    let bytes = to_vec(value).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

/// The beginning of an object: `{"kind":…,"apiVersion":…`.
pub(crate) fn head(kind: &str, api_version: &str) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(1024);
    push_head(&mut buffer, kind, api_version);
    buffer
}

/// Writes the beginning of an object. Neither text needs escaping: both are names.
pub(crate) fn push_head(buffer: &mut Vec<u8>, kind: &str, api_version: &str) {
    buffer.extend_from_slice(br#"{"kind":""#);
    buffer.extend_from_slice(kind.as_bytes());
    buffer.extend_from_slice(br#"","apiVersion":""#);
    buffer.extend_from_slice(api_version.as_bytes());
    buffer.push(b'"');
}

/// Writes `,"name":value`. For the library's own types, which are always serialisable.
pub(crate) fn push_field<T: Serialize + ?Sized>(buffer: &mut Vec<u8>, name: &str, value: &T) {
    buffer.extend_from_slice(b",\"");
    buffer.extend_from_slice(name.as_bytes());
    buffer.extend_from_slice(b"\":");
    push_value(buffer, value);
}

/// Writes a value of one of the library's own types, which are always serialisable.
pub(crate) fn push_value<T: Serialize + ?Sized>(buffer: &mut Vec<u8>, value: &T) {
    let length = buffer.len();
    if write(buffer, value).is_err() {
        buffer.truncate(length);
        buffer.extend_from_slice(b"null");
    }
}

/// Writes `fields`, a JSON object of its own, behind the head: `{"kind":…,"apiVersion":…,` and then the fields.
pub(crate) fn push_object(
    buffer: &mut Vec<u8>,
    kind: &str,
    api_version: &str,
    fields: &(impl Serialize + ?Sized),
) -> Result<(), serde_json::Error> {
    push_head(buffer, kind, api_version);
    let start = buffer.len();
    write(buffer, fields)?;
    match buffer.get(start..) {
        Some([b'{', b'}']) => {
            buffer.truncate(start);
            buffer.push(b'}');
            Ok(())
        }
        Some([b'{', ..]) => {
            if let Some(brace) = buffer.get_mut(start) {
                *brace = b',';
            }
            Ok(())
        }
        _ => Err(serde::ser::Error::custom(format_args!("{kind} does not serialise as an object"))),
    }
}

/// Writes a list of encoded objects, item by item, as compact JSON. An empty one has `"items":[]`.
#[derive(Debug)]
pub struct ListWriter {
    buffer: Vec<u8>,
    empty: bool,
}

impl ListWriter {
    /// Begins a list of this kind, for example `PizzaList`.
    pub fn new(kind: &str, api_version: &str, metadata: &ListMeta) -> Self {
        let mut buffer = head(kind, api_version);
        push_field(&mut buffer, "metadata", metadata);
        buffer.extend_from_slice(br#","items":["#);
        Self { buffer, empty: true }
    }

    /// Adds an object, which is compact JSON already.
    pub fn item(&mut self, json: &[u8]) {
        self.with_item(|buffer| buffer.extend_from_slice(json));
    }

    /// Lets `write` add an object at the end of the buffer.
    pub fn with_item<R>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        if !std::mem::replace(&mut self.empty, false) {
            self.buffer.push(b',');
        }
        write(&mut self.buffer)
    }

    /// Ends the list.
    pub fn finish(mut self) -> Vec<u8> {
        self.buffer.extend_from_slice(b"]}");
        self.buffer
    }
}

/// A watch event, one line of JSON with its line feed. `event_type` is `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or
/// `ERROR`; the object is compact JSON already.
pub fn watch_event(event_type: &str, object: &[u8]) -> Vec<u8> {
    let mut line = Vec::with_capacity(object.len() + event_type.len() + 24);
    line.extend_from_slice(br#"{"type":""#);
    line.extend_from_slice(event_type.as_bytes());
    line.extend_from_slice(br#"","object":"#);
    line.extend_from_slice(object);
    line.extend_from_slice(b"}\n");
    line
}

/// Turns compact JSON into what the client wants to read: JSON with a line feed, laid-out JSON, or YAML.
///
/// # Errors
/// When `json` is none.
pub fn render(format: &OutputFormat, json: Vec<u8>) -> Result<Vec<u8>, serde_json::Error> {
    match format.media {
        MediaType::Json if format.pretty => Ok(format::indent(&json)),
        MediaType::Json => {
            let mut json = json;
            json.push(b'\n');
            Ok(json)
        }
        MediaType::Yaml => yaml::from_json(&json),
    }
}

#[cfg(test)]
mod tests;
