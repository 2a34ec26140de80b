//! Mode Sidecar: a proxy beside each of the tenant's own processes, configured by environment. The upstream's identity is in
//! the tenant's namespace, which the operator has allowed in as many words.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};

use super::{CLIENT_PORT, Desired, Kind, METRICS_PORT, Names, Paths, Settings, deployment::upstream_flags, metadata};
use crate::api::EtcdUpstreamSpec;

/// The upstream's files, as the operator's Secrets hold them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct UpstreamFiles {
    /// The bundle that verifies the members.
    pub ca: Option<Vec<u8>>,
    /// Client certificate and key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for UpstreamFiles {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamFiles").field("ca", &self.ca.is_some()).field("client", &self.client.is_some()).finish()
    }
}

/// The proxy's flags as environment variables, for `envFrom`.
pub fn sidecar_config(names: &Names, settings: &Settings, upstream: &EtcdUpstreamSpec, prefix: &str) -> Desired {
    // One Secret holds all three files.
    let mut flags = upstream_flags(upstream, Paths::UPSTREAM_CLIENT, prefix);
    flags.extend([
        ("name", names.name.clone()),
        // Containers of one pod share their loopback interface, and nobody else reaches it.
        ("listen-client-urls", format!("http://127.0.0.1:{CLIENT_PORT}")),
        ("listen-metrics-urls", format!("http://0.0.0.0:{METRICS_PORT}")),
        ("log-format", "json".to_owned()),
    ]);
    flags.extend(settings.limit_flags(1));
    let variable = |flag: &str| format!("ETCD_PROXY_{}", flag.replace('-', "_").to_ascii_uppercase());
    let data: BTreeMap<_, _> = flags.into_iter().map(|(flag, value)| (variable(flag), value)).collect();
    Desired::new(
        Kind::ConfigMap,
        &ConfigMap {
            metadata: metadata(names, &names.namespace, &names.sidecar()),
            data: Some(data),
            ..Default::default()
        },
    )
}

/// The upstream's identity, to be mounted at [`Paths::UPSTREAM_CLIENT`].
pub fn sidecar_secret(names: &Names, files: &UpstreamFiles) -> Desired {
    let mut data = BTreeMap::new();
    if let Some(ca) = &files.ca {
        data.insert("ca.crt".to_owned(), ByteString(ca.clone()));
    }
    if let Some((cert, key)) = &files.client {
        data.insert("tls.crt".to_owned(), ByteString(cert.clone()));
        data.insert("tls.key".to_owned(), ByteString(key.clone()));
    }
    Desired::new(
        Kind::Secret,
        &Secret {
            metadata: metadata(names, &names.namespace, &names.sidecar()),
            type_: Some("Opaque".to_owned()),
            data: Some(data),
            ..Default::default()
        },
    )
}
