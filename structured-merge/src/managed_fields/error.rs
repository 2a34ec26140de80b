//! Why a field manager fails.

use super::{ConflictError, DecodeError};
use crate::{
    Kind,
    typed::ValidationErrors,
    updater::{ConvertError, UpdateError},
};

/// Why an operation failed. [`FieldManagerError::code`] is what a server answers.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FieldManagerError {
    /// The applied object is not of the request's kind.
    #[error("invalid object type: {0}")]
    Kind(Kind),
    /// The applied object is not of the request's version.
    #[error("Incorrect version specified in apply patch. Specified patch version: {found}, expected: {expected}")]
    Version {
        /// The object's.
        found: String,
        /// The request's.
        expected: String,
    },
    /// The applied object has managed fields.
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
    /// Others own what would change.
    #[error(transparent)]
    Conflict(#[from] ConflictError),
    /// The managed fields of the live object cannot be read.
    #[error("failed to decode managed fields: {0}")]
    Decode(#[from] DecodeError),
    /// An object cannot be converted.
    #[error("failed to convert {what}: {error}")]
    Convert {
        /// Which, and to what.
        what: String,
        /// Why.
        error: ConvertError,
    },
    /// An object does not fit its type.
    #[error("failed to {doing}: {error}")]
    Type {
        /// What it was needed for.
        doing: String,
        /// Why.
        error: TypeError,
    },
    /// An update failed.
    #[error("failed to update ManagedFields ({object}): {error}")]
    Update {
        /// Of which object.
        object: String,
        /// Why.
        error: UpdateError,
    },
    /// An apply failed for another reason than conflicts.
    #[error(transparent)]
    Apply(UpdateError),
    /// What was there before the first apply cannot be given to anybody.
    #[error("failed to create manager for existing fields: {0}")]
    Existing(Box<FieldManagerError>),
}

/// Why an object has no type, or does not fit it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TypeError {
    /// There is no type for its kind.
    #[error("no corresponding type for {0}")]
    NoType(Kind),
    /// It does not fit.
    #[error(transparent)]
    Invalid(#[from] ValidationErrors),
}

impl FieldManagerError {
    /// The HTTP status of the answer: 400, 409, or 500, with which Go answers even for what is wrong with the body's fields.
    pub fn code(&self) -> u16 {
        match self {
            Self::Kind(_) | Self::Version { .. } | Self::ManagedFields => 400,
            Self::Conflict(_) => 409,
            _ => 500,
        }
    }
}
