//! What several replicas share on a real API server, with the shipped rights: the lead, the webhook's certificate and the
//! caBundle. The controller as a whole is tested end to end elsewhere.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use etcd_proxy::tls::ServerTlsSource as _;
use k8s_openapi::{ByteString, api::core::v1::ConfigMap};
use kube::{Api, api::PostParams, config::Kubeconfig};
use proxy_controller::{
    leader::{Election, ElectionConfig, LeaderMetrics, Leadership, Times},
    metrics::RequestMetrics,
    serving::{WebhookCertificate, WebhookIdentity, WebhookMetrics},
};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;
use xtask::{
    cluster::{Etcd, KubeApiserver, Kubectl},
    poll, root,
    site::{self, Site},
    tools::{Tool, Tools},
};

const NAMESPACE: &str = "etcd-proxy-system";
const ACCOUNT: &str = "proxy-controller";
const SECRET: &str = "proxy-controller-webhook";
const CONFIGURATION: &str = "proxy-controller";
const NAME: &str = "proxy-controller-webhook.etcd-proxy-system.svc";
/// For what takes a watch event and a request or two.
const SOON: Duration = Duration::from_secs(20);

/// An API server with the controller's account in it.
struct Cluster {
    admin: Kubectl,
    config: kube::Config,
    _apiserver: KubeApiserver,
    _etcd: Etcd,
    site: Site,
}

impl Cluster {
    async fn start() -> Result<Self> {
        site::end_abandoned(&site::of_tests())?;
        let site = Site::create(&site::of_tests().join("replicas"))?;
        let tools = Tools::of_test();
        let etcd = Etcd::start(&site, &tools, Tool::Etcd)?;
        let apiserver = KubeApiserver::start(&site, &tools, &etcd)?;
        let admin = apiserver.admin().clone();
        for file in ["namespace.yaml", "rbac.yaml"] {
            apply(&admin, file)?;
        }
        let kubeconfig = apiserver.service_account_kubeconfig(&site, NAMESPACE, ACCOUNT)?;
        let config =
            kube::Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &Default::default()).await?;
        Ok(Self { admin, config, _apiserver: apiserver, _etcd: etcd, site })
    }

    fn client(&self) -> kube::Client {
        RequestMetrics::default().client(self.config.clone()).unwrap()
    }
}

