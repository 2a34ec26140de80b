//! What somebody left goes to whom the operator named, and to nobody else.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use xtask::site::free_port;

use crate::world::{Tenant, claimed_for, cluster, fill, patch_upstream, stored, upstream};

#[test]
fn retained_data_is_only_whose_the_operator_named() -> Result<()> {
    let prefix = "/wishes/retained/";
    upstream("inheritance", json!({"allowedPrefixes": ["/wishes/retained/"]}))?;
    // The same etcd for an operator whose address of it is wrong at first: so the webhook cannot know what the prefix holds,
    // and what is refused here is refused by the reconciler.
    let endpoints = cluster()?.kubectl().json(&["get", "etcdupstream", "default"])?["spec"]["endpoints"].clone();
    let nowhere = format!("https://127.0.0.1:{}", free_port()?);
    upstream("inheritance-late", json!({"allowedPrefixes": ["/wishes/retained/"], "endpoints": [nowhere]}))?;

    let first = Tenant::create("heirs-a", "db", json!({"upstreamRef": {"name": "inheritance"}, "prefix": prefix}))?;
    first.wait_provided()?;
    assert_eq!(first.prefix()?, prefix);
    fill(prefix, 70)?;
    first.delete()?;
    first.place().wait_gone()?;

    // Known to the webhook: refused at once, the same name and namespace being no title.
    for (namespace, name) in [("heirs-a", "db"), ("heirs-b", "db")] {
        let refused =
            Tenant::create(namespace, name, json!({"upstreamRef": {"name": "inheritance"}, "prefix": prefix}));
        let Err(error) = refused.map(drop) else { anyhow::bail!("{namespace}/{name} was admitted") };
        let error = format!("{error:#}");
        ensure!(error.contains("spec.prefix: Forbidden: holds what an object that is gone has left"), "{error}");
        ensure!(error.contains("spec.adoptions"), "{error}");
    }
    // Unknown to it: the claim decides.
    let late = json!({"upstreamRef": {"name": "inheritance-late"}, "prefix": prefix});
    let again = Tenant::create("heirs-a", "db", late.clone())?;
    let other = Tenant::create("heirs-b", "db", late)?;
    for one in [&again, &other] {
        one.wait("Ready", "False", "UpstreamUnreachable")?;
    }
    patch_upstream("inheritance-late", json!({"endpoints": endpoints}))?;
    for one in [&again, &other] {
        one.touch()?;
        let message = one.wait("Ready", "False", "PrefixHoldsData")?;
        ensure!(
            message.contains("holds what an object that is gone has left") && message.contains("spec.adoptions"),
            "{message}"
        );
        ensure!(one.object()?["status"]["prefix"].is_null() && one.made()?.is_empty());
    }
    // Named, but not quite.
    let adoption =
        |prefix: &str, namespace: &str, name: &str| json!({"prefix": prefix, "namespace": namespace, "name": name});
    let adoptions = [
        adoption("/wishes/", "heirs-b", "db"),
        adoption("/wishes/retained/x/", "heirs-b", "db"),
        adoption(prefix, "heirs-b", "db2"),
        adoption(prefix, "heirs", "db"),
    ];
    patch_upstream("inheritance-late", json!({"adoptions": adoptions}))?;
    other.touch()?;
    other.wait("Ready", "False", "PrefixHoldsData")?;
    assert_eq!((stored(prefix)?.0, claimed_for(prefix)?), (70, Some(first.uid.clone())));

    patch_upstream("inheritance-late", json!({"adoptions": [adoption(prefix, "heirs-b", "db")]}))?;
    other.wait_provided()?;
    assert_eq!((other.prefix()?.as_str(), stored(prefix)?.0), (prefix, 70));
    assert_eq!(claimed_for(prefix)?, Some(other.uid.clone()));
    // Who was not named reads that it is taken now, and not by whom.
    again.touch()?;
    let message = again.wait("Ready", "False", "PrefixTaken")?;
    ensure!(message.contains("is claimed already") && !message.contains("heirs-b"), "{message}");
    assert_eq!(claimed_for(prefix)?, Some(other.uid));
    Ok(())
}

#[test]
fn keys_that_nobody_claims_are_not_given_away_either() -> Result<()> {
    let prefix = "/wishes/unclaimed/";
    upstream("unclaimed", json!({"allowedPrefixes": ["/wishes/unclaimed/"]}))?;
    fill(prefix, 7)?;
    let spec = json!({"upstreamRef": {"name": "unclaimed"}, "prefix": prefix, "deletionPolicy": "Delete"});
    let tenant = Tenant::create("unclaimed", "db", spec)?;
    let message = tenant.wait("Ready", "False", "PrefixHoldsData")?;
    ensure!(message.contains("7 keys"), "{message}");
    ensure!(claimed_for(prefix)?.is_none() && tenant.made()?.is_empty());
    let conditions = tenant.conditions()?;
    ensure!(conditions.get("UpstreamReachable").is_some_and(|(status, ..)| status == "True"), "{conditions:?}");
    // Nor are they deleted for one who never had them.
    tenant.delete()?;
    tenant.place().wait_gone()?;
    assert_eq!(stored(prefix)?.0, 7);

    let adoptions: Value = json!([{"prefix": prefix, "namespace": "unclaimed", "name": "db"}]);
    patch_upstream("unclaimed", json!({"adoptions": adoptions}))?;
    let heir = Tenant::create("unclaimed", "db", json!({"upstreamRef": {"name": "unclaimed"}, "prefix": prefix}))?;
    heir.wait_provided()?;
    assert_eq!((stored(prefix)?.0, claimed_for(prefix)?), (7, Some(heir.uid)));
    Ok(())
}
