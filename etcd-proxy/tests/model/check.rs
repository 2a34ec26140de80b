//! etcd's checks before it executes a request (`server/etcdserver/api/v3rpc/key.go`), written anew: the proxy's own are what
//! is tested.

use std::collections::BTreeSet;

use bytes::Bytes;
use proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, compare::TargetUnion,
    request_op::Request,
};
use tonic::Code;

use crate::store::Refusal;

const EMPTY_KEY: Refusal = (Code::InvalidArgument, "etcdserver: key is not provided");
const EMPTY_OP: Refusal = (Code::InvalidArgument, "etcdserver: key not found");
const VALUE_PROVIDED: Refusal = (Code::InvalidArgument, "etcdserver: value is provided");
const LEASE_PROVIDED: Refusal = (Code::InvalidArgument, "etcdserver: lease is provided");
const SORT_OPTION: Refusal = (Code::InvalidArgument, "etcdserver: invalid sort option");
const TOO_MANY_OPS: Refusal = (Code::InvalidArgument, "etcdserver: too many operations in txn request");
const DUPLICATE_KEY: Refusal = (Code::InvalidArgument, "etcdserver: duplicate key given in txn request");
const SORTED_STREAM: Refusal = (Code::Unimplemented, "RangeStream does not support custom sort orders");
const FILTERED_STREAM: Refusal = (Code::Unimplemented, "RangeStream does not support revision filters");
/// What only the proxy refuses: lease ids keep no order.
const LEASE_ORDER: Refusal =
    (Code::Unimplemented, "etcd-proxy: lease ids have no order here; compare a lease by EQUAL or NOT_EQUAL, or with 0");
const MAX_OPS: usize = 128;

pub(crate) fn range(request: &RangeRequest) -> Result<(), Refusal> {
    if request.key.is_empty() {
        return Err(EMPTY_KEY);
    }
    let known = (0..=2).contains(&request.sort_order) && (0..=4).contains(&request.sort_target);
    if known { Ok(()) } else { Err(SORT_OPTION) }
}

pub(crate) fn range_stream(request: &RangeRequest) -> Result<(), Refusal> {
    range(request)?;
    if request.sort_order != 0 && (request.sort_target, request.sort_order) != (0, 1) {
        return Err(SORTED_STREAM);
    }
    let bounds =
        [request.min_mod_revision, request.max_mod_revision, request.min_create_revision, request.max_create_revision];
    if bounds == [0; 4] { Ok(()) } else { Err(FILTERED_STREAM) }
}

pub(crate) fn put(request: &PutRequest) -> Result<(), Refusal> {
    match request {
        PutRequest { key, .. } if key.is_empty() => Err(EMPTY_KEY),
        PutRequest { ignore_value: true, value, .. } if !value.is_empty() => Err(VALUE_PROVIDED),
        PutRequest { ignore_lease: true, lease, .. } if *lease != 0 => Err(LEASE_PROVIDED),
        _ => Ok(()),
    }
}

pub(crate) fn delete_range(request: &DeleteRangeRequest) -> Result<(), Refusal> {
    if request.key.is_empty() { Err(EMPTY_KEY) } else { Ok(()) }
}

/// Checks a Txn. `mapped` says whether it comes through a proxy, which maps leases and the open end of a range.
pub(crate) fn txn(request: &TxnRequest, mapped: bool) -> Result<(), Refusal> {
    levels(request, MAX_OPS)?;
    if mapped && orders_leases(request) {
        return Err(LEASE_ORDER);
    }
    overlaps(&request.success, mapped)?;
    overlaps(&request.failure, mapped)?;
    Ok(())
}

fn levels(request: &TxnRequest, most: usize) -> Result<(), Refusal> {
    let used = request.compare.len().max(request.success.len()).max(request.failure.len());
    let left = most.checked_sub(used).ok_or(TOO_MANY_OPS)?;
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(EMPTY_KEY);
    }
    request.success.iter().chain(&request.failure).try_for_each(|op| match &op.request {
        Some(Request::RequestRange(request)) => range(request),
        Some(Request::RequestPut(request)) => put(request),
        Some(Request::RequestDeleteRange(request)) => delete_range(request),
        Some(Request::RequestTxn(request)) => levels(request, left),
        None => Err(EMPTY_OP),
    })
}

fn orders_leases(request: &TxnRequest) -> bool {
    let ordered = |compare: &Compare| {
        let lease = matches!(compare.target_union, Some(TargetUnion::Lease(lease)) if lease != 0);
        lease && compare.target == 4 && (compare.result == 1 || compare.result == 2)
    };
    let nested = |op: &RequestOp| matches!(&op.request, Some(Request::RequestTxn(txn)) if orders_leases(txn));
    request.compare.iter().any(ordered) || request.success.iter().chain(&request.failure).any(nested)
}

/// What some operations put and delete.
#[derive(Default)]
struct Touched {
    puts: BTreeSet<Bytes>,
    deletes: Vec<(Bytes, Bytes)>,
}

/// `checkIntervals`: no key may be put twice, or put and deleted, where etcd notices it.
fn overlaps(ops: &[RequestOp], mapped: bool) -> Result<Touched, Refusal> {
    let mut touched = Touched::default();
    for op in ops {
        if let Some(Request::RequestDeleteRange(delete)) = &op.request {
            touched.deletes.push((delete.key.clone(), delete.range_end.clone()));
        }
    }
    for op in ops {
        let Some(Request::RequestTxn(txn)) = &op.request else { continue };
        let success = overlaps(&txn.success, mapped)?;
        let failure = overlaps(&txn.failure, mapped)?;
        for key in &success.puts {
            touched.put(key, mapped)?;
        }
        for key in &failure.puts {
            // The branches exclude each other.
            if success.puts.contains(key) {
                touched.undeleted(key, mapped)?;
            } else {
                touched.put(key, mapped)?;
            }
        }
        touched.deletes.extend(success.deletes);
        touched.deletes.extend(failure.deletes);
    }
    for op in ops {
        if let Some(Request::RequestPut(put)) = &op.request {
            touched.put(&put.key, mapped)?;
        }
    }
    Ok(touched)
}

// === impl Touched ===

impl Touched {
    fn put(&mut self, key: &Bytes, mapped: bool) -> Result<(), Refusal> {
        self.undeleted(key, mapped)?;
        if self.puts.insert(key.clone()) { Ok(()) } else { Err(DUPLICATE_KEY) }
    }

    fn undeleted(&self, key: &[u8], mapped: bool) -> Result<(), Refusal> {
        let deleted = |(from, end): &(Bytes, Bytes)| match &end[..] {
            b"" => key == &from[..],
            // etcd takes it for the end that it spells, which nothing lies before.
            b"\0" => mapped && key >= &from[..],
            end => key >= &from[..] && key < end,
        };
        if self.deletes.iter().any(deleted) { Err(DUPLICATE_KEY) } else { Ok(()) }
    }
}
