//! The controller on a control plane, and EtcdProxy objects for it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use xtask::cluster::{
    ApiserverOptions, Etcd, KubeApiserver, Node, ProxyController, SYSTEM, own_program, provide_upstream,
};

use crate::{
    Bench,
    https::{Ask, Client, Connection},
};

/// The tenants' namespace.
const TENANTS: &str = "tenants";

/// How many connections create.
const CREATORS: usize = 8;

/// How long all objects may take to be complete, for each of them and beyond.
const EACH: Duration = Duration::from_secs(2);
const COMPLETE: Duration = Duration::from_secs(120);

/// How long one change may take to reach the Deployment.
const CHANGE: Duration = Duration::from_secs(60);

/// How often is looked whether everything is there: the resolution of that figure.
const LOOK: Duration = Duration::from_millis(100);

/// How many objects one answer of a long list holds.
const PAGE: usize = 250;

/// The condition's reason when everything but the pods is there: nothing runs them here.
const WITHOUT_PODS: &str = "DeploymentUnavailable";

/// Everything that runs.
pub(super) struct Fleet {
    controller: ProxyController,
    // Its deliveries end with it.
    _node: Node,
    /// The server, with its audit log.
    pub(super) kube_apiserver: KubeApiserver,
    _etcd: Etcd,
    client: Client,
}

fn proxies() -> String {
    format!("/apis/etcd.programming-kubernetes.info/v1alpha1/namespaces/{TENANTS}/etcdproxies")
}

fn deployments() -> String {
    format!("/apis/apps/v1/namespaces/{SYSTEM}/deployments")
}

fn name(index: usize) -> String {
    format!("tenant-{index:05}")
}

impl Fleet {
    /// Starts everything.
    ///
    /// # Errors
    /// When a part does not come up.
    pub(super) fn start(bench: &Bench) -> Result<Self> {
        let (site, tools) = (&bench.site, &bench.tools);
        let etcd = Etcd::start(site, tools, xtask::tools::Tool::Etcd)?;
        let kube_apiserver = KubeApiserver::start_with(site, tools, &etcd, ApiserverOptions { audit: true })?;
        let admin = kube_apiserver.admin();
        let node = Node::start(site, admin, Duration::ZERO)?;
        let controller = ProxyController::start(&node, &kube_apiserver, &own_program("proxy-controller")?, 1)?;
        controller.wait_webhook()?;
        admin.apply(&[
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TENANTS}}),
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "bench", "namespace": TENANTS}}),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "bench"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "ServiceAccount", "name": "bench", "namespace": TENANTS}],
            }),
        ])?;
        provide_upstream(admin, &etcd, &[TENANTS])?;
        let token = admin.ok(&["create", "token", "bench", "--namespace", TENANTS, "--duration=4h"])?;
        let client = Client::new(kube_apiserver.port(), &kube_apiserver.cluster_ca.pem(), token.trim())?;
        Ok(Self { controller, _node: node, kube_apiserver, _etcd: etcd, client })
    }

    /// The number of the controller's process.
    ///
    /// # Errors
    /// When it does not run.
    pub(super) fn pid(&self) -> Result<u32> {
        self.controller.replica(0)?.process.pid().context("the controller does not run")
    }

    /// Creates so many.
    ///
    /// # Errors
    /// When one is refused.
    pub(super) async fn create(&self, proxies: usize) -> Result<()> {
        let creators = (0..CREATORS).map(|creator| async move {
            let mut connection = self.client.connect().await?;
            for index in (creator..proxies).step_by(CREATORS) {
                let object = json!({
                    "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdProxy",
                    "metadata": {"name": name(index), "namespace": TENANTS}, "spec": {},
                });
                connection.size(&Ask::json(Method::POST, self::proxies(), object.to_string())).await?;
            }
            Ok::<_, anyhow::Error>(())
        });
        try_join_all(creators).await.map(drop)
    }

    /// Waits until each is complete but for its pods, and tells how many objects there are then that carry the
    /// controller's label.
    ///
    /// # Errors
    /// When they are not in time: the state of one that is not.
    pub(super) async fn wait_complete(&self, proxies: usize) -> Result<usize> {
        let limit = COMPLETE + EACH * u32::try_from(proxies).unwrap_or(u32::MAX);
        let mut last = None;
        let wait = async {
            let mut connection = self.client.connect().await?;
            // The number of Deployments is cheap to ask for; the long list only when that many are there.
            while number(&mut connection, &deployments()).await? < proxies {
                sleep(LOOK).await;
            }
            loop {
                last = incomplete(&mut connection).await?;
                if last.is_none() {
                    return owned(&mut connection).await;
                }
                sleep(LOOK).await;
            }
        };
        let outcome = timeout(limit, wait).await;
        outcome.with_context(|| format!("the objects are not complete after {limit:?}: {last:?}"))?
    }

    /// Changes objects one after the other, and tells how long each change takes to reach the Deployment.
    ///
    /// # Errors
    /// When one does not.
    pub(super) async fn change(&self, changes: usize, proxies: usize) -> Result<Vec<Duration>> {
        let mut writer = self.client.connect().await?;
        let list: Value = serde_json::from_slice(&writer.body(&Ask::get(format!("{}?limit=1", deployments()))).await?)?;
        let version = list.pointer("/metadata/resourceVersion").and_then(Value::as_str).context("no version")?;
        let watch = Ask::get(format!("{}?watch=true&resourceVersion={version}", deployments()));
        let mut connection = self.client.connect().await?;
        let mut events = Lines { body: connection.head(&watch).await?, rest: Vec::new() };
        let mut times = Vec::new();
        for change in 0..changes {
            let name = name(change * proxies.max(changes) / changes % proxies.max(1));
            // Below the default, which is the most that a tenant may name; with one replica it is the flag, too.
            let limit = 100 + change;
            let patch = json!({"spec": {"limits": {"requestsPerSecond": limit}}}).to_string();
            let start = Instant::now();
            writer.size(&Ask::merge_patch(format!("{}/{name}", self::proxies()), patch)).await?;
            let (owner, flag) = (format!("\"{TENANTS}/{name}\""), format!("--max-requests-per-second={limit}\""));
            let reached = async {
                loop {
                    let line = events.next().await?;
                    if line.contains(&owner) && line.contains(&flag) {
                        return Ok::<_, anyhow::Error>(start.elapsed());
                    }
                }
            };
            times.push(timeout(CHANGE, reached).await.with_context(|| format!("a change of {name}"))??);
        }
        Ok(times)
    }
}

