//! The certificates of one `EtcdProxy`: its CA, the serving certificate of its proxies, the client certificates of its tenant.
//!
//! Everything here is a function of values: what is stored, what is wanted, what was observed of the running proxies, and the
//! time. Only keys and serial numbers come from the system's random source. [`plan`] says what has to be stored next; the
//! caller stores it, **the authority before the leaves and the bundle**, and with the resource version that it read as a
//! precondition: then an old view of the authority can never fork it.
//!
//! # Rotation
//! A CA is replaced in three steps, each waiting until what it depends on is in use:
//!
//! 1. [`Phase::Distributing`]: the next CA exists and is in the bundle; the present one still signs.
//! 2. [`Phase::Replacing`]: every running proxy accepts clients of the next CA, so it becomes the signer and all leaves are
//!    issued again. The old CA is retired: it stays in the bundle.
//! 3. [`Phase::Retiring`]: every running proxy shows a certificate of a newer CA. A retired CA leaves the bundle when the last
//!    leaf that it signed has expired.
//!
//! # Clients that read their bundle once
//! Go's etcd client reads its CA file when it starts and never again. For its sake every leaf is followed by certificates of
//! the signer's key, one by each older CA that has not expired (RFC 4158 calls them cross certificates). So a leaf verifies by
//! *any* bundle that was ever handed out, until the CAs in that bundle expire: that is the hard limit, and [`Plan`] names the
//! dates. Each cross certificate is signed by the old CA itself and not by its successor: a path has one intermediate, however
//! often the CA was replaced (webpki allows six), and does not end with the shortest-lived CA in between. The price is that the
//! keys of retired CAs are kept until they expire. They give a thief of the Secret nothing more: the present signer's key,
//! which is in it too, is trusted through the cross certificates by the same clients.

mod authority;
mod ca;
mod leaf;
mod rotation;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    time::Duration,
};

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;

pub use self::{
    authority::Authority,
    leaf::{Identity, Why},
    rotation::MAX_RETIRED,
};
use self::{leaf::Request, rotation::Rotation};

/// How far `notBefore` lies before the moment of issue, for verifiers whose clock is behind. Kubernetes' own signer takes the
/// same (`pkg/controller/certificates/signer`). Lives are counted from the moment of issue.
const BACKDATE: Duration = Duration::from_secs(300);

/// The shortest and longest validities that are issued; far beyond what the API admits.
const MIN_VALIDITY: Duration = Duration::from_secs(10);
const MAX_VALIDITY: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// How long a certificate for a probe is valid.
const PROBE_VALIDITY: Duration = Duration::from_secs(600);

/// Counts the CAs of one `EtcdProxy`, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

/// Whose certificates they are.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Owner {
    /// The object's namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The object's uid: a later object of the same name has another CA.
    pub uid: String,
}

/// What the specification asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The object.
    pub owner: Owner,
    /// DNS names of the serving certificate; the first label may be `*`.
    pub dns_names: BTreeSet<String>,
    /// IP addresses of the serving certificate.
    pub ip_addresses: BTreeSet<IpAddr>,
    /// Common names of the client certificates, by the name under which the caller keeps each.
    pub clients: BTreeMap<String, String>,
    /// How long leaves are valid. Parts of a second are dropped.
    pub validity: Duration,
    /// How long CAs are valid. Parts of a second are dropped. A change replaces the CA.
    pub ca_validity: Duration,
    /// A number higher than that of the present CA asks for its replacement.
    pub rotation: i64,
}

/// The leaves that are stored. One that is damaged is as good as none.
#[derive(Clone, Debug, Default)]
pub struct Stored {
    /// The proxies' certificate.
    pub serving: Option<Identity>,
    /// The clients' certificates, named as in [`Wanted::clients`].
    pub clients: BTreeMap<String, Identity>,
}

/// What is known of the running proxies. Not to know is always safe: the rotation waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Every running proxy accepts clients of this CA, even without cross certificates.
    pub accepted: Option<Generation>,
    /// Every running proxy shows a leaf of this CA or of a newer one.
    pub shown: Option<Generation>,
}

