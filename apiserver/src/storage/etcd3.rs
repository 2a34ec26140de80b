//! etcd, and whatever speaks its API.
//!
//! Keys lie under a root (`--etcd-prefix`). The requests have the shapes that kube-apiserver sends
//! (`k8s.io/apiserver/pkg/storage/etcd3`), so that what serves it (etcd itself, proxies, kine) serves this as well.
//!
//! Reads and whatever may be repeated without harm are repeated for a while when etcd cannot be reached, on another server if
//! there are several. A write is repeated only if it certainly was not sent; else the caller is told
//! [`StorageError::Unavailable`] or [`StorageError::Timeout`] and may find out by reading.

mod dial;
mod error;
mod lane;
mod lease;
mod probe;
mod watch;

use std::{
    future::Future,
    path::PathBuf,
    str,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use proto::{
    etcdserverpb::{
        CompactionRequest, Compare, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest, RangeResponse,
        RequestOp, ResponseHeader, TxnRequest, TxnResponse, WatchCreateRequest,
        compare::{CompareResult, CompareTarget, TargetUnion},
        kv_client::KvClient,
        lease_client::LeaseClient,
        request_op::Request as Op,
        response_op::Response as OpResponse,
    },
    mvccpb,
};
use tokio::time::{Instant, timeout_at};
use tonic::{Status, transport::Channel};

use self::{
    dial::{Target, TlsFiles, Transport},
    error::{CallError, is_transport, was_not_sent},
    lane::{Lane, jittered},
    lease::Leases,
    probe::Probe,
};
use super::{
    Expected, Freshness, Got, KeyValue, ListRange, Page, Revision, Storage, StorageError, Watch, WatchRange, Written,
    compactor::CompactionTurn, keys,
};

/// Answers may be as large as gRPC can say; what bounds them is what the caller asks for.
const MAX_MESSAGE: usize = i32::MAX as usize;

/// The key that holds the compaction's state. It lies outside the root, as kube-apiserver's does: all who share an etcd (or
/// the part of it that a proxy gives them) share its history.
const COMPACT_REV_KEY: &str = "compact_rev_key";

/// How to reach etcd and where in it to keep things.
#[derive(Clone, Debug)]
pub struct Etcd3Options {
    /// `--etcd-servers`: `https://HOST:PORT`, `http://HOST:PORT` or `unix:PATH`, at least one. `HOST:PORT` is https when
    /// there is a CA file.
    pub servers: Vec<String>,
    /// `--etcd-prefix`: the root below which all keys lie; slashes at its ends do not matter.
    pub prefix: String,
    /// `--etcd-cafile`: PEM certificates of the CA that signed etcd's certificate. Needed for https.
    pub ca_file: Option<PathBuf>,
    /// `--etcd-certfile`: PEM certificate to show to etcd. This and the other files are read anew for each connection.
    pub cert_file: Option<PathBuf>,
    /// `--etcd-keyfile`: PEM key of that certificate.
    pub key_file: Option<PathBuf>,
    /// How many connections carry calls. Watches have one of their own.
    pub connections: usize,
    /// How long one attempt to connect to one server may take.
    pub dial_timeout: Duration,
    /// How long one call may take, repetitions included.
    pub request_timeout: Duration,
    /// For how long what may be repeated is repeated while etcd cannot be reached.
    pub retry_for: Duration,
    /// After how much silence a connection that is in use is tested. etcd refuses less than 5 s.
    pub keepalive_interval: Duration,
    /// How long the answer to that test may take.
    pub keepalive_timeout: Duration,
    /// How long [`Storage::ready`] waits for an answer.
    pub ready_timeout: Duration,
}

/// What is wrong with [`Etcd3Options`], or why etcd cannot be reached at the start.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// No server was given.
    #[error("no etcd server is given (--etcd-servers)")]
    NoServers,
    /// A server's address cannot be used.
    #[error("etcd server {server:?}: {why}")]
    Server {
        /// As it was given.
        server: String,
        /// What is wrong with it.
        why: String,
    },
    /// Some of the TLS files were given, and others are missing for them to have a meaning.
    #[error("{0}")]
    Tls(&'static str),
    /// A TLS file cannot be used.
    #[error("{}: {why}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A time or number is out of its range.
    #[error("{0}")]
    Range(&'static str),
    /// No server answered.
    #[error("etcd cannot be reached: {0}")]
    Unreachable(String),
}

/// A store in etcd.
pub struct Etcd3 {
    root: Root,
    calls: Vec<Lane>,
    next_call: AtomicUsize,
    watches: Lane,
    leases: Leases,
    probe: Probe,
    request_timeout: Duration,
    retry_for: Duration,
}

/// What all keys begin with: empty, or `/` and more without a slash at the end.
#[derive(Clone, Debug)]
struct Root(Arc<str>);

/// Whether a call may be made again when it is unknown what became of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    Always,
    IfNotSent,
}

// === impl Etcd3Options ===

impl Default for Etcd3Options {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            prefix: "/registry".to_owned(),
            ca_file: None,
            cert_file: None,
            key_file: None,
            connections: 2,
            dial_timeout: Duration::from_secs(20),
            request_timeout: Duration::from_secs(30),
            retry_for: Duration::from_secs(5),
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(10),
            ready_timeout: Duration::from_secs(2),
        }
    }
}

