//! The Lease service, as far as its messages are passed on: KeepAlive and TimeToLive.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use proto::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};

use super::{Interrupt, Rewriter, Rpc, Shape, Typed, View};
use crate::unknown::{Schema, SchemaError};

/// `Lease.LeaseKeepAlive`, message by message.
#[derive(Debug)]
pub enum KeepAlive {}

/// The [`Rewriter`] of one keep-alive stream.
///
/// While the stream is open the tenant may be granted its first lease, from when on ids mean something else. etcd answers
/// the messages one by one, so the first answers are to the messages that were sent before.
#[derive(Debug)]
pub struct KeepAliveStream {
    messages: Typed<KeepAlive>,
    /// Messages under way of a tenant that had no lease yet. Only the request's side adds to it, only the response's takes.
    before_leases: AtomicU64,
}

/// `Lease.LeaseTimeToLive`. The lease's mark, a meta key that is attached to it, is left out of its keys.
#[derive(Debug)]
pub enum TimeToLive {}

// === impl Rpc ===

impl Rpc for KeepAlive {
    const REQUEST: &'static str = "etcdserverpb.LeaseKeepAliveRequest";
    type Request = LeaseKeepAliveRequest;
    type Response = LeaseKeepAliveResponse;

    const STREAMED: bool = true;

    fn request(view: &View<'_>, request: &mut LeaseKeepAliveRequest) -> Result<(), Interrupt> {
        request.id = view.lease_to_upstream(request.id)?;
        Ok(())
    }

    const ANSWER: Shape = Shape::KeepAlive;
}

impl Rpc for TimeToLive {
    const REQUEST: &'static str = "etcdserverpb.LeaseTimeToLiveRequest";
    type Request = LeaseTimeToLiveRequest;
    type Response = LeaseTimeToLiveResponse;

    fn request(view: &View<'_>, request: &mut LeaseTimeToLiveRequest) -> Result<(), Interrupt> {
        request.id = view.lease_to_upstream(request.id)?;
        Ok(())
    }

    const ANSWER: Shape = Shape::TimeToLive;
}

// === impl KeepAliveStream ===

impl KeepAliveStream {
    /// The rewriter of a new stream.
    ///
    /// # Errors
    /// When the schema lacks the request.
    pub fn new(schema: &'static Schema) -> Result<Self, SchemaError> {
        Ok(Self { messages: Typed::new(schema)?, before_leases: AtomicU64::new(0) })
    }
}

impl Rewriter for KeepAliveStream {
    fn request(&self, view: &View<'_>, message: &Bytes, out: &mut BytesMut) -> Result<(), Interrupt> {
        self.messages.request(view, message, out)?;
        if view.never_granted || view.leases.is_none() {
            self.before_leases.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn response(&self, view: &View<'_>, message: &Bytes, out: &mut BytesMut) -> Result<(), Interrupt> {
        let never_granted = self.before_leases.load(Ordering::Relaxed) > 0;
        self.messages.response(&View { never_granted, ..*view }, message, out)?;
        if never_granted {
            self.before_leases.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
