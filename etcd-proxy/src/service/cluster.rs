//! MemberList: the proxy is the cluster's one member, or clients that follow the list would go round it.

use bytes::BytesMut;
use proto::etcdserverpb::{Member, MemberListRequest, MemberListResponse};
use tonic::Status;

use super::unary::{OwnCall, answer};

/// `Cluster.MemberList`.
pub(super) async fn member_list(call: OwnCall<'_>) -> Result<BytesMut, Status> {
    let request: MemberListRequest = call.request("etcdserverpb.MemberListRequest")?;
    let upstream: MemberListResponse = call.ask(&request).await?;
    let config = call.tenant.config();
    let member = Member {
        id: upstream.header.map_or(0, |header| header.member_id),
        name: config.member_name.clone(),
        client_ur_ls: config.advertise_client_urls.clone(),
        ..Default::default()
    };
    answer(&MemberListResponse { header: upstream.header, members: vec![member] })
}
