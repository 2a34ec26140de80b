//! One random thing after the other, by tenants, by the operator and by whoever meddles.

use anyhow::{Context, Result};
use kube::api::{DeleteParams, Patch, PatchParams};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use xtask::cluster::SYSTEM;

use super::world::{Adoption, ELSEWHERE, GROUP, Slot, World, text};

/// Prefixes that tenants wish for: the same ones, and nested ones.
const WISHES: [&str; 5] = ["/shared/a/", "/shared/a/b/", "/shared/b/", "/shared/c/", "/shared/c/d/"];

/// What is made by the controller.
pub(super) const OWNED: [&str; 7] =
    ["ServiceAccount", "Secret", "ConfigMap", "Service", "NetworkPolicy", "PodDisruptionBudget", "Deployment"];

pub(super) fn uid_label() -> String {
    format!("{GROUP}/uid")
}

fn choose<T: Copy>(random: &mut StdRng, among: &[T]) -> T {
    // Never empty.
    among[random.random_range(0..among.len())]
}

impl World {
    /// Does one thing, and answers whether it was a creation, change or deletion that was accepted.
    pub(super) async fn operate(&mut self) -> Result<bool> {
        if !self.withdrawn.is_empty() && self.random.random_range(0..3) == 0 {
            self.restore().await?;
        }
        let (what, done) = match self.random.random_range(0..100) {
            0..28 => ("created", self.create_some().await?),
            28..56 => ("changed", self.change().await?),
            56..72 => ("deleted", self.delete().await?),
            72..84 => ("meddled", self.meddle().await?),
            84..87 => ("foreign", self.foreign().await?),
            87..90 => ("grants", self.grant().await?),
            90..94 => {
                self.write_keys().await?;
                ("keys", false)
            }
            94..97 if self.withdrawn.is_empty() => {
                self.withdraw().await?;
                ("rights", true)
            }
            _ => ("operator", self.operator().await?),
        };
        *self.done.entry(what).or_default() += u64::from(done);
        Ok(done && matches!(what, "created" | "changed" | "deleted"))
    }

    /// One, or two at the same instant that wish for the same.
    async fn create_some(&mut self) -> Result<bool> {
        let slots = self.vacant().await?;
        let Some(first) = slots.first().copied() else { return Ok(false) };
        let mut spec = self.spec(first);
        let two = slots.get(1).copied().filter(|_| self.random.random_range(0..3) == 0);
        let made = match two {
            None => vec![self.create_proxy(first, &spec).await?],
            Some(second) => {
                let wish = choose(&mut self.random, &WISHES);
                let mut other = self.spec(second);
                spec["prefix"] = wish.into();
                other["prefix"] = wish.into();
                let (one, two) = tokio::join!(self.create_proxy(first, &spec), self.create_proxy(second, &other));
                vec![one?, two?]
            }
        };
        let made: Vec<_> = made.into_iter().flatten().collect();
        let done = !made.is_empty();
        self.lives.extend(made);
        Ok(done)
    }

    fn spec(&mut self, slot: Slot) -> Value {
        let random = &mut self.random;
        let mut spec = json!({
            "deletionPolicy": choose(random, &["Retain", "Delete", "Delete"]),
            "limits": {"keys": random.random_range(1_000..200_000)},
        });
        if random.random() {
            spec["prefix"] = choose(random, &WISHES).into();
        }
        if random.random_range(0..4) == 0 {
            spec["mode"] = "Sidecar".into();
        } else {
            spec["mode"] = "Deployment".into();
            spec["replicas"] = random.random_range(1..4).into();
            spec["clients"] = clients(random, slot.namespace, slot.name);
        }
        spec
    }

