//! Every certificate and every CA that a proxy knows is replaced, one kind after the other, while a hundred clients write.
//!
//! The odd clients connect anew after each step, with what is handed out by then; the even ones keep the connection that they
//! began with, whatever it was that it began with.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use proto::etcdserverpb::{
    PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, WatchResponse, kv_client::KvClient,
    watch_client::WatchClient, watch_request::RequestUnion,
};
use tempfile::TempDir;
use tokio::{sync::watch, task::JoinSet, time::interval};
use tokio_stream::StreamExt as _;
use tonic::{
    Streaming,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

use crate::{
    child::{Etcd, Proxy, eventually, free_address},
    http::get,
    pki::{Ca, Identity, text},
};

const CLIENTS: usize = 100;
/// Between two writes of one client.
const PACE: Duration = Duration::from_millis(100);
/// What each client writes during a step.
const WRITES: i64 = 5;

/// More than one connection to the upstream carries.
const WATCHES: usize = 300;

/// Clients that write without a pause.
struct Writers {
    material: watch::Sender<ClientTlsConfig>,
    written: Arc<[AtomicI64]>,
    tasks: JoinSet<Result<(), String>>,
}

/// A file that is replaced by another's contents.
struct Slot<'a> {
    dir: &'a Path,
    name: &'static str,
}

// === impl Writers ===

impl Writers {
    fn start(url: &str, material: ClientTlsConfig) -> Self {
        let (material, handed_out) = watch::channel(material);
        let written: Arc<[AtomicI64]> = (0..CLIENTS).map(|_| AtomicI64::new(0)).collect();
        let mut tasks = JoinSet::new();
        for number in 0..CLIENTS {
            let writing = write(number, url.to_owned(), handed_out.clone(), written.clone());
            tasks.spawn(async move { writing.await.map_err(|error| format!("client {number}: {error}")) });
        }
        Self { material, written, tasks }
    }

    /// Hands out something else to connect with.
    fn hand_out(&self, material: ClientTlsConfig) {
        self.material.send_replace(material);
    }

    /// Every client goes on writing, the odd ones by a connection made after the last change.
    async fn all_write_on(&mut self, step: &str) {
        let before: Vec<i64> = self.written.iter().map(|written| written.load(Ordering::SeqCst)).collect();
        let written = self.written.clone();
        eventually(step, async || {
            if let Some(ended) = self.tasks.try_join_next() {
                panic!("{step}: {ended:?}");
            }
            let all = written.iter().zip(&before).all(|(now, before)| now.load(Ordering::SeqCst) >= before + WRITES);
            all.then_some(())
        })
        .await;
    }

    /// Ends them and answers how often each has written.
    async fn stop(mut self) -> Vec<i64> {
        drop(self.material);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap().unwrap();
        }
        self.written.iter().map(|written| written.load(Ordering::SeqCst)).collect()
    }
}

/// Writes until nobody hands out anything any more.
async fn write(
    number: usize,
    url: String,
    mut material: watch::Receiver<ClientTlsConfig>,
    written: Arc<[AtomicI64]>,
) -> Result<(), String> {
    let first = material.borrow_and_update().clone();
    let mut kv = KvClient::new(connect(&url, first).await?);
    let mut pace = interval(PACE);
    while let Ok(changed) = material.has_changed() {
        if changed && number % 2 == 1 {
            let latest = material.borrow_and_update().clone();
            kv = KvClient::new(connect(&url, latest).await?);
        }
        let next = written[number].load(Ordering::SeqCst) + 1;
        let put = PutRequest { key: key(number).into(), value: next.to_string().into(), ..Default::default() };
        kv.put(put).await.map_err(|status| format!("write {next}: {status:?}"))?;
        written[number].store(next, Ordering::SeqCst);
        pace.tick().await;
    }
    Ok(())
}

fn key(number: usize) -> String {
    format!("writers/{number:03}")
}

async fn connect(url: &str, material: ClientTlsConfig) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(url.to_owned()).unwrap().tls_config(material).unwrap();
    endpoint.connect().await.map_err(|error| format!("cannot connect: {error:?}"))
}

/// What a client knows that trusts `cas` and is `identity`.
fn material(cas: &[&Ca], identity: &Identity) -> ClientTlsConfig {
    let read = |path| fs::read_to_string(path).unwrap();
    let identity = tonic::transport::Identity::from_pem(read(&identity.cert), read(&identity.key));
    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(bundle(cas))).identity(identity)
}

