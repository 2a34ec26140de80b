//! What is watched: caches that follow the API server, and the objects that their changes concern.
//!
//! Of what the controller made only metadata is kept, and only of objects with its label: that somebody changed one is seen by
//! its resource version.

mod changes;
mod owners;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
};

use futures::{Stream, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::DynamicObject,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store, store::Writer},
        watcher::{self, watcher},
    },
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::changes::{Change, Changes};
use self::owners::Owners;
use super::orphans::Gone;
use crate::{
    api::{EtcdProxy, EtcdProxyGrant, EtcdUpstream, FINALIZER, UID_LABEL},
    objects::{Kind, ObjectId},
};

/// An object that the controller made, as far as it is watched.
pub type OwnedMeta = PartialObjectMeta<DynamicObject>;

/// The caches. Cheap to clone.
#[derive(Clone)]
pub struct Stores {
    /// What tenants want.
    pub proxies: Store<EtcdProxy>,
    /// What operators offer.
    pub upstreams: Store<EtcdUpstream>,
    /// Who consents.
    pub grants: Store<EtcdProxyGrant>,
    /// What runs.
    pub deployments: Store<Deployment>,
    /// Secrets of the controller's namespace, those of operators included.
    pub secrets: Store<PartialObjectMeta<Secret>>,
    /// EtcdProxies that are gone.
    pub gone: Arc<Gone>,
    owned: Arc<BTreeMap<Kind, Store<OwnedMeta>>>,
    owners: Arc<Owners>,
    /// Held by whoever waits for the caches: of two that wait for one kube store at a time, only the last is woken
    /// (kube-runtime's DelayedInit, whose oneshot channel keeps one waker).
    filling: Arc<tokio::sync::Mutex<()>>,
}

/// What feeds the caches.
#[derive(Clone)]
pub struct Watching {
    /// The caches.
    pub stores: Stores,
    /// What has changed.
    pub changes: Arc<Changes>,
}

/// Begins to watch. `namespace` is the controller's.
pub fn watch(client: &Client, namespace: &str, tasks: &TaskTracker, stop: &CancellationToken) -> Watching {
    let changes = Arc::new(Changes::default());
    let follower = Follower { changes: changes.clone(), tasks: tasks.clone(), stop: stop.clone() };
    let (proxies, writer) = reflector::store();
    let owners = Arc::new(Owners::new(namespace, proxies.clone()));

    let of_status = owners.clone();
    let gone_proxies = Arc::new(Gone::default());
    let ending = gone_proxies.clone();
    let referring = Mutex::new(HashMap::new());
    follower.typed("EtcdProxy", Api::<EtcdProxy>::all(client.clone()), all(), writer, move |proxy, gone| {
        if gone {
            ending.push(proxy.uid().unwrap_or_default());
        }
        let object = ObjectRef::from_obj(proxy);
        let mut referring = referring.lock();
        let known = match gone {
            true => referring.remove(&object),
            false => referring.insert(object.clone(), proxy.uid()),
        };
        let comes_or_goes =
            (gone || known != Some(proxy.uid())).then(|| Change::Tenants(super::upstream_of(proxy).to_owned()));
        let own = !gone && of_status.is_own_status(proxy);
        (!own).then_some(Change::Proxy(object)).into_iter().chain(comes_or_goes).collect()
    });
    let (upstreams, writer) = reflector::store();
    let told = Mutex::new(HashMap::new());
    follower.typed("EtcdUpstream", Api::<EtcdUpstream>::all(client.clone()), all(), writer, move |upstream, gone| {
        // What the controller itself writes into its status concerns nobody.
        let (name, state) = (upstream.name_any(), (upstream.metadata.uid.clone(), upstream.metadata.generation, gone));
        let before = told.lock().insert(name.clone(), state.clone());
        (before != Some(state)).then_some(Change::Upstream(name)).into_iter().collect()
    });
    let (grants, writer) = reflector::store();
    let clients = proxies.clone();
    follower.typed("EtcdProxyGrant", Api::<EtcdProxyGrant>::all(client.clone()), all(), writer, move |grant, _| {
        // Also those that it named before and names no more.
        let namespace = grant.namespace();
        let written =
            clients.state_filter(|proxy| proxy.spec.clients.iter().any(|client| client.namespace == namespace));
        written.iter().map(|proxy| Change::Proxy(ObjectRef::from_obj(proxy.as_ref()))).collect()
    });
    let ours = || all().labels(UID_LABEL);
    let (deployments, writer) = reflector::store();
    let of_owner = owners.clone();
    let api = Api::<Deployment>::namespaced(client.clone(), namespace);
    follower
        .typed("Deployment", api, ours(), writer, move |object, gone| of_owner.changed(Kind::Deployment, object, gone));
    let (secrets, writer) = reflector::store();
    let api = Api::<PartialObjectMeta<Secret>>::namespaced(client.clone(), namespace);
    follower.follow("Secret", watcher(api, all()), writer, |secret: &PartialObjectMeta<Secret>, _| {
        // Those that the controller made are among the others.
        match secret.labels().contains_key(UID_LABEL) {
            true => vec![],
            false => vec![Change::Everything],
        }
    });
    let mut owned = BTreeMap::new();
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Deployment) {
        let resource = kind.api_resource();
        let api: Api<OwnedMeta> = match kind.is_written_to_tenants() {
            true => Api::all_with(client.clone(), &resource),
            false => Api::namespaced_with(client.clone(), namespace, &resource),
        };
        let writer = Writer::new(resource);
        owned.insert(kind, writer.as_reader());
        let of_owner = owners.clone();
        follower.follow(kind.name(), watcher(api, ours()), writer, move |object: &OwnedMeta, gone| {
            of_owner.changed(kind, object, gone)
        });
    }
    let owned = Arc::new(owned);
    let (gone, filling) = (gone_proxies, Arc::default());
    let stores = Stores { proxies, upstreams, grants, deployments, secrets, gone, owned, owners, filling };
    Watching { stores, changes }
}

