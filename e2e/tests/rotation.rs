//! Certificates that are renewed and CAs that are replaced while twenty clients write: nobody notices.

#[path = "rotation/clients.rs"]
mod clients;
#[path = "rotation/record.rs"]
mod record;
#[path = "rotation/tls.rs"]
mod tls;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use rustls::AlertDescription;
use serde_json::json;
use tokio::time::{interval, timeout};
use xtask::{
    cluster::{Cluster, Counts, ManagedProxy, Node, Options, SYSTEM, Writers, local_pod::Content, mounts::Projection},
    poll,
};

use self::{
    clients::Clients,
    record::{Cut, Failure, Leaf, Log, Standing},
    tls::{Dialer, Material},
};

const NAMESPACE: &str = "tenant";
const NAME: &str = "rotating";

/// How long leaves are valid: the shortest that the API admits.
const VALIDITY: Duration = Duration::from_secs(60);

/// How long a change of a Secret takes to the files.
const DELIVERY: Duration = Duration::from_secs(3);

/// Clients of each kind.
const CLIENTS: usize = 10;

/// Writes a second of each.
const RATE: u32 = 10;

/// How long one step may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Proxies, two kinds of clients, and what is noted down about them.
struct Scene {
    cluster: Cluster,
    proxy: ManagedProxy,
    /// The folder of the client's Secret.
    folder: PathBuf,
    go: Writers,
    rust: Clients,
    phases: Log<Standing>,
    leaves: Vec<Log<Leaf>>,
    cuts: Vec<Cut>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_rotations_of_the_ca_fail_no_request_and_restart_nothing() -> Result<()> {
    let mut scene = Scene::start().await?;
    let first = Material::read(&scene.folder)?;
    ensure!(tls::certificates(&first.ca)?.len() == 1, "clients that read their bundle now know the first CA alone");
    let processes = scene.processes()?;
    let deployment = scene.deployment_generation()?;

    // The keys of retired CAs are kept for the cross certificates.
    let forged = tls::forge(&first.ca, &String::from_utf8(scene.authority("ca-1.key")?)?, CN)?;

    scene.start_rotation(1).await?;
    let refusals = scene.refusals(&forged).await?;
    ensure!(refusals == [None, None], "the first CA is out of use before its last certificates are: {refusals:?}");
    scene.finish_rotation(1).await?;
    scene.cut_all().await?;

    scene.start_rotation(2).await?;
    scene.finish_rotation(2).await?;
    scene.cut_all().await?;

    scene.phases.wait("the end of the old CAs", 3 * LIMIT, |all| all.last() == Some(&phase("Stable", 2))).await?;
    scene.delivered("the newest CA alone", |material| Ok(tls::certificates(&material.ca)?.len() == 1))?;
    for leaves in &scene.leaves {
        leaves.wait("two renewals", 3 * LIMIT, |leaves| record::renewals(leaves) >= 2).await?;
    }
    scene.cut_all().await?;
    let opened = scene.opened()?;
    scene.go.connect_anew()?;
    scene.all_connected(opened + CLIENTS)?;
    scene.all_write()?;

    scene.check_certificates(&first, &forged).await?;
    let expected =
        ["Stable", "Distributing", "Replacing", "Retiring", "Distributing", "Replacing", "Retiring", "Stable"];
    let phases: Vec<_> = scene.phases.entries().into_iter().map(|(phase, _)| phase).collect();
    ensure!(phases == expected, "{:?}", scene.phases.entries());
    ensure!(
        scene.processes()? == processes,
        "something was started again: {:?}, not {processes:?}",
        scene.processes()?
    );
    ensure!(scene.deployment_generation()? == deployment, "in a cluster the pods would have been replaced");
    scene.end().await
}

const CN: &str = "tenant/rotating/default";

fn phase(phase: &str, rotation: i64) -> Standing {
    (phase.to_owned(), rotation)
}

impl Scene {
    async fn start() -> Result<Self> {
        let mut options = Options::of_test("rotation")?.with_controller(&[NAMESPACE])?;
        options.controller.as_mut().context("there is no controller")?.delivery = DELIVERY;
        let cluster = Cluster::start(options)?;
        let (kubectl, node) = (cluster.kubectl(), cluster.node()?);
        kubectl.ok(&["create", "namespace", NAMESPACE])?;
        let quick = json!({"spec": {"minValidity": format!("{}s", VALIDITY.as_secs())}}).to_string();
        kubectl.ok(&["patch", "etcdupstream", "default", "--type=merge", "--patch", &quick])?;
        let object = json!({
            "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdProxy",
            "metadata": {"namespace": NAMESPACE, "name": NAME},
            "spec": {"replicas": 2, "tls": {"validity": format!("{}s", VALIDITY.as_secs()), "caValidity": "15m"}},
        });
        // Admission may take a moment to know the EtcdUpstream.
        poll::until("the EtcdProxy to be accepted", LIMIT, || kubectl.apply(std::slice::from_ref(&object)))?;
        let proxy = ManagedProxy::start(node, &xtask::cluster::own_program("etcd-proxy")?, NAMESPACE, NAME)?;
        ensure!(proxy.pods().len() == 2, "two replicas were asked for");
        let endpoint = proxy.endpoint(node)?;
        let folder = endpoint.ca.parent().context("the files are in no folder")?.to_path_buf();

        let client = e2e::client(kubectl.kubeconfig(), &[]).await?;
        let phases = record::follow_phases(client, NAMESPACE, NAME);
        let served = proxy.pods().iter().flat_map(|pod| &pod.local().volumes);
        let served = served.filter(|(folder, content)| folder.ends_with("serving") && *content != Content::Empty);
        let files = served.map(|(folder, _)| folder).chain([&folder]).map(|folder| folder.join("tls.crt"));
        let leaves: Vec<_> = files.map(Leaf::follow).collect();
        ensure!(leaves.len() == 3, "two proxies and the client have certificates");

        // Half of the Rust clients read their CA once, as all Go clients do; all read certificate and key for each connection.
        let address = node.network.listen(&proxy.address())?;
        let host = proxy.address().split(':').next().context("the address has no host")?.to_owned();
        let once = std::sync::Arc::<[u8]>::from(Material::read(&folder)?.ca);
        let dialers = (0..CLIENTS).map(|number| Dialer {
            address,
            host: host.clone(),
            folder: folder.clone(),
            ca: (number % 2 == 0).then(|| once.clone()),
        });
        let rust = Clients::start(dialers.collect(), RATE).await?;
        let go = Writers::start(&cluster.site, &cluster.tools, &endpoint, "go", CLIENTS, RATE)?;
        let mut this = Self { cluster, proxy, folder, go, rust, phases, leaves, cuts: Vec::new() };
        this.all_connected(2 * CLIENTS)?;
        this.all_write()?;
        Ok(this)
    }

