//! Secrets in the controller's namespace.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};

use super::{Desired, Kind, Names, bytes, metadata};

/// The CA with its key and what has to be remembered of its predecessors.
pub fn authority_secret(names: &Names, files: BTreeMap<String, Vec<u8>>) -> Secret {
    Secret {
        metadata: metadata(names, &names.controller_namespace, &names.authority()),
        type_: Some("Opaque".to_owned()),
        data: Some(files.into_iter().map(|(name, content)| (name, ByteString(content))).collect()),
        ..Default::default()
    }
}

/// The serving certificate and the bundle that verifies clients, mounted by the proxies.
pub fn serving_secret(names: &Names, chain: &str, key: &str, bundle: &str) -> Desired {
    Desired::new(
        Kind::Secret,
        &Secret {
            metadata: metadata(names, &names.controller_namespace, &names.serving()),
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(bytes([("tls.crt", chain), ("tls.key", key), ("ca.crt", bundle)])),
            ..Default::default()
        },
    )
}
