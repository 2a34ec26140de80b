//! Why bytes are no message.

use std::fmt;

/// A field's name. It is shown as Go spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldName {
    name: &'static str,
    /// The field's type, when it is a message.
    message: Option<&'static str>,
}

/// Why bytes are no object in protocol buffers, in the words of Kubernetes' serializer and of gogo's generated code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There are no bytes at all.
    #[error("empty data")]
    EmptyData,
    /// The bytes do not begin with `k8s\0`.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoPrefix,
    /// Nothing follows `k8s\0`.
    #[error("empty body")]
    EmptyBody,
    /// The envelope names no kind, and no other is known.
    #[error("Object 'Kind' is missing in '{0}'")]
    MissingKind(String),
    /// The envelope names no version that can be read, and no other is known.
    #[error("Object 'apiVersion' is missing in '{0}'")]
    MissingVersion(String),
    /// The bytes end where something is still to come.
    #[error("unexpected EOF")]
    UnexpectedEof,
    /// A varint has more than ten bytes.
    #[error("proto: integer overflow")]
    IntegerOverflow,
    /// A length is beyond what there can be.
    #[error("proto: negative length found during unmarshaling")]
    NegativeLength,
    /// A group ends that did not begin, inside a map's entry.
    #[error("proto: unexpected end of group")]
    UnexpectedEndOfGroup,
    /// A group ends that did not begin.
    #[error("proto: {message}: wiretype end group for non-group")]
    EndOfNoGroup {
        /// The message's name.
        message: &'static str,
    },
    /// A field has a number that no field can have.
    #[error("proto: {message}: illegal tag {number} (wire type {key})")]
    IllegalTag {
        /// The message's name.
        message: &'static str,
        /// The number.
        number: i32,
        /// Number and wire type as they were read.
        key: u64,
    },
    /// An unknown field is encoded in a way that there is not.
    #[error("proto: illegal wireType {0}")]
    IllegalWireType(u8),
    /// A field is encoded in another way than its type is.
    #[error("proto: wrong wireType = {wire_type} for field {field}")]
    WrongWireType {
        /// The way that was found.
        wire_type: u8,
        /// The field.
        field: FieldName,
    },
    /// A text is not UTF-8. Go keeps such texts, and spoils them when it writes JSON.
    #[error("proto: field {0} contains invalid UTF-8")]
    InvalidUtf8(FieldName),
    /// A field has a value that its type cannot have.
    #[error("proto: field {field}: {message}")]
    Unsuitable {
        /// The field.
        field: FieldName,
        /// What is wrong.
        message: String,
    },
    /// Messages are nested deeper than [`MAX_DEPTH`](super::MAX_DEPTH).
    #[error("proto: messages are nested too deep")]
    TooDeep,
    /// A watch event is longer than its frame can tell.
    #[error("the watch event is too long for a frame")]
    FrameTooLong,
}

// === impl FieldName ===

impl FieldName {
    /// The field with this name in Rust, for example `resource_version`.
    pub const fn new(name: &'static str) -> Self {
        Self { name, message: None }
    }

    /// The same with its type, if that is a message.
    pub(super) const fn of(self, message: Option<&'static str>) -> Self {
        Self { name: self.name, message }
    }
}

impl fmt::Display for FieldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In Go, metadata is embedded, and such a field is called as its type.
        if let ("metadata", Some(message)) = (self.name, self.message) {
            return f.write_str(message);
        }
        for word in self.name.split('_') {
            match word {
                "api" | "uid" | "cidr" => f.write_str(&word.to_ascii_uppercase())?,
                "cidrs" => f.write_str("CIDRs")?,
                _ => {
                    let mut chars = word.chars();
                    if let Some(first) = chars.next() {
                        write!(f, "{}{}", first.to_ascii_uppercase(), chars.as_str())?;
                    }
                }
            }
        }
        Ok(())
    }
}
