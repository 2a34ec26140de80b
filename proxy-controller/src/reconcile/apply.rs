//! Bringing objects to what they are to be, and removing what is no longer wanted.
//!
//! **Invariant:** an object in a tenant's namespace is changed or deleted only under a precondition on its uid, and only if it
//! carries the label of the EtcdProxy's uid or this process made it. A foreign object is never taken over.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
    core::{PartialObjectMeta, Status},
    runtime::reflector::ObjectRef,
};
use parking_lot::Mutex;
use rand::seq::SliceRandom as _;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::stores::Stores;
use crate::{
    api::{EtcdProxy, MANAGER, UID_LABEL},
    objects::{Desired, Kind, ObjectId},
};

/// Most objects in tenants' namespaces that are deleted in one go.
const AT_ONCE: usize = 100;

/// Most objects of which it is remembered that they may not be deleted.
const REMEMBERED: usize = 20_000;

/// How many objects are asked for at a time: whoever labels them decides how large they are.
const PAGE: u32 = 20;

/// Brings objects to what they are to be.
pub struct Applier {
    client: Client,
    namespace: String,
    stores: Stores,
    applied: Mutex<HashMap<ObjectId, Applied>>,
    /// The uids of objects that were forbidden to be deleted.
    refused: Mutex<HashSet<String>>,
}

/// What was applied last, to spare requests that would change nothing.
#[derive(Clone)]
struct Applied {
    /// The EtcdProxy's uid.
    owner: String,
    uid: String,
    resource_version: String,
    digest: [u8; 32],
    /// When a field was last written by an apply of ours.
    written: Option<Time>,
}

/// What it took to bring an object to what it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Nothing: it is so.
    Unchanged,
    /// It is made, or changed to something new.
    Written,
    /// Somebody had changed it.
    Restored,
    /// Somebody had deleted it.
    Remade,
}

/// What came of a removal.
#[derive(Debug, Default)]
pub struct Removal {
    /// What goes by that.
    pub gone: Vec<ObjectId>,
    /// How many objects were left for the next time.
    pub left: usize,
}

/// Objects that are deleted in one go.
#[derive(Debug, PartialEq)]
struct Batch {
    objects: Vec<(ObjectId, Option<String>)>,
    left: usize,
}

/// Why an object is not as it is to be.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Somebody else's object has the name.
    #[error("{0} exists and was not made for this EtcdProxy; delete it, or choose another name")]
    Exists(ObjectId),
    /// The namespace is not there, or going.
    #[error("{id} cannot be made: {message}")]
    Namespace {
        /// The object.
        id: ObjectId,
        /// What the API server says.
        message: String,
    },
    /// The API server refuses, or cannot be reached.
    #[error("{id}: {source}")]
    Api {
        /// The object.
        id: ObjectId,
        /// What went wrong.
        source: kube::Error,
    },
}

impl Applier {
    /// For the controller in `namespace`.
    pub fn new(client: Client, namespace: &str, stores: Stores) -> Self {
        Self { client, namespace: namespace.to_owned(), stores, applied: Mutex::default(), refused: Mutex::default() }
    }