/// One object after the other, from the first on: a page of a list is decoded whole, and whoever writes 500 objects as large as
/// the API server takes them would have this process killed for its memory.
fn all() -> watcher::Config {
    watcher::Config::default().streaming_lists()
}

struct Follower {
    changes: Arc<Changes>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Follower {
    fn typed<K>(
        &self,
        kind: &'static str,
        api: Api<K>,
        config: watcher::Config,
        writer: Writer<K>,
        concerns: impl Fn(&K, bool) -> Vec<Change> + Send + Sync + 'static,
    ) where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
    {
        self.follow(kind, watcher(api, config), writer, concerns);
    }

    /// Keeps a cache, and tells what an object's news concern; `true` if it is gone.
    fn follow<K>(
        &self,
        kind: &'static str,
        events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
        writer: Writer<K>,
        concerns: impl Fn(&K, bool) -> Vec<Change> + Send + Sync + 'static,
    ) where
        K: Resource + Clone + Send + Sync + 'static,
        K::DynamicType: Eq + std::hash::Hash + Clone + Send + Sync,
    {
        let changes = self.changes.clone();
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let events = events.map_ok(|event| event.modify(slim)).default_backoff().reflect(writer);
            let mut events = std::pin::pin!(events);
            let mut filled = false;
            while let Some(Some(event)) = stop.run_until_cancelled(events.next()).await {
                let concerned = match event {
                    Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => concerns(&object, false),
                    Ok(watcher::Event::Delete(object)) => concerns(&object, true),
                    Ok(watcher::Event::Init) => vec![],
                    // What was missed in between, deletions among it, is not told one by one.
                    Ok(watcher::Event::InitDone) => match std::mem::replace(&mut filled, true) {
                        true => vec![Change::Everything],
                        false => vec![],
                    },
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(kind, error, "a watch was lost and is begun again");
                        vec![]
                    }
                };
                concerned.into_iter().for_each(|change| changes.push(change));
            }
        });
    }
}

/// Who managed which field, and what others noted, is much, and nobody here asks. Of metadata only that is kept which nobody can
/// make large.
fn slim<K: Resource>(object: &mut K) {
    let metadata = object.meta_mut();
    metadata.managed_fields = None;
    metadata.annotations = None;
    metadata.owner_references = None;
    metadata.generate_name = None;
    if let Some(labels) = &mut metadata.labels {
        labels.retain(|label, _| label == UID_LABEL);
    }
    if let Some(finalizers) = &mut metadata.finalizers {
        finalizers.retain(|finalizer| finalizer == FINALIZER);
    }
}

// === impl Stores ===

impl Stores {
    /// Waits until all caches have been filled once.
    ///
    /// # Errors
    /// When a watch has ended.
    pub async fn filled(&self) -> Result<(), kube::runtime::reflector::store::WriterDropped> {
        let _filling = self.filling.lock().await;
        self.proxies.wait_until_ready().await?;
        self.upstreams.wait_until_ready().await?;
        self.grants.wait_until_ready().await?;
        self.deployments.wait_until_ready().await?;
        self.secrets.wait_until_ready().await?;
        for store in self.owned.values() {
            store.wait_until_ready().await?;
        }
        Ok(())
    }

