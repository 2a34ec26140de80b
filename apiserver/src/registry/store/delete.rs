//! Removing objects: at once, or by marking them when something is to be done first.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Attempt, List, Preconditions, Store, Stored, Write, name_of, timed_out};
use crate::{
    admission,
    list_options::ListOptions,
    meta::{GroupResource, Object as _},
    registry::{errors::Operation, metadata, strategy::Strategy},
    status::{Reason, Status},
    storage::{Expected, Written},
};

/// How many objects are read at once when a collection is deleted
/// (k8s.io/apiserver `pkg/registry/generic/registry/store.go`, `deleteCollectionPageSize`).
const COLLECTION_PAGE: i64 = 10_000;

/// What a deletion came to.
#[derive(Clone, Debug)]
pub struct Deleted<H> {
    /// The object: as it was last when it is gone, as it is stored now when it is only marked.
    pub object: H,
    /// Whether it is gone.
    pub gone: bool,
}

// === impl Store ===

impl<S: Strategy> Store<S> {
    /// Deletes an object, or marks it when it has finalizers or `options` ask the garbage collector for something.
    ///
    /// # Errors
    /// 404 when there is none, 409 for a precondition that does not hold, and whatever admission plugins refuse.
    pub async fn delete(
        &self,
        write: &Write<'_>,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted<S::Object>, Status> {
        self.delete_seen_as(write, name, name, options).await
    }

