//! The meta keys: the proxy's own bookkeeping on the upstream, outside every tenant's view.
//!
//! This module is the one place that knows their names and formats, which `docs/meta-format.md` describes. Old and new
//! proxies, the tools and the controller share them, so every value carries the version of its format and a newer one is
//! refused, not guessed at.

mod claims;
mod journal;

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::claims::{
    ClaimError, Claims, Held, ReleaseError, Standing, TransferError, claim, claim_empty, read_claim, read_claims,
    release, standing, transfer,
};
pub use self::journal::Journal;
use crate::{
    lease_id::{LeaseSecret, SECRET_LEN},
    prefix::Prefix,
};

/// The version of the formats that this module writes, and the newest that it reads.
pub const FORMAT: u32 = 1;

/// Where the meta keys live unless the operator says otherwise.
pub const DEFAULT_META_PREFIX: &str = "/etcd-proxy.meta/";

/// The names of all meta keys under one `--meta-prefix`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaLayout {
    prefix: Prefix,
}

/// The names of one tenant's meta keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantKeys {
    /// `<meta>`
    root: Bytes,
    /// `<meta>tenants/<hex(prefix)>/`
    base: Bytes,
    base_end: Bytes,
    /// The lease marks, `<base>leases/`.
    leases: Bytes,
    leases_end: Bytes,
}

/// Who holds a prefix: the value of `<meta>claims/<hex(prefix)>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// Version of this format.
    pub format: u32,
    /// Who claimed the prefix, for people to read: `<namespace>/<name>` of an object, or what `claim --owner` was given.
    pub owner: String,
    /// What tells the owner from a later one of the same name. Empty for claims by hand.
    #[serde(default)]
    pub uid: String,
    /// When the prefix was claimed.
    pub created_at: jiff::Timestamp,
}

/// A meta value that this version cannot read.
#[derive(Clone, Debug, Error)]
pub enum MetaError {
    /// Written by a newer version.
    #[error(
        "the {what} in the meta keys has format {found}, and this version reads formats up to {FORMAT}: upgrade etcd-proxy"
    )]
    Newer {
        /// Which value.
        what: &'static str,
        /// Its format.
        found: u32,
    },
    /// Not what was ever written.
    #[error("the {what} in the meta keys is damaged: {reason}")]
    Damaged {
        /// Which value.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// What every value begins with.
#[derive(Serialize, Deserialize)]
struct Versioned {
    format: u32,
}

#[derive(Serialize, Deserialize)]
struct SecretValue {
    format: u32,
    secret: String,
}

#[derive(Serialize, Deserialize)]
struct WatermarkValue {
    format: u32,
    revision: i64,
}

// === impl MetaLayout ===

impl MetaLayout {
    /// The layout under `prefix`.
    pub fn new(prefix: Prefix) -> Self {
        Self { prefix }
    }

    /// The `--meta-prefix`.
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    /// The range of all claims: key and range end.
    pub fn claims(&self) -> (Bytes, Bytes) {
        (self.prefix.key(b"claims/"), self.prefix.key(b"claims0"))
    }

    /// The claim of one prefix.
    pub fn claim(&self, prefix: &Prefix) -> Bytes {
        self.claim_of(prefix.as_bytes())
    }

    /// The claim of a prefix that [`MetaLayout::claimed_prefix`] found.
    fn claim_of(&self, prefix: &[u8]) -> Bytes {
        self.prefix.key(format!("claims/{}", hex::encode(prefix)).as_bytes())
    }

    /// The key that changes with every change to the claims.
    pub fn claims_generation(&self) -> Bytes {
        self.prefix.key(b"claims-generation")
    }

    /// The claimed prefix that a key of [`MetaLayout::claims`] names; `None` if it names none.
    pub fn claimed_prefix(&self, key: &[u8]) -> Option<Vec<u8>> {
        let hex = key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b"claims/")?;
        hex::decode(hex).ok().filter(|prefix| !prefix.is_empty())
    }

    /// The range of all tenants' meta keys: key and range end.
    pub fn tenants(&self) -> (Bytes, Bytes) {
        (self.prefix.key(b"tenants/"), self.prefix.key(b"tenants0"))
    }

    /// The tenant's prefix that a key of [`MetaLayout::tenants`] names; `None` if it names none.
    pub fn tenant_of(&self, key: &[u8]) -> Option<Vec<u8>> {
        let rest = key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b"tenants/")?;
        let hex = rest.split(|byte| *byte == b'/').next().filter(|hex| hex.len() < rest.len())?;
        hex::decode(hex).ok().filter(|prefix| !prefix.is_empty())
    }

    /// The meta keys of one tenant.
    pub fn tenant(&self, prefix: &Prefix) -> TenantKeys {
        let base = self.prefix.key(format!("tenants/{}/", prefix.hex()).as_bytes());
        let base_end = self.prefix.key(format!("tenants/{}0", prefix.hex()).as_bytes());
        let leases = joined(&base, b"leases/");
        let leases_end = joined(&base, b"leases0");
        TenantKeys { root: self.prefix.key(b""), base, base_end, leases, leases_end }
    }
}

