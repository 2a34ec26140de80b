//! Which addresses are behind the name of a Service: what the cluster's DNS and kube-proxy know together.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::cluster::follow::Change;

/// How many Services may refer to one another, as DNS resolvers limit chains of CNAMEs.
const CHAIN: usize = 8;

/// The namespace and the name of an object.
type Key = (String, String);

/// All Services and EndpointSlices.
#[derive(Debug, Default)]
pub(super) struct Table {
    services: HashMap<Key, Service>,
    slices: HashMap<Key, Slice>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    namespace: String,
    name: String,
    #[serde(default)]
    labels: HashMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Service {
    metadata: Metadata,
    spec: ServiceSpec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServiceSpec {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    external_name: String,
    #[serde(default)]
    ports: Vec<ServicePort>,
}

#[derive(Debug, Deserialize)]
struct ServicePort {
    #[serde(default)]
    name: String,
    port: u16,
}

#[derive(Debug, Deserialize)]
struct Slice {
    metadata: Metadata,
    #[serde(default)]
    endpoints: Option<Vec<Endpoint>>,
    #[serde(default)]
    ports: Option<Vec<SlicePort>>,
}

#[derive(Debug, Deserialize)]
struct Endpoint {
    addresses: Vec<IpAddr>,
    #[serde(default)]
    conditions: Conditions,
}

#[derive(Debug, Default, Deserialize)]
struct Conditions {
    /// Absent means true (discovery.k8s.io/v1).
    ready: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct SlicePort {
    #[serde(default)]
    name: Option<String>,
    port: Option<u16>,
}

// === impl Table ===

impl Table {
    pub(super) fn hear_service(&mut self, change: Change) {
        hear(&mut self.services, change, |service| &service.metadata);
    }

    pub(super) fn hear_slice(&mut self, change: Change) {
        hear(&mut self.slices, change, |slice| &slice.metadata);
    }

    /// The addresses behind `name.namespace.svc:port`; `.svc` and `.svc.cluster.local` may be there or not.
    pub(super) fn resolve(&self, target: &str) -> Result<Vec<SocketAddr>> {
        let (host, port) = target.rsplit_once(':').with_context(|| format!("{target:?} has no port"))?;
        let port = port.parse().with_context(|| format!("{target:?}: the port is no number"))?;
        let mut host = host.to_owned();
        for _ in 0..CHAIN {
            if host == "localhost" {
                return Ok(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))]);
            }
            let key = service(&host).with_context(|| format!("{host:?} is not the name of a Service"))?;
            let service =
                self.services.get(&key).with_context(|| format!("there is no Service {}/{}", key.0, key.1))?;
            if service.spec.kind == "ExternalName" {
                host.clone_from(&service.spec.external_name);
                continue;
            }
            return self.endpoints(&key, service, port);
        }
        bail!("{target}: more than {CHAIN} Services refer to one another")
    }

    fn endpoints(&self, (namespace, name): &Key, service: &Service, port: u16) -> Result<Vec<SocketAddr>> {
        let what = format!("Service {namespace}/{name}");
        let wanted = service.spec.ports.iter().find(|candidate| candidate.port == port);
        let wanted = wanted.with_context(|| format!("{what} has no port {port}"))?;
        let ours = self.slices.values().filter(|slice| {
            slice.metadata.namespace == *namespace
                && slice.metadata.labels.get("kubernetes.io/service-name").is_some_and(|service| service == name)
        });
        let mut found = Vec::new();
        for slice in ours {
            let mut ports = slice.ports.iter().flatten();
            let named = ports.find(|port| port.name.as_deref().unwrap_or_default() == wanted.name);
            let Some(port) = named.and_then(|port| port.port) else { continue };
            let endpoints = slice.endpoints.iter().flatten();
            let ready = endpoints.filter(|endpoint| endpoint.conditions.ready.unwrap_or(true));
            found.extend(ready.flat_map(|endpoint| &endpoint.addresses).map(|address| SocketAddr::new(*address, port)));
        }
        if found.is_empty() {
            bail!("{what} has no endpoint for its port {port}");
        }
        // The order of a map is nobody's wish.
        found.sort();
        Ok(found)
    }
}

