//! What is refused, by kube-apiserver with the types as they are shipped and by the controller's webhook, and that of two who want
//! the same at the same instant one gets it.

#[path = "refusals/cases.rs"]
mod cases;
#[path = "refusals/fairness.rs"]
mod fairness;
#[path = "refusals/races.rs"]
mod races;

use std::{sync::OnceLock, time::Duration};

use anyhow::{Result, anyhow, ensure};
use e2e::Shared;
use serde_json::{Value, json};
use xtask::cluster::{Cluster, Kubectl};

/// `strangers` is not among those who may use the shared etcd.
pub(crate) static CLUSTER: Shared = Shared::new("refusals", |options| {
    options.with_controller(&["tenants", "rivals", "race-a", "race-b", "retained", "etcd-proxy-system"])
});

pub(crate) const WAIT: Duration = Duration::from_secs(90);

/// The cluster with its namespaces, and two EtcdUpstreams besides the one that is shipped: one that allows wishes, and a
/// generous one.
pub(crate) fn cluster() -> Result<&'static Cluster> {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    let cluster = CLUSTER.get()?;
    let make = || -> Result<()> {
        let kubectl = cluster.kubectl();
        let names = ["tenants", "rivals", "strangers", "consenting", "race-a", "race-b", "retained"];
        let namespace = |name: &&str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        kubectl.apply(&names.iter().map(namespace).collect::<Vec<_>>())?;
        let default = kubectl.json(&["get", "etcdupstream", "default"])?;
        let upstream = |name: &str, further: Value| {
            let mut spec = default["spec"].clone();
            if let (Some(spec), Value::Object(further)) = (spec.as_object_mut(), further) {
                spec.extend(further);
            }
            json!({
                "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdUpstream",
                "metadata": {"name": name}, "spec": spec,
            })
        };
        kubectl.apply(&[
            upstream(
                "wishes",
                json!({"allowedPrefixes": ["/wish/", "/etcd-proxy.meta/", "/etcd-proxies/", "/registry/"]}),
            ),
            upstream(
                "generous",
                json!({
                    "maxReplicas": 5, "minValidity": "60s", "maxLimits": {"keys": 1_000_000}, "maxResources": {"cpu": "2", "memory": "1Gi"},
                    "allowedPlacement": {
                        "nodeSelector": {"pool": ["tenants"]}, "affinity": true, "topologySpreadConstraints": true,
                        "tolerations": [{"key": "tenants"}],
                    },
                }),
            ),
            // Sidecars need least: what is to be seen here are their prefixes.
            upstream("racing", json!({"allowedPrefixes": ["/race/"], "allowSidecarCredentials": true})),
        ])?;
        Ok(())
    };
    let ready = READY.get_or_init(|| make().map_err(|error| format!("{error:#}")));
    ready.as_ref().map(|()| cluster).map_err(|error| anyhow!("{error}"))
}

pub(crate) fn proxy(namespace: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdProxy",
        "metadata": {"namespace": namespace, "name": name}, "spec": spec,
    })
}

/// What `kubectl apply` says of an object that must not be accepted.
pub(crate) fn refusal(kubectl: &Kubectl, object: &Value) -> Result<String> {
    let outcome = kubectl.run_with_input(&["apply", "-f", "-"], &object.to_string())?;
    ensure!(!outcome.status.success(), "accepted: {object}");
    Ok(outcome.stderr)
}

/// The claims on prefixes that begin so, with the uid that each is for.
pub(crate) fn claims(cluster: &Cluster, beginning: &str) -> Result<Vec<(String, String)>> {
    let hex: String = beginning.bytes().map(|byte| format!("{byte:02x}")).collect();
    let text = cluster.etcd.etcdctl().ok(&["get", &format!("/etcd-proxy.meta/claims/{hex}"), "--prefix"])?;
    let mut lines = text.lines();
    let mut claims = Vec::new();
    while let (Some(key), Some(value)) = (lines.next(), lines.next()) {
        let claim: Value = serde_json::from_str(value)?;
        claims.push((key.to_owned(), claim["uid"].as_str().unwrap_or_default().to_owned()));
    }
    Ok(claims)
}