fn apply(admin: &Kubectl, file: &str) -> Result<()> {
    let path = root().join("manifests/controller").join(file);
    admin.ok(&["apply", "-f", path.to_str().context("a path that is no text")?]).map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicas_share_the_lead_and_the_certificate() -> Result<()> {
    _ = rustls::crypto::ring::default_provider().install_default();
    let cluster = Cluster::start().await?;
    certificate(&cluster).await.context("the certificate")?;
    election(&cluster).await.context("the election")?;
    let Cluster { site, _apiserver, _etcd, .. } = cluster;
    drop((_apiserver, _etcd));
    site.remove()
}

async fn certificate(cluster: &Cluster) -> Result<()> {
    let admin = &cluster.admin;
    let stop = CancellationToken::new();
    let identity = WebhookIdentity { namespace: NAMESPACE.to_owned(), service: "proxy-controller-webhook".to_owned() };
    // All at once, and nothing is there: one of them makes the Secret.
    let replicas: Vec<_> = (0..3)
        .map(|_| {
            let replica = WebhookCertificate::new(cluster.client(), &identity, WebhookMetrics::default());
            let (follower, stop) = (replica.clone(), stop.clone());
            tokio::spawn(async move { follower.follow(&stop).await });
            replica
        })
        .collect();
    let lead = |number: usize| {
        let (replica, client, leading) = (replicas[number].clone(), cluster.client(), stop.child_token());
        let token = leading.clone();
        tokio::spawn(async move { replica.keep(client, CONFIGURATION, &token).await });
        leading
    };
    for replica in &replicas {
        timeout(SOON, replica.loaded()).await?.context("no certificate")?;
    }
    let leading = lead(0);
    // What is not there yet is not an error.
    apply(admin, "webhook.yaml")?;
    let first = published(admin, |bundle| count(bundle) == 1)?;
    all_trusted(&replicas, &first).await?;
    ensure!(owned(admin)? == ["caBundle"], "the controller owns more than the bundle: {:?}", owned(admin)?);

    // Applying the manifest again takes nothing away, and what somebody writes there is corrected.
    apply(admin, "webhook.yaml")?;
    published(admin, |bundle| bundle == first)?;
    let garbage =
        json!([{ "op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": ByteString(b"-".to_vec()) }]);
    for patch in
        [garbage.to_string(), json!([{ "op": "remove", "path": "/webhooks/0/clientConfig/caBundle" }]).to_string()]
    {
        // A bundle that holds no certificate is refused; another's is not.
        let _ =
            admin.run(&["patch", "validatingwebhookconfiguration", CONFIGURATION, "--type=json", "--patch", &patch])?;
        published(admin, |bundle| bundle == first)?;
    }
    admin.ok(&["delete", "validatingwebhookconfiguration", CONFIGURATION])?;
    apply(admin, "webhook.yaml")?;
    published(admin, |bundle| bundle == first)?;

    // Gone, it comes back; whoever trusts the old bundle still can, and a new CA is on its way.
    admin.ok(&["delete", "secret", SECRET, "--namespace", NAMESPACE])?;
    let second = published(admin, |bundle| count(bundle) == 2)?;
    for bundle in [&first, &second] {
        all_trusted(&replicas, bundle).await?;
    }
    // Damaged, it is made good, by the next leader, too.
    leading.cancel();
    let _leading = lead(1);
    for (key, value) in [("tls.crt", json!(ByteString(b"x".to_vec()))), ("signer.key", Value::Null)] {
        let patch = json!({ "data": { key: value } }).to_string();
        admin.ok(&["patch", "secret", SECRET, "--namespace", NAMESPACE, "--type=merge", "--patch", &patch])?;
        poll::until("a Secret that is whole", SOON, || {
            let secret = admin.json(&["get", "secret", SECRET, "--namespace", NAMESPACE])?;
            let now = secret.pointer(&format!("/data/{key}")).cloned().unwrap_or_default();
            ensure!(now.is_string() && now != value, "{key} is still damaged");
            Ok(())
        })?;
        all_trusted(&replicas, &first).await?;
    }
    stop.cancel();
    Ok(())
}

/// The bundle of the configuration, once it is as it should be.
fn published(admin: &Kubectl, right: impl Fn(&str) -> bool) -> Result<String> {
    poll::until("the caBundle", SOON, || {
        let object = admin.json(&["get", "validatingwebhookconfiguration", CONFIGURATION])?;
        let bundle = object.pointer("/webhooks/0/clientConfig/caBundle").cloned().context("there is none")?;
        let ByteString(bundle) = serde_json::from_value(bundle)?;
        let bundle = String::from_utf8(bundle)?;
        ensure!(right(&bundle), "it is {bundle}");
        Ok(bundle)
    })
}

fn count(bundle: &str) -> usize {
    bundle.matches("BEGIN CERTIFICATE").count()
}

/// The fields of clientConfig that the controller's field manager owns; anything that it owns elsewhere is an error.
fn owned(admin: &Kubectl) -> Result<Vec<String>> {
    let args = ["get", "validatingwebhookconfiguration", CONFIGURATION, "--show-managed-fields"];
    let object = admin.json(&args)?;
    let managed = object.pointer("/metadata/managedFields").and_then(Value::as_array).context("no managedFields")?;
    let entry =
        managed.iter().find(|entry| entry["manager"] == "proxy-controller-webhook").context("no such manager")?;
    let fields = entry["fieldsV1"].as_object().context("no fields")?;
    ensure!(fields.keys().collect::<Vec<_>>() == ["f:webhooks"], "{fields:?}");
    let webhook =
        fields["f:webhooks"].as_object().and_then(|webhooks| webhooks.values().next()).context("no webhook")?;
    let config = webhook["f:clientConfig"].as_object().context("no clientConfig")?;
    Ok(config.keys().map(|key| key.trim_start_matches("f:").to_owned()).collect())
}

/// An API server that trusts `bundle` gets through to each replica.
async fn all_trusted(replicas: &[WebhookCertificate], bundle: &str) -> Result<()> {
    for replica in replicas {
        let tls = replica.loaded().await.context("no certificate")?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(certificate?)?;
        }
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let (near, far) = tokio::io::duplex(1 << 16);
        let connector = TlsConnector::from(Arc::new(config));
        let (client, server) = tokio::join!(
            connector.connect(ServerName::try_from(NAME)?, near),
            TlsAcceptor::from(tls.server_config()).accept(far)
        );
        client.context("the client does not trust the replica")?;
        server?;
    }
    Ok(())
}

