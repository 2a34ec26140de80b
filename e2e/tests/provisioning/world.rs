//! The cluster that these tests share, and its API asked without a process for each question.

use std::{
    collections::BTreeMap,
    sync::OnceLock,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use e2e::Shared;
use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use xtask::{
    cluster::{Cluster, ManagedProxy, SYSTEM, own_program},
    poll,
};

/// One cluster for all tests of this program; each keeps to namespaces of its own.
pub(crate) static CLUSTER: Shared = Shared::new("provisioning", |options| options.with_controller(&["*"]));

/// How long the controller may take. Where it is to try again by itself, that takes up to a minute.
pub(crate) const WAIT: Duration = Duration::from_secs(90);

pub(crate) const UID_LABEL: &str = "etcd.programming-kubernetes.info/uid";

/// A kind of namespaced objects, and where they are.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    api: &'static str,
    plural: &'static str,
}

const fn kind(name: &'static str, api: &'static str, plural: &'static str) -> Kind {
    Kind { name, api, plural }
}

pub(crate) const SECRET: Kind = kind("Secret", "/api/v1", "secrets");
pub(crate) const CONFIG_MAP: Kind = kind("ConfigMap", "/api/v1", "configmaps");
pub(crate) const SERVICE: Kind = kind("Service", "/api/v1", "services");
pub(crate) const DEPLOYMENT: Kind = kind("Deployment", "/apis/apps/v1", "deployments");
pub(crate) const POD: Kind = kind("Pod", "/api/v1", "pods");
pub(crate) const PROXY: Kind = kind("EtcdProxy", "/apis/etcd.programming-kubernetes.info/v1alpha1", "etcdproxies");
pub(crate) const GRANT: Kind =
    kind("EtcdProxyGrant", "/apis/etcd.programming-kubernetes.info/v1alpha1", "etcdproxygrants");

/// Every kind that the controller makes.
pub(crate) const MADE: [&Kind; 7] = [
    &kind("ServiceAccount", "/api/v1", "serviceaccounts"),
    &SECRET,
    &CONFIG_MAP,
    &SERVICE,
    &kind("NetworkPolicy", "/apis/networking.k8s.io/v1", "networkpolicies"),
    &kind("PodDisruptionBudget", "/apis/policy/v1", "poddisruptionbudgets"),
    &DEPLOYMENT,
];

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) kind: &'static Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// kube-apiserver, asked by an administrator.
pub(crate) struct Kube {
    runtime: Runtime,
    client: Client,
}

/// An EtcdProxy.
pub(crate) struct Tenant {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// kube-apiserver of the cluster.
pub(crate) fn kube() -> Result<&'static Kube> {
    static KUBE: OnceLock<Result<Kube, String>> = OnceLock::new();
    let start = || -> Result<Kube> {
        let kubeconfig = CLUSTER.get()?.kubectl().kubeconfig();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(e2e::client(kubeconfig, &[]))?;
        Ok(Kube { runtime, client })
    };
    let kube = KUBE.get_or_init(|| start().map_err(|error| format!("{error:#}")));
    kube.as_ref().map_err(|error| anyhow!("{error}"))
}

pub(crate) fn cluster() -> Result<&'static Cluster> {
    CLUSTER.get()
}

pub(crate) fn namespace(name: &str) -> Result<()> {
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    kube()?.ask(Method::POST, "/api/v1/namespaces", "application/json", &body).map(drop)
}

/// An EtcdUpstream of a test's own, for the etcd that all share: `spec` in the place of what the one named `default` says.
pub(crate) fn upstream(name: &str, spec: Value) -> Result<()> {
    const PATH: &str = "/apis/etcd.programming-kubernetes.info/v1alpha1/etcdupstreams";
    let default = kube()?.get_path(&format!("{PATH}/default"))?.context("there is no EtcdUpstream default")?;
    let mut body = json!({
        "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdUpstream",
        "metadata": {"name": name}, "spec": default["spec"],
    });
    if let (Some(into), Value::Object(spec)) = (body["spec"].as_object_mut(), spec) {
        into.extend(spec);
    }
    kube()?.ask(Method::POST, PATH, "application/json", &body).map(drop)
}

/// Changes the spec of an EtcdUpstream.
pub(crate) fn patch_upstream(name: &str, spec: Value) -> Result<()> {
    let path = format!("/apis/etcd.programming-kubernetes.info/v1alpha1/etcdupstreams/{name}");
    kube()?.ask(Method::PATCH, &path, "application/merge-patch+json", &json!({"spec": spec})).map(drop)
}

