//! Objects of which only the metadata is asked for: `meta.k8s.io` PartialObjectMetadata and its list.
//! The garbage collector and metadata informers read nothing else.

use crate::{
    codec,
    meta::{ListMeta, ObjectMeta},
    negotiate::MetaVersion,
};

/// An object's metadata alone, as compact JSON.
pub fn object(version: MetaVersion, metadata: &ObjectMeta) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(512);
    push(&mut buffer, version, metadata);
    buffer
}

/// Writes an object's metadata alone to the end of `buffer`.
pub(crate) fn push(buffer: &mut Vec<u8>, version: MetaVersion, metadata: &ObjectMeta) {
    codec::push_head(buffer, "PartialObjectMetadata", version.api_version());
    codec::push_field(buffer, "metadata", metadata);
    buffer.push(b'}');
}

/// Writes a PartialObjectMetadataList item by item, as compact JSON.
#[derive(Debug)]
pub struct PartialListWriter {
    buffer: Vec<u8>,
    version: MetaVersion,
    empty: bool,
}

// === impl PartialListWriter ===

impl PartialListWriter {
    /// Begins a list.
    pub fn new(version: MetaVersion, metadata: &ListMeta) -> Self {
        let mut buffer = codec::head("PartialObjectMetadataList", version.api_version());
        codec::push_field(&mut buffer, "metadata", metadata);
        buffer.extend_from_slice(br#","items":"#);
        Self { buffer, version, empty: true }
    }

    /// Adds an object.
    pub fn item(&mut self, metadata: &ObjectMeta) {
        self.buffer.push(if self.empty { b'[' } else { b',' });
        self.empty = false;
        push(&mut self.buffer, self.version, metadata);
    }

    /// Ends the list. An empty one has `"items":null`, as Go writes it.
    pub fn finish(mut self) -> Vec<u8> {
        self.buffer.extend_from_slice(if self.empty { b"null}" } else { b"]}" });
        self.buffer
    }
}