async fn election(cluster: &Cluster) -> Result<()> {
    let times = Times::new(Duration::from_secs(3), Duration::from_secs(2), Duration::from_millis(500))?;
    let (sender, mut elected) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..3 {
        let config = ElectionConfig {
            namespace: NAMESPACE.to_owned(),
            name: "proxy-controller".to_owned(),
            identity: format!("replica-{number}"),
            times,
        };
        let election = Election::new(cluster.client(), config, LeaderMetrics::default());
        let sender = sender.clone();
        tokio::spawn(async move {
            if let Some(leadership) = election.lead(&CancellationToken::new()).await {
                _ = sender.send(leadership);
            }
        });
    }
    let mut next = async || timeout(SOON, elected.recv()).await.ok().flatten().context("nobody leads");
    let first: Leadership = next().await?;
    let spec = lease(&cluster.admin)?;
    ensure!(spec["leaseTransitions"] == 0 && spec["leaseDurationSeconds"] == 3, "{spec}");
    // Several leases long it is renewed.
    let renewed = spec["renewTime"].clone();
    poll::until("a renewal", SOON, || {
        ensure!(lease(&cluster.admin)?["renewTime"] != renewed, "not renewed");
        Ok(())
    })?;
    // What the leader may write and nobody else.
    let writer = Api::<ConfigMap>::namespaced(
        first.fence().client(cluster.config.clone(), &RequestMetrics::default())?,
        NAMESPACE,
    );
    let object = |name: &str| serde_json::from_value(json!({ "metadata": { "name": name } }));
    writer.create(&PostParams::default(), &object("while-leading")?).await?;
    let before = Instant::now();
    first.release().await;
    let second = next().await?;
    ensure!(before.elapsed() < Duration::from_secs(3), "the lead was not given back: {:?}", before.elapsed());
    ensure!(writer.create(&PostParams::default(), &object("afterwards")?).await.is_err(), "written after the end");
    let names = cluster.admin.ok(&["get", "configmaps", "--namespace", NAMESPACE, "-o", "name"])?;
    ensure!(names.contains("while-leading") && !names.contains("afterwards"), "{names}");
    ensure!(lease(&cluster.admin)?["leaseTransitions"] == 1);
    // As by a crash: nobody renews and nobody gives back.
    let before = Instant::now();
    drop(second);
    let third = next().await?;
    ensure!(before.elapsed() > Duration::from_secs(1), "taken over too early: {:?}", before.elapsed());
    ensure!(lease(&cluster.admin)?["leaseTransitions"] == 2);
    third.release().await;
    let spec = lease(&cluster.admin)?;
    ensure!(spec["holderIdentity"] == "" && spec["leaseDurationSeconds"] == 1, "{spec}");
    Ok(())
}

fn lease(admin: &Kubectl) -> Result<Value> {
    let lease = admin.json(&["get", "lease", "proxy-controller", "--namespace", NAMESPACE])?;
    Ok(lease["spec"].clone())
}
