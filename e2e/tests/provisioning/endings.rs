//! The end of an EtcdProxy: what was made for it goes, its data is kept or deleted as it says, and nobody else's is touched.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use xtask::{cluster::SYSTEM, poll};

use crate::world::{DEPLOYMENT, POD, Place, SECRET, Tenant, claimed_for, cluster, fill, kube, stays, stored, upstream};

/// What keeps a pod from going, as a kubelet that still ends it would.
const HELD: &str = "example.com/still-running";

#[test]
fn delete_removes_the_data_once_the_pods_are_gone() -> Result<()> {
    let tenant = Tenant::create("ending", "db", json!({"deletionPolicy": "Delete"}))?;
    let neighbour = Tenant::create("ending", "db2", json!({"deletionPolicy": "Delete"}))?;
    for one in [&tenant, &neighbour] {
        one.wait_provided()?;
    }
    let (prefix, theirs) = (tenant.prefix()?, neighbour.prefix()?);
    let cluster = cluster()?;
    let proxy = tenant.run()?;
    let etcdctl = proxy.etcdctl(cluster.node()?, &cluster.tools)?;
    // "lease 694d71ddacfda227 granted with TTL(600s)"
    let granted = etcdctl.ok(&["lease", "grant", "600"])?;
    let lease = granted.split_whitespace().nth(1).context("no lease")?;
    etcdctl.ok(&["put", "leased", "value", &format!("--lease={lease}")])?;
    fill(&prefix, 2500)?;
    fill(&theirs, 10)?;
    let (keys, meta) = stored(&prefix)?;
    assert_eq!(keys, 2501);
    ensure!(meta > 0, "the lease's records");
    assert_eq!(stored(&theirs)?.0, 10);
    let upstream_lease = upstream_lease(&prefix)?;

    let pod = kube()?.labelled(&POD, &tenant.uid)?.into_keys().next().context("no pod")?;
    pod.patch(&json!({"metadata": {"finalizers": [HELD]}}))?;
    let base = Place::new(&DEPLOYMENT, SYSTEM, tenant.base()?);
    let ca = Place::new(&SECRET, SYSTEM, format!("{}-ca", base.name));
    ca.get()?;
    let made = tenant.made()?;
    tenant.delete()?;
    tenant.wait("Ready", "False", "Deleting")?;
    // The controller looks every two seconds, and sees the pod each time.
    stays("the data, while a pod is there", Duration::from_secs(5), || {
        ensure!(stored(&prefix)?.0 == 2501, "{:?}", stored(&prefix)?);
        ensure!(base.get()?["metadata"]["deletionTimestamp"].is_string());
        Ok(())
    })?;
    // Meanwhile the proxy runs on; it ends with the pod.
    drop(proxy);
    pod.patch(&json!({"metadata": {"finalizers": null}}))?;
    tenant.place().wait_gone()?;
    assert_eq!(stored(&prefix)?, (0, 0));
    assert_eq!(claimed_for(&prefix)?, None);
    let left = cluster.etcd.etcdctl().ok(&["lease", "timetolive", &upstream_lease])?;
    ensure!(left.contains("already expired"), "{left}");
    ensure!(tenant.made()?.is_empty(), "{:?}", tenant.made()?.keys());
    for place in made.keys() {
        ensure!(place.find()?.is_none(), "{place} is there still");
    }
    let told = kube()?.events("ending", &tenant.uid)?;
    let expected = format!("the data under {prefix} is deleted, and the prefix released");
    ensure!(told.get("DataDeleted").is_some_and(|notes| *notes == [expected.as_str()]), "{told:?}");
    // The neighbour, whose name begins alike, noticed nothing.
    assert_eq!(stored(&theirs)?.0, 10);
    assert_eq!(claimed_for(&theirs)?.as_deref(), Some(&*neighbour.uid));
    neighbour.wait_provided()
}

/// The id that a tenant's one lease has on the shared etcd.
fn upstream_lease(prefix: &str) -> Result<String> {
    let hex: String = prefix.bytes().map(|byte| format!("{byte:02x}")).collect();
    let marks = cluster()?.etcd.etcdctl().keys(&format!("/etcd-proxy.meta/tenants/{hex}/leases/"))?;
    let [mark] = marks.as_slice() else { anyhow::bail!("{marks:?}") };
    mark.rsplit('/').next().map(str::to_owned).context("no id")
}

