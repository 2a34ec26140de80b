//! Changing objects: reading, changing, checking and writing, again and again until nobody came in between
//! (k8s.io/apiserver `pkg/storage/etcd3/store.go`, `GuaranteedUpdate`).

use bytes::Bytes;
use tokio::time::Instant;

use super::{Attempt, Part, Store, Stored, Write, name_of, timed_out};
use crate::{
    admission,
    authorization::{AuthorizationAttributes, Decision},
    meta::{GroupKind, GroupResource, Object as _, ObjectMeta},
    registry::{
        errors::Operation,
        metadata::{self, Stage},
        strategy::Strategy,
    },
    status::{OPTIMISTIC_LOCK_MESSAGE, Status},
    storage::{Expected, Revision, Written},
    validation::{self, ErrorList, FieldError, Path},
};

/// What must hold of an object for a write to happen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// Its uid.
    pub uid: Option<String>,
    /// Its resource version.
    pub resource_version: Option<String>,
}

/// What an update came to.
#[derive(Clone, Debug)]
pub struct Updated<H> {
    /// The object as it is stored now, or as it was last when the update ended its deletion.
    pub object: H,
    /// Whether it was created.
    pub created: bool,
}

// === impl Preconditions ===

impl Preconditions {
    /// # Errors
    /// What does not hold, in words.
    pub(super) fn check(&self, meta: Option<&ObjectMeta>) -> Result<(), String> {
        let uid = meta.and_then(|m| m.uid.as_deref()).unwrap_or_default();
        if let Some(wanted) = self.uid.as_deref().filter(|wanted| *wanted != uid) {
            return Err(format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"));
        }
        let version = meta.and_then(|m| m.resource_version.as_deref()).unwrap_or_default();
        if let Some(wanted) = self.resource_version.as_deref().filter(|wanted| *wanted != version) {
            return Err(format!(
                "Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in object meta: {version}"
            ));
        }
        Ok(())
    }
}

// === impl Store ===

impl<S: Strategy> Store<S> {
    /// Replaces an object by what `change` makes of it, and returns it as it is stored. `change` is called again when the
    /// object was written by somebody else in the meantime; it sees `None` where there is no object and the resource
    /// may be created by an update.
    ///
    /// The changed object's `resourceVersion` must be that of the object that was read. What comes out the same is not
    /// written.
    ///
    /// # Errors
    /// 404 when there is none, 409 for a precondition or resource version that does not hold, 422 when the object is not
    /// valid, what admission plugins refuse, and what `change` returns.
    pub async fn update<F>(
        &self,
        write: &Write<'_>,
        name: &str,
        preconditions: &Preconditions,
        mut change: F,
    ) -> Result<Updated<S::Object>, Status>
    where
        F: FnMut(Option<&S::Object>) -> Result<S::Object, Status> + Send,
    {
        let key = self.inner.keys.object(self.namespace_of(write), name)?;
        let deadline = write.deadline();
        let mut current = self.current(&key, Operation::Update).await?;
        loop {
            if current.is_none() && !self.may_create_on_update(write) {
                return Err(Status::not_found(&self.inner.resource, name));
            }
            let meta = current.as_ref().map(|c| c.object.metadata());
            preconditions.check(meta).map_err(|problem| self.precondition_failed(&key, name, &problem))?;

            let mut object = change(current.as_ref().map(|c| &c.object))?;
            let operation = if current.is_some() { admission::Operation::Update } else { admission::Operation::Create };
            self.admit(write, operation, name, &mut object, current.as_ref().map(|c| &c.object)).await?;
            self.put_in_order(write, &mut object, Stage::Admitted);

            let attempt = match current {
                Some(current) => self.replace(write, &key, name, object, current).await?,
                None => self.create_on_update(write, &key, name, object).await?,
            };
            match attempt {
                Attempt::Done(updated) => return Ok(updated),
                Attempt::Again(_) if Instant::now() >= deadline => return Err(timed_out()),
                Attempt::Again(now) => current = now,
            }
        }
    }

    fn may_create_on_update(&self, write: &Write<'_>) -> bool {
        write.part == Part::Main && self.inner.strategy.allow_create_on_update()
    }

