//! An action as a request to the real thing, and its answer without what a shared etcd cannot hide.

use bytes::Bytes;
use proto::etcdserverpb::{
    AlarmRequest, AuthEnableRequest, AuthRoleDeleteRequest, AuthRoleListRequest, AuthStatusRequest, AuthUserAddRequest,
    AuthUserListRequest, AuthenticateRequest, CompactionRequest, DefragmentRequest, DeleteRangeResponse, HashKvRequest,
    HashRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, MemberAddRequest, MemberListRequest, MemberListResponse, MemberRemoveRequest,
    MoveLeaderRequest, PutResponse, RangeRequest, RangeResponse, ResponseHeader, SnapshotRequest, StatusRequest,
    TxnResponse,
};
use tonic::{Code, Status};

use super::Answered;
use crate::{
    child::Proxy,
    steps::{Action, Describe, Forbidden},
    support::Client,
};

/// How much shorter a lease may be by now than it was granted, in seconds.
const AGE: i64 = 600;

/// An answer. Headers keep nothing but their revision.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    Range(RangeResponse),
    Put(PutResponse),
    Delete(DeleteRangeResponse),
    Txn(TxnResponse),
    Granted {
        id: i64,
        ttl: i64,
    },
    /// Id, TTL and revision of each answer.
    KeptAlive(Vec<(i64, i64, i64)>),
    TimeToLive {
        id: i64,
        ttl: i64,
        granted: i64,
        keys: Vec<Bytes>,
        revision: i64,
    },
    Leases(Vec<i64>, i64),
    Members(MemberListResponse),
    /// What was said besides the header.
    Said(Vec<String>),
    Bytes(Vec<u8>),
    /// Nothing but a header of this revision.
    Done(i64),
}

pub(super) async fn ask(client: &mut Client, action: &Action) -> Answered {
    let answer = match action {
        Action::Describe(what) => ask_about(client, *what).await,
        Action::Forbidden(what) => try_forbidden(client, *what).await.map(|()| Answer::Done(0)),
        _ => ask_for_keys(client, action).await,
    };
    answer.map_err(|status| (status.code(), status.message().to_owned()))
}

async fn ask_for_keys(client: &mut Client, action: &Action) -> Result<Answer, Status> {
    Ok(match action {
        Action::Range(request) => {
            let mut answer = client.range(request.clone()).await?;
            plain(&mut answer.header)?;
            Answer::Range(answer)
        }
        Action::RangeStream(request) => Answer::Range(range_stream(client, request).await?),
        Action::Put(request) => {
            let mut answer = client.kv.put(request.clone()).await?.into_inner();
            plain(&mut answer.header)?;
            Answer::Put(answer)
        }
        Action::Delete(request) => {
            let mut answer = client.kv.delete_range(request.clone()).await?.into_inner();
            plain(&mut answer.header)?;
            Answer::Delete(answer)
        }
        Action::Txn(request) => {
            let mut answer = client.kv.txn(request.clone()).await?.into_inner();
            plain(&mut answer.header)?;
            Answer::Txn(answer)
        }
        Action::Compact(revision) => {
            let request = CompactionRequest { revision: *revision, physical: true };
            let mut answer = client.kv.compact(request).await?.into_inner();
            Answer::Done(plain(&mut answer.header)?)
        }
        Action::Grant { id, ttl } => {
            let mut answer = client.lease.lease_grant(LeaseGrantRequest { id: *id, ttl: *ttl }).await?.into_inner();
            plain(&mut answer.header)?;
            Answer::Granted { id: answer.id, ttl: answer.ttl }
        }
        Action::Revoke(id) => {
            let mut answer = client.lease.lease_revoke(LeaseRevokeRequest { id: *id }).await?.into_inner();
            Answer::Done(plain(&mut answer.header)?)
        }
        Action::KeepAlive(ids) => {
            let requests: Vec<_> = ids.iter().map(|id| LeaseKeepAliveRequest { id: *id }).collect();
            let mut answers = client.lease.lease_keep_alive(futures::stream::iter(requests)).await?.into_inner();
            let mut kept = Vec::new();
            while let Some(mut answer) = answers.message().await? {
                kept.push((answer.id, answer.ttl, plain(&mut answer.header)?));
            }
            Answer::KeptAlive(kept)
        }
        Action::TimeToLive { id, keys } => {
            let request = LeaseTimeToLiveRequest { id: *id, keys: *keys };
            let mut answer = client.lease.lease_time_to_live(request).await?.into_inner();
            let revision = plain(&mut answer.header)?;
            answer.keys.sort_unstable();
            // Time goes on.
            let granted = answer.granted_ttl;
            let young = granted > 0 && (granted - AGE..=granted).contains(&answer.ttl);
            let ttl = if young { granted } else { answer.ttl };
            Answer::TimeToLive { id: answer.id, ttl, granted, keys: answer.keys, revision }
        }
        Action::Leases => {
            let mut answer = client.lease.lease_leases(LeaseLeasesRequest {}).await?.into_inner();
            let revision = plain(&mut answer.header)?;
            let mut ids: Vec<i64> = answer.leases.iter().map(|lease| lease.id).collect();
            ids.sort_unstable();
            Answer::Leases(ids, revision)
        }
        other => return Err(Status::internal(format!("not a request of its own: {other:?}"))),
    })
}

