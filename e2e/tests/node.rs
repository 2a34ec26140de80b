//! What stands in for a node, tried by itself: objects made by hand, as the proxy-controller makes them. A failure here
//! is the harness', not the controller's.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use xtask::{
    cluster::{
        AggregatedServer, Binary, Cluster, Counts, Endpoint, Etcdctl, Listening, Node, Options, RESTAURANT, Storage,
        WARDLE, Writers, local_pod::ETCD_PROXY, mounts::Projection, own_program,
    },
    pki::{Ca, Identity, Request},
    poll,
    tools::Tool,
};

const SYSTEM: &str = "system";
const BASE: &str = "tenant-base";
const PREFIX: &str = "/by-hand/";
const LIMIT: Duration = Duration::from_secs(30);

fn secret(namespace: &str, name: &str, files: &[(&str, &Path)]) -> Result<Value> {
    let data = files.iter().map(|(key, path)| {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        Ok(((*key).to_owned(), STANDARD.encode(bytes).into()))
    });
    let data = data.collect::<Result<serde_json::Map<String, Value>>>()?;
    Ok(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": namespace, "name": name}, "data": data,
    }))
}

fn serving(ca: &Ca, name: &str) -> Result<Identity> {
    let host = format!("{name}.{SYSTEM}.svc");
    let names = [host.as_str(), "tenant-etcd.tenant.svc"];
    ca.issue(&Request { file: name, common_name: name, organization: None, server_names: &names, client: false })
}

fn serving_secret(ca: &Ca, identity: &Identity) -> Result<Value> {
    let files = [("tls.crt", identity.cert.as_path()), ("tls.key", &identity.key), ("ca.crt", ca.cert())];
    secret(SYSTEM, "serving", &files)
}

fn deployment(upstream: &str) -> Value {
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/etc/etcd-proxy/{name}"), "readOnly": true});
    let volume = |name: &str| json!({"name": name, "secret": {"secretName": name, "defaultMode": 288}});
    let volumes = ["serving", "upstream-ca", "upstream-client"];
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": SYSTEM, "name": BASE},
        "spec": {
            "selector": {"matchLabels": {"app": BASE}},
            "template": {
                "metadata": {"labels": {"app": BASE}},
                "spec": {
                    "serviceAccountName": BASE,
                    "containers": [{
                        "name": "etcd-proxy", "image": "etcd-proxy:0.1.0",
                        "args": [
                            "serve",
                            format!("--endpoints={upstream}"),
                            "--cacert=/etc/etcd-proxy/upstream-ca/ca.crt",
                            "--cert=/etc/etcd-proxy/upstream-client/tls.crt",
                            "--key=/etc/etcd-proxy/upstream-client/tls.key",
                            format!("--prefix={PREFIX}"),
                            "--listen-client-urls=https://0.0.0.0:2379",
                            "--listen-metrics-urls=http://0.0.0.0:2381",
                            format!("--advertise-client-urls=https://{BASE}.{SYSTEM}.svc:2379"),
                            "--cert-file=/etc/etcd-proxy/serving/tls.crt",
                            "--key-file=/etc/etcd-proxy/serving/tls.key",
                            "--trusted-ca-file=/etc/etcd-proxy/serving/ca.crt",
                            "--client-cert-auth",
                        ],
                        "ports": [{"name": "client", "containerPort": 2379}, {"name": "metrics", "containerPort": 2381}],
                        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "metrics"}},
                        "volumeMounts": volumes.map(mount),
                    }],
                    "volumes": volumes.map(volume),
                },
            },
        },
    })
}

fn services() -> [Value; 2] {
    let service = |namespace: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": namespace, "name": name}, "spec": spec,
        })
    };
    let ports = json!([{"name": "client", "port": 2379, "targetPort": "client"}]);
    let base = service(SYSTEM, BASE, json!({"selector": {"app": BASE}, "ports": ports}));
    let external = format!("{BASE}.{SYSTEM}.svc.cluster.local");
    [base, service("tenant", "tenant-etcd", json!({"type": "ExternalName", "externalName": external}))]
}

/// A pod with everything around it, made by hand.
struct Made {
    cluster: Cluster,
    node: Node,
    ca: Ca,
    pod: xtask::cluster::Pod,
    endpoint: Endpoint,
}