fn bundle(cas: &[&Ca]) -> String {
    cas.iter().map(|ca| ca.pem.as_str()).collect()
}

/// Watches, each by a stream of its own.
async fn watch_often(channel: &Channel) -> Vec<Streaming<WatchResponse>> {
    let mut watches = Vec::new();
    for number in 0..WATCHES {
        let create = WatchCreateRequest { key: format!("watched/{number}").into(), ..Default::default() };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let requests = tokio_stream::once(create).chain(tokio_stream::pending());
        let mut watch = WatchClient::new(channel.clone()).watch(requests).await.unwrap().into_inner();
        assert!(watch.message().await.unwrap().unwrap().created);
        watches.push(watch);
    }
    watches
}

/// A new connection with `material` that is answered. With TLS 1.3 a client learns only by that whether it was accepted.
async fn reach(url: &str, material: ClientTlsConfig) -> Result<Channel, String> {
    let channel = connect(url, material).await?;
    let range = RangeRequest { key: key(0).into(), ..Default::default() };
    KvClient::new(channel.clone()).range(range).await.map_err(|status| format!("{status:?}"))?;
    Ok(channel)
}

// === impl Slot ===

impl Slot<'_> {
    fn put(&self, contents: &str) {
        fs::write(self.path(), contents).unwrap();
    }

    fn copy(&self, file: &Path) {
        self.put(&fs::read_to_string(file).unwrap());
    }

    fn path(&self) -> String {
        text(&self.dir.join(self.name)).to_owned()
    }
}