/// What a probe saw of one running proxy.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The leaf that it showed.
    pub leaf: &'a CertificateDer<'a>,
    /// Whether it accepted [`Authority::probe_identity`]'s certificate.
    pub accepts_next: bool,
}

/// Where a rotation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// One CA.
    Stable,
    /// The next CA is in the bundle; leaves still come from the present one until every proxy uses the bundle.
    Distributing,
    /// Leaves come from the new CA, and not every proxy is known to show one.
    Replacing,
    /// The leaves are in use; an old CA stays in the bundle until the last leaf that it signed has expired.
    Retiring,
}

/// What has to be stored, and what may be said about it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The authority's new state.
    pub authority: Authority,
    /// Whether it differs from the stored one: then it must be stored before anything else of this plan.
    pub authority_changed: bool,
    /// The CA certificates that everybody has to trust: clients for the proxies, proxies for the clients.
    pub bundle: String,
    /// The proxies' certificate.
    pub serving: Leaf,
    /// The clients' certificates, named as in [`Wanted::clients`].
    pub clients: BTreeMap<String, Leaf>,
    /// Where a rotation stands.
    pub phase: Phase,
    /// The same for people.
    pub reason: String,
    /// When time alone makes the next plan differ. What is observed may do so earlier.
    pub wake: Timestamp,
    /// When the present signer expires. It is replaced before.
    pub ca_expires: Timestamp,
    /// Until when a client works that reads the bundle now and never again.
    pub read_once_until: Timestamp,
    /// Until when a client works that read the oldest bundle that still works, and never another: before
    /// [`Self::read_once_until`] if the CA was replaced.
    pub oldest_read_once_until: Timestamp,
    /// The [`Wanted::rotation`] that was last carried out.
    pub rotation: i64,
}

/// A leaf that is to be in use.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Certificate, chain and key.
    pub identity: Identity,
    /// Why it is a new one; `None` if it is the stored one.
    pub new: Option<Why>,
    /// The leaf's `notAfter`.
    pub expires: Timestamp,
    /// When it is to be replaced; `None` if it lives as long as its signer, so that only a new signer can do better.
    pub renews: Option<Timestamp>,
}

/// What cannot be done. No message holds key material.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PkiError {
    /// A file of the stored authority is absent.
    #[error(
        "the CA's Secret has no {file:?}: restore the Secret from a backup, or delete it to begin with a new CA, which \
         locks out every client until it has read the new bundle and certificate"
    )]
    Missing {
        /// The key in the Secret.
        file: String,
    },
    /// A file of the stored authority is damaged.
    #[error(
        "{file:?} in the CA's Secret is damaged ({what}): restore the Secret from a backup, or delete it to begin with a new \
         CA, which locks out every client until it has read the new bundle and certificate"
    )]
    Damaged {
        /// The key in the Secret.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// The stored authority was written by a later version.
    #[error("the CA's Secret has format {found}; this version reads up to {known}: run the controller that wrote it")]
    Format {
        /// The format found.
        found: u32,
        /// The newest one that is understood.
        known: u32,
    },
    /// The stored authority belongs to another object.
    #[error("the CA's Secret belongs to {found}, not to {wanted}")]
    Foreign {
        /// Whose it is.
        found: Box<Owner>,
        /// Whose it should be.
        wanted: Box<Owner>,
    },
    /// A name that cannot be in a certificate.
    #[error("{name:?} cannot be a DNS name of the serving certificate")]
    DnsName {
        /// The name.
        name: String,
    },
    /// A time that cannot be in a certificate.
    #[error("a validity of {validity:?} cannot be issued: it must be between 10 s and 100 years")]
    Validity {
        /// The validity.
        validity: Duration,
    },
    /// A certificate or key could not be made.
    #[error("cannot make a certificate: {0}")]
    Crypto(String),
}