/// A RangeStream, put together.
async fn range_stream(client: &mut Client, request: &RangeRequest) -> Result<RangeResponse, Status> {
    let mut parts = client.kv.range_stream(request.clone()).await?.into_inner();
    let mut whole = RangeResponse::default();
    while let Some(part) = parts.message().await? {
        let part = part.range_response.unwrap_or_default();
        whole.header = whole.header.or(part.header);
        whole.kvs.extend(part.kvs);
        whole.more |= part.more;
        whole.count += part.count;
    }
    plain(&mut whole.header)?;
    Ok(whole)
}

/// Leaves a header its revision, and returns that.
fn plain(header: &mut Option<ResponseHeader>) -> Result<i64, Status> {
    let full = header.take().ok_or_else(|| Status::internal("an answer without a header"))?;
    if full.cluster_id == 0 || full.member_id == 0 || full.raft_term == 0 {
        return Err(Status::internal(format!("a header that does not say whose it is: {full:?}")));
    }
    *header = Some(ResponseHeader { revision: full.revision, ..Default::default() });
    Ok(full.revision)
}

async fn ask_about(client: &mut Client, what: Describe) -> Result<Answer, Status> {
    Ok(match what {
        Describe::Members => {
            Answer::Members(client.cluster.member_list(MemberListRequest { linearizable: true }).await?.into_inner())
        }
        Describe::Status => {
            let answer = client.maintenance.status(StatusRequest {}).await?.into_inner();
            if !answer.version.starts_with("3.") || answer.leader == 0 {
                return Err(Status::internal(format!("no Status of an etcd: {answer:?}")));
            }
            Answer::Said(answer.errors)
        }
        Describe::Alarms => {
            let answer = client.maintenance.alarm(AlarmRequest::default()).await?.into_inner();
            Answer::Said(answer.alarms.iter().map(|alarm| format!("{alarm:?}")).collect())
        }
        Describe::AuthStatus => {
            let answer = client.auth.auth_status(AuthStatusRequest {}).await?.into_inner();
            Answer::Said(if answer.enabled { vec!["enabled".to_owned()] } else { vec![] })
        }
        Describe::Users => Answer::Said(client.auth.user_list(AuthUserListRequest {}).await?.into_inner().users),
        Describe::Roles => Answer::Said(client.auth.role_list(AuthRoleListRequest {}).await?.into_inner().roles),
        Describe::HashKv => {
            let answer = client.maintenance.hash_kv(HashKvRequest { revision: 0 }).await?.into_inner();
            Answer::Done(answer.header.unwrap_or_default().revision)
        }
        Describe::Snapshot => {
            let mut parts = client.maintenance.snapshot(SnapshotRequest {}).await?.into_inner();
            let mut whole = Vec::new();
            while let Some(part) = parts.message().await? {
                whole.extend_from_slice(&part.blob);
            }
            Answer::Bytes(whole)
        }
    })
}