fn make(name: &str) -> Result<Made> {
    let cluster = Cluster::start(Options::of_test(name)?)?;
    let node = Node::start(&cluster.site, cluster.kubectl(), Duration::ZERO)?;
    let proxy = own_program("etcd-proxy")?;
    let upstream = cluster.etcd.endpoint("etcd-proxy")?;
    let claim = Command::new(&proxy)
        .args(["claim", "--prefix", PREFIX, "--owner", "tenant", "--endpoints", &upstream.url])
        .args([Path::new("--cacert"), &upstream.ca, Path::new("--cert"), &upstream.client.cert])
        .args([Path::new("--key"), &upstream.client.key])
        .status()?;
    ensure!(claim.success(), "the prefix could not be claimed");

    let ca = Ca::create(&cluster.site.pki("tenant-ca")?, "tenant-ca")?;
    let client = ca.client("tenant", None)?;
    for namespace in [SYSTEM, "tenant"] {
        cluster.kubectl().ok(&["create", "namespace", namespace])?;
    }
    let [base, external] = services();
    cluster.kubectl().apply(&[
        serving_secret(&ca, &serving(&ca, BASE)?)?,
        secret(SYSTEM, "upstream-ca", &[("ca.crt", &upstream.ca)])?,
        secret(SYSTEM, "upstream-client", &[("tls.crt", &upstream.client.cert), ("tls.key", &upstream.client.key)])?,
        secret("tenant", "client", &[("tls.crt", &client.cert), ("tls.key", &client.key), ("ca.crt", ca.cert())])?,
        base,
        external,
        deployment(&upstream.url),
    ])?;
    let deployment = cluster.kubectl().json(&["get", "deployment", BASE, "--namespace", SYSTEM])?;
    let binary = Binary { program: &ETCD_PROXY, path: proxy, listening: Listening::Machine, further: Vec::new() };
    let pod = node.run(&deployment, &binary, 0)?;
    node.publish(BASE, &pod)?;
    let files = node.files(Projection::secret("tenant", "client"))?;
    let endpoint = Endpoint {
        url: "https://tenant-etcd.tenant.svc:2379".to_owned(),
        ca: files.join("ca.crt"),
        client: Identity { cert: files.join("tls.crt"), key: files.join("tls.key") },
        proxy: Some(node.network.proxy()),
    };
    Ok(Made { cluster, node, ca, pod, endpoint })
}

const SERVICE: &str = "tenant-etcd.tenant.svc:2379";

