//! Whom an object concerns.
//!
//! Labels in tenants' namespaces are theirs to write. An object concerns an EtcdProxy if this process made it for that one,
//! or if it bears that one's uid where that one can have objects; nobody else can be woken by it.

use std::collections::{BTreeMap, HashMap};

use kube::{
    Resource, ResourceExt as _,
    runtime::reflector::{ObjectRef, Store},
};
use parking_lot::Mutex;

use super::{Change, id_of};
use crate::{
    api::{EtcdProxy, UID_LABEL},
    objects::{Kind, ObjectId},
};

/// Whom objects concern, and which versions of them this process wrote itself.
pub(super) struct Owners {
    namespace: String,
    proxies: Store<EtcdProxy>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    owners: BTreeMap<ObjectId, ObjectRef<EtcdProxy>>,
    made: BTreeMap<ObjectId, String>,
    statuses: HashMap<ObjectRef<EtcdProxy>, String>,
}

impl Owners {
    /// Of the controller in `namespace`.
    pub(super) fn new(namespace: &str, proxies: Store<EtcdProxy>) -> Self {
        Self { namespace: namespace.to_owned(), proxies, known: Mutex::default() }
    }

    /// Whom news of an object concerns.
    pub(super) fn changed<K: Resource>(&self, kind: Kind, object: &K, gone: bool) -> Vec<Change> {
        let id = id_of(kind, object.meta());
        {
            let known = self.known.lock();
            if !gone && known.made.get(&id).is_some_and(|own| object.meta().resource_version.as_ref() == Some(own)) {
                return vec![];
            }
            if let Some(owner) = known.owners.get(&id) {
                return vec![Change::Proxy(owner.clone())];
            }
        }
        let Some(uid) = object.labels().get(UID_LABEL) else { return vec![] };
        let proxy = self.proxies.find(|proxy| proxy.metadata.uid.as_ref() == Some(uid));
        let concerned = proxy.filter(|proxy| self.can_have(proxy, &id.namespace));
        concerned.map(|proxy| Change::Proxy(ObjectRef::from_obj(proxy.as_ref()))).into_iter().collect()
    }

    /// Whether news of an EtcdProxy are of what this process wrote itself.
    pub(super) fn is_own_status(&self, proxy: &EtcdProxy) -> bool {
        let known = self.known.lock();
        let own = known.statuses.get(&ObjectRef::from_obj(proxy));
        own.is_some() && own == proxy.metadata.resource_version.as_ref()
    }

    fn can_have(&self, proxy: &EtcdProxy, namespace: &str) -> bool {
        let clients = proxy.spec.clients.iter().filter_map(|client| client.namespace.as_deref());
        let own = proxy.metadata.namespace.as_deref();
        clients.chain(own).chain([self.namespace.as_str()]).any(|possible| possible == namespace)
    }

    pub(super) fn remember_owner(&self, id: &ObjectId, owner: ObjectRef<EtcdProxy>) {
        self.known.lock().owners.insert(id.clone(), owner);
    }

    pub(super) fn remember_version(&self, id: &ObjectId, resource_version: &str) {
        self.known.lock().made.insert(id.clone(), resource_version.to_owned());
    }

    pub(super) fn remember_status(&self, proxy: ObjectRef<EtcdProxy>, resource_version: String) {
        self.known.lock().statuses.insert(proxy, resource_version);
    }

    /// Forgets one object.
    pub(super) fn forget(&self, id: &ObjectId) {
        let mut known = self.known.lock();
        known.owners.remove(id);
        known.made.remove(id);
    }

    /// Forgets everything of EtcdProxies that are gone.
    pub(super) fn forget_gone(&self, is_gone: impl Fn(&ObjectRef<EtcdProxy>) -> bool) {
        let mut known = self.known.lock();
        let known = &mut *known;
        known.statuses.retain(|proxy, _| !is_gone(proxy));
        known.owners.retain(|id, owner| {
            let gone = is_gone(owner);
            if gone {
                known.made.remove(id);
            }
            !gone
        });
    }
}
