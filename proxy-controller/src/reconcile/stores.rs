//! What is watched: caches that follow the API server, and the objects that their changes concern.
//!
//! Of what the controller made only metadata is kept, and only of objects with its label: that somebody changed one is seen by
//! its resource version.

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
        reflector::{ObjectRef, Store, store::Writer},
        watcher::{self, watcher},
    },
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    api::{EtcdProxy, EtcdProxyGrant, EtcdUpstream, OWNER_ANNOTATION, UID_LABEL},
    objects::{Kind, ObjectId},
};

/// How many changes may wait to be taken up; whoever brings more waits.
const WAITING: usize = 1024;

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
    owned: Arc<BTreeMap<Kind, Store<OwnedMeta>>>,
    owners: Arc<Owners>,
    /// Held by whoever waits for the caches: of two that wait for one kube store at a time, only the last is woken
    /// (kube-runtime's DelayedInit, whose oneshot channel keeps one waker).
    filling: Arc<tokio::sync::Mutex<()>>,
}

/// Whom an object was made for, also when its labels have been changed since.
#[derive(Default)]
struct Owners {
    owners: Mutex<BTreeMap<ObjectId, ObjectRef<EtcdProxy>>>,
    own: Mutex<OwnWrites>,
}

/// The versions that this process wrote last: news of them is no news.
#[derive(Default)]
struct OwnWrites {
    made: HashMap<ObjectId, String>,
    statuses: HashMap<ObjectRef<EtcdProxy>, String>,
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This EtcdProxy, or something that was made for it.
    Proxy(ObjectRef<EtcdProxy>),
    /// This EtcdUpstream, and so everything that refers to it.
    Upstream(String),
    /// Something that may concern any EtcdProxy.
    Everything,
}

/// What feeds the caches until it is dropped.
pub struct Watching {
    /// The caches.
    pub stores: Stores,
    /// What has changed, from the beginning on.
    pub changes: mpsc::Receiver<Change>,
}

/// Begins to watch. `namespace` is the controller's.
pub fn watch(client: &Client, namespace: &str, tasks: &TaskTracker, stop: &CancellationToken) -> Watching {
    let (sender, changes) = mpsc::channel(WAITING);
    let follower = Follower { sender, tasks: tasks.clone(), stop: stop.clone() };
    let owners = Arc::new(Owners::default());

    let proxies =
        follower.typed("EtcdProxy", Api::<EtcdProxy>::all(client.clone()), watcher::Config::default(), |proxy| {
            vec![Change::Proxy(ObjectRef::from_obj(proxy))]
        });
    let upstreams = follower.typed(
        "EtcdUpstream",
        Api::<EtcdUpstream>::all(client.clone()),
        watcher::Config::default(),
        |upstream| vec![Change::Upstream(upstream.name_any())],
    );
    // A grant names namespaces and EtcdProxies exactly.
    let grants = follower.typed(
        "EtcdProxyGrant",
        Api::<EtcdProxyGrant>::all(client.clone()),
        watcher::Config::default(),
        |grant| {
            let source = |from: &crate::api::GrantSource| {
                Change::Proxy(ObjectRef::new(&from.etcd_proxy).within(&from.namespace))
            };
            grant.spec.from.iter().map(source).collect()
        },
    );
    let ours = || watcher::Config::default().labels(UID_LABEL);
    let of_owner = owners.clone();
    let deployments =
        follower.typed("Deployment", Api::<Deployment>::namespaced(client.clone(), namespace), ours(), move |object| {
            of_owner.changed(Kind::Deployment, object)
        });
    let (secrets, writer) = kube::runtime::reflector::store();
    follower.follow(
        "Secret",
        watcher(Api::<PartialObjectMeta<Secret>>::namespaced(client.clone(), namespace), watcher::Config::default()),
        writer,
        // Those that the controller made are among the others.
        |secret: &PartialObjectMeta<Secret>| match secret.labels().contains_key(UID_LABEL) {
            true => vec![],
            false => vec![Change::Everything],
        },
    );
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
        follower.follow(kind.name(), watcher(api, ours()), writer, move |object: &OwnedMeta| {
            of_owner.changed(kind, object)
        });
    }
    let stores = Stores {
        proxies,
        upstreams,
        grants,
        deployments,
        secrets,
        owned: Arc::new(owned),
        owners,
        filling: Arc::default(),
    };
    Watching { stores, changes }
}

