//! LeaseGrant, LeaseRevoke and LeaseLeases, which work by marks: each lease has a meta key attached to it that goes when it goes.

use std::{future::ready, time::Duration};

use bytes::{Bytes, BytesMut};
use proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, LeaseStatus, PutRequest, PutResponse, RangeRequest, RangeResponse,
    range_request::{SortOrder, SortTarget},
};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};

use super::{
    concurrency,
    unary::{Answer, OwnCall, answer},
};
use crate::{
    error::EtcdError,
    lease_id::{self, CipherError},
    limits::{Amount, NotAdmitted, Present, is_doubtful},
    meta,
    rewrite::View,
    tenant::Tenant,
    upstream::PATIENCE,
};

/// What the marks take, as they come and decoded, and what is made of them.
const COPIES: usize = 3;

/// How long it is looked for a lease whose grant was not answered, and how often: etcd itself gives a request up after 7 s, and one
/// that stood still carries out what waits within moments.
const DOUBT: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_secs(5);

const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";

/// `Lease.LeaseGrant`. Goes on to its end when the client breaks it off: a lease without its mark would be neither listed nor
/// counted, and live as long as the client wished. So does its place among the tenant's requests, which comes back with the answer.
pub(super) async fn grant(call: OwnCall<'_>, under_way: &mut Option<Present>) -> Result<BytesMut, Status> {
    let request: LeaseGrantRequest = call.request("etcdserverpb.LeaseGrantRequest")?;
    let (tenant, path, headers) = (call.tenant.clone(), call.path, call.headers.without_deadline());
    let place = under_way.take();
    let granting = call.tenant.grant_place().await?;
    let work = async move {
        let call = OwnCall { tenant: &tenant, path, headers, message: Bytes::new() };
        let _granting = granting;
        let frame = counted(&call, request).await?;
        Ok((frame, place))
    };
    let frame;
    (frame, *under_way) = concurrency::outlive(call.tenant, |_| work).await?;
    Ok(frame)
}

/// Grants a lease that counts among the tenant's.
async fn counted(call: &OwnCall<'_>, request: LeaseGrantRequest) -> Result<BytesMut, Status> {
    let Some(limited) = call.tenant.limits().leases() else {
        return answer(&granted(call, request).await?.0);
    };
    const ONE: Amount = Amount { keys: 1, bytes: 0 };
    let place = limited.admit(ONE, ready(Ok(ONE))).await.map_err(|refused| match refused {
        NotAdmitted::Exceeded => EtcdError::TooManyRequests.into(),
        NotAdmitted::Unknown(status) => status,
    })?;
    let granted = granted(call, request).await;
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
    // Chosen here, so that it is known when the answer never comes.
    request.id = if request.id == 0 { lease_id::fresh() } else { leases.to_upstream(request.id) }.map_err(internal)?;
    let granted: Result<LeaseGrantResponse, _> = in_time(call.ask(&request)).await;
    let mut granted = granted.inspect_err(|status| {
        if is_doubtful(status.code()) {
            mark_if_granted(call, request.id);
        }
    })?;
    call.tenant.view().check_words([&granted.error])?;
    let mut marked_at = None;
    if granted.error.is_empty() {
        match mark(call, granted.id).await {
            Ok(put) => marked_at = put.header.map(|header| header.revision),
            // So short a lease that it is over already.
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => {
                // Nobody was granted it.
                let revoke = LeaseRevokeRequest { id: granted.id };
                if in_time(call.ask_by::<LeaseRevokeResponse>(REVOKE, &revoke)).await.is_err() {
                    mark_if_granted(call, granted.id);
                }
                return Err(status);
            }
        }
    }
    granted.id = leases.to_tenant(granted.id).map_err(internal)?;
    Ok((granted, marked_at))
}

/// Marks a lease as the tenant's.
async fn mark(call: &OwnCall<'_>, id: i64) -> Result<PutResponse, Status> {
    let mark = PutRequest {
        key: call.tenant.keys().lease_mark(id),
        value: meta::encode_presence(),
        lease: id,
        ..Default::default()
    };
    in_time(call.ask_by("/etcdserverpb.KV/Put", &mark)).await
}

/// Marks a lease that may have been granted, and may yet be: the upstream carries out what it was asked for when it goes on, while
/// nobody waits for it any more. An etcd lists and counts such a lease, too. It is not revoked: its client may have asked for
/// the same id again.
fn mark_if_granted(call: &OwnCall<'_>, id: i64) {
    const GIVEN_UP: &str = "a lease that may have been granted could not be marked as the tenant's; if it is there, it is neither listed nor counted until it expires";
    let Some(place) = call.tenant.doubtful_grant_place() else {
        tracing::warn!(lease = id, "{GIVEN_UP}: too many are in doubt");
        return;
    };
    let (tenant, path, headers) = (call.tenant.clone(), call.path, call.headers.detached());
    call.tenant.outliving().spawn(async move {
        let _place = place;
        let until = Instant::now() + DOUBT;
        let call = OwnCall { tenant: &tenant, path, headers, message: Bytes::new() };
        loop {
            match mark(&call, id).await {
                Ok(_) => return,
                Err(status) if Instant::now() >= until => {
                    if status.code() != Code::NotFound {
                        tracing::warn!(lease = id, error = %status, "{GIVEN_UP}");
                    }
                    return;
                }
                Err(_) => {}
            }
            if tenant.stop().run_until_cancelled(sleep(AGAIN)).await.is_none() {
                return;
            }
        }
    });
}

/// A step of a grant, whose client may have gone and waits for no end of it. It may have been carried out, as at etcd's own
/// time-outs.
async fn in_time<T>(step: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    timeout(PATIENCE, step).await.unwrap_or_else(|_| Err(EtcdError::Timeout.into()))
}

/// `Lease.LeaseRevoke`, of a lease that bears the tenant's mark. A key that was here before the proxy may hang on a lease
/// together with keys of others, which would go with it: its id is known, and yet it is not the tenant's.
pub(super) async fn revoke(call: OwnCall<'_>) -> Result<BytesMut, Status> {
    let request: LeaseRevokeRequest = call.request("etcdserverpb.LeaseRevokeRequest")?;
    let id = to_upstream(call.tenant, call.path, request.id).await?;
    let mark = RangeRequest { key: call.tenant.keys().lease_mark(id), count_only: true, ..Default::default() };
    let marks: RangeResponse = call.ask_by("/etcdserverpb.KV/Range", &mark).await?;
    if marks.count == 0 {
        return Err(EtcdError::LeaseNotFound.into());
    }
    answer(&call.ask::<LeaseRevokeResponse>(&LeaseRevokeRequest { id }).await?)
}

/// The upstream's id of the lease that a request names; one that nobody was granted where the tenant never was.
async fn to_upstream(tenant: &Tenant, path: &'static str, id: i64) -> Result<i64, Status> {
    let mut never_granted = false;
    loop {
        let view = View { never_granted, ..tenant.view() };
        let interrupt = match view.lease_to_upstream(id) {
            Ok(id) => return Ok(id),
            Err(interrupt) => interrupt,
        };
        never_granted |= tenant.resolve(interrupt, path).await?;
    }
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
