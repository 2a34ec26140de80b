//! What tenants and further clients get in their own namespaces. Nothing of it opens the upstream.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServiceSpec};

use super::{Desired, Kind, Names, bytes, metadata};
use crate::policy::ClientTargets;

/// A client's certificate and key, and the bundle that verifies the proxy.
pub fn client_secret(names: &Names, target: &ClientTargets, chain: &str, key: &str, bundle: &str) -> Desired {
    Desired::new(
        Kind::Secret,
        &Secret {
            metadata: metadata(names, &target.namespace, &target.secret),
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(bytes([("tls.crt", chain), ("tls.key", key), ("ca.crt", bundle)])),
            ..Default::default()
        },
    )
}

/// The bundle that verifies the proxy, for who may not read Secrets.
pub fn bundle_config_map(names: &Names, namespace: &str, name: &str, bundle: &str) -> Desired {
    Desired::new(
        Kind::ConfigMap,
        &ConfigMap {
            metadata: metadata(names, namespace, name),
            data: Some(BTreeMap::from([("ca.crt".to_owned(), bundle.to_owned())])),
            ..Default::default()
        },
    )
}

/// The address in the tenant's namespace.
pub fn external_name(names: &Names) -> Desired {
    Desired::new(
        Kind::Service,
        &Service {
            metadata: metadata(names, &names.namespace, &names.tenant_service()),
            spec: Some(ServiceSpec {
                type_: Some("ExternalName".to_owned()),
                external_name: Some(format!("{}.{}", names.service_host(), names.cluster_domain)),
                ..Default::default()
            }),
            ..Default::default()
        },
    )
}