    /// Brings an object to what it is to be. Answers what that took.
    ///
    /// # Errors
    /// When somebody else's object is there, or the API server refuses.
    pub async fn apply(
        &self,
        owner: &ObjectRef<EtcdProxy>,
        uid: &str,
        desired: &Desired,
    ) -> Result<Effort, ApplyError> {
        let id = &desired.id;
        let digest: [u8; 32] = Sha256::digest(desired.body.to_string()).into();
        // What another EtcdProxy had there is not this one's, nor what only says so by another uid.
        let remembered = self.applied.lock().get(id).filter(|applied| applied.owner == uid).cloned();
        let seen = self.stores.owned(id).filter(|seen| {
            seen.labels.as_ref().and_then(|labels| labels.get(UID_LABEL)).is_some_and(|label| label == uid)
        });
        if let (Some(remembered), Some(seen)) = (&remembered, &seen)
            && remembered.digest == digest
            && seen.uid.as_deref() == Some(&remembered.uid)
            && !newer(seen.resource_version.as_deref(), &remembered.resource_version)
        {
            return Ok(Effort::Unchanged);
        }
        let own = id.namespace == self.namespace;
        let before = remembered.clone();
        let touched = before.as_ref().is_some_and(|before| {
            // Whose label was taken off is seen no more.
            seen.as_ref().is_none_or(|seen| newer(seen.resource_version.as_deref(), &before.resource_version))
        });
        let object = if own {
            // Names here carry a digest of the uid: nobody else's object has one.
            self.patch(id, &desired.body, None).await?
        } else {
            let known = remembered.map(|remembered| remembered.uid).or_else(|| seen.and_then(|seen| seen.uid));
            match known {
                Some(known) => match self.patch(id, &desired.body, Some(&known)).await {
                    // Deleted, or made anew by somebody.
                    Err(error) if error.is_gone_or_another() => self.make(id, uid, &known, desired).await?,
                    other => other?,
                },
                None => self.make(id, uid, "", desired).await?,
            }
        };
        let resource_version = object.resource_version().unwrap_or_default();
        self.stores.remember_owner(id, owner.clone());
        self.stores.remember_version(id, &resource_version);
        let applied = Applied {
            owner: uid.to_owned(),
            uid: object.uid().unwrap_or_default(),
            resource_version,
            digest,
            written: written(&object),
        };
        let effort = before.map_or(Effort::Written, |before| effort(id.kind, &before, &applied, touched));
        self.applied.lock().insert(id.clone(), applied);
        Ok(effort)
    }

    /// The uid of the object that this process made there for the EtcdProxy with this uid, whatever its labels are now.
    pub fn made(&self, id: &ObjectId, owner: &str) -> Option<String> {
        self.applied.lock().get(id).filter(|applied| applied.owner == owner).map(|applied| applied.uid.clone())
    }

    /// Everything that this process made for the EtcdProxy with this uid, whatever its labels are now.
    fn all_made(&self, owner: &str) -> Vec<(ObjectId, String)> {
        let applied = self.applied.lock();
        let of_owner = applied.iter().filter(|(_, applied)| applied.owner == owner);
        of_owner.map(|(id, applied)| (id.clone(), applied.uid.clone())).collect()
    }

