//! A real etcd that ends with the test, and a client that asks it directly.

use std::{
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bytes::Bytes;
use etcd_proxy::{
    meta::{DEFAULT_META_PREFIX, MetaLayout},
    prefix::Prefix,
};
use proto::{
    etcdserverpb::{
        LeaseGrantRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, kv_client::KvClient,
        lease_client::LeaseClient, request_op::Request,
    },
    mvccpb::KeyValue,
};
use proxy_controller::upstream::{Shared, SharedConfig};
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::signal;

/// How long anything may take before a test gives up on it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// An etcd of one member.
pub(crate) struct Etcd {
    dir: TempDir,
    pub(crate) url: String,
    peer: String,
    flags: Vec<String>,
    child: Option<Child>,
}

/// A client of an etcd that knows nothing of prefixes.
#[derive(Clone)]
pub(crate) struct Direct {
    pub(crate) kv: KvClient<Channel>,
    pub(crate) lease: LeaseClient<Channel>,
}

pub(crate) fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

pub(crate) fn prefix(text: &'static str) -> Prefix {
    Prefix::new(text).unwrap()
}

pub(crate) fn layout() -> MetaLayout {
    MetaLayout::new(prefix(DEFAULT_META_PREFIX))
}

/// Polls until `probe` answers.
pub(crate) async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

// === impl Etcd ===

impl Etcd {
    /// A plaintext etcd on loopback that serves.
    pub(crate) async fn start() -> Self {
        let mut etcd = Self::prepare("http", &[]);
        etcd.run();
        etcd.ready().await;
        etcd
    }

    /// An etcd that is not running yet.
    pub(crate) fn prepare(scheme: &str, flags: &[String]) -> Self {
        let (url, peer) = (format!("{scheme}://{}", free_address()), format!("http://{}", free_address()));
        Self { dir: TempDir::new().unwrap(), url, peer, flags: flags.to_vec(), child: None }
    }

    /// Starts it, or starts it again with its data.
    pub(crate) fn run(&mut self) {
        let binary = std::env::var_os("TEST_ETCD")
            .expect("TEST_ETCD is not set: run `cargo xtask test`, which finds or builds the binaries");
        let child = Command::new(PathBuf::from(binary))
            .args(["--name", "one", "--log-level", "error", "--unsafe-no-fsync"])
            .arg("--data-dir")
            .arg(self.dir.path().join("data"))
            .args(["--listen-client-urls", &self.url, "--advertise-client-urls", &self.url])
            .args(["--listen-peer-urls", &self.peer, "--initial-advertise-peer-urls", &self.peer])
            .args(["--initial-cluster", &format!("one={}", self.peer)])
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Waits until a plaintext etcd serves.
    pub(crate) async fn ready(&mut self) {
        let shared = self.shared();
        eventually("etcd serves", async || {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "etcd ended: {ended:?}");
            shared.probe().await.ok()
        })
        .await;
    }

    /// Kills it as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        signal::send(self.child.as_ref().unwrap().id(), name);
    }

    /// The controller's connections to a plaintext etcd.
    pub(crate) fn shared(&self) -> Shared {
        Shared::new(self.config()).unwrap()
    }

    pub(crate) fn config(&self) -> SharedConfig {
        SharedConfig::new(vec![self.url.clone()], None, prefix(DEFAULT_META_PREFIX))
    }

    pub(crate) async fn direct(&self) -> Direct {
        let channel = Channel::from_shared(self.url.clone()).unwrap().connect().await.unwrap();
        Direct {
            kv: KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX),
            lease: LeaseClient::new(channel),
        }
    }

    /// How many calls of a method etcd has answered.
    pub(crate) async fn answered(&self, method: &str) -> u64 {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let address = self.url.strip_prefix("http://").unwrap();
        let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
        connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
        let mut text = String::new();
        connection.read_to_string(&mut text).await.unwrap();
        let wanted = format!("grpc_method=\"{method}\"");
        let lines =
            text.lines().filter(|line| line.starts_with("grpc_server_handled_total{") && line.contains(&wanted));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

// === impl Direct ===

impl Direct {
    pub(crate) async fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>, lease: i64) -> i64 {
        let request = PutRequest { key: key.into(), value: value.into(), lease, ..Default::default() };
        self.kv.put(request).await.unwrap().into_inner().header.unwrap().revision
    }

    /// Puts many small keys.
    pub(crate) async fn fill(&mut self, keys: impl Iterator<Item = Bytes>, value: &'static str) {
        // etcd takes up to 128 operations in a Txn.
        let keys: Vec<Bytes> = keys.collect();
        for some in keys.chunks(128) {
            let put = |key: &Bytes| PutRequest { key: key.clone(), value: value.into(), ..Default::default() };
            let success = some.iter().map(|key| RequestOp { request: Some(Request::RequestPut(put(key))) }).collect();
            assert!(self.kv.txn(TxnRequest { success, ..Default::default() }).await.unwrap().into_inner().succeeded);
        }
    }

    /// Everything there is, in the order of the keys.
    pub(crate) async fn all(&mut self) -> Vec<KeyValue> {
        let request = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
        self.kv.range(request).await.unwrap().into_inner().kvs
    }

    /// How many keys lie under a prefix.
    pub(crate) async fn count(&mut self, prefix: &Prefix) -> i64 {
        let (key, range_end) = prefix.all();
        let request = RangeRequest { key, range_end, count_only: true, ..Default::default() };
        self.kv.range(request).await.unwrap().into_inner().count
    }

    /// A lease of a tenant, with the mark that its proxy leaves.
    pub(crate) async fn grant(&mut self, tenant: &Prefix) -> i64 {
        let granted = self.lease.lease_grant(LeaseGrantRequest { id: 0, ttl: 600 }).await.unwrap().into_inner().id;
        self.put(layout().tenant(tenant).lease_mark(granted), r#"{"format":1}"#, granted).await;
        granted
    }

    pub(crate) async fn leases(&mut self) -> Vec<i64> {
        let answer = self.lease.lease_leases(proto::etcdserverpb::LeaseLeasesRequest {}).await.unwrap().into_inner();
        answer.leases.iter().map(|lease| lease.id).collect()
    }
}