/// The lines of a body that does not end.
struct Lines {
    body: hyper::body::Incoming,
    rest: Vec<u8>,
}

impl Lines {
    async fn next(&mut self) -> Result<String> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            let frame = self.body.frame().await.context("the watch ended")??;
            self.rest.extend_from_slice(frame.data_ref().map_or(&[], |data| data.as_ref()));
        }
    }
}

/// How many objects a collection has.
async fn number(connection: &mut Connection, path: &str) -> Result<usize> {
    let list: Value = serde_json::from_slice(&connection.body(&Ask::get(format!("{path}?limit=1"))).await?)?;
    let items = list.get("items").and_then(Value::as_array).map_or(0, Vec::len);
    let more = list.pointer("/metadata/remainingItemCount").and_then(Value::as_u64).unwrap_or_default();
    Ok(items + usize::try_from(more)?)
}

/// One EtcdProxy that is not complete, with its conditions.
async fn incomplete(connection: &mut Connection) -> Result<Option<String>> {
    let mut rest = String::new();
    loop {
        let ask = Ask::get(format!("{}?limit={PAGE}{rest}", proxies()));
        let list: Value = serde_json::from_slice(&connection.body(&ask).await?)?;
        for object in list.get("items").and_then(Value::as_array).into_iter().flatten() {
            let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
            let field = |condition: &Value, name: &str| condition.get(name).and_then(Value::as_str).map(str::to_owned);
            let complete = conditions.is_some_and(|conditions| {
                conditions.iter().any(|condition| {
                    let ready = field(condition, "type").as_deref() == Some("Ready");
                    let status = field(condition, "status");
                    let reason = field(condition, "reason");
                    ready && (status.as_deref() == Some("True") || reason.as_deref() == Some(WITHOUT_PODS))
                })
            });
            if !complete {
                return Ok(Some(format!(
                    "{}: {}",
                    object.pointer("/metadata/name").unwrap_or(&Value::Null),
                    object.pointer("/status/conditions").unwrap_or(&Value::Null)
                )));
            }
        }
        match list.pointer("/metadata/continue").and_then(Value::as_str) {
            Some(token) if !token.is_empty() => rest = format!("&continue={token}"),
            _ => return Ok(None),
        }
    }
}

/// How many objects carry the controller's label.
async fn owned(connection: &mut Connection) -> Result<usize> {
    let kinds = [
        ("/api/v1", "services"),
        ("/api/v1", "secrets"),
        ("/api/v1", "configmaps"),
        ("/api/v1", "serviceaccounts"),
        ("/apis/apps/v1", "deployments"),
        ("/apis/policy/v1", "poddisruptionbudgets"),
        ("/apis/networking.k8s.io/v1", "networkpolicies"),
    ];
    let mut sum = 0;
    for (group, resource) in kinds {
        for namespace in [SYSTEM, TENANTS] {
            let mut rest = String::new();
            loop {
                let ask = Ask::get(format!(
                    "{group}/namespaces/{namespace}/{resource}?labelSelector=app.kubernetes.io%2Fmanaged-by%3Dproxy-controller\
                     &limit={PAGE}{rest}"
                ));
                let list: Value = serde_json::from_slice(&connection.body(&ask).await?)?;
                sum += list.get("items").and_then(Value::as_array).map_or(0, Vec::len);
                match list.pointer("/metadata/continue").and_then(Value::as_str) {
                    Some(token) if !token.is_empty() => rest = format!("&continue={token}"),
                    _ => break,
                }
            }
        }
    }
    ensure!(sum > 0, "nothing carries the controller's label");
    Ok(sum)
}