/// Says what has to be stored now.
///
/// `authority` is what [`Authority::decode`] read, `None` if the object never had one.
///
/// # Errors
/// When `wanted` cannot be put into certificates, or the system has no randomness.
pub fn plan(
    authority: Option<&Authority>,
    stored: &Stored,
    wanted: &Wanted,
    observed: Observed,
    now: Timestamp,
) -> Result<Plan, PkiError> {
    check(wanted)?;
    let mut new = match authority {
        Some(authority) => authority.clone(),
        None => Authority::create(wanted, now)?,
    };
    let Rotation { phase, reason } = new.advance(wanted, observed, now)?;
    let serving = new.leaf(stored.serving.as_ref(), &Request::serving(wanted), now)?;
    let clients = wanted
        .clients
        .iter()
        .map(|(name, common_name)| {
            let request = Request::client(common_name, wanted.validity);
            Ok((name.clone(), new.leaf(stored.clients.get(name), &request, now)?))
        })
        .collect::<Result<BTreeMap<_, _>, PkiError>>()?;
    let renewals = std::iter::once(&serving).chain(clients.values()).filter_map(|leaf| leaf.renews);
    Ok(Plan {
        wake: new.events().chain(renewals).filter(|moment| *moment > now).min().unwrap_or(now),
        authority_changed: authority.is_none_or(|old| old.encode() != new.encode()),
        bundle: new.bundle(now),
        serving,
        clients,
        phase,
        reason,
        ca_expires: new.signer().not_after,
        read_once_until: new.read_once_until(),
        oldest_read_once_until: new.oldest_read_once_until(),
        rotation: new.signer().rotation,
        authority: new,
    })
}

fn check(wanted: &Wanted) -> Result<(), PkiError> {
    for validity in [wanted.validity, wanted.ca_validity] {
        if !(MIN_VALIDITY..=MAX_VALIDITY).contains(&validity) {
            return Err(PkiError::Validity { validity });
        }
    }
    for name in &wanted.dns_names {
        let labels = name.strip_prefix("*.").unwrap_or(name);
        if rustls_pki_types::DnsName::try_from(labels).is_err() {
            return Err(PkiError::DnsName { name: name.clone() });
        }
    }
    Ok(())
}

/// `numerator / denominator` of the way from `start` to `end`, in whole seconds.
fn part(start: Timestamp, end: Timestamp, numerator: i64, denominator: i64) -> Timestamp {
    let seconds = end.as_second().saturating_sub(start.as_second());
    let seconds = i128::from(seconds) * i128::from(numerator) / i128::from(denominator);
    let second = start.as_second().saturating_add(i64::try_from(seconds).unwrap_or(i64::MAX));
    Timestamp::from_second(second).unwrap_or(end)
}

/// `validity` after `start`, in whole seconds.
fn after(start: Timestamp, validity: Duration) -> Result<Timestamp, PkiError> {
    let unfit = || PkiError::Validity { validity };
    let seconds = i64::try_from(validity.as_secs()).map_err(|_| unfit())?;
    start.as_second().checked_add(seconds).and_then(|second| Timestamp::from_second(second).ok()).ok_or_else(unfit)
}

// === impl Generation ===

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl Owner ===

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} (uid {})", self.namespace, self.name, self.uid)
    }
}

// === impl Observed ===

impl Observed {
    /// No proxy runs: whichever starts will read what is stored.
    #[must_use]
    pub fn nothing_runs() -> Self {
        Self { accepted: Some(Generation(u64::MAX)), shown: Some(Generation(u64::MAX)) }
    }

    /// What follows from a look at *every* running proxy; `None` stands for one that could not be seen.
    pub fn of<'a>(authority: &Authority, proxies: impl IntoIterator<Item = Option<Seen<'a>>>) -> Self {
        let mut observed = Self::nothing_runs();
        for proxy in proxies {
            let Some(seen) = proxy else { return Self::default() };
            let accepted = if seen.accepts_next { authority.next().map(|next| next.generation) } else { None };
            observed.accepted = observed.accepted.zip(accepted).map(|(a, b)| a.min(b));
            observed.shown = observed.shown.zip(authority.issuer_of(seen.leaf)).map(|(a, b)| a.min(b));
        }
        observed
    }
}

// === impl Phase ===

impl Phase {
    /// Whether it is worth while to look at the running proxies: the next step waits for them.
    #[must_use]
    pub fn waits_for_proxies(self) -> bool {
        matches!(self, Self::Distributing | Self::Replacing)
    }
}
