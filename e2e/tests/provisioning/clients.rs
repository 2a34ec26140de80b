//! Further clients, other namespaces, and objects that were there before.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use xtask::{
    cluster::{Etcdctl, SYSTEM},
    poll,
};

use crate::world::{
    CONFIG_MAP, GRANT, Kind, Place, SECRET, SERVICE, Tenant, WAIT, arguments, cluster, kube, namespace,
};

fn grant(namespace: &str, from: &str, targets: Value) -> Result<Place> {
    kube()?.create(
        &GRANT,
        &json!({
            "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdProxyGrant",
            "metadata": {"namespace": namespace, "name": "grant"},
            "spec": {"from": [{"namespace": from, "etcdProxy": "db"}], "targets": targets},
        }),
    )?;
    Ok(Place::new(&GRANT, namespace, "grant"))
}

/// The common names that a tenant's proxies accept.
fn accepted(tenant: &Tenant) -> Result<String> {
    let arguments = arguments(&tenant.deployment()?);
    let found = arguments.iter().find_map(|argument| argument.strip_prefix("--client-cert-allowed-cn="));
    found.map(str::to_owned).with_context(|| format!("{arguments:?}"))
}

#[test]
fn another_namespace_has_its_client_for_as_long_as_it_consents() -> Result<()> {
    namespace("consenting")?;
    let targets = json!([{"kind": "Secret", "name": "reader"}, {"kind": "ConfigMap", "name": "reader-ca"}]);
    let consent = grant("consenting", "sharing", targets.clone())?;
    let client =
        json!({"name": "reader", "namespace": "consenting", "secretName": "reader", "configMapName": "reader-ca"});
    let tenant = Tenant::create("sharing", "db", json!({"clients": [client]}))?;
    tenant.wait("CertificatesValid", "True", "Issued")?;
    let given = [Place::new(&SECRET, "consenting", "reader"), Place::new(&CONFIG_MAP, "consenting", "reader-ca")];
    given.iter().try_for_each(|place| place.get().map(drop))?;
    assert_eq!(accepted(&tenant)?, "sharing/db/default,sharing/db/reader");

    // It is a client as good as the tenant's own.
    let cluster = cluster()?;
    let node = cluster.node()?;
    let mut proxy = tenant.run()?;
    let reader = Etcdctl::new(&cluster.tools, proxy.endpoint_of(node, "consenting", "reader")?)?;
    let own = proxy.etcdctl(node, &cluster.tools)?;
    own.ok(&["put", "from", "sharing"])?;
    ensure!(reader.ok(&["get", "from", "--print-value-only"])?.trim() == "sharing");

    let own_secret = Place::new(&SECRET, "sharing", "db-etcd-client");
    let before = own_secret.get()?["metadata"]["resourceVersion"].clone();
    consent.delete()?;
    let message = tenant.wait("CertificatesValid", "False", "GrantMissing")?;
    ensure!(message.contains("spec.clients[0].namespace") && message.contains("consenting"), "{message}");
    given.iter().try_for_each(Place::wait_gone)?;
    poll::until("the client to be accepted no more", WAIT, || {
        ensure!(accepted(&tenant)? == "sharing/db/default");
        Ok(())
    })?;
    // Nor by the proxy, once it is as its Deployment says; the tenant's own client goes on as it was.
    ensure!(proxy.sync(node)?);
    let refused = reader.run(&["--dial-timeout=3s", "--command-timeout=3s", "get", "from"])?;
    ensure!(!refused.status.success(), "{refused:?}");
    ensure!(own.ok(&["get", "from", "--print-value-only"])?.trim() == "sharing");
    ensure!(own_secret.get()?["metadata"]["resourceVersion"] == before, "the tenant's own certificate was touched");
    tenant.wait("Degraded", "True", "GrantMissing")?;

    // For one of two objects is not enough.
    let half = grant("consenting", "sharing", json!([{"kind": "Secret", "name": "reader"}]))?;
    tenant.touch()?;
    tenant.wait("CertificatesValid", "False", "GrantMissing")?;
    ensure!(given[0].find()?.is_none());
    half.delete()?;
    grant("consenting", "sharing", targets)?;
    tenant.wait("CertificatesValid", "True", "Issued")?;
    poll::until("the client's things", WAIT, || given.iter().try_for_each(|place| place.get().map(drop)))
}

/// The consent comes first in the file, and the webhook knows of it at once.
#[test]
fn the_example_with_further_clients_is_accepted_in_one_go() -> Result<()> {
    let kubectl = cluster()?.kubectl().in_folder(e2e::examples());
    for name in ["team-c", "reporting"] {
        namespace(name)?;
    }
    kubectl.ok(&["apply", "-f", "etcdproxy/clients.yaml"])?;
    let issued =
        ["wait", "etcdproxy/shared", "--namespace=team-c", "--for=condition=CertificatesValid", "--timeout=90s"];
    kubectl.ok(&issued)?;
    Place::new(&SECRET, "reporting", "team-c-etcd").get()?;
    Place::new(&CONFIG_MAP, "reporting", "team-c-etcd-ca").get().map(drop)
}

