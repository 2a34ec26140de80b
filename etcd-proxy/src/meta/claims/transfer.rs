//! Giving a claim to another owner together with the data.

use proto::etcdserverpb::{PutRequest, request_op::Request};
use thiserror::Error;
use tonic::Status;

use super::{ATTEMPTS, change, read_claims, uid_note};
use crate::{
    meta::{Claim, MetaError, MetaLayout},
    prefix::Prefix,
    upstream::Kv,
};

/// Why a claim could not be given to another owner.
#[derive(Debug, Error)]
pub enum TransferError {
    /// There is no such claim any more.
    #[error("prefix {0} is not claimed any more")]
    NotClaimed(Prefix),
    /// It is not the claim that was to be given away, but a later one.
    #[error("prefix {prefix} is meanwhile held by {owner}{}", uid_note(uid))]
    Changed {
        /// The prefix.
        prefix: Prefix,
        /// Its present owner.
        owner: String,
        /// The present owner's uid.
        uid: String,
    },
    /// Others kept changing the claims.
    #[error("the claims kept changing while this one was given to another owner; try again")]
    Contention,
    /// The stored claim cannot be read.
    #[error(transparent)]
    Format(#[from] MetaError),
    /// The upstream refused or could not be reached.
    #[error("the upstream answers {:?}: {}", .0.code(), .0.message())]
    Upstream(#[from] Status),
}

/// Gives the claim of `prefix` that was made at the revision `from` ([`Held::mod_revision`](super::Held::mod_revision)) to the
/// owner `to`. Keys, leases and meta keys stay where they are: the new owner
/// inherits them. A claim that `to` (by name and uid) holds already is left as it is.
///
/// The caller has made sure that the old owner is gone and that the new one may have its data: neither can be seen here.
///
/// # Errors
/// When the claim is not that of `from` any more, when it cannot be read (what cannot be read is not overwritten), or the upstream
/// refuses.
pub async fn transfer(
    kv: &mut Kv,
    meta: &MetaLayout,
    prefix: &Prefix,
    from: i64,
    to: &Claim,
) -> Result<(), TransferError> {
    for _ in 0..ATTEMPTS {
        let read = read_claims(kv, meta).await?;
        let held = read.of(prefix).ok_or_else(|| TransferError::NotClaimed(prefix.clone()))?;
        let holder = held.claim.as_ref().map_err(Clone::clone)?;
        if holder.owner == to.owner && holder.uid == to.uid {
            return Ok(());
        }
        if held.mod_revision != from {
            let (prefix, owner, uid) = (prefix.clone(), holder.owner.clone(), holder.uid.clone());
            return Err(TransferError::Changed { prefix, owner, uid });
        }
        let put = Request::RequestPut(PutRequest { key: meta.claim(prefix), value: to.encode(), ..Default::default() });
        if change(kv, meta, &read, vec![held.stands(meta)], vec![put]).await? {
            return Ok(());
        }
    }
    Err(TransferError::Contention)
}
