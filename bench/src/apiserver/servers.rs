//! Both servers, running on one etcd, with the kube-apiserver that they delegate to.

use std::{
    ops::Range,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use futures::future::try_join_all;
use http::Method;
use serde_json::{Value, json};
use tokio::time::sleep;
use xtask::{
    cluster::{Etcd, KubeApiserver, MASTERS},
    pki::{Ca, Request},
    process::{self, Process, Spec},
    progress::Progress,
    site::free_port,
    tools::Tool,
};

use crate::{
    Bench,
    https::{Ask, Client},
};

/// How long a server may take to be ready.
const READY: Duration = Duration::from_secs(120);

/// How long between two looks whether it is: the resolution of the time of a start.
const LOOK: Duration = Duration::from_millis(1);

/// How many connections write the objects that are there from the start.
const SEEDERS: usize = 8;

/// The objects that a LIST answers are in this namespace, which kube-apiserver makes itself.
pub(super) const LISTED: &str = "default";

/// Further objects, to be held and not listed.
pub(super) const UNLISTED: &str = "unlisted";

/// Where loads write.
pub(super) const WRITTEN: &str = "written";

/// The host by which the aggregator knows an aggregated server.
pub(super) const HOST: &str = "api.wardle.svc";

/// One of the two.
pub(super) struct Server {
    /// Its name in tables.
    pub(super) name: &'static str,
    /// The program.
    pub(super) process: Process,
    /// The port on loopback.
    pub(super) port: u16,
    /// Asks it.
    pub(super) client: Client,
    /// The value of an annotation that makes its objects as large as the other's.
    pad: String,
}

/// Both; ours last.
pub(super) struct Servers {
    /// In the order of the tables' columns.
    pub(super) both: [Server; 2],
    ca: Ca,
    /// The server in front, for those who come by it.
    pub(super) kube_apiserver: KubeApiserver,
    /// The store of all three.
    pub(super) etcd: Etcd,
    /// Who asks.
    pub(super) token: String,
    commands: Vec<Spec>,
}

/// The path of the objects in a namespace.
pub(super) fn path(namespace: &str) -> String {
    format!("/apis/wardle.example.com/v1alpha1/namespaces/{namespace}/flunders")
}

/// The name of a seeded object.
pub(super) fn name(index: usize) -> String {
    format!("flunder-{index:06}")
}

impl Servers {
    /// Starts everything and writes the objects.
    ///
    /// # Errors
    /// When a part does not come up.
    pub(super) fn start(bench: &Bench) -> Result<Self> {
        let (site, tools) = (&bench.site, &bench.tools);
        let step = Progress::start("etcd and kube-apiserver");
        let etcd = Etcd::start(site, tools, Tool::Etcd)?;
        let kube_apiserver = KubeApiserver::start(site, tools, &etcd)?;
        let admin = kube_apiserver.admin();
        admin.apply(&[
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": UNLISTED}}),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": WRITTEN}}),
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "bench", "namespace": LISTED}}),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "bench"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "ServiceAccount", "name": "bench", "namespace": LISTED}],
            }),
        ])?;
        let token = admin.ok(&["create", "token", "bench", "--namespace", LISTED, "--duration=4h"])?.trim().to_owned();
        step.done();

        let step = Progress::start("sample-apiserver and wardle");
        let ca = Ca::create(&site.pki("wardle-ca")?, "wardle-ca")?;
        // Each with the rights of an administrator: what they may do is not what is measured.
        let start = |name, program: &Path| {
            let kubeconfig = kube_apiserver.kubeconfig(site, name, Some(MASTERS))?;
            let serving = ca.issue(&Request {
                file: name,
                common_name: HOST,
                organization: None,
                server_names: &[HOST],
                client: false,
            })?;
            let port = free_port()?;
            let endpoint = etcd.endpoint(name)?;
            let spec = Spec::new(name, program)
                .flag("etcd-servers", &endpoint.url)
                .flag("etcd-cafile", &endpoint.ca)
                .flag("etcd-certfile", &endpoint.client.cert)
                .flag("etcd-keyfile", &endpoint.client.key)
                .flag("etcd-prefix", format!("/{name}"))
                .flag("bind-address", "127.0.0.1")
                .flag("secure-port", port.to_string())
                .flag("tls-cert-file", &serving.cert)
                .flag("tls-private-key-file", &serving.key)
                .flag("kubeconfig", &kubeconfig)
                .flag("authentication-kubeconfig", &kubeconfig)
                .flag("authorization-kubeconfig", &kubeconfig);
            let process = Process::spawn(site, spec.clone())?;
            let client = Client::new(port, &ca.pem(), &token)?;
            let server = Server { name, process, port, client, pad: String::new() };
            server.wait(bench)?;
            Ok::<_, anyhow::Error>((server, spec))
        };
        let (peer, peer_spec) = start("sample-apiserver", &tools.path(Tool::SampleApiserver)?)?;
        let (mut ours, our_spec) = start("wardle", &std::env::current_exe()?.with_file_name("wardle"))?;
        step.done();

        let step = Progress::start(format!("writing {} objects to each", bench.plan.listed + bench.plan.unlisted));
        ours.pad = bench.runtime.block_on(pad(&peer, &ours))?;
        for server in [&peer, &ours] {
            step.note(server.name);
            for (namespace, objects) in [(LISTED, bench.plan.listed), (UNLISTED, bench.plan.unlisted)] {
                bench.runtime.block_on(server.seed(namespace, 0..objects))?;
            }
        }
        step.done();
        Ok(Self { both: [peer, ours], ca, kube_apiserver, etcd, token, commands: vec![peer_spec, our_spec] })
    }

    /// Indices in the order of a round: each is first in turn.
    pub(super) fn turn(round: usize) -> [usize; 2] {
        [round % 2, (round + 1) % 2]
    }

    /// The authority that vouches for both, as an APIService wants it.
    pub(super) fn ca_bundle(&self) -> String {
        STANDARD.encode(self.ca.pem())
    }

    /// The command lines, without folders.
    pub(super) fn commands(&self) -> Vec<String> {
        self.commands.iter().map(crate::shown).collect()
    }
}