#[test]
fn what_was_there_before_is_never_taken_over() -> Result<()> {
    namespace("occupied")?;
    let foreign = |kind: &'static Kind, name: &str, further: Value| -> Result<(Place, Value)> {
        let mut object = json!({
            "apiVersion": "v1", "kind": kind.name,
            // Labelled as if it were ours: the uid is what counts.
            "metadata": {"namespace": "occupied", "name": name, "labels": {"app.kubernetes.io/managed-by": "proxy-controller"}},
        });
        if let (Some(object), Value::Object(further)) = (object.as_object_mut(), further) {
            object.extend(further);
        }
        let made = kube()?.create(kind, &object)?;
        Ok((Place::new(kind, "occupied", name), made))
    };
    let occupied = [
        foreign(&SECRET, "db-etcd-client", json!({"data": {"theirs": "dGhlaXJz"}}))?,
        foreign(&CONFIG_MAP, "db-etcd-ca", json!({"data": {"theirs": "theirs"}}))?,
        foreign(&SECRET, "mine", json!({"data": {"theirs": "dGhlaXJz"}}))?,
        foreign(&SERVICE, "db-etcd", json!({"spec": {"type": "ExternalName", "externalName": "theirs.example.com"}}))?,
    ];
    let clients = json!([{"name": "a", "secretName": "mine"}, {"name": "b"}]);
    let tenant = Tenant::create("occupied", "db", json!({"clients": clients}))?;
    let message = tenant.wait("CertificatesValid", "False", "TargetExists")?;
    for name in ["Secret occupied/db-etcd-client", "Secret occupied/mine"] {
        ensure!(message.contains(name), "{name} is not in: {message}");
    }
    let message = tenant.wait("Ready", "False", "TargetExists")?;
    ensure!(message.contains("Service occupied/db-etcd"), "{message}");
    // What is free is made all the same.
    Place::new(&SECRET, "occupied", "db-etcd-b").get()?;
    tenant.deployment()?;
    for (place, before) in &occupied {
        assert_eq!(place.get()?, *before, "{place} was changed");
    }
    // Away with it, and it is made.
    for (place, _) in &occupied {
        place.delete()?;
    }
    tenant.touch()?;
    tenant.wait_provided()?;
    tenant.wait("CertificatesValid", "True", "Issued")?;
    let made = tenant.made()?;
    for (place, _) in &occupied {
        ensure!(made.contains_key(place), "{place} is not there");
    }
    // What comes into the place of an object of ours is foreign, too: the end of the EtcdProxy leaves it.
    let (place, _) = &occupied[2];
    let other = poll::until("somebody else's to stand in the place", WAIT, || {
        place.delete()?;
        foreign(&SECRET, "mine", json!({"data": {"theirs": "dGhlaXJz"}}))
    })?;
    tenant.touch()?;
    tenant.wait("CertificatesValid", "False", "TargetExists")?;
    tenant.delete()?;
    tenant.place().wait_gone()?;
    assert_eq!(place.get()?, other.1);
    Ok(())
}

#[test]
fn a_client_that_is_listed_no_more_loses_everything() -> Result<()> {
    let clients = json!([{"name": "a", "configMapName": "a-ca"}, {"name": "b"}]);
    let tenant = Tenant::create("fewer", "db", json!({"clients": clients}))?;
    tenant.wait("CertificatesValid", "True", "Issued")?;
    let of_a = [Place::new(&SECRET, "fewer", "db-etcd-a"), Place::new(&CONFIG_MAP, "fewer", "a-ca")];
    let of_b = Place::new(&SECRET, "fewer", "db-etcd-b");
    of_a.iter().chain([&of_b]).try_for_each(|place| place.get().map(drop))?;
    tenant.patch(json!({"clients": [{"name": "b"}]}))?;
    of_a.iter().try_for_each(Place::wait_gone)?;
    of_b.get()?;
    poll::until("the arguments", WAIT, || {
        ensure!(accepted(&tenant)? == "fewer/db/default,fewer/db/b");
        Ok(())
    })?;
    // With other replicas come and go a budget.
    let base = tenant.base()?;
    let budget =
        || Ok::<_, anyhow::Error>(tenant.made()?.into_keys().find(|place| place.kind.name == "PodDisruptionBudget"));
    ensure!(budget()?.is_none());
    tenant.patch(json!({"replicas": 2}))?;
    let found = poll::until("a budget", WAIT, || budget()?.context("there is none"))?;
    assert_eq!((found.namespace.as_str(), &found.name), (SYSTEM, &base));
    tenant.patch(json!({"replicas": 1}))?;
    found.wait_gone()
}
