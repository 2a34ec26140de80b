//! The tenant's key prefix and the arithmetic of keys and ranges under it.
//!
//! Tenant data lies at exactly prefix + key, as etcd's client namespaces lay it (`client/v3/namespace/util.go`,
//! `prefixInterval`). Unlike there, a prefix without successor is refused instead of meaning the whole key space.

use std::fmt;

use bytes::{BufMut as _, Bytes, BytesMut};
use thiserror::Error;

/// What a tenant writes for "no upper bound": all keys greater than or equal to `key`.
const FROM_KEY: &[u8] = b"\0";

/// The byte that a prefix ends in, so that no prefix contains a sibling (`/a` would contain `/ab`).
pub const TERMINATOR: u8 = b'/';

/// Where kube-apiserver keeps its data unless told otherwise (`--etcd-prefix`).
pub const KUBERNETES: &[u8] = b"/registry/";

/// A tenant's key prefix on the upstream. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    bytes: Bytes,
    /// The smallest key that is greater than every key with this prefix.
    successor: Bytes,
}

/// Why some bytes cannot be a prefix.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PrefixError {
    /// An empty prefix would be the whole key space.
    #[error("the prefix is empty")]
    Empty,
    /// Without the terminator one prefix can contain another.
    #[error("the prefix does not end in '/'")]
    Unterminated,
    /// All bytes are 0xff: no key is greater than all keys with this prefix.
    #[error("no key follows the keys with this prefix (it consists of 0xff bytes)")]
    NoSuccessor,
}

/// A key that does not lie under the prefix. It never leaves the proxy.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a key of the upstream's answer lies outside the prefix")]
pub struct ForeignKey;

// === impl Prefix ===

impl Prefix {
    /// A prefix in its default form, ending in `/`.
    ///
    /// # Errors
    /// Refuses an empty prefix and one that does not end in [`TERMINATOR`].
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, PrefixError> {
        let bytes = bytes.into();
        match bytes.last() {
            None => Err(PrefixError::Empty),
            Some(&TERMINATOR) => Self::unterminated(bytes),
            Some(_) => Err(PrefixError::Unterminated),
        }
    }

    /// A prefix that need not end in `/`, for taking over the data of an `etcd grpc-proxy` with such a namespace. Its
    /// siblings must be chosen with care.
    ///
    /// # Errors
    /// Refuses an empty prefix and one of nothing but 0xff bytes.
    pub fn unterminated(bytes: impl Into<Bytes>) -> Result<Self, PrefixError> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(PrefixError::Empty);
        }
        let successor = successor(&bytes).ok_or(PrefixError::NoSuccessor)?;
        Ok(Self { bytes, successor })
    }

    /// The prefix as it stands on the upstream.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The smallest key greater than all keys with this prefix.
    pub fn successor(&self) -> Bytes {
        self.successor.clone()
    }

    /// The range of all keys with this prefix, the bare one among them: key and range end.
    pub fn all(&self) -> (Bytes, Bytes) {
        (self.bytes.clone(), self.successor())
    }

    /// The range of all keys that a tenant can have, which the bare prefix is not: a tenant has no empty key. etcd's grpc-proxy
    /// writes it for an empty key in a Txn.
    pub fn keys(&self) -> (Bytes, Bytes) {
        (self.key(b"\0"), self.successor())
    }

    /// The prefix in hexadecimal, as the meta keys name it.
    pub fn hex(&self) -> String {
        hex::encode(&self.bytes)
    }

    /// Whether one of the two contains the other.
    pub fn overlaps(&self, other: &[u8]) -> bool {
        self.bytes.starts_with(other) || other.starts_with(&self.bytes)
    }

    /// Whether it lies under or around [`KUBERNETES`].
    pub fn overlaps_kubernetes(&self) -> bool {
        self.overlaps(KUBERNETES)
    }

    /// The upstream's key for a tenant's key.
    pub fn key(&self, key: &[u8]) -> Bytes {
        let mut prefixed = BytesMut::with_capacity(self.bytes.len() + key.len());
        prefixed.put_slice(&self.bytes);
        prefixed.put_slice(key);
        prefixed.freeze()
    }

    /// The upstream's `range_end` for a tenant's: empty (a single key) stays empty, `\0` (no upper bound) becomes the
    /// successor of the prefix.
    pub fn range_end(&self, range_end: &[u8]) -> Bytes {
        match range_end {
            b"" => Bytes::new(),
            FROM_KEY => self.successor.clone(),
            end => self.key(end),
        }
    }

    /// The tenant's key for an upstream's key.
    ///
    /// # Errors
    /// [`ForeignKey`] for a key without the prefix, and for the bare prefix: no tenant can have written the empty key.
    pub fn strip<'a>(&self, key: &'a [u8]) -> Result<&'a [u8], ForeignKey> {
        key.strip_prefix(&self.bytes[..]).filter(|key| !key.is_empty()).ok_or(ForeignKey)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prefix({self})")
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes.escape_ascii())
    }
}

