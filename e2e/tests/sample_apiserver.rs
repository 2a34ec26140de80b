//! Go's sample-apiserver, unmodified, behind an etcd-proxy.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{Shared, client, get};
use xtask::cluster::{Informer, Kubectl, Options};

static CLUSTER: Shared = Shared::new("sample-apiserver", Options::with_wardle);

fn create(kubectl: &Kubectl, name: &str) -> Result<()> {
    let flunder = format!("apiVersion: wardle.example.com/v1alpha1\nkind: Flunder\nmetadata: {{name: {name}}}\n");
    kubectl.run_with_input(&["create", "-f", "-"], &flunder)?.success().map(drop)
}

#[test]
fn create_get_list_delete() -> Result<()> {
    let kubectl = CLUSTER.namespace("flunders")?;
    create(&kubectl, "one")?;
    create(&kubectl, "two")?;
    ensure!(
        kubectl.ok(&["get", "flunders", "-o", "name"])?
            == "flunder.wardle.example.com/one\nflunder.wardle.example.com/two\n"
    );
    kubectl.ok(&["label", "flunder", "one", "green=yes"])?;
    ensure!(kubectl.ok(&["get", "flunders", "-l", "green=yes", "-o", "name"])? == "flunder.wardle.example.com/one\n");
    let cluster = CLUSTER.get()?;
    let keys = cluster.etcd.etcdctl().keys(cluster.wardle()?.proxy()?.prefix())?;
    ensure!(keys.iter().filter(|key| key.contains("/flunders/flunders/")).count() == 2, "{keys:?}");
    kubectl.ok(&["delete", "flunders", "--all"])?;
    ensure!(kubectl.ok(&["get", "flunders", "-o", "name"])?.is_empty());
    Ok(())
}

#[test]
fn watches() -> Result<()> {
    let kubectl = CLUSTER.namespace("watched")?;
    let mut child = kubectl
        .command(&["get", "flunders", "--watch-only", "-o", "name"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("not piped")?).lines();
    let informer = Informer::start(&CLUSTER.get()?.tools, &kubectl, "wardle.example.com/v1alpha1/flunders")?;
    informer.expect("synced", Duration::from_secs(60), |told| told.event == "synced")?;
    create(&kubectl, "seen")?;
    informer.expect("seen", Duration::from_secs(30), |told| told.event == "added" && told.name == "seen")?;
    let line = lines.next().context("the watch ended")?;
    child.kill()?;
    child.wait()?;
    ensure!(line? == "flunder.wardle.example.com/seen");
    Ok(())
}

/// A list from Go's watch cache asks etcd for progress, so that it may answer from memory what is current. A proxy
/// that never answers makes each such list wait for three seconds.
#[tokio::test(flavor = "multi_thread")]
async fn consistent_lists_take_milliseconds() -> Result<()> {
    let kubectl = CLUSTER.namespace("listed")?;
    let cluster = CLUSTER.get()?;
    let direct = client(cluster.wardle()?.server.direct().kubeconfig(), &[]).await?;
    let mut times = Vec::new();
    for round in 0..20 {
        // A write each time, so that the cache is behind.
        create(&kubectl, &format!("flunder-{round}"))?;
        let start = Instant::now();
        let (status, body) = get(&direct, "/apis/wardle.example.com/v1alpha1/namespaces/listed/flunders").await?;
        times.push(start.elapsed());
        ensure!(status == 200 && body.contains(&format!("\"flunder-{round}\"")), "{status} {body}");
    }
    ensure!(times.iter().all(|time| *time < Duration::from_secs(1)), "{times:?}");
    Ok(())
}
