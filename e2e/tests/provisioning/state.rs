//! What an EtcdProxy gets, and what is said of it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use xtask::{cluster::SYSTEM, poll};

use crate::world::{CONFIG_MAP, SECRET, SERVICE, Tenant, WAIT, claimed_for, cluster, kube, kubelet_says};

/// The cells of a line that kubectl printed: titles and values have single blanks at most.
fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

#[test]
fn without_a_node_everything_is_there_but_ready() -> Result<()> {
    let tenant = Tenant::create("state", "db", json!({}))?;
    tenant.wait_provided()?;
    let conditions = tenant.conditions()?;
    let short = |kind: &str| conditions.get(kind).map(|(status, reason, _)| (status.as_str(), reason.as_str()));
    for (kind, expected) in [
        ("Ready", ("False", "DeploymentUnavailable")),
        ("Progressing", ("True", "RollingOut")),
        ("UpstreamReachable", ("True", "Answering")),
        ("CertificatesValid", ("True", "Issued")),
        ("Degraded", ("False", "AsExpected")),
    ] {
        ensure!(short(kind) == Some(expected), "{kind}: {:?}", conditions.get(kind));
    }
    // Counted within half a minute; until then nobody knows.
    let unexceeded = short("QuotaExceeded").is_some_and(|(status, _)| status == "False" || status == "Unknown");
    ensure!(unexceeded, "{conditions:?}");
    ensure!(conditions.len() == 6, "{conditions:?}");

    let object = tenant.object()?;
    let prefix = format!("/etcd-proxies/state/db/{}/", tenant.uid);
    for (path, expected) in [
        ("/status/prefix", json!(prefix)),
        ("/status/endpoint", json!("https://db-etcd.state.svc:2379")),
        ("/status/observedGeneration", object["metadata"]["generation"].clone()),
        ("/status/readyReplicas", json!(0)),
        ("/status/certificates/phase", json!("Stable")),
        ("/metadata/finalizers", json!(["etcd.programming-kubernetes.info/cleanup"])),
    ] {
        ensure!(object.pointer(path) == Some(&expected), "{path} of {object}");
    }
    ensure!(claimed_for(&prefix)?.as_deref() == Some(&*tenant.uid));

    let base = tenant.base()?;
    let made: Vec<String> = tenant.made()?.keys().map(ToString::to_string).collect();
    let expected = [
        "ConfigMap state/db-etcd-ca".to_owned(),
        format!("Deployment {SYSTEM}/{base}"),
        format!("NetworkPolicy {SYSTEM}/{base}"),
        format!("Secret {SYSTEM}/{base}-ca"),
        format!("Secret {SYSTEM}/{base}-serving"),
        "Secret state/db-etcd-client".to_owned(),
        format!("Service {SYSTEM}/{base}"),
        "Service state/db-etcd".to_owned(),
        format!("ServiceAccount {SYSTEM}/{base}"),
    ];
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    assert_eq!(sorted(made), sorted(expected.into()));

    let kubectl = cluster()?.kubectl().in_namespace("state");
    for name in ["etcdproxies", "etcdp"] {
        let table = kubectl.ok(&["get", name])?;
        let lines: Vec<_> = table.lines().map(cells).collect();
        let [header, row] = lines.as_slice() else { anyhow::bail!("{table}") };
        assert_eq!(*header, ["NAME", "READY", "ENDPOINT", "PREFIX", "USED", "CERT EXPIRES", "AGE"]);
        assert_eq!(
            row.get(..4),
            Some(["db", "False", "https://db-etcd.state.svc:2379", &prefix].as_slice()),
            "{table}"
        );
    }
    // Who takes the default sees it, and why it is not ready; an operator finds what was made for it by its name.
    let table = kubectl.ok(&["get", "etcdproxies", "-o", "wide"])?;
    let [header, row] =
        table.lines().map(cells).collect::<Vec<_>>().try_into().map_err(|_| anyhow::anyhow!("{table}"))?;
    assert_eq!(header.get(7..), Some(["REASON", "MODE", "UPSTREAM"].as_slice()), "{table}");
    // USED is empty until it was counted.
    ensure!(row.ends_with(&["DeploymentUnavailable", "Deployment", "default"]), "{table}");
    let selector = "etcd.programming-kubernetes.info/namespace=state,etcd.programming-kubernetes.info/name=db";
    let found = cluster()?.kubectl().ok(&[
        "get",
        "deployments",
        "--namespace",
        SYSTEM,
        "-o",
        "name",
        "--selector",
        selector,
    ])?;
    assert_eq!(found.trim(), format!("deployment.apps/{base}"));
    // Told once each, also after many looks.
    let expected: BTreeMap<_, _> = [
        ("PrefixClaimed".to_owned(), vec![format!("claimed prefix {prefix}")]),
        (
            "DeploymentUnavailable".to_owned(),
            vec![format!(
                "0 of 1 proxy is ready (1 started): the operator sees why at the pods of Deployment {SYSTEM}/{base}"
            )],
        ),
    ]
    .into();
    for _ in 0..3 {
        tenant.touch()?;
        let version = tenant.object()?["metadata"]["annotations"]["example.com/touched-at"].clone();
        ensure!(version.is_string());
        tenant.wait_provided()?;
    }
    let told = poll::until("the events", WAIT, || {
        let told = kube()?.events("state", &tenant.uid)?;
        ensure!(told.keys().eq(expected.keys()), "{told:?}");
        Ok(told)
    })?;
    for (reason, notes) in &told {
        assert_eq!(notes.len(), 1, "{reason}: {notes:?}");
    }
    assert_eq!(told.get("PrefixClaimed"), expected.get("PrefixClaimed"));
    let note = told.get("DeploymentUnavailable").and_then(|notes| notes.first()).context("no note")?;
    ensure!(
        note.starts_with("0 of 1 proxy is ready") && note.ends_with(&format!("Deployment {SYSTEM}/{base}")),
        "{note}"
    );
    Ok(())
}

