//! Lease ids: those of a tenant and those of the upstream.
//!
//! Lease ids are global on an etcd. Each tenant sees them through a keyed permutation, so that an id of another tenant
//! cannot be aimed at, an id that a client chooses cannot collide with another tenant's, and no table has to be looked up.
//!
//! The permutation is a Feistel network of [`ROUNDS`] rounds over the low 63 bits (halves of 32 and 31 bits, rounds
//! alternating between them) with AES-128 as round function. The sign bit stays, so that comparisons with 0 keep their
//! meaning, and 0 ("no lease") stays 0: an id that would land on 0 is permuted once more, which leaves a permutation of
//! the other ids.

use std::fmt;

use ring::{
    aead::quic::{AES_128, HeaderProtectionKey},
    hmac,
    rand::{SecureRandom as _, SystemRandom},
};
use thiserror::Error;

/// Bytes of a tenant's secret.
pub const SECRET_LEN: usize = 32;

/// Feistel rounds. Four already make a strong pseudorandom permutation of a good round function (Luby and Rackoff);
/// twice that leaves a margin for the small domain.
const ROUNDS: u8 = 8;
/// Separates this use of the secret from any later one.
const CONTEXT: &[u8] = b"etcd-proxy lease id v1";
/// Ends every round input and fills it up to AES' block.
const LABEL: [u8; 10] = *b"lease-id.1";
const LEFT: u64 = 0xffff_ffff;
const RIGHT: u64 = 0x7fff_ffff;
const SIGN: u64 = 1 << 63;

/// The secret from which a tenant's permutation of lease ids is made. It is kept in a meta key.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseSecret([u8; SECRET_LEN]);

/// Maps lease ids between a tenant and the upstream.
pub struct LeaseCipher {
    round: HeaderProtectionKey,
}

/// The system gave no randomness, or the cipher could not be set up.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the cipher for lease ids failed")]
pub struct CipherError;

// === impl LeaseSecret ===

impl LeaseSecret {
    /// A new secret from the system's random numbers.
    ///
    /// # Errors
    /// When the system has none to give.
    pub fn generate() -> Result<Self, CipherError> {
        let mut bytes = [0; SECRET_LEN];
        SystemRandom::new().fill(&mut bytes).map_err(|_| CipherError)?;
        Ok(Self(bytes))
    }

    /// The secret with these bytes.
    pub fn from_bytes(bytes: [u8; SECRET_LEN]) -> Self {
        Self(bytes)
    }

    /// The bytes to be stored.
    pub fn expose(&self) -> &[u8; SECRET_LEN] {
        &self.0
    }
}

impl fmt::Debug for LeaseSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseSecret(…)")
    }
}

/// An id for a lease whose client leaves it to the etcd to choose one, by which it goes upstream. etcd takes any positive number,
/// too (`server/etcdserver/v3_server.go`, `LeaseGrant`).
///
/// # Errors
/// When the system has no random numbers to give.
pub fn fresh() -> Result<i64, CipherError> {
    let mut bytes = [0; 8];
    loop {
        SystemRandom::new().fill(&mut bytes).map_err(|_| CipherError)?;
        let id = i64::from_be_bytes(bytes) & i64::MAX;
        if id != 0 {
            return Ok(id);
        }
    }
}

// === impl LeaseCipher ===

