//! The Auth service of an etcd with authentication off.

use bytes::BytesMut;
use proto::etcdserverpb::{
    AuthRoleListRequest, AuthRoleListResponse, AuthStatusRequest, AuthStatusResponse, AuthUserListRequest,
    AuthUserListResponse,
};
use tonic::Status;

use super::{
    maintenance::header,
    unary::{OwnCall, answer},
};

/// The revision of an auth store in which nothing ever changed.
const AUTH_REVISION: u64 = 1;

/// `Auth.AuthStatus`.
pub(super) async fn status(call: OwnCall<'_>) -> Result<BytesMut, Status> {
    let _: AuthStatusRequest = call.request("etcdserverpb.AuthStatusRequest")?;
    let header = header(&call).await?;
    answer(&AuthStatusResponse { header, enabled: false, auth_revision: AUTH_REVISION })
}

/// `Auth.UserList`: nobody.
pub(super) async fn users(call: OwnCall<'_>) -> Result<BytesMut, Status> {
    let _: AuthUserListRequest = call.request("etcdserverpb.AuthUserListRequest")?;
    let header = header(&call).await?;
    answer(&AuthUserListResponse { header, users: Vec::new() })
}

/// `Auth.RoleList`: none.
pub(super) async fn roles(call: OwnCall<'_>) -> Result<BytesMut, Status> {
    let _: AuthRoleListRequest = call.request("etcdserverpb.AuthRoleListRequest")?;
    let header = header(&call).await?;
    answer(&AuthRoleListResponse { header, roles: Vec::new() })
}
