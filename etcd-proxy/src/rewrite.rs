//! From a tenant's messages to the upstream's and back: pure, message by message.
//!
//! [`Rewriter`] is what the rest of the proxy sees of it: encoded messages in, gRPC frames out. Requests are decoded into typed messages,
//! changed and encoded again, and refused where something in them is unknown, since that may be a key. Answers keep their encoded form,
//! in which keys and leases are exchanged ([`Shape`]): what a newer etcd adds to them reaches the tenant.

mod answer;
mod kv;
mod lease;
mod range_stream;
mod typed;
mod watch;
mod wire;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use memchr::memmem;
use proto::etcdserverpb::{PutRequest, StatusResponse};
use tokio::sync::Notify;
use tonic::Status;

pub use self::{
    answer::{LongAnswer, Shape},
    kv::{DeleteRange, Put, Range, RangeStream, Txn},
    lease::{KeepAlive, KeepAliveStream, TimeToLive},
    range_stream::RangeParts,
    typed::{Rpc, Typed},
    watch::WatchStream,
};
use crate::{
    error::{EtcdError, Unsupported},
    lease_id::{CipherError, LeaseCipher},
    limits::Amount,
    meta::TenantKeys,
    prefix::{ForeignKey, Prefix},
};

/// What the messages of a tenant are rewritten by, at one moment.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The tenant's prefix.
    pub prefix: &'a Prefix,
    /// The tenant's meta keys.
    pub meta: &'a TenantKeys,
    /// The mapping of lease ids, if it has been loaded.
    pub leases: Option<&'a Arc<LeaseCipher>>,
    /// The mapping that stands in for requests of a tenant without one. Such a tenant has never been granted a lease, so any
    /// id that it names has to lead to one that nobody was granted: this mapping is of a secret that nobody else has.
    pub stand_in: Option<&'a LeaseCipher>,
    /// Whether the request is one of a tenant that has never been granted a lease.
    pub never_granted: bool,
    /// The lowest revision that the tenant may read, if it has been loaded; -1 when the tenant never compacted.
    pub watermark: Option<i64>,
    /// A revision of the upstream from which on the watermark has been this one.
    pub compacted_at: i64,
    /// Operations that a Txn may have, as the upstream's `--max-txn-ops`.
    pub max_txn_ops: usize,
}

/// Why a message cannot be passed on, or not yet.
#[derive(Debug)]
pub enum Interrupt {
    /// A request names a lease, so the mapping of lease ids has to be looked for first; then the same message can be tried
    /// again.
    NeedsLeases,
    /// An answer holds a lease, so there has to be a mapping of lease ids; then the same message can be tried again.
    MeetsLease,
    /// The watermark has to be loaded first; then the same message can be tried again.
    NeedsWatermark,
    /// So many requests before wait for their answers that this one has to wait for one of them, of which this tells.
    Unanswered(Arc<Notify>),
    /// The client gets this answer.
    Refused(Status),
    /// The upstream's answer holds a key of somebody else. It must not get out.
    Foreign,
    /// The upstream refuses the token that the stream began with.
    LoginEnded,
}

