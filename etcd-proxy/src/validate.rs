//! etcd's checks of a request before it executes it, in etcd's order (`server/etcdserver/api/v3rpc/key.go`).
//!
//! They happen before prefixing: under the prefix an empty key would be a key. Whatever etcd checks later (overlapping
//! operations, revisions, leases, size) is left to the upstream, which sees the same operations in the same order.

use proto::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    range_request::{SortOrder, SortTarget},
    request_op::Request,
};

use crate::error::EtcdError;

/// Checks a Range (`checkRangeRequest`). etcd 3.5 does not look at the sort options, and a target that there is not ends its
/// process: such a request must not reach a shared one.
///
/// # Errors
/// What etcd answers.
pub fn range(request: &RangeRequest) -> Result<(), EtcdError> {
    if request.key.is_empty() {
        return Err(EtcdError::EmptyKey);
    }
    if SortOrder::try_from(request.sort_order).is_err() || SortTarget::try_from(request.sort_target).is_err() {
        return Err(EtcdError::InvalidSortOption);
    }
    Ok(())
}

/// Checks a RangeStream (`checkRangeStreamRequest`).
///
/// # Errors
/// What etcd answers.
pub fn range_stream(request: &RangeRequest) -> Result<(), EtcdError> {
    range(request)?;
    let (order, target) = (request.sort_order, request.sort_target);
    let by_key = target == SortTarget::Key as i32 && order == SortOrder::Ascend as i32;
    if order != SortOrder::None as i32 && !by_key {
        return Err(EtcdError::StreamSortOrder);
    }
    let bounds =
        [request.min_mod_revision, request.max_mod_revision, request.min_create_revision, request.max_create_revision];
    if bounds != [0; 4] { Err(EtcdError::StreamRevisionFilters) } else { Ok(()) }
}

/// Checks a Put (`checkPutRequest`).
///
/// # Errors
/// What etcd answers.
pub fn put(request: &PutRequest) -> Result<(), EtcdError> {
    if request.key.is_empty() {
        return Err(EtcdError::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(EtcdError::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(EtcdError::LeaseProvided);
    }
    Ok(())
}

/// Checks a DeleteRange (`checkDeleteRequest`).
///
/// # Errors
/// What etcd answers.
pub fn delete_range(request: &DeleteRangeRequest) -> Result<(), EtcdError> {
    if request.key.is_empty() { Err(EtcdError::EmptyKey) } else { Ok(()) }
}

/// Checks a Txn with everything nested in it (`checkTxnRequest`). Every level takes what it uses from the operations that
/// the levels below may use, so with the default of 128 operations Txns nest 128 levels deep.
///
/// # Errors
/// What etcd answers.
pub fn txn(request: &TxnRequest, max_ops: usize) -> Result<(), EtcdError> {
    let ops = request.compare.len().max(request.success.len()).max(request.failure.len());
    let Some(left) = max_ops.checked_sub(ops) else {
        return Err(EtcdError::TooManyOps);
    };
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(EtcdError::EmptyKey);
    }
    request.success.iter().chain(&request.failure).try_for_each(|op| request_op(op, left))
}

fn request_op(op: &RequestOp, max_ops: usize) -> Result<(), EtcdError> {
    match &op.request {
        Some(Request::RequestRange(request)) => range(request),
        Some(Request::RequestPut(request)) => put(request),
        Some(Request::RequestDeleteRange(request)) => delete_range(request),
        Some(Request::RequestTxn(request)) => txn(request, max_ops),
        None => Err(EtcdError::KeyNotFound),
    }
}

#[cfg(test)]
mod tests {
    use proto::etcdserverpb::Compare;

    use super::*;

    fn put_op(key: &'static str) -> RequestOp {
        RequestOp { request: Some(Request::RequestPut(PutRequest { key: key.into(), ..Default::default() })) }
    }

    fn txn_op(txn: TxnRequest) -> RequestOp {
        RequestOp { request: Some(Request::RequestTxn(txn)) }
    }

    fn success(ops: Vec<RequestOp>) -> TxnRequest {
        TxnRequest { success: ops, ..Default::default() }
    }

    fn nested(levels: usize) -> TxnRequest {
        (1..levels).fold(success(vec![put_op("a")]), |txn, _| success(vec![txn_op(txn)]))
    }

    #[test]
    fn the_first_fault_in_etcds_order_wins() {
        let empty_compare = Compare::default();
        let both =
            TxnRequest { compare: vec![empty_compare.clone()], success: vec![put_op("a"); 129], failure: vec![] };
        assert_eq!(txn(&both, 128), Err(EtcdError::TooManyOps));
        let compare_first =
            TxnRequest { compare: vec![empty_compare], success: vec![RequestOp::default()], failure: vec![] };
        assert_eq!(txn(&compare_first, 128), Err(EtcdError::EmptyKey));
        let success_first =
            TxnRequest { success: vec![RequestOp::default()], failure: vec![put_op("")], compare: vec![] };
        assert_eq!(txn(&success_first, 128), Err(EtcdError::KeyNotFound));
        let sort = RangeRequest { key: "a".into(), sort_order: 3, ..Default::default() };
        assert_eq!(range(&sort), Err(EtcdError::InvalidSortOption));
        assert_eq!(range(&RangeRequest { sort_target: 9, ..Default::default() }), Err(EtcdError::EmptyKey));
        let put_both = PutRequest {
            key: "a".into(),
            value: "v".into(),
            lease: 1,
            ignore_value: true,
            ignore_lease: true,
            ..Default::default()
        };
        assert_eq!(put(&put_both), Err(EtcdError::ValueProvided));
        assert_eq!(put(&PutRequest { value: "".into(), ..put_both }), Err(EtcdError::LeaseProvided));
    }

    #[test]
    fn levels_share_the_operations() {
        assert_eq!(txn(&nested(128), 128), Ok(()));
        assert_eq!(txn(&nested(129), 128), Err(EtcdError::TooManyOps));
        let mut full = vec![put_op("a"); 127];
        full.push(txn_op(success(vec![put_op("b")])));
        assert_eq!(txn(&success(full), 128), Err(EtcdError::TooManyOps));
    }
}