    pub(super) fn precondition_failed(&self, key: &str, name: &str, problem: &str) -> Status {
        let message = format_args!(
            "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {problem}"
        );
        Status::conflict(&self.inner.resource, name, message)
    }

    async fn replace(
        &self,
        write: &Write<'_>,
        key: &str,
        name: &str,
        mut object: S::Object,
        current: Stored<S::Object>,
    ) -> Result<Attempt<Updated<S::Object>, S::Object>, Status> {
        self.check_resource_version(name, &mut object, &current)?;
        self.before_update(write, &mut object, &current.object).await?;
        let old = Some(&current.object);
        self.validate_admission(write, admission::Operation::Update, name, &mut object, old).await?;

        if metadata::ends_deletion(object.metadata(), current.object.metadata()) {
            return self.finish_deletion(write, key, object, current).await;
        }
        let bytes = self.encode(&object)?;
        if bytes == current.bytes {
            return Ok(Attempt::Done(Updated { object: current.object, created: false }));
        }
        if write.dry_run {
            let object = self.dry_run_result(&bytes, Some(current.revision))?;
            return Ok(Attempt::Done(Updated { object, created: false }));
        }
        let written = self.storage().put(key, Expected::At(current.revision), bytes.clone(), None).await;
        match written.map_err(|e| self.storage_error(e, Operation::Update))? {
            Written::Done(revision) => {
                Ok(Attempt::Done(Updated { object: self.result(&bytes, revision)?, created: false }))
            }
            Written::Conflict(now) => Ok(Attempt::Again(now.map(|kv| self.decode_current(kv)).transpose()?)),
        }
    }

    /// An update that leaves no finalizers on an object that waited for them removes it. The client is shown the object.
    async fn finish_deletion(
        &self,
        write: &Write<'_>,
        key: &str,
        object: S::Object,
        current: Stored<S::Object>,
    ) -> Result<Attempt<Updated<S::Object>, S::Object>, Status> {
        let done = Attempt::Done(Updated { object, created: false });
        if write.dry_run {
            return Ok(done);
        }
        let written = self.storage().delete(key, current.revision).await;
        match written.map_err(|e| self.storage_error(e, Operation::Delete))? {
            Written::Done(_) | Written::Conflict(None) => Ok(done),
            Written::Conflict(Some(now)) => Ok(Attempt::Again(Some(self.decode_current(now)?))),
        }
    }

    async fn create_on_update(
        &self,
        write: &Write<'_>,
        key: &str,
        name: &str,
        mut object: S::Object,
    ) -> Result<Attempt<Updated<S::Object>, S::Object>, Status> {
        metadata::wipe_system_fields(object.metadata_mut());
        metadata::fill_system_fields(object.metadata_mut());
        self.before_create(write, &mut object).await?;
        self.authorize_create(write, name).await?;
        self.validate_admission(write, admission::Operation::Create, name, &mut object, None).await?;
        let bytes = self.encode(&object)?;
        if write.dry_run {
            let object = self.dry_run_result(&bytes, None)?;
            return Ok(Attempt::Done(Updated { object, created: true }));
        }
        let written = self.storage().put(key, Expected::Absent, bytes.clone(), None).await;
        match written.map_err(|e| self.storage_error(e, Operation::Create))? {
            Written::Done(revision) => {
                Ok(Attempt::Done(Updated { object: self.result(&bytes, revision)?, created: true }))
            }
            Written::Conflict(now) => Ok(Attempt::Again(now.map(|kv| self.decode_current(kv)).transpose()?)),
        }
    }

    /// Whoever may update need not be allowed to create.
    async fn authorize_create(&self, write: &Write<'_>, name: &str) -> Result<(), Status> {
        let attributes = AuthorizationAttributes::of(write.context).with_verb("create");
        let refuse = |reason: &str| Err(Status::forbidden(&self.inner.resource, name, attributes.refusal(reason)));
        match self.inner.environment.authorizer.authorize(&attributes).await {
            Decision::Allow => Ok(()),
            Decision::Deny { reason } | Decision::NoOpinion { reason } => refuse(&reason),
            Decision::Error(error) => Err(Status::internal_error(error)),
        }
    }

