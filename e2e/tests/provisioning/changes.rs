//! A changed limit, image or validity reaches what runs.

use anyhow::{Context, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use x509_parser::{pem::parse_x509_pem, time::ASN1Time};
use xtask::{cluster::SYSTEM, poll};

use crate::world::{Place, SECRET, Tenant, WAIT, arguments, cluster, patch_upstream, upstream};

fn image(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]["containers"][0]["image"]
}

#[test]
fn a_changed_limit_or_image_rolls_out() -> Result<()> {
    upstream("changing", json!({}))?;
    let spec = json!({"upstreamRef": {"name": "changing"}, "limits": {"keys": 100}});
    let tenant = Tenant::create("changing", "db", spec)?;
    tenant.wait_provided()?;
    let cluster = cluster()?;
    let node = cluster.node()?;
    let mut proxy = tenant.run()?;
    let etcdctl = proxy.etcdctl(node, &cluster.tools)?;
    ensure!(arguments(&tenant.deployment()?).contains(&"--quota-keys=100".to_owned()));
    ensure!(!proxy.sync(node)?, "nothing changed, and it rolls");
    for key in ["a", "b"] {
        etcdctl.ok(&["put", key, "1"])?;
    }
    let generation = |deployment: &Value| deployment["metadata"]["generation"].as_i64();
    let before = generation(&tenant.deployment()?);
    let wait = |what: &str, holds: &dyn Fn(&Value) -> bool| {
        poll::until(what, WAIT, || {
            let deployment = tenant.deployment()?;
            ensure!(holds(&deployment), "{:?}", deployment["spec"]["template"]);
            Ok(deployment)
        })
    };
    // The tenant's own limit.
    tenant.patch(json!({"limits": {"keys": 2}}))?;
    let deployment = wait("the new limit", &|found| arguments(found).contains(&"--quota-keys=2".to_owned()))?;
    ensure!(generation(&deployment) > before);
    ensure!(proxy.sync(node)?);
    let refused = etcdctl.run(&["put", "c", "1"])?;
    ensure!(refused.stderr.contains("database space exceeded"), "{refused:?}");
    etcdctl.ok(&["put", "a", "2"])?;
    // What the operator gives to all who say nothing, and an image.
    let defaults = json!({"image": "registry.example.com/etcd-proxy:9.9.9", "limits": {"watches": 77}});
    patch_upstream("changing", json!({"defaults": defaults}))?;
    let deployment = wait("the operator's defaults", &|found| {
        *image(found) == "registry.example.com/etcd-proxy:9.9.9"
            && arguments(found).contains(&"--max-watches=77".to_owned())
    })?;
    ensure!(arguments(&deployment).contains(&"--quota-keys=2".to_owned()), "{:?}", arguments(&deployment));
    // A most that is lowered cuts what was permitted before, and says so.
    tenant.patch(json!({"limits": {"keys": 100}}))?;
    wait("the old limit again", &|found| arguments(found).contains(&"--quota-keys=100".to_owned()))?;
    patch_upstream("changing", json!({"maxLimits": {"keys": 50}}))?;
    wait("the limit cut", &|found| arguments(found).contains(&"--quota-keys=50".to_owned()))?;
    tenant.wait("Degraded", "True", "LimitsNotAllowed").map(drop)
}

/// The validity of the first certificate of a Secret.
fn validity(place: &Place) -> Result<(ASN1Time, ASN1Time)> {
    let secret = place.get()?;
    let chain = STANDARD.decode(secret.pointer("/data/tls.crt").and_then(Value::as_str).context("no tls.crt")?)?;
    let (_, pem) = parse_x509_pem(&chain)?;
    let certificate = pem.parse_x509()?;
    Ok((certificate.validity().not_before, certificate.validity().not_after))
}

/// A changed validity applies to the certificates that are there, too.
#[test]
fn a_changed_validity_gives_new_certificates() -> Result<()> {
    let tenant = Tenant::create("validity", "db", json!({"clients": [{"name": "other"}]}))?;
    tenant.wait_provided()?;
    let places = [
        Place::new(&SECRET, SYSTEM, format!("{}-serving", tenant.base()?)),
        Place::new(&SECRET, "validity", "db-etcd-client"),
        Place::new(&SECRET, "validity", "db-etcd-other"),
    ];
    let day = 24 * 3600;
    for (spec, days) in [("2160h", 90), ("48h", 2), ("720h", 30)] {
        tenant.patch(json!({"tls": {"validity": spec}}))?;
        let latest = poll::until(&format!("certificates of {spec}"), WAIT, || {
            let mut first = i64::MAX;
            for place in &places {
                let (not_before, not_after) = validity(place)?;
                let seconds = not_after.timestamp() - not_before.timestamp();
                // They begin a little earlier than now, for clocks that are behind.
                ensure!((days * day..days * day + 3 * 3600).contains(&seconds), "{place} is valid for {seconds} s");
                first = first.min(not_after.timestamp());
            }
            Ok(first)
        })?;
        let latest = ASN1Time::from_timestamp(latest)?.to_datetime();
        let rfc3339 = format!(
            "{}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
            latest.year(),
            u8::from(latest.month()),
            latest.day(),
            latest.hour(),
            latest.minute(),
            latest.second(),
        );
        poll::until("the status to tell", WAIT, || {
            let object = tenant.object()?;
            let told = &object["status"]["certificates"]["notAfter"];
            ensure!(*told == rfc3339, "{told} and not {rfc3339}");
            Ok(())
        })?;
    }
    Ok(())
}
