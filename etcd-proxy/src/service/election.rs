//! The election service but for Observe, as etcd carries it out (`server/etcdserver/api/v3election`,
//! `client/v3/concurrency/election.go`).

use bytes::{Bytes, BytesMut};
use proto::{
    etcdserverpb::{ResponseHeader, TxnRequest, request_op::Request},
    v3electionpb::{
        CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest, ProclaimResponse,
        ResignRequest, ResignResponse,
    },
};
use tonic::Status;

use super::{
    concurrency::{Place, Queue, cancelled, create, one, outlive, put, ranged, revision, session},
    local::Local,
    unary::{Answer, OwnCall, answer},
};
use crate::limits::Present;

/// `v3election.ErrMissingLeaderKey`.
const MISSING_LEADER: &str = "\"leader\" field must be provided";
/// `concurrency.ErrElectionNotLeader`.
const NOT_LEADER: &str = "election: not leader";
/// `concurrency.ErrElectionNoLeader`.
const NO_LEADER: &str = "election: no leader";

/// `Election.Campaign`.
pub(super) async fn campaign(call: OwnCall<'_>) -> Result<BytesMut, Status> {
    let request: CampaignRequest = call.request("v3electionpb.CampaignRequest")?;
    let local = call.local();
    let mut under_way = Some(call.tenant.limits().unary()?);
    let lease = session(&local, request.lease, &mut under_way).await?;
    let queue = Queue::of(&request.name);
    let key = queue.key(lease);
    let stand = create(&key, request.value.clone(), lease, Request::RequestRange(one(&key)));
    let txn = local.txn(&stand).await?;
    let mut place = Place { key, revision: revision(txn.header)? };
    // The lease stands already.
    if !txn.succeeded
        && let Some(kv) = ranged(&txn, 0)?.kvs.first()
    {
        place.revision = kv.create_revision;
        if kv.value != request.value
            && let Err(failed) = proclaimed(&local, &place, request.value, lease).await
        {
            // If this fails, too, the key goes with its lease.
            let _resigned = local.txn(&place.give_up()).await;
            return Err(failed);
        }
    }
    // Who waits is counted among the watches from here on, or the tenant could not resign for all that wait.
    drop(under_way);
    let local = local.detached();
    let leader = LeaderKey { name: request.name, key: place.key.clone(), rev: place.revision, lease };
    outlive(call.tenant, async move |gone| {
        match gone.run_until_cancelled(queue.wait_deletes(&local, place.revision.saturating_sub(1))).await {
            // As etcd's, a candidate that has failed otherwise than by its client's will still stands.
            Some(waited) => waited,
            None => {
                place.abandon(&local).await;
                Err(cancelled())
            }
        }
    })
    .await?;
    answer(&CampaignResponse { header: txn.header, leader: Some(leader) })
}

/// `Election.Proclaim`.
pub(super) async fn proclaim(call: OwnCall<'_>, under_way: &mut Option<Present>) -> Result<BytesMut, Status> {
    let request: ProclaimRequest = call.request("v3electionpb.ProclaimRequest")?;
    let local = call.local();
    let (place, lease) = resumed(&local, request.leader, under_way).await?;
    let header = proclaimed(&local, &place, request.value, lease).await?;
    answer(&ProclaimResponse { header })
}

/// `Election.Leader`.
pub(super) async fn leader(call: OwnCall<'_>) -> Result<Answer, Status> {
    let request: LeaderRequest = call.request("v3electionpb.LeaderRequest")?;
    let (range, share) = call.local().long_range(&Queue::of(&request.name).first()).await?;
    match range.kvs.into_iter().next() {
        Some(kv) => Ok(Answer { frame: answer(&LeaderResponse { header: range.header, kv: Some(kv) })?, share }),
        None => Err(Status::unknown(NO_LEADER)),
    }
}

/// `Election.Resign`, which is no error for who does not lead.
pub(super) async fn resign(call: OwnCall<'_>, under_way: &mut Option<Present>) -> Result<BytesMut, Status> {
    let request: ResignRequest = call.request("v3electionpb.ResignRequest")?;
    let local = call.local();
    let (place, _) = resumed(&local, request.leader, under_way).await?;
    let header = local.txn(&place.give_up()).await?.header;
    answer(&ResignResponse { header })
}

/// The place of a leader as its client names it, and its lease: a new one, if that names none.
async fn resumed(
    local: &Local,
    leader: Option<LeaderKey>,
    under_way: &mut Option<Present>,
) -> Result<(Place, i64), Status> {
    let leader = leader.ok_or_else(|| Status::unknown(MISSING_LEADER))?;
    let lease = session(local, leader.lease, under_way).await?;
    Ok((Place { key: leader.key, revision: leader.rev }, lease))
}

/// Gives a place another value.
async fn proclaimed(local: &Local, place: &Place, value: Bytes, lease: i64) -> Result<Option<ResponseHeader>, Status> {
    let txn = TxnRequest {
        compare: vec![place.taken()],
        success: vec![put(place.key.clone(), value, lease)],
        failure: Vec::new(),
    };
    let txn = local.txn(&txn).await?;
    if txn.succeeded { Ok(txn.header) } else { Err(Status::unknown(NOT_LEADER)) }
}
