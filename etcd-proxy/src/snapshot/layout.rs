//! The buckets of an etcd's database (`server/storage/schema`), for a store that begins at one revision.
//!
//! The file holds what was there at revision R and no history. That is the state of an etcd whose last compaction was at R and
//! is finished, so both compaction revisions of the bucket `meta` are R: an etcd that is restored from it answers reads
//! and watches below R with "compacted" instead of with nothing.
//!
//! The revision of a restored etcd is the greatest in the bucket `key`, and `etcdutl` counts from there when it is to bump
//! revisions; but the last change upstream may have been somebody else's. Then a tombstone of the empty key, which no client
//! can ask for, ends the bucket at R. (`etcdutl snapshot restore --bump-revision` puts that same key for the same reason.)
//!
//! What belongs to a member (its index and term, the members) is left out: restoring makes it anew.

use bytes::Bytes;
use prost::Message;

use super::{bbolt::Bucket, source::TenantLease, spool::KeyEntries};

/// Main revision, `_`, sub revision (`server/storage/mvcc/revision.go`).
const REVISION_LEN: usize = 17;
/// The same with its mark.
pub(super) const TOMBSTONE_LEN: usize = REVISION_LEN + 1;

/// The buckets that etcd makes and that stay empty here.
const EMPTY: [&str; 7] = ["alarm", "auth", "authRoles", "authUsers", "cluster", "members", "members_removed"];

/// What the database is to hold.
pub(super) struct Database<'a> {
    pub(super) revision: i64,
    /// Of the storage; empty for etcd 3.5, which does not write it.
    pub(super) version: &'a str,
    pub(super) leases: &'a [TenantLease],
    pub(super) keys: KeyEntries,
}

/// etcd's form of a lease (`server/lease/leasepb`).
#[derive(Clone, PartialEq, Message)]
struct StoredLease {
    #[prost(int64, tag = "1")]
    id: i64,
    /// In seconds.
    #[prost(int64, tag = "2")]
    ttl: i64,
    /// What a checkpoint wrote. Without one, as by default, a lease lives anew for its whole time when an etcd starts, so
    /// that its holder has time to come back.
    #[prost(int64, tag = "3")]
    remaining_ttl: i64,
}

/// The buckets of the database.
pub(super) fn buckets(database: Database<'_>) -> Vec<Bucket> {
    let Database { revision, version, leases, keys } = database;
    let mut buckets: Vec<Bucket> = EMPTY.map(|name| Bucket::new(name, Vec::new())).into();
    buckets.push(Bucket::new("key", keys));
    buckets.push(Bucket::new("lease", lease_entries(leases)));
    buckets.push(Bucket::new("meta", meta_entries(revision, version)));
    buckets
}

fn lease_entries(leases: &[TenantLease]) -> Vec<(Bytes, Bytes)> {
    let entry = |lease: &TenantLease| {
        let stored = StoredLease { id: lease.id, ttl: lease.ttl, remaining_ttl: 0 };
        (Bytes::copy_from_slice(&lease.id.to_be_bytes()), stored.encode_to_vec().into())
    };
    let mut entries: Vec<(Bytes, Bytes)> = leases.iter().map(entry).collect();
    // As bytes negative ids come last.
    entries.sort_unstable();
    entries
}

fn meta_entries(compacted: i64, version: &str) -> Vec<(Bytes, Bytes)> {
    let compacted = Bytes::copy_from_slice(&revision(compacted, 0));
    let mut entries: Vec<(Bytes, Bytes)> =
        vec![("finishedCompactRev".into(), compacted.clone()), ("scheduledCompactRev".into(), compacted)];
    if !version.is_empty() {
        entries.push(("storageVersion".into(), version.to_owned().into()));
    }
    entries
}

/// The key of an entry of the bucket `key`.
pub(super) fn revision(main: i64, sub: u32) -> [u8; REVISION_LEN] {
    let mut key = [b'_'; REVISION_LEN];
    let (left, right) = key.split_at_mut(8);
    left.copy_from_slice(&main.to_be_bytes());
    if let Some(right) = right.get_mut(1..) {
        right.copy_from_slice(&u64::from(sub).to_be_bytes());
    }
    key
}

/// The key of an entry that says that a key was deleted.
pub(super) fn tombstone(main: i64) -> [u8; TOMBSTONE_LEN] {
    let mut key = [b't'; TOMBSTONE_LEN];
    if let Some(plain) = key.first_chunk_mut() {
        *plain = revision(main, 0);
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_etcds_form() {
        assert_eq!(revision(258, 1), *b"\0\0\0\0\0\0\x01\x02_\0\0\0\0\0\0\0\x01");
        assert_eq!(tombstone(2), *b"\0\0\0\0\0\0\0\x02_\0\0\0\0\0\0\0\0t");
    }

    #[test]
    fn leases_in_the_order_of_their_bytes() {
        let lease = |id| TenantLease { id, ttl: 60, remaining: 7 };
        let entries = lease_entries(&[lease(-7), lease(5)]);
        assert_eq!(entries[0].0, [0, 0, 0, 0, 0, 0, 0, 5][..]);
        assert_eq!(entries[0].1, [8, 5, 16, 60][..]);
        assert_eq!(entries[1].0, (-7i64).to_be_bytes()[..]);
    }
}
