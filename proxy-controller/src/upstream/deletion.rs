//! Deleting what a tenant stored.
//!
//! Keys go in pages, each deleted by a Txn that compares the claim under which the deletion was decided. A controller that
//! was paused, lost its leadership and wakes up therefore cannot delete what a later owner of the prefix has written.
//! Leases go after the keys, so that revoking them deletes nothing but their marks. Nothing is remembered outside etcd:
//! after a crash, what is left is deleted by whoever comes next.

use bytes::Bytes;
use etcd_proxy::{
    meta::{Held, TenantKeys},
    prefix::Prefix,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use proto::etcdserverpb::{
    DeleteRangeRequest, LeaseRevokeRequest, RangeRequest, RangeResponse, RequestOp, ResponseOp, TxnRequest,
    lease_client::LeaseClient, request_op::Request, response_op::Response,
};
use tonic::Code;

use super::{PageSize, Shared, SharedError, usage::after};

const DELETE: &str = "delete the tenant's keys";
const REVOKE: &str = "revoke the tenant's leases";

/// Most keys that one Txn deletes: etcd applies a Txn in one go, while everybody else waits.
const KEYS_PER_PAGE: i64 = 500;
/// Leases that are looked up at once.
const LEASES_PER_PAGE: i64 = 100;
/// Leases that are being revoked at a time.
const REVOKED_AT_ONCE: usize = 8;
/// A key that is longer is not repeated in a request, which must stay below etcd's limit (`--max-request-bytes`).
const LONG_KEY: usize = 256 << 10;

/// The deletion of one tenant's data, which goes on step by step.
#[derive(Debug)]
pub struct Deletion {
    shared: Shared,
    prefix: Prefix,
    owner: String,
    uid: String,
    /// The claim under which it happens.
    held: Held,
    tenant: TenantKeys,
    /// Everything before it was deleted in this pass.
    next: Bytes,
    page: PageSize,
    progress: Progress,
}

/// How far a deletion has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Keys that this deletion has deleted.
    pub keys_deleted: i64,
    /// Keys that are left.
    pub keys_left: i64,
    /// Leases that this deletion has revoked.
    pub leases_revoked: i64,
    /// Leases that are left.
    pub leases_left: i64,
}

// === impl Shared ===

impl Shared {
    /// Deletes all keys under `prefix` and revokes the tenant's leases, and reports after every step. An owner that does not
    /// hold the prefix has nothing to delete. The claim stays; [`Shared::release`] verifies that nothing came meanwhile.
    ///
    /// # Errors
    /// As [`Deletion::step`]. What was deleted until then is deleted, and a new call goes on with the rest.
    pub async fn delete_data(
        &self,
        prefix: &Prefix,
        owner: &str,
        uid: &str,
        mut report: impl FnMut(Progress),
    ) -> Result<Progress, SharedError> {
        let Some(mut deletion) = self.deletion(prefix, owner, uid).await? else { return Ok(Progress::default()) };
        while let Some(progress) = deletion.step().await? {
            report(progress);
        }
        Ok(deletion.progress)
    }

    /// Begins the deletion of all that the owner stored under `prefix`; `None` if the owner does not hold it. Nothing is
    /// deleted before the first [`Deletion::step`].
    ///
    /// # Errors
    /// When the claim cannot be read.
    pub async fn deletion(&self, prefix: &Prefix, owner: &str, uid: &str) -> Result<Option<Deletion>, SharedError> {
        let held = self.claim_of(prefix, owner, uid).await?;
        Ok(held.map(|held| Deletion {
            shared: self.clone(),
            prefix: prefix.clone(),
            owner: owner.to_owned(),
            uid: uid.to_owned(),
            held,
            tenant: self.meta.tenant(prefix),
            next: prefix.all().0,
            page: PageSize(KEYS_PER_PAGE),
            progress: Progress::default(),
        }))
    }
}

// === impl Deletion ===