#[test]
fn with_pods_it_is_ready_and_what_it_stores_is_counted() -> Result<()> {
    let tenant = Tenant::create("serving", "db", json!({"replicas": 2}))?;
    let proxy = tenant.run()?;
    // What its kubelet would say of the pods; what becomes of it in the Deployment is for Kubernetes' own controllers.
    kubelet_says(&tenant, true)?;
    assert_eq!(tenant.wait("Ready", "True", "Serving")?, "2 of 2 proxies are ready");
    tenant.wait("Progressing", "False", "Settled")?;
    let etcdctl = proxy.etcdctl(cluster()?.node()?, &cluster()?.tools)?;
    let value = "v".repeat(10 << 10);
    for number in 0..20 {
        etcdctl.ok(&["put", &format!("key-{number:02}"), &value])?;
    }
    let kubectl = cluster()?.kubectl().in_namespace("serving");
    poll::until("what is stored to be counted", WAIT, || {
        let object = tenant.object()?;
        let usage = &object["status"]["usage"];
        ensure!(usage["keys"] == 20, "{usage}");
        let bytes = usage["bytes"].as_i64().context("no bytes")?;
        // Values, and keys of six bytes.
        ensure!((20 * (10 << 10)..21 * (10 << 10)).contains(&bytes), "{usage}");
        ensure!(usage["summary"] == "200Ki/512Mi" || usage["summary"] == "201Ki/512Mi", "{usage}");
        Ok(())
    })?;
    let table = kubectl.ok(&["get", "etcdproxies"])?;
    let row = table.lines().nth(1).map(cells).context("no row")?;
    ensure!(row.len() == 7 && row.get(1) == Some(&"True"), "{table}");
    ensure!(row.get(4).is_some_and(|used| used.ends_with("Ki/512Mi")), "{table}");
    ensure!(row.get(5).copied() == tenant.object()?.pointer("/status/certificates/notAfter").and_then(Value::as_str));

    kubelet_says(&tenant, false)?;
    tenant.wait_provided()?;
    kubelet_says(&tenant, true)?;
    tenant.wait("Ready", "True", "Serving")?;
    // Each change once: not ready at first, then ready, not ready, ready.
    poll::until("four events", WAIT, || {
        let told = kube()?.events("serving", &tenant.uid)?;
        let count = |reason: &str| told.get(reason).map_or(0, Vec::len);
        ensure!((count("Serving"), count("DeploymentUnavailable")) == (2, 2), "{told:?}");
        Ok(())
    })
}

#[test]
fn what_tenants_get_opens_their_own_etcd_and_nothing_else() -> Result<()> {
    let tenant = Tenant::create("given", "db", json!({}))?;
    tenant.wait_provided()?;
    let base = tenant.base()?;
    let find = |kind, name: &str| crate::world::Place::new(kind, "given", name).get();
    let service = find(&SERVICE, "db-etcd")?;
    assert_eq!(service.pointer("/spec/type"), Some(&json!("ExternalName")));
    assert_eq!(service.pointer("/spec/externalName"), Some(&json!(format!("{base}.{SYSTEM}.svc.cluster.local"))));
    let keys = |object: &Value| -> Vec<String> {
        object["data"].as_object().into_iter().flat_map(serde_json::Map::keys).cloned().collect()
    };
    let secret = find(&SECRET, "db-etcd-client")?;
    assert_eq!(
        (keys(&secret), &secret["type"]),
        (["ca.crt", "tls.crt", "tls.key"].map(str::to_owned).into(), &json!("kubernetes.io/tls"))
    );
    assert_eq!(keys(&find(&CONFIG_MAP, "db-etcd-ca")?), ["ca.crt"]);
    // Nothing of the upstream's own identity is among it.
    for place in ["etcd-upstream-ca", "etcd-upstream-client"] {
        let upstream = crate::world::Place::new(&SECRET, SYSTEM, place).get()?;
        for (file, content) in upstream["data"].as_object().into_iter().flatten() {
            let content = content.as_str().context("no text")?;
            for (place, made) in tenant.made()?.into_iter().filter(|(place, _)| place.namespace == "given") {
                ensure!(!made.to_string().contains(content), "{place} holds the upstream's {file}");
            }
        }
    }
    Ok(())
}
