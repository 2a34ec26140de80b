//! What is particular about a resource: the author's part.

use async_trait::async_trait;
use serde_json::Value;

use crate::{
    meta::{Object, ResourceNames},
    request::RequestContext,
    status::Status,
    table::Column,
    validation::ErrorList,
};

/// How objects of one resource are made, changed, checked and shown.
///
/// The library takes care of metadata (names, uid, timestamps, generation, finalizers, resource versions) before and
/// after these hooks (k8s.io/apiserver `pkg/registry/rest/{create,update,delete}.go`).
#[async_trait]
pub trait Strategy: Send + Sync + 'static {
    /// The hub type.
    type Object: Object;

    /// The resource's names.
    fn names(&self) -> ResourceNames;

    /// Fills in and resets what clients may not choose at creation, `status` above all. May wait; it runs inside the write.
    ///
    /// # Errors
    /// Refuses the request with this status.
    async fn prepare_for_create(&self, _context: &RequestContext, _object: &mut Self::Object) -> Result<(), Status> {
        Ok(())
    }

    /// The same before an update of the main resource. Runs again when the write is retried.
    ///
    /// # Errors
    /// Refuses the request with this status.
    async fn prepare_for_update(
        &self,
        _context: &RequestContext,
        _object: &mut Self::Object,
        _old: &Self::Object,
    ) -> Result<(), Status> {
        Ok(())
    }

    /// Checks an object that is to be created.
    fn validate(&self, object: &Self::Object) -> ErrorList;

    /// Checks an object that is to replace another.
    fn validate_update(&self, object: &Self::Object, _old: &Self::Object) -> ErrorList {
        self.validate(object)
    }

    /// Whether there is a `/status` subresource, and how it and the main resource keep out of each other's way.
    fn status(&self) -> Option<&dyn StatusStrategy<Self::Object>> {
        None
    }

    /// Whether spec-like content differs, so that `metadata.generation` counts up. `None`: the resource has no generation.
    fn generation_changes(&self, _object: &Self::Object, _old: &Self::Object) -> Option<bool> {
        None
    }

    /// Warnings that go with a successful deletion, for example that the object is in use.
    async fn warnings_on_delete(&self, _context: &RequestContext, _object: &Self::Object) -> Vec<String> {
        Vec::new()
    }

    /// Warnings that go with a write.
    fn warnings(&self, _object: &Self::Object) -> Vec<String> {
        Vec::new()
    }

    /// Whether PUT may create.
    fn allow_create_on_update(&self) -> bool {
        false
    }

    /// Whether PUT may leave out `metadata.resourceVersion`.
    fn allow_unconditional_update(&self) -> bool {
        false
    }

    /// The columns of the resource's tables, the name's column first.
    fn columns(&self) -> Vec<Column>;

    /// One row, a cell for each of [`columns`](Self::columns).
    fn row(&self, object: &Self::Object) -> Vec<Value>;
}

/// The `/status` subresource of a resource.
pub trait StatusStrategy<T>: Send + Sync {
    /// For a write to the main resource: gives the new object the old one's status.
    fn keep_status(&self, object: &mut T, old: Option<&T>);

    /// For a write to `/status`: gives the new object everything but status from the old one.
    fn keep_all_but_status(&self, object: &mut T, old: &T);

    /// Checks a new status.
    fn validate(&self, object: &T, old: &T) -> ErrorList;
}