fn hear<T: for<'a> Deserialize<'a>>(objects: &mut HashMap<Key, T>, change: Change, metadata: fn(&T) -> &Metadata) {
    let key = |object: &T| (metadata(object).namespace.clone(), metadata(object).name.clone());
    // kube-apiserver has validated what it stores. An address that is none (of type FQDN) leads nowhere from here.
    let read = |object: Value| serde_json::from_value(object).ok().map(|object: T| (key(&object), object));
    match change {
        Change::All(all) => *objects = all.into_iter().filter_map(read).collect(),
        Change::Put(object) => objects.extend(read(object)),
        Change::Gone(object) => {
            if let Some((key, _)) = read(object) {
                objects.remove(&key);
            }
        }
    }
}

/// The namespace and name of the Service that has a DNS name in a cluster.
fn service(host: &str) -> Option<Key> {
    let host = host.trim_end_matches('.');
    let host = host.strip_suffix(".cluster.local").unwrap_or(host);
    let (name, namespace) = host.strip_suffix(".svc").unwrap_or(host).split_once('.')?;
    (!name.is_empty() && !namespace.is_empty() && !namespace.contains('.'))
        .then(|| (namespace.to_owned(), name.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn table() -> Table {
        let mut table = Table::default();
        table.hear_service(Change::All(vec![
            json!({
                "metadata": {"namespace": "system", "name": "base"},
                "spec": {"type": "ClusterIP", "ports": [{"name": "etcd", "port": 2379, "targetPort": "client"}]},
            }),
            json!({
                "metadata": {"namespace": "restaurant", "name": "pizza-etcd"},
                "spec": {"type": "ExternalName", "externalName": "base.system.svc.cluster.local"},
            }),
            json!({
                "metadata": {"namespace": "loop", "name": "loop"},
                "spec": {"type": "ExternalName", "externalName": "loop.loop.svc"},
            }),
            json!({
                "metadata": {"namespace": "world", "name": "world"},
                "spec": {"type": "ExternalName", "externalName": "www.example.com"},
            }),
        ]));
        table
    }

    fn slice(name: &str, address: &str, port: u16, ready: Option<bool>) -> Value {
        json!({
            "metadata": {"namespace": "system", "name": name, "labels": {"kubernetes.io/service-name": "base"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": ready}}],
            "ports": [{"name": "other", "port": 1}, {"name": "etcd", "port": port}],
        })
    }

    #[test]
    fn services_lead_to_their_ready_endpoints() {
        let mut table = table();
        let error = table.resolve("base.system.svc:2379").unwrap_err().to_string();
        assert!(error.contains("no endpoint"), "{error}");
        table.hear_slice(Change::Put(slice("a", "192.0.2.2", 4001, None)));
        table.hear_slice(Change::Put(slice("b", "192.0.2.2", 4002, Some(true))));
        table.hear_slice(Change::Put(slice("c", "192.0.2.2", 4003, Some(false))));
        let both: Vec<SocketAddr> = ["192.0.2.2:4001", "192.0.2.2:4002"].map(|a| a.parse().unwrap()).into();
        for name in ["base.system", "base.system.svc", "base.system.svc.cluster.local", "pizza-etcd.restaurant.svc"] {
            assert_eq!(table.resolve(&format!("{name}:2379")).unwrap(), both, "{name}");
        }
        table.hear_slice(Change::Gone(slice("a", "192.0.2.2", 4001, None)));
        assert_eq!(table.resolve("base.system.svc:2379").unwrap(), both[1..]);
        table.hear_slice(Change::All(Vec::new()));
        assert!(table.resolve("base.system.svc:2379").is_err());
    }

    #[test]
    fn what_leads_nowhere_says_so() {
        for (target, why) in [
            ("base.system.svc", "no port"),
            ("base.system.svc:2380", "no port 2380"),
            ("none.system.svc:2379", "no Service system/none"),
            ("www.example.com:443", "not the name of a Service"),
            ("world.world.svc:443", "not the name of a Service"),
            ("loop.loop.svc:1", "refer to one another"),
        ] {
            let error = format!("{:#}", table().resolve(target).unwrap_err());
            assert!(error.contains(why), "{target}: {error}");
        }
    }
}