/// Looks again and again for a while: what must stay is to be so each time.
pub(crate) fn stays(what: &str, time: Duration, mut probe: impl FnMut() -> Result<()>) -> Result<()> {
    let began = Instant::now();
    poll::until(what, time * 2 + WAIT, || {
        probe().map_err(|error| poll::give_up(format!("{error:#}")))?;
        ensure!(began.elapsed() >= time);
        Ok(())
    })
}

/// An object as it is to be, without what differs from one making to the next.
pub(crate) fn essence(object: &Value) -> Value {
    let mut essence = object.clone();
    let remove = |value: &mut Value, field: &str| _ = value.as_object_mut().map(|object| object.remove(field));
    // Items of a list do not tell it.
    remove(&mut essence, "apiVersion");
    remove(&mut essence, "status");
    for field in ["uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"] {
        remove(&mut essence["metadata"], field);
    }
    // Kubernetes' own: the number of a rollout, the address of a Service.
    remove(&mut essence["metadata"]["annotations"], "deployment.kubernetes.io/revision");
    if essence["kind"] == "Service" {
        remove(&mut essence["spec"], "clusterIP");
        remove(&mut essence["spec"], "clusterIPs");
    }
    // The CA's Secret also records what was signed, and its keys are nobody's to read here.
    if essence.pointer("/data/state.json").is_some() {
        remove(&mut essence, "data");
    }
    // A leaf that was lost is made anew; of the bundle that verifies it there is one.
    for file in ["tls.crt", "tls.key"] {
        let made = essence.pointer(&format!("/data/{file}")).and_then(Value::as_str);
        // `-----BEGIN `
        if made.is_some_and(|text| text.starts_with("LS0tLS1CRUdJTi")) {
            essence["data"][file] = "made".into();
        }
    }
    essence
}

