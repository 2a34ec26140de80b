//! Claims: who holds which prefix. They are made by `etcd-proxy claim` and by the controller, never by a serving proxy.
//!
//! Two claims that do not know of each other could overlap although each was checked; so every change also writes the
//! generation key, and happens only if that is unchanged since all claims were read.

mod transfer;

use bytes::Bytes;
use proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, request_op::Request,
    response_op::Response,
};
use thiserror::Error;
use tonic::{Code, Status};

pub use self::transfer::{TransferError, transfer};
use super::{Claim, MetaError, MetaLayout, encode_presence};
use crate::{compare, prefix::Prefix, upstream::Kv, words::counted};

/// How often a change starts over because somebody else changed the claims meanwhile.
const ATTEMPTS: usize = 16;

/// All claims at one moment.
#[derive(Clone, Debug)]
pub struct Claims {
    /// The claimed prefixes and who holds them, in the order of their keys.
    pub claims: Vec<Held>,
    /// The revision at which they last changed; 0 if there never was one.
    generation: i64,
}

/// One claimed prefix and who holds it.
#[derive(Clone, Debug)]
pub struct Held {
    /// The prefix.
    pub prefix: Vec<u8>,
    /// The claim, as far as this version can read it.
    pub claim: Result<Claim, MetaError>,
    /// The revision at which it was made. It tells this claim from every other one, before or after, of the same prefix.
    pub mod_revision: i64,
}

/// Whether a new owner may find something that an earlier one left.
#[derive(Clone, Copy)]
enum Inheritance {
    Permitted,
    Refused,
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
        owner: String,
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
        /// The revision at which that claim was made.
        mod_revision: i64,
    },
    /// Nobody holds it, but whoever claims it would inherit something.
    #[error(
        "prefix {prefix} is not claimed, but {} and {} of an earlier owner are left under it",
        counted(*keys, "key"),
        counted(*meta_keys, "meta key")
    )]
    HoldsData {
        /// The prefix.
        prefix: Prefix,
        /// How many keys lie under it.
        keys: i64,
        /// How many meta keys (secret, watermark, lease marks) belong to it.
        meta_keys: i64,
    },
    /// Others kept changing the claims.
    #[error("the claims kept changing while this one was made; try again")]
    Contention,
    /// The stored claim of this very prefix cannot be read.
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
    #[error(
        "prefix {0} is not claimed, so there is nothing to release; meta keys that somebody left for it (`etcd-proxy usage` lists it then) go when it is claimed with `etcd-proxy claim` and released afterwards"
    )]
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
    /// Something is left that whoever claims the prefix next would inherit.
    #[error(
        "{} and {} are left under {prefix}, and whoever claims it next would inherit them; delete the keys and revoke the leases first (or let them expire), or add --keep-data",
        counted(*keys, "key"),
        counted(*leases, "lease")
    )]
    NotEmpty {
        /// The prefix.
        prefix: Prefix,
        /// How many keys.
        keys: i64,
        /// How many leases.
        leases: i64,
    },
    /// Others kept changing the claims or the tenant's keys.
    #[error("the claims or the tenant's keys kept changing while the prefix was released; try again")]
    Contention,
    /// The stored claim cannot be read.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The upstream refused or could not be reached.
    #[error("the upstream answers {:?}: {}", .0.code(), .0.message())]
    Upstream(#[from] Status),
}

fn uid_note(uid: &str) -> String {
    if uid.is_empty() { String::new() } else { format!(" (uid {uid})") }
}

/// Reads all claims and their generation at one revision. A claim whose value cannot be read still holds its prefix, which
/// its key names: one tenant's newer or damaged claim is no reason to stop another.
///
/// # Errors
/// When the upstream refuses.
pub async fn read_claims(kv: &mut Kv, meta: &MetaLayout) -> Result<Claims, Status> {
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
        let Some(prefix) = meta.claimed_prefix(&kv.key) else {
            tracing::debug!(key = %kv.key.escape_ascii(), "a key among the claims names no prefix and is passed over");
            continue;
        };
        let claim = Claim::decode(&kv.value);
        if let Err(error) = &claim {
            // Claims are read often; who looks after them says it once.
            tracing::debug!(prefix = %prefix.escape_ascii(), %error, "nobody knows who holds this prefix");
        }
        claims.push(Held { prefix, claim, mod_revision: kv.mod_revision });
    }
    Ok(Claims { claims, generation })
}