impl Etcd3Options {
    /// Checks the options and connects. Waits until a server answers, for `dial_timeout` at most.
    ///
    /// # Errors
    /// When something is wrong with the options or no server answers.
    pub async fn connect(self) -> Result<Etcd3, OptionsError> {
        let patience = Instant::now() + self.dial_timeout;
        let etcd = self.build().await?;
        loop {
            match etcd.watches.connection().await {
                Ok(_) => return Ok(etcd),
                Err(why) if Instant::now() >= patience => return Err(OptionsError::Unreachable(why)),
                Err(why) => tracing::info!(%why, "waiting for etcd"),
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// Checks the options, and leaves connecting to the first call.
    ///
    /// # Errors
    /// When something is wrong with the options.
    pub async fn build(self) -> Result<Etcd3, OptionsError> {
        let files = self.tls_files()?;
        let targets: Vec<_> =
            self.servers.iter().map(|server| Target::parse(server, files.as_ref())).collect::<Result<_, _>>()?;
        if targets.is_empty() {
            return Err(OptionsError::NoServers);
        }
        if let Some(files) = &files {
            if !targets.iter().any(Target::uses_tls) {
                return Err(OptionsError::Tls("TLS files are given for etcd, but no server is https"));
            }
            files.load().await?;
        }
        if self.keepalive_interval < Duration::from_secs(5) {
            return Err(OptionsError::Range("etcd ends connections that are tested more often than every 5 s"));
        }
        let transport = Transport {
            dial_timeout: self.dial_timeout,
            keepalive_interval: self.keepalive_interval,
            keepalive_timeout: self.keepalive_timeout,
            // Large static windows: a small one makes a long list take a round trip per window, and h2 ends connections
            // on which many small frames wait unread, measured by the connection's window.
            stream_window: 16 << 20,
            connection_window: 128 << 20,
        };
        // Watches whose readers stand still keep a window each, 256 of them before the others are concerned.
        let for_watches = Transport { stream_window: 4 << 20, connection_window: 1 << 30, ..transport };
        let targets: Arc<[Target]> = targets.into();
        let spread: usize = rand::random_range(0..targets.len());
        let root = Root::new(&self.prefix);
        let health = root.key("/health");
        let lane = |transport, number: usize| {
            let first = (spread + number) % targets.len();
            Lane::new(Arc::clone(&targets), transport, health.clone(), first)
        };
        Ok(Etcd3 {
            calls: (0..self.connections.max(1)).map(|number| lane(transport, number)).collect(),
            next_call: AtomicUsize::new(0),
            watches: lane(for_watches, 0),
            leases: Leases::default(),
            probe: Probe::new(health.clone(), self.ready_timeout),
            request_timeout: self.request_timeout,
            retry_for: self.retry_for,
            root,
        })
    }

    fn tls_files(&self) -> Result<Option<TlsFiles>, OptionsError> {
        let identity = match (&self.cert_file, &self.key_file) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            _ => return Err(OptionsError::Tls("--etcd-certfile and --etcd-keyfile go together; one is missing")),
        };
        match (&self.ca_file, identity) {
            (Some(ca), identity) => Ok(Some(TlsFiles { ca: ca.clone(), identity })),
            (None, None) => Ok(None),
            (None, Some(_)) => {
                Err(OptionsError::Tls("--etcd-certfile needs --etcd-cafile, the CA that signed etcd's certificate"))
            }
        }
    }
}

// === impl Root ===

impl Root {
    fn new(prefix: &str) -> Self {
        match prefix.trim_matches('/') {
            "" => Self("".into()),
            prefix => Self(format!("/{prefix}").into()),
        }
    }

    fn key(&self, key: &str) -> Bytes {
        [&*self.0, key].concat().into()
    }

    fn key_value(&self, kv: mvccpb::KeyValue) -> Result<KeyValue, StorageError> {
        let key = str::from_utf8(&kv.key).ok().and_then(|key| key.strip_prefix(&*self.0)).ok_or_else(|| {
            let key = String::from_utf8_lossy(&kv.key);
            StorageError::Internal(format!("etcd has the key {key:?} among those below {:?}", self.0))
        })?;
        Ok(KeyValue { key: key.to_owned(), value: kv.value, mod_revision: self.revision(kv.mod_revision)? })
    }

    fn revision(&self, revision: i64) -> Result<Revision, StorageError> {
        u64::try_from(revision)
            .map(Revision)
            .map_err(|_| StorageError::Internal(format!("etcd sent the revision {revision}")))
    }
}

// === impl Etcd3: calls ===

/// Why an attempt failed, and whether the request certainly was not sent.
struct Failed {
    error: CallError,
    not_sent: bool,
}

impl Etcd3 {
    /// Makes a call, again if it may be and etcd cannot be reached.
    async fn call<T, F>(&self, lane: &Lane, repeat: Repeat, call: impl Fn(Channel) -> F) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let deadline = Instant::now() + self.request_timeout;
        let mut patience = None;
        let mut delay = Duration::ZERO;
        loop {
            let Failed { error, not_sent } = match attempt(lane, deadline, &call).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            // Counted from the first failure, which itself may have taken long to show.
            let patience = deadline.min(*patience.get_or_insert(Instant::now() + self.retry_for));
            let passing = matches!(error, CallError::Storage(StorageError::Unavailable(_) | StorageError::Timeout(_)));
            let pause = jittered(delay);
            if !passing || !(not_sent || repeat == Repeat::Always) || Instant::now() + pause >= patience {
                return Err(error);
            }
            tracing::debug!(%error, ?pause, "trying again");
            tokio::time::sleep(pause).await;
            delay = (delay * 2).clamp(Duration::from_millis(25), Duration::from_secs(1));
        }
    }

    async fn unary<T, F>(&self, repeat: Repeat, call: impl Fn(Channel) -> F) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        self.call(self.next_lane(), repeat, call).await
    }

