//! An etcd in memory: keys with their history, leases, and what every request is answered (etcd 3.7, `server/etcdserver/txn`
//! and `server/storage/mvcc`). Pure: revisions come from outside, since the revision of a shared etcd moves by everybody's
//! writes.

use std::collections::BTreeMap;

use bytes::Bytes;
use proto::{
    etcdserverpb::{
        DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, ResponseHeader,
    },
    mvccpb::KeyValue,
};
use tonic::Code;

use crate::check;

/// What a request is refused with.
pub(crate) type Refusal = (Code, &'static str);

pub(crate) const COMPACTED: Refusal = (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted");
pub(crate) const FUTURE: Refusal = (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision");
pub(crate) const LEASE_NOT_FOUND: Refusal = (Code::NotFound, "etcdserver: requested lease not found");
pub(crate) const LEASE_EXISTS: Refusal = (Code::FailedPrecondition, "etcdserver: lease already exists");
pub(crate) const TTL_TOO_LARGE: Refusal = (Code::OutOfRange, "etcdserver: too large lease TTL");
const KEY_NOT_FOUND: Refusal = (Code::InvalidArgument, "etcdserver: key not found");
/// `lease.MaxLeaseTTL`.
const MAX_TTL: i64 = 9_000_000_000;

/// The etcd of a tenant, or the shared one.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    /// The revision of the shared etcd.
    pub(crate) revision: i64,
    /// The lowest revision that can be read.
    pub(crate) compacted: i64,
    /// TTLs of the leases.
    pub(crate) leases: BTreeMap<i64, i64>,
    /// What became of each key, in order.
    keys: BTreeMap<Bytes, Vec<Change>>,
    /// Every change, in order.
    pub(crate) history: Vec<Change>,
}

/// A key at a revision: its new pair, or none once it is deleted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    pub(crate) revision: i64,
    pub(crate) key: Bytes,
    pub(crate) kv: Option<KeyValue>,
}

/// A write under way: what it has changed so far, which all lies at one revision.
pub(crate) struct Writing<'a> {
    pub(crate) store: &'a mut Store,
    begin: i64,
    first: usize,
}

pub(crate) fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..Default::default() })
}

/// Whether a key lies in a range as etcd reads it.
pub(crate) fn contains(key: &[u8], end: &[u8], candidate: &[u8]) -> bool {
    match end {
        b"" => candidate == key,
        b"\0" => candidate >= key,
        end => candidate >= key && candidate < end,
    }
}

// === impl Store ===

impl Store {
    /// An empty etcd at a revision that it was compacted at.
    pub(crate) fn new(revision: i64) -> Self {
        Self { revision, compacted: revision, leases: BTreeMap::new(), keys: BTreeMap::new(), history: Vec::new() }
    }

    /// The pairs of a range at a revision, in the order of their keys.
    pub(crate) fn at(&self, key: &[u8], end: &[u8], revision: i64) -> Vec<KeyValue> {
        let live = |changes: &Vec<Change>| changes.iter().rfind(|change| change.revision <= revision)?.kv.clone();
        self.keys.iter().filter(|(candidate, _)| contains(key, end, candidate)).filter_map(|(_, c)| live(c)).collect()
    }

    /// One pair at a revision.
    pub(crate) fn get(&self, key: &[u8], revision: i64) -> Option<KeyValue> {
        self.at(key, b"", revision).pop()
    }

    /// The keys that are attached to a lease now.
    pub(crate) fn attached(&self, lease: i64) -> Vec<Bytes> {
        let all = self.at(b"", b"\0", i64::MAX);
        all.into_iter().filter(|kv| kv.lease == lease).map(|kv| kv.key).collect()
    }

