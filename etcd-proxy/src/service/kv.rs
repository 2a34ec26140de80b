//! Compact, which moves the tenant's watermark and leaves the shared history alone, or compacts what is old of it, or hands
//! itself on where all of it may go.

use bytes::BytesMut;
use proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse,
    request_op::Request, response_op::Response,
};
use tonic::Status;

use super::unary::{OwnCall, answer};
use crate::{
    compare,
    error::{Denied, EtcdError},
    meta,
    tenant::CompactionPolicy,
    upstream::Position,
};

const COMPACT: &str = "/etcdserverpb.KV/Compact";
const TXN: &str = "/etcdserverpb.KV/Txn";
/// How often the watermark may be moved by others before this compaction gives up.
const ATTEMPTS: usize = 64;
/// The watermark of a tenant that never compacted.
const NONE: i64 = -1;

/// The watermark as it stands upstream.
struct Stored {
    revision: i64,
    /// 0 when there is none.
    mod_revision: i64,
}

/// `KV.Compact`, with etcd's answers (`storage/mvcc/kvstore.go`, `updateCompactRev`).
pub(super) async fn compact(call: OwnCall<'_>) -> Result<BytesMut, Status> {
    let request: CompactionRequest = call.request("etcdserverpb.CompactionRequest")?;
    if call.tenant.config().compaction == CompactionPolicy::Deny {
        return Err(Denied::Compaction.into());
    }
    let revision = request.revision;
    let mut stored = look(&call, revision).await?;
    if call.tenant.config().compaction.hands_on() && revision > stored.revision {
        // What the upstream has no more, the tenant sees no more: there is nothing to note, and no revision is taken for it.
        return answer(&call.ask_by::<CompactionResponse>(COMPACT, &request).await?);
    }
    for _ in 0..ATTEMPTS {
        if revision <= stored.revision {
            return Err(EtcdError::Compacted.into());
        }
        let before = call.tenant.watermark_known();
        let txn: TxnResponse = call.ask_by(TXN, &move_watermark(&call, &stored, revision)).await?;
        let header = txn.header;
        if txn.succeeded {
            // Once this is answered, reads below are refused: this replica knows at once, others by watch.
            call.tenant.watermark_moved(before, revision, Position::of(header)?);
            call.tenant.compact_upstream(revision);
            return answer(&CompactionResponse { header });
        }
        stored = first_watermark(txn)?;
    }
    Err(Status::unavailable("etcd-proxy: the compaction watermark kept moving"))
}

/// Reads the watermark and has the upstream judge the revision: it must be there, and the upstream itself must not have
/// compacted up to it.
async fn look(call: &OwnCall<'_>, revision: i64) -> Result<Stored, Status> {
    let key = call.tenant.watermark_key();
    let mut success = vec![range(RangeRequest { key: key.clone(), ..Default::default() })];
    let probe = |revision| range(RangeRequest { key: key.clone(), revision, count_only: true, ..Default::default() });
    success.extend(probes(revision).into_iter().map(probe));
    let txn: TxnResponse = call.ask_by(TXN, &TxnRequest { success, ..Default::default() }).await?;
    first_watermark(txn)
}

/// Revisions at which a Txn's Ranges fail as a Compact at `revision` would. The revision that an etcd has compacted up to can
/// still be read; the one before cannot. Before 1 that would be 0, which stands for the current revision; but a Txn takes
/// -1, unlike 0, for a revision, and one that is compacted as soon as anything is (`server/etcdserver/txn`, `checkRange`).
fn probes(revision: i64) -> Vec<i64> {
    match revision {
        // Below any watermark.
        ..0 => vec![],
        0 => vec![-1],
        1 => vec![-1, 1],
        2.. => vec![revision - 1, revision],
    }
}

/// The Txn that moves the watermark unless it has moved since, in which case it returns it.
fn move_watermark(call: &OwnCall<'_>, stored: &Stored, revision: i64) -> TxnRequest {
    let key = call.tenant.watermark_key();
    let unmoved = compare::modified_at(key.clone(), stored.mod_revision);
    let put = PutRequest { key: key.clone(), value: meta::encode_watermark(revision), ..Default::default() };
    TxnRequest {
        compare: vec![unmoved],
        success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
        failure: vec![range(RangeRequest { key, ..Default::default() })],
    }
}

fn first_watermark(txn: TxnResponse) -> Result<Stored, Status> {
    let Some(Response::ResponseRange(range)) = txn.responses.into_iter().next().and_then(|op| op.response) else {
        return Err(Status::internal("etcd-proxy: the upstream's answer does not fit the question"));
    };
    match range.kvs.first() {
        None => Ok(Stored { revision: NONE, mod_revision: 0 }),
        Some(kv) => {
            let revision =
                meta::decode_watermark(&kv.value).map_err(|error| Status::internal(format!("etcd-proxy: {error}")))?;
            Ok(Stored { revision, mod_revision: kv.mod_revision })
        }
    }
}

fn range(request: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Request::RequestRange(request)) }
}
