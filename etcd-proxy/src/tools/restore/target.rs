//! The prefix that is restored into, and the journal beside it.

use bytes::Bytes;
use proto::{
    etcdserverpb::{
        Compare, DeleteRangeRequest, LeaseRevokeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
        lease_client::LeaseClient, request_op::Request,
    },
    mvccpb::KeyValue,
};
use tonic::{Code, Status};

use super::{RestoreError, say_resumed};
use crate::{
    compare,
    meta::Journal,
    tenant::{DEFAULT_MAX_TXN_OPS, Tenant},
    upstream::Kv,
};

/// Operations in a Txn that are no keys: the journal's.
const JOURNAL_OPS: usize = 1;
/// Keys in a Txn: with the journal they are as many operations as an etcd takes whose `--max-txn-ops` nobody has changed. One
/// with a lower bound refuses the restore.
const BATCH_KEYS: usize = DEFAULT_MAX_TXN_OPS - JOURNAL_OPS;
/// Bytes of keys and values in a Txn, but for one that has more by itself.
const BATCH_BYTES: usize = 512 * 1024;

/// A prefix that is being restored into.
pub(super) struct Target<'a> {
    tenant: &'a Tenant,
    kv: Kv,
    journal: Journal,
    /// The revision of the journal as it was last seen or written.
    written_at: i64,
    /// Whether the keys come after those that the journal counts.
    leased: bool,
    pending: Vec<KeyValue>,
    bytes: usize,
}

// === impl Target ===

impl<'a> Target<'a> {
    /// Begins a restore of the backup with this id, or goes on with one.
    pub(super) async fn open(tenant: &'a Tenant, backup: &str, overwrite: bool) -> Result<Self, RestoreError> {
        let mut kv = tenant.upstream().kv();
        let prefix = &tenant.config().prefix;
        let request = RangeRequest { key: tenant.keys().restore(), ..Default::default() };
        let stored = kv.range(request).await?.into_inner().kvs.into_iter().next();
        if let Some(stored) = &stored {
            let journal = Journal::decode(&stored.value)?;
            if journal.backup == backup {
                say_resumed(&journal.last);
                return Ok(Self::new(tenant, kv, journal, stored.mod_revision));
            }
            if !overwrite {
                return Err(RestoreError::Other { prefix: prefix.clone(), backup: journal.backup });
            }
        }
        let journal = Journal { backup: backup.to_owned(), last: Bytes::new() };
        let mut conditions =
            vec![compare::modified_at(tenant.keys().restore(), stored.map_or(0, |stored| stored.mod_revision))];
        let mut success = Vec::new();
        if overwrite {
            revoke_leases(tenant).await?;
            let (key, range_end) = prefix.all();
            let all = DeleteRangeRequest { key, range_end, ..Default::default() };
            success.push(Request::RequestDeleteRange(all));
        } else {
            conditions.push(compare::none_in(prefix.all()));
        }
        conditions.push(compare::none_in(tenant.keys().lease_marks()));
        success.push(put_journal(tenant, &journal));
        match txn(&mut kv, conditions, success).await? {
            Some(written_at) => Ok(Self::new(tenant, kv, journal, written_at)),
            None => Err(occupied(tenant, &mut kv).await?),
        }
    }

    fn new(tenant: &'a Tenant, kv: Kv, journal: Journal, written_at: i64) -> Self {
        Self { tenant, kv, journal, written_at, leased: false, pending: Vec::new(), bytes: 0 }
    }

    /// From here on come the keys that have a lease.
    pub(super) fn leased(&mut self) {
        self.leased = true;
    }

    /// Writes a key, unless the journal says that it is written; sooner or later.
    pub(super) async fn put(&mut self, kv: KeyValue) -> Result<(), RestoreError> {
        if !self.leased && kv.key <= self.journal.last {
            return Ok(());
        }
        let bytes = kv.key.len() + kv.value.len();
        if self.pending.len() == BATCH_KEYS || (self.bytes + bytes > BATCH_BYTES && !self.pending.is_empty()) {
            self.flush().await?;
        }
        self.bytes += bytes;
        self.pending.push(kv);
        Ok(())
    }

