//! LeaseGrant and LeaseLeases, which work by marks: each lease has a meta key attached to it that goes when it goes.

use std::future::ready;

use bytes::BytesMut;
use proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseLeasesRequest, LeaseLeasesResponse, LeaseStatus, PutRequest,
    PutResponse, RangeRequest, RangeResponse,
    range_request::{SortOrder, SortTarget},
};
use tonic::{Code, Status};

use super::unary::{Answer, OwnCall, answer};
use crate::{
    error::EtcdError,
    lease_id::CipherError,
    limits::{Amount, NotAdmitted},
    meta,
};

/// What the marks take, as they come and decoded, and what is made of them.
const COPIES: usize = 3;

/// `Lease.LeaseGrant`.
pub(super) async fn grant(call: OwnCall<'_>) -> Result<BytesMut, Status> {
    let request: LeaseGrantRequest = call.request("etcdserverpb.LeaseGrantRequest")?;
    let Some(limited) = call.tenant.limits().leases() else {
        return answer(&granted(&call, request).await?.0);
    };
    const ONE: Amount = Amount { keys: 1, bytes: 0 };
    let place = limited.admit(ONE, ready(Ok(ONE))).await.map_err(|refused| match refused {
        NotAdmitted::Exceeded => EtcdError::TooManyRequests.into(),
        NotAdmitted::Unknown(status) => status,
    })?;
    let granted = granted(&call, request).await;
    match &granted {
        Ok((_, Some(marked_at))) => place.written(*marked_at),
        Ok((_, None)) => place.nothing(),
        Err(status) => place.failed(status.code()),
    }
    answer(&granted?.0)
}

/// The lease that was granted, and the revision of its mark, if it has one.
async fn granted(
    call: &OwnCall<'_>,
    mut request: LeaseGrantRequest,
) -> Result<(LeaseGrantResponse, Option<i64>), Status> {
    let leases = call.tenant.leases().await?;
    request.id = leases.to_upstream(request.id).map_err(internal)?;
    let mut granted: LeaseGrantResponse = call.ask(&request).await?;
    let mut marked_at = None;
    if granted.error.is_empty() {
        let mark = PutRequest {
            key: call.tenant.keys().lease_mark(granted.id),
            value: meta::encode_presence(),
            lease: granted.id,
            ..Default::default()
        };
        // If this fails the lease is there and unlisted, and expires by itself. The client must not take it for granted.
        match call.ask_by::<PutResponse>("/etcdserverpb.KV/Put", &mark).await {
            Ok(put) => marked_at = put.header.map(|header| header.revision),
            // So short a lease that it is over already.
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => return Err(status),
        }
    }
    granted.id = leases.to_tenant(granted.id).map_err(internal)?;
    Ok((granted, marked_at))
}

/// `Lease.LeaseLeases`: in the order in which the leases were granted, where etcd orders by expiry.
pub(super) async fn leases(call: OwnCall<'_>) -> Result<Answer, Status> {
    let _: LeaseLeasesRequest = call.request("etcdserverpb.LeaseLeasesRequest")?;
    let (key, range_end) = call.tenant.keys().lease_marks();
    let marks = RangeRequest {
        key,
        range_end,
        keys_only: true,
        sort_order: SortOrder::Ascend as i32,
        sort_target: SortTarget::Create as i32,
        ..Default::default()
    };
    let (range, share): (RangeResponse, _) = call.ask_for_long("/etcdserverpb.KV/Range", &marks, COPIES).await?;
    let mut listed = Vec::with_capacity(range.kvs.len());
    if !range.kvs.is_empty() {
        let leases = call.tenant.leases().await?;
        for kv in &range.kvs {
            match call.tenant.keys().marked_lease(&kv.key) {
                Some(id) => listed.push(LeaseStatus { id: leases.to_tenant(id).map_err(internal)? }),
                None => tracing::warn!(key = %kv.key.escape_ascii(), "a lease mark names no lease and is passed over"),
            }
        }
    }
    Ok(Answer { frame: answer(&LeaseLeasesResponse { header: range.header, leases: listed })?, share })
}

fn internal(error: CipherError) -> Status {
    Status::internal(format!("etcd-proxy: {error}"))
}