/// Judges an answer about the etcd as such.
pub(super) fn describe(what: Describe, got: &Answered, proxy: Option<&Proxy>) -> Result<(), String> {
    let right = match (what, got) {
        (Describe::Members, Ok(Answer::Members(answer))) => {
            let urls: Vec<&String> = answer.members.iter().flat_map(|member| &member.client_ur_ls).collect();
            let peers = answer.members.iter().any(|member| !member.peer_ur_ls.is_empty());
            answer.members.len() == 1 && !peers && proxy.is_some_and(|proxy| urls == [&proxy.url])
        }
        (Describe::HashKv, Err((Code::Unimplemented, text))) => text.starts_with("etcd-proxy: "),
        (Describe::HashKv, Ok(Answer::Done(_))) => true,
        (Describe::Snapshot, Err((Code::PermissionDenied, text))) => text.starts_with("etcd-proxy: "),
        // Nothing of the proxy's own keys, nor of one that only the shared etcd has.
        (Describe::Snapshot, Ok(Answer::Bytes(whole))) => {
            !whole.is_empty() && !holds(whole, b"/etcd-proxy.meta/") && !holds(whole, b"/ab/k")
        }
        (_, Ok(Answer::Said(said))) => said.is_empty(),
        _ => false,
    };
    if right { Ok(()) } else { Err(format!("{what:?} is answered {got:?}")) }
}

fn holds(whole: &[u8], part: &[u8]) -> bool {
    whole.windows(part.len()).any(|window| window == part)
}

async fn try_forbidden(client: &mut Client, what: Forbidden) -> Result<(), Status> {
    match what {
        Forbidden::AddMember => {
            let peer_ur_ls = vec!["http://127.0.0.1:1".to_owned()];
            client.cluster.member_add(MemberAddRequest { peer_ur_ls, ..Default::default() }).await.map(drop)
        }
        Forbidden::RemoveMember => {
            let members = client.cluster.member_list(MemberListRequest { linearizable: true }).await?.into_inner();
            let id = members.members.first().map_or(1, |member| member.id);
            client.cluster.member_remove(MemberRemoveRequest { id }).await.map(drop)
        }
        Forbidden::Defragment => client.maintenance.defragment(DefragmentRequest {}).await.map(drop),
        Forbidden::Hash => client.maintenance.hash(HashRequest {}).await.map(drop),
        Forbidden::MoveLeader => client.maintenance.move_leader(MoveLeaderRequest { target_id: 1 }).await.map(drop),
        Forbidden::RaiseAlarm => {
            client.maintenance.alarm(AlarmRequest { action: 1, member_id: 0, alarm: 1 }).await.map(drop)
        }
        Forbidden::AddUser => {
            let request =
                AuthUserAddRequest { name: "root".to_owned(), password: "p".to_owned(), ..Default::default() };
            client.auth.user_add(request).await.map(drop)
        }
        Forbidden::DeleteRole => {
            client.auth.role_delete(AuthRoleDeleteRequest { role: "root".to_owned() }).await.map(drop)
        }
        Forbidden::EnableAuth => client.auth.auth_enable(AuthEnableRequest {}).await.map(drop),
        Forbidden::Authenticate => {
            let request = AuthenticateRequest { name: "root".to_owned(), password: "p".to_owned() };
            client.auth.authenticate(request).await.map(drop)
        }
    }
}

/// Judges the answer to what is forbidden.
pub(super) fn forbidden(what: Forbidden, got: &Answered) -> Result<(), String> {
    let right = match (what, got) {
        (Forbidden::Authenticate, Err((code, text))) => {
            (*code, text.as_str()) == (Code::FailedPrecondition, "etcdserver: authentication is not enabled")
        }
        (_, Err((code, text))) => *code == Code::PermissionDenied && text.starts_with("etcd-proxy: "),
        _ => false,
    };
    if right { Ok(()) } else { Err(format!("{what:?} is answered {got:?}")) }
}
