//! Prefixes: what is allocated, which wishes are allowed, and who holds what.

use etcd_proxy::prefix::Prefix;
use kube::ResourceExt as _;

use super::{Fault, Reason, Refusal, Value};
use crate::api::{EtcdProxy, EtcdUpstream};

/// Where kube-apiserver keeps its data.
const KUBERNETES: &[u8] = b"/registry/";

const FIELD: &str = "spec.prefix";

/// A claimed prefix, and who holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPrefix {
    /// The prefix.
    pub prefix: Vec<u8>,
    /// For people: `<namespace>/<name>`, or what `etcd-proxy claim --owner` was given. Nothing if it cannot be read.
    pub owner: Option<String>,
    /// The uid of the EtcdProxy that it was claimed for; empty for claims by hand.
    pub uid: String,
    /// Whether that EtcdProxy exists. A claim whose holder cannot be read counts as held by somebody alive.
    pub alive: bool,
}

/// The prefix of an EtcdProxy that wishes for none: `<prefixRoot><namespace>/<name>/<uid>/`. The uid is never used twice, so
/// what is made anew under the same name gets another one.
#[must_use]
pub fn allocated_prefix(proxy: &EtcdProxy, upstream: &EtcdUpstream) -> String {
    let root = &upstream.spec.prefix_root;
    format!("{root}{}/{}/{}/", proxy.namespace().unwrap_or_default(), proxy.name_any(), proxy.uid().unwrap_or_default())
}

/// The prefix that an EtcdProxy is to have, its wish or what is allocated.
///
/// # Errors
/// A wish that is no prefix at all, and an EtcdProxy without a uid, which has not been stored.
pub fn wanted_prefix(proxy: &EtcdProxy, upstream: &EtcdUpstream) -> Result<Prefix, Refusal> {
    let invalid = |text: &str, message: String| {
        Refusal::new(FIELD, Reason::PrefixNotAllowed, Fault::Invalid(Value::text(text)), message)
    };
    if let Some(wish) = &proxy.spec.prefix {
        return Prefix::new(wish.clone()).map_err(|error| invalid(wish, error.to_string()));
    }
    let prefix = allocated_prefix(proxy, upstream);
    if proxy.uid().is_none_or(|uid| uid.is_empty()) {
        return Err(invalid(&prefix, "cannot be allocated: the object has no uid yet".to_owned()));
    }
    Prefix::new(prefix.clone()).map_err(|error| invalid(&prefix, error.to_string()))
}

/// Whether the operator has given a prefix, with what lies under it, to this EtcdProxy. Everything is matched exactly.
#[must_use]
pub fn adopts(upstream: &EtcdUpstream, prefix: &[u8], proxy: &EtcdProxy) -> bool {
    let (namespace, name) = (proxy.namespace().unwrap_or_default(), proxy.name_any());
    upstream.spec.adoptions.iter().any(|adoption| {
        adoption.prefix.as_bytes() == prefix && adoption.namespace == namespace && adoption.name == name
    })
}

pub(super) fn check(proxy: &EtcdProxy, upstream: &EtcdUpstream, claims: Option<&[HeldPrefix]>) -> Vec<Refusal> {
    let prefix = match wanted_prefix(proxy, upstream) {
        Ok(prefix) => prefix,
        // It is the API server that gives out uids, and what has none yet can hold no claim.
        Err(_) if proxy.spec.prefix.is_none() => return Vec::new(),
        Err(refusal) => return vec![refusal],
    };
    // Who may not have a prefix learns nothing of who has it.
    if let Err(refusal) = allowed(&prefix, proxy, upstream) {
        return vec![refusal];
    }
    claims.into_iter().flatten().filter_map(|held| free(&prefix, held, proxy, upstream).err()).take(1).collect()
}

/// Whether the EtcdUpstream allows a prefix, whoever holds it.
fn allowed(prefix: &Prefix, proxy: &EtcdProxy, upstream: &EtcdUpstream) -> Result<(), Refusal> {
    let refuse = |message: String| Err(Refusal::forbidden(FIELD, Reason::PrefixNotAllowed, message));
    let spec = &upstream.spec;
    if prefix.overlaps(KUBERNETES) {
        return refuse("overlaps /registry/, where kube-apiserver keeps its data".to_owned());
    }
    if prefix.overlaps(spec.meta_prefix.as_bytes()) {
        return refuse(format!("overlaps {}, where the proxies keep their own records", spec.meta_prefix));
    }
    // What is allocated is allowed, and so is what the operator has given to this very object.
    if proxy.spec.prefix.is_none() || adopts(upstream, prefix.as_bytes(), proxy) {
        return Ok(());
    }
    if prefix.overlaps(spec.prefix_root.as_bytes()) {
        return refuse(format!("overlaps {}, where prefixes are allocated", spec.prefix_root));
    }
    if spec.allowed_prefixes.iter().any(|allowed| prefix.as_bytes().starts_with(allowed.as_bytes())) {
        return Ok(());
    }
    let name = upstream.name_any();
    if spec.allowed_prefixes.is_empty() {
        return refuse(format!("EtcdUpstream {name} allows no wishes; leave it out, and a prefix is allocated"));
    }
    let prefixes = spec.allowed_prefixes.join(", ");
    refuse(format!("EtcdUpstream {name} allows prefixes that begin with {prefixes}"))
}

/// Whether a claim leaves a prefix to this EtcdProxy.
fn free(prefix: &Prefix, held: &HeldPrefix, proxy: &EtcdProxy, upstream: &EtcdUpstream) -> Result<(), Refusal> {
    if !prefix.overlaps(&held.prefix) {
        return Ok(());
    }
    let same = prefix.as_bytes() == held.prefix;
    if same && !held.uid.is_empty() && proxy.uid().is_some_and(|uid| uid == held.uid) {
        return Ok(());
    }
    // Whose it is, and what exactly, is not this tenant's to know.
    if same && !held.alive {
        if adopts(upstream, prefix.as_bytes(), proxy) {
            return Ok(());
        }
        let message = format!(
            "holds what an object that is gone has left; only the operator can give it away, in EtcdUpstream {} (spec.adoptions)",
            upstream.name_any()
        );
        return Err(Refusal::forbidden(FIELD, Reason::PrefixHoldsData, message));
    }
    let message = "is claimed already, or overlaps a prefix that is; wish for another, or for none";
    Err(Refusal::forbidden(FIELD, Reason::PrefixTaken, message))
}
