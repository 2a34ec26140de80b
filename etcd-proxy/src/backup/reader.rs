//! Reading backups, and finding out whether one is whole.

use std::io::{self, Read};

use bytes::{Buf as _, Bytes};
use flate2::read::ZlibDecoder;
use prost::Message as _;
use proto::mvccpb::KeyValue;
use ring::digest::{Context, SHA256};
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    BLOCK_HEADER, Block, END, End, FORMAT, FormatError, HEADER, Header, KEYS, LEASES, MAGIC, MAX_BLOCK, StoredLease,
    crc,
};
use crate::snapshot::TenantLease;

/// Reads a backup block by block.
pub struct Reader<R> {
    input: R,
    header: Header,
    /// Where the next block begins.
    offset: u64,
    sha256: Context,
    keys: u64,
    leases: u64,
    /// The last key that was read.
    last: Bytes,
}

/// A backup that was read to its end and found whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// What it is of.
    pub header: Header,
    /// How many keys have a lease.
    pub leased_keys: u64,
    /// How many leases there are.
    pub leases: u64,
}

#[derive(Deserialize)]
struct Versioned {
    format: u32,
}

/// Reads a backup to its end.
///
/// # Errors
/// When it is not whole.
pub fn check(input: impl Read) -> Result<Checked, FormatError> {
    let mut reader = Reader::new(input)?;
    let mut leased_keys = 0;
    loop {
        match reader.next_block()? {
            Block::Keys(kvs) => leased_keys += kvs.iter().filter(|kv| kv.lease != 0).count() as u64,
            Block::Leases(_) => {}
            Block::End => break,
        }
    }
    Ok(Checked { header: reader.header, leased_keys, leases: reader.leases })
}

// === impl Reader ===

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// When it is no backup, or one of a newer format.
    pub fn new(mut input: R) -> Result<Self, FormatError> {
        let mut magic = [0; MAGIC.len()];
        let length = fill(&mut input, &mut magic)?;
        if !MAGIC.starts_with(magic.get(..length).unwrap_or_default()) {
            return Err(FormatError::NoBackup);
        }
        if length < MAGIC.len() {
            return Err(FormatError::Truncated { at: length as u64, what: "its first bytes" });
        }
        let mut sha256 = Context::new(&SHA256);
        sha256.update(&magic);
        let nothing = Header {
            format: FORMAT,
            id: String::new(),
            created_at: jiff::Timestamp::UNIX_EPOCH,
            prefix: String::new(),
            cluster_id: String::new(),
            revision: 0,
            keys: 0,
        };
        let offset = MAGIC.len() as u64;
        let mut reader = Self { input, header: nothing, offset, sha256, keys: 0, leases: 0, last: Bytes::new() };
        let (kind, payload) = reader.block()?;
        if kind != HEADER {
            return Err(damaged(offset, "is not the header"));
        }
        let Versioned { format } = json(offset, &payload)?;
        if format > FORMAT {
            return Err(FormatError::Newer(format));
        }
        reader.header = json(offset, &payload)?;
        Ok(reader)
    }

    /// What it is of.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Where the next block begins.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The digest of all before that.
    pub(super) fn digest(&self) -> Context {
        self.sha256.clone()
    }

    /// What it is read from.
    pub(super) fn into_inner(self) -> R {
        self.input
    }

    /// The next block. There is none after the end.
    ///
    /// # Errors
    /// When it is not what was written, or not there.
    pub fn next_block(&mut self) -> Result<Block, FormatError> {
        let at = self.offset;
        let before = self.sha256.clone();
        let (kind, payload) = self.block()?;
        match kind {
            KEYS if self.leases == 0 => {
                let kvs = self.decode_keys(at, inflated(at, &payload)?)?;
                self.keys += kvs.len() as u64;
                Ok(Block::Keys(kvs))
            }
            LEASES => {
                let stored: Vec<StoredLease> = json(at, &inflated(at, &payload)?)?;
                self.leases += stored.len() as u64;
                let lease = |StoredLease { id, ttl, remaining }| TenantLease { id, ttl, remaining };
                Ok(Block::Leases(stored.into_iter().map(lease).collect()))
            }
            END => {
                let end: End = json(at, &payload)?;
                if end.sha256 != hex::encode(before.finish()) {
                    return Err(damaged(at, "has another checksum of the file before it than the file"));
                }
                if (end.keys, end.leases, self.header.keys) != (self.keys, self.leases, self.keys) {
                    return Err(damaged(at, "counts other keys and leases than there are"));
                }
                if fill(&mut self.input, &mut [0])? != 0 {
                    return Err(damaged(self.offset, "follows the end"));
                }
                Ok(Block::End)
            }
            _ => Err(damaged(at, "is of a kind that has no place there")),
        }
    }

    fn block(&mut self) -> Result<(u8, Vec<u8>), FormatError> {
        let at = self.offset;
        let mut header = [0; BLOCK_HEADER];
        let length = fill(&mut self.input, &mut header)?;
        if length < BLOCK_HEADER {
            let what = if length == 0 { "the blocks: no end follows" } else { "a block" };
            return Err(FormatError::Truncated { at: at + length as u64, what });
        }
        let [kind, l0, l1, l2, l3] = header;
        let announced = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if announced > MAX_BLOCK {
            return Err(damaged(at, "says that it is longer than any is"));
        }
        let mut rest = Vec::new();
        let read = (&mut self.input).take(announced as u64 + 4).read_to_end(&mut rest)?;
        if read < announced + 4 {
            return Err(FormatError::Truncated { at: at + (BLOCK_HEADER + read) as u64, what: "a block" });
        }
        let checksum = rest.split_off(announced);
        if checksum != crc(kind, &rest).to_le_bytes() {
            return Err(damaged(at, "has another checksum than was written"));
        }
        self.sha256.update(&header);
        self.sha256.update(&rest);
        self.sha256.update(&checksum);
        self.offset += (BLOCK_HEADER + read) as u64;
        Ok((kind, rest))
    }

    fn decode_keys(&mut self, at: u64, plain: Vec<u8>) -> Result<Vec<KeyValue>, FormatError> {
        let mut plain = Bytes::from(plain);
        let mut kvs = Vec::new();
        while plain.has_remaining() {
            let kv = KeyValue::decode_length_delimited(&mut plain)
                .map_err(|error| damaged(at, format!("holds no keys: {error}")))?;
            if kv.key <= self.last {
                return Err(damaged(at, "holds keys that are not in their order"));
            }
            self.last = kv.key.clone();
            kvs.push(kv);
        }
        if kvs.is_empty() { Err(damaged(at, "holds no keys")) } else { Ok(kvs) }
    }
}

fn damaged(at: u64, reason: impl Into<String>) -> FormatError {
    FormatError::Damaged { at, reason: reason.into() }
}

fn json<T: DeserializeOwned>(at: u64, payload: &[u8]) -> Result<T, FormatError> {
    serde_json::from_slice(payload).map_err(|error| damaged(at, format!("cannot be read: {error}")))
}

fn inflated(at: u64, payload: &[u8]) -> Result<Vec<u8>, FormatError> {
    let mut plain = Vec::new();
    ZlibDecoder::new(payload)
        .take(MAX_BLOCK as u64 + 1)
        .read_to_end(&mut plain)
        .map_err(|error| damaged(at, format!("cannot be decompressed: {error}")))?;
    if plain.len() > MAX_BLOCK { Err(damaged(at, "is longer than any is")) } else { Ok(plain) }
}

/// Reads until `buffer` is full or there is no more.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while let Some(rest) = buffer.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}
