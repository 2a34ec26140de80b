//! Prefixes: who holds which, and who gets them.
//!
//! Whether the holder of a prefix is still alive, and whether an operator has named an heir, only the caller knows. So
//! [`Shared::ensure_claim`] gives nobody anything that somebody else holds or left; it says who does, and the caller may
//! go on with [`Shared::adopt`].

use etcd_proxy::{
    meta::{self, Claim, ClaimError, Claims, FORMAT, Held, ReleaseError, TransferError},
    prefix::{KUBERNETES, Prefix},
};

use super::{Shared, SharedError};

const CLAIM: &str = "claim the prefix";
const ADOPT: &str = "take over the prefix";
const RELEASE: &str = "release the prefix";
const LIST: &str = "list the claims";

/// What came of the wish for a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claiming {
    /// It is held by the owner who wished for it.
    Claimed,
    /// Somebody else holds this very prefix. If that owner is gone, its claim was kept for the data's sake, and an heir may
    /// have it: [`Heirloom::Claim`].
    Held(Holder),
    /// Somebody holds a prefix that contains it or lies in it.
    Overlaps(Holder),
    /// Nobody holds it, but something is left there: [`Heirloom::Data`].
    HoldsData {
        /// How many keys lie under it.
        keys: i64,
        /// How many meta keys (secret of the lease ids, watermark, leases) an earlier owner left.
        meta_keys: i64,
    },
}

/// Who holds a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The prefix.
    pub prefix: Vec<u8>,
    /// The owner, `<namespace>/<name>`, or what says that it is unknown.
    pub owner: String,
    /// The owner's uid; empty for a claim by hand and for one that cannot be read.
    pub uid: String,
    /// The revision at which the claim was made, which tells it from any other one.
    pub mod_revision: i64,
}

/// What an heir takes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heirloom {
    /// Keys under a prefix that nobody holds.
    Data,
    /// A claim whose owner is gone, with all that lies under it; as [`Claiming::Held`] showed it.
    Claim(Holder),
}

/// What came of releasing a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The owner does not hold it, now or any more.
    Done,
    /// It is still held, since something is left that the next owner would find.
    NotEmpty {
        /// How many keys.
        keys: i64,
        /// How many leases.
        leases: i64,
    },
}

// === impl Shared ===

impl Shared {
    /// Claims `prefix` for an owner, if nobody holds it or an overlapping one and nothing is left under it. What the owner
    /// holds already it keeps.
    ///
    /// # Errors
    /// When the prefix is nobody's to have, its claim cannot be read, or the shared etcd does not do as asked.
    pub async fn ensure_claim(&self, prefix: &Prefix, owner: &str, uid: &str) -> Result<Claiming, SharedError> {
        self.permitted(prefix)?;
        let (mut kv, claim) = (self.upstream.kv(), claim(owner, uid));
        let made = self.within(CLAIM, meta::claim_empty(&mut kv, &self.meta, prefix, &claim)).await?;
        self.claiming(CLAIM, prefix, made)
    }

    /// Gives an owner what an earlier one left under `prefix`. The caller has made sure that the earlier one is gone and that
    /// this is what the operator wants. If things are not as `heirloom` says any more, nothing happens, and the answer
    /// says how they are.
    ///
    /// # Errors
    /// As [`Shared::ensure_claim`].
    pub async fn adopt(
        &self,
        prefix: &Prefix,
        owner: &str,
        uid: &str,
        heirloom: &Heirloom,
    ) -> Result<Claiming, SharedError> {
        self.permitted(prefix)?;
        let (mut kv, claim) = (self.upstream.kv(), claim(owner, uid));
        let from = match heirloom {
            Heirloom::Data => {
                let made = self.within(ADOPT, meta::claim(&mut kv, &self.meta, prefix, &claim)).await?;
                return self.claiming(ADOPT, prefix, made);
            }
            Heirloom::Claim(holder) => holder.mod_revision,
        };
        match self.within(ADOPT, meta::transfer(&mut kv, &self.meta, prefix, from, &claim)).await? {
            Ok(()) => Ok(Claiming::Claimed),
            // Somebody was faster: look again who.
            Err(TransferError::Changed { .. } | TransferError::NotClaimed(_)) => {
                self.ensure_claim(prefix, owner, uid).await
            }
            Err(TransferError::Contention) => Err(SharedError::Contention { doing: ADOPT }),
            Err(TransferError::Format(error)) => Err(error.into()),
            Err(TransferError::Upstream(status)) => Err(self.error(ADOPT, status)),
        }
    }

