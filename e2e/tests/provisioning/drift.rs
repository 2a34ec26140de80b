//! Whatever somebody does to an object that was made for an EtcdProxy, it becomes again what it is to be.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use xtask::{cluster::SYSTEM, poll};

use crate::world::{GRANT, MADE, Place, Tenant, UID_LABEL, WAIT, essence, kube, namespace};

/// Who writes what the controller makes.
const MANAGER: &str = "proxy-controller";

/// A change to an object of each kind that would do harm.
fn edit(place: &Place, object: &Value) -> Value {
    match place.kind.name {
        "ServiceAccount" => json!({"automountServiceAccountToken": true}),
        // The file of the CA's state is no drift but damage, and told as such.
        "Secret" if place.name.ends_with("-ca") => {
            json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "somebody"}}})
        }
        // "elsewhere"
        "Secret" => json!({"data": {"ca.crt": "ZWxzZXdoZXJl", "tls.crt": "ZWxzZXdoZXJl"}}),
        "ConfigMap" => json!({"data": {"ca.crt": "elsewhere"}}),
        "Service" if object["spec"]["type"] == "ExternalName" => {
            json!({"spec": {"externalName": "elsewhere.example.com"}})
        }
        "Service" => json!({"spec": {"selector": {UID_LABEL: "elsewhere"}}}),
        "NetworkPolicy" => json!({"spec": {"ingress": [{}]}}),
        "PodDisruptionBudget" => json!({"spec": {"maxUnavailable": 7}}),
        _ => {
            json!({"spec": {"replicas": 0, "template": {"spec": {"containers": [{"name": "etcd-proxy", "image": "elsewhere"}]}}}})
        }
    }
}

/// A tenant with an object of every kind, and in two namespaces.
fn full(name: &str, readers: &str) -> Result<Tenant> {
    namespace(readers)?;
    kube()?.create(
        &GRANT,
        &json!({
            "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdProxyGrant",
            "metadata": {"namespace": readers, "name": "grant"},
            "spec": {
                "from": [{"namespace": name, "etcdProxy": "db"}],
                "targets": [{"kind": "Secret", "name": "reader"}, {"kind": "ConfigMap", "name": "reader-ca"}],
            },
        }),
    )?;
    let client = json!({"name": "reader", "namespace": readers, "secretName": "reader", "configMapName": "reader-ca"});
    let tenant = Tenant::create(name, "db", json!({"replicas": 2, "clients": [client]}))?;
    tenant.wait_provided()?;
    tenant.wait("CertificatesValid", "True", "Issued")?;
    Ok(tenant)
}

#[test]
fn whatever_is_edited_stripped_of_labels_or_deleted_is_made_right_again() -> Result<()> {
    let tenant = full("drift", "drift-readers")?;
    let made = tenant.made()?;
    ensure!(made.len() == 12, "{:?}", made.keys());
    ensure!(MADE.iter().all(|kind| made.keys().any(|place| place.kind == *kind)), "{:?}", made.keys());
    let repaired = |place: &Place, wanted: &Value, how: &str| {
        poll::until(&format!("{place}, {how}, to be repaired"), WAIT, || {
            let found = essence(&place.get()?);
            ensure!(found == *wanted, "{found}\n is to be\n{wanted}");
            Ok(())
        })
    };
    // What was written within the same second cannot be told from what was repaired in it.
    poll::until("what was made to be a second old", WAIT, || {
        for (place, object) in tenant.made()? {
            let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
            let written = entries.iter().find(|entry| entry["manager"] == MANAGER && entry["operation"] == "Apply");
            let Some(written) = written.and_then(|entry| entry["time"].as_str()) else { continue };
            let written: jiff::Timestamp = written.parse()?;
            ensure!(written.as_second() + 1 < jiff::Timestamp::now().as_second(), "{place}: {written}");
        }
        Ok(())
    })?;
    let mut repairs = 0;
    for (place, object) in &made {
        let wanted = essence(object);
        place.patch(&edit(place, object))?;
        repaired(place, &wanted, "edited")?;
        place.patch(&json!({"metadata": {"labels": null, "annotations": null}}))?;
        repaired(place, &wanted, "stripped")?;
        repairs += 2;
        if is_ca(place) {
            continue;
        }
        let uid = place.get()?["metadata"]["uid"].clone();
        place.delete()?;
        poll::until(&format!("{place} to be made again"), WAIT, || {
            ensure!(place.get()?["metadata"]["uid"] != uid, "it is the old one");
            Ok(())
        })?;
        repaired(place, &wanted, "deleted")?;
        repairs += 1;
    }
    assert_eq!(repairs, 12 * 3 - 1);
    ensure!(tenant.made()?.keys().eq(made.keys()), "{:?}", tenant.made()?.keys());
    tenant.wait_provided()?;
    tenant.wait("CertificatesValid", "True", "Issued")?;
    // Of all that nothing is told but what was repaired.
    poll::until("the repairs to be told", WAIT, || {
        let told = kube()?.events("drift", &tenant.uid)?;
        for reason in ["PrefixClaimed", "DeploymentUnavailable"] {
            ensure!(told.get(reason).is_some_and(|notes| notes.len() == 1), "{told:?}");
        }
        let repaired = told.get("Repaired").context("nothing")?;
        for place in made.keys().filter(|place| !is_ca(place)) {
            for what in [
                "was changed by somebody else and is again as it is to be",
                "was deleted by somebody else and is made again",
            ] {
                ensure!(repaired.contains(&format!("{place} {what}")), "{place} {what}: {repaired:#?}");
            }
        }
        Ok(())
    })
}

fn is_ca(place: &Place) -> bool {
    place.kind.name == "Secret" && place.namespace == SYSTEM && place.name.ends_with("-ca")
}

/// As the documentation tells operators who want to lock somebody out.
#[test]
fn a_deleted_ca_is_followed_by_another_everywhere() -> Result<()> {
    let tenant = full("lost-ca", "lost-ca-readers")?;
    let bundles = || -> Result<Vec<String>> {
        let mut bundles = Vec::new();
        for (place, object) in tenant.made()?.into_iter().filter(|(place, _)| !is_ca(place)) {
            let Some(bundle) = object.pointer("/data/ca.crt").and_then(Value::as_str) else { continue };
            let bundle = match place.kind.name {
                "Secret" => {
                    use base64::{Engine as _, engine::general_purpose::STANDARD};
                    String::from_utf8(STANDARD.decode(bundle)?)?
                }
                _ => bundle.to_owned(),
            };
            bundles.push(bundle);
        }
        ensure!(bundles.len() == 5, "serving, two clients, and a ConfigMap of each: {}", bundles.len());
        bundles.dedup();
        Ok(bundles)
    };
    let before = bundles()?;
    ensure!(before.len() == 1, "{before:?}");
    let ca = tenant.made()?.into_keys().find(is_ca).context("there is no CA")?;
    ca.delete()?;
    poll::until("a new CA everywhere", WAIT, || {
        let after = bundles()?;
        ensure!(after.len() == 1 && after != before, "{after:?}");
        Ok(())
    })?;
    tenant.wait("CertificatesValid", "True", "Issued").map(drop)
}