/// The claim of exactly `prefix`; `None` if nobody holds it. Reads one key.
///
/// # Errors
/// When the upstream refuses.
pub async fn read_claim(kv: &mut Kv, meta: &MetaLayout, prefix: &Prefix) -> Result<Option<Held>, Status> {
    let answer = kv.range(RangeRequest { key: meta.claim(prefix), ..Default::default() }).await?.into_inner();
    Ok(answer.kvs.first().map(|kv| Held {
        prefix: prefix.as_bytes().to_vec(),
        claim: Claim::decode(&kv.value),
        mod_revision: kv.mod_revision,
    }))
}

/// Claims `prefix`, with whatever lies under it. Claiming again what the same owner (by name and uid) already holds changes
/// nothing.
///
/// # Errors
/// When somebody else holds the prefix or one that overlaps, when the stored claim of this prefix cannot be read, or the
/// upstream refuses.
pub async fn claim(kv: &mut Kv, meta: &MetaLayout, prefix: &Prefix, claim: &Claim) -> Result<(), ClaimError> {
    claim_with(kv, meta, prefix, claim, Inheritance::Permitted).await
}

/// Claims `prefix` if nothing of an earlier owner is left under it: no key, no lease, no meta key. The Txn that makes the
/// claim compares that. Claiming again what the same owner (by name and uid) already holds changes nothing.
///
/// # Errors
/// [`ClaimError::HoldsData`] when something is left; otherwise as [`claim`].
pub async fn claim_empty(kv: &mut Kv, meta: &MetaLayout, prefix: &Prefix, claim: &Claim) -> Result<(), ClaimError> {
    claim_with(kv, meta, prefix, claim, Inheritance::Refused).await
}

async fn claim_with(
    kv: &mut Kv,
    meta: &MetaLayout,
    prefix: &Prefix,
    claim: &Claim,
    inheritance: Inheritance,
) -> Result<(), ClaimError> {
    if prefix.overlaps(meta.prefix().as_bytes()) {
        return Err(ClaimError::Meta { prefix: prefix.clone(), meta: meta.prefix().clone() });
    }
    for _ in 0..ATTEMPTS {
        let read = read_claims(kv, meta).await?;
        if let Some(held) = read.of(prefix) {
            let holder = held.claim.as_ref().map_err(Clone::clone)?;
            if holder.owner == claim.owner && holder.uid == claim.uid {
                return Ok(());
            }
        }
        if let Some(held) = read.overlapping(prefix).next() {
            let (owner, uid) = held.names();
            let mod_revision = held.mod_revision;
            return Err(ClaimError::Held { held: held.prefix.clone(), owner, uid, mod_revision });
        }
        let mut conditions = Vec::new();
        if let Inheritance::Refused = inheritance {
            let (data, meta_keys) = (prefix.all(), meta.tenant(prefix).all());
            let left = (count(kv, &data).await?, count(kv, &meta_keys).await?);
            if left != (0, 0) {
                return Err(ClaimError::HoldsData { prefix: prefix.clone(), keys: left.0, meta_keys: left.1 });
            }
            // Nor may any have come since they were counted.
            conditions = vec![compare::none_in(data), compare::none_in(meta_keys)];
        }
        let put =
            Request::RequestPut(PutRequest { key: meta.claim(prefix), value: claim.encode(), ..Default::default() });
        if change(kv, meta, &read, conditions, vec![put]).await? {
            return Ok(());
        }
    }
    Err(ClaimError::Contention)
}

/// Releases the claim of `prefix`, and in the same Txn deletes the tenant's other meta keys: the next owner starts with a
/// secret and a watermark of its own. With `keep_data` the tenant's keys, leases and meta keys stay for the next owner to
/// inherit. With an `owner`, only that owner's claim (by name and uid) is released.
///
/// # Errors
/// When it is not claimed, held by somebody else, or the upstream refuses; and, without `keep_data`, while the tenant has
/// keys or leases.
pub async fn release(
    kv: &mut Kv,
    meta: &MetaLayout,
    prefix: &Prefix,
    owner: Option<(&str, &str)>,
    keep_data: bool,
) -> Result<Claim, ReleaseError> {
    let tenant = meta.tenant(prefix);
    let data = prefix.all();
    for _ in 0..ATTEMPTS {
        let read = read_claims(kv, meta).await?;
        let Some(held) = read.of(prefix) else {
            return Err(ReleaseError::NotClaimed(prefix.clone()));
        };
        let held = held.claim.as_ref().map_err(Clone::clone)?;
        if owner.is_some_and(|owner| owner != (held.owner.as_str(), held.uid.as_str())) {
            let (owner, uid) = (held.owner.clone(), held.uid.clone());
            return Err(ReleaseError::Held { prefix: prefix.clone(), owner, uid });
        }
        let mut conditions = Vec::new();
        let mut changes = vec![delete((meta.claim(prefix), Bytes::new()))];
        if !keep_data {
            let (keys, leases) = (count(kv, &data).await?, count(kv, &tenant.lease_marks()).await?);
            if keys > 0 || leases > 0 {
                return Err(ReleaseError::NotEmpty { prefix: prefix.clone(), keys, leases });
            }
            // Nor may any have come since they were counted.
            conditions = vec![compare::none_in(data.clone()), compare::none_in(tenant.lease_marks())];
            changes.push(delete(tenant.all()));
        }
        if change(kv, meta, &read, conditions, changes).await? {
            return Ok(held.clone());
        }
    }
    Err(ReleaseError::Contention)
}