    /// Deletes what was made for the EtcdProxy with this uid and is not among `keep`, as far as the caches know.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn prune(&self, uid: &str, keep: &BTreeSet<ObjectId>) -> Result<Removal, ApplyError> {
        let made = self.stores.made_for(uid).into_iter().filter(|(id, _)| !keep.contains(id));
        let removal = self.remove(made).await?;
        removal.gone.iter().for_each(|id| self.stores.forget(id));
        Ok(removal)
    }

    /// Deletes objects that bear the label of being made for an EtcdProxy, each with its own uid. In the controller's namespace the
    /// label is the controller's alone, and all go. Elsewhere everybody may write it, on as many objects as there is room for:
    /// of those some go at a time, any of them, and those that were forbidden before are not tried again.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn remove(
        &self,
        made: impl IntoIterator<Item = (ObjectId, Option<String>)>,
    ) -> Result<Removal, ApplyError> {
        let batch = {
            let (refused, applied) = (self.refused.lock(), self.applied.lock());
            let is_refused = |uid: &Option<String>| uid.as_ref().is_some_and(|uid| refused.contains(uid));
            Batch::choose(&self.namespace, made.into_iter().filter(|(_, uid)| !is_refused(uid)), |id| {
                applied.contains_key(id)
            })
        };
        let mut removal = Removal { gone: Vec::new(), left: batch.left };
        for (id, uid) in batch.objects {
            if self.delete(&id, uid.as_deref()).await? {
                removal.gone.push(id);
            }
        }
        Ok(removal)
    }

    /// Everything that the caches show labelled as made for the EtcdProxy with this uid, and what this process made for it.
    pub fn known_of(&self, uid: &str) -> BTreeMap<ObjectId, Option<String>> {
        let mut known: BTreeMap<_, _> = self.stores.made_for(uid).into_iter().collect();
        for (id, object) in self.all_made(uid) {
            known.entry(id).or_insert(Some(object));
        }
        known
    }

    /// Has what was forbidden tried again.
    pub fn forget_refused(&self) {
        self.refused.lock().clear();
    }

    /// Everything that was made for the EtcdProxy with this uid, as the API server lists it now: a cache may not yet know what
    /// another process made a moment ago.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn made_for(&self, uid: &str) -> Result<BTreeMap<ObjectId, Option<String>>, ApplyError> {
        let mut found = BTreeMap::new();
        for kind in Kind::ALL {
            let resource = kind.api_resource();
            let api: Api<DynamicObject> = match kind.is_written_to_tenants() {
                true => Api::all_with(self.client.clone(), &resource),
                false => Api::namespaced_with(self.client.clone(), &self.namespace, &resource),
            };
            let selector = ListParams::default().labels(&format!("{UID_LABEL}={uid}"));
            let anywhere = || ObjectId { kind, namespace: String::new(), name: "*".to_owned() };
            let list = listed(&api, selector, |object| {
                let id = ObjectId { kind, namespace: object.namespace().unwrap_or_default(), name: object.name_any() };
                (id, object.uid())
            });
            found.extend(list.await.map_err(|source| ApplyError::Api { id: anywhere(), source })?);
        }
        // Somebody may have taken the labels off this moment.
        for (id, uid) in self.all_made(uid) {
            found.entry(id).or_insert(Some(uid));
        }
        Ok(found)
    }

    /// Deletes an object, if it is still the one with this uid. Answers whether it goes by that: one that is not there any more
    /// does not, nor one that only bears the label, in a namespace where everybody may write labels, and is forbidden to the controller.
    ///
    /// # Errors
    /// When the API server refuses for another reason.
    pub async fn delete(&self, id: &ObjectId, uid: Option<&str>) -> Result<bool, ApplyError> {
        let preconditions = Preconditions { uid: uid.map(str::to_owned), resource_version: None };
        let mut params = DeleteParams { preconditions: Some(preconditions), ..Default::default() };
        if id.kind == Kind::Deployment {
            // The Deployment goes when its pods have gone: nobody writes any more then.
            params.propagation_policy = Some(PropagationPolicy::Foreground);
        }
        self.applied.lock().remove(id);
        match self.api(id).delete(&id.name, &params).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(false),
            Err(kube::Error::Api(status)) if status.code == 403 && id.namespace != self.namespace => {
                tracing::debug!(%id, reason = status.message, "bears the label and is not the controller's to delete");
                let mut refused = self.refused.lock();
                if let Some(uid) = uid.filter(|_| refused.len() < REMEMBERED) {
                    refused.insert(uid.to_owned());
                }
                Ok(false)
            }
            Err(source) => Err(ApplyError::Api { id: id.clone(), source }),
        }
    }

    /// Forgets what was applied for an EtcdProxy that is gone.
    pub fn forget_owner(&self, uid: &str) {
        self.applied.lock().retain(|_, applied| applied.owner != uid);
    }

    /// Forgets what was applied for others than these.
    pub fn retain_owners(&self, uids: &BTreeSet<String>) {
        self.applied.lock().retain(|_, applied| uids.contains(&applied.owner));
    }

    fn api(&self, id: &ObjectId) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &id.namespace, &id.kind.api_resource())
    }

    /// Server-side apply; with `uid` only to the object that has it.
    async fn patch(&self, id: &ObjectId, body: &Value, uid: Option<&str>) -> Result<DynamicObject, ApplyError> {
        let mut body = body.clone();
        if let (Some(uid), Some(metadata)) = (uid, body.get_mut("metadata").and_then(Value::as_object_mut)) {
            metadata.insert("uid".to_owned(), uid.into());
        }
        let params = PatchParams::apply(MANAGER).force();
        match self.api(id).patch(&id.name, &params, &Patch::Apply(&body)).await {
            Ok(object) => Ok(object),
            // Somebody made it immutable, or anew of another type: it goes, and the next pass makes it again.
            Err(kube::Error::Api(status)) if is_immutable(&status) && id.kind != Kind::Deployment => {
                tracing::warn!(%id, reason = status.message, "cannot be changed to what it is to be, and is made anew");
                let there = match uid {
                    Some(uid) => Some(uid.to_owned()),
                    None => self.stores.owned(id).and_then(|seen| seen.uid),
                };
                self.delete(id, there.as_deref()).await?;
                Err(ApplyError::Api { id: id.clone(), source: kube::Error::Api(status) })
            }
            Err(source) => Err(ApplyError::Api { id: id.clone(), source }),
        }
    }

    /// Makes an object where none is known. `known` is the uid of the one that was there.
    async fn make(
        &self,
        id: &ObjectId,
        owner: &str,
        known: &str,
        desired: &Desired,
    ) -> Result<DynamicObject, ApplyError> {
        let refused = |source| ApplyError::Api { id: id.clone(), source };
        let first: DynamicObject =
            serde_json::from_value(desired.body.clone()).map_err(|error| refused(kube::Error::SerdeError(error)))?;
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
        let uid = match self.api(id).create(&params, &first).await {
            Ok(made) => made.uid().unwrap_or_default(),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                let there = self.api(id).get_metadata(&id.name).await.map_err(refused)?;
                let uid = there.uid().unwrap_or_default();
                let ours = there.labels().get(UID_LABEL).is_some_and(|label| label == owner);
                if !ours && (known.is_empty() || uid != known) {
                    return Err(ApplyError::Exists(id.clone()));
                }
                uid
            }
            Err(kube::Error::Api(status)) if namespace_missing(&status) => {
                return Err(ApplyError::Namespace { id: id.clone(), message: status.message });
            }
            Err(source) => return Err(refused(source)),
        };
        // Applied at once, so that all fields are this manager's by the one operation that can also remove them.
        self.patch(id, &desired.body, Some(&uid)).await
    }
}

