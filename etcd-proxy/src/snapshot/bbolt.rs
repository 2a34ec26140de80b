//! Files in bbolt's format, written from front to back.
//!
//! The format is that of `go.etcd.io/bbolt`, file version 2 (`internal/common/{page,meta,bucket}.go`): pages of
//! [`PAGE`] bytes; two meta pages, which name the root bucket, the list of free pages and the number of pages; and for
//! each bucket a B+tree of leaf and branch pages, larger nodes running over into the pages that follow. Numbers are
//! little endian, as on the machines that etcd is made for.
//!
//! The meta pages come first and depend on all that follows, so a file is planned by the lengths of its entries and then
//! written in one pass, a node at a time. Only where nodes lie is held in memory: a few bytes for each leaf.

use std::{borrow::Cow, io, ops::Range};

use bytes::{BufMut as _, Bytes, BytesMut};

/// Bytes of a page. bbolt takes the system's page size for a new file and reads files of any.
pub const PAGE: usize = 4096;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const FREELIST: u16 = 0x10;
/// Marks a leaf's entry whose value is a bucket.
const BUCKET_ENTRY: u32 = 0x01;

/// Id, flags, count and overflow of a page.
const PAGE_HEADER: usize = 16;
/// What an entry of a leaf or branch has besides key and value.
const ELEMENT: usize = 16;
/// Root page and sequence of a bucket.
const BUCKET_HEADER: usize = 16;
/// The largest bucket that is kept within its entry instead of pages of its own (`bucket.go`, `maxInlineBucketSize`).
const MAX_INLINE: usize = PAGE / 4;

const FREELIST_PAGE: u64 = 2;
const ROOT_PAGE: u64 = 3;
/// Both meta pages describe the same state; bbolt takes the one with the greater id.
const TRANSACTIONS: [u64; 2] = [2, 1];

/// The entries of a bucket, in the order of their keys, which are neither empty nor alike.
pub trait Entries {
    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key of an entry.
    fn key(&self, index: usize) -> Cow<'_, [u8]>;

    /// The length of an entry's value.
    fn value_len(&self, index: usize) -> usize;

    /// Appends an entry's value to `out`.
    ///
    /// # Errors
    /// When it cannot be read.
    fn value(&mut self, index: usize, out: &mut BytesMut) -> io::Result<()>;
}

/// A bucket of the file.
pub struct Bucket {
    name: &'static str,
    entries: Box<dyn Entries + Send>,
}

/// A file of which all is known but the values.
pub struct File {
    buckets: Vec<Planned>,
    /// Pages of the file, the meta pages among them.
    pages: u64,
    /// The root bucket's entries: names and what stands for each bucket.
    root: Vec<(&'static str, Bytes)>,
    next: Next,
}

/// A bucket and where its nodes lie: the leaves, then level upon level of branches. No levels if the bucket is inline.
struct Planned {
    entries: Box<dyn Entries + Send>,
    levels: Vec<Vec<Node>>,
}

/// A node of a tree.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// Its first child: an entry, or a node of the level below. It has those up to the next node's first.
    start: usize,
    /// The entry whose key stands for the node.
    entry: usize,
    page: u64,
}

/// What is written next.
#[derive(Clone, Copy, Debug)]
enum Next {
    Head,
    Node { bucket: usize, level: usize, node: usize },
}

// === impl Bucket ===

impl Bucket {
    /// A bucket of this name.
    pub fn new(name: &'static str, entries: impl Entries + Send + 'static) -> Self {
        Self { name, entries: Box::new(entries) }
    }
}

/// Entries that are held in memory.
impl Entries for Vec<(Bytes, Bytes)> {
    fn len(&self) -> usize {
        self.as_slice().len()
    }

    fn key(&self, index: usize) -> Cow<'_, [u8]> {
        self.get(index).map_or(Cow::Borrowed(b""), |(key, _)| Cow::Borrowed(key))
    }

    fn value_len(&self, index: usize) -> usize {
        self.get(index).map_or(0, |(_, value)| value.len())
    }

    fn value(&mut self, index: usize, out: &mut BytesMut) -> io::Result<()> {
        if let Some((_, value)) = self.get(index) {
            out.put_slice(value);
        }
        Ok(())
    }
}

// === impl File ===

impl File {
    /// Plans a file of these buckets.
    ///
    /// # Errors
    /// When the value of an entry that is kept in the root page cannot be read.
    pub fn plan(mut buckets: Vec<Bucket>) -> io::Result<Self> {
        buckets.sort_unstable_by_key(|bucket| bucket.name);
        let mut root = Vec::with_capacity(buckets.len());
        for Bucket { name, entries } in &mut buckets {
            let all = 0..entries.len();
            let inline = leaf_size(&**entries, all.clone(), MAX_INLINE) <= MAX_INLINE;
            let mut value = BytesMut::new();
            value.put_bytes(0, BUCKET_HEADER);
            if inline {
                put_leaf(&mut **entries, all, 0, 0, &mut value)?;
            }
            root.push((*name, value.freeze()));
        }
        let mut pages = ROOT_PAGE + pages_for(root_size(&root));
        let mut planned = Vec::with_capacity(buckets.len());
        for (Bucket { entries, .. }, (_, value)) in buckets.into_iter().zip(&mut root) {
            let mut levels = Vec::new();
            if value.len() == BUCKET_HEADER {
                levels = plan_tree(&*entries, &mut pages);
                let root_page = levels.last().and_then(|top| top.first()).map_or(0, |node| node.page);
                *value = bucket_header(root_page);
            }
            planned.push(Planned { entries, levels });
        }
        Ok(Self { buckets: planned, pages, root, next: Next::Head })
    }