/// The value of a metric of the proxy, 0 if it has none with these labels.
async fn metric(proxy: &Proxy, name: &str) -> u32 {
    let metrics = eventually("metrics", async || get(&format!("{}/metrics", proxy.metrics)).await).await.body;
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_every_certificate_and_ca_is_replaced() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let file = |name| Slot { dir, name };
    let pair = |cert: &Slot<'_>, key: &Slot<'_>, identity: &Identity| {
        cert.copy(&identity.cert);
        key.copy(&identity.key);
    };
    // Of each kind an old one and a new one: of what the proxy shows to clients, what its clients show, what it shows to the
    // upstream, and what the upstream shows.
    let two = |kind: &str| [Ca::new(dir, &format!("{kind}-old")), Ca::new(dir, &format!("{kind}-new"))];
    let [serving_old, serving_new] = two("serving");
    let [clients_old, clients_new] = two("clients");
    let [proxy_old, proxy_new] = two("proxy");
    let [etcd_old, etcd_new] = two("etcd");
    let client_old = clients_old.issue(dir, "client-old");
    let client_new = clients_new.issue(dir, "client-new");
    let upstream_old = proxy_old.issue(dir, "proxy-leaf-old");
    let upstream_new = proxy_new.issue(dir, "proxy-leaf-new");

    let (etcd_cert, etcd_key, etcd_trusted) = (file("etcd.crt"), file("etcd.key"), file("etcd-trusted.crt"));
    pair(&etcd_cert, &etcd_key, &etcd_old.issue(dir, "etcd-leaf-old"));
    etcd_trusted.put(&bundle(&[&proxy_old, &proxy_new]));
    let flags = [
        format!("--cert-file={}", etcd_cert.path()),
        format!("--key-file={}", etcd_key.path()),
        "--client-cert-auth".to_owned(),
        format!("--trusted-ca-file={}", etcd_trusted.path()),
    ];
    let mut etcd = Etcd::start_with(format!("https://{}", free_address()), &flags).await;

    let (serving_cert, serving_key, client_ca) = (file("tls.crt"), file("tls.key"), file("client-ca.crt"));
    let (upstream_cert, upstream_key, upstream_ca) = (file("up.crt"), file("up.key"), file("up-ca.crt"));
    pair(&serving_cert, &serving_key, &serving_old.issue(dir, "serving-leaf-old"));
    client_ca.copy(&clients_old.file);
    pair(&upstream_cert, &upstream_key, &upstream_old);
    upstream_ca.copy(&etcd_old.file);
    let flags = [
        format!("--cert-file={}", serving_cert.path()),
        format!("--key-file={}", serving_key.path()),
        format!("--trusted-ca-file={}", client_ca.path()),
        format!("--cert={}", upstream_cert.path()),
        format!("--key={}", upstream_key.path()),
        format!("--cacert={}", upstream_ca.path()),
        "--cert-reload-interval=50ms".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let proxy = Proxy::spawn_at(format!("https://{}", free_address()), "/a/", &etcd.url, &flags);
    proxy.ready().await;
    let url = proxy.url.clone();
    let reloads = async || {
        metric(&proxy, r#"etcd_proxy_certificate_reloads_total{certificates="upstream",result="changed"}"#).await
    };
    let dials = async |result: &str| {
        let name = format!("etcd_proxy_upstream_dials_total{{endpoint=\"{}\",result=\"{result}\"}}", etcd.url);
        metric(&proxy, &name).await
    };
    let mut writers = Writers::start(&url, material(&[&serving_old], &client_old));
    writers.all_write_on("with what there was at first").await;

    // The CA of the clients: both, the clients' new certificates, the new one alone.
    client_ca.put(&bundle(&[&clients_old, &clients_new]));
    let newcomer = material(&[&serving_old], &client_new);
    eventually("clients of the new CA get in", async || reach(&url, newcomer.clone()).await.ok()).await;
    writers.hand_out(newcomer);
    writers.all_write_on("with new certificates of the clients").await;
    client_ca.copy(&clients_new.file);
    let latecomer = material(&[&serving_old], &client_old);
    eventually("clients of the old CA are refused", async || reach(&url, latecomer.clone()).await.err()).await;
    writers.all_write_on("without the old CA of the clients").await;

    // The serving certificate, once the clients know the CA of the new one.
    writers.hand_out(material(&[&serving_old, &serving_new], &client_new));
    writers.all_write_on("with two CAs of the proxy").await;
    pair(&serving_cert, &serving_key, &serving_new.issue(dir, "serving-leaf-new"));
    let newest = material(&[&serving_new], &client_new);
    eventually("the new certificate is shown", async || reach(&url, newest.clone()).await.ok()).await;
    writers.hand_out(newest.clone());
    writers.all_write_on("with a new certificate of the proxy").await;

    // What the proxy shows to the upstream. Streamed ranges have a connection of their own, which none has needed so far.
    let (reloaded, dialled) = (reloads().await, dials("ok").await);
    pair(&upstream_cert, &upstream_key, &upstream_new);
    eventually("the upstream's certificates are read", async || (reloads().await > reloaded).then_some(())).await;
    let channel = reach(&url, newest.clone()).await.unwrap();
    let range = RangeRequest { key: "writers/".into(), range_end: "writers0".into(), ..Default::default() };
    let mut parts = KvClient::new(channel.clone()).range_stream(range).await.unwrap().into_inner();
    while let Some(part) = parts.next().await {
        part.unwrap();
    }
    assert!(dials("ok").await > dialled, "the range was read by an old connection");
    writers.all_write_on("with a new certificate towards the upstream").await;

    // What the proxy trusts there: both CAs, then the etcd shows a certificate of the new one, to a connection that is made
    // for more watches than one carries.
    let (reloaded, dialled) = (reloads().await, dials("ok").await);
    upstream_ca.put(&bundle(&[&etcd_old, &etcd_new]));
    eventually("the upstream's two CAs are read", async || (reloads().await > reloaded).then_some(())).await;
    pair(&etcd_cert, &etcd_key, &etcd_new.issue(dir, "etcd-leaf-new"));
    let watches = watch_often(&channel).await;
    assert!(dials("ok").await > dialled, "old connections carry all watches");
    let reloaded = reloads().await;
    upstream_ca.copy(&etcd_new.file);
    eventually("the upstream's new CA is read", async || (reloads().await > reloaded).then_some(())).await;
    writers.all_write_on("with the new CA of the upstream").await;
    drop(watches);

    let written = writers.stop().await;
    assert_eq!(dials("failed").await, 0, "{}", proxy.program.log());
    let range = RangeRequest { key: "writers/".into(), range_end: "writers0".into(), ..Default::default() };
    let kvs = KvClient::new(reach(&url, newest.clone()).await.unwrap()).range(range).await.unwrap().into_inner().kvs;
    let versions: Vec<i64> = kvs.iter().map(|kv| kv.version).collect();
    assert_eq!(versions, written, "each write was carried out once");

    // All that is old is gone for good: every connection to the upstream is made anew, to one that knows the new CA alone.
    etcd.kill();
    etcd_trusted.copy(&proxy_new.file);
    etcd.run().await;
    eventually("the proxy comes back by the new certificates alone", async || reach(&url, newest.clone()).await.ok())
        .await;
    reach(&etcd.url, material(&[&etcd_new], &upstream_old)).await.expect_err("the old certificate is refused");
}