    /// Writes what waits to be written.
    pub(super) async fn flush(&mut self) -> Result<(), RestoreError> {
        let kvs = std::mem::take(&mut self.pending);
        let bytes = std::mem::take(&mut self.bytes);
        let Some(last) = kvs.last() else { return Ok(()) };
        let journal = Journal { last: last.key.clone(), ..self.journal.clone() };
        let single = (kvs.len() == 1).then(|| last.key.clone());
        let prefix = &self.tenant.config().prefix;
        let mut success: Vec<Request> = kvs
            .into_iter()
            .map(|KeyValue { key, value, lease, .. }| {
                Request::RequestPut(PutRequest { key: prefix.key(&key), value, lease, ..Default::default() })
            })
            .collect();
        if !self.leased {
            success.push(put_journal(self.tenant, &journal));
        }
        let compare = vec![compare::modified_at(self.tenant.keys().restore(), self.written_at)];
        match txn(&mut self.kv, compare, success).await {
            Ok(Some(revision)) if !self.leased => (self.journal, self.written_at) = (journal, revision),
            Ok(Some(_)) => {}
            Ok(None) => return Err(RestoreError::Disturbed { prefix: prefix.clone() }),
            Err(status) if status.code() == Code::NotFound && self.leased => return Err(RestoreError::LeaseOver),
            Err(status) => match single {
                Some(key) if status.code() == Code::InvalidArgument => {
                    return Err(RestoreError::Key { key: key.escape_ascii().to_string(), bytes, status });
                }
                _ => return Err(status.into()),
            },
        }
        Ok(())
    }

    /// Ends the restore.
    pub(super) async fn close(mut self) -> Result<(), RestoreError> {
        self.flush().await?;
        let journal = self.tenant.keys().restore();
        let delete = DeleteRangeRequest { key: journal.clone(), ..Default::default() };
        let compare = vec![compare::modified_at(journal, self.written_at)];
        match txn(&mut self.kv, compare, vec![Request::RequestDeleteRange(delete)]).await? {
            Some(_) => Ok(()),
            None => Err(RestoreError::Disturbed { prefix: self.tenant.config().prefix.clone() }),
        }
    }
}

/// The journal of a restore into this tenant, if one is under way.
pub(in crate::tools) async fn journal(tenant: &Tenant) -> Result<Option<Journal>, RestoreError> {
    let request = RangeRequest { key: tenant.keys().restore(), ..Default::default() };
    let stored = tenant.upstream().kv().range(request).await?.into_inner().kvs.into_iter().next();
    Ok(stored.map(|stored| Journal::decode(&stored.value)).transpose()?)
}

/// What is in the way of a restore.
async fn occupied(tenant: &Tenant, kv: &mut Kv) -> Result<RestoreError, Status> {
    let prefix = &tenant.config().prefix;
    let mut count = async |key, range_end| {
        let request = RangeRequest { key, range_end, count_only: true, ..Default::default() };
        Ok::<_, Status>(kv.range(request).await?.into_inner().count)
    };
    let (key, range_end) = prefix.all();
    let keys = count(key, range_end).await?;
    let (marks, marks_end) = tenant.keys().lease_marks();
    let leases = count(marks, marks_end).await?;
    let prefix = prefix.clone();
    Ok(match (keys, leases) {
        (0, 0) => RestoreError::Disturbed { prefix },
        _ => RestoreError::NotEmpty { prefix, keys, leases },
    })
}

/// Refuses a target that is not empty, before any work is done for it.
pub(in crate::tools) async fn check_empty(tenant: &Tenant) -> Result<(), RestoreError> {
    match occupied(tenant, &mut tenant.upstream().kv()).await? {
        RestoreError::Disturbed { .. } => Ok(()),
        error => Err(error),
    }
}

/// Revokes the leases that the tenant has; their keys and marks go with them.
async fn revoke_leases(tenant: &Tenant) -> Result<(), Status> {
    let (key, range_end) = tenant.keys().lease_marks();
    let mut leases = LeaseClient::new(tenant.upstream().unary());
    let mut marks = tenant.upstream().read(key, range_end, 0).names();
    while let Some(page) = marks.next().await? {
        for id in page.iter().filter_map(|mark| tenant.keys().marked_lease(&mark.key)) {
            match leases.lease_revoke(LeaseRevokeRequest { id }).await {
                Ok(_) => {}
                // Over by itself meanwhile.
                Err(status) if status.code() == Code::NotFound => {}
                Err(status) => return Err(status),
            }
        }
    }
    Ok(())
}

/// Does `success` if all of `compare` holds; returns the revision, or `None` if it does not hold.
async fn txn(kv: &mut Kv, compare: Vec<Compare>, success: Vec<Request>) -> Result<Option<i64>, Status> {
    let success = success.into_iter().map(|request| RequestOp { request: Some(request) }).collect();
    let answer = kv.txn(TxnRequest { compare, success, failure: Vec::new() }).await?.into_inner();
    let revision = answer.header.map_or(0, |header| header.revision);
    Ok(answer.succeeded.then_some(revision))
}

fn put_journal(tenant: &Tenant, journal: &Journal) -> Request {
    Request::RequestPut(PutRequest { key: tenant.keys().restore(), value: journal.encode(), ..Default::default() })
}