    /// What is known of an object that the controller made: uid and resource version, if it is there and has the label.
    pub fn owned(&self, id: &ObjectId) -> Option<kube::core::ObjectMeta> {
        if id.kind == Kind::Deployment {
            let object = self.deployments.get(&ObjectRef::new(&id.name).within(&id.namespace))?;
            return Some(object.metadata.clone());
        }
        let store = self.owned.get(&id.kind)?;
        let reference = ObjectRef::new_with(&id.name, id.kind.api_resource()).within(&id.namespace);
        Some(store.get(&reference)?.metadata.clone())
    }

    /// Everything labelled as made for the EtcdProxy with this uid: where it is and its own uid.
    pub fn made_for(&self, uid: &str) -> Vec<(ObjectId, Option<String>)> {
        let mut found = Vec::new();
        for (kind, store) in self.owned.iter() {
            let of_uid = store.state_filter(|object| object.labels().get(UID_LABEL).is_some_and(|label| label == uid));
            found.extend(of_uid.iter().map(|object| (id_of(*kind, &object.metadata), object.uid())));
        }
        let of_uid =
            self.deployments.state_filter(|object| object.labels().get(UID_LABEL).is_some_and(|label| label == uid));
        found.extend(of_uid.iter().map(|object| (id_of(Kind::Deployment, &object.metadata), object.uid())));
        found
    }

    /// Everything labelled as made for an EtcdProxy, by its uid.
    pub fn all_made(&self) -> BTreeMap<String, BTreeMap<ObjectId, Option<String>>> {
        let mut made = BTreeMap::<_, BTreeMap<_, _>>::new();
        let mut add = |kind, metadata: &kube::core::ObjectMeta| {
            let Some(uid) = metadata.labels.as_ref().and_then(|labels| labels.get(UID_LABEL)) else { return };
            made.entry(uid.clone()).or_default().insert(id_of(kind, metadata), metadata.uid.clone());
        };
        for (kind, store) in self.owned.iter() {
            store.state().iter().for_each(|object| add(*kind, &object.metadata));
        }
        self.deployments.state().iter().for_each(|object| add(Kind::Deployment, &object.metadata));
        made
    }

    /// Remembers whom an object is made for.
    pub fn remember_owner(&self, id: &ObjectId, owner: ObjectRef<EtcdProxy>) {
        self.owners.remember_owner(id, owner);
    }

    /// Remembers which version of an object this process wrote.
    pub fn remember_version(&self, id: &ObjectId, resource_version: &str) {
        self.owners.remember_version(id, resource_version);
    }

    /// Remembers which version of an EtcdProxy this process wrote.
    pub fn remember_status(&self, proxy: ObjectRef<EtcdProxy>, resource_version: &str) {
        self.owners.remember_status(proxy, resource_version.to_owned());
    }

    /// Forgets an object that is not wanted any more.
    pub fn forget(&self, id: &ObjectId) {
        self.owners.forget(id);
    }

    /// Forgets everything of EtcdProxies that are gone.
    pub fn forget_gone(&self) {
        self.owners.forget_gone(|proxy| self.proxies.get(proxy).is_none());
    }
}

fn id_of(kind: Kind, metadata: &kube::core::ObjectMeta) -> ObjectId {
    ObjectId {
        kind,
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A tenant chooses all of these, up to what the API server takes in one object.
    #[test]
    fn nothing_that_a_tenant_can_make_large_is_kept_of_metadata() {
        let many = |text: &str| (0..5000).map(|n| (format!("{text}{n}"), "x".repeat(60))).collect::<BTreeMap<_, _>>();
        let mut labels = many("label");
        labels.insert(UID_LABEL.to_owned(), "u".to_owned());
        let finalizers: Vec<_> = many("a/").into_keys().chain([FINALIZER.to_owned()]).collect();
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "q"});
        let mut grant: EtcdProxyGrant = serde_json::from_value(json!({
            "apiVersion": "etcd.programming-kubernetes.info/v1alpha1",
            "kind": "EtcdProxyGrant",
            "metadata": {
                "name": "g", "namespace": "n", "labels": labels, "annotations": many("note"), "finalizers": finalizers,
                "ownerReferences": vec![owner; 1000], "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
            },
            "spec": {"from": [], "targets": []},
        }))
        .unwrap();
        slim(&mut grant);
        assert_eq!(
            serde_json::to_value(&grant.metadata).unwrap(),
            json!({"name": "g", "namespace": "n", "labels": {UID_LABEL: "u"}, "finalizers": [FINALIZER]})
        );
    }
}
