//! What locks and elections have in common: sessions, places in a queue, and waiting for one's turn.
//!
//! A queue is the keys under `<name>/`, in the order of their creation. Each key is called after the lease that it is attached
//! to, in hexadecimal, as those of etcd's client libraries are (`client/v3/concurrency`), so that these and the services here
//! stand in the same queue.

use std::time::Duration;

use bytes::Bytes;
use proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp,
    TxnRequest, TxnResponse, WatchCreateRequest,
    range_request::{SortOrder, SortTarget},
    request_op::Request,
    response_op::Response,
};
use proto::mvccpb::event::EventType;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::local::{Ended, Local};
use crate::{compare, limits::Present, tenant::Tenant, upstream::Position};

/// Time to live of a lease that is granted because the client brought none, in seconds (`concurrency/session.go`).
const SESSION_TTL: i64 = 60;
/// How long it is tried to give up a place that nobody waits at any more.
const GIVING_UP: Duration = Duration::from_secs(10);

/// The keys of a lock or an election.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    /// `<name>/`.
    prefix: Bytes,
}

/// A key in a queue.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) key: Bytes,
    /// When the key was created, which tells it from a later one of the same name.
    pub(super) revision: i64,
}

// === impl Queue ===

impl Queue {
    pub(super) fn of(name: &[u8]) -> Self {
        Self { prefix: [name, b"/"].concat().into() }
    }

    /// The key of this lease, whose sign is kept (`%x` of a signed number in Go).
    pub(super) fn key(&self, lease: i64) -> Bytes {
        let sign = if lease < 0 { "-" } else { "" };
        let hex = format!("{sign}{:x}", lease.unsigned_abs());
        [&self.prefix[..], hex.as_bytes()].concat().into()
    }

    /// The key that was created first.
    pub(super) fn first(&self) -> RangeRequest {
        self.top(SortOrder::Ascend)
    }

    /// Watches all keys.
    pub(super) fn watch(&self, start_revision: i64) -> WatchCreateRequest {
        let (key, range_end) = self.range();
        WatchCreateRequest { key, range_end, start_revision, ..Default::default() }
    }

    /// Waits until no key is left that was created up to this revision (`concurrency/key.go`, `waitDeletes`).
    pub(super) async fn wait_deletes(&self, local: &Local, max_create_revision: i64) -> Result<(), Status> {
        let last = RangeRequest { max_create_revision, ..self.top(SortOrder::Descend) };
        loop {
            let range = local.range(&last).await?;
            let Some(kv) = range.kvs.into_iter().next() else { return Ok(()) };
            let start_revision = revision(range.header)?;
            wait_delete(local, WatchCreateRequest { key: kv.key, start_revision, ..Default::default() }).await?;
        }
    }

    fn top(&self, order: SortOrder) -> RangeRequest {
        let (key, range_end) = self.range();
        let (sort_order, sort_target) = (order as i32, SortTarget::Create as i32);
        RangeRequest { key, range_end, limit: 1, sort_order, sort_target, ..Default::default() }
    }

    fn range(&self) -> (Bytes, Bytes) {
        let mut end = self.prefix.to_vec();
        // What follows the `/` at the end.
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        (self.prefix.clone(), end.into())
    }
}

async fn wait_delete(local: &Local, create: WatchCreateRequest) -> Result<(), Status> {
    let mut watch = local.watch(create).await?;
    loop {
        let response = watch.next().await.map_err(|ended: Ended| Status::from(ended))?;
        if response.events.iter().any(|event| event.r#type() == EventType::Delete) {
            return Ok(());
        }
    }
}

// === impl Place ===

impl Place {
    /// Holds as long as the place is taken.
    pub(super) fn taken(&self) -> Compare {
        compare::created_at(self.key.clone(), self.revision)
    }

    /// Deletes the key if it is still this one.
    pub(super) fn give_up(&self) -> TxnRequest {
        let delete = DeleteRangeRequest { key: self.key.clone(), ..Default::default() };
        TxnRequest {
            compare: vec![self.taken()],
            success: vec![op(Request::RequestDeleteRange(delete))],
            failure: Vec::new(),
        }
    }