/// Says of every pod of a tenant what its kubelet would: the pods are there, made by the controllers of Kubernetes, which count
/// from here on what the Deployment's status tells; only a node is not.
pub(crate) fn kubelet_says(tenant: &Tenant, ready: bool) -> Result<()> {
    let status = json!({"status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    }});
    poll::until("a pod", WAIT, || {
        let pods = kube()?.labelled(&POD, &tenant.uid)?;
        ensure!(!pods.is_empty(), "there is none");
        for place in pods.keys() {
            kube()?.patch_path(&format!("{}/status", place.path()), &status)?;
        }
        Ok(())
    })
}

// === impl Place ===

impl Place {
    pub(crate) fn new(kind: &'static Kind, namespace: &str, name: impl Into<String>) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.into() }
    }

    pub(crate) fn path(&self) -> String {
        let Kind { api, plural, .. } = self.kind;
        format!("{api}/namespaces/{}/{plural}/{}", self.namespace, self.name)
    }

    /// The object, if it is there.
    pub(crate) fn find(&self) -> Result<Option<Value>> {
        kube()?.get_path(&self.path())
    }

    /// The object.
    pub(crate) fn get(&self) -> Result<Value> {
        self.find()?.with_context(|| format!("there is no {self}"))
    }

    pub(crate) fn patch(&self, patch: &Value) -> Result<Value> {
        kube()?.patch_path(&self.path(), patch).with_context(|| format!("changing {self}"))
    }

    pub(crate) fn delete(&self) -> Result<()> {
        let found = kube()?.ask(Method::DELETE, &self.path(), "application/json", &Value::Null)?;
        found.map(drop).with_context(|| format!("there is no {self} to delete"))
    }

    pub(crate) fn wait_gone(&self) -> Result<()> {
        poll::until(&format!("{self} to be gone"), WAIT, || match self.find()? {
            None => Ok(()),
            Some(object) => bail!("it is there: {}", object["metadata"]),
        })
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind.name, self.namespace, self.name)
    }
}

// === impl Kube ===

impl Kube {
    /// Runs something that speaks to etcd or kube-apiserver.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Asks for anything; nothing if it is not there.
    pub(crate) fn ask(&self, method: Method, path: &str, content: &str, body: &Value) -> Result<Option<Value>> {
        let bytes = if body.is_null() { Vec::new() } else { serde_json::to_vec(body)? };
        let what = format!("{method} {path}");
        let request = Request::builder().method(method).uri(path).header("content-type", content).body(bytes)?;
        match self.runtime.block_on(self.client.request::<Value>(request)) {
            Ok(answer) => Ok(Some(answer)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(kube::Error::Api(status)) => Err(anyhow!("{what}: {} {}", status.code, status.message)),
            Err(error) => Err(error).context(what),
        }
    }

    fn get_path(&self, path: &str) -> Result<Option<Value>> {
        self.ask(Method::GET, path, "application/json", &Value::Null)
    }

    fn patch_path(&self, path: &str, patch: &Value) -> Result<Value> {
        let patched = self.ask(Method::PATCH, path, "application/merge-patch+json", patch)?;
        patched.with_context(|| format!("{path} is not there"))
    }

    /// Creates an object.
    pub(crate) fn create(&self, kind: &'static Kind, object: &Value) -> Result<Value> {
        let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str).context("it has no namespace")?;
        let path = format!("{}/namespaces/{namespace}/{}", kind.api, kind.plural);
        let made = self.ask(Method::POST, &path, "application/json", object)?;
        made.with_context(|| format!("{path}: there is no such namespace"))
    }

    /// All objects of a kind with the label of an EtcdProxy's uid, in every namespace.
    pub(crate) fn labelled(&self, kind: &'static Kind, uid: &str) -> Result<BTreeMap<Place, Value>> {
        let selector = format!("{UID_LABEL}={uid}").replace('/', "%2F").replace('=', "%3D");
        let list = self.get_path(&format!("{}/{}?labelSelector={selector}", kind.api, kind.plural))?;
        let mut found = BTreeMap::new();
        for mut object in list.and_then(|mut list| Some(list["items"].as_array_mut()?.split_off(0))).unwrap_or_default()
        {
            // Items of a list do not name their kind.
            object["kind"] = kind.name.into();
            let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
            let place = Place { kind, namespace: text("/metadata/namespace"), name: text("/metadata/name") };
            found.insert(place, object);
        }
        Ok(found)
    }

    /// What was told of an object: each reason with its texts, a text as often as it was told.
    pub(crate) fn events(&self, namespace: &str, uid: &str) -> Result<BTreeMap<String, Vec<String>>> {
        let list = self.get_path(&format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"))?.unwrap_or_default();
        let mut told: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for event in list["items"].as_array().into_iter().flatten().filter(|event| event["regarding"]["uid"] == uid) {
            let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            // What was told again is no event of its own, but a series.
            let count = event["series"]["count"].as_u64().unwrap_or(1);
            let notes = told.entry(text("reason")).or_default();
            notes.extend((0..count).map(|_| text("note")));
        }
        Ok(told)
    }
}

// === impl Tenant ===

impl Tenant {
    /// Creates an EtcdProxy, and its namespace with it if that is not there.
    pub(crate) fn create(namespace: &str, name: &str, spec: Value) -> Result<Self> {
        if kube()?.get_path(&format!("/api/v1/namespaces/{namespace}"))?.is_none() {
            self::namespace(namespace)?;
        }
        let object = json!({
            "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdProxy",
            "metadata": {"namespace": namespace, "name": name}, "spec": spec,
        });
        let made = kube()?.create(&PROXY, &object)?;
        let uid = made.pointer("/metadata/uid").and_then(Value::as_str).context("it has no uid")?.to_owned();
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned(), uid })
    }

    pub(crate) fn place(&self) -> Place {
        Place::new(&PROXY, &self.namespace, &*self.name)
    }

    pub(crate) fn object(&self) -> Result<Value> {
        self.place().get()
    }

    /// Changes its spec.
    pub(crate) fn patch(&self, spec: Value) -> Result<()> {
        self.place().patch(&json!({"spec": spec})).map(drop)
    }

    /// Has the controller look at it now.
    pub(crate) fn touch(&self) -> Result<()> {
        let object = self.object()?;
        let version = &object["metadata"]["resourceVersion"];
        self.place().patch(&json!({"metadata": {"annotations": {"example.com/touched-at": version}}})).map(drop)
    }

    /// The conditions, each with status, reason and message, as far as they are of the present generation.
    pub(crate) fn conditions(&self) -> Result<BTreeMap<String, (String, String, String)>> {
        let object = self.object()?;
        let mut conditions = BTreeMap::new();
        for condition in object["status"]["conditions"].as_array().into_iter().flatten() {
            if condition["observedGeneration"] != object["metadata"]["generation"] {
                continue;
            }
            let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
            conditions.insert(text("type"), (text("status"), text("reason"), text("message")));
        }
        Ok(conditions)
    }

    /// Waits for a condition, and answers its message.
    pub(crate) fn wait(&self, condition: &str, status: &str, reason: &str) -> Result<String> {
        let what = format!("{condition}={status} ({reason}) of {}", self.place());
        poll::until(&what, WAIT, || match self.conditions()?.get(condition) {
            Some((found, why, message)) if found == status && why == reason => Ok(message.clone()),
            _ => bail!("{}", self.object()?["status"]),
        })
    }

    /// Waits until all is done that can be done without a node.
    pub(crate) fn wait_provided(&self) -> Result<()> {
        self.wait("Ready", "False", "DeploymentUnavailable").map(drop)
    }

    /// The claimed prefix.
    pub(crate) fn prefix(&self) -> Result<String> {
        let object = self.object()?;
        let prefix = object.pointer("/status/prefix").and_then(Value::as_str);
        prefix.map(str::to_owned).with_context(|| format!("{} has no prefix", self.place()))
    }

    /// Everything that was made for it, wherever that is.
    pub(crate) fn made(&self) -> Result<BTreeMap<Place, Value>> {
        let mut made = BTreeMap::new();
        for kind in MADE {
            made.extend(kube()?.labelled(kind, &self.uid)?);
        }
        Ok(made)
    }

    /// The name of its objects in the controller's namespace.
    pub(crate) fn base(&self) -> Result<String> {
        let deployments = kube()?.labelled(&DEPLOYMENT, &self.uid)?;
        deployments.into_keys().next().map(|place| place.name).context("there is no Deployment")
    }

    /// The Deployment.
    pub(crate) fn deployment(&self) -> Result<Value> {
        Place::new(&DEPLOYMENT, SYSTEM, self.base()?).get()
    }

    /// Its proxy, run from what the controller made.
    pub(crate) fn run(&self) -> Result<ManagedProxy> {
        ManagedProxy::start(cluster()?.node()?, &own_program("etcd-proxy")?, &self.namespace, &self.name)
    }

    pub(crate) fn delete(&self) -> Result<()> {
        self.place().delete()
    }
}

