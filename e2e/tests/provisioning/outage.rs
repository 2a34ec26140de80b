//! A shared etcd that is away, and comes back.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use xtask::{
    cluster::{Etcd, SYSTEM},
    poll,
    site::{Site, of_tests},
    tools::Tool,
};

use crate::world::{Place, SECRET, Tenant, WAIT, cluster, kube, upstream};

#[test]
fn an_upstream_that_goes_down_and_comes_back_is_told() -> Result<()> {
    let cluster = cluster()?;
    // One of its own: the other is kube-apiserver's, too.
    let site = Site::create(&of_tests().join("provisioning-second-etcd"))?;
    let etcd = Etcd::start(&site, &cluster.tools, Tool::Etcd)?;
    let endpoint = etcd.endpoint("second")?;
    let read = |path: &Path| Ok::<_, anyhow::Error>(STANDARD.encode(std::fs::read(path)?));
    let secret = |name: &str, data: Value| {
        let metadata = json!({"namespace": SYSTEM, "name": name});
        kube()?.create(&SECRET, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}))
    };
    let tls = json!({"caSecretRef": {"name": "second-ca"}, "clientSecretRef": {"name": "second-client"}});
    upstream("second", json!({"endpoints": [endpoint.url], "tls": tls}))?;
    let tenant = Tenant::create("outage", "db", json!({"upstreamRef": {"name": "second"}}))?;
    let message = tenant.wait("UpstreamReachable", "False", "UpstreamSecretMissing")?;
    // Whose Secrets they are is the operator's to know, and stands in the EtcdUpstream.
    ensure!(message.contains("EtcdUpstream second cannot be used") && !message.contains("second-ca"), "{message}");
    poll::until("the operator to be told", WAIT, || {
        let told = cluster.kubectl().json(&["get", "etcdupstream", "second"])?["status"]["conditions"].to_string();
        ensure!(told.contains(&format!("Secret {SYSTEM}/second-ca")), "{told}");
        Ok(())
    })?;
    tenant.wait("Ready", "False", "UpstreamSecretMissing")?;
    secret("second-ca", json!({"ca.crt": read(&endpoint.ca)?}))?;
    secret("second-client", json!({"tls.crt": read(&endpoint.client.cert)?, "tls.key": read(&endpoint.client.key)?}))?;
    tenant.wait("UpstreamReachable", "True", "Answering")?;
    tenant.wait_provided()?;
    let (prefix, made) = (tenant.prefix()?, tenant.made()?);
    let reachable = |expected: &str| {
        poll::until(&format!("Reachable={expected} of the EtcdUpstream"), WAIT, || {
            let upstream = cluster.kubectl().json(&["get", "etcdupstream", "second"])?;
            let conditions =
                upstream.pointer("/status/conditions").and_then(Value::as_array).context("no conditions")?;
            let found = conditions.iter().find(|condition| condition["type"] == "Reachable").context("not told")?;
            ensure!(found["status"] == expected, "{found}");
            Ok(())
        })
    };
    reachable("True")?;

    etcd.process.kill9()?;
    tenant.wait("UpstreamReachable", "False", "UpstreamUnreachable")?;
    reachable("False")?;
    // What it has it keeps.
    ensure!(tenant.prefix()? == prefix && tenant.made()?.keys().eq(made.keys()));
    tenant.wait_provided()?;
    etcd.process.start()?;
    etcd.wait_ready()?;
    tenant.wait("UpstreamReachable", "True", "Answering")?;
    reachable("True")?;
    let told = kube()?.events("outage", &tenant.uid)?;
    for (reason, times) in [("UpstreamUnreachable", 1), ("PrefixClaimed", 1), ("Answering", 2)] {
        ensure!(told.get(reason).is_some_and(|notes| notes.len() == times), "{reason}: {told:?}");
    }
    an_end_that_is_blocked(&tenant)?;
    drop(etcd);
    site.remove()
}

/// Without the operator's Secret the data cannot be deleted; and what is not looked at meanwhile is not said to be well.
fn an_end_that_is_blocked(tenant: &Tenant) -> Result<()> {
    let kubectl = cluster()?.kubectl();
    let foreign = Place::new(&SECRET, "outage", "db-etcd-other");
    let metadata = json!({"namespace": "outage", "name": "db-etcd-other"});
    kube()?.create(&SECRET, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata}))?;
    tenant.patch(json!({"clients": [{"name": "other"}], "deletionPolicy": "Delete"}))?;
    tenant.wait("Degraded", "True", "TargetExists")?;
    Place::new(&SECRET, SYSTEM, "second-ca").delete()?;
    tenant.wait("UpstreamReachable", "False", "UpstreamSecretMissing")?;
    let conditions = tenant.conditions()?;
    for (kind, expected) in [
        ("Degraded", ("True", "TargetExists")),
        ("CertificatesValid", ("False", "TargetExists")),
        ("Progressing", ("False", "Waiting")),
    ] {
        let found = conditions.get(kind).map(|(status, reason, _)| (status.as_str(), reason.as_str()));
        ensure!(found == Some(expected), "{kind}: {conditions:?}");
    }
    let told = kube()?.events("outage", &tenant.uid)?;
    ensure!(!told.contains_key("AsExpected"), "{told:?}");
    // The operator, too, has conditions that tell what was not looked at, and events.
    let upstream = poll::until("the operator to be told", WAIT, || {
        let upstream = kubectl.json(&["get", "etcdupstream", "second"])?;
        let conditions = upstream["status"]["conditions"].as_array().context("no conditions")?;
        for expected in ["UpstreamSecretMissing", "NotLookedAt"] {
            ensure!(conditions.iter().any(|condition| condition["reason"] == expected), "{conditions:?}");
        }
        Ok(upstream)
    })?;
    let uid = upstream["metadata"]["uid"].as_str().context("no uid")?;
    poll::until("the EtcdUpstream's events", WAIT, || {
        // Where events of objects without a namespace lie.
        let told = kube()?.events("default", uid)?;
        for (reason, times) in [("UpstreamSecretMissing", 2), ("UpstreamUnreachable", 1), ("Answering", 2)] {
            ensure!(told.get(reason).is_some_and(|notes| notes.len() == times), "{reason}: {told:?}");
        }
        Ok(())
    })?;

    // An EtcdUpstream that is referred to stays.
    ensure!(upstream["status"]["tenants"] == 1, "{upstream}");
    let refused = kubectl.run(&["delete", "etcdupstream", "second"])?;
    ensure!(refused.stderr.contains("EtcdProxies that refer to EtcdUpstream second: 1"), "{refused:?}");

    tenant.delete()?;
    let message = tenant.wait("Ready", "False", "DeletionBlocked")?;
    ensure!(
        message.contains("EtcdUpstream second cannot be used") && message.contains("deletionPolicy: Retain"),
        "{message}"
    );
    tenant.wait("Progressing", "False", "Waiting")?;
    tenant.patch(json!({"deletionPolicy": "Retain"}))?;
    tenant.place().wait_gone()?;
    foreign.get()?;
    poll::until("the EtcdUpstream to go", WAIT, || {
        kubectl.ok(&["delete", "etcdupstream", "second", "--ignore-not-found"]).map(drop)
    })
}