    /// Takes over changes that somebody else made.
    pub(crate) fn mirror(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            self.note(change);
        }
    }

    fn note(&mut self, change: Change) {
        self.keys.entry(change.key.clone()).or_default().push(change.clone());
        self.history.push(change);
    }

    /// Begins a write.
    pub(crate) fn write(&mut self) -> Writing<'_> {
        let (begin, first) = (self.revision, self.history.len());
        Writing { store: self, begin, first }
    }

    pub(crate) fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Refusal> {
        check::range(request)?;
        self.execute_range(request, self.revision)
    }

    /// A Range when the store's revision is `now`.
    pub(crate) fn execute_range(&self, request: &RangeRequest, now: i64) -> Result<RangeResponse, Refusal> {
        if request.revision > now {
            return Err(FUTURE);
        }
        let revision = if request.revision <= 0 { now } else { request.revision };
        if revision < self.compacted {
            return Err(COMPACTED);
        }
        let mut kvs = self.at(&request.key, &request.range_end, revision);
        let count = i64::try_from(kvs.len()).unwrap();
        let answer = RangeResponse { header: header(now), count, ..Default::default() };
        if request.count_only {
            return Ok(answer);
        }
        let by_key = request.sort_target == 0;
        let unsorted = request.sort_order == 0 || (by_key && request.sort_order == 1);
        let bounds = [
            (request.max_mod_revision, 0),
            (request.min_mod_revision, 1),
            (request.max_create_revision, 2),
            (request.min_create_revision, 3),
        ];
        let bounded = bounds.iter().any(|(bound, _)| *bound != 0);
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
        // One more than asked for tells whether there are more. What has to be sorted or filtered is read whole; what is
        // sorted without having to be, is not.
        if let Some(limit) = limit
            && unsorted
            && !bounded
        {
            kvs.truncate(limit.saturating_add(1));
        }
        for (bound, which) in bounds.into_iter().filter(|(bound, _)| *bound != 0) {
            kvs.retain(|kv| match which {
                0 => kv.mod_revision <= bound,
                1 => kv.mod_revision >= bound,
                2 => kv.create_revision <= bound,
                _ => kv.create_revision >= bound,
            });
        }
        if request.sort_order == 2 || !by_key {
            let compare = |a: &KeyValue, b: &KeyValue| match request.sort_target {
                1 => a.version.cmp(&b.version),
                2 => a.create_revision.cmp(&b.create_revision),
                3 => a.mod_revision.cmp(&b.mod_revision),
                4 => a.value.cmp(&b.value),
                _ => a.key.cmp(&b.key),
            };
            match request.sort_order {
                2 => kvs.sort_by(|a, b| compare(b, a)),
                _ => kvs.sort_by(compare),
            }
        }
        let more = limit.is_some_and(|limit| kvs.len() > limit);
        if let Some(limit) = limit {
            kvs.truncate(limit);
        }
        if request.keys_only {
            for kv in &mut kvs {
                kv.value = Bytes::new();
                // Answered from the index, which knows no leases.
                if request.sort_target != 4 {
                    kv.lease = 0;
                }
            }
        }
        Ok(RangeResponse { kvs, more, ..answer })
    }

    /// A RangeStream whose parts were put together. Up to ten pairs come in one part.
    pub(crate) fn range_stream(&self, request: &RangeRequest) -> Result<RangeResponse, Refusal> {
        check::range_stream(request)?;
        let mut whole = self.execute_range(request, self.revision)?;
        if request.count_only {
            return Ok(whole);
        }
        whole.count = i64::try_from(whole.kvs.len()).unwrap();
        if let Some(last) = whole.kvs.last().filter(|_| whole.more) {
            let next = [&last.key, b"\0".as_slice()].concat();
            let revision = if request.revision <= 0 { self.revision } else { request.revision };
            whole.count += i64::try_from(self.at(&next, &request.range_end, revision).len()).unwrap();
        }
        Ok(whole)
    }

    pub(crate) fn put(&mut self, request: &PutRequest) -> Result<PutResponse, Refusal> {
        check::put(request)?;
        self.check_put(request)?;
        Ok(self.write().put(request))
    }

    /// What is wrong with a Put once it is executed.
    pub(crate) fn check_put(&self, request: &PutRequest) -> Result<(), Refusal> {
        if request.lease != 0 && !self.leases.contains_key(&request.lease) {
            return Err(LEASE_NOT_FOUND);
        }
        let needed = request.ignore_value || request.ignore_lease;
        if needed && self.get(&request.key, i64::MAX).is_none() {
            return Err(KEY_NOT_FOUND);
        }
        Ok(())
    }

    pub(crate) fn delete_range(&mut self, request: &DeleteRangeRequest) -> Result<DeleteRangeResponse, Refusal> {
        check::delete_range(request)?;
        Ok(self.write().delete_range(request))
    }

    /// Compacts. The revision may be read, those below may not.
    pub(crate) fn compact(&mut self, revision: i64) -> Result<(), Refusal> {
        if revision <= self.compacted {
            return Err(COMPACTED);
        }
        if revision > self.revision {
            return Err(FUTURE);
        }
        self.compacted = revision;
        Ok(())
    }

    pub(crate) fn grant(&mut self, id: i64, ttl: i64) -> Result<(), Refusal> {
        if ttl > MAX_TTL {
            return Err(TTL_TOO_LARGE);
        }
        if self.leases.contains_key(&id) {
            return Err(LEASE_EXISTS);
        }
        self.leases.insert(id, ttl);
        Ok(())
    }

    /// Ends a lease, and with it its keys in their order.
    pub(crate) fn revoke(&mut self, id: i64) -> Result<(), Refusal> {
        self.leases.remove(&id).ok_or(LEASE_NOT_FOUND)?;
        let keys = self.attached(id);
        let mut writing = self.write();
        for key in keys {
            writing.delete(key);
        }
        Ok(())
    }
}

// === impl Writing ===

impl Writing<'_> {
    /// The store's revision as this write sees it.
    pub(crate) fn now(&self) -> i64 {
        self.begin + i64::from(self.changed())
    }

    pub(crate) fn changed(&self) -> bool {
        self.store.history.len() > self.first
    }

    pub(crate) fn put(&mut self, request: &PutRequest) -> PutResponse {
        let revision = self.begin + 1;
        let before = self.store.get(&request.key, i64::MAX);
        let (create_revision, version) = before.as_ref().map_or((revision, 0), |kv| (kv.create_revision, kv.version));
        let value = match &before {
            Some(before) if request.ignore_value => before.value.clone(),
            _ => request.value.clone(),
        };
        let lease = match &before {
            Some(before) if request.ignore_lease => before.lease,
            _ => request.lease,
        };
        let key = request.key.clone();
        let kv =
            KeyValue { key: key.clone(), value, create_revision, mod_revision: revision, version: version + 1, lease };
        self.store.note(Change { revision, key, kv: Some(kv) });
        PutResponse { header: header(revision), prev_kv: before.filter(|_| request.prev_kv) }
    }

    pub(crate) fn delete_range(&mut self, request: &DeleteRangeRequest) -> DeleteRangeResponse {
        let found = self.store.at(&request.key, &request.range_end, i64::MAX);
        let deleted = i64::try_from(found.len()).unwrap();
        for kv in &found {
            self.delete(kv.key.clone());
        }
        let prev_kvs = if request.prev_kv { found } else { Vec::new() };
        DeleteRangeResponse { header: header(self.now()), deleted, prev_kvs }
    }

    fn delete(&mut self, key: Bytes) {
        self.store.note(Change { revision: self.begin + 1, key, kv: None });
    }
}
