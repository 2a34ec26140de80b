use std::io::{Seek as _, Write as _};

use proptest::prelude::*;

use super::*;

fn header(keys: u64) -> Header {
    Header {
        format: FORMAT,
        id: "0123456789abcdef0123456789abcdef".into(),
        created_at: jiff::Timestamp::UNIX_EPOCH,
        prefix: hex::encode("/a/"),
        cluster_id: "7".into(),
        revision: 42,
        keys,
    }
}

fn kvs(count: u64, value: usize) -> Vec<KeyValue> {
    (0..count)
        .map(|number| KeyValue {
            key: format!("k{number:06}").into(),
            value: vec![number as u8; value].into(),
            lease: i64::from(number % 3 == 0),
            mod_revision: 7,
            create_revision: 3,
            version: 2,
        })
        .collect()
}

fn lease(id: i64) -> TenantLease {
    TenantLease { id, ttl: 60, remaining: 5 }
}

fn written(kvs: &[KeyValue], leases: &[TenantLease]) -> Vec<u8> {
    let mut writer = Writer::begin(Vec::new(), &header(kvs.len() as u64)).unwrap();
    writer.keys(kvs).unwrap();
    writer.finish(leases).unwrap()
}

fn read(bytes: &[u8]) -> Result<(Vec<KeyValue>, Vec<TenantLease>), FormatError> {
    let mut reader = Reader::new(bytes)?;
    let (mut keys, mut leases) = (vec![], vec![]);
    loop {
        match reader.next_block()? {
            Block::Keys(more) => keys.extend(more),
            Block::Leases(more) => leases.extend(more),
            Block::End => return Ok((keys, leases)),
        }
    }
}

/// Files of this format are kept for years: see `docs/backup-format.md`.
#[test]
fn the_bytes_of_an_empty_backup() {
    let bytes = written(&[], &[]);
    assert_eq!(bytes[..8], *b"\x89EPBAK\r\n");
    assert_eq!(bytes[8], b'H');
    let length = u32::from_le_bytes(bytes[9..13].try_into().unwrap()) as usize;
    let json = std::str::from_utf8(&bytes[13..13 + length]).unwrap();
    assert_eq!(
        json,
        r#"{"format":1,"id":"0123456789abcdef0123456789abcdef","createdAt":"1970-01-01T00:00:00Z","prefix":"2f612f","clusterId":"7","revision":42,"keys":0}"#
    );
    assert_eq!(bytes[13 + length + 4], b'E');
}

#[test]
fn what_is_written_is_read() {
    for (count, value) in [(0, 0), (1, 0), (5000, 300), (3, 2_000_000)] {
        let (kvs, leases) = (kvs(count, value), [lease(-7), lease(5)]);
        let bytes = written(&kvs, &leases);
        assert!(read(&bytes).unwrap() == (kvs.clone(), leases.to_vec()));
        let leased_keys = kvs.iter().filter(|kv| kv.lease != 0).count() as u64;
        assert_eq!(check(&bytes[..]).unwrap(), Checked { header: header(count), leased_keys, leases: 2 });
    }
}

#[test]
fn newer_formats_and_other_files_are_told_apart() {
    let newer = Writer::begin(Vec::new(), &Header { format: 2, ..header(0) }).unwrap().finish(&[]).unwrap();
    assert!(matches!(read(&newer), Err(FormatError::Newer(2))));
    assert!(matches!(read(b"SQLite format 3\0"), Err(FormatError::NoBackup)));
}

/// Wherever it ends too early, it says so; nothing of it is taken for the end.
#[test]
fn every_truncation_is_found_and_said() {
    let bytes = written(&kvs(20, 30), &[lease(1)]);
    for length in 0..bytes.len() {
        match read(&bytes[..length]) {
            Err(FormatError::Truncated { at, .. }) => assert_eq!(at, length as u64),
            other => panic!("cut at {length}: {other:?}"),
        }
    }
    let longer = [bytes.as_slice(), b"x"].concat();
    assert!(matches!(read(&longer), Err(FormatError::Damaged { at, .. }) if at == bytes.len() as u64));
}

/// Two whole blocks in the wrong order have good checksums of their own.
#[test]
fn blocks_that_were_moved_are_found() {
    let bytes = written(&kvs(3, 1_100_000), &[]);
    let block = |at: usize| at..at + 9 + u32::from_le_bytes(bytes[at + 1..at + 5].try_into().unwrap()) as usize;
    let header = block(8);
    let first = block(header.end);
    let second = block(first.end);
    let moved = [&bytes[..first.start], &bytes[second.clone()], &bytes[first.clone()], &bytes[second.end..]].concat();
    assert!(matches!(read(&moved), Err(FormatError::Damaged { .. })));
    let missing = [&bytes[..first.start], &bytes[second.start..]].concat();
    assert!(matches!(read(&missing), Err(FormatError::Damaged { .. })));
}

fn file(bytes: &[u8]) -> std::fs::File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn contents(mut file: &std::fs::File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    io::Read::read_to_end(&mut file, &mut bytes).unwrap();
    bytes
}

/// Cut off anywhere and gone on with, the file is as if it had been written at once.
#[test]
fn a_backup_is_gone_on_with_from_any_point() {
    let kvs = kvs(12, 300_000);
    let bytes = written(&kvs, &[lease(9)]);
    for length in (0..bytes.len()).step_by(97).chain([bytes.len()]) {
        let Some(mut resumed) = Resumed::read(file(&bytes[..length])).unwrap() else {
            assert!(length < 200, "only a header that is not whole is given up");
            continue;
        };
        assert_eq!(resumed.header, header(12));
        assert_eq!(resumed.complete, length == bytes.len());
        if resumed.complete {
            assert!(contents(&resumed.into_file()) == bytes);
            continue;
        }
        let next = kvs.iter().position(|kv| Some(&kv.key) > resumed.last.as_ref()).unwrap_or(kvs.len());
        assert_eq!(resumed.keys, next as u64);
        resumed.writer.keys(&kvs[next..]).unwrap();
        let file = resumed.writer.finish(&[lease(9)]).unwrap();
        assert!(read(&contents(&file)).unwrap() == (kvs.clone(), vec![lease(9)]));
    }
}

proptest! {
    /// No byte can be changed unnoticed, and none makes the reader panic.
    #[test]
    fn every_changed_byte_is_found(at in any::<proptest::sample::Index>(), change in 1u8..) {
        let mut bytes = written(&kvs(20, 30), &[lease(1)]);
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        prop_assert!(read(&bytes).is_err());
    }
}
