//! What stands in for a node: pods of Deployments run as processes, with their volumes delivered, published as
//! endpoints of their Services.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Kubectl,
    local_pod::{Content, LocalPod, Place, Program, local_pod},
    mounts::{Mounts, Projection},
    network::{self, Network},
};
use crate::{
    pki,
    process::{Process, Spec},
    site::{Site, free_port},
    tools::{Tool, Tools},
};

/// How long Secrets may take to be there, and a program to be ready.
const READY: Duration = Duration::from_secs(120);

/// The delivery of Secrets and ConfigMaps, and the way to Services. Dropping it ends both; pods run on.
pub struct Node {
    /// The volumes.
    pub mounts: Mounts,
    /// The Services.
    pub network: Network,
    site: Site,
    kubectl: Kubectl,
}

/// A pod that runs as a process. Dropping it kills it.
pub struct Pod {
    /// The running program.
    pub process: Process,
    local: LocalPod,
    place: Place,
    binary: Binary,
}

/// A container's program on this machine.
#[derive(Clone, Debug)]
pub struct Binary {
    /// What its arguments mean.
    pub program: &'static Program,
    /// The executable.
    pub path: PathBuf,
    /// Where it is to serve.
    pub listening: Listening,
    /// Further arguments, for what a cluster would give its pods by other means.
    pub further: Vec<String>,
}

/// Where pods serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    /// On an address of the machine that an EndpointSlice may name.
    Machine,
    /// On loopback.
    Loopback,
}

/// What a node hands over to its successor.
#[derive(Debug, Serialize, Deserialize)]
struct Handover {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    proxy: u16,
    mounts: Vec<(PathBuf, Projection)>,
}

const HANDOVER: &str = "node.json";

// === impl Node ===

impl Node {
    /// Begins to deliver and to lead to Services, as the user of `kubectl`, who must be able to read all of them.
    /// `delay` is the time that a change of a Secret or ConfigMap takes to its files.
    ///
    /// # Errors
    /// When no port for the proxy is to be had.
    pub fn start(site: &Site, kubectl: &Kubectl, delay: Duration) -> Result<Self> {
        Ok(Self {
            mounts: Mounts::start(site, kubectl, delay),
            network: Network::start(site, kubectl, 0)?,
            site: site.clone(),
            kubectl: kubectl.clone(),
        })
    }