    fn node(&self) -> Result<&Node> {
        self.cluster.node()
    }

    fn host(&self) -> String {
        self.proxy.address().replace(":2379", "")
    }

    /// Has the CA replaced, and waits until the new one signs.
    async fn start_rotation(&self, rotation: i64) -> Result<()> {
        let patch = json!({"spec": {"tls": {"caRotation": rotation}}}).to_string();
        let patch = ["patch", "etcdproxy", NAME, "--namespace", NAMESPACE, "--type=merge", "--patch", &patch];
        self.cluster.kubectl().ok(&patch)?;
        let wanted = phase("Replacing", rotation);
        self.phases.wait("the new CA to sign", 2 * LIMIT, |all| all.contains(&wanted)).await
    }

    /// Waits until the new leaves are in use.
    async fn finish_rotation(&self, rotation: i64) -> Result<()> {
        let wanted = phase("Retiring", rotation);
        self.phases.wait("the new leaves in use", 2 * LIMIT, |all| all.last() == Some(&wanted)).await?;
        let ca = format!("{NAMESPACE}/{NAME} CA {}", rotation + 1);
        self.delivered("the client's new leaf", |material| {
            let chain = tls::certificates(&material.cert)?;
            Ok(tls::names(chain.first().context("there is no leaf")?)?.1.ends_with(&ca))
        })
    }

    /// Waits until the client's files are as wanted.
    fn delivered(&self, what: &str, wanted: impl Fn(&Material) -> Result<bool>) -> Result<()> {
        poll::until(what, LIMIT, || {
            ensure!(wanted(&Material::read(&self.folder)?)?, "the files are others");
            Ok(())
        })
    }

