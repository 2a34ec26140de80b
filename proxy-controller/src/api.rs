//! The API group: what operators and tenants write, and what the controller answers in status.
//!
//! The schema carries what can be judged from one object (lengths, patterns, CEL); what needs others is [`crate::policy`]'s.
//! `proxy-controller crds` prints the definitions; `manifests/crds/` holds them.

#![expect(unreachable_pub, reason = "the derive of schemas repeats each type where nobody reaches it")]
#![expect(clippy::duplicated_attributes, reason = "columns have types and names, each its own")]

mod common;
mod grant;
mod proxy;
mod upstream;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

pub use self::{
    common::{Limits, Placement, Resources, Toleration},
    grant::{EtcdProxyGrant, EtcdProxyGrantSpec, GrantSource, GrantTarget, TargetKind},
    proxy::{
        Certificates, Client, Compaction, CompactionPolicy, DEFAULT_CLIENT, DeletionPolicy, DeletionProgress,
        EtcdProxy, EtcdProxySpec, EtcdProxyStatus, Mode, RotationPhase, Tls, UpstreamRef, Usage,
    },
    upstream::{
        Adoption, AllowedPlacement, AllowedToleration, DEFAULT_META_PREFIX, DEFAULT_PREFIX_ROOT, Defaults,
        EtcdUpstream, EtcdUpstreamSpec, EtcdUpstreamStatus, SecretKeyRef, SecretRef, StatusClaim, UpstreamTls,
    },
};

/// The API group.
pub const GROUP: &str = "etcd.programming-kubernetes.info";

/// Its one version.
pub const VERSION: &str = "v1alpha1";

/// The name of the EtcdUpstream that an EtcdProxy means which names none.
pub const DEFAULT_UPSTREAM: &str = "default";

/// Label of every object that the controller made: the uid of the EtcdProxy it was made for.
pub const UID_LABEL: &str = "etcd.programming-kubernetes.info/uid";

/// Label of every object that the controller made: the namespace of the EtcdProxy it was made for, for people.
pub const NAMESPACE_LABEL: &str = "etcd.programming-kubernetes.info/namespace";

/// Label of every object that the controller made: the name of the EtcdProxy it was made for, for people.
pub const NAME_LABEL: &str = "etcd.programming-kubernetes.info/name";

/// Annotation of every object that the controller made: `<namespace>/<name>` of the EtcdProxy, for people.
pub const OWNER_ANNOTATION: &str = "etcd.programming-kubernetes.info/etcdproxy";

/// What keeps an EtcdProxy until everything made for it is gone.
pub const FINALIZER: &str = "etcd.programming-kubernetes.info/cleanup";

/// The field manager of everything that the controller makes.
pub const MANAGER: &str = "proxy-controller";

/// The definitions of all types, as an operator applies them.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![EtcdUpstream::crd(), EtcdProxy::crd(), EtcdProxyGrant::crd()]
}

#[cfg(test)]
mod tests;
