//! kube-apiserver and kube-controller-manager.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};

use super::{
    audit::{self, Request as Audited},
    etcd::Etcd,
    kubectl::{Kubectl, Server},
};
use crate::{
    pki::{self, Ca, Identity, Request, SigningKey},
    process::{Process, Spec},
    site::{Site, free_port},
    tools::{Tool, Tools},
};

/// How long a server of Kubernetes may take to be ready: on a busy machine its first start takes many seconds.
pub(super) const READY: Duration = Duration::from_secs(120);

/// The group whose members may do anything.
pub const MASTERS: &str = "system:masters";

/// The name in the front proxy's certificate that aggregated servers are told to believe.
pub const FRONT_PROXY: &str = "front-proxy-client";

/// kube-apiserver, with its authorities.
pub struct KubeApiserver {
    /// The running program.
    pub process: Process,
    /// Vouches for the server, and for users by their certificates.
    pub cluster_ca: Ca,
    /// Vouches for the aggregator towards the servers behind it.
    pub front_proxy_ca: Ca,
    /// The aggregator's own certificate.
    pub front_proxy: Identity,
    server: Server,
    port: u16,
    admin: Kubectl,
    service_account_key: SigningKey,
    audit: Option<PathBuf>,
}

/// What a kube-apiserver may have besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiserverOptions {
    /// A log of all requests, to be read with [`KubeApiserver::audited`].
    pub audit: bool,
}

/// How long a ServiceAccount's token is good for: as long as the certificates beside it.
const TOKEN_LIFETIME: &str = "--duration=720h";

/// kube-controller-manager: the namespace controller and the garbage collector among others.
pub struct ControllerManager {
    /// The running program.
    pub process: Process,
    direct: Kubectl,
    admin: Kubectl,
}

impl KubeApiserver {
    /// Starts it on an etcd and waits until it is ready.
    ///
    /// # Errors
    /// When a tool is missing or it does not come up.
    pub fn start(site: &Site, tools: &Tools, etcd: &Etcd) -> Result<Self> {
        Self::start_with(site, tools, etcd, ApiserverOptions::default())
    }

    /// As [`KubeApiserver::start`], with something besides.
    ///
    /// # Errors
    /// As there.
    pub fn start_with(site: &Site, tools: &Tools, etcd: &Etcd, options: ApiserverOptions) -> Result<Self> {
        let cluster_ca = Ca::create(&site.pki("cluster-ca")?, "cluster-ca")?;
        let front_proxy_ca = Ca::create(&site.pki("front-proxy-ca")?, "front-proxy-ca")?;
        let front_proxy = front_proxy_ca.client(FRONT_PROXY, None)?;
        let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let serving = cluster_ca.issue(&Request {
            file: "kube-apiserver",
            common_name: "kube-apiserver",
            organization: None,
            server_names: &names,
            client: false,
        })?;
        let service_account_key = pki::signing_key(&site.path("pki/service-accounts"))?;
        let port = free_port()?;
        let spec = Spec::new("kube-apiserver", tools.path(Tool::KubeApiserver)?);
        let spec = etcd
            .endpoint("kube-apiserver")?
            .storage_flags(spec)
            .flag("bind-address", "127.0.0.1")
            .flag("secure-port", port.to_string())
            .flag("cert-dir", site.data("kube-apiserver")?)
            .flag("tls-cert-file", &serving.cert)
            .flag("tls-private-key-file", &serving.key)
            .flag("client-ca-file", cluster_ca.cert())
            .flag("authorization-mode", "RBAC")
            .flag("service-account-issuer", "https://kubernetes.default.svc")
            .flag("service-account-signing-key-file", &service_account_key.private)
            .flag("service-account-key-file", &service_account_key.public)
            .flag("service-cluster-ip-range", "10.96.0.0/16")
            // No pod ever asks for it, and loopback addresses are no endpoints.
            .flag("endpoint-reconciler-type", "none")
            .flag("proxy-client-cert-file", &front_proxy.cert)
            .flag("proxy-client-key-file", &front_proxy.key)
            .flag("requestheader-client-ca-file", front_proxy_ca.cert())
            .flag("requestheader-allowed-names", FRONT_PROXY)
            .flag("requestheader-username-headers", "X-Remote-User")
            .flag("requestheader-uid-headers", "X-Remote-Uid")
            .flag("requestheader-group-headers", "X-Remote-Group")
            .flag("requestheader-extra-headers-prefix", "X-Remote-Extra-");
        let audit = options.audit.then(|| site.path("logs/audit.jsonl"));
        let spec = match &audit {
            Some(log) => audit::flags(spec, &site.path("audit-policy.json"), log)?,
            None => spec,
        };
        let process = Process::spawn(site, spec)?;
        let server = Server { url: format!("https://127.0.0.1:{port}"), ca: cluster_ca.pem() };
        let kubeconfig = site.path("admin.kubeconfig");
        server.kubeconfig(&kubeconfig, "admin", &cluster_ca.client("admin", Some(MASTERS))?)?;
        let admin = Kubectl::new(site, tools, kubeconfig)?;
        let this =
            Self { process, cluster_ca, front_proxy_ca, front_proxy, server, port, admin, service_account_key, audit };
        this.wait_ready()?;
        Ok(this)
    }

