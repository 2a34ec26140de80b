//! What the objects of an EtcdProxy are called.

use sha2::{Digest, Sha256};

/// The longest part of a name that people recognise; with the digest a name stays a DNS label.
const READABLE: usize = 46;

/// Names of the objects made for one EtcdProxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The EtcdProxy's namespace.
    pub namespace: String,
    /// The EtcdProxy's name.
    pub name: String,
    /// The EtcdProxy's uid.
    pub uid: String,
    /// The controller's namespace.
    pub controller_namespace: String,
    /// The cluster's DNS domain.
    pub cluster_domain: String,
    /// The name of its objects in the controller's namespace.
    pub base: String,
}

/// `<namespace>-<name>`, cut, and a digest of the uid: an object made anew under the same name never meets what its
/// predecessor left.
pub fn base_name(namespace: &str, name: &str, uid: &str) -> String {
    let readable: String = format!("{namespace}-{name}").chars().take(READABLE).collect();
    let digest = hex::encode(Sha256::digest(uid.as_bytes()));
    // A Service's name begins with a letter, a namespace's need not.
    let lead = if readable.starts_with(|c: char| c.is_ascii_lowercase()) { "" } else { "n" };
    format!("{lead}{}-{}", readable.trim_end_matches('-'), digest.get(..8).unwrap_or_default())
}

impl Names {
    /// Names for the EtcdProxy `namespace`/`name`.
    pub fn new(namespace: &str, name: &str, uid: &str, controller_namespace: &str, cluster_domain: &str) -> Self {
        Self {
            base: base_name(namespace, name, uid),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            controller_namespace: controller_namespace.to_owned(),
            cluster_domain: cluster_domain.to_owned(),
        }
    }

    /// Who the EtcdProxy is to people, and in its claim.
    pub fn owner(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The Secret with the CA and its key.
    pub fn authority(&self) -> String {
        format!("{}-ca", self.base)
    }

    /// The Secret with the serving certificate and the bundle that verifies clients.
    pub fn serving(&self) -> String {
        format!("{}-serving", self.base)
    }

    /// The Service in the tenant's namespace.
    pub fn tenant_service(&self) -> String {
        format!("{}-etcd", self.name)
    }

    /// The ConfigMap and the Secret of mode Sidecar.
    pub fn sidecar(&self) -> String {
        format!("{}-etcd-sidecar", self.name)
    }

    /// The common name of a client's certificate.
    pub fn common_name(&self, client: &str) -> String {
        format!("{}/{}/{client}", self.namespace, self.name)
    }

    /// The name at which proxies are reached, in the controller's namespace.
    pub fn service_host(&self) -> String {
        format!("{}.{}.svc", self.base, self.controller_namespace)
    }

    /// The URL that tenants use.
    pub fn endpoint(&self) -> String {
        format!("https://{}.{}.svc:{}", self.tenant_service(), self.namespace, super::CLIENT_PORT)
    }

    /// The URL that member lists name.
    pub fn advertised(&self) -> String {
        format!("https://{}:{}", self.service_host(), super::CLIENT_PORT)
    }

    /// Every name by which a client may call the proxy.
    pub fn server_names(&self) -> Vec<String> {
        let services =
            [(self.base.clone(), self.controller_namespace.as_str()), (self.tenant_service(), &self.namespace)];
        services
            .into_iter()
            .flat_map(|(service, namespace)| {
                [
                    format!("{service}.{namespace}.svc"),
                    format!("{service}.{namespace}.svc.{}", self.cluster_domain),
                    format!("{service}.{namespace}"),
                    service,
                ]
            })
            .collect()
    }
}
