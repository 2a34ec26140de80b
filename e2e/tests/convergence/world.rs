//! What the test knows: who lived, what was written where, what the operator allowed; and hands for changing it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams},
};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};

use super::claims::{self, Claims};

pub(super) const GROUP: &str = "etcd.programming-kubernetes.info";

/// The namespaces of tenants: in the first two the webhook is asked.
pub(super) const TENANTS: [&str; 4] = ["red", "green", "blue", "grey"];

/// A namespace that grants.
pub(super) const ELSEWHERE: &str = "elsewhere";

/// The names of EtcdProxies in each.
pub(super) const NAMES: [&str; 5] = ["one", "two", "three", "four", "five"];

/// One EtcdProxy, from its creation on.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The `deletionPolicy` that was in force last.
    pub(super) policy: String,
    /// Its deletion was asked for.
    pub(super) deleted: bool,
}

/// What the operator gave away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Adoption {
    pub(super) prefix: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// A key that was written under a claim.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) key: String,
    pub(super) prefix: String,
    pub(super) revision: i64,
}

pub(super) struct World {
    pub(super) client: Client,
    pub(super) etcd: etcd_client::Client,
    pub(super) claims: Claims,
    pub(super) random: StdRng,
    pub(super) lives: BTreeMap<String, Life>,
    pub(super) adoptions: Vec<Adoption>,
    pub(super) keys: Vec<Written>,
    /// Objects in the way: kind, namespace, name.
    pub(super) foreign: Vec<(&'static str, String, String)>,
    /// Bindings that were taken away.
    pub(super) withdrawn: Vec<(&'static str, DynamicObject)>,
    /// What was done, and how often.
    pub(super) done: BTreeMap<&'static str, u64>,
}

/// A name that an EtcdProxy may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) namespace: &'static str,
    pub(super) name: &'static str,
}

impl Slot {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        TENANTS.into_iter().flat_map(|namespace| NAMES.into_iter().map(move |name| Self { namespace, name }))
    }

    /// The Secret and the ConfigMap of the client in the namespace that grants.
    pub(super) fn far(namespace: &str, name: &str) -> (String, String) {
        (format!("{namespace}-{name}-far"), format!("{namespace}-{name}-ca"))
    }
}

