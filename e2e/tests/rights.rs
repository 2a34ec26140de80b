//! What the controller may do is what it does; and what a tenant that has every right in its namespaces can get from it.

#![expect(clippy::print_stderr, reason = "figures that whoever reads a run wants to see")]

#[path = "rights/loot.rs"]
mod loot;
#[path = "rights/rbac.rs"]
mod rbac;
#[path = "rights/scenario.rs"]
mod scenario;
#[path = "rights/schema.rs"]
mod schema;
#[path = "rights/tenant.rs"]
mod tenant;
#[path = "rights/tries.rs"]
mod tries;

use std::{sync::OnceLock, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};
use e2e::Shared;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use xtask::{
    cluster::{CONTROLLER_USER, Cluster, Kubectl},
    poll,
};

static CLUSTER: Shared = Shared::new("rights", |options| {
    let mut options = options.with_audit().with_controller(&["*"])?;
    options.controller.as_mut().context("there is no controller")?.replicas = 2;
    Ok(options)
});

/// One test stops the controller.
static TURN: Mutex<()> = Mutex::new(());

/// For what the controller does by itself.
const WORK: Duration = Duration::from_secs(60);

fn turn() -> Result<(&'static Cluster, MutexGuard<'static, ()>)> {
    let turn = TURN.lock();
    Ok((CLUSTER.get()?, turn))
}

fn object(kind: &str, namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": kind,
        "metadata": {"namespace": namespace, "name": name}, "spec": spec,
    })
}

/// The spec of an EtcdUpstream for the same etcd, which permits something more.
fn upstream(kubectl: &Kubectl, name: &str, further: Value) -> Result<()> {
    let default = kubectl.json(&["get", "etcdupstream", "default"])?;
    let mut spec = default.get("spec").cloned().context("the EtcdUpstream has no spec")?;
    if let (Some(spec), Value::Object(further)) = (spec.as_object_mut(), further) {
        spec.extend(further);
    }
    kubectl.apply(&[json!({
        "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdUpstream",
        "metadata": {"name": name}, "spec": spec,
    })])?;
    Ok(())
}

/// The conditions of an EtcdProxy.
fn conditions(kubectl: &Kubectl, namespace: &str, name: &str) -> Result<Vec<Value>> {
    let proxy = kubectl.json(&["get", "etcdproxy", name, "--namespace", namespace])?;
    Ok(proxy.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default())
}

/// Waits until a condition of an EtcdProxy has a reason.
fn wait_reason(kubectl: &Kubectl, namespace: &str, name: &str, kind: &str, reason: &str) -> Result<Value> {
    poll::until(&format!("{kind} of {namespace}/{name} to be {reason}"), WORK, || {
        let conditions = conditions(kubectl, namespace, name)?;
        let found = conditions
            .iter()
            .find(|one| one.get("type").is_some_and(|t| t == kind) && one.get("reason").is_some_and(|r| r == reason));
        found.cloned().with_context(|| format!("{conditions:?}"))
    })
}

/// Everything happens that the controller has to do something about.
fn lived() -> Result<&'static Cluster> {
    static LIVED: OnceLock<Result<(), String>> = OnceLock::new();
    let (cluster, _turn) = turn()?;
    let lived = LIVED.get_or_init(|| scenario::play(cluster).map_err(|error| format!("{error:#}")));
    lived.as_ref().map(|()| cluster).map_err(|error| anyhow!("{error}"))
}

#[test]
fn what_the_controller_uses_is_what_it_is_granted() -> Result<()> {
    let cluster = lived()?;
    let requests = cluster.kube_apiserver.audited(CONTROLLER_USER)?;
    let grants = rbac::granted(cluster.kubectl())?;
    eprintln!("{} requests; {} rights", requests.len(), grants.len());
    let differences = rbac::differences(&grants, &requests);
    ensure!(differences.is_empty(), "\n{}", differences.join("\n"));
    Ok(())
}

#[test]
fn the_controller_asks_for_nothing_that_it_may_not() -> Result<()> {
    let cluster = lived()?;
    let requests = cluster.kube_apiserver.audited(CONTROLLER_USER)?;
    let refused: Vec<_> = requests.iter().filter(|request| request.code == 401 || request.code == 403).collect();
    ensure!(refused.is_empty(), "{refused:#?}");
    Ok(())
}

#[test]
fn a_tenant_with_every_right_in_its_namespaces_gets_nothing_of_others() -> Result<()> {
    let (cluster, _turn) = turn()?;
    tenant::rob(cluster)
}
