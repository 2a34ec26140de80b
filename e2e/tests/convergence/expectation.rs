//! What there is to be in the end, worked out from the specifications, without the controller's code.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use xtask::cluster::SYSTEM;

use super::{
    certificates::{Leaf, file},
    claims::History,
    operations::{OWNED, uid_label},
    world::{ELSEWHERE, GROUP, Slot, World, text},
};

/// Where an object is: kind, namespace, name.
pub(super) type Place = (String, String, String);

/// Everything at about one moment.
pub(super) struct Snapshot {
    pub(super) proxies: Vec<Value>,
    /// What bears the label of an EtcdProxy's uid.
    pub(super) owned: BTreeMap<Place, Value>,
    grants: Vec<Value>,
    upstream: Value,
    pub(super) history: History,
}

fn place(kind: &str, namespace: &str, name: &str) -> Place {
    (kind.to_owned(), namespace.to_owned(), name.to_owned())
}

impl Snapshot {
    pub(super) async fn take(world: &World) -> Result<Self> {
        let mut owned = BTreeMap::new();
        for kind in OWNED {
            for object in world.list(kind, &uid_label()).await? {
                let place = place(kind, text(&object, "/metadata/namespace"), text(&object, "/metadata/name"));
                owned.insert(place, object);
            }
        }
        let upstream = world.api("EtcdUpstream", "").get("default").await?;
        Ok(Self {
            proxies: world.list("EtcdProxy", "").await?,
            owned,
            grants: world.list("EtcdProxyGrant", "").await?,
            upstream: serde_json::to_value(upstream)?,
            history: world.claims.history().await?,
        })
    }

    /// The version of every object that the controller made.
    pub(super) fn versions(&self) -> BTreeMap<Place, String> {
        let version = |object: &Value| text(object, "/metadata/resourceVersion").to_owned();
        self.owned.iter().map(|(place, object)| (place.clone(), version(object))).collect()
    }

    /// Everything that is not as it is to be.
    pub(super) fn problems(&self, world: &World) -> Vec<String> {
        let mut problems = Vec::new();
        for proxy in &self.proxies {
            let who = format!("{}/{}", text(proxy, "/metadata/namespace"), text(proxy, "/metadata/name"));
            if !text(proxy, "/metadata/deletionTimestamp").is_empty() {
                problems.push(format!("{who} is stuck in its deletion: {}", proxy["status"]["conditions"]));
                continue;
            }
            let found = One { all: self, world, proxy }.problems();
            problems.extend(found.into_iter().map(|problem| format!("{who}: {problem}")));
        }
        let living: BTreeSet<_> = self.proxies.iter().map(|proxy| text(proxy, "/metadata/uid")).collect();
        for (place, object) in &self.owned {
            let uid = object["metadata"]["labels"][uid_label()].as_str().unwrap_or_default();
            if !living.contains(uid) {
                problems.push(format!("{place:?} was made for {uid}, which is gone"));
            }
        }
        problems
    }
}

/// One EtcdProxy.
struct One<'a> {
    all: &'a Snapshot,
    world: &'a World,
    proxy: &'a Value,
}

