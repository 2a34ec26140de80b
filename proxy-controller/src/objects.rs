//! What the controller makes of an EtcdProxy: the objects as they are to be. Values in, values out.
//!
//! Every object is applied whole, under one field manager, so that what is no longer wanted goes by itself.

mod deployment;
mod names;
mod network;
mod secrets;
mod settings;
mod sidecar;
mod tenant;

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString, NamespaceResourceScope, Resource, api::core::v1::ObjectReference,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::core::ApiResource;
use serde::Serialize;
use serde_json::Value;

pub use self::{
    deployment::{CLIENT_PORT, METRICS_PORT, Paths, arguments, deployment, service_account},
    names::{Names, base_name},
    network::{disruption_budget, network_policy, service},
    secrets::{authority_secret, serving_secret},
    settings::{Quantities, Settings},
    sidecar::{UpstreamFiles, sidecar_config, sidecar_secret},
    tenant::{bundle_config_map, client_secret, external_name},
};
use crate::api::{MANAGER, NAME_LABEL, NAMESPACE_LABEL, OWNER_ANNOTATION, UID_LABEL};

/// The kinds of objects that the controller makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the kinds of their names")]
pub enum Kind {
    ServiceAccount,
    Secret,
    ConfigMap,
    Service,
    NetworkPolicy,
    PodDisruptionBudget,
    Deployment,
}

/// An object as it is to be.
#[derive(Clone, PartialEq)]
pub struct Desired {
    /// Where it is.
    pub id: ObjectId,
    /// Its body, with metadata.
    pub body: Value,
}

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::ServiceAccount,
        Self::Secret,
        Self::ConfigMap,
        Self::Service,
        Self::NetworkPolicy,
        Self::PodDisruptionBudget,
        Self::Deployment,
    ];

    /// Group, version and resource.
    pub fn api_resource(self) -> ApiResource {
        use k8s_openapi::api::{apps, core, networking, policy};
        match self {
            Self::ServiceAccount => ApiResource::erase::<core::v1::ServiceAccount>(&()),
            Self::Secret => ApiResource::erase::<core::v1::Secret>(&()),
            Self::ConfigMap => ApiResource::erase::<core::v1::ConfigMap>(&()),
            Self::Service => ApiResource::erase::<core::v1::Service>(&()),
            Self::NetworkPolicy => ApiResource::erase::<networking::v1::NetworkPolicy>(&()),
            Self::PodDisruptionBudget => ApiResource::erase::<policy::v1::PodDisruptionBudget>(&()),
            Self::Deployment => ApiResource::erase::<apps::v1::Deployment>(&()),
        }
    }
}

impl Kind {
    /// The kind's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::ServiceAccount => "ServiceAccount",
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
            Self::Service => "Service",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::PodDisruptionBudget => "PodDisruptionBudget",
            Self::Deployment => "Deployment",
        }
    }

    /// Whether such objects are made in tenants' namespaces, too.
    pub fn is_written_to_tenants(self) -> bool {
        matches!(self, Self::Secret | Self::ConfigMap | Self::Service)
    }
}

impl Desired {
    /// Of a typed object with namespace and name in its metadata.
    pub fn new<K>(kind: Kind, object: &K) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope> + k8s_openapi::Metadata<Ty = ObjectMeta> + Serialize,
    {
        let metadata = object.metadata();
        let id = ObjectId {
            kind,
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        };
        // Objects of Kubernetes have nothing that JSON cannot express.
        Self { id, body: serde_json::to_value(object).unwrap_or_default() }
    }
}

impl ObjectId {
    /// As events name objects.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.kind.api_resource().api_version),
            kind: Some(self.kind.name().to_owned()),
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            ..Default::default()
        }
    }
}

impl std::fmt::Debug for Desired {
    /// Without the body: it may be a Secret's.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Desired").field(&self.id).finish()
    }
}

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, namespace, name } = self;
        write!(f, "{} {namespace}/{name}", kind.name())
    }
}

/// Metadata of an object made for the EtcdProxy of these names.
fn metadata(names: &Names, namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        labels: Some(labels(names)),
        annotations: Some(BTreeMap::from([(OWNER_ANNOTATION.to_owned(), names.owner())])),
        ..Default::default()
    }
}

fn labels(names: &Names) -> BTreeMap<String, String> {
    let mut labels = selector(names);
    labels.insert(NAMESPACE_LABEL.to_owned(), names.namespace.clone());
    labels.insert(NAME_LABEL.to_owned(), names.name.clone());
    labels.insert("app.kubernetes.io/name".to_owned(), "etcd-proxy".to_owned());
    labels.insert("app.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned());
    labels
}

/// What selects the pods of one EtcdProxy.
fn selector(names: &Names) -> BTreeMap<String, String> {
    BTreeMap::from([(UID_LABEL.to_owned(), names.uid.clone())])
}

fn bytes<const N: usize>(entries: [(&str, &str); N]) -> BTreeMap<String, ByteString> {
    entries.into_iter().map(|(name, text)| (name.to_owned(), ByteString(text.as_bytes().to_vec()))).collect()
}

#[cfg(test)]
mod tests;