#[test]
fn retain_keeps_the_data_and_the_claim() -> Result<()> {
    let tenant = Tenant::create("keeping", "db", json!({}))?;
    tenant.wait_provided()?;
    let prefix = tenant.prefix()?;
    fill(&prefix, 120)?;
    let made = tenant.made()?;
    // Somebody takes labels off in the same moment: nothing is forgotten for that.
    for place in made.keys().filter(|place| place.kind.name == "Secret") {
        place.patch(&json!({"metadata": {"labels": null}}))?;
    }
    tenant.delete()?;
    tenant.place().wait_gone()?;
    for place in made.keys() {
        place.wait_gone()?;
    }
    assert_eq!(stored(&prefix)?.0, 120);
    assert_eq!(claimed_for(&prefix)?.as_deref(), Some(&*tenant.uid));
    let told = kube()?.events("keeping", &tenant.uid)?;
    let said = told.get("DataRetained").and_then(|notes| notes.first()).with_context(|| format!("{told:?}"))?;
    ensure!(said.contains(&prefix) && said.contains("EtcdUpstream default lists it (status.retained)"), "{said}");
    // The operator is told what there is to give away or to release: at once, and not at the next look.
    poll::until("the retained claim in the EtcdUpstream's status", Duration::from_secs(10), || {
        let upstream = cluster()?.kubectl().json(&["get", "etcdupstream", "default"])?;
        let retained = upstream.pointer("/status/retained").and_then(Value::as_array).cloned().unwrap_or_default();
        let found =
            retained.iter().find(|claim| claim["prefix"] == *prefix).with_context(|| format!("{retained:?}"))?;
        ensure!(found["owner"] == "keeping/db", "{found}");
        let counted = upstream.pointer("/status/retainedClaims").and_then(Value::as_u64);
        ensure!(counted == Some(retained.len().try_into()?), "{counted:?}");
        Ok(())
    })?;
    // What is made anew under the same name begins empty, elsewhere.
    let again = Tenant::create("keeping", "db", json!({}))?;
    again.wait_provided()?;
    ensure!(again.prefix()? != prefix && again.uid != tenant.uid);
    assert_eq!(stored(&again.prefix()?)?.0, 0);
    assert_eq!(stored(&prefix)?.0, 120);
    Ok(())
}

#[test]
fn retain_keeps_no_claim_where_nothing_is() -> Result<()> {
    let wish = "/wishes/empty/";
    upstream("keeping-nothing", json!({"allowedPrefixes": [wish]}))?;
    let of = |name, spec| Tenant::create("keeping-nothing", name, spec);
    let allocated = of("allocated", json!({}))?;
    let wished = of("wished", json!({"upstreamRef": {"name": "keeping-nothing"}, "prefix": wish}))?;
    let mut prefixes = Vec::new();
    for tenant in [&allocated, &wished] {
        tenant.wait_provided()?;
        prefixes.push(tenant.prefix()?);
        tenant.delete()?;
        tenant.place().wait_gone()?;
    }
    assert_eq!(claimed_for(&prefixes[0])?, None);
    let told = kube()?.events("keeping-nothing", &allocated.uid)?;
    ensure!(!told.contains_key("DataRetained"), "{told:?}");
    // A prefix that was asked for is not there for the next who asks.
    assert_eq!(prefixes[1], wish);
    assert_eq!(claimed_for(wish)?.as_deref(), Some(&*wished.uid));
    Ok(())
}

#[test]
fn the_policy_may_be_changed_until_the_end() -> Result<()> {
    let tenant = Tenant::create("changing-its-mind", "db", json!({"deletionPolicy": "Delete"}))?;
    tenant.wait_provided()?;
    let prefix = tenant.prefix()?;
    fill(&prefix, 30)?;
    tenant.patch(json!({"deletionPolicy": "Retain"}))?;
    tenant.delete()?;
    tenant.place().wait_gone()?;
    assert_eq!((stored(&prefix)?.0, claimed_for(&prefix)?), (30, Some(tenant.uid.clone())));
    Ok(())
}

#[test]
fn a_namespace_that_goes_takes_its_proxy_along() -> Result<()> {
    let tenant = Tenant::create("going", "db", json!({"deletionPolicy": "Delete"}))?;
    tenant.wait_provided()?;
    let prefix = tenant.prefix()?;
    fill(&prefix, 30)?;
    let made = tenant.made()?;
    cluster()?.kubectl().ok(&["delete", "namespace", "going", "--timeout=90s"])?;
    assert_eq!((stored(&prefix)?, claimed_for(&prefix)?), ((0, 0), None));
    made.keys().try_for_each(Place::wait_gone)
}