/// The smallest byte string greater than every byte string that starts with `prefix`.
fn successor(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let (head, _) = prefix.split_at_checked(last + 1)?;
    let mut next = head.to_vec();
    *next.last_mut()? += 1;
    Some(next.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix(bytes: &'static [u8]) -> Prefix {
        Prefix::new(bytes).unwrap()
    }

    #[test]
    fn refuses_what_cannot_confine() {
        assert_eq!(Prefix::new(""), Err(PrefixError::Empty));
        assert_eq!(Prefix::new("/a"), Err(PrefixError::Unterminated));
        assert_eq!(Prefix::unterminated(""), Err(PrefixError::Empty));
        assert_eq!(Prefix::unterminated(vec![0xff, 0xff]), Err(PrefixError::NoSuccessor));
        assert!(Prefix::unterminated("/a").is_ok());
    }

    #[test]
    fn maps_ranges() {
        let p = prefix(b"/t/");
        assert_eq!(p.key(b"k"), "/t/k");
        assert_eq!(p.range_end(b""), "");
        assert_eq!(p.range_end(b"\0"), "/t0");
        assert_eq!(p.range_end(b"\0\0"), "/t/\0\0");
        assert_eq!(p.range_end(b"\xff"), b"/t/\xff"[..]);
        assert_eq!(Prefix::unterminated(vec![b'a', 0xff]).unwrap().successor(), "b");
    }

    #[test]
    fn strips_only_its_own() {
        let p = prefix(b"/t/");
        assert_eq!(p.strip(b"/t/k"), Ok(&b"k"[..]));
        for foreign in ["/t/", "/t", "/u/k", ""] {
            assert_eq!(p.strip(foreign.as_bytes()), Err(ForeignKey), "{foreign}");
        }
    }

    #[test]
    fn overlap_is_containment_either_way() {
        let p = prefix(b"/a/");
        for (other, expected) in [("/a/", true), ("/a/b/", true), ("/", true), ("/ab/", false), ("/b/", false)] {
            assert_eq!(p.overlaps(other.as_bytes()), expected, "{other}");
        }
    }

    fn any_prefix() -> impl Strategy<Value = Prefix> {
        proptest::collection::vec(any::<u8>(), 1..6)
            .prop_filter_map("no successor", |bytes| Prefix::unterminated(bytes).ok())
    }

    /// Membership of a key in `[key, range_end)` as etcd reads it.
    fn contains(key: &[u8], end: &[u8], candidate: &[u8]) -> bool {
        match end {
            b"" => candidate == key,
            b"\0" => candidate >= key,
            end => candidate >= key && candidate < end,
        }
    }

    proptest! {
        #[test]
        fn a_range_holds_the_same_keys_under_the_prefix(
            p in any_prefix(),
            key in proptest::collection::vec(any::<u8>(), 1..4),
            end in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 0..3),
            candidate in proptest::collection::vec(any::<u8>(), 1..4),
        ) {
            let inside = contains(&p.key(&key), &p.range_end(&end), &p.key(&candidate));
            prop_assert_eq!(inside, contains(&key, &end, &candidate));
        }

        #[test]
        fn a_range_holds_nothing_outside_the_prefix(
            p in any_prefix(),
            key in proptest::collection::vec(any::<u8>(), 1..4),
            end in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 0..3),
            stranger in proptest::collection::vec(any::<u8>(), 0..8),
        ) {
            prop_assume!(p.strip(&stranger).is_err());
            prop_assert!(!contains(&p.key(&key), &p.range_end(&end), &stranger));
        }

        #[test]
        fn stripping_undoes_prefixing(p in any_prefix(), key in proptest::collection::vec(any::<u8>(), 1..8)) {
            let upstream = p.key(&key);
            prop_assert_eq!(p.strip(&upstream), Ok(&key[..]));
        }

        #[test]
        fn order_is_kept(p in any_prefix(), a in any::<Vec<u8>>(), b in any::<Vec<u8>>()) {
            prop_assert_eq!(p.key(&a).cmp(&p.key(&b)), a.cmp(&b));
        }
    }
}