    /// Cuts every connection once; all clients go on.
    async fn cut_all(&mut self) -> Result<()> {
        let opened = 2 * CLIENTS * (1 + self.cuts.len());
        ensure!(self.opened()? == opened, "clients connected anew between the cuts: {} times", self.opened()?);
        let from = Timestamp::now();
        let cut = self.node()?.network.cut(&self.proxy.address());
        self.cuts.push(Cut { from, to: Timestamp::now() });
        ensure!(cut == 2 * CLIENTS, "there were {cut} connections");
        self.all_connected(opened + 2 * CLIENTS)?;
        self.all_write()
    }

    fn opened(&self) -> Result<usize> {
        Ok(self.node()?.network.counts(&self.proxy.address()).opened)
    }

    /// Waits until each client has its connection, the last of so many.
    fn all_connected(&self, opened: usize) -> Result<()> {
        let node = self.node()?;
        let wanted = Counts { open: 2 * CLIENTS, opened, refused: 0 };
        poll::until("a connection of each client", LIMIT, || {
            let counts = node.network.counts(&self.proxy.address());
            ensure!(counts == wanted, "{counts:?} instead of {wanted:?}; {:?}", self.failures()?);
            Ok(())
        })
    }

    /// Waits until each client has written ten times more.
    fn all_write(&mut self) -> Result<()> {
        let before = self.writes()?;
        poll::until("writes of every client", LIMIT, || {
            let now = self.writes()?;
            let idle: Vec<_> =
                now.iter().zip(&before).filter(|((_, now), (_, before))| **now < **before + 10).collect();
            if idle.is_empty() { Ok(()) } else { bail!("{idle:?}; {:?}", self.failures()?) }
        })
    }

    fn writes(&mut self) -> Result<BTreeMap<String, u64>> {
        let go =
            self.go.report()?.clients.into_iter().map(|tally| (format!("Go client {}", tally.client), tally.writes));
        let rust = self.rust.ledger().writes.into_iter().enumerate();
        Ok(go.chain(rust.map(|(number, writes)| (format!("Rust client {number}"), writes))).collect())
    }

    fn failures(&self) -> Result<Vec<Failure>> {
        let go = self.go.failures().into_iter().map(of_go);
        go.chain(self.rust.ledger().failures.into_iter().map(Ok)).collect()
    }

    fn processes(&self) -> Result<BTreeMap<String, (u32, u64)>> {
        let pods = self.proxy.pods().iter().map(|pod| &pod.process);
        let mut all = record::identities(self.cluster.processes().chain(pods))?;
        all.insert("writers".to_owned(), record::identity(self.go.pid())?);
        Ok(all)
    }

    fn deployment_generation(&self) -> Result<Option<i64>> {
        let deployment = ["get", "deployment", self.proxy.base(), "--namespace", SYSTEM];
        Ok(self.cluster.kubectl().json(&deployment)?.pointer("/metadata/generation").and_then(|value| value.as_i64()))
    }

    /// A file of the CA's Secret.
    fn authority(&self, file: &str) -> Result<Vec<u8>> {
        let name = format!("{}-ca", self.proxy.base());
        let secret = self.cluster.kubectl().json(&["get", "secret", &name, "--namespace", SYSTEM])?;
        let data = secret.get("data").and_then(|data| data.get(file)?.as_str());
        Ok(STANDARD.decode(data.with_context(|| format!("Secret {name} has no {file}"))?)?)
    }

    /// How each proxy refuses a client's certificate. The proxies themselves are verified by what they are to show now.
    async fn refusals(&self, client: &Material) -> Result<Vec<Option<AlertDescription>>> {
        let material = Material { ca: Material::read(&self.folder)?.ca, ..client.clone() };
        let mut refusals = Vec::new();
        for pod in self.proxy.pods() {
            refusals.push(material.look(pod.address(), &self.host()).await?.refusal);
        }
        Ok(refusals)
    }

