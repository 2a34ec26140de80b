//! The Lease service, as far as its messages are passed on: Revoke, KeepAlive and TimeToLive.

use bytes::Bytes;
use proto::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
};

use super::{Interrupt, Rpc, View};

/// `Lease.LeaseRevoke`.
#[derive(Debug)]
pub enum Revoke {}

/// `Lease.LeaseKeepAlive`, message by message.
#[derive(Debug)]
pub enum KeepAlive {}

/// `Lease.LeaseTimeToLive`. The lease's mark, a meta key that is attached to it, is left out of its keys.
#[derive(Debug)]
pub enum TimeToLive {}

// === impl Rpc ===

impl Rpc for Revoke {
    const REQUEST: &'static str = "etcdserverpb.LeaseRevokeRequest";
    type Request = LeaseRevokeRequest;
    type Response = LeaseRevokeResponse;

    fn request(view: &View<'_>, request: &mut LeaseRevokeRequest) -> Result<(), Interrupt> {
        request.id = view.lease_to_upstream(request.id)?;
        Ok(())
    }

    fn response(_: &View<'_>, _: &mut LeaseRevokeResponse) -> Result<(), Interrupt> {
        Ok(())
    }
}

impl Rpc for KeepAlive {
    const REQUEST: &'static str = "etcdserverpb.LeaseKeepAliveRequest";
    type Request = LeaseKeepAliveRequest;
    type Response = LeaseKeepAliveResponse;

    fn request(view: &View<'_>, request: &mut LeaseKeepAliveRequest) -> Result<(), Interrupt> {
        request.id = view.lease_to_upstream(request.id)?;
        Ok(())
    }

    fn response(view: &View<'_>, response: &mut LeaseKeepAliveResponse) -> Result<(), Interrupt> {
        response.id = view.lease_to_tenant(response.id)?;
        Ok(())
    }
}

impl Rpc for TimeToLive {
    const REQUEST: &'static str = "etcdserverpb.LeaseTimeToLiveRequest";
    type Request = LeaseTimeToLiveRequest;
    type Response = LeaseTimeToLiveResponse;

    fn request(view: &View<'_>, request: &mut LeaseTimeToLiveRequest) -> Result<(), Interrupt> {
        request.id = view.lease_to_upstream(request.id)?;
        Ok(())
    }

    fn response(view: &View<'_>, response: &mut LeaseTimeToLiveResponse) -> Result<(), Interrupt> {
        // The mark bears the upstream's id, so it is recognised before the id is mapped.
        let mark = view.meta.lease_mark(response.id);
        response.keys.retain(|key: &Bytes| *key != mark);
        response.keys.iter_mut().try_for_each(|key| view.strip(key))?;
        response.id = view.lease_to_tenant(response.id)?;
        Ok(())
    }
}
