//! Whole objects with their managed fields (apimachinery, `pkg/util/managedfields`).
//!
//! A [`FieldManager`] stands where a server has an object to write. Around the [updater](crate::updater) it has the layers
//! of Go's, one function each, the outermost first:
//!
//! | layer | update | apply |
//! |---|---|---|
//! | field manager | reads `managedFields` of the new object or the live one | reads those of the live one |
//! | version check | | the body is of the request's kind |
//! | last-applied updater | | keeps kubectl's annotation up to date |
//! | last-applied manager | | forgives conflicts with what kubectl applied on the client's side |
//! | skip | tracks nothing that was never tracked | gives what is there to `before-first-apply` |
//! | cap | folds the oldest updaters into one | |
//! | manager's identifier | name, operation, version, subresource | the same |
//! | times | of a manager that changed something | the same |
//! | metadata | nobody owns the name and the like | the same |
//! | structured merge | [`crate::updater::Updater::update`] | [`crate::updater::Updater::apply`] |

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use crate::{
    Kind,
    fieldpath::Filter,
    schema::openapi::Models,
    typed::Type,
    updater::{ConvertError, Force},
    value::Value,
};

mod apply;
mod cap;
mod conflict;
mod error;
mod last_applied;
mod name;
mod object;
mod structured;
mod timestamps;
mod update;
mod wire;

pub use self::{
    conflict::{Cause, ConflictError},
    error::{FieldManagerError, TypeError},
    name::{MAX_NAME, manager_name},
    timestamps::keep_times,
    wire::{DecodeError, ManagedFieldsEntry, Operation, State},
};

/// What a server knows of the versions of its objects.
pub trait Objects {
    /// Converts an object to a version, given as `group/version`. One that has the version already is to be returned as it
    /// is. Objects may lack fields that the API requires.
    ///
    /// # Errors
    /// When the version, or the object's own, is not known: [`ConvertError::MissingVersion`]. When it cannot be converted.
    fn convert(&self, object: &Value, version: &str) -> Result<Value, ConvertError>;

    /// Sets what the object leaves out, in the version that it has.
    fn default(&self, object: &mut Value);
}

/// The types of objects.
pub trait Types {
    /// The type of a kind, if there is one.
    fn type_of(&self, kind: &Kind) -> Option<Type>;
}

impl Types for Models {
    fn type_of(&self, kind: &Kind) -> Option<Type> {
        self.kind(kind)
    }
}

/// The types of objects that have no schema.
#[derive(Clone, Copy, Debug)]
pub struct Untyped;

impl Types for Untyped {
    fn type_of(&self, _: &Kind) -> Option<Type> {
        Some(Type::deduced())
    }
}

/// Manages the fields of one kind of objects for requests in one version.
#[derive(Clone, Copy)]
pub struct FieldManager<'a> {
    /// The types of all versions.
    pub types: &'a dyn Types,
    /// Conversion and defaults.
    pub objects: &'a dyn Objects,
    /// The kind, in the version of the requests.
    pub kind: &'a Kind,
    /// The version, as `group/version`, through which conversions go and in which objects are handed in and out.
    pub hub: &'a str,
    /// The subresource of the requests, empty for the object itself.
    pub subresource: &'a str,
    /// What the server resets, by `group/version`; every version that is served should be there. It is neither owned nor
    /// does it conflict.
    pub reset_fields: &'a BTreeMap<Arc<str>, Filter>,
}

/// What a request says besides the objects.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The manager's name, see [`manager_name`].
    pub manager: &'a str,
    /// Whether an apply takes what others own; updates always do.
    pub force: Force,
    /// The time.
    pub now: Timestamp,
}

impl std::fmt::Debug for FieldManager<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("FieldManager")
            .field("kind", self.kind)
            .field("hub", &self.hub)
            .field("subresource", &self.subresource)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
