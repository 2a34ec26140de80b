//! Txns in the model (`server/etcdserver/txn/txn.go`): all comparisons first, then a look at what the branches taken would
//! do, then the doing.

use proto::{
    etcdserverpb::{
        Compare, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse, compare::TargetUnion,
        request_op::Request, response_op::Response,
    },
    mvccpb::KeyValue,
};

use crate::{
    check,
    store::{COMPACTED, FUTURE, Refusal, Store, Writing, header},
};

/// Which branch is taken, in order of the Txns.
type Path = Vec<bool>;

/// Carries a Txn out.
pub(crate) fn txn(store: &mut Store, request: &TxnRequest, mapped: bool) -> Result<TxnResponse, Refusal> {
    check::txn(request, mapped)?;
    let mut path = Path::new();
    compare(store, request, &mut path);
    check_branch(store, request, &mut path.iter())?;
    let mut writing = store.write();
    let mut response = execute(&mut writing, request, &mut path.iter())?;
    response.header = header(writing.now());
    Ok(response)
}

fn branch(request: &TxnRequest, taken: bool) -> &[RequestOp] {
    if taken { &request.success } else { &request.failure }
}

fn compare(store: &Store, request: &TxnRequest, path: &mut Path) {
    let taken = request.compare.iter().all(|term| holds(store, term));
    path.push(taken);
    for op in branch(request, taken) {
        if let Some(Request::RequestTxn(txn)) = &op.request {
            compare(store, txn, path);
        }
    }
}

fn holds(store: &Store, term: &Compare) -> bool {
    let found = store.at(&term.key, &term.range_end, i64::MAX);
    if found.is_empty() {
        // A value that is not there equals nothing.
        return term.target != 3 && pair_holds(term, &KeyValue::default());
    }
    found.iter().all(|kv| pair_holds(term, kv))
}

fn pair_holds(term: &Compare, kv: &KeyValue) -> bool {
    use TargetUnion::{CreateRevision, Lease, ModRevision, Value, Version};
    let target = &term.target_union;
    // A target of another kind counts as none.
    let ordering = match term.target {
        0 => kv.version.cmp(&if let Some(Version(wanted)) = target { *wanted } else { 0 }),
        1 => kv.create_revision.cmp(&if let Some(CreateRevision(wanted)) = target { *wanted } else { 0 }),
        2 => kv.mod_revision.cmp(&if let Some(ModRevision(wanted)) = target { *wanted } else { 0 }),
        3 => kv.value[..].cmp(if let Some(Value(wanted)) = target { wanted } else { b"" }),
        _ => kv.lease.cmp(&if let Some(Lease(wanted)) = target { *wanted } else { 0 }),
    };
    match term.result {
        0 => ordering.is_eq(),
        1 => ordering.is_gt(),
        2 => ordering.is_lt(),
        _ => ordering.is_ne(),
    }
}

fn check_branch<'a>(
    store: &Store,
    request: &TxnRequest,
    path: &mut impl Iterator<Item = &'a bool>,
) -> Result<(), Refusal> {
    let taken = *path.next().unwrap();
    for op in branch(request, taken) {
        match &op.request {
            // Unlike in a Range of its own, a negative revision is one.
            Some(Request::RequestRange(range)) if range.revision > store.revision => return Err(FUTURE),
            Some(Request::RequestRange(range)) if range.revision != 0 && range.revision < store.compacted => {
                return Err(COMPACTED);
            }
            Some(Request::RequestPut(put)) => store.check_put(put)?,
            Some(Request::RequestTxn(txn)) => check_branch(store, txn, path)?,
            _ => {}
        }
    }
    Ok(())
}

fn execute<'a>(
    writing: &mut Writing<'_>,
    request: &TxnRequest,
    path: &mut impl Iterator<Item = &'a bool>,
) -> Result<TxnResponse, Refusal> {
    let succeeded = *path.next().unwrap();
    let mut responses = Vec::new();
    for op in branch(request, succeeded) {
        let response = match &op.request {
            Some(Request::RequestRange(range)) => {
                Response::ResponseRange(writing.store.execute_range(range, writing.now())?)
            }
            Some(Request::RequestPut(put)) => Response::ResponsePut(writing.put(put)),
            Some(Request::RequestDeleteRange(delete)) => Response::ResponseDeleteRange(writing.delete_range(delete)),
            Some(Request::RequestTxn(txn)) => Response::ResponseTxn(execute(writing, txn, path)?),
            None => continue,
        };
        responses.push(ResponseOp { response: Some(response) });
    }
    // Only the outermost has a revision in its header.
    Ok(TxnResponse { header: Some(ResponseHeader::default()), succeeded, responses })
}