    /// Releases the owner's claim of `prefix`, if nothing is left under it; the Txn that does it compares that. An owner that
    /// does not hold the prefix has nothing to release.
    ///
    /// # Errors
    /// When the shared etcd does not do as asked, or the claim cannot be read.
    pub async fn release(&self, prefix: &Prefix, owner: &str, uid: &str) -> Result<Release, SharedError> {
        let mut kv = self.upstream.kv();
        let work = meta::release(&mut kv, &self.meta, prefix, Some((owner, uid)), false);
        match self.within(RELEASE, work).await? {
            Ok(_) | Err(ReleaseError::NotClaimed(_) | ReleaseError::Held { .. }) => Ok(Release::Done),
            Err(ReleaseError::NotEmpty { keys, leases, .. }) => Ok(Release::NotEmpty { keys, leases }),
            Err(ReleaseError::Contention) => Err(SharedError::Contention { doing: RELEASE }),
            Err(ReleaseError::Meta(error)) => Err(error.into()),
            Err(ReleaseError::Upstream(status)) => Err(self.error(RELEASE, status)),
        }
    }

    /// All claims at one moment. [`Claims::overlapping`] says which of them a prefix would collide with.
    ///
    /// # Errors
    /// When the shared etcd does not answer.
    pub async fn claims(&self) -> Result<Claims, SharedError> {
        let mut kv = self.upstream.kv();
        let read = self.within(LIST, meta::read_claims(&mut kv, &self.meta)).await?;
        read.map_err(|status| self.error(LIST, status))
    }

    /// Whether the owner holds `prefix`.
    ///
    /// # Errors
    /// When the claim cannot be read, or the shared etcd does not answer.
    pub async fn holds(&self, prefix: &Prefix, owner: &str, uid: &str) -> Result<bool, SharedError> {
        Ok(self.claim_of(prefix, owner, uid).await?.is_some())
    }

    /// The owner's claim of `prefix`, if it holds it.
    pub(super) async fn claim_of(&self, prefix: &Prefix, owner: &str, uid: &str) -> Result<Option<Held>, SharedError> {
        const READ: &str = "read the claim";
        let mut kv = self.upstream.kv();
        let read = self.within(READ, meta::read_claim(&mut kv, &self.meta, prefix)).await?;
        let Some(held) = read.map_err(|status| self.error(READ, status))? else { return Ok(None) };
        let claim = held.claim.as_ref().map_err(Clone::clone)?;
        Ok((claim.owner == owner && claim.uid == uid).then_some(held))
    }

    /// Whether a tenant may have `prefix` at all.
    fn permitted(&self, prefix: &Prefix) -> Result<(), SharedError> {
        let reserved = |reserved: &[u8], whose| {
            Err(SharedError::Reserved { prefix: prefix.clone(), reserved: reserved.escape_ascii().to_string(), whose })
        };
        let meta = self.meta.prefix().as_bytes();
        match () {
            () if prefix.overlaps_kubernetes() => reserved(KUBERNETES, "kube-apiserver's keys"),
            () if prefix.overlaps(meta) => reserved(meta, "the proxies' meta keys"),
            () => Ok(()),
        }
    }

    fn claiming(
        &self,
        doing: &'static str,
        prefix: &Prefix,
        made: Result<(), ClaimError>,
    ) -> Result<Claiming, SharedError> {
        match made {
            Ok(()) => Ok(Claiming::Claimed),
            Err(ClaimError::Held { held, owner, uid, mod_revision }) => {
                let exact = held == prefix.as_bytes();
                let holder = Holder { prefix: held, owner, uid, mod_revision };
                Ok(if exact { Claiming::Held(holder) } else { Claiming::Overlaps(holder) })
            }
            Err(ClaimError::HoldsData { keys, meta_keys, .. }) => Ok(Claiming::HoldsData { keys, meta_keys }),
            Err(ClaimError::Contention) => Err(SharedError::Contention { doing }),
            Err(ClaimError::Format(error)) => Err(error.into()),
            Err(ClaimError::Upstream(status)) => Err(self.error(doing, status)),
            Err(ClaimError::Meta { prefix, meta }) => {
                Err(SharedError::Reserved { prefix, reserved: meta.to_string(), whose: "the proxies' meta keys" })
            }
        }
    }
}

fn claim(owner: &str, uid: &str) -> Claim {
    Claim { format: FORMAT, owner: owner.to_owned(), uid: uid.to_owned(), created_at: jiff::Timestamp::now() }
}

// === impl Holder ===

impl From<&Held> for Holder {
    fn from(held: &Held) -> Self {
        let (owner, uid) = held.names();
        Self { prefix: held.prefix.clone(), owner, uid, mod_revision: held.mod_revision }
    }
}