impl One<'_> {
    fn at(&self, pointer: &str) -> &str {
        text(self.proxy, pointer)
    }

    /// Status and reason of a condition.
    fn condition(&self, kind: &str) -> (&str, &str) {
        let conditions = self.proxy.pointer("/status/conditions").and_then(Value::as_array);
        let found = conditions.into_iter().flatten().find(|condition| text(condition, "/type") == kind);
        found.map(|condition| (text(condition, "/status"), text(condition, "/reason"))).unwrap_or_default()
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.proxy.pointer("/status/observedGeneration") != self.proxy.pointer("/metadata/generation") {
            problems.push("its last generation was not observed".to_owned());
        }
        let (namespace, name, uid) =
            (self.at("/metadata/namespace"), self.at("/metadata/name"), self.at("/metadata/uid"));
        let prefix = match self.at("/spec/prefix") {
            "" => format!("/etcd-proxies/{namespace}/{name}/{uid}/"),
            wish => wish.to_owned(),
        };
        let holds = self.all.history.held.get(&prefix).is_some_and(|holder| holder.uid == uid);
        let sidecar = self.at("/spec/mode") == "Sidecar";
        let permitted = self.all.upstream["spec"]["allowSidecarCredentials"] == true;
        let (wanted, expected) = match (sidecar, holds) {
            (true, _) if !permitted => (BTreeSet::new(), [("Ready", "False", "UpstreamAuthRequired")].to_vec()),
            (_, false) => match self.in_the_way(&prefix) {
                Some(reason) => (BTreeSet::new(), [("Ready", "False", reason)].to_vec()),
                None => {
                    problems.push(format!("{prefix} is free, and was not given: {:?}", self.condition("Ready")));
                    return problems;
                }
            },
            (true, true) => {
                let name = format!("{name}-etcd-sidecar");
                let objects = [place("Secret", namespace, &name), place("ConfigMap", namespace, &name)];
                (objects.into(), [("Ready", "True", "SidecarConfigured")].to_vec())
            }
            (false, true) => self.deployment(),
        };
        if holds && (permitted || !sidecar) && self.at("/status/prefix") != prefix {
            problems.push(format!("it holds {prefix}, and its status says {:?}", self.at("/status/prefix")));
        }
        for (kind, status, reason) in expected {
            let found = self.condition(kind);
            if found != (status, reason) {
                problems.push(format!("{kind} is {found:?}, not {:?}", (status, reason)));
            }
        }
        let label = uid_label();
        let made = self.all.owned.iter().filter(|(_, object)| object["metadata"]["labels"][&label] == uid);
        let made: BTreeMap<_, _> = made.collect();
        let there: BTreeSet<_> = made.keys().map(|place| (*place).clone()).collect();
        for missing in wanted.difference(&there) {
            problems.push(format!("{missing:?} is missing"));
        }
        for left in there.difference(&wanted) {
            problems.push(format!("{left:?} is not wanted"));
        }
        for (place, object) in &made {
            if object["metadata"]["annotations"][format!("{GROUP}/etcdproxy")] != format!("{namespace}/{name}") {
                problems.push(format!("{place:?} does not say whose it is"));
            }
        }
        if problems.is_empty() && holds && !wanted.is_empty() {
            let contents =
                if sidecar { self.sidecar_contents(&prefix) } else { self.deployment_contents(&prefix, &wanted) };
            problems.extend(contents.err().map(|error| format!("{error:#}")));
        }
        problems
    }

    /// Why it may not have its prefix.
    fn in_the_way(&self, prefix: &str) -> Option<&'static str> {
        let held = &self.all.history.held;
        let other = held.keys().find(|held| held.starts_with(prefix) || prefix.starts_with(held.as_str()))?;
        let alive = self.all.proxies.iter().any(|proxy| text(proxy, "/metadata/uid") == held[other].uid);
        if other != prefix || alive {
            return Some("PrefixTaken");
        }
        let given = self.world.adoptions.iter().any(|adoption| {
            adoption.prefix == prefix
                && adoption.namespace == self.at("/metadata/namespace")
                && adoption.name == self.at("/metadata/name")
        });
        (!given).then_some("PrefixHoldsData")
    }

    fn base(&self) -> String {
        let digest = hex::encode(Sha256::digest(self.at("/metadata/uid")));
        format!("{}-{}-{}", self.at("/metadata/namespace"), self.at("/metadata/name"), &digest[..8])
    }

    /// The clients that are permitted, with Secret, ConfigMap and namespace.
    fn clients(&self) -> Vec<(&str, String, String, &str)> {
        let (namespace, name) = (self.at("/metadata/namespace"), self.at("/metadata/name"));
        let named = |wanted: &str| {
            let clients = self.proxy.pointer("/spec/clients").and_then(Value::as_array);
            clients.into_iter().flatten().any(|client| client["name"] == wanted)
        };
        let granted =
            self.all.grants.iter().any(|grant| text(grant, "/metadata/name") == format!("{namespace}-{name}"));
        let (secret, config_map) = Slot::far(namespace, name);
        let mut clients = vec![("default", format!("{name}-etcd-client"), format!("{name}-etcd-ca"), namespace)];
        let in_order = self.proxy.pointer("/spec/clients").and_then(Value::as_array).into_iter().flatten();
        for client in in_order.map(|client| text(client, "/name")) {
            match client {
                "near" => clients.push(("near", format!("{name}-etcd-near"), format!("{name}-near-ca"), namespace)),
                _ if granted && named("far") => clients.push(("far", secret.clone(), config_map.clone(), ELSEWHERE)),
                _ => {}
            }
        }
        clients
    }

    fn deployment(&self) -> (BTreeSet<Place>, Vec<(&'static str, &'static str, &'static str)>) {
        let base = self.base();
        let mut wanted: BTreeSet<_> = ["ServiceAccount", "Service", "NetworkPolicy", "Deployment"]
            .into_iter()
            .map(|kind| place(kind, SYSTEM, &base))
            .chain(["ca", "serving"].map(|secret| place("Secret", SYSTEM, &format!("{base}-{secret}"))))
            .collect();
        if self.proxy.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1) > 1 {
            wanted.insert(place("PodDisruptionBudget", SYSTEM, &base));
        }
        let clients = self.clients();
        let wishes = self.proxy.pointer("/spec/clients").and_then(Value::as_array).map_or(0, Vec::len);
        let mut certificates = match clients.len() == wishes + 1 {
            true => ("CertificatesValid", "True", "Issued"),
            false => ("CertificatesValid", "False", "GrantMissing"),
        };
        for (_, secret, config_map, namespace) in &clients {
            wanted.insert(place("Secret", namespace, secret));
            wanted.insert(place("ConfigMap", namespace, config_map));
        }
        let (namespace, name) = (self.at("/metadata/namespace"), self.at("/metadata/name"));
        wanted.insert(place("Service", namespace, &format!("{name}-etcd")));
        let mut ready = ("Ready", "False", "DeploymentUnavailable");
        for (kind, namespace, name) in &self.world.foreign {
            if wanted.remove(&place(kind, namespace, name)) {
                match *kind {
                    "Service" => ready.2 = "TargetExists",
                    // What comes first gives the reason.
                    _ if certificates.1 == "True" => certificates = ("CertificatesValid", "False", "TargetExists"),
                    _ => {}
                }
            }
        }
        (wanted, vec![ready, certificates, ("UpstreamReachable", "True", "Answering")])
    }

    fn object(&self, kind: &str, namespace: &str, name: &str) -> Result<&Value> {
        self.all.owned.get(&place(kind, namespace, name)).with_context(|| format!("no {kind} {namespace}/{name}"))
    }

    fn deployment_contents(&self, prefix: &str, wanted: &BTreeSet<Place>) -> Result<()> {
        let base = self.base();
        let (namespace, name) = (self.at("/metadata/namespace"), self.at("/metadata/name"));
        let clients = self.clients();
        let names: Vec<_> = clients.iter().map(|client| format!("{namespace}/{name}/{}", client.0)).collect();
        let replicas = self.proxy.pointer("/spec/replicas").cloned().unwrap_or_else(|| 1.into());
        let deployment = self.object("Deployment", SYSTEM, &base)?;
        same("replicas", &deployment["spec"]["replicas"], &replicas)?;
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        same("image", &container["image"], &"etcd-proxy:0.1.0".into())?;
        same("account", &deployment["spec"]["template"]["spec"]["serviceAccountName"], &base.as_str().into())?;
        let args: Vec<_> = container["args"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (flag, value) in [
            ("prefix", prefix.to_owned()),
            ("client-cert-allowed-cn", names.join(",")),
            ("quota-keys", self.proxy["spec"]["limits"]["keys"].to_string()),
            ("advertise-client-urls", format!("https://{base}.{SYSTEM}.svc:2379")),
        ] {
            let start = format!("--{flag}=");
            let found: Vec<_> = args.iter().filter_map(|arg| arg.strip_prefix(&start)).collect();
            same(flag, &json!(found), &json!([value]))?;
        }
        let selector = json!({uid_label(): self.at("/metadata/uid")});
        same("selector", &self.object("Service", SYSTEM, &base)?["spec"]["selector"], &selector)?;
        let account = self.object("ServiceAccount", SYSTEM, &base)?;
        same("token", &account["automountServiceAccountToken"], &false.into())?;
        let policy = self.object("NetworkPolicy", SYSTEM, &base)?;
        anyhow::ensure!(policy["spec"]["ingress"] != json!([{}]), "the NetworkPolicy lets everybody in");
        let address = format!("{name}-etcd");
        if let Ok(service) = self.object("Service", namespace, &address) {
            let host = format!("{base}.{SYSTEM}.svc.cluster.local");
            same("address", &service["spec"]["externalName"], &host.into())?;
        }
        let validity = match self.at("/spec/tls/validity") {
            "1h" => Duration::from_secs(3600),
            "48h" => Duration::from_secs(48 * 3600),
            _ => Duration::from_secs(2160 * 3600),
        };
        let serving = self.object("Secret", SYSTEM, &format!("{base}-serving"))?;
        let bundle = file(serving, "ca.crt")?;
        let leaf = Leaf::of(serving).context("the serving certificate")?;
        leaf.ends_within(validity).context("the serving certificate")?;
        for host in [format!("{base}.{SYSTEM}.svc"), format!("{address}.{namespace}.svc")] {
            leaf.serves(&bundle, &host)?;
        }
        for (client, secret, config_map, target) in &clients {
            if wanted.contains(&place("Secret", target, secret)) {
                let secret = self.object("Secret", target, secret)?;
                same("type", &secret["type"], &"kubernetes.io/tls".into())?;
                let leaf = Leaf::of(secret).context((*client).to_owned())?;
                leaf.is_client(&bundle, &format!("{namespace}/{name}/{client}")).context((*client).to_owned())?;
                leaf.ends_within(validity).context((*client).to_owned())?;
                same("ca.crt", &file(secret, "ca.crt")?.into(), &bundle.as_str().into())?;
            }
            if wanted.contains(&place("ConfigMap", target, config_map)) {
                let config_map = self.object("ConfigMap", target, config_map)?;
                same("ca.crt", &config_map["data"]["ca.crt"], &bundle.as_str().into())?;
            }
        }
        Ok(())
    }

    fn sidecar_contents(&self, prefix: &str) -> Result<()> {
        let (namespace, name) = (self.at("/metadata/namespace"), format!("{}-etcd-sidecar", self.at("/metadata/name")));
        let data = &self.object("ConfigMap", namespace, &name)?["data"];
        same("prefix", &data["ETCD_PROXY_PREFIX"], &prefix.into())?;
        let keys = self.proxy["spec"]["limits"]["keys"].to_string();
        same("quota", &data["ETCD_PROXY_QUOTA_KEYS"], &keys.into())?;
        let secret = self.object("Secret", namespace, &name)?;
        file(secret, "ca.crt")?;
        Leaf::of(secret).context("the upstream's identity").map(drop)
    }
}

fn same(what: &str, found: &Value, wanted: &Value) -> Result<()> {
    anyhow::ensure!(found == wanted, "{what} is {found}, not {wanted}");
    Ok(())
}