    /// Bytes of the whole file.
    pub fn size(&self) -> u64 {
        self.pages.saturating_mul(PAGE as u64)
    }

    /// The next pages of the file; `None` at its end.
    ///
    /// # Errors
    /// When a value cannot be read, or has another length than was said.
    pub fn next_pages(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            match self.next {
                Next::Head => {
                    self.next = Next::Node { bucket: 0, level: 0, node: 0 };
                    return self.head().map(Some);
                }
                Next::Node { bucket, level, node } => {
                    let Some(planned) = self.buckets.get_mut(bucket) else { return Ok(None) };
                    let Some(nodes) = planned.levels.get(level) else {
                        self.next = Next::Node { bucket: bucket + 1, level: 0, node: 0 };
                        continue;
                    };
                    if node == nodes.len() {
                        self.next = Next::Node { bucket, level: level + 1, node: 0 };
                        continue;
                    }
                    self.next = Next::Node { bucket, level, node: node + 1 };
                    return planned.write(level, node).map(Some);
                }
            }
        }
    }

    /// The meta pages, the empty list of free pages, and the root bucket.
    fn head(&self) -> io::Result<Bytes> {
        let mut out = BytesMut::new();
        for (id, transaction) in (0u64..).zip(TRANSACTIONS) {
            put_header(&mut out, id, META, 0, 0);
            let start = out.len();
            out.put_u32_le(MAGIC);
            out.put_u32_le(VERSION);
            out.put_u32_le(PAGE as u32);
            out.put_u32_le(0);
            out.put_u64_le(ROOT_PAGE);
            out.put_u64_le(0);
            out.put_u64_le(FREELIST_PAGE);
            out.put_u64_le(self.pages);
            out.put_u64_le(transaction);
            let checksum = fnv1a(out.get(start..).unwrap_or_default());
            out.put_u64_le(checksum);
            fill_page(&mut out);
        }
        put_header(&mut out, FREELIST_PAGE, FREELIST, 0, 0);
        fill_page(&mut out);
        let pages = pages_for(root_size(&self.root));
        put_header(&mut out, ROOT_PAGE, LEAF, self.root.len(), pages - 1);
        let elements = self.root.iter().map(|(name, value)| (name.len(), value.len()));
        put_leaf_elements(elements, BUCKET_ENTRY, &mut out)?;
        for (name, value) in &self.root {
            out.put_slice(name.as_bytes());
            out.put_slice(value);
        }
        fill_page(&mut out);
        Ok(out.freeze())
    }
}

// === impl Planned ===

impl Planned {
    /// The pages of a node.
    fn write(&mut self, level: usize, node: usize) -> io::Result<Bytes> {
        let mut out = BytesMut::new();
        let Some(nodes) = self.levels.get(level) else { return Ok(Bytes::new()) };
        let Some(&Node { start, page, .. }) = nodes.get(node) else { return Ok(Bytes::new()) };
        let below = level.checked_sub(1).and_then(|below| self.levels.get(below));
        let end = nodes.get(node + 1).map_or_else(|| below.map_or(self.entries.len(), Vec::len), |next| next.start);
        match below {
            None => {
                let size = leaf_size(&*self.entries, start..end, usize::MAX);
                put_leaf(&mut *self.entries, start..end, page, pages_for(size) - 1, &mut out)?;
            }
            Some(below) => {
                let children = below.get(start..end).unwrap_or_default();
                put_branch(&*self.entries, children, page, &mut out)?;
            }
        }
        fill_page(&mut out);
        Ok(out.freeze())
    }
}

/// Where the nodes of a bucket's tree lie; `pages` goes on behind them.
fn plan_tree(entries: &dyn Entries, pages: &mut u64) -> Vec<Vec<Node>> {
    let mut leaves: Vec<Node> = Vec::new();
    let mut size = 0;
    for index in 0..entries.len() {
        let more = ELEMENT + entries.key(index).len() + entries.value_len(index);
        if leaves.is_empty() || size + more > PAGE {
            if !leaves.is_empty() {
                *pages += pages_for(size);
            }
            leaves.push(Node { start: index, entry: index, page: *pages });
            size = PAGE_HEADER;
        }
        size += more;
    }
    *pages += pages_for(size);
    let mut levels = vec![leaves];
    while let Some(below) = levels.last().filter(|below| below.len() > 1) {
        let nodes = plan_branches(entries, below, pages);
        levels.push(nodes);
    }
    levels
}

