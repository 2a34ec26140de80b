//! The hash of a tenant's keys, as etcd makes it of its own (`server/storage/mvcc/hash.go`).
//!
//! etcd hashes the revisions since its last compaction as they are stored, deletions among them, which nobody sees from outside.
//! What can be seen is the state at one revision, and that is all there is in an etcd compacted at it. So this is the hash of
//! that: of an etcd that was restored from the tenant's snapshot of this revision, and of the snapshot's file.

use std::io;

use bytes::BytesMut;
use proto::etcdserverpb::{RangeRequest, ResponseHeader};
use tonic::Status;

use super::{
    ATTEMPTS, Keys, Moment,
    bbolt::Entries as _,
    blocking,
    crc32c::Crc32c,
    is_compacted,
    spool::{KeyEntries, Spool},
};
use crate::{
    tenant::Tenant,
    upstream::{Position, in_time},
};

/// A hash.
#[derive(Clone, Copy, Debug)]
pub struct KvHash {
    /// The upstream's header.
    pub header: Option<ResponseHeader>,
    /// The hash.
    pub hash: u32,
    /// The revision whose state it is of.
    pub revision: i64,
}

/// Hashes the tenant's keys at `revision`, or those of the present if it is 0.
///
/// # Errors
/// etcd's for revisions that are not there yet or any more; and when the upstream cannot be reached, or there is no room for the
/// temporary file.
pub async fn hash(tenant: &Tenant, revision: i64) -> Result<KvHash, Status> {
    let mut attempt = 1;
    loop {
        match hash_once(tenant, revision).await {
            // The present has become the past.
            Err(status) if revision == 0 && is_compacted(&status) && attempt < ATTEMPTS => attempt += 1,
            hashed => return hashed,
        }
    }
}

async fn hash_once(tenant: &Tenant, revision: i64) -> Result<KvHash, Status> {
    let (key, range_end) = tenant.config().prefix.keys();
    let request = RangeRequest { key, range_end, revision, count_only: true, ..Default::default() };
    let answer = in_time(tenant.upstream().kv().range(request)).await?.into_inner();
    let now = Position::of(answer.header)?;
    let revision = if revision == 0 { now.revision } else { revision };
    let mut spool = Spool::new();
    // A Range takes negative revisions for the present; at them there was nothing.
    if revision > 0 {
        let keys = u64::try_from(answer.count).unwrap_or_default();
        let mut keys = Keys::all(tenant, &Moment { revision, keys, cluster_id: now.cluster_id });
        while let Some(page) = keys.next_page().await? {
            spool = blocking(move || spool.append(&page)).await?;
        }
    }
    let hash = blocking(move || of_entries(spool.into_keys(revision))).await?;
    Ok(KvHash { header: answer.header, hash, revision })
}

/// etcd leaves a deletion at the compacted revision out, which is where that of [`super::layout`] stands.
fn of_entries(mut entries: KeyEntries) -> io::Result<u32> {
    let mut crc = Crc32c::new();
    crc.update(b"key");
    let mut value = BytesMut::new();
    for index in 0..entries.keys() {
        value.clear();
        entries.value(index, &mut value)?;
        crc.update(&entries.key(index));
        crc.update(&value);
    }
    Ok(crc.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_the_hash_of_the_buckets_name() {
        let mut name = Crc32c::new();
        name.update(b"key");
        assert_eq!(of_entries(Spool::new().into_keys(9)).unwrap(), name.sum());
    }
}
