//! The proxy-controller with its shipped manifests, rights and arguments, run as processes on this machine.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use serde_json::{Value, json};

use super::{
    Etcd, KubeApiserver, Kubectl,
    local_pod::PROXY_CONTROLLER,
    node::{Binary, Listening, Node, Pod},
};
use crate::{poll, process::Process};

/// The namespace of the controller, its proxies and the operator's Secrets.
pub const SYSTEM: &str = "etcd-proxy-system";

/// The name of the controller's Deployment, ServiceAccount and webhook configuration.
const NAME: &str = "proxy-controller";

/// Who the controller is to kube-apiserver.
pub const CONTROLLER_USER: &str = "system:serviceaccount:etcd-proxy-system:proxy-controller";

/// How long kube-apiserver may take to serve new types, and to call a new webhook.
const READY: Duration = Duration::from_secs(60);

/// The controller's replicas. Dropping it kills them.
pub struct ProxyController {
    replicas: Vec<Pod>,
    credentials: Vec<String>,
    kubectl: Kubectl,
}

impl ProxyController {
    /// Applies `manifests/crds` and `manifests/controller` as they are, lets the webhook be found on this machine, and
    /// starts replicas that have the rights of the controller's ServiceAccount and no others. The webhook is the first
    /// one's; see [`ProxyController::point_webhook_at`].
    ///
    /// # Errors
    /// When kube-apiserver refuses a manifest, or a replica does not get ready.
    pub fn start(node: &Node, apiserver: &KubeApiserver, binary: &Path, replicas: usize) -> Result<Self> {
        let kubectl = apiserver.admin().clone();
        install(&kubectl)?;
        let mut this = Self { replicas: Vec::new(), credentials: Vec::new(), kubectl };
        for _ in 0..replicas {
            this.add_replica(node, apiserver, binary)?;
        }
        Ok(this)
    }

    /// Starts one replica more.
    ///
    /// # Errors
    /// When it does not get ready.
    pub fn add_replica(&mut self, node: &Node, apiserver: &KubeApiserver, binary: &Path) -> Result<&Pod> {
        let deployment = self.deployment()?;
        let account = deployment.pointer("/spec/template/spec/serviceAccountName").and_then(Value::as_str);
        let account = account.context("the controller's Deployment names no ServiceAccount")?;
        // In a pod the token comes as a mounted file; here as a kubeconfig. Every pod has its own.
        let number = self.replicas.len();
        let token = apiserver.service_account_token(SYSTEM, account)?;
        let kubeconfig = node.site().path(format!("{SYSTEM}-{account}-{number}.kubeconfig"));
        apiserver.server().kubeconfig_with_token(&kubeconfig, account, &token)?;
        let binary = Binary {
            program: &PROXY_CONTROLLER,
            path: binary.to_path_buf(),
            listening: Listening::Loopback,
            further: vec![format!("--kubeconfig={}", kubeconfig.display())],
        };
        self.credentials.push(credential(&token)?);
        self.replicas.push(node.run(&deployment, &binary, number)?);
        if number == 0 {
            self.point_webhook_at(0)?;
        }
        self.replica(number)
    }

    /// One of the replicas, counted from 0.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn replica(&self, number: usize) -> Result<&Pod> {
        self.replicas.get(number).with_context(|| format!("there is no replica {number}"))
    }

    /// How kube-apiserver's audit log names the credential of one of the replicas.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn credential(&self, number: usize) -> Result<&str> {
        self.credentials.get(number).map(String::as_str).with_context(|| format!("there is no replica {number}"))
    }

    /// All replicas.
    pub fn replicas(&self) -> &[Pod] {
        &self.replicas
    }

    /// Their processes.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.replicas.iter().map(|pod| &pod.process)
    }

    /// Has kube-apiserver call one replica's webhook from now on. In a cluster the Service finds those that are ready; an
    /// ExternalName has no such choice.
    ///
    /// # Errors
    /// When kube-apiserver refuses.
    pub fn point_webhook_at(&self, number: usize) -> Result<()> {
        let port = self.replica(number)?.address().port();
        let object = self.kubectl.json(&["get", "validatingwebhookconfiguration", NAME])?;
        let count = object.get("webhooks").and_then(Value::as_array).map_or(0, Vec::len);
        let patch: Vec<Value> = (0..count)
            .map(|index| {
                json!({"op": "replace", "path": format!("/webhooks/{index}/clientConfig/service/port"), "value": port})
            })
            .collect();
        let patch = Value::from(patch).to_string();
        self.kubectl.ok(&["patch", "validatingwebhookconfiguration", NAME, "--type=json", "--patch", &patch]).map(drop)
    }

    /// Waits until the webhook is called and answers: an EtcdProxy that names an unknown upstream is refused by it.
    ///
    /// # Errors
    /// When it is not within a minute: what kube-apiserver said instead.
    pub fn wait_webhook(&self) -> Result<()> {
        let probe = json!({
            "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdProxy",
            "metadata": {"namespace": "default", "name": "webhook-probe"},
            "spec": {"upstreamRef": {"name": "webhook-probe-names-no-upstream"}},
        });
        poll::until("the webhook to answer", READY, || {
            let args = ["create", "--dry-run=server", "--validate=false", "-f", "-"];
            let outcome = self.kubectl.run_with_input(&args, &probe.to_string())?;
            let refused = !outcome.status.success()
                && outcome.stderr.contains("is invalid")
                && outcome.stderr.contains("webhook-probe-names-no-upstream");
            if refused { Ok(()) } else { bail!("{}{}", outcome.stdout, outcome.stderr.trim_end()) }
        })
    }

    /// The controller's Deployment as kube-apiserver shows it.
    fn deployment(&self) -> Result<Value> {
        self.kubectl.json(&["get", "deployment", NAME, "--namespace", SYSTEM])
    }
}