impl Server {
    /// The number of its process.
    ///
    /// # Errors
    /// When it does not run.
    pub(super) fn pid(&self) -> Result<u32> {
        self.process.pid().with_context(|| format!("{} does not run", self.name))
    }

    /// Waits until it calls itself ready.
    ///
    /// # Errors
    /// When it does not in time.
    pub(super) fn wait(&self, bench: &Bench) -> Result<()> {
        let ask = Ask::get("/readyz");
        let ready = async {
            while self.client.ask(&ask).await.is_err() {
                if let Some(status) = self.process.ended()? {
                    anyhow::bail!("it ended with {status}");
                }
                sleep(LOOK).await;
            }
            Ok(())
        };
        let ready = async { tokio::time::timeout(READY, ready).await.context("it was not ready in time")? };
        bench.runtime.block_on(ready).with_context(|| {
            let log = process::tail(&self.process.log()).unwrap_or_default();
            format!("{}; the end of its log:\n{log}", self.name)
        })
    }

    /// Kills it, starts it again and tells how long it took to be ready.
    ///
    /// # Errors
    /// When it is not.
    pub(super) fn restart(&self, bench: &Bench) -> Result<Duration> {
        self.process.kill9()?;
        let start = Instant::now();
        self.process.start()?;
        self.wait(bench)?;
        Ok(start.elapsed())
    }

    /// An object to create.
    pub(super) fn object(&self, name: &str) -> Value {
        let mut object = json!({
            "apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder",
            "metadata": {"name": name, "labels": {"app": "bench", "tier": "measured"}},
            "spec": {"reference": "another-flunder", "referenceType": "Flunder"},
        });
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
            && !self.pad.is_empty()
        {
            metadata.insert("annotations".into(), json!({"pad": self.pad}));
        }
        object
    }

    /// Writes objects of these numbers.
    ///
    /// # Errors
    /// When one is refused.
    pub(super) async fn seed(&self, namespace: &str, numbers: Range<usize>) -> Result<()> {
        let seeders = (0..SEEDERS).map(|seeder| (seeder, numbers.clone())).map(|(seeder, numbers)| async move {
            let mut connection = self.client.connect().await?;
            for index in numbers.skip(seeder).step_by(SEEDERS) {
                let body = self.object(&name(index)).to_string();
                connection.size(&Ask::json(Method::POST, path(namespace), body)).await?;
            }
            Ok::<_, anyhow::Error>(())
        });
        try_join_all(seeders).await.map(drop)
    }
}

/// The annotation's value by which our objects become as large as the peer's; none when they are already.
async fn pad(peer: &Server, ours: &Server) -> Result<String> {
    let probe = async |server: &Server, pad: Option<&str>| {
        let mut object = server.object("probe");
        if let (Some(pad), Some(metadata)) = (pad, object.get_mut("metadata").and_then(Value::as_object_mut)) {
            metadata.insert("annotations".into(), json!({"pad": pad}));
        }
        let mut connection = server.client.connect().await?;
        let created = connection.size(&Ask::json(Method::POST, path(LISTED), object.to_string())).await?;
        connection.size(&Ask::delete(format!("{}/probe", path(LISTED)))).await?;
        Ok::<_, anyhow::Error>(created)
    };
    let (wanted, least) = (probe(peer, None).await?, probe(ours, Some("x")).await?);
    Ok("x".repeat((wanted + 1).saturating_sub(least)))
}
