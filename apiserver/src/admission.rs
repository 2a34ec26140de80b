//! Admission: plugins that change or refuse what is about to be written.
//!
//! Mutating plugins run first, then, on the final object, validating ones; a plugin may be both. The order is the
//! order in which the server names them in its log (k8s.io/apiserver `pkg/admission`).

pub mod chain;
pub mod namespace_lifecycle;

use std::any::Any;

use async_trait::async_trait;

pub use self::chain::{Chain, PluginSelectionError, Plugins};
use crate::{
    meta::{GroupResource, GroupVersionKind},
    request::{RequestContext, UserInfo},
    status::Status,
};

/// What a request is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// An object is created.
    Create,
    /// An object is changed.
    Update,
    /// An object is removed.
    Delete,
    /// A streaming subresource is opened.
    Connect,
}

/// The request as admission plugins see it. Objects are of the hub type.
pub struct Attributes<'a> {
    /// The request.
    pub context: &'a RequestContext,
    /// What it is about to do.
    pub operation: Operation,
    /// The kind, in the version of the request.
    pub kind: GroupVersionKind,
    /// The resource.
    pub resource: GroupResource,
    /// The subresource, empty for none.
    pub subresource: &'a str,
    /// The namespace, empty for none.
    pub namespace: &'a str,
    /// The object's name; empty when it is yet to be generated.
    pub name: &'a str,
    /// Whether nothing is to be stored.
    pub dry_run: bool,
    /// The new object; `None` for deletes.
    pub object: Option<&'a mut (dyn Any + Send + Sync)>,
    /// The stored object; `None` for creates.
    pub old_object: Option<&'a (dyn Any + Send + Sync)>,
}

/// An admission plugin.
#[async_trait]
pub trait Plugin: Send + Sync + 'static {
    /// The name that `--disable-admission-plugins` takes, for example `NamespaceLifecycle`.
    fn name(&self) -> &'static str;

    /// Whether the plugin wants to see this operation.
    fn handles(&self, operation: Operation) -> bool;

    /// Changes the object.
    ///
    /// # Errors
    /// Refuses the request with this status.
    async fn admit(&self, _attributes: &mut Attributes<'_>) -> Result<(), Status> {
        Ok(())
    }

    /// Looks at the final object.
    ///
    /// # Errors
    /// Refuses the request with this status.
    async fn validate(&self, _attributes: &Attributes<'_>) -> Result<(), Status> {
        Ok(())
    }
}

// === impl Attributes ===

impl Attributes<'_> {
    /// The user who asks.
    pub fn user(&self) -> &UserInfo {
        &self.context.user
    }

    /// The new object, if it is of this hub type.
    pub fn object<T: 'static>(&self) -> Option<&T> {
        self.object.as_deref().and_then(|o| o.downcast_ref())
    }

    /// The new object, to change, if it is of this hub type.
    pub fn object_mut<T: 'static>(&mut self) -> Option<&mut T> {
        self.object.as_deref_mut().and_then(|o| o.downcast_mut())
    }

    /// The stored object, if it is of this hub type.
    pub fn old_object<T: 'static>(&self) -> Option<&T> {
        self.old_object.and_then(|o| o.downcast_ref())
    }
}
