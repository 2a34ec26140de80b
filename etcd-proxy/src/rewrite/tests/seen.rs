//! What a tenant sees of decoded answers, said once more and simply.

use proto::{
    etcdserverpb::{
        DeleteRangeResponse, LeaseTimeToLiveResponse, PutResponse, RangeResponse, TxnResponse, response_op::Response,
    },
    mvccpb::KeyValue,
};

use super::View;

pub(super) fn range(view: &View<'_>, answer: &mut RangeResponse) {
    answer.kvs.iter_mut().for_each(|kv| key_value(view, kv));
}

pub(super) fn put(view: &View<'_>, answer: &mut PutResponse) {
    answer.prev_kv.iter_mut().for_each(|kv| key_value(view, kv));
}

pub(super) fn delete(view: &View<'_>, answer: &mut DeleteRangeResponse) {
    answer.prev_kvs.iter_mut().for_each(|kv| key_value(view, kv));
}

pub(super) fn txn(view: &View<'_>, answer: &mut TxnResponse) {
    for op in &mut answer.responses {
        match &mut op.response {
            Some(Response::ResponseRange(answer)) => range(view, answer),
            Some(Response::ResponsePut(answer)) => put(view, answer),
            Some(Response::ResponseDeleteRange(answer)) => delete(view, answer),
            Some(Response::ResponseTxn(answer)) => txn(view, answer),
            None => {}
        }
    }
}

pub(super) fn time_to_live(view: &View<'_>, answer: &mut LeaseTimeToLiveResponse) {
    let mark = view.meta.lease_mark(answer.id);
    answer.keys.retain(|key| *key != mark);
    for key in &mut answer.keys {
        *key = key.slice(view.prefix.as_bytes().len()..);
    }
    answer.id = view.leases.unwrap().to_tenant(answer.id).unwrap();
}

fn key_value(view: &View<'_>, kv: &mut KeyValue) {
    kv.key = kv.key.slice(view.prefix.as_bytes().len()..);
    kv.lease = match kv.lease {
        0 => 0,
        lease => view.leases.unwrap().to_tenant(lease).unwrap(),
    };
}
