//! Kubernetes' structured merge: who owns which field of an object, and what an apply makes of it.
//!
//! An applied configuration is merged into the stored object by a [schema], and every field remembers who set it last:
//! the [managed fields](managed_fields). The crate does what sigs.k8s.io/structured-merge-diff v6 and
//! k8s.io/apimachinery's `managedfields` of v0.37 do, and knows nothing of servers: objects are [values](value),
//! versions are converted by a trait, and the time comes in as a value.
//!
//! From the inside out:
//!
//! - [`value`]: what JSON holds, with Kubernetes' order and equality;
//! - [`schema`]: which lists and maps are merged and which are replaced, from OpenAPI definitions;
//! - [`fieldpath`]: paths, and sets of them, in memory and as `fieldsV1`;
//! - [`typed`]: values with a type, which are validated, compared, merged and pruned;
//! - [`updater`]: what an update and an apply do to an object and its managers;
//! - [`managed_fields`]: the same for whole objects, with `metadata.managedFields` on the wire.
//!
//! What comes from outside is at most [`MAX_DEPTH`] deep, so that no walk can exhaust the stack.

#![forbid(unsafe_code)]

pub mod fieldpath;
pub mod managed_fields;
pub mod schema;
pub mod typed;
pub mod updater;
pub mod value;

mod kind;
mod text;

pub use self::kind::Kind;

/// How deep a value, a path or a schema may be. An API server's JSON is at most 120 deep.
pub const MAX_DEPTH: usize = 200;