// === impl TenantKeys ===

impl TenantKeys {
    /// What all meta keys begin with, those of other tenants, too.
    pub fn root(&self) -> &[u8] {
        &self.root
    }

    /// The range of all of them: key and range end.
    pub fn all(&self) -> (Bytes, Bytes) {
        (self.base.clone(), self.base_end.clone())
    }

    /// The secret of the lease ids.
    pub fn secret(&self) -> Bytes {
        joined(&self.base, b"secret")
    }

    /// The revision up to which the tenant has compacted.
    pub fn watermark(&self) -> Bytes {
        joined(&self.base, b"watermark")
    }

    /// The range of all lease marks: key and range end.
    pub fn lease_marks(&self) -> (Bytes, Bytes) {
        (self.leases.clone(), self.leases_end.clone())
    }

    /// The mark of the lease with this id on the upstream; it is attached to that lease.
    pub fn lease_mark(&self, upstream_id: i64) -> Bytes {
        joined(&self.leases, format!("{upstream_id:016x}").as_bytes())
    }

    /// The upstream's id of the lease that a mark belongs to.
    pub fn marked_lease(&self, key: &[u8]) -> Option<i64> {
        let id = std::str::from_utf8(key.strip_prefix(&*self.leases)?).ok()?;
        u64::from_str_radix(id, 16).ok().map(u64::cast_signed)
    }
}

fn joined(base: &[u8], name: &[u8]) -> Bytes {
    let mut key = BytesMut::with_capacity(base.len() + name.len());
    key.put_slice(base);
    key.put_slice(name);
    key.freeze()
}

// === values ===

impl Claim {
    /// The value to be stored.
    pub fn encode(&self) -> Bytes {
        to_json(self)
    }

    /// Reads a stored value.
    ///
    /// # Errors
    /// When it is damaged or of a newer format.
    pub fn decode(value: &[u8]) -> Result<Self, MetaError> {
        from_json("claim", value)
    }
}

/// The value of a tenant's `secret`.
pub fn encode_secret(secret: &LeaseSecret) -> Bytes {
    to_json(&SecretValue { format: FORMAT, secret: hex::encode(secret.expose()) })
}

/// Reads the value of a tenant's `secret`.
///
/// # Errors
/// When it is damaged or of a newer format. The message does not contain the value.
pub fn decode_secret(value: &[u8]) -> Result<LeaseSecret, MetaError> {
    const WHAT: &str = "lease secret";
    let stored: SecretValue = from_json(WHAT, value)?;
    let mut bytes = [0; SECRET_LEN];
    hex::decode_to_slice(&stored.secret, &mut bytes)
        .map_err(|_| MetaError::Damaged { what: WHAT, reason: format!("not {SECRET_LEN} bytes in hexadecimal") })?;
    Ok(LeaseSecret::from_bytes(bytes))
}

/// The value of a tenant's `watermark`.
pub fn encode_watermark(revision: i64) -> Bytes {
    to_json(&WatermarkValue { format: FORMAT, revision })
}

/// Reads the value of a tenant's `watermark`.
///
/// # Errors
/// When it is damaged or of a newer format.
pub fn decode_watermark(value: &[u8]) -> Result<i64, MetaError> {
    from_json::<WatermarkValue>("watermark", value).map(|stored| stored.revision)
}

/// The value of a lease mark and of the claims' generation: they say nothing but that they are there.
pub fn encode_presence() -> Bytes {
    to_json(&Versioned { format: FORMAT })
}

fn to_json(value: &impl Serialize) -> Bytes {
    // These structs have nothing that JSON cannot express.
    serde_json::to_vec(value).unwrap_or_default().into()
}