struct Follower {
    sender: mpsc::Sender<Change>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Follower {
    fn typed<K>(
        &self,
        kind: &'static str,
        api: Api<K>,
        config: watcher::Config,
        concerns: impl Fn(&K) -> Vec<Change> + Send + Sync + 'static,
    ) -> Store<K>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
    {
        let (reader, writer) = kube::runtime::reflector::store();
        // Who managed which field is much, and nobody here asks.
        let events = watcher(api, config).map_ok(|event| {
            event.modify(|object: &mut K| {
                object.meta_mut().managed_fields = None;
            })
        });
        self.follow(kind, events, writer, concerns);
        reader
    }

    fn follow<K>(
        &self,
        kind: &'static str,
        events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
        writer: Writer<K>,
        concerns: impl Fn(&K) -> Vec<Change> + Send + Sync + 'static,
    ) where
        K: Resource + Clone + Send + Sync + 'static,
        K::DynamicType: Eq + std::hash::Hash + Clone + Send + Sync,
    {
        let sender = self.sender.clone();
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let events = events.default_backoff().reflect(writer);
            let mut events = std::pin::pin!(events);
            while let Some(Some(event)) = stop.run_until_cancelled(events.next()).await {
                let object = match event {
                    Ok(
                        watcher::Event::Apply(object)
                        | watcher::Event::InitApply(object)
                        | watcher::Event::Delete(object),
                    ) => object,
                    Ok(watcher::Event::Init | watcher::Event::InitDone) => continue,
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(kind, error, "a watch was lost and is begun again");
                        continue;
                    }
                };
                for change in concerns(&object) {
                    // Nobody listens when this process does not lead; the caches go on.
                    let _ = sender.send(change).await;
                }
            }
        });
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

    /// The uids in labels of objects that were made for EtcdProxies.
    pub fn labelled_uids(&self) -> std::collections::BTreeSet<String> {
        let mut uids = std::collections::BTreeSet::new();
        for store in self.owned.values() {
            uids.extend(store.state().iter().filter_map(|object| object.labels().get(UID_LABEL).cloned()));
        }
        uids.extend(self.deployments.state().iter().filter_map(|object| object.labels().get(UID_LABEL).cloned()));
        uids
    }

    /// Remembers whom an object is made for.
    pub fn remember_owner(&self, id: &ObjectId, owner: ObjectRef<EtcdProxy>) {
        self.owners.owners.lock().insert(id.clone(), owner);
    }

    /// Remembers which version of an object this process wrote.
    pub fn remember_version(&self, id: &ObjectId, resource_version: &str) {
        self.owners.own.lock().made.insert(id.clone(), resource_version.to_owned());
    }

    /// Remembers which version of an EtcdProxy this process wrote.
    pub fn remember_status(&self, proxy: ObjectRef<EtcdProxy>, resource_version: Option<String>) {
        if let Some(resource_version) = resource_version {
            self.owners.own.lock().statuses.insert(proxy, resource_version);
        }
    }

    /// Forgets the objects of an EtcdProxy that is gone.
    pub fn forget_owner(&self, owner: &ObjectRef<EtcdProxy>) {
        let mut owners = self.owners.owners.lock();
        let mut own = self.owners.own.lock();
        own.statuses.remove(owner);
        owners.retain(|id, of| {
            let stays = of != owner;
            if !stays {
                own.made.remove(id);
            }
            stays
        });
    }
}

// === impl Owners ===

impl Owners {
    fn changed<K: Resource>(&self, kind: Kind, object: &K) -> Vec<Change> {
        let id = id_of(kind, object.meta());
        // A deletion shows the version that was written last, too, but for another one that the deletion has.
        if self.own.lock().made.get(&id).is_some_and(|own| object.meta().resource_version.as_ref() == Some(own)) {
            return vec![];
        }
        if let Some(owner) = self.owners.lock().get(&id) {
            return vec![Change::Proxy(owner.clone())];
        }
        let owner = object.annotations().get(OWNER_ANNOTATION).and_then(|owner| owner.split_once('/'));
        owner.map(|(namespace, name)| Change::Proxy(ObjectRef::new(name).within(namespace))).into_iter().collect()
    }
}

fn id_of(kind: Kind, metadata: &kube::core::ObjectMeta) -> ObjectId {
    ObjectId {
        kind,
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}