    fn next_lane(&self) -> &Lane {
        let next = self.next_call.fetch_add(1, Ordering::Relaxed);
        // There is at least one; see `build`.
        self.calls.get(next % self.calls.len().max(1)).unwrap_or(&self.watches)
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, CallError> {
        self.unary(Repeat::Always, |channel| range(channel, request.clone())).await
    }

    async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, CallError> {
        self.unary(Repeat::IfNotSent, |channel| {
            let request = request.clone();
            async move { Ok(kv(channel).txn(request).await?.into_inner()) }
        })
        .await
    }

    /// A read as fresh as asked for: the answer, and the revision of the state it shows.
    async fn read(&self, request: RangeRequest, at: Freshness) -> Result<(RangeResponse, Revision), StorageError> {
        let (request, least) = match at {
            Freshness::Latest => (request, None),
            Freshness::Any => (RangeRequest { serializable: true, ..request }, None),
            // Any member that is up to date will do.
            Freshness::NotOlderThan(revision) => (RangeRequest { serializable: true, ..request }, Some(revision)),
            Freshness::Exact(Revision(0)) => return Err(StorageError::Compacted { oldest: None }),
            Freshness::Exact(revision) => {
                let Ok(revision_there) = i64::try_from(revision.0) else {
                    return Err(self.future(revision).await);
                };
                // What was at a revision does not change, but a member may not know of it yet, so no `serializable`.
                let request = RangeRequest { revision: revision_there, ..request };
                return match self.range(request).await {
                    Ok(answer) => Ok((answer, revision)),
                    Err(CallError::Future) => Err(self.future(revision).await),
                    Err(error) => Err(error.into_storage()),
                };
            }
        };
        let answer = self.range(request.clone()).await.map_err(CallError::into_storage)?;
        let revision = self.header_revision(answer.header.as_ref())?;
        let Some(requested) = least.filter(|least| *least > revision) else {
            return Ok((answer, revision));
        };
        let request = RangeRequest { serializable: false, ..request };
        let answer = self.range(request).await.map_err(CallError::into_storage)?;
        let current = self.header_revision(answer.header.as_ref())?;
        if current < requested { Err(StorageError::Future { requested, current }) } else { Ok((answer, current)) }
    }

    /// The error of a revision that etcd does not know yet, with the one it is at.
    async fn future(&self, requested: Revision) -> StorageError {
        match self.current_revision().await {
            Ok(current) => StorageError::Future { requested, current },
            Err(error) => error,
        }
    }

    fn header_revision(&self, header: Option<&ResponseHeader>) -> Result<Revision, StorageError> {
        let header = header.ok_or_else(|| StorageError::Internal("etcd sent an answer without a header".into()))?;
        self.root.revision(header.revision)
    }

    /// Does `success` if `key` was last written at `expected`; zero is a key that does not exist.
    async fn write(&self, key: Bytes, expected: i64, success: Op) -> Result<Written, CallError> {
        let request = TxnRequest {
            compare: vec![Compare {
                result: CompareResult::Equal.into(),
                target: CompareTarget::Mod.into(),
                key: key.clone(),
                target_union: Some(TargetUnion::ModRevision(expected)),
                ..Compare::default()
            }],
            success: vec![RequestOp { request: Some(success) }],
            failure: vec![RequestOp {
                request: Some(Op::RequestRange(RangeRequest { key, ..RangeRequest::default() })),
            }],
        };
        let answer = self.txn(request).await?;
        if answer.succeeded {
            return Ok(Written::Done(self.header_revision(answer.header.as_ref())?));
        }
        let kv = found(answer)?.map(|kv| self.root.key_value(kv)).transpose()?;
        Ok(Written::Conflict(kv))
    }

    async fn lease(&self, ttl: Duration) -> Result<i64, CallError> {
        let grant = async |ttl| {
            // Repeated at will: a lease that nobody got to know of ends by itself.
            let granted = self.unary(Repeat::Always, |channel| async move {
                let request = LeaseGrantRequest { ttl, id: 0 };
                Ok(LeaseClient::new(channel).lease_grant(request).await?.into_inner())
            });
            let granted = granted.await?;
            if granted.error.is_empty() {
                Ok(granted.id)
            } else {
                Err(StorageError::Internal(format!("etcd grants no lease: {}", granted.error)).into())
            }
        };
        self.leases.lease(ttl, grant).await
    }
}

async fn attempt<T, F>(lane: &Lane, deadline: Instant, call: impl Fn(Channel) -> F) -> Result<T, Failed>
where
    F: Future<Output = Result<T, Status>>,
{
    let failed = |error: StorageError, not_sent| Failed { error: error.into(), not_sent };
    let late = |not_sent| failed(StorageError::Timeout("etcd: no answer in time".into()), not_sent);
    let connection = match timeout_at(deadline, lane.connection()).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(why)) => return Err(failed(StorageError::Unavailable(format!("etcd: {why}")), true)),
        Err(_) => return Err(late(true)),
    };
    match timeout_at(deadline, call(connection.channel.clone())).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(status)) => {
            let error = CallError::from_status(&status);
            let elsewhere = lane.has_alternatives()
                && matches!(error, CallError::Storage(StorageError::Unavailable(_) | StorageError::Timeout(_)));
            if is_transport(&status) || elsewhere {
                lane.give_up(&connection);
            }
            Err(Failed { error, not_sent: was_not_sent(&status) })
        }
        Err(_) => {
            // Nothing says that the connection is still one.
            lane.give_up(&connection);
            Err(late(false))
        }
    }
}

fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(MAX_MESSAGE)
}

async fn range(channel: Channel, request: RangeRequest) -> Result<RangeResponse, Status> {
    Ok(kv(channel).range(request).await?.into_inner())
}

/// The key that a transaction's only operation, a read, found.
fn found(answer: TxnResponse) -> Result<Option<mvccpb::KeyValue>, StorageError> {
    match answer.responses.into_iter().next().and_then(|response| response.response) {
        Some(OpResponse::ResponseRange(range)) => Ok(range.kvs.into_iter().next()),
        _ => Err(StorageError::Internal("etcd answered a read in a transaction with something else".into())),
    }
}

// === impl Etcd3: Storage ===

#[async_trait]
impl Storage for Etcd3 {
    async fn get(&self, key: &str, at: Freshness) -> Result<Got, StorageError> {
        keys::check_key(key)?;
        let request = RangeRequest { key: self.root.key(key), limit: 1, ..RangeRequest::default() };
        let (answer, revision) = self.read(request, at).await?;
        let kv = answer.kvs.into_iter().next().map(|kv| self.root.key_value(kv)).transpose()?;
        Ok(Got { kv, revision })
    }

    async fn list(&self, range: ListRange<'_>) -> Result<Page, StorageError> {
        keys::check_list(&range)?;
        let request = RangeRequest {
            key: self.root.key(range.start.unwrap_or(range.prefix)),
            range_end: self.root.key(&keys::prefix_end(range.prefix)),
            limit: i64::try_from(range.limit).unwrap_or(0),
            ..RangeRequest::default()
        };
        let (answer, revision) = self.read(request, range.at).await?;
        let count = u64::try_from(answer.count).unwrap_or(0);
        let items: Vec<_> = answer.kvs.into_iter().map(|kv| self.root.key_value(kv)).collect::<Result<_, _>>()?;
        let remaining = count.saturating_sub(items.len() as u64);
        Ok(Page { items, revision, remaining })
    }

