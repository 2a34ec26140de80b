//! A real etcd, proxies in this process, and a client that works with either.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use bytes::Bytes;
use etcd_proxy::{
    limits::Limits,
    meta::{DEFAULT_META_PREFIX, MetaLayout},
    metrics::Metrics,
    prefix::Prefix,
    service,
    tenant::{Tenant, TenantConfig},
    upstream::{Endpoint, Upstream, UpstreamConfig},
};
use futures::{StreamExt as _, stream};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use prometheus_client::registry::Registry;
use proto::{
    etcdserverpb::{
        DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, PutRequest, RangeRequest,
        RangeResponse, RequestOp, StatusRequest, TxnRequest, WatchCreateRequest, WatchRequest, WatchResponse,
        auth_client::AuthClient, cluster_client::ClusterClient, kv_client::KvClient, lease_client::LeaseClient,
        maintenance_client::MaintenanceClient, request_op::Request, watch_client::WatchClient,
        watch_request::RequestUnion,
    },
    mvccpb::KeyValue,
    v3electionpb::election_client::ElectionClient,
    v3lockpb::lock_client::LockClient,
};
use tokio::{net::TcpListener, sync::mpsc, time::timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Code, Status, Streaming, transport::Channel};

use crate::signal;

/// How long anything may take before a test gives up on it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A running etcd of one member.
pub(crate) struct Etcd {
    child: Child,
    port: u16,
    peer_port: u16,
    dir: tempfile::TempDir,
    args: Vec<String>,
    /// The variable that names its binary.
    variable: &'static str,
}

/// A proxy that serves one tenant in this process. It stops when dropped.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) stop: CancellationToken,
    pub(crate) registry: Registry,
    pub(crate) tenant: Tenant,
}

/// A client of an etcd, direct or by proxy.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) channel: Channel,
    pub(crate) kv: KvClient<Channel>,
    pub(crate) watch: WatchClient<Channel>,
    pub(crate) lease: LeaseClient<Channel>,
    pub(crate) cluster: ClusterClient<Channel>,
    pub(crate) maintenance: MaintenanceClient<Channel>,
    pub(crate) auth: AuthClient<Channel>,
    pub(crate) lock: LockClient<Channel>,
    pub(crate) election: ElectionClient<Channel>,
}

/// An open watch stream.
pub(crate) struct Watching {
    pub(crate) requests: mpsc::UnboundedSender<WatchRequest>,
    pub(crate) responses: Streaming<WatchResponse>,
}

// === impl Etcd ===

impl Etcd {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub(crate) async fn start_with(args: &[&str]) -> Self {
        Self::start_binary("TEST_ETCD", args).await
    }

    pub(crate) async fn start_binary(variable: &'static str, args: &[&str]) -> Self {
        // Ports are picked before etcd binds them: somebody else may be faster.
        for _ in 0..5 {
            let dir = tempfile::tempdir().unwrap();
            let (port, peer_port) = (free_port(), free_port());
            let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            let child = spawn(variable, &dir, port, peer_port, &args);
            let mut etcd = Self { child, port, peer_port, dir, args, variable };
            if etcd.ready().await {
                return etcd;
            }
        }
        panic!("etcd does not come up");
    }

    /// Restores a snapshot with etcdutl and starts an etcd on it.
    pub(crate) async fn restore(variable: &'static str, snapshot: &Path, flags: &[&str]) -> Self {
        for _ in 0..5 {
            let dir = tempfile::tempdir().unwrap();
            let (port, peer_port) = (free_port(), free_port());
            restore_into(&dir.path().join("data"), peer_port, snapshot, flags);
            let child = spawn(variable, &dir, port, peer_port, &[]);
            let mut etcd = Self { child, port, peer_port, dir, args: Vec::new(), variable };
            if etcd.ready().await {
                return etcd;
            }
        }
        panic!("etcd does not come up on what was restored");
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Kills it as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, name: &str) {
        signal::send(self.child.id(), name);
    }

