//! Mode Sidecar: what the controller writes is enough for a proxy beside the tenant, and goes when it is no longer permitted.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use xtask::{
    cluster::{http_get, mounts::Projection, own_program},
    poll,
    process::{Process, Spec},
    site::free_port,
};

use crate::world::{CONFIG_MAP, Place, SECRET, Tenant, WAIT, cluster, kube, patch_upstream, upstream};

/// Where the documentation has the Secret mounted.
const MOUNTED: &str = "/etc/etcd-proxy/upstream-client/";

#[test]
fn a_sidecar_serves_from_what_is_written_until_it_is_forbidden() -> Result<()> {
    upstream("trusting", json!({"allowSidecarCredentials": true}))?;
    let spec = json!({"upstreamRef": {"name": "trusting"}, "mode": "Sidecar", "limits": {"keys": 2}});
    let tenant = Tenant::create("sidecar", "db", spec)?;
    tenant.wait("Ready", "True", "SidecarConfigured")?;
    tenant.wait("CertificatesValid", "True", "NotUsed")?;
    let written =
        [Place::new(&CONFIG_MAP, "sidecar", "db-etcd-sidecar"), Place::new(&SECRET, "sidecar", "db-etcd-sidecar")];
    ensure!(tenant.made()?.keys().eq(&written), "{:?}", tenant.made()?.keys());

    // Exactly that environment; replaced are only the ports, which others may have here, and the folder of the Secret.
    let cluster = cluster()?;
    let files = cluster.node()?.files(Projection::secret("sidecar", "db-etcd-sidecar"))?;
    let (client, metrics) = (free_port()?, free_port()?);
    let mut replaced = BTreeMap::new();
    let config = written[0].get()?;
    let mut spec = Spec::new("sidecar", own_program("etcd-proxy")?).arg("serve");
    for (name, value) in config["data"].as_object().context("no data")? {
        let value = value.as_str().context("no text")?;
        let local = match (name.as_str(), value) {
            ("ETCD_PROXY_LISTEN_CLIENT_URLS", "http://127.0.0.1:2379") => format!("http://127.0.0.1:{client}"),
            ("ETCD_PROXY_LISTEN_METRICS_URLS", "http://0.0.0.0:2381") => format!("http://127.0.0.1:{metrics}"),
            _ => match value.strip_prefix(MOUNTED) {
                Some(file) => files.join(file).to_string_lossy().into_owned(),
                None => value.to_owned(),
            },
        };
        if local != value {
            replaced.insert(name.as_str(), value);
        }
        spec = spec.env(name, local);
    }
    assert_eq!(replaced.len(), 5, "{replaced:?}");
    let proxy = Process::spawn(&cluster.site, spec)?;
    proxy.wait_until("the sidecar to be ready", WAIT, || {
        http_get(&format!("http://127.0.0.1:{metrics}/readyz")).map(drop)
    })?;
    kube()?.block_on(async {
        let mut etcd = etcd_client::Client::connect([format!("http://127.0.0.1:{client}")], None).await?;
        etcd.put("a", "1", None).await?;
        etcd.put("b", "1", None).await?;
        let refused = etcd.put("c", "1", None).await.err().context("a third key is against the limit")?;
        ensure!(refused.to_string().contains("database space exceeded"), "{refused}");
        Ok::<_, anyhow::Error>(())
    })?;
    let prefix = tenant.prefix()?;
    assert_eq!(cluster.etcd.etcdctl().keys(&prefix)?, [format!("{prefix}a"), format!("{prefix}b")]);

    patch_upstream("trusting", json!({"allowSidecarCredentials": false}))?;
    let message = tenant.wait("Ready", "False", "UpstreamAuthRequired")?;
    ensure!(message.contains("spec.mode") && message.contains("allowSidecarCredentials"), "{message}");
    written.iter().try_for_each(Place::wait_gone)?;
    ensure!(tenant.made()?.is_empty(), "{:?}", tenant.made()?.keys());
    // The data is the tenant's all the same, and it is served again when that is permitted again.
    patch_upstream("trusting", json!({"allowSidecarCredentials": true}))?;
    tenant.wait("Ready", "True", "SidecarConfigured")?;
    ensure!(tenant.prefix()? == prefix);
    ensure!(written[1].get()?.pointer("/data/tls.key").is_some_and(Value::is_string));
    Ok(())
}

#[test]
fn a_change_from_sidecar_to_deployment_takes_the_credential_away() -> Result<()> {
    upstream("trusting-for-now", json!({"allowSidecarCredentials": true}))?;
    let spec = json!({"upstreamRef": {"name": "trusting-for-now"}, "mode": "Sidecar"});
    let tenant = Tenant::create("moving", "db", spec)?;
    tenant.wait("Ready", "True", "SidecarConfigured")?;
    let prefix = tenant.prefix()?;
    tenant.patch(json!({"mode": "Deployment"}))?;
    tenant.wait_provided()?;
    Place::new(&SECRET, "moving", "db-etcd-sidecar").wait_gone()?;
    Place::new(&CONFIG_MAP, "moving", "db-etcd-sidecar").wait_gone()?;
    poll::until("the Deployment's objects", WAIT, || {
        let made = tenant.made()?;
        ensure!(made.len() == 9, "{:?}", made.keys());
        Ok(())
    })?;
    ensure!(tenant.prefix()? == prefix);
    Ok(())
}