/// Every kind of client, by the name that it has in a cluster: etcdctl, clientv3, both API servers.
#[test]
fn clients_verify_the_name_in_the_cluster() -> Result<()> {
    let made = make("node-names")?;
    let Made { cluster, node, endpoint, .. } = &made;
    let etcdctl = Etcdctl::new(&cluster.tools, endpoint.clone())?;
    etcdctl.ok(&["put", "hello", "world"])?;
    assert_eq!(etcdctl.keys("")?, ["hello"]);
    assert!(cluster.etcd.etcdctl().keys(PREFIX)?.contains(&format!("{PREFIX}hello")));

    // Another name that leads to the same place, and is not in the certificate.
    let external = format!("{BASE}.{SYSTEM}.svc");
    cluster.kubectl().apply(&[json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "tenant", "name": "other"},
        "spec": {"type": "ExternalName", "externalName": external},
    })])?;
    node.network.wait("other.tenant.svc:2379", LIMIT)?;
    let other = Endpoint { url: "https://other.tenant.svc:2379".to_owned(), ..endpoint.clone() };
    let refused =
        Etcdctl::new(&cluster.tools, other)?.run(&["--dial-timeout=5s", "--command-timeout=5s", "get", "a"])?;
    assert!(!refused.status.success(), "a certificate for another name was accepted");
    assert!(refused.stderr.contains("not other.tenant.svc"), "{}", refused.stderr);

    let address = node.network.listen(SERVICE)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let value = runtime.block_on(async {
        let mut client = e2e::etcd_client_at(endpoint, address).await?;
        let answer = client.get("hello", None).await?;
        answer.kvs().first().map(|kv| kv.value().to_vec()).context("no such key")
    })?;
    assert_eq!(value, b"world");
    // With it goes the client's connection.
    drop(runtime);

    let mut writers = Writers::start(&cluster.site, &cluster.tools, endpoint, "writers", 3, 50)?;
    poll::until("some writes", LIMIT, || {
        let writes = writers.report()?.writes;
        if writes > 30 { Ok(()) } else { bail!("{writes}") }
    })?;
    poll::until("a connection of each client and no other", LIMIT, || match node.network.counts(SERVICE) {
        Counts { open: 3, .. } => Ok(()),
        counts => bail!("{counts:?}"),
    })?;
    assert_eq!(node.network.cut(SERVICE), 3);
    let before = writers.report()?.writes;
    poll::until("writes after the cut", LIMIT, || {
        let writes = writers.report()?.writes;
        if writes > before + 60 { Ok(()) } else { bail!("{writes} after {before}") }
    })?;
    let (summary, failures) = writers.stop()?;
    assert_eq!((summary.lost, summary.failed), (0, failures.len() as u64), "{summary:?} {failures:?}");
    assert!(failures.len() <= 3, "at most the one write that was on its way on each connection: {failures:?}");
    poll::until("the writers' connections to end", LIMIT, || match node.network.counts(SERVICE) {
        Counts { open: 0, .. } => Ok(()),
        counts => bail!("{counts:?}"),
    })?;

    for (program, api) in
        [(own_program("pizza-apiserver")?, RESTAURANT), (cluster.tools.path(Tool::SampleApiserver)?, WARDLE)]
    {
        let storage = Storage { endpoint: endpoint.clone(), prefix: Some(format!("/{}", api.group)) };
        let opened = node.network.counts(SERVICE).opened;
        let server =
            AggregatedServer::start(&cluster.site, &cluster.tools, &program, &cluster.kube_apiserver, &storage, api)?;
        assert!(node.network.counts(SERVICE).opened > opened, "{} took another way", server.process.name());
    }
    made.cluster.remove()
}

/// Files follow their Secret: also through a kube-apiserver that was killed meanwhile, and not while they are held back.
#[test]
fn files_follow_their_objects() -> Result<()> {
    let made = make("node-files")?;
    let Made { cluster, node, ca, pod, endpoint, .. } = &made;
    let volume = cluster.site.path("volumes").join(&pod.local().name).join("serving");
    let state = || std::fs::read_link(volume.join("..data"));
    let renew = |name: &str| -> Result<(PathBuf, String)> {
        let before = state()?;
        let identity = serving(ca, name)?;
        cluster.kubectl().apply(&[serving_secret(ca, &identity)?])?;
        Ok((before, std::fs::read_to_string(identity.cert)?))
    };
    let delivered = |(before, expected): &(PathBuf, String)| {
        poll::until("the files", LIMIT, || {
            let text = std::fs::read_to_string(volume.join("tls.crt"))?;
            if text == *expected && state()? != *before { Ok(()) } else { bail!("they are as they were") }
        })
    };
    delivered(&renew("second")?)?;

    node.mounts.hold(true);
    let third = renew("third")?;
    poll::until("the change to be heard of", LIMIT, || {
        if node.mounts.pending(&volume) { Ok(()) } else { bail!("it was not") }
    })?;
    assert_eq!(state()?, third.0, "files changed while they were held back");
    node.mounts.hold(false);
    delivered(&third)?;

    cluster.kube_apiserver.process.kill9()?;
    cluster.kube_apiserver.process.start()?;
    cluster.kube_apiserver.wait_ready()?;
    delivered(&renew("fourth")?)?;
    // The network goes on too, and the proxy was never started again.
    Etcdctl::new(&cluster.tools, endpoint.clone())?.ok(&["put", "still", "here"])?;
    assert_eq!(pod.process.ended()?, None);

    cluster.kubectl().ok(&["delete", "secret", "serving", "--namespace", SYSTEM])?;
    poll::until("the loss to be noticed", LIMIT, || node.mounts.problem(&volume).context("nothing noticed"))?;
    assert_eq!(
        std::fs::read_to_string(volume.join("tls.crt"))?,
        std::fs::read_to_string(cluster.site.path("pki/tenant-ca/fourth.crt"))?,
        "the last files stay"
    );
    made.cluster.remove()
}
