//! Selectors: which objects a list, a watch or a deletion of a collection is about
//! (k8s.io/apimachinery `pkg/fields`, `pkg/labels`).

mod field;
mod label;

pub use self::{
    field::{FieldRequirement, FieldSelector},
    label::{LabelRequirement, LabelSelector, Operator},
};

/// A selector that cannot be understood. The message is Go's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(String);
