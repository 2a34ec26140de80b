//! CRC-32C (Castagnoli), which etcd hashes with.

/// The polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            remainder = (remainder >> 1) ^ (POLYNOMIAL & (remainder & 1).wrapping_neg());
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
};

/// A checksum of the bytes given so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crc32c(u32);

// === impl Crc32c ===

impl Crc32c {
    pub(super) const fn new() -> Self {
        Self(!0)
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let [low, ..] = self.0.to_le_bytes();
            self.0 = (self.0 >> 8) ^ TABLE.get(usize::from(low ^ byte)).copied().unwrap_or_default();
        }
    }

    pub(super) const fn sum(self) -> u32 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u32 {
        let mut crc = Crc32c::new();
        crc.update(bytes);
        crc.sum()
    }

    /// The check value of the catalogue of CRCs, and those of RFC 3720, B.4.
    #[test]
    fn known_sums() {
        assert_eq!(sum(b"123456789"), 0xe306_9283);
        assert_eq!(sum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(sum(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(sum(b""), 0);
    }
}