impl Deletion {
    /// Deletes one page of keys or of leases. `None` when nothing is left.
    ///
    /// # Errors
    /// [`SharedError::NotHeld`] once the owner does not hold the prefix any more: nothing of a later owner is touched. Else
    /// when the shared etcd does not do as asked.
    pub async fn step(&mut self) -> Result<Option<Progress>, SharedError> {
        loop {
            let (start, end) = self.prefix.all();
            let mut size = self.page;
            let page = self.read(DELETE, (self.next.clone(), end.clone()), &mut size).await?;
            self.page = size;
            if let Some(last) = page.kvs.last() {
                let until = page_end(&last.key, &end);
                let deleted = self.delete(DELETE, (self.next.clone(), until.clone())).await?;
                self.next = until;
                self.progress.keys_deleted += deleted;
                self.progress.keys_left = (page.count - deleted).max(0);
                return Ok(Some(self.progress));
            }
            self.progress.keys_left = 0;
            if self.next == start {
                break;
            }
            // Something may have come behind: only a pass that finds nothing at all is the last.
            self.next = start;
        }
        self.revoke_some().await
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Revokes some of the tenant's leases. `None` when there are none.
    ///
    /// etcd cannot compare the claim in the request that revokes a lease. A mark that was read under this claim nevertheless
    /// never names a lease of a later owner: the claim is released only when there is no mark, and an heir whom the claim
    /// is given to, keys and leases and all, gets it only after its owner, for whom this deletion works, is gone.
    async fn revoke_some(&mut self) -> Result<Option<Progress>, SharedError> {
        let marks = self.read(REVOKE, self.tenant.lease_marks(), &mut PageSize(LEASES_PER_PAGE)).await?;
        if marks.kvs.is_empty() {
            self.progress.leases_left = 0;
            return Ok(None);
        }
        let found = i64::try_from(marks.kvs.len()).unwrap_or(i64::MAX);
        let this = &*self;
        stream::iter(marks.kvs)
            .map(|mark| this.revoke(mark.key))
            .buffer_unordered(REVOKED_AT_ONCE)
            .try_collect::<()>()
            .await?;
        self.progress.leases_revoked += found;
        self.progress.leases_left = (marks.count - found).max(0);
        Ok(Some(self.progress))
    }

    /// Revokes the lease of a mark; the mark goes with it.
    async fn revoke(&self, mark: Bytes) -> Result<(), SharedError> {
        let named = self.tenant.marked_lease(&mark);
        if let Some(id) = named {
            let mut leases = LeaseClient::new(self.shared.upstream.unary());
            match self.shared.within(REVOKE, leases.lease_revoke(LeaseRevokeRequest { id })).await? {
                Ok(_) => return Ok(()),
                // It expired meanwhile, and took its mark along; unless somebody has put the mark without it.
                Err(status) if status.code() == Code::NotFound => {}
                Err(status) => return Err(self.shared.error(REVOKE, status)),
            }
        } else {
            tracing::warn!(key = %mark.escape_ascii(), "a key among the lease marks names no lease and is deleted");
        }
        self.delete(REVOKE, (mark, Bytes::new())).await.map(drop)
    }

    /// The first keys of a range, without values; `page` becomes smaller if they are too long for so many.
    async fn read(
        &self,
        doing: &'static str,
        (key, range_end): (Bytes, Bytes),
        page: &mut PageSize,
    ) -> Result<RangeResponse, SharedError> {
        let mut kv = self.shared.pages();
        loop {
            let (key, range_end) = (key.clone(), range_end.clone());
            let range = RangeRequest { key, range_end, limit: page.0, keys_only: true, ..Default::default() };
            let request = self.guarded(Request::RequestRange(range));
            let answer = match self.shared.within(doing, kv.txn(request)).await? {
                Ok(answer) => answer.into_inner(),
                Err(status) => {
                    *page = page.after(&status).ok_or_else(|| self.shared.error(doing, status))?;
                    continue;
                }
            };
            let answer = answer.succeeded.then_some(answer.responses).ok_or_else(|| self.not_held())?;
            return Ok(match answer.into_iter().next() {
                Some(ResponseOp { response: Some(Response::ResponseRange(range)) }) => range,
                _ => RangeResponse::default(),
            });
        }
    }

    /// Deletes a range and answers how many keys that were.
    async fn delete(&self, doing: &'static str, (key, range_end): (Bytes, Bytes)) -> Result<i64, SharedError> {
        let delete = Request::RequestDeleteRange(DeleteRangeRequest { key, range_end, prev_kv: false });
        let mut kv = self.shared.pages();
        let answer = self.shared.call(doing, kv.txn(self.guarded(delete))).await?;
        let answer = answer.succeeded.then_some(answer.responses).ok_or_else(|| self.not_held())?;
        Ok(match answer.into_iter().next() {
            Some(ResponseOp { response: Some(Response::ResponseDeleteRange(range)) }) => range.deleted,
            _ => 0,
        })
    }

    /// `request`, if the claim still stands.
    fn guarded(&self, request: Request) -> TxnRequest {
        TxnRequest {
            compare: vec![self.held.stands(&self.shared.meta)],
            success: vec![RequestOp { request: Some(request) }],
            failure: Vec::new(),
        }
    }

    fn not_held(&self) -> SharedError {
        SharedError::NotHeld { prefix: self.prefix.clone(), owner: self.owner.clone(), uid: self.uid.clone() }
    }
}

/// Where a page ends whose last key is `last`: right after it, or, since a long key would not fit into a request beside the
/// rest of it, after all keys that begin as it does. They are long themselves, so there cannot be many.
fn page_end(last: &[u8], end: &Bytes) -> Bytes {
    let beginning = last.get(..LONG_KEY).filter(|beginning| beginning.len() < last.len());
    match beginning.map(|beginning| Prefix::unterminated(Bytes::copy_from_slice(beginning))) {
        Some(Ok(beginning)) => beginning.successor().min(end.clone()),
        Some(Err(_)) => end.clone(),
        None => after(last),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_after_its_last_key_and_within_the_prefix() {
        let end = Bytes::from_static(b"/a0");
        assert_eq!(page_end(b"/a/k", &end), b"/a/k\0"[..]);
        let long = [b"/a/".to_vec(), vec![b'x'; LONG_KEY]].concat();
        let until = page_end(&long, &end);
        assert!(until > long && until.len() <= LONG_KEY && until < end, "{} bytes", until.len());
        let last = [b"/a/".to_vec(), vec![0xff; LONG_KEY]].concat();
        assert_eq!(page_end(&last, &end), end);
    }
}