/// The metadata of all objects that are asked for, or what `of` makes of it, page by page.
pub(super) async fn listed<K, T>(
    api: &Api<K>,
    mut which: ListParams,
    of: impl Fn(&PartialObjectMeta<K>) -> T,
) -> Result<Vec<T>, kube::Error>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    which.limit = Some(PAGE);
    let mut found = Vec::new();
    loop {
        let page = api.list_metadata(&which).await?;
        found.extend(page.items.iter().map(&of));
        which.continue_token = page.metadata.continue_.filter(|more| !more.is_empty());
        if which.continue_token.is_none() {
            return Ok(found);
        }
    }
}

// === impl Removal ===

impl Removal {
    /// Whether there was nothing to remove.
    pub fn is_nothing(&self) -> bool {
        self.gone.is_empty() && self.left == 0
    }
}

// === impl Batch ===

impl Batch {
    fn choose(
        namespace: &str,
        made: impl Iterator<Item = (ObjectId, Option<String>)>,
        is_known: impl Fn(&ObjectId) -> bool,
    ) -> Self {
        let (mut objects, others): (Vec<_>, Vec<_>) = made.partition(|(id, _)| id.namespace == namespace);
        let (mut known, mut labelled): (Vec<_>, Vec<_>) = others.into_iter().partition(|(id, _)| is_known(id));
        // Any of them, so that none stands before all others for ever.
        labelled.shuffle(&mut rand::rng());
        known.append(&mut labelled);
        let left = known.len().saturating_sub(AT_ONCE);
        known.truncate(AT_ONCE);
        objects.append(&mut known);
        Self { objects, left }
    }
}

// === impl ApplyError ===

impl ApplyError {
    fn is_gone_or_another(&self) -> bool {
        matches!(self, Self::Api { source: kube::Error::Api(status), .. } if status.code == 404 || status.code == 409)
    }

    /// For a condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Exists(_) => "TargetExists",
            Self::Namespace { .. } => "NamespaceUnavailable",
            Self::Api { source: kube::Error::Api(status), .. } if status.code == 403 => "ObjectForbidden",
            Self::Api { source: kube::Error::Api(status), .. } if status.code == 422 => "ObjectInvalid",
            Self::Api { .. } => "ApiError",
        }
    }

    /// Whether the object itself is what is refused, rather than the API server in trouble.
    pub fn is_refusal(&self) -> bool {
        !matches!(self.reason(), "ApiError")
    }
}

