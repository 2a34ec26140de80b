//! The KV service: Range, RangeStream, Put, DeleteRange and Txn with all that nests in it.

use proto::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
    RangeStreamResponse, RequestOp, TxnRequest, TxnResponse,
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op::Request,
};

use super::{
    Interrupt, Rpc, Shape, View,
    answer::MAX_DEPTH,
    wire::{self, Value},
};
use crate::{
    error::{EtcdError, Unsupported},
    limits::Amount,
    validate,
};

/// A revision that every etcd refuses as compacted if it comes to execute the Range, and only then: a Txn's Range is
/// checked once its branch is known and before anything is written (`server/etcdserver/txn`, `checkRange`).
const COMPACTED: i64 = i64::MIN;

/// `KV.Range`.
#[derive(Debug)]
pub enum Range {}

/// `KV.RangeStream`.
#[derive(Debug)]
pub enum RangeStream {}

/// `KV.Put`.
#[derive(Debug)]
pub enum Put {}

/// `KV.DeleteRange`.
#[derive(Debug)]
pub enum DeleteRange {}

/// `KV.Txn`.
#[derive(Debug)]
pub enum Txn {}

// === impl Rpc ===

impl Rpc for Range {
    const REQUEST: &'static str = "etcdserverpb.RangeRequest";
    type Request = RangeRequest;
    type Response = RangeResponse;

    fn check(_: &View<'_>, request: &RangeRequest) -> Result<(), EtcdError> {
        validate::range(request)
    }

    fn request(view: &View<'_>, request: &mut RangeRequest) -> Result<(), Interrupt> {
        // A revision of 0 or less means the current one.
        if request.revision > 0 && request.revision < view.watermark()? {
            return Err(EtcdError::Compacted.into());
        }
        range_keys(view, request);
        Ok(())
    }

    const ANSWER: Shape = Shape::Range;
}

impl Rpc for RangeStream {
    const REQUEST: &'static str = Range::REQUEST;
    type Request = RangeRequest;
    type Response = RangeStreamResponse;

    fn check(_: &View<'_>, request: &RangeRequest) -> Result<(), EtcdError> {
        validate::range_stream(request)
    }

    fn request(view: &View<'_>, request: &mut RangeRequest) -> Result<(), Interrupt> {
        Range::request(view, request)
    }

    const ANSWER: Shape = Shape::RangePart;
}

impl Rpc for Put {
    const REQUEST: &'static str = "etcdserverpb.PutRequest";
    type Request = PutRequest;
    type Response = PutResponse;

    fn check(_: &View<'_>, request: &PutRequest) -> Result<(), EtcdError> {
        validate::put(request)
    }

    fn request(view: &View<'_>, request: &mut PutRequest) -> Result<(), Interrupt> {
        request.lease = view.lease_to_upstream(request.lease)?;
        request.key = view.prefix.key(&request.key);
        Ok(())
    }

    const ANSWER: Shape = Shape::Put;

    const WRITES: bool = true;
    const PUTS: bool = true;

    fn adds(request: &PutRequest, added: &mut dyn FnMut(&PutRequest) -> Amount) -> Amount {
        // The value stays, and there has to be one.
        if request.ignore_value { Amount::NOTHING } else { added(request) }
    }

    fn has_put(_: &[u8]) -> Result<bool, Interrupt> {
        Ok(true)
    }
}

impl Rpc for DeleteRange {
    const REQUEST: &'static str = "etcdserverpb.DeleteRangeRequest";
    type Request = DeleteRangeRequest;
    type Response = DeleteRangeResponse;

    fn check(_: &View<'_>, request: &DeleteRangeRequest) -> Result<(), EtcdError> {
        validate::delete_range(request)
    }

    fn request(view: &View<'_>, request: &mut DeleteRangeRequest) -> Result<(), Interrupt> {
        request.key = view.prefix.key(&request.key);
        request.range_end = view.prefix.range_end(&request.range_end);
        Ok(())
    }

    const ANSWER: Shape = Shape::DeleteRange;

    const WRITES: bool = true;
}

impl Rpc for Txn {
    const REQUEST: &'static str = "etcdserverpb.TxnRequest";
    type Request = TxnRequest;
    type Response = TxnResponse;

