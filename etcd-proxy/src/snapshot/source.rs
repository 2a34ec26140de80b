//! The keys and leases of a tenant at one revision, as the tenant sees them.

use std::{collections::BTreeSet, time::Duration};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{StreamExt as _, TryStreamExt as _};
use proto::{
    etcdserverpb::{
        LeaseTimeToLiveRequest, RangeRequest, RangeStreamResponse, StatusRequest, kv_client::KvClient,
        lease_client::LeaseClient, maintenance_client::MaintenanceClient,
    },
    mvccpb::KeyValue,
};
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};

use crate::{
    error::EtcdError,
    lease_id::CipherError,
    rewrite::Interrupt,
    tenant::Tenant,
    upstream::{Kv, Position, Upstream},
};

/// Keys in an answer of an upstream without RangeStream, which cannot say how many bytes it would have. Each may have
/// `--max-request-bytes`.
const PAGE_KEYS: i64 = 128;
/// Lease marks in an answer.
const PAGE_MARKS: i64 = 10_000;
/// How long the upstream may take for an answer, or for the next part of one. Who reads a tenant whole has a place that others
/// wait for.
const STAGE: Duration = Duration::from_secs(30);
/// Leases that are asked for at a time.
const LOOK_UPS: usize = 16;
/// The time to live of a lease that was there at the revision and is over by now, in seconds. etcd makes it as long as the
/// shortest that it has. So the lease's keys go soon after a restore, as they went.
const OVER: i64 = 1;

/// A revision and what the tenant has at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The revision.
    pub revision: i64,
    /// How many keys it has.
    pub keys: u64,
    /// The id of the upstream's cluster.
    pub cluster_id: u64,
}

/// A lease of the tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantLease {
    /// The tenant's id of it.
    pub id: i64,
    /// The time to live it was granted, in seconds.
    pub ttl: i64,
    /// What was left of that when it was read, in seconds.
    pub remaining: i64,
}

/// Reads keys in their order.
pub struct Keys {
    tenant: Tenant,
    revision: i64,
    /// Where the next page starts, on the upstream.
    start: Bytes,
    /// How many are read so far, and how many there are.
    read: u64,
    total: u64,
    way: Way,
}

/// How keys are read.
enum Way {
    /// By RangeStream, if the upstream has it.
    Untried,
    Stream(Box<Streaming<RangeStreamResponse>>),
    Pages,
    Done,
}

/// Whether the upstream has compacted what was asked for.
pub fn is_compacted(status: &Status) -> bool {
    status.code() == EtcdError::Compacted.code() && status.message() == EtcdError::Compacted.text()
}

/// The present moment.
///
/// # Errors
/// When the upstream cannot be reached.
pub async fn moment(tenant: &Tenant) -> Result<Moment, Status> {
    let prefix = &tenant.config().prefix;
    let (key, range_end) = prefix.keys();
    let request = RangeRequest { key, range_end, count_only: true, ..Default::default() };
    let answer = in_time(tenant.upstream().kv().range(request)).await?.into_inner();
    let Position { cluster_id, revision } = Position::of(answer.header)?;
    let keys = u64::try_from(answer.count).unwrap_or_default();
    Ok(Moment { revision, keys, cluster_id })
}

/// The version of the storage of the member that answers; empty before etcd 3.6.
pub(super) async fn storage_version(tenant: &Tenant) -> Result<String, Status> {
    let mut maintenance = MaintenanceClient::new(tenant.upstream().unary());
    Ok(in_time(maintenance.status(StatusRequest {})).await?.into_inner().storage_version)
}

/// The leases that the tenant had at `revision`: those of its marks, and `held`, the tenant's ids of those that its keys
/// have (a lease of a former grpc-proxy has no mark). In the order of their ids.
///
/// # Errors
/// When the upstream cannot be reached, or has compacted the revision.
pub async fn leases(tenant: &Tenant, revision: i64, held: BTreeSet<i64>) -> Result<Vec<TenantLease>, Status> {
    let marked = marked_leases(tenant, revision).await?;
    if marked.is_empty() && held.is_empty() {
        return Ok(Vec::new());
    }
    let cipher = in_time(tenant.leases()).await?;
    let mut ids = held;
    for id in marked {
        ids.insert(cipher.to_tenant(id).map_err(internal)?);
    }
    let look_up = |id: i64| async move {
        let request = LeaseTimeToLiveRequest { id: cipher.to_upstream(id).map_err(internal)?, keys: false };
        let mut client = LeaseClient::new(tenant.upstream().unary());
        let answer = in_time(client.lease_time_to_live(request)).await?.into_inner();
        let (ttl, remaining) = if answer.ttl > 0 { (answer.granted_ttl, answer.ttl) } else { (OVER, OVER) };
        Ok::<_, Status>(TenantLease { id, ttl, remaining })
    };
    futures::stream::iter(ids.into_iter().map(look_up)).buffered(LOOK_UPS).try_collect().await
}

/// The upstream's ids of the marked leases.
async fn marked_leases(tenant: &Tenant, revision: i64) -> Result<Vec<i64>, Status> {
    let (mut start, range_end) = tenant.keys().lease_marks();
    let mut kv = tenant.upstream().kv();
    let mut ids = Vec::new();
    loop {
        let marks = page(&mut kv, start, range_end.clone(), revision, PAGE_MARKS, true).await?;
        ids.extend(marks.kvs.iter().filter_map(|mark| tenant.keys().marked_lease(&mark.key)));
        match marks.next {
            Some(next) => start = next,
            None => return Ok(ids),
        }
    }
}