/// How `prefix` stands among the claims, for a proxy that is about to serve it. Reads only.
///
/// # Errors
/// When the upstream cannot be reached, refuses even the prefix's own claim, or that claim cannot be read.
pub async fn standing(kv: &mut Kv, meta: &MetaLayout, prefix: &Prefix) -> Result<Standing, ClaimError> {
    if prefix.overlaps(meta.prefix().as_bytes()) {
        return Err(ClaimError::Meta { prefix: prefix.clone(), meta: meta.prefix().clone() });
    }
    let (claims, others_seen) = match read_claims(kv, meta).await {
        Ok(read) => (read.claims, true),
        Err(status) if status.code() == Code::PermissionDenied => {
            (read_claim(kv, meta, prefix).await?.into_iter().collect(), false)
        }
        Err(status) => return Err(status.into()),
    };
    let mut own = None;
    for held in claims {
        if held.prefix == prefix.as_bytes() {
            own = Some(held.claim?);
        } else if prefix.overlaps(&held.prefix) {
            let (owner, _) = held.names();
            return Ok(Standing::Overlaps { prefix: held.prefix, owner });
        }
    }
    Ok(match (own, others_seen) {
        (Some(claim), others_seen) => Standing::Claimed { claim, others_seen },
        (None, true) => Standing::Unclaimed,
        (None, false) => Standing::Unknown,
    })
}

// === impl Claims ===

impl Claims {
    /// The claim of exactly `prefix`.
    pub fn of(&self, prefix: &Prefix) -> Option<&Held> {
        self.claims.iter().find(|held| held.prefix == prefix.as_bytes())
    }

    /// The claims that keep anybody else from claiming `prefix`: its own, those that contain it and those that lie in it.
    pub fn overlapping(&self, prefix: &Prefix) -> impl Iterator<Item = &Held> {
        self.claims.iter().filter(|held| prefix.overlaps(&held.prefix))
    }
}

// === impl Held ===

impl Held {
    /// Owner and uid, for a message.
    pub fn names(&self) -> (String, String) {
        match &self.claim {
            Ok(claim) => (claim.owner.clone(), claim.uid.clone()),
            Err(error) => (format!("unknown ({error})"), String::new()),
        }
    }

    /// Holds in a Txn while this very claim stands: neither released nor given to anybody else, nor made again.
    pub fn stands(&self, meta: &MetaLayout) -> Compare {
        compare::modified_at(meta.claim_of(&self.prefix), self.mod_revision)
    }
}

async fn count(kv: &mut Kv, (key, range_end): &(Bytes, Bytes)) -> Result<i64, Status> {
    let request =
        RangeRequest { key: key.clone(), range_end: range_end.clone(), count_only: true, ..Default::default() };
    Ok(kv.range(request).await?.into_inner().count)
}

/// Makes changes to the claims unless they have changed since `read` or one of `conditions` does not hold. Returns whether
/// they were made.
async fn change(
    kv: &mut Kv,
    meta: &MetaLayout,
    read: &Claims,
    conditions: Vec<Compare>,
    changes: Vec<Request>,
) -> Result<bool, Status> {
    let generation: Bytes = meta.claims_generation();
    let unchanged = compare::modified_at(generation.clone(), read.generation);
    let renew = Request::RequestPut(PutRequest { key: generation, value: encode_presence(), ..Default::default() });
    let request = TxnRequest {
        compare: std::iter::once(unchanged).chain(conditions).collect(),
        success: changes.into_iter().chain([renew]).map(|request| RequestOp { request: Some(request) }).collect(),
        ..Default::default()
    };
    Ok(kv.txn(request).await?.into_inner().succeeded)
}

fn delete((key, range_end): (Bytes, Bytes)) -> Request {
    Request::RequestDeleteRange(DeleteRangeRequest { key, range_end, ..Default::default() })
}

fn range(request: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Request::RequestRange(request)) }
}
