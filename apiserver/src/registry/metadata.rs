//! What happens to an object's metadata around a write. Values in, values out
//! (k8s.io/apiserver `pkg/registry/rest/{meta,create,update}.go`, `pkg/registry/generic/registry/store.go`).

use std::{
    collections::{BTreeSet, HashSet},
    hash::Hash,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;

use crate::{
    meta::{ObjectMeta, OwnerReference, Time},
    status::Status,
};

/// The finalizer that holds an owner until its dependents have lost their reference to it.
pub(super) const FINALIZER_ORPHAN: &str = "orphan";
/// The finalizer that holds an owner until its dependents are gone.
pub(super) const FINALIZER_FOREGROUND: &str = "foregroundDeletion";

/// When owner references are brought in order: it decides the warning's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// On what the client sent.
    Request,
    /// On what admission plugins made of it.
    Admitted,
}

/// Now, in the resolution of the wire: whole seconds.
pub(super) fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// Takes away what only the server sets.
pub(super) fn wipe_system_fields(meta: &mut ObjectMeta) {
    meta.creation_timestamp = None;
    meta.uid = None;
    meta.deletion_timestamp = None;
    meta.deletion_grace_period_seconds = None;
    meta.self_link = None;
}

/// Gives a new object its uid and time of creation.
pub(super) fn fill_system_fields(meta: &mut ObjectMeta) {
    meta.creation_timestamp = Some(now());
    meta.uid = Some(uuid::Uuid::new_v4().to_string());
}

/// Puts the object into the request's namespace, `""` for a resource of the cluster.
///
/// # Errors
/// 400 when the object says that it is in another one.
pub(super) fn ensure_namespace(expected: &str, meta: &mut ObjectMeta) -> Result<(), Status> {
    match meta.namespace.as_deref().unwrap_or_default() {
        found if found == expected => Ok(()),
        "" => {
            meta.namespace = Some(expected.to_owned());
            Ok(())
        }
        _ if expected.is_empty() => {
            meta.namespace = None;
            Ok(())
        }
        _ => Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
    }
}

/// Removes owner references that occur twice. Returns the warning that this deserves.
pub(super) fn deduplicate_owner_references(meta: &mut ObjectMeta, stage: Stage) -> Option<String> {
    let references = meta.owner_references.as_mut()?;
    let mut seen = HashSet::with_capacity(references.len());
    let is_new: Vec<bool> = references.iter().map(|reference| seen.insert(fields(reference))).collect();
    drop(seen);
    let (mut is_new, mut duplicates) = (is_new.into_iter(), Vec::new());
    references.retain_mut(|reference| {
        let keep = is_new.next().unwrap_or(true);
        if !keep {
            duplicates.push(std::mem::take(&mut reference.uid));
        }
        keep
    });
    if duplicates.is_empty() {
        return None;
    }
    let (when, uids) = (
        match stage {
            Stage::Request => "",
            Stage::Admitted => " after mutating admission happens",
        },
        duplicates.join(", "),
    );
    Some(format!(
        ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may \
         reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {uids}"
    ))
}

/// All that an owner reference says, in a form that can be looked up: there may be many of them, with the same uid too.
fn fields(reference: &OwnerReference) -> impl Hash + Eq + use<'_> {
    let OwnerReference { api_version, block_owner_deletion, controller, kind, name, uid } = reference;
    (uid, name, kind, api_version, block_owner_deletion, controller)
}

/// Leaves out what says nothing, as Go's encoder does: empty texts, lists and maps, and a generation of zero.
pub(super) fn tidy(meta: &mut ObjectMeta) {
    for text in [
        &mut meta.name,
        &mut meta.namespace,
        &mut meta.generate_name,
        &mut meta.uid,
        &mut meta.resource_version,
        &mut meta.self_link,
    ] {
        text.take_if(|text| text.is_empty());
    }
    for map in [&mut meta.labels, &mut meta.annotations] {
        map.take_if(|map| map.is_empty());
    }
    meta.finalizers.take_if(|list| list.is_empty());
    meta.owner_references.take_if(|list| list.is_empty());
    meta.managed_fields.take_if(|list| list.is_empty());
    meta.generation.take_if(|generation| *generation == 0);
}

/// Before an update: what a client cannot change stays as it is.
pub(super) fn carry_over(meta: &mut ObjectMeta, old: &ObjectMeta) {
    if meta.uid.as_deref().unwrap_or_default().is_empty() {
        meta.uid.clone_from(&old.uid);
    }
    if old.creation_timestamp.is_some() {
        meta.creation_timestamp.clone_from(&old.creation_timestamp);
    }
    if old.deletion_timestamp.is_some() {
        meta.deletion_timestamp.clone_from(&old.deletion_timestamp);
    }
    if old.deletion_grace_period_seconds.is_some() && meta.deletion_grace_period_seconds.is_none() {
        meta.deletion_grace_period_seconds = old.deletion_grace_period_seconds;
    }
}

/// Whether an update that leaves no finalizers ends a deletion that was waiting for them.
pub(super) fn ends_deletion(meta: &ObjectMeta, old: &ObjectMeta) -> bool {
    !has_finalizers(meta) && old.deletion_timestamp.is_some() && old.deletion_grace_period_seconds.unwrap_or(0) == 0
}

/// Whether something wants to be done before the object may go.
pub(super) fn has_finalizers(meta: &ObjectMeta) -> bool {
    meta.finalizers.as_ref().is_some_and(|f| !f.is_empty())
}

/// The finalizers that the object needs so that the garbage collector does what the options ask for; `None` when it has
/// them already.
pub(super) fn deletion_finalizers(meta: &ObjectMeta, options: &DeleteOptions) -> Option<Vec<String>> {
    let present = meta.finalizers.as_deref().unwrap_or_default();
    let inherited =
        || present.iter().map(String::as_str).find(|f| matches!(*f, FINALIZER_ORPHAN | FINALIZER_FOREGROUND));
    let wanted = match (options.orphan_dependents, options.propagation_policy.as_deref()) {
        (Some(true), _) | (None, Some("Orphan")) => Some(FINALIZER_ORPHAN),
        (None, Some("Foreground")) => Some(FINALIZER_FOREGROUND),
        (Some(false), _) | (None, Some("Background")) => None,
        (None, _) => inherited(),
    };
    let mut finalizers: Vec<String> =
        present.iter().filter(|f| !matches!(f.as_str(), FINALIZER_ORPHAN | FINALIZER_FOREGROUND)).cloned().collect();
    finalizers.extend(wanted.map(str::to_owned));
    let (before, after): (BTreeSet<_>, BTreeSet<_>) = (present.iter().collect(), finalizers.iter().collect());
    (before != after).then_some(finalizers)
}

/// Marks an object whose finalizers are still to run.
pub(super) fn mark_as_deleting(meta: &mut ObjectMeta, now: Time) {
    if meta.deletion_timestamp.is_none() {
        meta.generation = meta.generation.map(|g| if g > 0 { g + 1 } else { g });
    }
    if meta.deletion_timestamp.as_ref().is_none_or(|t| *t > now) {
        meta.deletion_timestamp = Some(now);
    }
    meta.deletion_grace_period_seconds = Some(0);
}

#[cfg(test)]
mod tests;
