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
mod options;
mod probe;
mod watch;

use std::{
    future::Future,
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

pub use self::options::{Etcd3Options, OptionsError};
use self::{
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
