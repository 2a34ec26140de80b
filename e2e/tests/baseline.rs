//! The original against the original: Go's sample-apiserver directly on the shared etcd, without any part of ours.
//! What holds here must hold with our parts in between; and a failure here is the machine's or the harness'.

use std::time::Duration;

use anyhow::{Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::json;
use xtask::{
    cluster::{Cluster, Event, Informer, Options, Store, TenantOptions, wait_unavailable},
    tools::Tool,
};

const FLUNDER: &str = "apiVersion: wardle.example.com/v1alpha1\nkind: Flunder\nmetadata: {name: NAME}\n";

fn cluster(name: &str) -> Result<Cluster> {
    let options = Options::of_test(name)?;
    let server = options.tools.path(Tool::SampleApiserver)?;
    Cluster::start(Options { wardle: Some(TenantOptions { server, store: Store::Shared }), ..options })
}

/// Reads the informer's events up to this one. It may take a while to come back to a killed server.
fn expect(informer: &Informer, event: &str, name: &str) -> Result<Event> {
    informer
        .expect(&format!("{event} {name}"), Duration::from_secs(90), |told| told.event == event && told.name == name)
}

fn create(cluster: &Cluster, name: &str) -> Result<()> {
    let outcome = cluster.kubectl().run_with_input(&["create", "-f", "-"], &FLUNDER.replace("NAME", name))?;
    outcome.success().map(drop)
}

#[test]
fn sample_apiserver_on_a_shared_etcd() -> Result<()> {
    let cluster = cluster("baseline")?;
    let kubectl = cluster.kubectl();

    // Verified certificates: the aggregator is told no exception, and a wrong authority makes the service unavailable.
    let api_service = kubectl.json(&["get", "apiservice", "v1alpha1.wardle.example.com"])?;
    ensure!(api_service.pointer("/spec/insecureSkipTLSVerify").is_none());
    let wrong = json!({"spec": {"caBundle": STANDARD.encode(cluster.kube_apiserver.cluster_ca.pem())}});
    kubectl.ok(&["patch", "apiservice", "v1alpha1.wardle.example.com", "--type=merge", "-p", &wrong.to_string()])?;
    wait_unavailable(kubectl, "v1alpha1.wardle.example.com")?;
    let right = json!({"spec": {"caBundle": api_service.pointer("/spec/caBundle")}});
    kubectl.ok(&["patch", "apiservice", "v1alpha1.wardle.example.com", "--type=merge", "-p", &right.to_string()])?;
    cluster.wardle()?.server.wait_available(kubectl)?;

    create(&cluster, "one")?;
    let keys = cluster.etcd.etcdctl().keys("/tenant-b/")?;
    ensure!(keys == ["/tenant-b/registry/wardle.example.com/wardle.example.com/flunders/default/one"], "{keys:?}");

    // A user without rights is refused, by name.
    let jane = cluster.kubectl_as("jane", None)?;
    let refused = jane.run(&["get", "flunders"])?;
    ensure!(
        !refused.status.success() && refused.stderr.contains("\"jane\" cannot list resource \"flunders\""),
        "{}",
        refused.stderr
    );

    // A Go informer hands out what is there, calls itself synced, and follows.
    let informer = Informer::start(&cluster.tools, kubectl, "wardle.example.com/v1alpha1/flunders")?;
    expect(&informer, "added", "one")?;
    expect(&informer, "synced", "")?;
    create(&cluster, "two")?;
    expect(&informer, "added", "two")?;
    // It goes on after each of the servers was killed.
    cluster.wardle()?.server.process.restart()?;
    cluster.wardle()?.server.wait_ready()?;
    cluster.etcd.process.restart()?;
    cluster.etcd.wait_ready()?;
    cluster.kube_apiserver.wait_ready()?;
    cluster.wardle()?.server.wait_available(kubectl)?;
    kubectl.ok(&["delete", "flunder", "one"])?;
    expect(&informer, "deleted", "one")?;

    // The real namespace controller removes what an aggregated server holds.
    cluster.controller_manager.wait_ready()?;
    kubectl.ok(&["create", "namespace", "short-lived"])?;
    let outcome =
        kubectl.run_with_input(&["create", "-n", "short-lived", "-f", "-"], &FLUNDER.replace("NAME", "three"))?;
    outcome.success()?;
    kubectl.ok(&["delete", "namespace", "short-lived", "--wait", "--timeout=100s"])?;
    expect(&informer, "deleted", "three")?;
    cluster.remove()
}
