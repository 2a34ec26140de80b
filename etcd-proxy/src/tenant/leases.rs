//! The secret of a tenant's lease ids: made once, at the first lease, by whichever replica comes first.

use proto::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RequestOp, TxnRequest,
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op::Request,
    response_op::Response,
};
use tonic::Status;

use crate::{
    lease_id::{LeaseCipher, LeaseSecret},
    meta::{self, TenantKeys},
    upstream::Upstream,
};

/// The mapping that belongs to the stored secret, or to a new one if none is stored.
pub(super) async fn load_or_make(upstream: &Upstream, keys: &TenantKeys) -> Result<LeaseCipher, Status> {
    let mut kv = upstream.kv();
    let read = RangeRequest { key: keys.secret(), ..Default::default() };
    let stored = kv.range(read.clone()).await?.into_inner().kvs.into_iter().next();
    if let Some(stored) = stored {
        return cipher(&decode(&stored.value)?);
    }
    let made = LeaseSecret::generate().map_err(internal)?;
    let put = PutRequest { key: keys.secret(), value: meta::encode_secret(&made), ..Default::default() };
    let absent = Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Create as i32,
        key: keys.secret(),
        target_union: Some(TargetUnion::CreateRevision(0)),
        ..Default::default()
    };
    let request = TxnRequest {
        compare: vec![absent],
        success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
        failure: vec![RequestOp { request: Some(Request::RequestRange(read)) }],
    };
    let answer = kv.txn(request).await?.into_inner();
    if answer.succeeded {
        return cipher(&made);
    }
    // Another replica was first.
    match answer.responses.into_iter().next().and_then(|op| op.response) {
        Some(Response::ResponseRange(range)) if !range.kvs.is_empty() => {
            let value = range.kvs.first().map(|kv| kv.value.clone()).unwrap_or_default();
            cipher(&decode(&value)?)
        }
        _ => Err(Status::internal("etcd-proxy: the lease secret is neither there nor can it be made")),
    }
}

fn decode(value: &[u8]) -> Result<LeaseSecret, Status> {
    meta::decode_secret(value).map_err(internal)
}

fn cipher(secret: &LeaseSecret) -> Result<LeaseCipher, Status> {
    LeaseCipher::new(secret).map_err(internal)
}

fn internal(error: impl std::error::Error) -> Status {
    tracing::error!(%error, "the lease ids of the tenant cannot be mapped");
    Status::internal(format!("etcd-proxy: {error}"))
}