fn from_json<'a, T: Deserialize<'a>>(what: &'static str, value: &'a [u8]) -> Result<T, MetaError> {
    // The category alone: serde's own message may quote the value, which may be a secret.
    let damaged = |error: serde_json::Error| MetaError::Damaged {
        what,
        reason: format!("{:?} error at column {}", error.classify(), error.column()),
    };
    let Versioned { format } = serde_json::from_slice(value).map_err(damaged)?;
    if format > FORMAT {
        return Err(MetaError::Newer { what, found: format });
    }
    serde_json::from_slice(value).map_err(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> MetaLayout {
        MetaLayout::new(Prefix::new(DEFAULT_META_PREFIX).unwrap())
    }

    fn tenant() -> TenantKeys {
        layout().tenant(&Prefix::new("/a/").unwrap())
    }

    /// Other programs depend on these names: see `docs/meta-format.md`.
    #[test]
    fn names() {
        let prefix = Prefix::new("/a/").unwrap();
        assert_eq!(layout().claim(&prefix), "/etcd-proxy.meta/claims/2f612f");
        assert_eq!(layout().claims(), ("/etcd-proxy.meta/claims/".into(), "/etcd-proxy.meta/claims0".into()));
        assert_eq!(layout().claims_generation(), "/etcd-proxy.meta/claims-generation");
        assert_eq!(tenant().secret(), "/etcd-proxy.meta/tenants/2f612f/secret");
        assert_eq!(tenant().watermark(), "/etcd-proxy.meta/tenants/2f612f/watermark");
        assert_eq!(tenant().lease_mark(-1), "/etcd-proxy.meta/tenants/2f612f/leases/ffffffffffffffff");
    }

    #[test]
    fn the_generation_is_no_claim() {
        let (start, end) = layout().claims();
        let generation = layout().claims_generation();
        assert!(generation < start || generation >= end);
    }

    #[test]
    fn names_can_be_read_back() {
        let prefix = Prefix::new("/a/").unwrap();
        assert_eq!(layout().claimed_prefix(&layout().claim(&prefix)), Some(b"/a/".to_vec()));
        for id in [1, -7, i64::MIN, i64::MAX] {
            assert_eq!(tenant().marked_lease(&tenant().lease_mark(id)), Some(id));
        }
        assert_eq!(tenant().marked_lease(b"/elsewhere/0000000000000001"), None);
        assert_eq!(layout().tenant_of(&tenant().secret()), Some(b"/a/".to_vec()));
        for no_tenant in ["tenants/", "tenants/2f612f", "tenants/2f6/secret", "claims/2f612f"] {
            assert_eq!(layout().tenant_of(format!("/etcd-proxy.meta/{no_tenant}").as_bytes()), None, "{no_tenant}");
        }
        for no_prefix in ["", "xy", "2f6"] {
            let key = format!("/etcd-proxy.meta/claims/{no_prefix}");
            assert_eq!(layout().claimed_prefix(key.as_bytes()), None, "{key}");
        }
    }

    #[test]
    fn the_keys_of_a_tenant_are_in_its_range_and_no_others() {
        let (start, end) = tenant().all();
        let within = |key: Bytes| start <= key && key < end;
        assert!(within(tenant().secret()) && within(tenant().watermark()));
        assert!(within(tenant().lease_mark(1)) && within(tenant().lease_mark(-1)));
        for other in ["/a/b/", "/a", "/b/"] {
            let other = Prefix::unterminated(other).unwrap();
            assert!(!within(layout().tenant(&other).secret()), "{other}");
            assert!(!within(layout().claim(&other)), "{other}");
        }
    }

    #[test]
    fn values() {
        assert_eq!(encode_watermark(42), r#"{"format":1,"revision":42}"#);
        assert_eq!(decode_watermark(&encode_watermark(42)).unwrap(), 42);
        let secret = LeaseSecret::from_bytes([7; SECRET_LEN]);
        assert_eq!(decode_secret(&encode_secret(&secret)).unwrap(), secret);
        assert_eq!(encode_presence(), r#"{"format":1}"#);
        let claim =
            Claim { format: 1, owner: "ns/name".into(), uid: String::new(), created_at: jiff::Timestamp::UNIX_EPOCH };
        assert_eq!(claim.encode(), r#"{"format":1,"owner":"ns/name","uid":"","createdAt":"1970-01-01T00:00:00Z"}"#);
        assert_eq!(Claim::decode(&claim.encode()).unwrap(), claim);
    }

    #[test]
    fn newer_formats_are_refused_and_secrets_not_quoted() {
        let newer = decode_watermark(br#"{"format":2,"revision":"new"}"#).unwrap_err();
        assert!(matches!(newer, MetaError::Newer { found: 2, .. }), "{newer}");
        let damaged = decode_secret(br#"{"format":1,"secret":["topsecret"]}"#).unwrap_err().to_string();
        assert!(damaged.contains("damaged") && !damaged.contains("topsecret"), "{damaged}");
    }
}