    /// Waits until it is ready: storage reached, RBAC's own roles written, its informers filled.
    ///
    /// # Errors
    /// When it is not within two minutes.
    pub fn wait_ready(&self) -> Result<()> {
        self.process.wait_until("kube-apiserver to be ready", READY, || self.admin.probe("/readyz"))
    }

    /// kubectl as an administrator.
    pub fn admin(&self) -> &Kubectl {
        &self.admin
    }

    /// The port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's address and authority.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// A kubeconfig for a user in at most one group, both by certificate.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn kubeconfig(&self, site: &Site, user: &str, group: Option<&str>) -> Result<std::path::PathBuf> {
        let file: String = user.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let path = site.path(format!("{file}.kubeconfig"));
        self.server.kubeconfig(&path, user, &self.cluster_ca.client(user, group)?)?;
        Ok(path)
    }

    /// A kubeconfig with a token of a ServiceAccount, which must be there: whoever uses it has the ServiceAccount's
    /// rights and no others.
    ///
    /// # Errors
    /// When kube-apiserver gives no token, or the file cannot be written.
    pub fn service_account_kubeconfig(&self, site: &Site, namespace: &str, name: &str) -> Result<PathBuf> {
        let token = self.service_account_token(namespace, name)?;
        let path = site.path(format!("{namespace}-{name}.kubeconfig"));
        self.server.kubeconfig_with_token(&path, name, &token)?;
        Ok(path)
    }

    /// A token of a ServiceAccount, different from every other.
    ///
    /// # Errors
    /// When kube-apiserver gives none.
    pub fn service_account_token(&self, namespace: &str, name: &str) -> Result<String> {
        let namespaced = format!("--namespace={namespace}");
        let token = self.admin.ok(&["create", "token", name, &namespaced, TOKEN_LIFETIME])?;
        Ok(token.trim().to_owned())
    }

    /// The requests of a user that have been answered so far, in the order of their answers.
    ///
    /// # Errors
    /// When the server was started without an audit log, or the log cannot be read.
    pub fn audited(&self, user: &str) -> Result<Vec<Audited>> {
        audit::read(self.audit.as_deref().context("this kube-apiserver keeps no audit log")?, user)
    }
}

impl ControllerManager {
    /// Starts it; [`ControllerManager::wait_ready`] waits, so that others may be started meanwhile.
    ///
    /// # Errors
    /// When a tool is missing or it cannot be started.
    pub fn start(site: &Site, tools: &Tools, apiserver: &KubeApiserver) -> Result<Self> {
        let kubeconfig = apiserver.kubeconfig(site, "system:kube-controller-manager", None)?;
        let ca = &apiserver.cluster_ca;
        let serving = ca.issue(&Request {
            file: "kube-controller-manager",
            common_name: "kube-controller-manager",
            organization: None,
            server_names: &["localhost"],
            client: false,
        })?;
        let port = free_port()?;
        let spec = Spec::new("kube-controller-manager", tools.path(Tool::KubeControllerManager)?)
            .flag("bind-address", "127.0.0.1")
            .flag("secure-port", port.to_string())
            .flag("tls-cert-file", &serving.cert)
            .flag("tls-private-key-file", &serving.key)
            .flag("kubeconfig", &kubeconfig)
            .flag("authentication-kubeconfig", &kubeconfig)
            .flag("authorization-kubeconfig", &kubeconfig)
            .flag("root-ca-file", ca.cert())
            .flag("service-account-private-key-file", &apiserver.service_account_key.private)
            .flag("use-service-account-credentials", "true")
            // There is one, and it is to take up its work at once when it is started again.
            .flag("leader-elect", "false");
        let process = Process::spawn(site, spec)?;
        let direct = site.path("kube-controller-manager-direct.kubeconfig");
        let server = Server { url: format!("https://127.0.0.1:{port}"), ca: ca.pem() };
        server.kubeconfig(&direct, "admin", &ca.client("admin", Some(MASTERS))?)?;
        Ok(Self { process, direct: Kubectl::new(site, tools, direct)?, admin: apiserver.admin().clone() })
    }

    /// Waits until it serves and its controllers are at work: it is healthy before it has made them, and gives up if
    /// kube-apiserver fails it then.
    ///
    /// # Errors
    /// When it does not within two minutes.
    pub fn wait_ready(&self) -> Result<()> {
        self.process.wait_until("kube-controller-manager to be at work", READY, || {
            self.direct.probe("/healthz")?;
            // Made by one of its controllers, and it starts none before it has made all of them.
            self.admin.ok(&["get", "serviceaccount", "default", "--namespace=default"]).map(drop)
        })
    }
}