    /// Starts it again on its data.
    pub(crate) async fn restart(&mut self) {
        self.child = spawn(self.variable, &self.dir, self.port, self.peer_port, &self.args);
        assert!(self.ready().await, "etcd does not come up again");
    }

    /// Kills it, and starts it again where it is on what a snapshot holds.
    pub(crate) async fn go_back(&mut self, snapshot: &Path, flags: &[&str]) {
        self.kill();
        let data = self.dir.path().join("data");
        std::fs::remove_dir_all(&data).unwrap();
        restore_into(&data, self.peer_port, snapshot, flags);
        self.restart().await;
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.url()).await
    }

    /// A metric of etcd's own.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.metrics().await;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no metric {name}")).parse().unwrap()
    }

    /// All metrics of etcd's own.
    pub(crate) async fn metrics(&self) -> String {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut connection = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
        let mut text = String::new();
        connection.read_to_string(&mut text).await.unwrap();
        text
    }

    async fn ready(&mut self) -> bool {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            if let Ok(channel) = Channel::from_shared(self.url()).unwrap().connect().await
                && MaintenanceClient::new(channel)
                    .status(StatusRequest {})
                    .await
                    .is_ok_and(|status| status.get_ref().leader != 0)
            {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Whether the etcd under test is of this minor version of etcd 3 or a later one.
pub(crate) fn at_least(minor: u32) -> bool {
    static MINOR: OnceLock<u32> = OnceLock::new();
    let tested = MINOR.get_or_init(|| {
        let output = Command::new(binary("TEST_ETCD")).arg("--version").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let version = text.lines().find_map(|line| line.strip_prefix("etcd Version: 3.")).unwrap();
        version.split('.').next().unwrap().parse().unwrap()
    });
    *tested >= minor
}

/// The path of a real component, as `cargo xtask test` hands it over.
pub(crate) fn binary(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable)
        .unwrap_or_else(|| panic!("{variable} is not set: run the tests by `cargo xtask test`"));
    PathBuf::from(path)
}

fn spawn(variable: &str, dir: &tempfile::TempDir, port: u16, peer_port: u16, args: &[String]) -> Child {
    let client = format!("http://127.0.0.1:{port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    Command::new(binary(variable))
        .args(["--name", "one", "--log-level", "error", "--unsafe-no-fsync"])
        .arg("--data-dir")
        .arg(dir.path().join("data"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &format!("one={peer}"),
        ])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Restores a snapshot with etcdutl, for the member of this port.
fn restore_into(data: &Path, peer_port: u16, snapshot: &Path, flags: &[&str]) {
    let peer = format!("http://127.0.0.1:{peer_port}");
    let output = Command::new(binary("TEST_ETCDUTL"))
        .args(["snapshot", "restore", "--name=one"])
        .arg(snapshot)
        .arg("--data-dir")
        .arg(data)
        .arg(format!("--initial-cluster=one={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .args(flags)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

// === impl Proxy ===

impl Proxy {
    pub(crate) async fn start(etcd: &Etcd, prefix: &'static str) -> Self {
        Self::start_with(etcd, prefix, |_| {}).await
    }

    pub(crate) async fn start_with(etcd: &Etcd, prefix: &'static str, change: impl FnOnce(&mut TenantConfig)) -> Self {
        Self::start_at(&etcd.url(), prefix, change).await
    }

    pub(crate) async fn start_at(url: &str, prefix: &'static str, change: impl FnOnce(&mut TenantConfig)) -> Self {
        let endpoint = Endpoint::parse(url, false).unwrap();
        Self::start_on(UpstreamConfig::new(vec![endpoint], None), prefix, change).await
    }

    /// A proxy that reaches its upstream in a way of its own.
    pub(crate) async fn start_on(
        upstream: UpstreamConfig,
        prefix: &'static str,
        change: impl FnOnce(&mut TenantConfig),
    ) -> Self {
        let metrics = upstream.metrics.clone();
        let upstream = Upstream::new(upstream);
        let meta = MetaLayout::new(Prefix::new(DEFAULT_META_PREFIX).unwrap());
        let mut config = TenantConfig::new(Prefix::new(prefix).unwrap(), meta);
        let mut registry = Registry::default();
        let stop = CancellationToken::new();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        config.advertise_client_urls = vec![format!("http://{address}")];
        change(&mut config);
        let tenant = Tenant::new(config, upstream, Metrics::new(&mut registry), stop.clone());
        tenant.start(&TaskTracker::new());
        Limits::register(tenant.limits(), registry.sub_registry_with_prefix("etcd_proxy"));
        metrics.register(registry.sub_registry_with_prefix("etcd_proxy"));
        let router = service::router(tenant.clone()).unwrap();
        let stopped = stop.clone();
        tokio::spawn(async move {
            let accept = async {
                loop {
                    let (connection, _) = listener.accept().await.unwrap();
                    connection.set_nodelay(true).unwrap();
                    let service = TowerToHyperService::new(router.clone());
                    tokio::spawn(async move {
                        // Clients come and go.
                        let _ended = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                            .initial_connection_window_size(16 << 20)
                            .serve_connection(TokioIo::new(connection), service)
                            .await;
                    });
                }
            };
            stopped.run_until_cancelled(accept).await
        });
        Self { address, stop, registry, tenant }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(format!("http://{}", self.address)).await
    }

    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    /// Whether a key of somebody else was ever seen in an answer.
    pub(crate) fn saw_foreign_keys(&self) -> bool {
        let text = self.metrics();
        !text.contains("etcd_proxy_foreign_keys_total 0\n")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

// === impl Client ===

impl Client {
    pub(crate) async fn connect(url: String) -> Self {
        let channel =
            Channel::from_shared(url).unwrap().initial_connection_window_size(16 << 20).connect().await.unwrap();
        Self {
            kv: KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX),
            watch: WatchClient::new(channel.clone()).max_decoding_message_size(usize::MAX),
            lease: LeaseClient::new(channel.clone()),
            cluster: ClusterClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel.clone()),
            auth: AuthClient::new(channel.clone()),
            lock: LockClient::new(channel.clone()),
            election: ElectionClient::new(channel.clone()),
            channel,
        }
    }

    /// Puts a key. Returns the revision.
    pub(crate) async fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> i64 {
        let request = PutRequest { key: key.into(), value: value.into(), ..Default::default() };
        self.kv.put(request).await.unwrap().into_inner().header.unwrap().revision
    }

    pub(crate) async fn range(&mut self, request: RangeRequest) -> Result<RangeResponse, Status> {
        self.kv.range(request).await.map(tonic::Response::into_inner)
    }

    pub(crate) async fn get(&mut self, key: impl Into<Bytes>) -> Option<KeyValue> {
        let request = RangeRequest { key: key.into(), ..Default::default() };
        self.range(request).await.unwrap().kvs.into_iter().next()
    }

    /// Every key there is, in order.
    pub(crate) async fn keys(&mut self) -> Vec<Bytes> {
        let request = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
        self.range(request).await.unwrap().kvs.into_iter().map(|kv| kv.key).collect()
    }

    pub(crate) async fn delete_all(&mut self) -> i64 {
        let request = DeleteRangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
        self.kv.delete_range(request).await.unwrap().into_inner().deleted
    }

    pub(crate) async fn compact(&mut self, revision: i64) -> Result<(), Status> {
        self.kv.compact(proto::etcdserverpb::CompactionRequest { revision, physical: false }).await.map(drop)
    }

    pub(crate) async fn grant(&mut self, id: i64, ttl: i64) -> Result<i64, Status> {
        self.lease.lease_grant(LeaseGrantRequest { id, ttl }).await.map(|granted| granted.into_inner().id)
    }

    pub(crate) async fn put_with_lease(&mut self, key: &'static str, lease: i64) -> Result<(), Status> {
        self.kv.put(PutRequest { key: key.into(), lease, ..Default::default() }).await.map(drop)
    }

    /// One keep-alive on a stream of its own, which is half-closed at once.
    pub(crate) async fn keep_alive(&mut self, id: i64) -> Result<LeaseKeepAliveResponse, Status> {
        let request = futures::stream::iter([LeaseKeepAliveRequest { id }]);
        let mut responses = self.lease.lease_keep_alive(request).await?.into_inner();
        let response = responses.message().await?.ok_or_else(|| Status::new(Code::Unknown, "no answer"))?;
        assert!(responses.message().await?.is_none(), "one answer to one request");
        Ok(response)
    }

    /// The ids of all leases, sorted.
    pub(crate) async fn leases(&mut self) -> Vec<i64> {
        let response = self.lease.lease_leases(proto::etcdserverpb::LeaseLeasesRequest {}).await.unwrap().into_inner();
        let mut ids: Vec<i64> = response.leases.iter().map(|lease| lease.id).collect();
        ids.sort_unstable();
        ids
    }

    pub(crate) async fn watch(&mut self, creates: impl IntoIterator<Item = WatchCreateRequest>) -> Watching {
        let (requests, stream) = mpsc::unbounded_channel();
        for create in creates {
            requests.send(create_request(create)).unwrap();
        }
        let responses = self.watch.watch(UnboundedReceiverStream::new(stream)).await.unwrap().into_inner();
        Watching { requests, responses }
    }

    /// The first answer to a watch, which may as well be refused.
    pub(crate) async fn try_watch(&mut self, create: WatchCreateRequest) -> Result<Option<WatchResponse>, Status> {
        let requests = stream::iter([create_request(create)]).chain(stream::pending());
        let begin = async { self.watch.watch(requests).await?.into_inner().message().await };
        timeout(PATIENCE, begin).await.expect("an answer or the end of the watch in time")
    }
}

// === impl Watching ===

impl Watching {
    pub(crate) fn send(&self, request: RequestUnion) {
        self.requests.send(WatchRequest { request_union: Some(request) }).unwrap();
    }

    /// The next answer.
    pub(crate) async fn next(&mut self) -> Result<WatchResponse, Status> {
        match timeout(PATIENCE, self.responses.message()).await.expect("an answer of the watch stream in time")? {
            Some(response) => Ok(response),
            None => Err(Status::new(Code::Ok, "the stream has ended")),
        }
    }

    /// Answers until `count` events have come.
    pub(crate) async fn events(&mut self, count: usize) -> Vec<proto::mvccpb::Event> {
        let mut events = Vec::new();
        while events.len() < count {
            let response = self.next().await.unwrap();
            assert!(!response.canceled, "{response:?}");
            events.extend(response.events);
        }
        events
    }
}

pub(crate) fn create_request(create: WatchCreateRequest) -> WatchRequest {
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

/// Watches every key there is.
pub(crate) fn watch_all(start_revision: i64) -> WatchCreateRequest {
    WatchCreateRequest { key: "\0".into(), range_end: "\0".into(), start_revision, prev_kv: true, ..Default::default() }
}

pub(crate) fn put_op(key: &'static str, value: &'static str) -> RequestOp {
    RequestOp {
        request: Some(Request::RequestPut(PutRequest { key: key.into(), value: value.into(), ..Default::default() })),
    }
}

pub(crate) fn range_op(request: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Request::RequestRange(request)) }
}

pub(crate) fn delete_op(key: &'static str, range_end: &'static str) -> RequestOp {
    let request = DeleteRangeRequest { key: key.into(), range_end: range_end.into(), prev_kv: true };
    RequestOp { request: Some(Request::RequestDeleteRange(request)) }
}

pub(crate) fn txn_op(txn: TxnRequest) -> RequestOp {
    RequestOp { request: Some(Request::RequestTxn(txn)) }
}

/// Code and text, which is what clients go by.
pub(crate) fn refusal<T>(result: Result<T, Status>) -> (Code, String) {
    match result {
        Ok(_) => (Code::Ok, String::new()),
        Err(status) => (status.code(), status.message().to_owned()),
    }
}

/// Waits until `condition` holds.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < PATIENCE, "{what} does not come about");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