/// The name of a token: its `jti` (RFC 7519), as in `pkg/serviceaccount/util.go` of Kubernetes.
fn credential(token: &str) -> Result<String> {
    let claims = token.split('.').nth(1).context("the token is no JWT")?;
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims)?)?;
    let jti = claims.get("jti").and_then(Value::as_str).context("the token has no jti")?;
    Ok(format!("JTI={jti}"))
}

/// Applies the manifests and changes the one thing that a machine without pods needs.
fn install(kubectl: &Kubectl) -> Result<()> {
    apply(kubectl, "crds")?;
    kubectl.ok(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"])?;
    // The policies of the controller refer to its types, which may take a moment to be known everywhere.
    poll::until("the controller's manifests to be accepted", READY, || apply(kubectl, "controller"))?;
    // Without pods the webhook's Service has nothing to select; kube-apiserver follows an ExternalName to this machine.
    let local = json!({"spec": {
        "type": "ExternalName", "externalName": "localhost",
        "selector": null, "clusterIP": null, "clusterIPs": null, "ports": null,
        "ipFamilies": null, "ipFamilyPolicy": null, "internalTrafficPolicy": null,
    }});
    let service = "proxy-controller-webhook";
    let patch = ["patch", "service", service, "--namespace", SYSTEM, "--type=merge", "--patch", &local.to_string()];
    kubectl.ok(&patch).map(drop)
}

fn apply(kubectl: &Kubectl, folder: &str) -> Result<()> {
    let folder = manifests().join(folder);
    let folder = folder.to_str().context("the path of the manifests is no text")?;
    // Server-side: the definitions are too long for an annotation.
    kubectl.ok(&["apply", "--server-side", "--force-conflicts", "-k", folder]).map(drop)
}

/// The manifests that are shipped.
pub fn manifests() -> PathBuf {
    crate::root().join("manifests")
}

/// Makes an etcd known as the EtcdUpstream of `manifests/upstream`, as an operator does: the two Secrets, the endpoint and
/// the namespaces that may use it.
///
/// # Errors
/// When kube-apiserver refuses.
pub fn provide_upstream(kubectl: &Kubectl, etcd: &Etcd, namespaces: &[&str]) -> Result<()> {
    let endpoint = etcd.endpoint("etcd-proxy")?;
    let read = |path: &Path| {
        Ok::<_, anyhow::Error>(
            STANDARD.encode(std::fs::read(path).with_context(|| format!("reading {}", path.display()))?),
        )
    };
    let folder = manifests().join("upstream");
    let folder = folder.to_str().context("the path of the manifests is no text")?;
    let text = kubectl.ok(&["create", "--dry-run=client", "--validate=false", "-o", "json", "-k", folder])?;
    let mut upstream: Value = serde_json::from_str(&text).context("manifests/upstream is one object")?;
    let spec = upstream.get_mut("spec").and_then(Value::as_object_mut).context("the EtcdUpstream has no spec")?;
    spec.insert("endpoints".to_owned(), json!([endpoint.url]));
    spec.insert("allowedNamespaces".to_owned(), json!(namespaces));
    let reference = |path: &str| {
        let name = spec.get("tls").and_then(|tls| tls.pointer(path)).and_then(Value::as_str);
        name.map(str::to_owned).with_context(|| format!("the EtcdUpstream has no spec.tls{path}"))
    };
    let (ca, client) = (reference("/caSecretRef/name")?, reference("/clientSecretRef/name")?);
    let secret = |name: String, kind: &str, data: Value| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": kind,
            "metadata": {"namespace": SYSTEM, "name": name}, "data": data,
        })
    };
    let certificate = json!({"tls.crt": read(&endpoint.client.cert)?, "tls.key": read(&endpoint.client.key)?});
    kubectl.apply(&[
        secret(ca, "Opaque", json!({"ca.crt": read(&endpoint.ca)?})),
        secret(client, "kubernetes.io/tls", certificate),
        upstream,
    ])?;
    Ok(())
}
