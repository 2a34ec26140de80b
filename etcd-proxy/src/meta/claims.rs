//! Claims: who holds which prefix. They are made by `etcd-proxy claim` and by the controller, never by a serving proxy.
//!
//! Two claims that do not know of each other could overlap although each was checked; so every change also writes the
//! generation key, and happens only if that is unchanged since all claims were read.

use bytes::Bytes;
use proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op::Request,
    response_op::Response,
};
use thiserror::Error;
use tonic::{Code, Status};

use super::{Claim, MetaError, MetaLayout, encode_presence};
use crate::{prefix::Prefix, upstream::Kv};

/// How often a change starts over because somebody else changed the claims meanwhile.
const ATTEMPTS: usize = 16;

/// All claims at one moment.
#[derive(Clone, Debug)]
pub struct Claims {
    /// The claimed prefixes and who holds them.
    pub claims: Vec<(Vec<u8>, Claim)>,
    /// The revision at which they last changed; 0 if there never was one.
    generation: i64,
}

/// How a prefix stands among the claims.
#[derive(Clone, Debug)]
pub enum Standing {
    /// Claimed, and no other claim overlaps as far as the others could be read.
    Claimed {
        /// The prefix's own claim.
        claim: Claim,
        /// Whether the other claims could be read. With etcd's authentication on, a tenant's user reads its own alone.
        others_seen: bool,
    },
    /// Nobody holds it, and no claim overlaps.
    Unclaimed,
    /// Another claim contains it or is contained in it.
    Overlaps {
        /// The other prefix.
        prefix: Vec<u8>,
        /// Who holds it.
        claim: Claim,
    },
    /// No claim of its own, and the others could not be read: nothing says that it is free.
    Unknown,
}

