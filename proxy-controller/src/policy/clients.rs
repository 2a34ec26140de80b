//! Clients: into which objects of which namespaces their certificates go, and who has consented.

use std::collections::HashMap;

use kube::ResourceExt as _;

use super::{Fault, Reason, Refusal, Value};
use crate::api::{DEFAULT_CLIENT, EtcdProxy, EtcdProxyGrant, TargetKind};

/// An object that the controller writes for a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Its namespace.
    pub namespace: String,
    /// Its kind.
    pub kind: TargetKind,
    /// Its name.
    pub name: String,
}

/// Where one client's things go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTargets {
    /// The client: the last part of its certificate's common name.
    pub client: String,
    /// The namespace of both objects.
    pub namespace: String,
    /// The Secret with certificate, key and CA bundle.
    pub secret: String,
    /// The ConfigMap with the CA bundle.
    pub config_map: Option<String>,
}

/// Where the things of all clients of an EtcdProxy go, that of the client `default` first, then as they are listed.
#[must_use]
pub fn client_targets(proxy: &EtcdProxy) -> Vec<ClientTargets> {
    let (namespace, name) = (proxy.namespace().unwrap_or_default(), proxy.name_any());
    let default = ClientTargets {
        client: DEFAULT_CLIENT.to_owned(),
        namespace: namespace.clone(),
        secret: format!("{name}-etcd-client"),
        config_map: Some(format!("{name}-etcd-ca")),
    };
    let further = proxy.spec.clients.iter().map(|client| ClientTargets {
        client: client.name.clone(),
        namespace: client.namespace.clone().unwrap_or_else(|| namespace.clone()),
        secret: client.secret_name.clone().unwrap_or_else(|| format!("{name}-etcd-{}", client.name)),
        config_map: client.config_map_name.clone(),
    });
    std::iter::once(default).chain(further).collect()
}

/// Whether a grant of the target's own namespace lets an EtcdProxy have the target written. Everything is matched exactly.
#[must_use]
pub fn consents(grant: &EtcdProxyGrant, proxy: &EtcdProxy, target: &Target) -> bool {
    let (namespace, name) = (proxy.namespace().unwrap_or_default(), proxy.name_any());
    // What is being deleted no longer consents: its objects go with it.
    grant.metadata.deletion_timestamp.is_none()
        && grant.namespace().is_some_and(|own| own == target.namespace)
        && grant.spec.from.iter().any(|from| from.namespace == namespace && from.etcd_proxy == name)
        && grant.spec.targets.iter().any(|granted| granted.kind == target.kind && granted.name == target.name)
}

pub(super) fn check(proxy: &EtcdProxy, grants: &[&EtcdProxyGrant], controller: &str) -> Vec<Refusal> {
    let own = proxy.namespace().unwrap_or_default();
    let mut refusals = Vec::new();
    let mut holders: HashMap<Target, String> = HashMap::new();
    for (place, targets) in client_targets(proxy).into_iter().enumerate() {
        // The client `default` stands in no list.
        let field = |name: &str| format!("spec.clients[{}].{name}", place.saturating_sub(1));
        for (part, target) in targets.each() {
            if let Some(holder) = holders.get(&target) {
                let message = format!("client {holder} is written there already");
                let fault = Fault::Duplicate(Value::text(&target.name));
                let refusal = Refusal::new(field(part), Reason::DuplicateTarget, fault, message);
                refusals.push(refusal.of_client(&targets.client));
                continue;
            }
            holders.insert(target.clone(), targets.client.clone());
            if target.namespace == own {
                continue;
            }
            let refusal = if target.namespace == controller {
                let message = "nothing is written for tenants into the controller's own namespace";
                Refusal::forbidden(field("namespace"), Reason::TargetNotAllowed, message)
            } else if grants.iter().any(|grant| consents(grant, proxy, &target)) {
                continue;
            } else {
                Refusal::forbidden(field("namespace"), Reason::GrantMissing, missing(proxy, &target))
            };
            refusals.push(refusal.of_client(&targets.client));
        }
    }
    refusals
}

/// What the other namespace has to write.
fn missing(proxy: &EtcdProxy, Target { namespace, kind, name }: &Target) -> String {
    format!(
        "namespace {namespace} has not consented to {kind:?} {name}: it needs an EtcdProxyGrant from namespace {}, etcdProxy {}, with this target",
        proxy.namespace().unwrap_or_default(),
        proxy.name_any()
    )
}

// === impl ClientTargets ===

impl ClientTargets {
    /// The objects, each with the field that names it.
    fn each(&self) -> impl Iterator<Item = (&'static str, Target)> {
        let target = |kind, name: &str| Target { namespace: self.namespace.clone(), kind, name: name.to_owned() };
        let secret = ("secretName", target(TargetKind::Secret, &self.secret));
        let config_map = self.config_map.as_deref().map(|name| ("configMapName", target(TargetKind::ConfigMap, name)));
        std::iter::once(secret).chain(config_map)
    }

    /// The objects.
    pub fn targets(&self) -> impl Iterator<Item = Target> {
        self.each().map(|(_, target)| target)
    }
}