    /// What is trusted at the end, and what is not.
    async fn check_certificates(&self, first: &Material, forged: &Material) -> Result<()> {
        let now = Material::read(&self.folder)?;
        let bundle = self.node()?.files(Projection::config_map(NAMESPACE, &format!("{NAME}-etcd-ca")))?.join("ca.crt");
        let (bundle, newest) = (std::fs::read(bundle)?, self.authority("ca-3.crt")?);
        ensure!(bundle == newest && now.ca == newest, "the newest CA is not all that is in the bundles");

        ensure!(self.refusals(&now).await? == [None, None], "the present certificate is refused");
        let expired = [Some(AlertDescription::CertificateExpired), Some(AlertDescription::UnknownCA)];
        let refusals = self.refusals(first).await?;
        ensure!(refusals.iter().all(|refusal| expired.contains(refusal)), "the first certificate: {refusals:?}");
        // Proxies read their files again within ten seconds.
        let unknown = async {
            let mut looks = interval(Duration::from_millis(250));
            while self.refusals(forged).await? != [Some(AlertDescription::UnknownCA); 2] {
                looks.tick().await;
            }
            Ok::<_, anyhow::Error>(())
        };
        timeout(LIMIT, unknown).await.context("a valid certificate of the first CA is still accepted")??;

        for pod in self.proxy.pods() {
            let mut older = Vec::new();
            for ca in ["ca-1.crt", "ca-2.crt", "ca-3.crt"] {
                let ca = self.authority(ca)?;
                let (subject, _) = tls::names(tls::certificates(&ca)?.first().context("there is no CA")?)?;
                let material = Material { ca, ..now.clone() };
                let look = material.look(pod.address(), &self.host()).await?;
                let chain = look.chain.iter().map(tls::names).collect::<Result<Vec<_>>>()?;
                let [leaf, crosses @ ..] = chain.as_slice() else { bail!("there is no chain") };
                ensure!(crosses.len() == 2 && crosses.iter().all(|cross| cross.0 == leaf.1), "{chain:?}");
                if subject != leaf.1 {
                    ensure!(crosses.iter().any(|cross| cross.1 == subject), "{chain:?} has no way to {subject}");
                    older.push(subject);
                }
            }
            ensure!(older.len() == 2, "the proxies show no leaf of the newest CA");
            let metrics = xtask::cluster::http_get(&format!("http://{}/metrics", pod.metrics()))?;
            let failed = metrics.lines().find(|line| line.contains("certificate_reloads") && line.contains("failed"));
            ensure!(failed.is_none_or(|line| line.ends_with(" 0")), "a proxy could not read its files: {failed:?}");
        }
        Ok(())
    }

    /// Ends the clients and judges what they met.
    async fn end(mut self) -> Result<()> {
        let node = self.cluster.node()?;
        ensure!(!self.proxy.sync(node)?, "a kubelet would have started a pod again");
        let Self { cluster, proxy, go, rust, leaves, cuts, .. } = self;
        let (summary, failures) = go.stop()?;
        let ledger = rust.stop().await?;
        ensure!(summary.lost == 0 && ledger.lost.is_empty(), "acknowledged writes are lost: {summary:?}, {ledger:?}");
        let failures = failures.into_iter().map(of_go).chain(ledger.failures.into_iter().map(Ok));
        let at_cuts = record::at_cuts(&failures.collect::<Result<Vec<_>>>()?, &cuts)?;
        let mut exchanges = Vec::new();
        for leaves in leaves.iter().map(Log::entries) {
            record::renewed_in_time(&leaves, VALIDITY)?;
            exchanges.push((leaves.len() - 1, record::renewals(&leaves)));
        }
        let writes = summary.writes + ledger.writes.iter().sum::<u64>();
        let told = format!(
            "{writes} writes; failed at the cuts: {at_cuts:?} of {} each; exchanged leaves, and renewals among them: {exchanges:?}",
            2 * CLIENTS
        );
        drop(proxy);
        cluster.remove()?;
        tell(&told);
        Ok(())
    }
}

/// For people who run it with `--nocapture`.
#[expect(clippy::print_stderr, reason = "figures of a test")]
fn tell(figures: &str) {
    eprintln!("{figures}");
}

fn of_go(failure: xtask::cluster::Failure) -> Result<Failure> {
    let to: Timestamp = failure.time.parse()?;
    let from = to - SignedDuration::from_millis(i64::try_from(failure.took_ms)?);
    let error = format!("{}: {}", failure.code, failure.error);
    Ok(Failure { client: format!("Go client {}", failure.client), from, to, error })
}