fn resource(kind: &str) -> ApiResource {
    let (group, version, plural) = match kind {
        "EtcdProxy" => (GROUP, "v1alpha1", "etcdproxies"),
        "EtcdUpstream" => (GROUP, "v1alpha1", "etcdupstreams"),
        "EtcdProxyGrant" => (GROUP, "v1alpha1", "etcdproxygrants"),
        "ServiceAccount" => ("", "v1", "serviceaccounts"),
        "Secret" => ("", "v1", "secrets"),
        "ConfigMap" => ("", "v1", "configmaps"),
        "Service" => ("", "v1", "services"),
        "Deployment" => ("apps", "v1", "deployments"),
        "NetworkPolicy" => ("networking.k8s.io", "v1", "networkpolicies"),
        "PodDisruptionBudget" => ("policy", "v1", "poddisruptionbudgets"),
        "ClusterRoleBinding" => ("rbac.authorization.k8s.io", "v1", "clusterrolebindings"),
        _ => ("rbac.authorization.k8s.io", "v1", "rolebindings"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// Text at a JSON pointer.
pub(super) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

impl World {
    /// Objects of a kind; of all namespaces for an empty one.
    pub(super) fn api(&self, kind: &str, namespace: &str) -> Api<DynamicObject> {
        match namespace {
            "" => Api::all_with(self.client.clone(), &resource(kind)),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &resource(kind)),
        }
    }

    pub(super) async fn list(&self, kind: &str, selector: &str) -> Result<Vec<Value>> {
        let list = self.api(kind, "").list(&ListParams::default().labels(selector)).await?;
        list.items.into_iter().map(|object| Ok(serde_json::to_value(object)?)).collect()
    }

    /// Creates an object; `None` if the API server would not have it.
    pub(super) async fn create(&self, kind: &str, object: Value) -> Result<Option<DynamicObject>> {
        let api = self.api(kind, text(&object, "/metadata/namespace"));
        let object: DynamicObject = serde_json::from_value(object)?;
        match api.create(&PostParams::default(), &object).await {
            Ok(made) => Ok(Some(made)),
            Err(kube::Error::Api(status)) if status.is_forbidden() || [409, 422].contains(&status.code) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("creating {kind} {}", object.name_any())),
        }
    }

    /// EtcdProxies that nobody has deleted.
    pub(super) async fn living(&self) -> Result<Vec<Value>> {
        let all = self.list("EtcdProxy", "").await?;
        Ok(all.into_iter().filter(|proxy| text(proxy, "/metadata/deletionTimestamp").is_empty()).collect())
    }

    pub(super) async fn pick_living(&mut self) -> Result<Option<Value>> {
        Ok(self.living().await?.choose(&mut self.random).cloned())
    }

    pub(super) async fn vacant(&mut self) -> Result<Vec<Slot>> {
        let all = self.list("EtcdProxy", "").await?;
        let taken = |slot: &Slot| {
            all.iter().any(|proxy| {
                text(proxy, "/metadata/namespace") == slot.namespace && text(proxy, "/metadata/name") == slot.name
            })
        };
        let vacant: Vec<_> = Slot::all().filter(|slot| !taken(slot)).collect();
        Ok(vacant.choose_multiple(&mut self.random, 2).copied().collect())
    }

    pub(super) async fn create_proxy(&self, slot: Slot, spec: &Value) -> Result<Option<(String, Life)>> {
        let object = json!({
            "apiVersion": format!("{GROUP}/v1alpha1"), "kind": "EtcdProxy",
            "metadata": {"namespace": slot.namespace, "name": slot.name}, "spec": spec,
        });
        let Some(made) = self.create("EtcdProxy", object).await? else { return Ok(None) };
        let life = Life {
            namespace: slot.namespace.to_owned(),
            name: slot.name.to_owned(),
            policy: text(spec, "/deletionPolicy").to_owned(),
            deleted: false,
        };
        Ok(Some((made.uid().context("no uid")?, life)))
    }

    /// Writes a key as the tenant's proxy would, if the tenant holds its prefix at that very moment.
    pub(super) async fn write_key(&mut self, prefix: &str, uid: &str) -> Result<bool> {
        let history = self.claims.history().await?;
        let Some(held) = history.held.get(prefix).filter(|held| held.uid == uid) else { return Ok(false) };
        let key = format!("{prefix}key-{}", self.random.random::<u32>());
        let stands = Compare::mod_revision(claims::key(prefix), CompareOp::Equal, held.revision);
        let txn = Txn::new().when([stands]).and_then([TxnOp::put(key.as_str(), uid, None)]);
        let answer = self.etcd.txn(txn).await?;
        if answer.succeeded() {
            let revision = answer.header().context("no header")?.revision();
            self.keys.push(Written { key, prefix: prefix.to_owned(), revision });
        }
        Ok(answer.succeeded())
    }

    /// Takes the controller's rights away.
    pub(super) async fn withdraw(&mut self) -> Result<()> {
        let (kind, namespace) = *[("ClusterRoleBinding", ""), ("RoleBinding", xtask::cluster::SYSTEM)]
            .choose(&mut self.random)
            .context("a choice")?;
        let api = self.api(kind, namespace);
        let mut binding = api.get("proxy-controller").await?;
        binding.metadata.resource_version = None;
        binding.metadata.uid = None;
        binding.metadata.managed_fields = None;
        api.delete("proxy-controller", &Default::default()).await?;
        self.withdrawn.push((kind, binding));
        Ok(())
    }

    /// Gives them back.
    pub(super) async fn restore(&mut self) -> Result<()> {
        for (kind, binding) in std::mem::take(&mut self.withdrawn) {
            if self.create(kind, serde_json::to_value(&binding)?).await?.is_none() {
                bail!("the binding {kind} could not be made again");
            }
        }
        Ok(())
    }
}
