//! The keys and leases of a tenant at one revision, as the tenant sees them.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use proto::{
    etcdserverpb::{
        LeaseTimeToLiveRequest, RangeRequest, StatusRequest, lease_client::LeaseClient,
        maintenance_client::MaintenanceClient,
    },
    mvccpb::KeyValue,
};
use tonic::Status;

use crate::{
    error::EtcdError,
    lease_id::CipherError,
    rewrite::Interrupt,
    tenant::Tenant,
    upstream::{Position, Reader, after, in_time},
};

/// What reads like this. HashKV does, too.
const SNAPSHOT: &str = "/etcdserverpb.Maintenance/Snapshot";
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
    reader: Reader,
    /// How many are read so far, and how many there are.
    read: u64,
    total: u64,
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
    let status = in_time(maintenance.status(StatusRequest {})).await?.into_inner();
    tenant.view().check_status(&status)?;
    Ok(status.storage_version)
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
    let cipher = tenant.leases().await?;
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
    let (key, range_end) = tenant.keys().lease_marks();
    let mut marks = tenant.upstream().read(key, range_end, revision).names();
    let mut ids = Vec::new();
    while let Some(page) = marks.next().await? {
        ids.extend(page.iter().filter_map(|mark| tenant.keys().marked_lease(&mark.key)));
    }
    Ok(ids)
}

fn internal(error: CipherError) -> Status {
    Status::internal(format!("etcd-proxy: {error}"))
}

// === impl Keys ===

impl Keys {
    /// All keys of a moment.
    pub fn all(tenant: &Tenant, moment: &Moment) -> Self {
        let (start, _) = tenant.config().prefix.keys();
        Self::from(tenant, moment, start, 0)
    }

    /// Those after `last`, up to which `read` keys have been read before.
    pub fn after(tenant: &Tenant, moment: &Moment, last: &[u8], read: u64) -> Self {
        Self::from(tenant, moment, after(&tenant.config().prefix.key(last)), read)
    }

    fn from(tenant: &Tenant, moment: &Moment, start: Bytes, read: u64) -> Self {
        let reader = tenant.upstream().read(start, tenant.config().prefix.successor(), moment.revision);
        Self { tenant: tenant.clone(), reader, read, total: moment.keys }
    }

    /// The next keys; `None` when all have been read.
    ///
    /// # Errors
    /// When the upstream cannot be reached or has compacted the revision ([`is_compacted`]), when it holds back a part of the
    /// keys, or gives one that is not the tenant's.
    pub async fn next_page(&mut self) -> Result<Option<Vec<KeyValue>>, Status> {
        let Some(mut kvs) = self.reader.next().await? else {
            let (read, total) = (self.read, self.total);
            return match read == total {
                true => Ok(None),
                false => Err(Status::internal(format!("etcd-proxy: the upstream gave {read} keys of {total}"))),
            };
        };
        self.read += kvs.len() as u64;
        for kv in &mut kvs {
            self.map(kv).await?;
        }
        Ok(Some(kvs))
    }

    /// What the tenant sees of a key.
    async fn map(&self, kv: &mut KeyValue) -> Result<(), Status> {
        match self.tenant.config().prefix.strip(&kv.key) {
            Ok(key) => kv.key = kv.key.slice_ref(key),
            Err(_) => {
                self.tenant.resolve(Interrupt::Foreign, SNAPSHOT).await?;
            }
        }
        if kv.lease != 0 {
            kv.lease = self.tenant.leases().await?.to_tenant(kv.lease).map_err(internal)?;
        }
        Ok(())
    }
}