    async fn change(&mut self) -> Result<bool> {
        let Some(proxy) = self.pick_living().await? else { return Ok(false) };
        let (namespace, name) = (text(&proxy, "/metadata/namespace"), text(&proxy, "/metadata/name"));
        let sidecar = text(&proxy, "/spec/mode") == "Sidecar";
        let random = &mut self.random;
        let spec = match random.random_range(0..6) {
            0 => json!({"limits": {"keys": random.random_range(1_000..200_000)}}),
            1 if !sidecar => json!({"replicas": random.random_range(1..4)}),
            2 if !sidecar => json!({"clients": clients(random, namespace, name)}),
            3 => json!({"tls": {"validity": choose(random, &["1h", "48h", "2160h"])}}),
            // What has no meaning there is refused.
            4 => json!({"mode": if sidecar { "Deployment" } else { "Sidecar" }, "clients": [], "replicas": null}),
            _ => json!({"deletionPolicy": choose(random, &["Retain", "Delete"])}),
        };
        let uid = text(&proxy, "/metadata/uid");
        // Not another of the same name.
        let patch = Patch::Merge(json!({"metadata": {"uid": uid}, "spec": spec}));
        match self.api("EtcdProxy", namespace).patch(name, &PatchParams::default(), &patch).await {
            Ok(changed) => {
                let life = self.lives.get_mut(uid).context("an EtcdProxy that nobody made")?;
                text(&changed.data, "/spec/deletionPolicy").clone_into(&mut life.policy);
                Ok(true)
            }
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn delete(&mut self) -> Result<bool> {
        let Some(proxy) = self.pick_living().await? else { return Ok(false) };
        let (namespace, name) = (text(&proxy, "/metadata/namespace"), text(&proxy, "/metadata/name"));
        self.write_keys_of(&proxy).await?;
        self.api("EtcdProxy", namespace).delete(name, &DeleteParams::default()).await?;
        self.lives.get_mut(text(&proxy, "/metadata/uid")).context("an EtcdProxy that nobody made")?.deleted = true;
        Ok(true)
    }

    async fn write_keys(&mut self) -> Result<()> {
        match self.pick_living().await? {
            Some(proxy) => self.write_keys_of(&proxy).await,
            None => Ok(()),
        }
    }

    async fn write_keys_of(&mut self, proxy: &Value) -> Result<()> {
        let (prefix, uid) = (text(proxy, "/status/prefix"), text(proxy, "/metadata/uid"));
        for _ in 0..3 {
            if prefix.is_empty() || !self.write_key(prefix, uid).await? {
                break;
            }
        }
        Ok(())
    }

    /// Edits or deletes something that the controller made.
    async fn meddle(&mut self) -> Result<bool> {
        let Some(proxy) = self.pick_living().await? else { return Ok(false) };
        let selector = format!("{}={}", uid_label(), text(&proxy, "/metadata/uid"));
        let first = self.random.random_range(0..OWNED.len());
        let mut objects = Vec::new();
        for kind in OWNED.into_iter().cycle().skip(first).take(OWNED.len()) {
            objects.extend(self.list(kind, &selector).await?.into_iter().map(|object| (kind, object)));
            if !objects.is_empty() {
                break;
            }
        }
        let Some((kind, object)) = objects.choose(&mut self.random) else { return Ok(false) };
        let (namespace, name) = (text(object, "/metadata/namespace"), text(object, "/metadata/name"));
        let api = self.api(kind, namespace);
        let done = if self.random.random_range(0..3) == 0 {
            api.delete(name, &DeleteParams::default()).await.map(drop)
        } else {
            // A CA that somebody writes over is not repaired but told; without the label a tenant's object is foreign.
            let authority = *kind == "Secret" && name.ends_with("-ca") && namespace == SYSTEM;
            let patch = match (*kind, self.random.random_range(0..3)) {
                _ if authority => json!({"metadata": {"annotations": {"meddled": "true"}}}),
                (_, 0) if namespace == SYSTEM => json!({"metadata": {"labels": {uid_label(): null}}}),
                (_, 0) => json!({"metadata": {"annotations": {format!("{GROUP}/etcdproxy"): "nobody/nothing"}}}),
                ("Secret", 1) => json!({"data": {"tls.crt": "bm9uc2Vuc2U=", "tls.key": null}, "immutable": true}),
                ("ConfigMap", 1) => json!({"data": {"ca.crt": "nonsense"}, "immutable": true}),
                ("Secret" | "ConfigMap", _) => json!({"data": {"ca.crt": null}}),
                ("Deployment", _) => json!({"spec": {"replicas": 0, "minReadySeconds": 7}}),
                ("Service", _) if namespace == SYSTEM => json!({"spec": {"selector": {"app": "mallory"}}}),
                ("Service", _) => json!({"spec": {"externalName": "mallory.example.com"}}),
                ("NetworkPolicy", _) => json!({"spec": {"ingress": [{}]}}),
                ("PodDisruptionBudget", _) => json!({"spec": {"maxUnavailable": 3}}),
                _ => json!({"automountServiceAccountToken": true}),
            };
            api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
        };
        match done {
            Ok(()) => Ok(true),
            // Gone meanwhile, or not to be changed.
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts something where the controller is to put something, or takes it away.
    async fn foreign(&mut self) -> Result<bool> {
        if self.foreign.len() >= 3 {
            let place = self.random.random_range(0..self.foreign.len());
            let (kind, namespace, name) = self.foreign.swap_remove(place);
            self.api(kind, &namespace).delete(&name, &DeleteParams::default()).await?;
            return Ok(true);
        }
        let Some(slot) = self.vacant().await?.first().copied() else { return Ok(false) };
        let (kind, suffix) =
            choose(&mut self.random, &[("Secret", "-etcd-client"), ("ConfigMap", "-etcd-ca"), ("Service", "-etcd")]);
        let name = format!("{}{suffix}", slot.name);
        let mut object = json!({
            "apiVersion": "v1", "kind": kind,
            "metadata": {"namespace": slot.namespace, "name": name, "annotations": {"foreign": "true"}},
        });
        if kind == "Service" {
            object["spec"] = json!({"type": "ExternalName", "externalName": "foreign.example.com"});
        }
        let made = self.create(kind, object).await?.is_some();
        if made {
            self.foreign.push((kind, slot.namespace.to_owned(), name));
        }
        Ok(made)
    }

    /// Gives a grant, or takes it away.
    pub(super) async fn grant(&mut self) -> Result<bool> {
        let slots: Vec<_> = Slot::all().collect();
        let Slot { namespace, name } = choose(&mut self.random, &slots);
        let (secret, config_map) = Slot::far(namespace, name);
        let grant = format!("{namespace}-{name}");
        let object = json!({
            "apiVersion": format!("{GROUP}/v1alpha1"), "kind": "EtcdProxyGrant",
            "metadata": {"namespace": ELSEWHERE, "name": grant},
            "spec": {
                "from": [{"namespace": namespace, "etcdProxy": name}],
                "targets": [{"kind": "Secret", "name": secret}, {"kind": "ConfigMap", "name": config_map}],
            },
        });
        if self.create("EtcdProxyGrant", object).await?.is_none() {
            self.api("EtcdProxyGrant", ELSEWHERE).delete(&grant, &DeleteParams::default()).await?;
        }
        Ok(true)
    }

    /// Gives away what somebody left, or changes whether sidecars may have credentials.
    async fn operator(&mut self) -> Result<bool> {
        let history = self.claims.history().await?;
        let living = self.living().await?;
        let heir = living.iter().find_map(|proxy| {
            let prefix = text(proxy, "/spec/prefix");
            let left = history.held.get(prefix)?;
            let dead = !living.iter().any(|other| text(other, "/metadata/uid") == left.uid);
            let adoption = Adoption {
                prefix: prefix.to_owned(),
                namespace: text(proxy, "/metadata/namespace").to_owned(),
                name: text(proxy, "/metadata/name").to_owned(),
            };
            (dead && !self.adoptions.contains(&adoption)).then_some(adoption)
        });
        let patch = match heir {
            Some(heir) => {
                self.adoptions.push(heir);
                let adoptions = self.adoptions.iter().map(|Adoption { prefix, namespace, name }| {
                    json!({"prefix": prefix, "namespace": namespace, "name": name})
                });
                json!({"spec": {"adoptions": adoptions.collect::<Vec<_>>()}})
            }
            None => json!({"spec": {"allowSidecarCredentials": self.random.random_range(0..4) > 0}}),
        };
        self.api("EtcdUpstream", "").patch("default", &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(true)
    }
}

fn clients(random: &mut StdRng, namespace: &str, name: &str) -> Value {
    let (secret, config_map) = Slot::far(namespace, name);
    let near = json!({"name": "near", "configMapName": format!("{name}-near-ca")});
    let far = json!({
        "name": "far", "namespace": ELSEWHERE, "secretName": secret, "configMapName": config_map,
    });
    match random.random_range(0..4) {
        0 => json!([]),
        1 => json!([near]),
        2 => json!([far]),
        _ => json!([near, far]),
    }
}
