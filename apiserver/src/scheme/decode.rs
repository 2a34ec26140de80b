//! What decoding takes and gives.

use crate::{quote::quote, status::Status};

/// What happens to fields that are unknown or given twice: the query's `fieldValidation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// They are dropped without a word.
    Ignore,
    /// They are dropped with a warning for each.
    #[default]
    Warn,
    /// They are an error.
    Strict,
}

/// An object from the wire.
#[derive(Clone, Debug)]
pub struct Decoded<H> {
    /// The object, defaulted and converted.
    pub object: H,
    /// What the client is to be warned of.
    pub warnings: Vec<String>,
}

/// Why a body is no object of the kind.
///
/// [`Status`] converts from it, with the text that create and update answer; the text of the error itself is what stands
/// behind the last colon there.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// The body is not JSON (or YAML), or says not what it is.
    #[error("{message}")]
    Unrecognized {
        /// What is wrong.
        message: String,
        /// The kind that was wanted.
        wanted: &'static str,
        /// The beginning of the body.
        summary: String,
    },
    /// The body is an object, but not one of this kind: another kind, another version, a field of the wrong type.
    #[error("{message}")]
    Unsuitable {
        /// What is wrong.
        message: String,
        /// The kind that was wanted.
        wanted: &'static str,
        /// The kind that the body names.
        kind: String,
        /// The version that the body names.
        version: String,
    },
    /// The body is in a version of the kind, but not in the one that the path names.
    #[error("the API version in the data ({found}) does not match the expected API version ({expected})")]
    OtherVersion {
        /// The body's `apiVersion`.
        found: String,
        /// The path's.
        expected: String,
    },
}

impl From<DecodeError> for Status {
    /// 400, worded as k8s.io/apiserver `pkg/endpoints/handlers/rest.go` (`transformDecodeError`) does.
    fn from(error: DecodeError) -> Self {
        Status::bad_request(match &error {
            DecodeError::Unrecognized { message, wanted, summary } => {
                format!("the object provided is unrecognized (must be of type {wanted}): {message} ({summary})")
            }
            DecodeError::Unsuitable { message, wanted, kind, version } => {
                format!("{kind} in version {} cannot be handled as a {wanted}: {message}", quote(version))
            }
            DecodeError::OtherVersion { .. } => error.to_string(),
        })
    }
}

/// The text of a strict decoding error (k8s.io/apimachinery `pkg/runtime/error.go`).
pub(crate) fn strict_message(errors: &[String]) -> String {
    format!("strict decoding error: {}", errors.join(", "))
}
