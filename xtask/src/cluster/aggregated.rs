//! An aggregated API server on this machine, behind kube-apiserver.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    control_plane::{KubeApiserver, MASTERS, READY},
    controller::manifests,
    etcd::Endpoint,
    kubectl::{Kubectl, Server},
};
use crate::{
    pki::{Ca, Request},
    poll,
    process::{Process, Spec},
    site::{Site, free_port},
    tools::Tools,
};

/// What an aggregated server serves, and where the cluster finds it.
#[derive(Clone, Copy, Debug)]
pub struct Api {
    /// The process' name, and the user it is to kube-apiserver.
    pub server: &'static str,
    /// The namespace of its Service.
    pub namespace: &'static str,
    /// Its API group.
    pub group: &'static str,
    /// The group's versions with their priorities; the highest is what kubectl prefers.
    pub versions: &'static [(&'static str, u16)],
    /// The EtcdProxy that it may have.
    pub etcd_proxy: EtcdProxyManifest,
}

/// An EtcdProxy object of `manifests/`.
#[derive(Clone, Copy, Debug)]
pub struct EtcdProxyManifest {
    /// The file, below `manifests/`.
    pub file: &'static str,
    /// The object's name in it.
    pub name: &'static str,
}

/// The pizza restaurant.
pub const RESTAURANT: Api = Api {
    server: "pizza-apiserver",
    namespace: "restaurant",
    group: "restaurant.programming-kubernetes.info",
    versions: &[("v1beta1", 20), ("v1alpha1", 10)],
    etcd_proxy: EtcdProxyManifest { file: "pizza-apiserver/base/etcdproxy.yaml", name: "restaurant" },
};

/// What Go's sample-apiserver serves.
pub const WARDLE: Api = Api {
    server: "sample-apiserver",
    namespace: "wardle",
    group: "wardle.example.com",
    versions: &[("v1beta1", 20), ("v1alpha1", 10)],
    etcd_proxy: EtcdProxyManifest { file: "examples/etcdproxy/minimal.yaml", name: "team-a" },
};

/// The Service's name in each namespace.
const SERVICE: &str = "api";

/// A running aggregated API server.
pub struct AggregatedServer {
    /// The running program.
    pub process: Process,
    /// What it serves.
    pub api: Api,
    /// Vouches for the server towards the aggregator: the `caBundle`.
    pub ca: Ca,
    server: Server,
    port: u16,
    direct: Kubectl,
}

/// Where an aggregated server keeps its objects.
#[derive(Clone, Debug)]
pub struct Storage {
    /// Its etcd, real or virtual.
    pub endpoint: Endpoint,
    /// A prefix of its own, where no proxy sees to that.
    pub prefix: Option<String>,
}

impl Api {
    /// Makes the namespace and applies the EtcdProxy in it.
    ///
    /// # Errors
    /// When kube-apiserver refuses.
    pub(super) fn apply_etcd_proxy(&self, admin: &Kubectl) -> Result<()> {
        admin.apply(&[namespace(self.namespace)])?;
        let file = manifests().join(self.etcd_proxy.file);
        let file = file.to_str().context("the path of the manifests is no text")?;
        admin.ok(&["apply", "--namespace", self.namespace, "-f", file]).map(drop)
    }
}

impl AggregatedServer {
    /// Grants the server what it needs, starts it, has it aggregated, and waits until every version is available.
    ///
    /// # Errors
    /// When kube-apiserver refuses, or the server does not come up: with the end of its log.
    pub fn start(
        site: &Site,
        tools: &Tools,
        program: &Path,
        apiserver: &KubeApiserver,
        storage: &Storage,
        api: Api,
    ) -> Result<Self> {
        apiserver.admin().apply(&grants(api))?;
        let kubeconfig = apiserver.kubeconfig(site, api.server, None)?;
        let ca_name = format!("{}-ca", api.server);
        let ca = Ca::create(&site.pki(&ca_name)?, &ca_name)?;
        let host = format!("{SERVICE}.{}.svc", api.namespace);
        let serving = ca.issue(&Request {
            file: "server",
            common_name: &host,
            organization: None,
            server_names: &[&host],
            client: false,
        })?;
        let port = free_port()?;
        let mut spec = storage.endpoint.storage_flags(Spec::new(api.server, program));
        if let Some(prefix) = &storage.prefix {
            spec = spec.flag("etcd-prefix", prefix);
        }
        let spec = spec
            .flag("bind-address", "127.0.0.1")
            .flag("secure-port", port.to_string())
            .flag("tls-cert-file", &serving.cert)
            .flag("tls-private-key-file", &serving.key)
            .flag("kubeconfig", &kubeconfig)
            .flag("authentication-kubeconfig", &kubeconfig)
            .flag("authorization-kubeconfig", &kubeconfig);
        let process = Process::spawn(site, spec)?;
        let direct: PathBuf = site.path(format!("{}-direct.kubeconfig", api.server));
        let server = Server { url: format!("https://127.0.0.1:{port}"), ca: ca.pem() };
        server.kubeconfig(&direct, "admin", &apiserver.cluster_ca.client("admin", Some(MASTERS))?)?;
        let this = Self { process, api, ca, server, port, direct: Kubectl::new(site, tools, direct)? };
        this.wait_ready()?;
        apiserver.admin().apply(&this.aggregation())?;
        this.wait_available(apiserver.admin())?;
        Ok(this)
    }