    fn check_resource_version(
        &self,
        name: &str,
        object: &mut S::Object,
        current: &Stored<S::Object>,
    ) -> Result<(), Status> {
        let wanted = parse_resource_version(object.metadata().resource_version.as_deref().unwrap_or_default())?;
        if wanted == current.revision {
            return Ok(());
        }
        if wanted != Revision(0) {
            return Err(Status::conflict(&self.inner.resource, name, OPTIMISTIC_LOCK_MESSAGE));
        }
        if self.inner.strategy.allow_unconditional_update() {
            object.metadata_mut().resource_version = Some(current.revision.0.to_string());
            return Ok(());
        }
        // The field's own oddity: the resource stands where the kind should.
        let GroupResource { group, resource: kind } = self.inner.resource.clone();
        let path = Path::new("metadata").child("resourceVersion");
        let errors = ErrorList::from(FieldError::invalid(&path, 0, "must be specified for an update"));
        Err(Status::invalid(&GroupKind { group, kind }, name, &errors))
    }

    /// Everything that an object goes through before it is stored again, but admission.
    async fn before_update(&self, write: &Write<'_>, object: &mut S::Object, old: &S::Object) -> Result<(), Status> {
        let strategy = &self.inner.strategy;
        let status = strategy.status();
        metadata::ensure_namespace(self.namespace_of(write), object.metadata_mut())?;
        match (write.part, status) {
            (Part::Main, Some(status)) => status.keep_status(object, Some(old)),
            (Part::Status, Some(status)) => {
                let resource_version = object.metadata_mut().resource_version.take();
                status.keep_all_but_status(object, old);
                object.metadata_mut().resource_version = resource_version;
            }
            (Part::Main, None) => {}
            (Part::Status, None) => return Err(Status::method_not_supported(&self.inner.resource, "update")),
        }
        object.metadata_mut().managed_fields = None;
        object.metadata_mut().generation = old.metadata().generation;
        if write.part == Part::Main {
            strategy.prepare_for_update(write.context, object, old).await?;
            match strategy.generation_changes(object, old) {
                None => {}
                Some(changes) => {
                    let generation = old.metadata().generation.unwrap_or(0) + i64::from(changes);
                    object.metadata_mut().generation = Some(generation);
                }
            }
        }
        metadata::carry_over(object.metadata_mut(), old.metadata());

        let mut errors = self.validate_metadata(object);
        errors.extend(validation::object_meta_update(object.metadata(), old.metadata()));
        match (write.part, status) {
            (Part::Status, Some(status)) => errors.extend(status.validate(object, old)),
            _ => errors.extend(strategy.validate_update(object, old)),
        }
        if !errors.is_empty() {
            return Err(Status::invalid(&self.group_kind(), name_of(object.metadata()), &errors));
        }
        if write.part == Part::Main {
            for warning in strategy.warnings(object) {
                write.context.warnings.add(warning);
            }
        }
        Ok(())
    }

    /// What was just written, as a read would show it.
    pub(super) fn result(&self, bytes: &Bytes, revision: Revision) -> Result<S::Object, Status> {
        self.decode_at(bytes, revision)
            .map_err(|e| Status::internal_error(format_args!("the object was stored and cannot be read back: {e}")))
    }

    /// What would have been written, as a read would show it.
    pub(super) fn dry_run_result(&self, bytes: &Bytes, revision: Option<Revision>) -> Result<S::Object, Status> {
        let mut object = self.result(bytes, revision.unwrap_or_default())?;
        if revision.is_none() {
            object.metadata_mut().resource_version = None;
        }
        Ok(object)
    }
}

/// A resource version as a client writes it; nothing and `0` are [`Revision`] zero.
///
/// # Errors
/// 400 when it is no number (the original answers 500 for some requests).
pub(in crate::registry) fn parse_resource_version(text: &str) -> Result<Revision, Status> {
    if text.is_empty() {
        return Ok(Revision(0));
    }
    // `parse` alone would take a sign as well.
    let digits = text.bytes().all(|b| b.is_ascii_digit()).then_some(text);
    digits.and_then(|digits| digits.parse().ok()).map(Revision).ok_or_else(|| {
        let errors = FieldError::invalid(&Path::new("resourceVersion"), text, "not a number");
        Status::bad_request(format!("invalid resource version: {errors}"))
    })
}
