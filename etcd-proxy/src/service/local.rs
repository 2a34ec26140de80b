//! The tenant's etcd as used from here, for services that are carried out by way of other calls.
//!
//! etcd's lock and election services are clients of the very server they run in (`server/etcdserver/api/v3client`). So are
//! those here: each step goes the way of a client's own call, with its checks, its limits, its mapping of keys and leases.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use prost::Message;
use proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, RangeRequest, RangeResponse, TxnRequest, TxnResponse, WatchCreateRequest,
    WatchRequest, WatchResponse, watch_request::RequestUnion,
};
use tonic::{Code, Status, body::Body};

use super::{
    lease, stream,
    unary::{self, Answer, OwnCall},
};
use crate::{
    error::EtcdError,
    grpc::{self, Share, UpstreamHeaders, framing::Frames},
    limits::Present,
    rewrite::{DeleteRange, Range, Rpc, Txn, Typed},
    tenant::Tenant,
    unknown,
};

/// What every error of etcd's own begins with (`api/v3rpc/rpctypes/error.go`).
const ETCD: &str = "etcdserver: ";
/// Refused by the server before a call is carried out, if the client asked for that by its metadata.
const NO_LEADER: &str = "etcdserver: no leader";

/// A client of the tenant's etcd. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Local {
    tenant: Tenant,
    headers: UpstreamHeaders,
}

/// An open watch. Dropped, it is cancelled upstream. What a long message has of the memory it keeps until the next is asked for.
pub(super) struct Watch {
    body: Body,
    frames: Frames,
}

/// How a watch ends.
#[derive(Debug)]
pub(super) enum Ended {
    /// What it was to begin with has been compacted.
    Compacted,
    /// It was refused or cancelled, for this reason.
    Cancelled(Status),
    /// Its stream broke off.
    Lost(Status),
}

// === impl Local ===

impl Local {
    /// The client that carries out a call of the tenant's with these headers.
    pub(super) fn new(tenant: Tenant, headers: UpstreamHeaders) -> Self {
        Self { tenant, headers }
    }

    /// The same for what is not bound to the call: neither to its deadline nor to a leader.
    pub(super) fn detached(&self) -> Self {
        Self { tenant: self.tenant.clone(), headers: self.headers.detached() }
    }

    pub(super) async fn txn(&self, request: &TxnRequest) -> Result<TxnResponse, Status> {
        Ok(self.call::<Txn>("/etcdserverpb.KV/Txn", request).await?.0)
    }

    pub(super) async fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Status> {
        Ok(self.long_range(request).await?.0)
    }

    /// The same, with what the answer has of the memory if it is long.
    pub(super) async fn long_range(&self, request: &RangeRequest) -> Result<(RangeResponse, Option<Share>), Status> {
        self.call::<Range>("/etcdserverpb.KV/Range", request).await
    }

    pub(super) async fn delete_range(
        &self,
        request: &<DeleteRange as Rpc>::Request,
    ) -> Result<<DeleteRange as Rpc>::Response, Status> {
        Ok(self.call::<DeleteRange>("/etcdserverpb.KV/DeleteRange", request).await?.0)
    }

    /// Grants a lease, by which the call keeps its place among those under way, too, when its client has gone.
    pub(super) async fn grant(&self, ttl: i64, under_way: &mut Option<Present>) -> Result<LeaseGrantResponse, Status> {
        let message = LeaseGrantRequest { ttl, id: 0 }.encode_to_vec().into();
        let (path, headers) = ("/etcdserverpb.Lease/LeaseGrant", self.headers.clone());
        let call = OwnCall { tenant: &self.tenant, path, headers, message };
        let frame = lease::grant(call, under_way).await.map_err(conveyed)?;
        message_of(frame)
    }

    /// Watches, from when the upstream has answered. What is created with is not told.
    pub(super) async fn watch(&self, create: WatchCreateRequest) -> Result<Watch, Status> {
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let body = stream::own_watch(&self.tenant, self.headers.clone(), &request).await?;
        Ok(Watch { body, frames: Frames::trusted() })
    }

    async fn call<R: Rpc>(
        &self,
        path: &'static str,
        request: &R::Request,
    ) -> Result<(R::Response, Option<Share>), Status> {
        let rewriter =
            unknown::schema().and_then(Typed::<R>::new).map_err(|error| Status::internal(error.to_string()))?;
        let message = Bytes::from(request.encode_to_vec());
        let answer = unary::forward(&self.tenant, &rewriter, path, self.headers.clone(), &message).await;
        let Answer { frame, share } = answer.map_err(conveyed)?;
        Ok((message_of(frame)?, share))
    }
}

/// An error of a step as the client of the whole call gets it. etcd's lock server returns the errors of its client as they are,
/// which to grpc-go have a text and no code.
fn conveyed(status: Status) -> Status {
    match status.message() {
        NO_LEADER => status,
        text if text.starts_with(ETCD) => Status::unknown(text),
        _ => status,
    }
}

/// The message in a frame that was made here.
fn message_of<M: Message + Default>(frame: BytesMut) -> Result<M, Status> {
    let mut frames = Frames::trusted();
    frames.push(frame.freeze());
    let message = frames.message()?.unwrap_or_default();
    M::decode(message).map_err(|error| Status::internal(format!("etcd-proxy: {error}")))
}

// === impl Watch ===

impl Watch {
    /// The next message with events.
    ///
    /// # Errors
    /// How the watch ended.
    pub(super) async fn next(&mut self) -> Result<WatchResponse, Ended> {
        loop {
            let response = self.message().await.map_err(Ended::Lost)?;
            if response.compact_revision != 0 {
                return Err(Ended::Compacted);
            }
            if response.canceled {
                // `client/v3/watch.go`, `WatchResponse.Err`.
                let reason = match response.cancel_reason.as_str() {
                    "" => EtcdError::FutureRevision.text(),
                    reason => reason,
                };
                return Err(Ended::Cancelled(conveyed(Status::failed_precondition(reason))));
            }
            if !response.events.is_empty() {
                return Ok(response);
            }
        }
    }

    async fn message(&mut self) -> Result<WatchResponse, Status> {
        loop {
            if let Some(message) = self.frames.message()? {
                return WatchResponse::decode(message)
                    .map_err(|error| Status::internal(format!("etcd-proxy: {error}")));
            }
            match self.body.frame().await.transpose()?.map(http_body::Frame::into_data) {
                Some(Ok(data)) => self.frames.push(data),
                Some(Err(frame)) => match frame.trailers_ref().and_then(grpc::status_of) {
                    Some(status) if status.code() != Code::Ok => return Err(status),
                    _ => return Err(lost()),
                },
                None => return Err(lost()),
            }
        }
    }
}

/// `client/v3/concurrency/key.go`, `waitDelete`.
fn lost() -> Status {
    Status::unknown("lost watcher waiting for delete")
}

// === impl Ended ===

impl From<Ended> for Status {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Compacted => conveyed(EtcdError::Compacted.into()),
            Ended::Cancelled(status) | Ended::Lost(status) => status,
        }
    }
}