    fn check(view: &View<'_>, request: &TxnRequest) -> Result<(), EtcdError> {
        validate::txn(request, view.max_txn_ops)
    }

    fn request(view: &View<'_>, request: &mut TxnRequest) -> Result<(), Interrupt> {
        request.compare.iter_mut().try_for_each(|term| compare(view, term))?;
        request.success.iter_mut().chain(&mut request.failure).try_for_each(|op| request_op(view, op))
    }

    const ANSWER: Shape = Shape::Txn;

    const WRITES: bool = true;
    const PUTS: bool = true;

    /// What the branch adds that adds more. Deletions in it do not count: they may find nothing.
    fn adds(request: &TxnRequest, added: &mut dyn FnMut(&PutRequest) -> Amount) -> Amount {
        let mut branch = |ops: &[RequestOp]| ops.iter().map(|op| op_adds(op, added)).sum::<Amount>();
        let (success, failure) = (branch(&request.success), branch(&request.failure));
        success.most(failure)
    }

    fn has_put(answer: &[u8]) -> Result<bool, Interrupt> {
        has_put(answer, MAX_DEPTH)
    }
}

fn op_adds(op: &RequestOp, added: &mut dyn FnMut(&PutRequest) -> Amount) -> Amount {
    match &op.request {
        Some(Request::RequestPut(put)) => Put::adds(put, added),
        Some(Request::RequestTxn(txn)) => Txn::adds(txn, added),
        Some(Request::RequestRange(_) | Request::RequestDeleteRange(_)) | None => Amount::NOTHING,
    }
}

/// Whether a Txn with so many levels of messages has put a key, by its encoded answer, of which what it has read may be most.
fn has_put(mut answer: &[u8], levels: usize) -> Result<bool, Interrupt> {
    // TxnResponse and ResponseOp
    const RESPONSES: u64 = 3;
    const PUT: u64 = 2;
    const TXN: u64 = 4;
    let levels = levels.checked_sub(2).ok_or_else(wire::malformed)?;
    while let Some(field) = wire::next(&mut answer)? {
        let (RESPONSES, Value::Bytes(mut op)) = (field.number, field.value) else { continue };
        while let Some(field) = wire::next(&mut op)? {
            let put = match (field.number, field.value) {
                (PUT, _) => true,
                (TXN, Value::Bytes(txn)) => has_put(txn, levels)?,
                _ => false,
            };
            if put {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn range_keys(view: &View<'_>, request: &mut RangeRequest) {
    request.key = view.prefix.key(&request.key);
    request.range_end = view.prefix.range_end(&request.range_end);
}

fn compare(view: &View<'_>, term: &mut Compare) -> Result<(), Interrupt> {
    term.key = view.prefix.key(&term.key);
    term.range_end = view.prefix.range_end(&term.range_end);
    let Some(TargetUnion::Lease(lease)) = &mut term.target_union else {
        // Without a lease etcd compares with lease 0, whose order among the others is kept.
        return Ok(());
    };
    let orders = matches!(CompareResult::try_from(term.result), Ok(CompareResult::Greater | CompareResult::Less));
    if orders && *lease != 0 && term.target == CompareTarget::Lease as i32 {
        return Err(Unsupported::LeaseOrder.into());
    }
    *lease = view.lease_to_upstream(*lease)?;
    Ok(())
}

fn request_op(view: &View<'_>, op: &mut RequestOp) -> Result<(), Interrupt> {
    match &mut op.request {
        Some(Request::RequestRange(range)) => {
            // Not to be refused here: the branch may not be taken. Unlike a Range of its own, a Txn's takes a negative
            // revision for one that is compacted as soon as anything is.
            if range.revision != 0 && range.revision < view.watermark()? {
                range.revision = COMPACTED;
            }
            range_keys(view, range);
            Ok(())
        }
        Some(Request::RequestPut(put)) => Put::request(view, put),
        Some(Request::RequestDeleteRange(delete)) => DeleteRange::request(view, delete),
        Some(Request::RequestTxn(txn)) => Txn::request(view, txn),
        // Refused by the check before.
        None => Err(EtcdError::KeyNotFound.into()),
    }
}
