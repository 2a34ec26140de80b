//! LeaseGrant and LeaseLeases, which work by marks: each lease has a meta key attached to it that goes when it goes.

use bytes::BytesMut;
use proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseLeasesRequest, LeaseLeasesResponse, LeaseStatus, PutRequest,
    PutResponse, RangeRequest, RangeResponse,
    range_request::{SortOrder, SortTarget},
};
use tonic::{Code, Status};

use super::unary::{OwnCall, answer};
use crate::{lease_id::CipherError, meta};

/// `Lease.LeaseGrant`.
pub(super) async fn grant(call: OwnCall<'_>) -> Result<BytesMut, Status> {
    let mut request: LeaseGrantRequest = call.request("etcdserverpb.LeaseGrantRequest")?;
    let leases = call.tenant.leases().await?;
    request.id = leases.to_upstream(request.id).map_err(internal)?;
    let mut granted: LeaseGrantResponse = call.ask(&request).await?;
    if granted.error.is_empty() {
        let mark = PutRequest {
            key: call.tenant.keys().lease_mark(granted.id),
            value: meta::encode_presence(),
            lease: granted.id,
            ..Default::default()
        };
        // If this fails the lease is there and unlisted, and expires by itself. The client must not take it for granted.
        match call.ask_by::<PutResponse>("/etcdserverpb.KV/Put", &mark).await {
            Ok(_) => {}
            // So short a lease that it is over already.
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => return Err(status),
        }
    }
    granted.id = leases.to_tenant(granted.id).map_err(internal)?;
    answer(&granted)
}

/// `Lease.LeaseLeases`: in the order in which the leases were granted, where etcd orders by expiry.
pub(super) async fn leases(call: OwnCall<'_>) -> Result<BytesMut, Status> {
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
    let range: RangeResponse = call.ask_by("/etcdserverpb.KV/Range", &marks).await?;
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
    answer(&LeaseLeasesResponse { header: range.header, leases: listed })
}

fn internal(error: CipherError) -> Status {
    Status::internal(format!("etcd-proxy: {error}"))
}
