use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::*;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// The whole file, and how large its pieces were.
fn written(buckets: Vec<(&'static str, Pairs)>) -> Vec<u8> {
    let buckets = buckets.into_iter().map(|(name, pairs)| {
        let entries: Vec<(Bytes, Bytes)> = pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        Bucket::new(name, entries)
    });
    let mut file = File::plan(buckets.collect()).unwrap();
    let mut bytes = Vec::new();
    while let Some(pages) = file.next_pages().unwrap() {
        assert_eq!(pages.len() % PAGE, 0, "whole pages");
        bytes.extend_from_slice(&pages);
    }
    assert_eq!(bytes.len() as u64, file.size(), "the size that was said");
    bytes
}

/// Reads a file as bbolt does, and checks what its `Tx.Check` checks.
struct Reader<'a> {
    file: &'a [u8],
    reached: HashSet<u64>,
}

impl<'a> Reader<'a> {
    fn u16(bytes: &[u8], at: usize) -> u16 {
        u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
    }

    fn u32(bytes: &[u8], at: usize) -> usize {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
    }

    fn u64(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    fn read(file: &'a [u8]) -> BTreeMap<String, Pairs> {
        for id in 0..2 {
            let meta = &file[id * PAGE + PAGE_HEADER..];
            assert_eq!(Self::u64(file, id * PAGE), id as u64);
            assert_eq!(Self::u32(meta, 0), MAGIC as usize);
            assert_eq!((Self::u32(meta, 4), Self::u32(meta, 8)), (2, PAGE));
            assert_eq!(Self::u64(meta, 40), (file.len() / PAGE) as u64, "high water mark");
            assert_eq!(Self::u64(meta, 48) % 2, id as u64, "the transaction says which page is its meta page");
            assert_eq!(Self::u64(meta, 56), fnv1a(&meta[..56]));
        }
        let meta = &file[PAGE_HEADER..];
        let (root, freelist) = (Self::u64(meta, 16), Self::u64(meta, 32));
        assert_eq!(Self::u16(file, freelist as usize * PAGE + 8), FREELIST);
        let mut reader = Self { file, reached: HashSet::from([0, 1, freelist]) };
        let mut buckets = BTreeMap::new();
        for (flags, name, value) in reader.tree(root) {
            assert_eq!(flags, 1, "a bucket");
            let pairs = match Self::u64(&value, 0) {
                0 => Self::leaf(&value[16..]),
                root => reader.tree(root),
            };
            let pairs = pairs.into_iter().map(|(flags, key, value)| {
                assert_eq!(flags, 0);
                (key, value)
            });
            buckets.insert(String::from_utf8(name).unwrap(), pairs.collect());
        }
        assert_eq!(reader.reached.len(), file.len() / PAGE, "every page is reachable");
        buckets
    }

    fn tree(&mut self, page: u64) -> Vec<(usize, Vec<u8>, Vec<u8>)> {
        let bytes = &self.file[page as usize * PAGE..];
        assert_eq!(Self::u64(bytes, 0), page);
        for page in page..=page + Self::u32(bytes, 12) as u64 {
            assert!(self.reached.insert(page), "page {page} belongs to one node");
        }
        match Self::u16(bytes, 8) {
            LEAF => Self::leaf(bytes),
            BRANCH => {
                let count = Self::u16(bytes, 10) as usize;
                assert!(count >= 2, "branches have two children at least");
                let mut entries: Vec<(usize, Vec<u8>, Vec<u8>)> = Vec::new();
                for index in 0..count {
                    let at = PAGE_HEADER + index * ELEMENT;
                    let start = at + Self::u32(bytes, at);
                    let key = &bytes[start..start + Self::u32(bytes, at + 4)];
                    let children = self.tree(Self::u64(bytes, at + 8));
                    assert_eq!(children[0].1, key, "a branch names its children's first keys");
                    entries.extend(children);
                }
                entries
            }
            other => panic!("page {page} has flags {other}"),
        }
    }

    fn leaf(bytes: &[u8]) -> Vec<(usize, Vec<u8>, Vec<u8>)> {
        assert_eq!(Self::u16(bytes, 8), LEAF);
        let element = |index| {
            let at = PAGE_HEADER + index * ELEMENT;
            let start = at + Self::u32(bytes, at + 4);
            let (key, value) = (Self::u32(bytes, at + 8), Self::u32(bytes, at + 12));
            let value = &bytes[start + key..start + key + value];
            (Self::u32(bytes, at), bytes[start..start + key].to_vec(), value.to_vec())
        };
        (0..Self::u16(bytes, 10) as usize).map(element).collect()
    }
}

fn assert_reads_back(buckets: Vec<(&'static str, Pairs)>) {
    let expected: BTreeMap<String, Pairs> =
        buckets.iter().map(|(name, pairs)| ((*name).to_owned(), pairs.clone())).collect();
    let file = written(buckets);
    assert!(Reader::read(&file) == expected, "what was written is read");
}

fn numbered(count: u32, value: usize) -> Pairs {
    (0..count).map(|number| (number.to_be_bytes().to_vec(), vec![number as u8; value])).collect()
}

/// The bytes of a small file, as `bbolt page` of the original shows them.
#[test]
fn a_small_file() {
    let file = written(vec![("b", vec![]), ("a", vec![(b"k".to_vec(), b"value".to_vec())])]);
    assert_eq!(file.len(), 4 * PAGE);
    let root = &file[3 * PAGE..];
    assert_eq!(root[..16], [3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 2, 0, 0, 0, 0, 0]);
    assert_eq!(root[16..32], [1, 0, 0, 0, 32, 0, 0, 0, 1, 0, 0, 0, 54, 0, 0, 0], "first element: bucket a");
    assert_eq!(root[32..48], [1, 0, 0, 0, 71, 0, 0, 0, 1, 0, 0, 0, 32, 0, 0, 0], "second element: bucket b");
    assert_eq!(root[48], b'a');
    assert_eq!(root[81..97], [0, 0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0], "the entry of the inline bucket");
    assert_eq!(root[97..103], *b"kvalue");
}

#[test]
fn sizes_around_each_boundary() {
    for value in [0, 1, PAGE / 4 - 60, PAGE / 4, PAGE - 40, PAGE - 36, PAGE - 35, PAGE, 3 * PAGE, 1 << 20] {
        for count in [1, 2, 3] {
            assert_reads_back(vec![("key", numbered(count, value)), ("meta", numbered(2, 8))]);
        }
    }
}

#[test]
fn trees_of_several_levels() {
    for count in [100, 169, 170, 171, 30_000] {
        assert_reads_back(vec![("key", numbered(count, 5)), ("lease", numbered(count / 2, 600))]);
    }
}

/// A branch that would be left with one child takes one from its neighbour.
#[test]
fn no_branch_has_a_single_child() {
    let long = |number: u32| [number.to_be_bytes().to_vec(), vec![b'x'; 1400]].concat();
    for count in 2..12 {
        let pairs: Pairs = (0..count).map(|number| (long(number), vec![1; 3000])).collect();
        assert_reads_back(vec![("key", pairs)]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read(
        first in proptest::collection::btree_map(
            proptest::collection::vec(any::<u8>(), 1..40),
            prop_oneof![
                8 => proptest::collection::vec(any::<u8>(), 0..200),
                1 => (0usize..20_000).prop_map(|length| vec![7; length]),
            ],
            0..400,
        ),
        second in proptest::collection::btree_map(
            proptest::collection::vec(any::<u8>(), 1..3000),
            proptest::collection::vec(any::<u8>(), 0..50),
            0..40,
        ),
    ) {
        assert_reads_back(vec![("first", first.into_iter().collect()), ("second", second.into_iter().collect()), ("third", vec![])]);
    }
}
