//! Creating objects.

use super::{Part, Store, Write, name_of};
use crate::{
    admission,
    meta::{Object as _, Scope},
    names,
    registry::{
        errors::Operation,
        metadata::{self, Stage},
        strategy::Strategy,
    },
    status::{Reason, Status},
    storage::{Expected, Freshness, Written},
    validation::{self, ErrorList},
};

/// How many names are tried for an object with `generateName`
/// (k8s.io/apiserver `pkg/registry/generic/registry/store.go`, `maxNameGenerationCreateAttempts`).
const GENERATE_NAME_ATTEMPTS: usize = 8;

impl<S: Strategy> Store<S> {
    /// Creates an object and returns it as it is stored. What only the server sets is set anew.
    ///
    /// # Errors
    /// 409 when there is one of that name, 422 when it is not valid, and whatever admission plugins refuse.
    pub async fn create(&self, write: &Write<'_>, mut object: S::Object) -> Result<S::Object, Status> {
        metadata::wipe_system_fields(object.metadata_mut());
        metadata::ensure_namespace(self.namespace_of(write), object.metadata_mut())?;
        self.put_in_order(write, &mut object, Stage::Request);
        let name = name_of(object.metadata()).to_owned();
        self.admit(write, admission::Operation::Create, &name, &mut object, None).await?;
        self.put_in_order(write, &mut object, Stage::Admitted);

        let base = object.metadata().generate_name.clone().filter(|base| !base.is_empty());
        let Some(base) = base.filter(|_| name_of(object.metadata()).is_empty()) else {
            return self.create_named(write, object).await;
        };
        let mut attempt = 1;
        loop {
            let mut named = object.clone();
            named.metadata_mut().name = Some(names::generate(&base));
            match self.create_named(write, named).await {
                Err(status) if status.is(Reason::AlreadyExists) && attempt < GENERATE_NAME_ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    async fn create_named(&self, write: &Write<'_>, mut object: S::Object) -> Result<S::Object, Status> {
        metadata::fill_system_fields(object.metadata_mut());
        self.before_create(write, &mut object).await?;
        let name = name_of(object.metadata()).to_owned();
        self.validate_admission(write, admission::Operation::Create, &name, &mut object, None).await?;

        let key = self.inner.keys.object(self.namespace_of(write), &name)?;
        if object.metadata().resource_version.as_deref().is_some_and(|rv| !rv.is_empty() && rv != "0") {
            return Err(Status::bad_request("resourceVersion should not be set on objects to be created"));
        }
        let bytes = self.encode(&object)?;
        let existing = if write.dry_run {
            let got = self.storage().get(&key, Freshness::Latest).await;
            match got.map_err(|e| self.storage_error(e, Operation::Create))?.kv {
                None => return self.dry_run_result(&bytes, None),
                Some(kv) => kv,
            }
        } else {
            let written = self.storage().put(&key, Expected::Absent, bytes.clone(), None).await;
            match written.map_err(|e| self.storage_error(e, Operation::Create))? {
                Written::Done(revision) => return self.result(&bytes, revision),
                Written::Conflict(Some(kv)) => kv,
                // It went away between the write and the look at it.
                Written::Conflict(None) => return Err(self.exists(&object)),
            }
        };
        let status = self.exists(&object);
        match self.decode(&existing) {
            Ok(existing) if existing.metadata().deletion_timestamp.is_some() => Err(being_deleted(&status)),
            _ => Err(status),
        }
    }

    fn exists(&self, object: &S::Object) -> Status {
        let meta = object.metadata();
        if meta.generate_name.as_deref().unwrap_or_default().is_empty() {
            Status::already_exists(&self.inner.resource, name_of(meta))
        } else {
            Status::generate_name_conflict(&self.inner.resource, name_of(meta), 1)
        }
    }

    /// Everything that an object goes through before it is first stored, but admission.
    pub(super) async fn before_create(&self, write: &Write<'_>, object: &mut S::Object) -> Result<(), Status> {
        metadata::ensure_namespace(self.namespace_of(write), object.metadata_mut())?;
        let strategy = &self.inner.strategy;
        if write.part == Part::Main
            && let Some(status) = strategy.status()
        {
            status.keep_status(object, None);
        }
        object.metadata_mut().managed_fields = None;
        strategy.prepare_for_create(write.context, object).await?;
        object.metadata_mut().generation = strategy.generation_changes(object, object).map(|_| 1);

        let mut errors = strategy.validate(object);
        if errors.is_empty() {
            errors.extend(self.validate_metadata(object));
        }
        if !errors.is_empty() {
            return Err(Status::invalid(&self.group_kind(), name_of(object.metadata()), &errors));
        }
        for warning in strategy.warnings(object) {
            write.context.warnings.add(warning);
        }
        Ok(())
    }

    pub(super) fn validate_metadata(&self, object: &S::Object) -> ErrorList {
        validation::object_meta(object.metadata(), self.inner.scope == Scope::Namespaced)
    }

    /// Brings owner references and empty fields in order.
    pub(super) fn put_in_order(&self, write: &Write<'_>, object: &mut S::Object, stage: Stage) {
        metadata::tidy(object.metadata_mut());
        if let Some(warning) = metadata::deduplicate_owner_references(object.metadata_mut(), stage) {
            write.context.warnings.add(warning);
        }
    }
}

fn being_deleted(status: &Status) -> Status {
    let mut status = status.as_v1().clone();
    status.message = status.message.map(|message| format!("object is being deleted: {message}"));
    status.into()
}
