//! Writing backups, from the start or from where an earlier process was.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufReader, Seek as _, SeekFrom, Write},
};

use bytes::{BufMut as _, Bytes, BytesMut};
use flate2::{Compression, write::ZlibEncoder};
use prost::Message as _;
use proto::mvccpb::KeyValue;
use ring::digest::{Context, SHA256};
use serde::Serialize;

use super::{Block, END, End, FormatError, HEADER, Header, KEYS, LEASES, MAGIC, Reader, StoredLease, crc};
use crate::snapshot::TenantLease;

/// Uncompressed bytes after which a block of keys is written.
const BLOCK: usize = 1024 * 1024;
/// Leases in a block.
const BLOCK_LEASES: usize = 10_000;

/// Writes a backup.
pub struct Writer<W> {
    out: W,
    sha256: Context,
    keys: u64,
    leases: u64,
    /// Keys of the block that is being filled.
    pending: BytesMut,
}

/// A backup that was begun earlier.
pub struct Resumed {
    /// What it is of.
    pub header: Header,
    /// The last key in it, as the tenant sees it.
    pub last: Option<Bytes>,
    /// The keys in it.
    pub keys: u64,
    /// The leases that they have.
    pub held: BTreeSet<i64>,
    /// Whether it was brought to its end; then nothing is to be written any more.
    pub complete: bool,
    /// Goes on after them.
    pub writer: Writer<File>,
}

// === impl Writer ===

impl<W: Write> Writer<W> {
    /// Begins a backup.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn begin(out: W, header: &Header) -> io::Result<Self> {
        let mut writer = Self { out, sha256: Context::new(&SHA256), keys: 0, leases: 0, pending: BytesMut::new() };
        writer.write(MAGIC)?;
        writer.json(HEADER, header)?;
        Ok(writer)
    }

    /// Adds keys, which follow the earlier ones in their order.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn keys(&mut self, kvs: &[KeyValue]) -> io::Result<()> {
        for kv in kvs {
            kv.encode_length_delimited(&mut self.pending).map_err(io::Error::other)?;
            self.keys += 1;
            if self.pending.len() >= BLOCK {
                self.flush_keys()?;
            }
        }
        Ok(())
    }

    /// Adds the leases and the end.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn finish(mut self, leases: &[TenantLease]) -> io::Result<W> {
        self.flush_keys()?;
        for leases in leases.chunks(BLOCK_LEASES) {
            let stored: Vec<StoredLease> =
                leases.iter().map(|&TenantLease { id, ttl, remaining }| StoredLease { id, ttl, remaining }).collect();
            self.compressed(LEASES, &serde_json::to_vec(&stored)?)?;
            self.leases += leases.len() as u64;
        }
        let sha256 = hex::encode(self.sha256.clone().finish());
        self.json(END, &End { keys: self.keys, leases: self.leases, sha256 })?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn flush_keys(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let pending = self.pending.split();
        self.compressed(KEYS, &pending)
    }

    fn json(&mut self, kind: u8, value: &impl Serialize) -> io::Result<()> {
        self.block(kind, &serde_json::to_vec(value)?)
    }

    fn compressed(&mut self, kind: u8, plain: &[u8]) -> io::Result<()> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(plain)?;
        self.block(kind, &encoder.finish()?)
    }

    fn block(&mut self, kind: u8, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        let mut block = BytesMut::with_capacity(payload.len() + 9);
        block.put_u8(kind);
        block.put_u32_le(length);
        block.put_slice(payload);
        block.put_u32_le(crc(kind, payload));
        self.write(&block)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sha256.update(bytes);
        self.out.write_all(bytes)
    }
}

// === impl Resumed ===

impl Resumed {
    /// Reads what an earlier process left in `file`, cuts off a block that it did not finish, and goes on behind the keys.
    /// `None` if not even the header is whole.
    ///
    /// # Errors
    /// When it cannot be read or written, or is no backup.
    pub fn read(mut file: File) -> Result<Option<Self>, FormatError> {
        file.rewind()?;
        let mut reader = match Reader::new(BufReader::new(file)) {
            Ok(reader) => reader,
            Err(FormatError::Truncated { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let header = reader.header().clone();
        let (mut last, mut keys, mut leases, mut held) = (None, 0, 0, BTreeSet::new());
        let (mut end, mut sha256) = (reader.offset(), reader.digest());
        let complete = loop {
            match reader.next_block() {
                Ok(Block::Keys(kvs)) => {
                    keys += kvs.len() as u64;
                    held.extend(kvs.iter().map(|kv| kv.lease).filter(|&lease| lease != 0));
                    last = kvs.last().map(|kv| kv.key.clone());
                    (end, sha256) = (reader.offset(), reader.digest());
                }
                // Read anew: what is left of the leases' time was true then.
                Ok(Block::Leases(read)) => leases += read.len() as u64,
                Ok(Block::End) => break true,
                Err(FormatError::Truncated { .. } | FormatError::Damaged { .. }) => break false,
                Err(error) => return Err(error),
            }
        };
        let mut out = reader.into_inner().into_inner();
        if !complete {
            out.set_len(end)?;
            out.seek(SeekFrom::Start(end))?;
        }
        let writer = Writer { out, sha256, keys, leases: if complete { leases } else { 0 }, pending: BytesMut::new() };
        Ok(Some(Self { header, last, keys, held, complete, writer }))
    }

    /// The file of a complete backup.
    pub fn into_file(self) -> File {
        self.writer.out
    }
}
