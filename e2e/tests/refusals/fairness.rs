//! What one tenant does to the controller keeps no other from it, and leaves nothing running.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    runtime::wait::await_condition,
};
use serde_json::{Value, json};
use tokio::time::timeout;
use xtask::poll;

use crate::{WAIT, cluster, proxy, races::api};

/// EtcdProxies of the tenant that floods.
const FLOOD: usize = 150;

/// How long another tenant waits at most: much less than the flood takes.
const PATIENCE: Duration = Duration::from_secs(30);

const UID_LABEL: &str = "etcd.programming-kubernetes.info/uid";

fn sidecar(namespace: &str, name: &str) -> Result<DynamicObject> {
    // Sidecars need least.
    let spec = json!({"upstreamRef": {"name": "racing"}, "mode": "Sidecar"});
    Ok(serde_json::from_value(proxy(namespace, name, &spec))?)
}

/// Changes the objects one after the other, several at a time, without end.
async fn flood(client: &Client, namespace: &str) -> Result<()> {
    let proxies = api(client, namespace);
    let patches = stream::iter(0_usize..).map(|round| {
        let body = json!({"metadata": {"annotations": {"example.com/round": round.to_string()}}});
        let (proxies, name) = (&proxies, format!("flood-{:03}", round % FLOOD));
        async move { proxies.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(body)).await.map(drop) }
    });
    patches.buffer_unordered(8).try_collect::<()>().await.context("a patch of the flood")
}

async fn served(client: &Client, namespace: &str, name: &str) -> Result<()> {
    let ready = |object: Option<&DynamicObject>| {
        let conditions = object.and_then(|object| object.data.pointer("/status/conditions")?.as_array());
        let ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        conditions.is_some_and(|conditions| conditions.iter().any(ready))
    };
    await_condition(api(client, namespace), name, ready).await?;
    Ok(())
}

#[test]
fn a_flood_of_one_tenant_keeps_no_other_waiting() -> Result<()> {
    let kubectl = cluster()?.kubectl();
    tokio::runtime::Runtime::new()?.block_on(async {
        let client = e2e::client(kubectl.kubeconfig(), &[]).await?;
        let loud = api(&client, "race-a");
        stream::iter(0..FLOOD)
            .map(|n| {
                let loud = &loud;
                async move {
                    let object = sidecar("race-a", &format!("flood-{n:03}"))?;
                    loud.create(&PostParams::default(), &object).await?;
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(8)
            .try_collect::<()>()
            .await?;
        let quiet = async {
            for n in 0..3 {
                let name = format!("quiet-{n}");
                api(&client, "race-b").create(&PostParams::default(), &sidecar("race-b", &name)?).await?;
                timeout(PATIENCE, served(&client, "race-b", &name))
                    .await
                    .with_context(|| format!("{name} waits"))??;
            }
            anyhow::Ok(())
        };
        tokio::select! {
            flooded = flood(&client, "race-a") => flooded,
            served = quiet => served,
        }?;
        for (namespace, prefix) in [("race-a", "flood-"), ("race-b", "quiet-")] {
            let proxies = api(&client, namespace);
            for object in proxies.list_metadata(&Default::default()).await? {
                let name = object.metadata.name.unwrap_or_default();
                if name.starts_with(prefix) {
                    proxies.delete(&name, &DeleteParams::default()).await?;
                }
            }
        }
        Ok(())
    })
}

/// A tenant may take finalizers away, and write the label of what the controller made, with any uid, on any number of objects.
#[test]
fn what_runs_for_an_object_without_finalizer_goes_with_it() -> Result<()> {
    let kubectl = cluster()?.kubectl();
    let forged = |n: usize| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "namespace": "rivals", "name": format!("forged-{n}"),
                "labels": {UID_LABEL: format!("00000000-0000-4000-8000-{n:012}")},
            },
        })
    };
    kubectl.apply(&(0..110).map(forged).collect::<Vec<_>>())?;
    let runtime = tokio::runtime::Runtime::new()?;
    let client = runtime.block_on(e2e::client(kubectl.kubeconfig(), &[]))?;
    for round in 0..3 {
        let name = format!("fleeting-{round}");
        kubectl.apply(&[proxy("rivals", &name, &json!({}))])?;
        let path = "jsonpath={.metadata.uid}";
        let uid = kubectl.ok(&["get", "etcdproxy", &name, "--namespace", "rivals", "-o", path])?;
        let selector = format!("{UID_LABEL}={uid}");
        let made = || {
            let kinds = "deployments,secrets,services,configmaps,serviceaccounts,networkpolicies";
            kubectl.ok(&["get", kinds, "--all-namespaces", "--selector", &selector, "-o", "name"])
        };
        poll::until("a Deployment", WAIT, || {
            let made = made()?;
            ensure!(made.contains("deployment") && made.contains("service/"), "{made}");
            Ok(())
        })?;
        runtime.block_on(async {
            let proxies = api(&client, "rivals");
            let without = json!({"metadata": {"finalizers": null}});
            proxies.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(without)).await?;
            proxies.delete(&name, &DeleteParams::default()).await.map(drop)
        })?;
        poll::until("what was made for it to go", WAIT, || {
            let made = made()?;
            ensure!(made.is_empty(), "{made}");
            Ok(())
        })?;
    }
    let left = kubectl.ok(&["get", "configmaps", "--namespace", "rivals", "-o", "name"])?;
    ensure!(
        left.matches("forged-").count() == 110,
        "what only bears the label is not the controller's to delete: {left}"
    );
    Ok(())
}