    /// The same, where admission is told another name: none, for the objects of a collection.
    async fn delete_seen_as(
        &self,
        write: &Write<'_>,
        name: &str,
        admission_name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted<S::Object>, Status> {
        let key = self.inner.keys.object(self.namespace_of(write), name)?;
        let deadline = write.deadline();
        let not_found = || Status::not_found(&self.inner.resource, name);
        let preconditions = preconditions_of(options);

        let mut current = self.current(&key, Operation::Delete).await?.ok_or_else(not_found)?;
        self.check_early(options, &current)?;
        loop {
            let meta = current.object.metadata();
            preconditions.check(Some(meta)).map_err(|problem| self.precondition_failed(&key, name, &problem))?;
            self.admit_deletion(write, admission_name, &current.object).await?;

            let finalizers = metadata::deletion_finalizers(current.object.metadata(), options);
            let attempt = if finalizers.is_some() || metadata::has_finalizers(current.object.metadata()) {
                self.mark_or_remove(write, &key, current, finalizers).await?
            } else {
                self.remove(write, &key, current).await?
            };
            match attempt {
                Attempt::Done(deleted) => {
                    for warning in self.inner.strategy.warnings_on_delete(write.context, &deleted.object).await {
                        write.context.warnings.add(warning);
                    }
                    return Ok(deleted);
                }
                Attempt::Again(_) if Instant::now() >= deadline => return Err(timed_out()),
                Attempt::Again(now) => current = now.ok_or_else(not_found)?,
            }
        }
    }

    async fn mark_or_remove(
        &self,
        write: &Write<'_>,
        key: &str,
        current: Stored<S::Object>,
        finalizers: Option<Vec<String>>,
    ) -> Result<Attempt<Deleted<S::Object>, S::Object>, Status> {
        let mut object = current.object.clone();
        let meta = object.metadata_mut();
        if let Some(finalizers) = finalizers {
            meta.finalizers = Some(finalizers).filter(|f| !f.is_empty());
        }
        if !metadata::has_finalizers(meta) {
            return self.remove(write, key, current).await;
        }
        metadata::mark_as_deleting(meta, metadata::now());
        let bytes = self.encode(&object)?;
        if bytes == current.bytes {
            return Ok(Attempt::Done(Deleted { object: current.object, gone: false }));
        }
        if write.dry_run {
            let object = self.dry_run_result(&bytes, Some(current.revision))?;
            return Ok(Attempt::Done(Deleted { object, gone: false }));
        }
        let written = self.storage().put(key, Expected::At(current.revision), bytes.clone(), None).await;
        match written.map_err(|e| self.storage_error(e, Operation::Update))? {
            Written::Done(revision) => {
                Ok(Attempt::Done(Deleted { object: self.result(&bytes, revision)?, gone: false }))
            }
            Written::Conflict(now) => Ok(Attempt::Again(now.map(|kv| self.decode_current(kv)).transpose()?)),
        }
    }

    async fn remove(
        &self,
        write: &Write<'_>,
        key: &str,
        current: Stored<S::Object>,
    ) -> Result<Attempt<Deleted<S::Object>, S::Object>, Status> {
        if !write.dry_run {
            let written = self.storage().delete(key, current.revision).await;
            if let Written::Conflict(now) = written.map_err(|e| self.storage_error(e, Operation::Delete))? {
                return Ok(Attempt::Again(now.map(|kv| self.decode_current(kv)).transpose()?));
            }
        }
        Ok(Attempt::Done(Deleted { object: current.object, gone: true }))
    }

    /// Preconditions that do not hold at the first look have a text of their own, which names the kind.
    fn check_early(&self, options: &DeleteOptions, current: &Stored<S::Object>) -> Result<(), Status> {
        let Some(preconditions) = &options.preconditions else { return Ok(()) };
        let meta = current.object.metadata();
        let kind = self.group_kind();
        let kind = GroupResource { group: kind.group, resource: kind.kind };
        let uid = meta.uid.as_deref().unwrap_or_default();
        if let Some(wanted) = preconditions.uid.as_deref().filter(|wanted| *wanted != uid) {
            return Err(Status::conflict(
                &kind,
                name_of(meta),
                format_args!(
                    "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might \
                     have been deleted and then recreated"
                ),
            ));
        }
        let version = meta.resource_version.as_deref().unwrap_or_default();
        if let Some(wanted) = preconditions.resource_version.as_deref().filter(|wanted| *wanted != version) {
            return Err(Status::conflict(
                &kind,
                name_of(meta),
                format_args!(
                    "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record \
                     ({version}). The object might have been modified"
                ),
            ));
        }
        Ok(())
    }

    async fn admit_deletion(&self, write: &Write<'_>, name: &str, object: &S::Object) -> Result<(), Status> {
        let mut attributes = self.attributes(write, admission::Operation::Delete, name);
        attributes.old_object = Some(object);
        let admission = &self.inner.environment.admission;
        admission.admit(&mut attributes).await?;
        admission.validate(&attributes).await
    }

    /// Deletes every object that a list with these options shows, one after the other, and returns them as they were
    /// found. It is not atomic: after an error, or when `cancelled`, some are gone and some are not.
    ///
    /// # Errors
    /// The first error but "not found".
    pub async fn delete_collection(
        &self,
        write: &Write<'_>,
        options: &DeleteOptions,
        list: &ListOptions,
        cancelled: &CancellationToken,
    ) -> Result<List<S::Object>, Status> {
        let mut list = list.clone();
        let limited = list.limit > 0;
        if !limited {
            list.limit = COLLECTION_PAGE;
        }
        let mut found: Option<List<S::Object>> = None;
        loop {
            let page = self.list(write.namespace, &list).await?;
            for object in &page.items {
                if cancelled.is_cancelled() {
                    return Err(timed_out());
                }
                let meta = object.metadata();
                let namespace = meta.namespace.as_deref().unwrap_or_default();
                match self.delete_seen_as(&Write { namespace, ..*write }, name_of(meta), "", options).await {
                    Ok(_) => {}
                    Err(status) if status.is(Reason::NotFound) => {}
                    Err(status) => return Err(status),
                }
            }
            let next = page.next.clone().filter(|_| !limited);
            let all = match found.take() {
                None => page,
                Some(mut all) => {
                    all.items.extend(page.items);
                    all
                }
            };
            let Some(token) = next else { return Ok(all) };
            list.continue_token = token;
            list.resource_version.clear();
            list.resource_version_match = None;
            found = Some(all);
        }
    }
}

fn preconditions_of(options: &DeleteOptions) -> Preconditions {
    let given = options.preconditions.clone().unwrap_or_default();
    Preconditions { uid: given.uid, resource_version: given.resource_version }
}
