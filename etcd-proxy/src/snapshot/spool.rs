//! Keys on their way into a snapshot, in the order in which they come and then in that of their revisions.

use std::{
    borrow::Cow,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
};

use bytes::{BufMut as _, BytesMut};
use prost::Message as _;
use proto::mvccpb::KeyValue;
use tempfile::SpooledTempFile;

use super::{
    bbolt::Entries,
    layout::{self, TOMBSTONE_LEN},
};

/// Bytes that are held in memory before a temporary file is made. It has no name, so it goes with the process.
pub(super) const IN_MEMORY: usize = 8 * 1024 * 1024;

/// Keys in the form in which etcd stores them, one behind the other.
pub(super) struct Spool {
    values: SpooledTempFile,
    length: u64,
    index: Vec<Stored>,
}

/// Where a key is.
struct Stored {
    mod_revision: i64,
    /// Its place among those with the same revision: the transaction's order is not known.
    sub: u32,
    length: u32,
    offset: u64,
}

/// The entries of the bucket `key`.
pub(super) struct KeyEntries {
    values: SpooledTempFile,
    /// In the order of the revisions.
    index: Vec<Stored>,
    /// See [`layout`].
    closing: Option<[u8; TOMBSTONE_LEN]>,
}

// === impl Spool ===

impl Spool {
    pub(super) fn new() -> Self {
        Self { values: SpooledTempFile::new(IN_MEMORY), length: 0, index: Vec::new() }
    }

    pub(super) fn append(mut self, page: &[KeyValue]) -> io::Result<Self> {
        let mut stored = BytesMut::new();
        for kv in page {
            let before = stored.len();
            kv.encode(&mut stored).map_err(io::Error::other)?;
            let length = u32::try_from(stored.len() - before).map_err(io::Error::other)?;
            let offset = self.length + before as u64;
            self.index.push(Stored { mod_revision: kv.mod_revision, sub: 0, length, offset });
        }
        self.values.write_all(&stored)?;
        self.length += stored.len() as u64;
        Ok(self)
    }

    /// The entries of a store whose revision is `revision`.
    pub(super) fn into_keys(mut self, revision: i64) -> KeyEntries {
        self.index.sort_unstable_by_key(|stored| (stored.mod_revision, stored.offset));
        let (mut last, mut sub) = (0, 0);
        for stored in &mut self.index {
            sub = if stored.mod_revision == last { sub + 1 } else { 0 };
            last = stored.mod_revision;
            stored.sub = sub;
        }
        let closing = (last < revision).then(|| layout::tombstone(revision));
        KeyEntries { values: self.values, index: self.index, closing }
    }
}

// === impl KeyEntries ===

impl KeyEntries {
    /// How many of the entries are keys; they come first.
    pub(super) fn keys(&self) -> usize {
        self.index.len()
    }
}

impl Entries for KeyEntries {
    fn len(&self) -> usize {
        self.index.len() + usize::from(self.closing.is_some())
    }

    fn key(&self, index: usize) -> Cow<'_, [u8]> {
        match self.index.get(index) {
            Some(stored) => Cow::Owned(layout::revision(stored.mod_revision, stored.sub).to_vec()),
            None => Cow::Borrowed(self.closing.as_ref().map_or(&[], |key| key.as_slice())),
        }
    }

    fn value_len(&self, index: usize) -> usize {
        self.index.get(index).map_or(0, |stored| stored.length as usize)
    }

    fn value(&mut self, index: usize, out: &mut BytesMut) -> io::Result<()> {
        let Some(stored) = self.index.get(index) else { return Ok(()) };
        let before = out.len();
        out.put_bytes(0, stored.length as usize);
        self.values.seek(SeekFrom::Start(stored.offset))?;
        self.values.read_exact(out.get_mut(before..).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(key: &'static str, mod_revision: i64) -> KeyValue {
        KeyValue { key: key.into(), value: "v".into(), mod_revision, create_revision: 2, version: 3, lease: 0 }
    }

    fn read_back(entries: &mut KeyEntries) -> Vec<(Vec<u8>, KeyValue)> {
        let count = entries.len();
        let read = |index| {
            let mut value = BytesMut::new();
            entries.value(index, &mut value).unwrap();
            assert_eq!(value.len(), entries.value_len(index));
            (entries.key(index).into_owned(), KeyValue::decode(value).unwrap())
        };
        (0..count).map(read).collect()
    }

    #[test]
    fn keys_of_one_transaction_are_told_apart() {
        let spool = Spool::new().append(&[kv("a", 7), kv("b", 5)]).unwrap().append(&[kv("c", 7)]).unwrap();
        let mut entries = spool.into_keys(7);
        let expected = [
            (layout::revision(5, 0).to_vec(), kv("b", 5)),
            (layout::revision(7, 0).to_vec(), kv("a", 7)),
            (layout::revision(7, 1).to_vec(), kv("c", 7)),
        ];
        assert_eq!(read_back(&mut entries), expected);
    }

    #[test]
    fn a_store_that_others_moved_on_ends_with_its_revision() {
        for keys in [vec![], vec![kv("a", 7)]] {
            let mut entries = Spool::new().append(&keys).unwrap().into_keys(9);
            let read = read_back(&mut entries);
            assert_eq!(read.len(), keys.len() + 1);
            assert_eq!(read.last().unwrap(), &(layout::tombstone(9).to_vec(), KeyValue::default()));
        }
    }

    #[test]
    fn what_is_too_much_for_the_memory_is_read_back_from_the_file() {
        let large = |number: i64| KeyValue { value: vec![number as u8; 1 << 20].into(), ..kv("k", 100 - number) };
        let mut spool = Spool::new();
        for number in 0..20 {
            spool = spool.append(&[large(number)]).unwrap();
        }
        assert!(spool.values.is_rolled());
        let read = read_back(&mut spool.into_keys(100));
        assert!(read.iter().map(|(_, kv)| kv).eq((0..20).rev().map(large).collect::<Vec<_>>().iter()));
    }
}