    async fn put(
        &self,
        key: &str,
        expected: Expected,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Written, StorageError> {
        keys::check_key(key)?;
        let Some(expected) = mod_revision(expected) else {
            return self.never(key).await;
        };
        let key = self.root.key(key);
        let put = |lease| {
            Op::RequestPut(PutRequest { key: key.clone(), value: value.clone(), lease, ..PutRequest::default() })
        };
        let Some(ttl) = ttl else {
            return self.write(key.clone(), expected, put(0)).await.map_err(CallError::into_storage);
        };
        let lease = self.lease(ttl).await.map_err(CallError::into_storage)?;
        match self.write(key.clone(), expected, put(lease)).await {
            // A lease given out again can end early when etcd's clock ran ahead. Nothing was written.
            Err(CallError::LeaseNotFound) => {
                self.leases.forget(lease).await;
                let lease = self.lease(ttl).await.map_err(CallError::into_storage)?;
                self.write(key.clone(), expected, put(lease)).await.map_err(CallError::into_storage)
            }
            written => written.map_err(CallError::into_storage),
        }
    }

    async fn delete(&self, key: &str, expected: Revision) -> Result<Written, StorageError> {
        keys::check_key(key)?;
        let Some(expected) = mod_revision(Expected::At(expected)) else {
            return self.never(key).await;
        };
        let key = self.root.key(key);
        let delete = Op::RequestDeleteRange(DeleteRangeRequest { key: key.clone(), ..DeleteRangeRequest::default() });
        self.write(key, expected, delete).await.map_err(CallError::into_storage)
    }

    async fn watch(&self, range: WatchRange<'_>, after: Revision) -> Result<Watch, StorageError> {
        keys::check_watch(range)?;
        let (key, range_end) = match range {
            WatchRange::Key(key) => (self.root.key(key), Bytes::new()),
            WatchRange::Prefix(prefix) => (self.root.key(prefix), self.root.key(&keys::prefix_end(prefix))),
        };
        let create = WatchCreateRequest {
            key,
            range_end,
            // Beyond what can be said is beyond what will be.
            start_revision: i64::try_from(after.0.saturating_add(1)).unwrap_or(i64::MAX),
            progress_notify: true,
            prev_kv: true,
            // The events of one revision may be more than a message is to hold.
            fragment: true,
            ..WatchCreateRequest::default()
        };
        let opened = self.call(&self.watches, Repeat::Always, |channel| watch::open(channel, create.clone())).await;
        opened.map_err(CallError::into_storage)?.into_watch(self.root.clone())
    }

    async fn current_revision(&self) -> Result<Revision, StorageError> {
        // The cheapest read there is; what it finds does not matter.
        let request = RangeRequest { key: self.root.key("/"), limit: 1, keys_only: true, ..RangeRequest::default() };
        Ok(self.read(request, Freshness::Latest).await?.1)
    }

    async fn compact(&self, revision: Revision) -> Result<(), StorageError> {
        let there = match i64::try_from(revision.0) {
            Ok(0) => return Err(StorageError::Compacted { oldest: None }),
            Ok(there) => there,
            Err(_) => return Err(self.future(revision).await),
        };
        let compacted = self.unary(Repeat::IfNotSent, |channel| async move {
            let request = CompactionRequest { revision: there, physical: false };
            kv(channel).compact(request).await.map(drop)
        });
        match compacted.await {
            Err(CallError::Future) => Err(self.future(revision).await),
            outcome => outcome.map_err(CallError::into_storage),
        }
    }

    async fn ready(&self) -> Result<(), StorageError> {
        let read = async || {
            let request = RangeRequest { key: self.probe.key.clone(), limit: 1, ..RangeRequest::default() };
            let deadline = Instant::now() + self.probe.timeout;
            match attempt(self.next_lane(), deadline, |channel| range(channel, request.clone())).await {
                Ok(_) => Ok(()),
                Err(failed) => Err(failed.error.into_storage()),
            }
        };
        self.probe.ready(read).await
    }

    async fn compaction_turn(&self, turn: &mut CompactionTurn) -> Result<Option<Revision>, StorageError> {
        let key = Bytes::from_static(COMPACT_REV_KEY.as_bytes());
        let last = turn.revision;
        let request = TxnRequest {
            compare: vec![Compare {
                result: CompareResult::Equal.into(),
                target: CompareTarget::Version.into(),
                key: key.clone(),
                target_union: Some(TargetUnion::Version(turn.time)),
                ..Compare::default()
            }],
            success: vec![RequestOp {
                request: Some(Op::RequestPut(PutRequest {
                    key: key.clone(),
                    value: last.0.to_string().into(),
                    ..PutRequest::default()
                })),
            }],
            failure: vec![RequestOp {
                request: Some(Op::RequestRange(RangeRequest { key, ..RangeRequest::default() })),
            }],
        };
        let answer = self.txn(request).await.map_err(CallError::into_storage)?;
        turn.revision = self.header_revision(answer.header.as_ref())?;
        if !answer.succeeded {
            // Somebody else had this turn. Known to be compacted is what that one wrote.
            let kv = found(answer)?.unwrap_or_default();
            turn.time = kv.version;
            let compacted = str::from_utf8(&kv.value).ok().and_then(|text| text.parse().ok());
            return Ok(compacted.filter(|revision| *revision > 0).map(Revision));
        }
        turn.time += 1;
        if last == Revision(0) {
            // The first turn only notes where history is.
            return Ok(None);
        }
        self.compact(last).await?;
        Ok(Some(last))
    }
}

impl Etcd3 {
    /// The outcome of a write whose condition no state of the key meets.
    async fn never(&self, key: &str) -> Result<Written, StorageError> {
        Ok(Written::Conflict(self.get(key, Freshness::Latest).await?.kv))
    }
}

/// What etcd is to compare the key's revision with; zero there is a key that does not exist. `None` where no key compares.
fn mod_revision(expected: Expected) -> Option<i64> {
    match expected {
        Expected::Absent => Some(0),
        Expected::At(Revision(0)) => None,
        Expected::At(revision) => i64::try_from(revision.0).ok(),
    }
}
