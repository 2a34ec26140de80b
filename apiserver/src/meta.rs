//! Names of the field: groups, versions, kinds, resources, and the metadata that every object carries.

use std::fmt;

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    ListMeta, ManagedFieldsEntry, ObjectMeta, OwnerReference, Time,
};

/// A group and one of its versions, written `group/version`, or just the version when the group is the nameless one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersion {
    /// The API group, for example `restaurant.programming-kubernetes.info`.
    pub group: String,
    /// The version, for example `v1beta1`.
    pub version: String,
}

/// A kind in a group and version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupVersionKind {
    /// The API group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The kind, for example `Pizza`.
    pub kind: String,
}

/// A resource in a group, without version: what errors and authorisation speak of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupResource {
    /// The API group.
    pub group: String,
    /// The plural name, for example `pizzas`.
    pub resource: String,
}

/// A kind in a group, without version: what validation errors speak of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupKind {
    /// The API group.
    pub group: String,
    /// The kind, for example `Pizza`.
    pub kind: String,
}

/// Whether objects live in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each object is in a namespace.
    Namespaced,
    /// Objects are the cluster's.
    Cluster,
}

/// The names under which a resource is known.
#[derive(Clone, Debug)]
pub struct ResourceNames {
    /// For example `pizzas`.
    pub plural: &'static str,
    /// For example `pizza`.
    pub singular: &'static str,
    /// For example `Pizza`.
    pub kind: &'static str,
    /// For example `["pz"]`.
    pub short_names: &'static [&'static str],
    /// For example `["all"]`.
    pub categories: &'static [&'static str],
    /// Namespaced or not.
    pub scope: Scope,
}

/// An object of a hub version: what strategies, validation and admission work on.
pub trait Object: Clone + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The object's metadata.
    fn metadata(&self) -> &ObjectMeta;
    /// The object's metadata, to change.
    fn metadata_mut(&mut self) -> &mut ObjectMeta;
}

// === impl GroupVersion ===

impl fmt::Display for GroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(&self.version) } else { write!(f, "{}/{}", self.group, self.version) }
    }
}

// === impl GroupVersionKind ===

impl GroupVersionKind {
    /// Group and version, as `apiVersion` has them.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The kind without its version.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind { group: self.group.clone(), kind: self.kind.clone() }
    }
}

// === impl GroupKind ===

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(&self.kind) } else { write!(f, "{}.{}", self.kind, self.group) }
    }
}

// === impl GroupResource ===

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(&self.resource) } else { write!(f, "{}.{}", self.resource, self.group) }
    }
}
