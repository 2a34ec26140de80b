//! Cluster, Maintenance and Auth: what a tenant gets, and what it is refused.

use prost::Message as _;
use proto::{
    etcdserverpb::{
        AlarmRequest, AuthStatusRequest, AuthUserListRequest, CompactionRequest, DeleteRangeRequest, HashKvRequest,
        LeaseGrantRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, MemberListRequest, PutRequest, RangeRequest,
        StatusRequest, TxnRequest, alarm_request::AlarmAction,
    },
    v3electionpb::{CampaignRequest, LeaderRequest, ProclaimRequest, ResignRequest},
    v3lockpb::{LockRequest, UnlockRequest},
};
use tonic::Code;

use crate::{
    support::{Etcd, Proxy, at_least, refusal},
    transport::raw,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_is_the_one_member() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let (mut a, mut direct) = (proxy.client().await, etcd.client().await);
    for linearizable in [false, true] {
        let answer = a.cluster.member_list(MemberListRequest { linearizable }).await.unwrap().into_inner();
        let upstream = direct.cluster.member_list(MemberListRequest { linearizable }).await.unwrap().into_inner();
        // Zeros included: this header has no revision.
        assert_eq!(answer.header, upstream.header);
        assert_eq!(answer.header.unwrap().revision, 0);
        assert_eq!(answer.members.len(), 1);
        let member = &answer.members[0];
        assert_eq!(member.id, answer.header.unwrap().member_id);
        assert_eq!(member.client_ur_ls, [format!("http://{}", proxy.address)]);
        assert!(member.peer_ur_ls.is_empty() && !member.is_learner);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_is_the_upstreams() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let (mut a, mut direct) = (proxy.client().await, etcd.client().await);
    let (answer, upstream) = (
        a.maintenance.status(StatusRequest {}).await.unwrap().into_inner(),
        direct.maintenance.status(StatusRequest {}).await.unwrap().into_inner(),
    );
    assert_eq!(answer.version, upstream.version);
    assert_eq!((answer.header, answer.leader), (upstream.header, upstream.leader));
    let header = a.auth.auth_status(AuthStatusRequest {}).await.unwrap().into_inner();
    let expected = direct.auth.auth_status(AuthStatusRequest {}).await.unwrap().into_inner();
    assert_eq!((header.enabled, header.auth_revision), (expected.enabled, expected.auth_revision));
    assert!(a.auth.user_list(AuthUserListRequest {}).await.unwrap().into_inner().users.is_empty());
}

/// Every header is filled and the same for one cluster: clients reconnect for ever if it is not.
#[tokio::test(flavor = "multi_thread")]
async fn headers_are_filled_and_stable() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let (mut a, mut direct) = (proxy.client().await, etcd.client().await);
    let upstream = direct.maintenance.status(StatusRequest {}).await.unwrap().into_inner().header.unwrap();
    let mut headers =
        vec![a.range(RangeRequest { key: "a".into(), ..Default::default() }).await.unwrap().header.unwrap()];
    let mut watching = a.watch([crate::support::watch_all(0), crate::support::watch_all(0)]).await;
    headers.push(watching.next().await.unwrap().header.unwrap());
    headers.push(watching.next().await.unwrap().header.unwrap());
    headers.push(
        a.lease.lease_leases(proto::etcdserverpb::LeaseLeasesRequest {}).await.unwrap().into_inner().header.unwrap(),
    );
    headers.push(a.maintenance.alarm(AlarmRequest::default()).await.unwrap().into_inner().header.unwrap());
    macro_rules! ask {
        ($client:ident.$method:ident($request:expr)) => {{
            let answer = a.$client.$method($request).await.unwrap().into_inner();
            headers.push(answer.header.clone().unwrap());
            answer
        }};
    }
    let key = || bytes::Bytes::from_static(b"k");
    let put = ask!(kv.put(PutRequest { key: key(), ..Default::default() }));
    ask!(kv.txn(TxnRequest::default()));
    ask!(kv.delete_range(DeleteRangeRequest { key: key(), ..Default::default() }));
    ask!(kv.compact(CompactionRequest { revision: put.header.unwrap().revision, physical: false }));
    let lease = ask!(lease.lease_grant(LeaseGrantRequest { ttl: 600, id: 0 })).id;
    ask!(lease.lease_time_to_live(LeaseTimeToLiveRequest { id: lease, keys: true }));
    ask!(lease.lease_revoke(LeaseRevokeRequest { id: lease }));
    ask!(maintenance.status(StatusRequest {}));
    ask!(maintenance.hash_kv(HashKvRequest { revision: 0 }));
    let held = ask!(lock.lock(LockRequest { name: key(), lease: 0 })).key;
    ask!(lock.unlock(UnlockRequest { key: held }));
    let leader = ask!(election.campaign(CampaignRequest { name: key(), ..Default::default() })).leader;
    ask!(election.leader(LeaderRequest { name: key() }));
    ask!(election.proclaim(ProclaimRequest { leader: leader.clone(), ..Default::default() }));
    ask!(election.resign(ResignRequest { leader }));
    for header in headers {
        assert_eq!(
            (header.cluster_id, header.member_id, header.raft_term),
            (upstream.cluster_id, upstream.member_id, upstream.raft_term)
        );
        assert!(header.revision > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_concerns_everybody_is_refused() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let (mut a, mut direct) = (proxy.client().await, etcd.client().await);
    direct.put("/b/k", "v").await;
    let methods = "Cluster/MemberAdd Cluster/MemberRemove Cluster/MemberUpdate Cluster/MemberPromote Maintenance/Defragment Maintenance/Hash \
        Maintenance/MoveLeader Maintenance/Downgrade Auth/AuthEnable Auth/AuthDisable Auth/UserAdd Auth/UserDelete \
        Auth/UserChangePassword Auth/UserGrantRole Auth/UserRevokeRole Auth/RoleAdd Auth/RoleDelete Auth/RoleGrantPermission \
        Auth/RoleRevokePermission";
    for method in methods.split_whitespace() {
        let path: &'static str = format!("/etcdserverpb.{method}").leak();
        let (code, text) = refusal(raw(&a.channel, path, bytes::Bytes::new()).await);
        assert_eq!(code, Code::PermissionDenied, "{method}: {text}");
        assert!(text.contains("operator"), "{method} says who may: {text}");
    }
    let raise = AlarmRequest { action: AlarmAction::Activate as i32, member_id: 0, alarm: 1 };
    assert_eq!(refusal(a.maintenance.alarm(raise).await).0, Code::PermissionDenied);
    // Neither did any of it happen.
    assert!(direct.maintenance.alarm(AlarmRequest::default()).await.unwrap().into_inner().alarms.is_empty());
    assert_eq!(direct.keys().await, ["/b/k"]);
    let status = direct.maintenance.status(StatusRequest {}).await.unwrap().into_inner();
    assert!(!status.encode_to_vec().is_empty() && status.errors.is_empty());
}

/// All of it, in one message of more than the 4 MiB that gRPC libraries default to.
#[tokio::test(flavor = "multi_thread")]
async fn large_ranges_come_whole_and_in_streams() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let mut a = proxy.client().await;
    for key in 0..12 {
        a.put(format!("k{key:02}"), vec![b'x'; 1 << 20]).await;
    }
    let all = RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    let answer = a.range(all.clone()).await.unwrap();
    assert_eq!((answer.count, answer.kvs.len()), (12, 12));
    let mut parts = match a.kv.range_stream(all).await {
        Ok(parts) => parts.into_inner(),
        Err(status) if status.code() == Code::Unimplemented && !at_least(7) => return,
        Err(status) => panic!("{status:?}"),
    };
    let (mut kvs, mut count, mut messages) = (Vec::new(), 0, 0);
    while let Some(part) = parts.message().await.unwrap() {
        let part = part.range_response.unwrap();
        kvs.extend(part.kvs);
        count += part.count;
        messages += 1;
    }
    assert_eq!((kvs, count), (answer.kvs, 12));
    assert!(messages > 1);
}