struct Page {
    kvs: Vec<KeyValue>,
    /// Where the next one starts, if there is one.
    next: Option<Bytes>,
}

async fn page(
    kv: &mut Kv,
    key: Bytes,
    range_end: Bytes,
    revision: i64,
    limit: i64,
    keys_only: bool,
) -> Result<Page, Status> {
    let request = RangeRequest { key, range_end, revision, limit, keys_only, ..Default::default() };
    let answer = in_time(kv.range(request)).await?.into_inner();
    let next = answer.more.then(|| answer.kvs.last().map(|last| after(&last.key))).flatten();
    Ok(Page { kvs: answer.kvs, next })
}

async fn in_time<T>(asked: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    timeout(STAGE, asked).await.unwrap_or_else(|_| {
        Err(Status::unavailable(format!(
            "etcd-proxy: the upstream gave no answer within {STAGE:?} while the tenant was read"
        )))
    })
}

/// The key that comes next after `key`.
pub(crate) fn after(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}

fn internal(error: CipherError) -> Status {
    Status::internal(format!("etcd-proxy: {error}"))
}

// === impl Keys ===

impl Keys {
    /// All keys of a moment.
    pub fn all(tenant: &Tenant, moment: &Moment) -> Self {
        let (start, _) = tenant.config().prefix.keys();
        Self {
            tenant: tenant.clone(),
            revision: moment.revision,
            start,
            read: 0,
            total: moment.keys,
            way: Way::Untried,
        }
    }

    /// Those after `last`, up to which `read` keys have been read before.
    pub fn after(tenant: &Tenant, moment: &Moment, last: &[u8], read: u64) -> Self {
        let start = after(&tenant.config().prefix.key(last));
        Self { start, read, ..Self::all(tenant, moment) }
    }

    /// The next keys; `None` when all have been read.
    ///
    /// # Errors
    /// When the upstream cannot be reached or has compacted the revision ([`is_compacted`]), when it holds back a part of the
    /// keys, or gives one that is not the tenant's.
    pub async fn next_page(&mut self) -> Result<Option<Vec<KeyValue>>, Status> {
        loop {
            let mut kvs = match &mut self.way {
                Way::Untried => {
                    self.way = self.open().await?;
                    continue;
                }
                Way::Stream(stream) => match in_time(stream.message()).await {
                    Ok(Some(answer)) => answer.range_response.map(|range| range.kvs).unwrap_or_default(),
                    Ok(None) => {
                        self.way = Way::Done;
                        continue;
                    }
                    Err(status) if status.code() == Code::Unimplemented => {
                        self.way = Way::Pages;
                        continue;
                    }
                    Err(status) => return Err(status),
                },
                Way::Pages => {
                    let (kv, range_end) = (&mut self.tenant.upstream().kv(), self.tenant.config().prefix.successor());
                    let page = page(kv, self.start.clone(), range_end, self.revision, PAGE_KEYS, false).await?;
                    match page.next {
                        Some(next) => self.start = next,
                        None => self.way = Way::Done,
                    }
                    page.kvs
                }
                Way::Done if self.read == self.total => return Ok(None),
                Way::Done => {
                    let (read, total) = (self.read, self.total);
                    return Err(Status::internal(format!("etcd-proxy: the upstream gave {read} keys of {total}")));
                }
            };
            if kvs.is_empty() {
                continue;
            }
            self.read += kvs.len() as u64;
            for kv in &mut kvs {
                self.map(kv).await?;
            }
            return Ok(Some(kvs));
        }
    }

    async fn open(&self) -> Result<Way, Status> {
        let request = RangeRequest {
            key: self.start.clone(),
            range_end: self.tenant.config().prefix.successor(),
            revision: self.revision,
            ..Default::default()
        };
        match in_time(ranges(self.tenant.upstream()).range_stream(request)).await {
            Ok(stream) => Ok(Way::Stream(Box::new(stream.into_inner()))),
            Err(status) if status.code() == Code::Unimplemented => Ok(Way::Pages),
            Err(status) => Err(status),
        }
    }

    /// What the tenant sees of a key.
    async fn map(&self, kv: &mut KeyValue) -> Result<(), Status> {
        match self.tenant.config().prefix.strip(&kv.key) {
            Ok(key) => kv.key = key,
            Err(_) => {
                self.tenant.resolve(Interrupt::Foreign).await?;
            }
        }
        if kv.lease != 0 {
            kv.lease = self.tenant.leases().await?.to_tenant(kv.lease).map_err(internal)?;
        }
        Ok(())
    }
}

fn ranges(upstream: &Upstream) -> Kv {
    KvClient::new(upstream.ranges()).max_decoding_message_size(usize::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_is_silent_is_not_waited_for() {
        let begun = Instant::now();
        let status = in_time(std::future::pending::<Result<(), Status>>()).await.unwrap_err();
        assert_eq!((status.code(), begun.elapsed()), (Code::Unavailable, STAGE));
    }
}