impl LeaseCipher {
    /// The permutation that belongs to `secret`.
    ///
    /// # Errors
    /// When the cryptography library refuses the key, which it has no reason to.
    pub fn new(secret: &LeaseSecret) -> Result<Self, CipherError> {
        let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret.0), CONTEXT);
        let key = derived.as_ref().get(..AES_128.key_len()).ok_or(CipherError)?;
        let round = HeaderProtectionKey::new(&AES_128, key).map_err(|_| CipherError)?;
        Ok(Self { round })
    }

    /// The upstream's id for a tenant's id.
    ///
    /// # Errors
    /// When the cipher fails, which it has no reason to.
    pub fn to_upstream(&self, tenant: i64) -> Result<i64, CipherError> {
        self.walk(tenant, Self::forward)
    }

    /// The tenant's id for an upstream's id.
    ///
    /// # Errors
    /// When the cipher fails, which it has no reason to.
    pub fn to_tenant(&self, upstream: i64) -> Result<i64, CipherError> {
        self.walk(upstream, Self::backward)
    }

    /// Whether this is, but for a chance of 1 in 2^126, the same permutation.
    ///
    /// # Errors
    /// When the cipher fails, which it has no reason to.
    pub fn agrees_with(&self, other: &Self) -> Result<bool, CipherError> {
        Ok(self.to_upstream(1)? == other.to_upstream(1)? && self.to_upstream(2)? == other.to_upstream(2)?)
    }

    /// Permutes the low 63 bits of `id`, once more where a positive id would become 0.
    fn walk(&self, id: i64, permute: fn(&Self, u64, u8) -> Result<u64, CipherError>) -> Result<i64, CipherError> {
        if id == 0 {
            return Ok(0);
        }
        let sign = id.cast_unsigned() & SIGN;
        let negative = u8::from(sign != 0);
        let mut low = id.cast_unsigned() & !SIGN;
        loop {
            low = permute(self, low, negative)?;
            // Negative ids have no "no lease" among them: their whole domain is permuted.
            if low != 0 || sign != 0 {
                return Ok((sign | low).cast_signed());
            }
        }
    }

    fn forward(&self, low: u64, negative: u8) -> Result<u64, CipherError> {
        let (mut left, mut right) = (low >> 31, low & RIGHT);
        for round in 0..ROUNDS {
            if round.is_multiple_of(2) {
                left ^= self.round(round, negative, right)? & LEFT;
            } else {
                right ^= self.round(round, negative, left)? & RIGHT;
            }
        }
        Ok((left << 31) | right)
    }

    fn backward(&self, low: u64, negative: u8) -> Result<u64, CipherError> {
        let (mut left, mut right) = (low >> 31, low & RIGHT);
        for round in (0..ROUNDS).rev() {
            if round.is_multiple_of(2) {
                left ^= self.round(round, negative, right)? & LEFT;
            } else {
                right ^= self.round(round, negative, left)? & RIGHT;
            }
        }
        Ok((left << 31) | right)
    }

    /// The first four bytes of AES-128 of the block `round, negative, half (big endian), LABEL`. QUIC's header protection
    /// (RFC 9001, section 5.4.3) is the interface through which ring offers a single AES block.
    fn round(&self, round: u8, negative: u8, half: u64) -> Result<u64, CipherError> {
        let [_, _, _, _, h0, h1, h2, h3] = half.to_be_bytes();
        let [l0, l1, l2, l3, l4, l5, l6, l7, l8, l9] = LABEL;
        let block = [round, negative, h0, h1, h2, h3, l0, l1, l2, l3, l4, l5, l6, l7, l8, l9];
        let [b0, b1, b2, b3, _] = self.round.new_mask(&block).map_err(|_| CipherError)?;
        Ok(u64::from(u32::from_be_bytes([b0, b1, b2, b3])))
    }
}

impl fmt::Debug for LeaseCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseCipher(…)")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn cipher(fill: u8) -> LeaseCipher {
        LeaseCipher::new(&LeaseSecret::from_bytes([fill; SECRET_LEN])).unwrap()
    }

    /// A change here orphans the leases of every tenant that there is. The numbers come from another
    /// implementation (Python with OpenSSL's AES).
    #[test]
    fn golden_vectors() {
        let cipher = cipher(7);
        let vectors = [
            (1, 3829663758197664330),
            (2, 8107629826926523196),
            (2147483647, 6587732686829475284),
            (2147483648, 5948298827269816283),
            (7587869338912345678, 8617721931571259572),
            (i64::MAX, 7873795770286618721),
            (-1, -5659892567975541448),
            (-7, -6741772248501100947),
            (i64::MIN, -3123177257397514962),
        ];
        for (tenant, upstream) in vectors {
            assert_eq!(cipher.to_upstream(tenant).unwrap(), upstream, "{tenant}");
            assert_eq!(cipher.to_tenant(upstream).unwrap(), tenant, "{upstream}");
        }
    }

    #[test]
    fn no_lease_stays_no_lease() {
        assert_eq!(cipher(1).to_upstream(0), Ok(0));
        assert_eq!(cipher(1).to_tenant(0), Ok(0));
    }

    #[test]
    fn tenants_do_not_share_ids() {
        let (a, b) = (cipher(1), cipher(2));
        let mut seen = HashSet::new();
        for id in (1..500).chain(i64::MIN..i64::MIN + 500) {
            assert!(seen.insert(a.to_upstream(id).unwrap()));
            assert!(seen.insert(b.to_upstream(id).unwrap()));
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        assert_eq!(format!("{:?}", LeaseSecret::from_bytes([65; SECRET_LEN])), "LeaseSecret(…)");
    }

    proptest! {
        #[test]
        fn is_a_permutation_that_keeps_the_sign(id in any::<i64>(), fill in any::<u8>()) {
            let cipher = cipher(fill);
            let upstream = cipher.to_upstream(id).unwrap();
            prop_assert_eq!(cipher.to_tenant(upstream).unwrap(), id);
            prop_assert_eq!(cipher.to_upstream(cipher.to_tenant(id).unwrap()).unwrap(), id);
            prop_assert_eq!(upstream.signum(), id.signum());
        }
    }
}
