//! Backups of one tenant: files that hold its keys and leases at one revision. `docs/backup-format.md` describes them.

mod reader;
mod writer;

use std::io;

use proto::mvccpb::KeyValue;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::{
    reader::{Checked, Reader, check},
    writer::{Resumed, Writer},
};
use crate::snapshot::TenantLease;

/// The version of the format that this module writes, and the newest that it reads.
pub const FORMAT: u32 = 1;

/// What every backup begins with: not text, and damaged by whatever takes it for text.
const MAGIC: &[u8; 8] = b"\x89EPBAK\r\n";
/// Kind and length of a block.
const BLOCK_HEADER: usize = 5;
/// The longest block, uncompressed as well, so that a damaged length takes no memory. One key is in one block.
const MAX_BLOCK: usize = 256 * 1024 * 1024;

const HEADER: u8 = b'H';
const KEYS: u8 = b'K';
const LEASES: u8 = b'L';
const END: u8 = b'E';

/// What a backup is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// Version of the format.
    pub format: u32,
    /// Tells this backup from every other one: 32 hexadecimal digits.
    pub id: String,
    /// When it was begun.
    pub created_at: jiff::Timestamp,
    /// The tenant's prefix in hexadecimal. The keys in the backup are without it.
    pub prefix: String,
    /// The id of the upstream's cluster in hexadecimal.
    pub cluster_id: String,
    /// The revision whose state it holds.
    pub revision: i64,
    /// How many keys there are.
    pub keys: u64,
}

/// What follows the keys and leases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct End {
    keys: u64,
    leases: u64,
    /// Of all bytes before this block, in hexadecimal.
    sha256: String,
}

#[derive(Serialize, Deserialize)]
struct StoredLease {
    id: i64,
    ttl: i64,
    remaining: i64,
}

/// A part of a backup.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// Keys as the tenant sees them, in their order; at least one.
    Keys(Vec<KeyValue>),
    /// Leases with the tenant's ids.
    Leases(Vec<TenantLease>),
    /// The end.
    End,
}

/// Why a file is no backup that can be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Something else.
    #[error("it is no backup of etcd-proxy: it does not begin like one")]
    NoBackup,
    /// Written by a newer version.
    #[error("it has format {0}, and this version reads formats up to {FORMAT}: upgrade etcd-proxy")]
    Newer(u32),
    /// It ends too early.
    #[error("it is truncated: it ends at byte {at}, in the middle of {what}")]
    Truncated {
        /// Where.
        at: u64,
        /// In what.
        what: &'static str,
    },
    /// It is not what was written.
    #[error("it is damaged: the block at byte {at} {reason}")]
    Damaged {
        /// Where the block begins.
        at: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The file cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn crc(kind: u8, payload: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(&[kind]);
    crc.update(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    crc.update(payload);
    crc.sum()
}

#[cfg(test)]
mod tests;