    /// Waits until it calls itself ready, asked without the aggregator.
    ///
    /// # Errors
    /// When it does not within two minutes.
    pub fn wait_ready(&self) -> Result<()> {
        self.process.wait_until("the server to be ready", READY, || self.direct.probe("/readyz"))
    }

    /// Waits until the aggregator calls every version available.
    ///
    /// # Errors
    /// When it does not within two minutes: the condition's own words.
    pub fn wait_available(&self, admin: &Kubectl) -> Result<()> {
        self.api_services().iter().try_for_each(|name| self.process.wait_until(name, READY, || available(admin, name)))
    }

    /// kubectl as an administrator, speaking to the server itself.
    pub fn direct(&self) -> &Kubectl {
        &self.direct
    }

    /// The server's own address and authority, for clients that go past the aggregator.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The names of its APIServices.
    pub fn api_services(&self) -> Vec<String> {
        self.api.versions.iter().map(|(version, _)| format!("{version}.{}", self.api.group)).collect()
    }

    /// The Service and the APIServices.
    fn aggregation(&self) -> Vec<Value> {
        let Api { namespace, group, versions, .. } = self.api;
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": SERVICE, "namespace": namespace},
            // The server runs beside kube-apiserver, not in a pod.
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        });
        let api_services = versions.iter().map(|(version, priority)| {
            json!({
                "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                "metadata": {"name": format!("{version}.{group}")},
                "spec": {
                    "group": group, "version": version,
                    "groupPriorityMinimum": 1000, "versionPriority": priority,
                    "service": {"namespace": namespace, "name": SERVICE, "port": self.port},
                    "caBundle": STANDARD.encode(self.ca.pem()),
                },
            })
        });
        std::iter::once(service).chain(api_services).collect()
    }
}

/// Waits until the aggregator no longer calls an APIService available.
///
/// # Errors
/// When it still does after two minutes.
pub fn wait_unavailable(admin: &Kubectl, name: &str) -> Result<()> {
    poll::until(name, READY, || if available(admin, name).is_ok() { bail!("it is still available") } else { Ok(()) })
}

fn available(admin: &Kubectl, name: &str) -> Result<()> {
    let object = admin.json(&["get", "apiservice", name])?;
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let condition = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.get("type").is_some_and(|kind| kind == "Available"));
    match condition {
        Some(condition) if condition.get("status").is_some_and(|status| status == "True") => Ok(()),
        Some(condition) => bail!("{condition}"),
        None => bail!("no condition yet"),
    }
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

/// The namespace, and the rights of the server: to ask who somebody is and what they may do, to learn the front
/// proxy's authority, and to read what its admission needs.
fn grants(api: Api) -> Vec<Value> {
    const RBAC: &str = "rbac.authorization.k8s.io";
    let Api { server, namespace, .. } = api;
    let subject = json!([{"apiGroup": RBAC, "kind": "User", "name": server}]);
    let role = |kind: &str, name: &str| json!({"apiGroup": RBAC, "kind": kind, "name": name});
    let read = |groups: &[&str], resources: &[&str]| json!({"apiGroups": groups, "resources": resources, "verbs": ["get", "list", "watch"]});
    let version = format!("{RBAC}/v1");
    vec![
        self::namespace(namespace),
        json!({
            "apiVersion": version, "kind": "ClusterRole", "metadata": {"name": server},
            "rules": [
                read(&[""], &["namespaces"]),
                read(
                    &["admissionregistration.k8s.io"],
                    &[
                        "mutatingwebhookconfigurations", "validatingwebhookconfigurations",
                        "mutatingadmissionpolicies", "mutatingadmissionpolicybindings",
                        "validatingadmissionpolicies", "validatingadmissionpolicybindings",
                    ],
                ),
                read(&["flowcontrol.apiserver.k8s.io"], &["flowschemas", "prioritylevelconfigurations"]),
            ],
        }),
        json!({
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": server},
            "roleRef": role("ClusterRole", server), "subjects": subject,
        }),
        json!({
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": format!("{server}:system:auth-delegator")},
            "roleRef": role("ClusterRole", "system:auth-delegator"), "subjects": subject,
        }),
        json!({
            "apiVersion": version, "kind": "RoleBinding", "metadata": {"name": format!("{server}-auth-reader"), "namespace": "kube-system"},
            "roleRef": role("Role", "extension-apiserver-authentication-reader"), "subjects": subject,
        }),
    ]
}