/// The branches above some nodes. Each has two children at least: bbolt gives up one that has fewer.
fn plan_branches(entries: &dyn Entries, below: &[Node], pages: &mut u64) -> Vec<Node> {
    let mut starts = vec![0];
    let (mut size, mut children) = (PAGE_HEADER, 0);
    for (index, child) in below.iter().enumerate() {
        let more = ELEMENT + entries.key(child.entry).len();
        if children >= 2 && size + more > PAGE {
            starts.push(index);
            (size, children) = (PAGE_HEADER, 0);
        }
        size += more;
        children += 1;
    }
    if children == 1
        && let Some(last) = starts.pop()
    {
        // The branch before lends its last child, or takes the single one in if that leaves it too few.
        let before = starts.last().copied().unwrap_or_default();
        if last - before > 2 {
            starts.push(last - 1);
        }
    }
    let ends: Vec<usize> = starts.iter().skip(1).copied().chain([below.len()]).collect();
    let mut nodes = Vec::with_capacity(starts.len());
    for (start, end) in starts.into_iter().zip(ends) {
        let children = below.get(start..end).unwrap_or_default();
        let entry = children.first().map_or(0, |child| child.entry);
        nodes.push(Node { start, entry, page: *pages });
        *pages += pages_for(branch_size(entries, children));
    }
    nodes
}

/// Bytes of a leaf with these entries. Counts no further once they are more than `enough`.
fn leaf_size(entries: &dyn Entries, range: Range<usize>, enough: usize) -> usize {
    let mut size = PAGE_HEADER;
    for index in range {
        size += ELEMENT + entries.key(index).len() + entries.value_len(index);
        if size > enough {
            break;
        }
    }
    size
}

fn branch_size(entries: &dyn Entries, children: &[Node]) -> usize {
    PAGE_HEADER + children.iter().map(|child| ELEMENT + entries.key(child.entry).len()).sum::<usize>()
}

fn root_size(root: &[(&str, Bytes)]) -> usize {
    PAGE_HEADER + root.iter().map(|(name, value)| ELEMENT + name.len() + value.len()).sum::<usize>()
}

/// Pages of a node of this size; an empty bucket has a page, too.
fn pages_for(size: usize) -> u64 {
    size.div_ceil(PAGE).max(1) as u64
}

fn put_header(out: &mut BytesMut, page: u64, flags: u16, count: usize, overflow: u64) {
    out.put_u64_le(page);
    out.put_u16_le(flags);
    // A page has room for less than 2^16 elements, whose headers alone have 16 bytes, unless few of them are large.
    out.put_u16_le(u16::try_from(count).unwrap_or(u16::MAX));
    out.put_u32_le(u32::try_from(overflow).unwrap_or(u32::MAX));
}

/// A leaf, without what fills its page up.
fn put_leaf(
    entries: &mut dyn Entries,
    range: Range<usize>,
    page: u64,
    overflow: u64,
    out: &mut BytesMut,
) -> io::Result<()> {
    put_header(out, page, LEAF, range.len(), overflow);
    let lengths = range.clone().map(|index| (entries.key(index).len(), entries.value_len(index)));
    put_leaf_elements(lengths, 0, out)?;
    for index in range {
        out.put_slice(&entries.key(index));
        let before = out.len();
        entries.value(index, out)?;
        if out.len() - before != entries.value_len(index) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a value has another length than before"));
        }
    }
    Ok(())
}

/// The elements of a leaf whose keys and values have these lengths.
fn put_leaf_elements(
    lengths: impl ExactSizeIterator<Item = (usize, usize)>,
    flags: u32,
    out: &mut BytesMut,
) -> io::Result<()> {
    // Positions count from the element itself.
    let mut position = lengths.len() * ELEMENT;
    for (key, value) in lengths {
        out.put_u32_le(flags);
        out.put_u32_le(number(position)?);
        out.put_u32_le(number(key)?);
        out.put_u32_le(number(value)?);
        position = position + key + value - ELEMENT;
    }
    Ok(())
}

/// A branch, without what fills its page up.
fn put_branch(entries: &dyn Entries, children: &[Node], page: u64, out: &mut BytesMut) -> io::Result<()> {
    put_header(out, page, BRANCH, children.len(), pages_for(branch_size(entries, children)) - 1);
    let mut position = children.len() * ELEMENT;
    for child in children {
        let key = entries.key(child.entry).len();
        out.put_u32_le(number(position)?);
        out.put_u32_le(number(key)?);
        out.put_u64_le(child.page);
        position = position + key - ELEMENT;
    }
    for child in children {
        out.put_slice(&entries.key(child.entry));
    }
    Ok(())
}

fn number(length: usize) -> io::Result<u32> {
    u32::try_from(length).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "an entry is longer than 4 GiB"))
}

/// What stands for a bucket with pages of its own.
fn bucket_header(root: u64) -> Bytes {
    let mut value = BytesMut::with_capacity(BUCKET_HEADER);
    value.put_u64_le(root);
    value.put_u64_le(0);
    value.freeze()
}

fn fill_page(out: &mut BytesMut) {
    let missing = out.len().next_multiple_of(PAGE) - out.len();
    out.put_bytes(0, missing);
}

/// FNV-1a with 64 bits, the checksum of meta pages.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests;