    /// Where its files are.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// kubectl as the node's user.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Runs the pod number `replica` of a Deployment and waits until it calls itself ready. The name of the process is
    /// the pod's.
    ///
    /// # Errors
    /// When the Deployment has something that is [not known](local_pod), a volume's object does not come, or the
    /// program does not get ready.
    pub fn run(&self, deployment: &Value, binary: &Binary, replica: usize) -> Result<Pod> {
        let name = deployment.pointer("/metadata/name").and_then(Value::as_str).context("it has no name")?;
        let pod = format!("{name}-{replica}");
        let address = match binary.listening {
            Listening::Machine => network::machine_address()?,
            Listening::Loopback => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        let place = Place {
            volumes: self.site.path("volumes").join(&pod),
            pod,
            listen: SocketAddr::new(address, free_port()?),
            // Plain text without authentication: not for others than this machine.
            metrics: SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)),
            advertise: None,
        };
        let local = local_pod(deployment, binary.program, &place)?;
        self.deliver(&local)?;
        let process = Process::spawn(&self.site, binary.spec(&local))?;
        let pod = Pod { process, local, place, binary: binary.clone() };
        pod.wait_ready()?;
        Ok(pod)
    }

    /// Replaces a pod by one of the Deployment as it is now, on the same addresses, if there is a difference. Answers
    /// whether there was.
    ///
    /// # Errors
    /// As [`Node::run`], and when the old one does not end in order.
    pub fn roll(&self, pod: &mut Pod, deployment: &Value) -> Result<bool> {
        let local = local_pod(deployment, pod.binary.program, &pod.place)?;
        if local == pod.local {
            return Ok(false);
        }
        self.deliver(&local)?;
        pod.process.terminate(READY)?;
        pod.process = Process::spawn(&self.site, pod.binary.spec(&local))?;
        pod.local = local;
        pod.wait_ready()?;
        Ok(true)
    }

    /// Mounts what a pod needs and waits until it is there.
    fn deliver(&self, pod: &LocalPod) -> Result<()> {
        for (folder, content) in &pod.volumes {
            match content {
                Content::Objects(projection) => self.mounts.mount(projection.clone(), folder)?,
                Content::Empty => {
                    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
                }
            }
        }
        let delivered = pod.volumes.iter().filter(|(_, content)| matches!(content, Content::Objects(_)));
        delivered.into_iter().try_for_each(|(folder, _)| self.mounts.wait(folder, READY))
    }

    /// Mounts one Secret or ConfigMap, as a client's pod would, and answers the folder once the files are there.
    ///
    /// # Errors
    /// When the object does not come within two minutes.
    pub fn files(&self, projection: Projection) -> Result<PathBuf> {
        let names: Vec<&str> = projection.sources.iter().map(|source| source.name.as_str()).collect();
        let folder = self.site.path("volumes").join(&projection.namespace).join(names.join("+"));
        self.mounts.mount(projection, &folder)?;
        self.mounts.wait(&folder, READY)?;
        Ok(folder)
    }

    /// Publishes a pod as a ready endpoint of a Service of its namespace, and waits until the network knows. Ports of
    /// the Service whose target does not listen on the published address (such as metrics) are left out.
    ///
    /// # Errors
    /// When the Service does not exist, has no port that the pod serves, or kube-apiserver refuses the EndpointSlice.
    pub fn publish(&self, service: &str, pod: &Pod) -> Result<()> {
        if pod.binary.listening != Listening::Machine {
            bail!("{} listens on loopback, and Kubernetes refuses such addresses in EndpointSlices", pod.local.name);
        }
        let namespace = &pod.local.namespace;
        let object = self.kubectl.json(&["get", "service", service, "--namespace", namespace])?;
        let slice = endpoint_slice(&object, &pod.local.name, pod.place.listen.ip(), &pod.local.ports)?;
        self.kubectl.apply(&[slice])?;
        let ports = object.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
        let port = ports.filter_map(|port| port.get("port").and_then(Value::as_u64)).next();
        let port = port.with_context(|| format!("Service {namespace}/{service} has no port"))?;
        let name = format!("{service}.{namespace}.svc:{port}");
        crate::poll::until("the network to know", READY, || {
            let known = self.network.resolve(&name)?;
            if known.contains(&pod.place.listen) { Ok(()) } else { bail!("{name} leads to {known:?}") }
        })
    }

    /// Takes a pod out of its Services, as if it were not ready.
    ///
    /// # Errors
    /// When kube-apiserver refuses.
    pub fn unpublish(&self, pod: &Pod) -> Result<()> {
        let LocalPod { namespace, name, .. } = &pod.local;
        self.kubectl.ok(&["delete", "endpointslice", name, "--namespace", namespace, "--ignore-not-found"]).map(drop)
    }

    /// Ends this node and starts a process of its own that goes on with its work, at the same addresses, until the site
    /// is cleared. `program` is xtask.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn hand_over(self, program: &Path, tools: &Tools) -> Result<Process> {
        let handover = Handover {
            kubectl: tools.path(Tool::Kubectl)?,
            kubeconfig: self.kubectl.kubeconfig().to_path_buf(),
            proxy: self.network.proxy().port(),
            mounts: self.mounts.all(),
        };
        let site = self.site.clone();
        pki::write(&site.path(HANDOVER), &serde_json::to_vec_pretty(&handover)?, 0o600)?;
        // Its port must be free.
        drop(self);
        let spec = Spec::new("node", program).arg("node").arg(site.dir());
        let process = Process::spawn(&site, spec)?;
        process.wait_until("the node to go on", READY, || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, handover.proxy)).map(drop).map_err(Into::into)
        })?;
        Ok(process)
    }

    /// Goes on with the work that was handed over in a site.
    ///
    /// # Errors
    /// When nothing was handed over there, or the port is taken.
    pub fn take_over(site: &Site, delay: Duration) -> Result<Self> {
        let path = site.path(HANDOVER);
        let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let handover: Handover = serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
        let tools = Tools::with(&[format!("{}={}", Tool::Kubectl, handover.kubectl.display())])?;
        let kubectl = Kubectl::new(site, &tools, handover.kubeconfig)?;
        let mounts = Mounts::start(site, &kubectl, delay);
        for (folder, projection) in handover.mounts {
            mounts.mount(projection, &folder)?;
        }
        let network = Network::start(site, &kubectl, handover.proxy)?;
        Ok(Self { mounts, network, site: site.clone(), kubectl })
    }
}

