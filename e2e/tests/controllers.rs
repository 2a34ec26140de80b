//! The real controllers, and a Go program with informers, on the restaurant.

use std::{sync::OnceLock, time::Duration};

use anyhow::{Result, anyhow, ensure};
use e2e::Shared;
use serde_json::{Value, json};
use xtask::{
    cluster::{Informer, Kubectl, Options},
    poll,
};

static CLUSTER: Shared = Shared::new("controllers", Options::with_restaurant);

/// The garbage collector learns of new kinds every 30 s, and works after that.
const COLLECTED: Duration = Duration::from_secs(120);

fn pizza(kubectl: &Kubectl, name: &str, owners: &Value) -> Result<()> {
    let object = json!({
        "apiVersion": "restaurant.programming-kubernetes.info/v1beta1", "kind": "Pizza",
        "metadata": {"name": name, "ownerReferences": owners}, "spec": {"toppings": [{"name": "tomato"}]},
    });
    kubectl.run_with_input(&["create", "-f", "-"], &object.to_string())?.success().map(drop)
}

/// A namespace, and the topping that all of them share.
fn kitchen(name: &str) -> Result<Kubectl> {
    static TOPPING: OnceLock<Result<String, String>> = OnceLock::new();
    let kubectl = CLUSTER.namespace(name)?;
    let created = TOPPING
        .get_or_init(|| kubectl.ok(&["create", "-f", "topping-tomato.yaml"]).map_err(|error| format!("{error:#}")));
    created.as_ref().map(|_| kubectl).map_err(|error| anyhow!("{error}"))
}

fn gone(kubectl: &Kubectl, what: &str) -> Result<()> {
    poll::until(&format!("the end of {what}"), COLLECTED, || {
        let outcome = kubectl.run(&["get", what])?;
        ensure!(outcome.stderr.contains("NotFound"), "{outcome:?}");
        Ok(())
    })
}

#[test]
fn a_namespace_goes_with_its_pizzas() -> Result<()> {
    let kubectl = kitchen("short-lived")?;
    pizza(&kubectl, "one", &json!([]))?;
    pizza(&kubectl, "two", &json!([]))?;
    let prefix = CLUSTER.get()?.restaurant()?.proxy()?.prefix().to_owned();
    let keys = || CLUSTER.get()?.etcd.etcdctl().keys(&prefix);
    ensure!(keys()?.iter().filter(|key| key.contains("/short-lived/")).count() == 2, "{:?}", keys()?);
    kubectl.ok(&["delete", "namespace", "short-lived", "--wait", "--timeout=100s"])?;
    ensure!(!keys()?.iter().any(|key| key.contains("/short-lived/")), "{:?}", keys()?);
    Ok(())
}

#[test]
fn owner_references_are_honoured() -> Result<()> {
    let kubectl = kitchen("owned")?;
    kubectl.ok(&["create", "configmap", "order"])?;
    let order = kubectl.json(&["get", "configmap", "order"])?;
    let owner = |kind: &str, version: &str, object: &Value| {
        let metadata = |field: &str| object.pointer(&format!("/metadata/{field}")).cloned();
        json!([{"apiVersion": version, "kind": kind, "name": metadata("name"), "uid": metadata("uid")}])
    };
    // A pizza that belongs to an object of the cluster's own, and one of the cluster's own that belongs to a pizza.
    pizza(&kubectl, "ordered", &owner("ConfigMap", "v1", &order))?;
    pizza(&kubectl, "free", &json!([]))?;
    let free = kubectl.json(&["get", "pizza", "free"])?;
    let bill = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "bill", "ownerReferences": owner("Pizza", "restaurant.programming-kubernetes.info/v1beta1", &free)},
    });
    kubectl.run_with_input(&["create", "-f", "-"], &bill.to_string())?.success()?;
    kubectl.ok(&["delete", "configmap", "order"])?;
    gone(&kubectl, "pizza/ordered")?;
    kubectl.ok(&["get", "pizza/free", "configmap/bill"])?;
    kubectl.ok(&["delete", "pizza", "free", "--cascade=foreground", "--wait=false"])?;
    gone(&kubectl, "configmap/bill")?;
    gone(&kubectl, "pizza/free")
}

#[test]
fn a_go_informer_syncs_and_follows() -> Result<()> {
    let kubectl = kitchen("followed")?;
    let cluster = CLUSTER.get()?;
    pizza(&kubectl, "early", &json!([]))?;
    let informer = Informer::start(&cluster.tools, &kubectl, "restaurant.programming-kubernetes.info/v1beta1/pizzas")?;
    let expect = |event: &str, name: &str| {
        informer.expect(&format!("{event} {name}"), Duration::from_secs(60), |told| {
            told.event == event && (name.is_empty() || (told.name == name && told.namespace == "followed"))
        })
    };
    ensure!(expect("added", "early")?.initial);
    let synced = expect("synced", "")?;
    ensure!(!synced.resource_version.is_empty() && synced.count >= Some(1), "{synced:?}");
    pizza(&kubectl, "late", &json!([]))?;
    let added = expect("added", "late")?;
    ensure!(!added.initial, "{added:?}");
    kubectl.ok(&["label", "pizza", "late", "hot=yes"])?;
    let updated = expect("updated", "late")?;
    let newer = |event: &xtask::cluster::Event| event.resource_version.parse::<u64>();
    ensure!(newer(&updated)? > newer(&added)?, "{added:?} {updated:?}");
    kubectl.ok(&["delete", "pizza", "late"])?;
    let deleted = expect("deleted", "late")?;
    ensure!(!deleted.final_state_unknown && newer(&deleted)? > newer(&updated)?, "{deleted:?}");
    let older = Informer::start(&cluster.tools, &kubectl, "restaurant.programming-kubernetes.info/v1alpha1/pizzas")?;
    older.expect("early, in the older version", Duration::from_secs(60), |told| {
        told.event == "added" && told.name == "early"
    })?;
    Ok(())
}
