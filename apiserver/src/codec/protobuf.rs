//! Objects in protocol buffers, `application/vnd.kubernetes.protobuf`: byte for byte what gogo's generated code writes.
//!
//! A type gets its form by a table beside it ([`protobuf!`](crate::protobuf!)); those that all APIs share have one here. What travels is
//! an [envelope](Unknown), and in watches [frames](watch_frame) of events with envelopes in them.
//!
//! Decoding is as lenient as Go towards what it does not know (unknown fields are passed over, groups too) and towards
//! repeated fields (the last one counts, messages are merged), and as strict towards what is no message. It is stricter
//! where Go takes what it cannot show: texts are UTF-8, `fieldsV1` is JSON, times are before the year 10000. And it is where Go
//! does not look: keys and values of maps are encoded as their types are and end within their entry, and nesting ends at
//! [`MAX_DEPTH`].
//!
//! What decoding allocates grows with the input only: nothing is reserved because of a length that the input claims.

mod envelope;
mod error;
mod meta;
mod table;
mod util;
mod value;
mod watch;
mod wire;

pub use self::{
    envelope::{ListWriter, PREFIX, Unknown, is_envelope, object},
    error::{Error, FieldName},
    meta::{PartialObjectMetadata, PartialObjectMetadataList, write_partial},
    value::{AlwaysField, Field, Value, WrappedField},
    watch::{RawExtension, WatchEvent, watch_frame},
    wire::{Key, MAX_DEPTH, Reader, WireType, write_delimited, write_key, write_nested, write_varint},
};
#[doc(hidden)]
pub use self::{
    table::check_numbers,
    value::{read_text, write_text},
};

/// A type with numbered fields. [`protobuf!`](crate::protobuf!) implements it.
pub trait Message: Sized {
    /// The message's name, for errors.
    const NAME: &'static str;

    /// The message that is encoded in no bytes at all.
    fn empty() -> Self;

    /// Writes the fields in the order of their numbers.
    fn write_fields(&self, out: &mut Vec<u8>);

    /// Reads the field with this key, or leaves it unread and answers `false` when there is none.
    ///
    /// # Errors
    /// When the bytes are not what the field can hold.
    fn merge_field(&mut self, key: Key, reader: &mut Reader<'_>) -> Result<bool, Error>;

    /// Reads all fields.
    ///
    /// # Errors
    /// When the bytes are no message, or a field cannot hold what they say.
    fn merge_fields(&mut self, reader: &mut Reader<'_>) -> Result<(), Error> {
        while let Some(key) = reader.key(Self::NAME)? {
            if !self.merge_field(key, reader)? {
                reader.skip(key)?;
            }
        }
        Ok(())
    }
}

/// Encodes a message without envelope.
pub fn encode<M: Message>(message: &M) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    message.write_fields(&mut out);
    out
}

/// Decodes a message without envelope.
///
/// # Errors
/// When the bytes are no message, or a field cannot hold what they say.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, Error> {
    let mut message = M::empty();
    message.merge_fields(&mut Reader::new(bytes))?;
    Ok(message)
}

#[cfg(test)]
mod tests;