// === impl Pod ===

impl Pod {
    /// What it was made of.
    pub fn local(&self) -> &LocalPod {
        &self.local
    }

    /// Where it serves.
    pub fn address(&self) -> SocketAddr {
        self.place.listen
    }

    /// Where it answers for metrics and health.
    pub fn metrics(&self) -> SocketAddr {
        self.place.metrics
    }

    /// Waits until it calls itself ready.
    ///
    /// # Errors
    /// When it has no readiness probe, ends, or takes more than two minutes.
    pub fn wait_ready(&self) -> Result<()> {
        let url = self.local.readiness.as_deref().context("the pod has no readiness probe")?;
        self.process.wait_until("the pod to be ready", READY, || http_get(url).map(drop))
    }
}

// === impl Binary ===

impl Binary {
    fn spec(&self, pod: &LocalPod) -> Spec {
        let args = pod.args.iter().chain(&self.further);
        let spec = args.fold(Spec::new(&pod.name, &self.path), |spec, arg| spec.arg(arg));
        pod.env.iter().fold(spec, |spec, (name, value)| spec.env(name, value))
    }
}

/// Asks for a `http://address/path` and answers the body of a 200.
///
/// # Errors
/// When nothing answers within five seconds, or with another status.
pub fn http_get(url: &str) -> Result<String> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let rest = url.strip_prefix("http://").with_context(|| format!("{url}: only http is spoken here"))?;
    let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
    let address: SocketAddr = address.parse().with_context(|| format!("{url}: it has no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).with_context(|| url.to_owned())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // HTTP/1.0: the body ends with the connection.
    write!(stream, "GET /{path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).with_context(|| url.to_owned())?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("{url}: no HTTP answer"))?;
    match head.split_whitespace().nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => bail!("{url}: {} {body}", head.lines().next().unwrap_or_default()),
    }
}

/// The EndpointSlice by which a pod is an endpoint of a Service.
fn endpoint_slice(
    service: &Value,
    pod: &str,
    address: IpAddr,
    container_ports: &BTreeMap<String, SocketAddr>,
) -> Result<Value> {
    let text = |path: &str| service.pointer(path).and_then(Value::as_str);
    let name = text("/metadata/name").context("the Service has no name")?;
    let ports = service.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
    let ports: Vec<Value> = ports
        .filter_map(|port| {
            // A target that is not said is the port itself.
            let target = port.get("targetPort").filter(|target| !target.is_null()).or_else(|| port.get("port"))?;
            let target = target.as_str().map_or_else(|| target.to_string(), str::to_owned);
            let local = container_ports.get(&target).filter(|local| local.ip() == address)?;
            let name = port.get("name").and_then(Value::as_str).unwrap_or_default();
            Some(json!({"name": name, "port": local.port(), "protocol": "TCP"}))
        })
        .collect();
    if ports.is_empty() {
        bail!("the Service {name} has no port that the pod {pod} serves at {address}");
    }
    Ok(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "namespace": text("/metadata/namespace"), "name": pod,
            // Another manager's name, so that Kubernetes' own controller, which finds no pods, lets it be.
            "labels": {"kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": "xtask"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": name, "uid": text("/metadata/uid")}],
        },
        "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
        "ports": ports,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_has_the_ports_that_the_pod_serves() {
        let service = json!({
            "metadata": {"namespace": "system", "name": "base", "uid": "u"},
            "spec": {"ports": [
                {"name": "client", "port": 2379, "targetPort": "client"},
                {"name": "number", "port": 80, "targetPort": 2379},
                {"name": "metrics", "port": 2381},
                {"name": "none", "port": 1},
            ]},
        });
        let (listen, metrics): (SocketAddr, SocketAddr) =
            ("192.0.2.2:4001".parse().unwrap(), "127.0.0.1:4002".parse().unwrap());
        let ports = [("client", listen), ("2379", listen), ("metrics", metrics), ("2381", metrics)];
        let ports = ports.map(|(name, address)| (name.to_owned(), address)).into();
        let slice = endpoint_slice(&service, "base-0", listen.ip(), &ports).unwrap();
        let expected = ["client", "number"].map(|name| json!({"name": name, "port": 4001, "protocol": "TCP"}));
        assert_eq!(slice["ports"], json!(expected));
        assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.2"]));
        assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], "base");
        assert!(endpoint_slice(&service, "base-0", metrics.ip(), &BTreeMap::new()).is_err());
    }
}