/// The arguments of a Deployment's container.
pub(crate) fn arguments(deployment: &Value) -> Vec<String> {
    let arguments = deployment.pointer("/spec/template/spec/containers/0/args").and_then(Value::as_array);
    arguments.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The keys of the shared etcd that belong to a prefix: the tenant's own and those that the proxies keep for it.
pub(crate) fn stored(prefix: &str) -> Result<(usize, usize)> {
    let hex: String = prefix.bytes().map(|byte| format!("{byte:02x}")).collect();
    let etcdctl = cluster()?.etcd.etcdctl();
    Ok((etcdctl.keys(prefix)?.len(), etcdctl.keys(&format!("/etcd-proxy.meta/tenants/{hex}/"))?.len()))
}

/// The uid for which a prefix is claimed.
pub(crate) fn claimed_for(prefix: &str) -> Result<Option<String>> {
    let hex: String = prefix.bytes().map(|byte| format!("{byte:02x}")).collect();
    let value =
        cluster()?.etcd.etcdctl().ok(&["get", &format!("/etcd-proxy.meta/claims/{hex}"), "--print-value-only"])?;
    if value.trim().is_empty() {
        return Ok(None);
    }
    let claim: Value = serde_json::from_str(value.trim()).with_context(|| value.clone())?;
    Ok(Some(claim["uid"].as_str().unwrap_or_default().to_owned()))
}

/// Puts keys below a prefix, as the operator could.
pub(crate) fn fill(prefix: &str, count: usize) -> Result<()> {
    let endpoint = cluster()?.etcd.endpoint("filler")?;
    kube()?.block_on(async {
        let mut client = e2e::etcd_client(&endpoint).await?;
        let keys: Vec<_> = (0..count).map(|number| format!("{prefix}filled/{number:05}")).collect();
        for some in keys.chunks(100) {
            let puts: Vec<_> = some.iter().map(|key| etcd_client::TxnOp::put(key.as_str(), "value", None)).collect();
            client.txn(etcd_client::Txn::new().and_then(puts)).await?;
        }
        Ok(())
    })
}
