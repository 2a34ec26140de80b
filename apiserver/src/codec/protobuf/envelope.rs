//! What tells an object's kind: `k8s\0` and `runtime.Unknown` (k8s.io/apimachinery `pkg/runtime/serializer/protobuf`).

use super::{
    Error, Field, FieldName, Message, Reader, WireType,
    value::read_str,
    wire::{write_delimited, write_key, write_nested},
};
use crate::{
    meta::{GroupVersionKind, ListMeta},
    protobuf,
    quote::quote,
};

/// What every envelope begins with.
pub const PREFIX: [u8; 4] = *b"k8s\0";

/// An object in its envelope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unknown<'a> {
    /// The object's `apiVersion`.
    pub api_version: String,
    /// The object's kind.
    pub kind: String,
    /// The object: a message of its kind. Go reads it as one whatever the content type says.
    pub raw: &'a [u8],
    /// How `raw` is compressed. Kubernetes leaves this empty.
    pub content_encoding: String,
    /// What `raw` is, when it is no message.
    pub content_type: String,
}

/// Writes the envelope of a list item by item. The fields of lists are `metadata = 1` and `items = 2` for all kinds.
#[derive(Debug)]
pub struct ListWriter {
    kind: String,
    api_version: String,
    raw: Vec<u8>,
}

#[derive(Default)]
struct TypeMeta {
    api_version: String,
    kind: String,
}

protobuf! {
    TypeMeta {
        api_version = 1,
        kind = 2,
    }
}

/// Whether these bytes are an envelope, or the beginning of one.
pub fn is_envelope(bytes: &[u8]) -> bool {
    bytes.starts_with(&PREFIX)
}

/// Encodes an object with its envelope.
pub fn object<M: Message>(kind: &str, api_version: &str, object: &M) -> Vec<u8> {
    with_raw(kind, api_version, "", "", |out| object.write_fields(out))
}

fn with_raw(
    kind: &str,
    api_version: &str,
    content_encoding: &str,
    content_type: &str,
    raw: impl FnOnce(&mut Vec<u8>),
) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(&PREFIX);
    write_key(&mut out, 1, WireType::Delimited);
    write_nested(&mut out, |out| {
        for (number, text) in [(1, api_version), (2, kind)] {
            write_text_field(out, number, text);
        }
    });
    write_key(&mut out, 2, WireType::Delimited);
    write_nested(&mut out, raw);
    write_text_field(&mut out, 3, content_encoding);
    write_text_field(&mut out, 4, content_type);
    out
}

fn write_text_field(out: &mut Vec<u8>, number: u32, text: &str) {
    write_key(out, number, WireType::Delimited);
    write_delimited(out, text.as_bytes());
}

// === impl Unknown ===

impl<'a> Unknown<'a> {
    /// Writes the envelope around what is in it.
    pub fn encode(&self) -> Vec<u8> {
        with_raw(&self.kind, &self.api_version, &self.content_encoding, &self.content_type, |out| {
            out.extend_from_slice(self.raw);
        })
    }

    /// Opens an envelope. What is in it is not looked at.
    ///
    /// # Errors
    /// When the bytes are no envelope.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Error> {
        let body = match bytes.strip_prefix(&PREFIX) {
            _ if bytes.is_empty() => return Err(Error::EmptyData),
            None => return Err(Error::NoPrefix),
            Some([]) => return Err(Error::EmptyBody),
            Some(body) => body,
        };
        let mut type_meta = TypeMeta::default();
        let mut unknown = Unknown::default();
        let mut reader = Reader::new(body);
        while let Some(key) = reader.key("Unknown")? {
            match key.number() {
                1 => Field::merge_field(&mut type_meta, key, &mut reader, FieldName::new("type_meta"))?,
                2 => {
                    key.expect(WireType::Delimited, FieldName::new("raw"))?;
                    unknown.raw = reader.delimited()?;
                }
                3 => {
                    let field = FieldName::new("content_encoding");
                    key.expect(WireType::Delimited, field)?;
                    unknown.content_encoding = read_str(&mut reader, field)?.to_owned();
                }
                4 => {
                    let field = FieldName::new("content_type");
                    key.expect(WireType::Delimited, field)?;
                    unknown.content_type = read_str(&mut reader, field)?.to_owned();
                }
                _ => reader.skip(key)?,
            }
        }
        let TypeMeta { api_version, kind } = type_meta;
        Ok(Unknown { api_version, kind, ..unknown })
    }

    /// The kind in the envelope. What it leaves out is as in `default`.
    ///
    /// # Errors
    /// When the kind or the version is said nowhere. An `apiVersion` that is none counts as left out, as in Go.
    pub fn group_version_kind(&self, default: Option<&GroupVersionKind>) -> Result<GroupVersionKind, Error> {
        let (group, version) = match self.api_version.split_once('/') {
            None => ("", self.api_version.as_str()),
            Some((_, version)) if version.contains('/') => ("", ""),
            Some(parts) => parts,
        };
        let mut found =
            GroupVersionKind { group: group.to_owned(), version: version.to_owned(), kind: self.kind.clone() };
        if let Some(default) = default {
            if found.kind.is_empty() {
                found.kind.clone_from(&default.kind);
            }
            if found.version.is_empty() && !default.version.is_empty() {
                found.group.clone_from(&default.group);
                found.version.clone_from(&default.version);
            }
        }
        let said =
            || format!("runtime.TypeMeta{{APIVersion:{}, Kind:{}}}", quote(&self.api_version), quote(&self.kind));
        if found.kind.is_empty() {
            return Err(Error::MissingKind(said()));
        }
        if found.version.is_empty() {
            return Err(Error::MissingVersion(said()));
        }
        Ok(found)
    }
}

// === impl ListWriter ===

impl ListWriter {
    /// Begins a list of this kind, for example `PizzaList`.
    pub fn new(kind: &str, api_version: &str, metadata: &ListMeta) -> Self {
        let mut raw = Vec::with_capacity(1024);
        metadata.write_field(1, &mut raw);
        Self { kind: kind.to_owned(), api_version: api_version.to_owned(), raw }
    }

    /// Adds an object.
    pub fn item<M: Message>(&mut self, item: &M) {
        self.with_item(|out| item.write_fields(out));
    }

    /// Lets `write` add the fields of an object.
    pub fn with_item(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write_key(&mut self.raw, 2, WireType::Delimited);
        write_nested(&mut self.raw, write);
    }

    /// Ends the list, and puts it into its envelope.
    pub fn finish(self) -> Vec<u8> {
        with_raw(&self.kind, &self.api_version, "", "", |out| out.extend_from_slice(&self.raw))
    }
}
