//! The lock service, as etcd carries it out (`server/etcdserver/api/v3lock`, `client/v3/concurrency/mutex.go`).

use bytes::{Bytes, BytesMut};
use proto::{
    etcdserverpb::{DeleteRangeRequest, TxnRequest, request_op::Request},
    v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse},
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    concurrency::{Place, Queue, cancelled, create, one, op, outlive, ranged, revision, session},
    local::Local,
    unary::{OwnCall, answer},
};

/// `concurrency.ErrSessionExpired`.
const SESSION_EXPIRED: &str = "mutex: session is expired";

/// `Lock.Lock`.
pub(super) async fn lock(call: OwnCall<'_>) -> Result<BytesMut, Status> {
    let request: LockRequest = call.request("v3lockpb.LockRequest")?;
    let local = call.local();
    let mut under_way = Some(call.tenant.limits().unary()?);
    let lease = session(&local, request.lease, &mut under_way).await?;
    let queue = Queue::of(&request.name);
    let key = queue.key(lease);
    let txn = local.txn(&acquire(&queue, &key, lease)).await?;
    let mut place = Place { key, revision: revision(txn.header)? };
    if !txn.succeeded
        && let Some(kv) = ranged(&txn, 0)?.kvs.first()
    {
        place.revision = kv.create_revision;
    }
    if ranged(&txn, 1)?.kvs.first().is_none_or(|owner| owner.create_revision == place.revision) {
        return answer(&LockResponse { header: txn.header, key: place.key });
    }
    // Who waits is counted among the watches from here on, or the tenant could not unlock for all that wait.
    drop(under_way);
    let local = local.detached();
    let locked = outlive(call.tenant, |gone| wait(local, queue, place, gone)).await?;
    answer(&locked)
}

/// `Lock.Unlock`: deletes whatever key it is given.
pub(super) async fn unlock(call: OwnCall<'_>) -> Result<BytesMut, Status> {
    let request: UnlockRequest = call.request("v3lockpb.UnlockRequest")?;
    let delete = DeleteRangeRequest { key: request.key, ..Default::default() };
    let deleted = call.local().delete_range(&delete).await?;
    answer(&UnlockResponse { header: deleted.header })
}

/// Takes a place in the queue, or finds the one that the lease has there already, and looks who is first.
fn acquire(queue: &Queue, key: &Bytes, lease: i64) -> TxnRequest {
    let owner = op(Request::RequestRange(queue.first()));
    let mut txn = create(key, Bytes::new(), lease, Request::RequestRange(one(key)));
    txn.success.push(owner.clone());
    txn.failure.push(owner);
    txn
}

/// Waits for one's turn. The place is given up if that fails or the client has gone.
async fn wait(local: Local, queue: Queue, place: Place, gone: CancellationToken) -> Result<LockResponse, Status> {
    let turn = async {
        queue.wait_deletes(&local, place.revision.saturating_sub(1)).await?;
        // The lease may have ended meanwhile, and the key with it.
        local.range(&one(&place.key)).await
    };
    let failed = match gone.run_until_cancelled(turn).await {
        Some(Ok(range)) if range.kvs.is_empty() => return Err(Status::unknown(SESSION_EXPIRED)),
        Some(Ok(range)) => return Ok(LockResponse { header: range.header, key: place.key }),
        Some(Err(status)) => status,
        None => cancelled(),
    };
    place.abandon(&local).await;
    Err(failed)
}