/// What it took to come from what was applied before to what is there now. `touched`: somebody has written it in between.
fn effort(kind: Kind, before: &Applied, now: &Applied, touched: bool) -> Effort {
    // The contents of certificates follow what is stored: what was spoilt is made anew, and so is to be something else.
    let spoilt = touched && matches!(kind, Kind::Secret | Kind::ConfigMap);
    match (before.uid == now.uid, before.digest == now.digest) {
        (false, _) => Effort::Remade,
        (true, _) if before.resource_version == now.resource_version => Effort::Unchanged,
        // Only an apply that changed something moves the time of its entry; others, a Deployment's status among them, do not.
        (true, true) if before.written == now.written => Effort::Unchanged,
        (true, true) => Effort::Restored,
        (true, false) if spoilt => Effort::Restored,
        (true, false) => Effort::Written,
    }
}

/// When an apply of ours last wrote a field.
fn written(object: &DynamicObject) -> Option<Time> {
    let mut entries = object.metadata.managed_fields.iter().flatten();
    let ours = entries
        .find(|entry| entry.manager.as_deref() == Some(MANAGER) && entry.operation.as_deref() == Some("Apply"))?;
    ours.time.clone()
}

/// Whether an object is refused only since a field of it can never change.
fn is_immutable(status: &Status) -> bool {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    status.code == 422 && !causes.is_empty() && causes.iter().all(|cause| cause.message.contains("immutable"))
}

/// Whether nothing can be made in a namespace: it is not there, or going.
pub(super) fn namespace_missing(status: &Status) -> bool {
    (status.code == 404 && status.message.contains("namespaces"))
        || status
            .details
            .as_ref()
            .is_some_and(|details| details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating"))
}

/// Whether a resource version is newer than another (KEP-5504: they compare as numbers).
pub(super) fn newer(seen: Option<&str>, than: &str) -> bool {
    let number = |text: &str| text.parse::<u128>().ok();
    match (seen.and_then(number), number(than)) {
        (Some(seen), Some(than)) => seen > than,
        _ => seen != Some(than),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn what_somebody_else_did_is_told_from_what_was_wanted() {
        let at = |second| Timestamp::from_second(second).ok().map(Time);
        let before = Applied {
            owner: "owner".into(),
            uid: "uid".into(),
            resource_version: "5".into(),
            digest: [0; 32],
            written: at(100),
        };
        // A Deployment whose status was written, by which nothing had to be done.
        let counted = Applied { resource_version: "7".into(), ..before.clone() };
        let restored = Applied { written: at(200), ..counted.clone() };
        let changed = Applied { digest: [1; 32], ..restored.clone() };
        let remade = Applied { uid: "another".into(), ..changed.clone() };
        for (kind, now, touched, expected) in [
            (Kind::Deployment, &before, true, Effort::Unchanged),
            (Kind::Deployment, &counted, true, Effort::Unchanged),
            (Kind::Deployment, &restored, true, Effort::Restored),
            (Kind::Deployment, &changed, true, Effort::Written),
            (Kind::Secret, &changed, false, Effort::Written),
            (Kind::Secret, &changed, true, Effort::Restored),
            (Kind::Secret, &remade, true, Effort::Remade),
        ] {
            assert_eq!(effort(kind, &before, now, touched), expected, "{kind:?} {}", now.resource_version);
        }
    }

    fn object(namespace: &str, n: usize) -> (ObjectId, Option<String>) {
        let id = ObjectId { kind: Kind::ConfigMap, namespace: namespace.to_owned(), name: format!("o{n}") };
        (id, Some(n.to_string()))
    }

    /// Labels in tenants' namespaces are theirs to write, on thousands of objects.
    #[test]
    fn forged_labels_neither_take_all_of_a_removal_nor_stand_before_what_was_made() {
        let forged = (0..5000).map(|n| object("mallory", n));
        let made = [object("alice", 1), object("system", 1), object("system", 2)];
        let batch = Batch::choose("system", forged.chain(made.clone()), |id| id.namespace == "alice");
        assert_eq!(batch.objects.len(), AT_ONCE + 2);
        assert_eq!(batch.left, 5001 - AT_ONCE);
        for made in &made {
            assert!(batch.objects.contains(made), "{made:?}");
        }
    }

    #[test]
    fn each_of_many_has_its_turn() {
        let mut seen = HashSet::new();
        for _ in 0..200 {
            let batch = Batch::choose("system", (0..200).map(|n| object("mallory", n)), |_| false);
            seen.extend(batch.objects.into_iter().map(|(id, _)| id));
        }
        assert_eq!(seen.len(), 200);
    }
}