    /// Gives the place up because nobody waits at it any more. If that fails the key goes with its lease.
    pub(super) async fn abandon(&self, local: &Local) {
        let failed = match timeout(GIVING_UP, local.txn(&self.give_up())).await {
            Ok(Ok(_)) => return,
            Ok(Err(status)) => status.message().to_owned(),
            Err(_) => format!("no answer within {GIVING_UP:?}"),
        };
        // Keys are not for the log.
        tracing::warn!(revision = self.revision, %failed, "the key of a lock or an election that nobody waits for any more could not be deleted; it stays until its lease ends");
    }
}

/// The lease of a call: the one that its client brought, or a new one.
///
/// etcd begins to keep it alive and stops at once (`Session.Orphan`), so it lives for its time to live if its client does not
/// see to it, and it is not revoked when the call ends.
pub(super) async fn session(local: &Local, lease: i64, under_way: &mut Option<Present>) -> Result<i64, Status> {
    match lease {
        0 => Ok(local.grant(SESSION_TTL, under_way).await?.id),
        lease => Ok(lease),
    }
}

/// Does what has to come to its end when the client has gone, of which it is told.
pub(super) async fn outlive<T, F>(tenant: &Tenant, work: impl FnOnce(CancellationToken) -> F) -> Result<T, Status>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Status>> + Send + 'static,
{
    let gone = CancellationToken::new();
    let _tell = gone.clone().drop_guard();
    let done = tenant.outliving().spawn(work(gone)).await;
    done.map_err(|_| Status::internal("etcd-proxy: the call broke off"))?
}

/// What grpc-go makes of a client that has gone.
pub(super) fn cancelled() -> Status {
    Status::cancelled("context canceled")
}

/// The Txn that creates a key with a lease, and does something else if the key is there.
pub(super) fn create(key: &Bytes, value: Bytes, lease: i64, otherwise: Request) -> TxnRequest {
    TxnRequest {
        compare: vec![compare::absent(key.clone())],
        success: vec![put(key.clone(), value, lease)],
        failure: vec![op(otherwise)],
    }
}

pub(super) fn put(key: Bytes, value: Bytes, lease: i64) -> RequestOp {
    op(Request::RequestPut(PutRequest { key, value, lease, ..Default::default() }))
}

/// The range of one key.
pub(super) fn one(key: &Bytes) -> RangeRequest {
    RangeRequest { key: key.clone(), ..Default::default() }
}

pub(super) fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// What the range at this place of a Txn has found.
pub(super) fn ranged(txn: &TxnResponse, index: usize) -> Result<&RangeResponse, Status> {
    match txn.responses.get(index) {
        Some(ResponseOp { response: Some(Response::ResponseRange(range)) }) => Ok(range),
        _ => Err(Status::internal("etcd-proxy: the upstream's answer does not fit the question")),
    }
}

/// The revision in a header.
pub(super) fn revision(header: Option<ResponseHeader>) -> Result<i64, Status> {
    Ok(Position::of(header)?.revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Go prints a lease id, negative ones, too, and the smallest one.
    #[test]
    fn keys_are_called_after_leases() {
        let queue = Queue::of(b"n");
        for (lease, key) in [
            (0x694d_71dd, "n/694d71dd"),
            (-0x6f, "n/-6f"),
            (i64::MAX, "n/7fffffffffffffff"),
            (i64::MIN, "n/-8000000000000000"),
        ] {
            assert_eq!(queue.key(lease), key);
        }
    }

    #[test]
    fn a_queue_is_what_begins_with_its_name_and_a_slash() {
        for (name, key, range_end) in [
            ("a", &b"a/"[..], &b"a0"[..]),
            ("", b"/", b"0"),
            ("a/", b"a//", b"a/0"),
            ("\u{ff}", b"\xc3\xbf/", b"\xc3\xbf0"),
        ] {
            assert_eq!(Queue::of(name.as_bytes()).range(), (Bytes::from(key), Bytes::from(range_end)));
        }
    }
}