/// One RPC's messages on their way through the proxy.
pub trait Rewriter: Send + Sync {
    /// Checks a client's message and appends the frame for the upstream to `out`.
    ///
    /// # Errors
    /// Whatever keeps the message from being passed on; `out` is then unchanged.
    fn request(&self, view: &View<'_>, message: &Bytes, out: &mut BytesMut) -> Result<(), Interrupt>;

    /// Appends the frame or frames that the client gets for an upstream's message to `out`.
    ///
    /// # Errors
    /// Whatever keeps the message from being passed on; `out` is then unchanged.
    fn response(&self, view: &View<'_>, message: &Bytes, out: &mut BytesMut) -> Result<(), Interrupt>;
}

/// The rewriter of an RPC that has one message each way.
pub trait Call: Rewriter {
    /// [`Rewriter::response`] for an answer that is long: piece by piece, without ever having the whole frame beside the answer.
    ///
    /// # Errors
    /// As there.
    fn long_response(&self, view: &View<'_>, message: &Bytes) -> Result<LongAnswer, Interrupt>;

    /// Whether requests can change something.
    fn writes(&self) -> bool;

    /// The most that a client's message can add to what is stored, if a Put that it holds adds what `added` says. A message
    /// that has passed [`Rewriter::request`].
    fn adds(&self, message: &Bytes, added: &mut dyn FnMut(&PutRequest) -> Amount) -> Amount;

    /// The revision that the request of this message of the upstream's wrote, if it put a key.
    fn written(&self, message: &Bytes) -> Option<i64>;
}

// === impl View ===

impl View<'_> {
    /// The mapping of the ids in a request, and of those that its answer repeats.
    fn of_request(&self) -> Option<&LeaseCipher> {
        if self.never_granted { self.stand_in } else { self.leases.map(|leases| &**leases) }
    }

    /// The upstream's id for a tenant's lease id.
    pub(crate) fn lease_to_upstream(&self, id: i64) -> Result<i64, Interrupt> {
        match (id, self.of_request()) {
            (0, _) => Ok(0),
            (id, Some(leases)) => Ok(leases.to_upstream(id)?),
            (_, None) => Err(Interrupt::NeedsLeases),
        }
    }

    /// The tenant's id for the lease id in an answer that is the one of the request.
    fn repeated_lease(&self, id: i64) -> Result<i64, Interrupt> {
        match (id, self.of_request()) {
            (0, _) => Ok(0),
            (id, Some(leases)) => Ok(leases.to_tenant(id)?),
            (_, None) => Err(Interrupt::MeetsLease),
        }
    }

    /// The tenant's id for an upstream's lease id.
    fn lease_to_tenant(&self, id: i64) -> Result<i64, Interrupt> {
        match (id, self.leases) {
            (0, _) => Ok(0),
            (id, Some(leases)) => Ok(leases.to_tenant(id)?),
            (_, None) => Err(Interrupt::MeetsLease),
        }
    }

    fn watermark(&self) -> Result<i64, Interrupt> {
        self.watermark.ok_or(Interrupt::NeedsWatermark)
    }

    /// Whether what is unknown here holds keys as they are upstream, the tenant's or the proxy's own. What they are to the tenant
    /// nobody knows.
    #[cold]
    fn names_keys(&self, bytes: &[u8]) -> bool {
        [self.prefix.as_bytes(), self.meta.root()].iter().any(|prefix| memmem::find(bytes, prefix).is_some())
    }

    /// Whether a message with keys stands where words for people should, which pass as they are: in an answer to something else
    /// it may. Words may happen to have the bytes of a short prefix in them, but they have no control characters, as the tags of
    /// messages are.
    fn hides_keys(&self, words: &[u8]) -> bool {
        words.iter().any(u8::is_ascii_control) && self.names_keys(words)
    }

    /// Looks whether an upstream's status is one: all that it says in words is passed on, if not as it is, then in a snapshot.
    ///
    /// # Errors
    /// What the client gets instead.
    pub(crate) fn check_status(&self, status: &StatusResponse) -> Result<(), Status> {
        let target = status.downgrade_info.as_ref().map(|downgrade| &downgrade.target_version);
        let words = [&status.version, &status.storage_version].into_iter().chain(target).chain(&status.errors);
        self.check_words(words)
    }

    /// Looks whether these are words, in an answer of the upstream.
    ///
    /// # Errors
    /// What the client gets instead.
    pub(crate) fn check_words<'w>(&self, words: impl IntoIterator<Item = &'w String>) -> Result<(), Status> {
        match words.into_iter().any(|words| self.hides_keys(words.as_bytes())) {
            true => Err(wire::undecodable()),
            false => Ok(()),
        }
    }
}

// === impl Interrupt ===

impl From<EtcdError> for Interrupt {
    fn from(error: EtcdError) -> Self {
        Self::Refused(error.into())
    }
}

impl From<Unsupported> for Interrupt {
    fn from(error: Unsupported) -> Self {
        Self::Refused(error.into())
    }
}

impl From<ForeignKey> for Interrupt {
    fn from(ForeignKey: ForeignKey) -> Self {
        Self::Foreign
    }
}

impl From<CipherError> for Interrupt {
    fn from(error: CipherError) -> Self {
        Self::Refused(Status::internal(format!("etcd-proxy: {error}")))
    }
}

#[cfg(test)]
pub(crate) mod tests;
