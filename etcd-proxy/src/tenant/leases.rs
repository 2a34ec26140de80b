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

/// The mapping that belongs to the stored secret, or none if none is stored: then no lease was ever granted.
pub(super) async fn load(upstream: &Upstream, keys: &TenantKeys) -> Result<Option<LeaseCipher>, Status> {
    let stored = upstream.kv().range(read(keys)).await?.into_inner().kvs.into_iter().next();
    stored.map(|stored| cipher(&decode(&stored.value)?)).transpose()
}

/// A mapping of this process alone, whose ids nobody was granted.
pub(super) fn stand_in() -> Result<LeaseCipher, Status> {
    cipher(&LeaseSecret::generate().map_err(internal)?)
}

/// The mapping that belongs to the stored secret, or to a new one if none is stored.
pub(crate) async fn load_or_make(upstream: &Upstream, keys: &TenantKeys) -> Result<LeaseCipher, Status> {
    if let Some(stored) = load(upstream, keys).await? {
        return Ok(stored);
    }
    let mut kv = upstream.kv();
    let read = read(keys);
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

fn read(keys: &TenantKeys) -> RangeRequest {
    RangeRequest { key: keys.secret(), ..Default::default() }
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