/// Why a prefix could not be claimed.
#[derive(Debug, Error)]
pub enum ClaimError {
    /// The prefix contains the meta keys or lies among them.
    #[error("prefix {prefix} overlaps the meta prefix {meta}")]
    Meta {
        /// The prefix.
        prefix: Prefix,
        /// The `--meta-prefix`.
        meta: Prefix,
    },
    /// Somebody else holds it, or a prefix that overlaps it.
    #[error("prefix {} is held by {owner}{}", held.escape_ascii(), uid_note(uid))]
    Held {
        /// The held prefix.
        held: Vec<u8>,
        /// Its owner.
        owner: String,
        /// The owner's uid.
        uid: String,
    },
    /// Others kept changing the claims.
    #[error("the claims kept changing while this one was made; try again")]
    Contention,
    /// A stored claim cannot be read.
    #[error(transparent)]
    Format(#[from] MetaError),
    /// The upstream refused or could not be reached.
    #[error("the upstream answers {:?}: {}", .0.code(), .0.message())]
    Upstream(#[from] Status),
}

/// Why a claim could not be released.
#[derive(Debug, Error)]
pub enum ReleaseError {
    /// There is no such claim.
    #[error("prefix {0} is not claimed")]
    NotClaimed(Prefix),
    /// Somebody else holds it.
    #[error("prefix {prefix} is held by {owner}{}", uid_note(uid))]
    Held {
        /// The prefix.
        prefix: Prefix,
        /// Its owner.
        owner: String,
        /// The owner's uid.
        uid: String,
    },
    /// Others kept changing the claims.
    #[error("the claims kept changing while this one was released; try again")]
    Contention,
    /// A stored claim cannot be read.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The upstream refused or could not be reached.
    #[error("the upstream answers {:?}: {}", .0.code(), .0.message())]
    Upstream(#[from] Status),
}

fn uid_note(uid: &str) -> String {
    if uid.is_empty() { String::new() } else { format!(" (uid {uid})") }
}

/// Reads all claims and their generation at one revision.
///
/// # Errors
/// When the upstream refuses, or a claim cannot be read.
pub async fn read_claims(kv: &mut Kv, meta: &MetaLayout) -> Result<Claims, ClaimError> {
    let (key, range_end) = meta.claims();
    let request = TxnRequest {
        success: vec![
            range(RangeRequest { key: meta.claims_generation(), ..Default::default() }),
            range(RangeRequest { key, range_end, ..Default::default() }),
        ],
        ..Default::default()
    };
    let answer = kv.txn(request).await?.into_inner();
    let mut parts = answer.responses.into_iter().map(|op| match op.response {
        Some(Response::ResponseRange(range)) => range.kvs,
        _ => Vec::new(),
    });
    let generation = parts.next().and_then(|kvs| kvs.first().map(|kv| kv.mod_revision)).unwrap_or(0);
    let mut claims = Vec::new();
    for kv in parts.next().unwrap_or_default() {
        let prefix = meta.claimed_prefix(&kv.key).ok_or_else(|| MetaError::Damaged {
            what: "claim",
            reason: format!("the key {} names no prefix", kv.key.escape_ascii()),
        })?;
        claims.push((prefix, Claim::decode(&kv.value)?));
    }
    Ok(Claims { claims, generation })
}

/// Claims `prefix`. Claiming again what the same owner (by name and uid) already holds changes nothing. With `force`, other
/// claims that overlap are tolerated; a claim of the very same prefix and the meta keys never are.
///
/// # Errors
/// When somebody else holds the prefix or one that overlaps, or the upstream refuses.
pub async fn claim(
    kv: &mut Kv,
    meta: &MetaLayout,
    prefix: &Prefix,
    claim: &Claim,
    force: bool,
) -> Result<(), ClaimError> {
    if prefix.overlaps(meta.prefix().as_bytes()) {
        return Err(ClaimError::Meta { prefix: prefix.clone(), meta: meta.prefix().clone() });
    }
    for _ in 0..ATTEMPTS {
        let read = read_claims(kv, meta).await?;
        for (held, holder) in &read.claims {
            let same = held == prefix.as_bytes();
            if same && holder.owner == claim.owner && holder.uid == claim.uid {
                return Ok(());
            }
            if same || (!force && prefix.overlaps(held)) {
                let (owner, uid) = (holder.owner.clone(), holder.uid.clone());
                return Err(ClaimError::Held { held: held.clone(), owner, uid });
            }
        }
        let put =
            Request::RequestPut(PutRequest { key: meta.claim(prefix), value: claim.encode(), ..Default::default() });
        if change(kv, meta, &read, put).await? {
            return Ok(());
        }
    }
    Err(ClaimError::Contention)
}

/// Releases the claim of `prefix`. The tenant's data and its other meta keys stay. With an `owner`, only that owner's claim
/// (by name and uid) is released.
///
/// # Errors
/// When it is not claimed, held by somebody else, or the upstream refuses.
pub async fn release(
    kv: &mut Kv,
    meta: &MetaLayout,
    prefix: &Prefix,
    owner: Option<(&str, &str)>,
) -> Result<Claim, ReleaseError> {
    for _ in 0..ATTEMPTS {
        let read = match read_claims(kv, meta).await {
            Ok(read) => read,
            Err(ClaimError::Format(error)) => return Err(error.into()),
            Err(ClaimError::Upstream(status)) => return Err(status.into()),
            Err(_) => return Err(ReleaseError::Contention),
        };
        let Some((_, held)) = read.claims.iter().find(|(held, _)| held == prefix.as_bytes()) else {
            return Err(ReleaseError::NotClaimed(prefix.clone()));
        };
        if owner.is_some_and(|owner| owner != (held.owner.as_str(), held.uid.as_str())) {
            let (owner, uid) = (held.owner.clone(), held.uid.clone());
            return Err(ReleaseError::Held { prefix: prefix.clone(), owner, uid });
        }
        let delete = Request::RequestDeleteRange(DeleteRangeRequest { key: meta.claim(prefix), ..Default::default() });
        if change(kv, meta, &read, delete).await? {
            return Ok(held.clone());
        }
    }
    Err(ReleaseError::Contention)
}

/// How `prefix` stands among the claims, for a proxy that is about to serve it. Reads only.
///
/// # Errors
/// When the upstream cannot be reached, refuses even the prefix's own claim, or a claim cannot be read.
pub async fn standing(kv: &mut Kv, meta: &MetaLayout, prefix: &Prefix) -> Result<Standing, ClaimError> {
    if prefix.overlaps(meta.prefix().as_bytes()) {
        return Err(ClaimError::Meta { prefix: prefix.clone(), meta: meta.prefix().clone() });
    }
    let (claims, others_seen) = match read_claims(kv, meta).await {
        Ok(read) => (read.claims, true),
        Err(ClaimError::Upstream(status)) if status.code() == Code::PermissionDenied => {
            (own_claim(kv, meta, prefix).await?, false)
        }
        Err(error) => return Err(error),
    };
    let mut own = None;
    for (held, claim) in claims {
        if held == prefix.as_bytes() {
            own = Some(claim);
        } else if prefix.overlaps(&held) {
            return Ok(Standing::Overlaps { prefix: held, claim });
        }
    }
    Ok(match (own, others_seen) {
        (Some(claim), others_seen) => Standing::Claimed { claim, others_seen },
        (None, true) => Standing::Unclaimed,
        (None, false) => Standing::Unknown,
    })
}

async fn own_claim(kv: &mut Kv, meta: &MetaLayout, prefix: &Prefix) -> Result<Vec<(Vec<u8>, Claim)>, ClaimError> {
    let answer = kv.range(RangeRequest { key: meta.claim(prefix), ..Default::default() }).await?.into_inner();
    let decoded = answer.kvs.first().map(|kv| Claim::decode(&kv.value)).transpose()?;
    Ok(decoded.map(|claim| (prefix.as_bytes().to_vec(), claim)).into_iter().collect())
}

/// Makes one change to the claims unless they have changed since `read`. Returns whether it was made.
async fn change(kv: &mut Kv, meta: &MetaLayout, read: &Claims, change: Request) -> Result<bool, Status> {
    let generation: Bytes = meta.claims_generation();
    let unchanged = Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Mod as i32,
        key: generation.clone(),
        target_union: Some(TargetUnion::ModRevision(read.generation)),
        ..Default::default()
    };
    let renew = Request::RequestPut(PutRequest { key: generation, value: encode_presence(), ..Default::default() });
    let request = TxnRequest {
        compare: vec![unchanged],
        success: vec![RequestOp { request: Some(change) }, RequestOp { request: Some(renew) }],
        ..Default::default()
    };
    Ok(kv.txn(request).await?.into_inner().succeeded)
}

fn range(request: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Request::RequestRange(request)) }
}
