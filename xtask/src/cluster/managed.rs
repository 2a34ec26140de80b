//! The proxy of an EtcdProxy object, run from what the controller made of it.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{
    controller::SYSTEM,
    etcd::{Endpoint, Etcdctl},
    local_pod::ETCD_PROXY,
    mounts::Projection,
    node::{Binary, Listening, Node, Pod},
};
use crate::{pki::Identity, poll, tools::Tools};

/// How long the controller may take to make what an EtcdProxy asks for.
const PROVISIONED: Duration = Duration::from_secs(60);

/// The port of etcd's clients.
const PORT: u16 = 2379;

/// The pods of one EtcdProxy. Dropping it kills them.
pub struct ManagedProxy {
    /// The namespace of the EtcdProxy.
    pub namespace: String,
    /// Its name.
    pub name: String,
    pods: Vec<Pod>,
    service: String,
    prefix: String,
}

impl ManagedProxy {
    /// Waits until the controller has made what belongs to an EtcdProxy of mode `Deployment`, runs as many pods of its
    /// Deployment as that wants, and publishes them as endpoints of its Service.
    ///
    /// # Errors
    /// When the controller does not make the objects within a minute, or a pod does not get ready.
    pub fn start(node: &Node, binary: &Path, namespace: &str, name: &str) -> Result<Self> {
        let (deployment, prefix) = provisioned(node, namespace, name)?;
        let service =
            deployment.pointer("/metadata/name").and_then(Value::as_str).context("it has no name")?.to_owned();
        let replicas = deployment.pointer("/spec/replicas").and_then(Value::as_u64).unwrap_or(1);
        let binary = Binary {
            program: &ETCD_PROXY,
            path: binary.to_path_buf(),
            listening: Listening::Machine,
            further: Vec::new(),
        };
        let mut pods = Vec::new();
        for replica in 0..usize::try_from(replicas)? {
            let pod = node.run(&deployment, &binary, replica)?;
            node.publish(&service, &pod)?;
            pods.push(pod);
        }
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned(), pods, service, prefix })
    }

    /// Its pods.
    pub fn pods(&self) -> &[Pod] {
        &self.pods
    }

    /// The first pod: the only one, unless the EtcdProxy wants more.
    ///
    /// # Errors
    /// When the EtcdProxy wants none.
    pub fn pod(&self) -> Result<&Pod> {
        self.pods.first().with_context(|| format!("EtcdProxy {}/{} wants no replica", self.namespace, self.name))
    }

    /// The tenant's prefix on the shared etcd.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Where the tenant finds it, as [`Network`](super::Network) understands it: host and port.
    pub fn address(&self) -> String {
        format!("{}-etcd.{}.svc:{PORT}", self.name, self.namespace)
    }

    /// The name of its Deployment and Service in the controller's namespace.
    pub fn base(&self) -> &str {
        &self.service
    }

    /// Rolls the pods if the controller has changed the Deployment, as the kubelet would. Answers whether it did.
    ///
    /// # Errors
    /// When the Deployment is gone or has something that is not known, or a pod does not get ready.
    pub fn sync(&mut self, node: &Node) -> Result<bool> {
        let deployment = node.kubectl().json(&["get", "deployment", &self.service, "--namespace", SYSTEM])?;
        let mut rolled = false;
        for pod in &mut self.pods {
            rolled |= node.roll(pod, &deployment)?;
        }
        Ok(rolled)
    }

    /// The virtual etcd as the tenant's client `default` sees it, from the Secret in the tenant's namespace, which is
    /// delivered and kept right.
    ///
    /// # Errors
    /// When the Secret does not come.
    pub fn endpoint(&self, node: &Node) -> Result<Endpoint> {
        self.endpoint_of(node, &self.namespace, &format!("{}-etcd-client", self.name))
    }

    /// The virtual etcd as a client whose Secret is `namespace/secret` sees it.
    ///
    /// # Errors
    /// When the Secret does not come.
    pub fn endpoint_of(&self, node: &Node, namespace: &str, secret: &str) -> Result<Endpoint> {
        let files = node.files(Projection::secret(namespace, secret))?;
        Ok(Endpoint {
            url: format!("https://{}", self.address()),
            ca: files.join("ca.crt"),
            client: Identity { cert: files.join("tls.crt"), key: files.join("tls.key") },
            proxy: Some(node.network.proxy()),
        })
    }

    /// `etcdctl` as the tenant.
    ///
    /// # Errors
    /// As [`ManagedProxy::endpoint`].
    pub fn etcdctl(&self, node: &Node, tools: &Tools) -> Result<Etcdctl> {
        Etcdctl::new(tools, self.endpoint(node)?)
    }
}

/// The Deployment and the prefix of an EtcdProxy, once the controller has made both.
fn provisioned(node: &Node, namespace: &str, name: &str) -> Result<(Value, String)> {
    let kubectl = node.kubectl();
    let what = format!("what EtcdProxy {namespace}/{name} asks for");
    poll::until(&what, PROVISIONED, || {
        let proxy = kubectl.json(&["get", "etcdproxy", name, "--namespace", namespace])?;
        let text = |path: &str| proxy.pointer(path).and_then(Value::as_str);
        let uid = text("/metadata/uid").context("it has no uid")?;
        let selector = format!("etcd.programming-kubernetes.info/uid={uid}");
        let found = kubectl.json(&["get", "deployments", "--namespace", SYSTEM, "--selector", &selector])?;
        let conditions = proxy.pointer("/status/conditions").cloned().unwrap_or_default();
        let deployment = match found.get("items").and_then(Value::as_array).map(Vec::as_slice) {
            Some([deployment]) => deployment.clone(),
            _ => bail!("there is no Deployment for it yet; its conditions: {conditions}"),
        };
        let prefix =
            text("/status/prefix").with_context(|| format!("it has no prefix yet; conditions: {conditions}"))?;
        Ok((deployment, prefix.to_owned()))
    })
}
