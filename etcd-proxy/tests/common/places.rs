//! Revisions in the stead of places in the history.

use proto::etcdserverpb::{Compare, RangeRequest, RequestOp, TxnRequest, compare::TargetUnion, request_op::Request};

/// The request with what `revision` says in the stead of places.
pub(crate) fn range_at(request: &RangeRequest, revision: &impl Fn(i64) -> i64) -> RangeRequest {
    RangeRequest {
        revision: revision(request.revision),
        min_mod_revision: revision(request.min_mod_revision),
        max_mod_revision: revision(request.max_mod_revision),
        min_create_revision: revision(request.min_create_revision),
        max_create_revision: revision(request.max_create_revision),
        ..request.clone()
    }
}

/// The same for a Txn with all that nests in it.
pub(crate) fn txn_at(request: &TxnRequest, revision: &impl Fn(i64) -> i64) -> TxnRequest {
    let op = |op: &RequestOp| RequestOp {
        request: op.request.as_ref().map(|request| match request {
            Request::RequestRange(range) => Request::RequestRange(range_at(range, revision)),
            Request::RequestTxn(txn) => Request::RequestTxn(txn_at(txn, revision)),
            other => other.clone(),
        }),
    };
    let compare = |compare: &Compare| Compare {
        target_union: compare.target_union.clone().map(|target| match target {
            TargetUnion::CreateRevision(place) => TargetUnion::CreateRevision(revision(place)),
            TargetUnion::ModRevision(place) => TargetUnion::ModRevision(revision(place)),
            other => other,
        }),
        ..compare.clone()
    };
    TxnRequest {
        compare: request.compare.iter().map(compare).collect(),
        success: request.success.iter().map(op).collect(),
        failure: request.failure.iter().map(op).collect(),
    }
}
