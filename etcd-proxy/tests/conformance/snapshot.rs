//! Snapshots of a tenant: taken with etcdctl through the proxy, read by etcdutl, restored, and started as an etcd.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use etcd_proxy::snapshot::{self, TenantLease, bbolt};
use proptest::{prelude::*, strategy::ValueTree as _, test_runner::TestRunner};
use proto::{
    etcdserverpb::{
        DeleteRangeRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest, RequestOp,
        SnapshotRequest, StatusRequest, TxnRequest, request_op::Request,
    },
    mvccpb::KeyValue,
};
use tonic::Code;

use crate::{
    etcdctl::etcdctl,
    support::{Client, Etcd, PATIENCE, Proxy, binary, refusal, watch_all},
};

/// Long enough not to be in a file by chance.
const PREFIX: &str = "/the-tenant/";
const NEIGHBOUR: &str = "/the-neighbour/";

/// A snapshot in a file, and what etcdutl says of it after it has checked the file.
struct Taken {
    _dir: tempfile::TempDir,
    path: PathBuf,
    status: Status,
}

#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    hash: u32,
    revision: i64,
    total_key: usize,
    version: String,
}

async fn save(proxy: &Proxy) -> Result<Taken, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot.db");
    let endpoint = format!("http://{}", proxy.address);
    etcdctl(&endpoint, &["--command-timeout=60s", "snapshot", "save", path.to_str().unwrap()], "").await?;
    let status = status(&path);
    Ok(Taken { _dir: dir, path, status })
}

fn status(path: &Path) -> Status {
    let output = Command::new(binary("TEST_ETCDUTL"))
        .args(["snapshot", "status", "--write-out=json"])
        .arg(path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn everything(revision: i64) -> RangeRequest {
    RangeRequest { key: "\0".into(), range_end: "\0".into(), revision, ..Default::default() }
}

/// The granted time to live and the keys of each lease.
async fn leases_of(client: &mut Client) -> BTreeMap<i64, (i64, Vec<Bytes>)> {
    let mut leases = BTreeMap::new();
    for id in client.leases().await {
        let request = LeaseTimeToLiveRequest { id, keys: true };
        let mut answer = client.lease.lease_time_to_live(request).await.unwrap().into_inner();
        assert!(answer.ttl > 0 && answer.ttl <= answer.granted_ttl, "{answer:?}");
        answer.keys.sort_unstable();
        leases.insert(id, (answer.granted_ttl, answer.keys));
    }
    leases
}

/// The restored etcd holds these keys at `revision`, knows of nothing before, and goes on from there.
async fn assert_holds(restored: &mut Client, revision: i64, kvs: &[KeyValue]) {
    let answer = restored.range(everything(0)).await.unwrap();
    assert_eq!(answer.header.unwrap().revision, revision);
    assert!(answer.kvs == kvs, "{} keys, {} expected", answer.kvs.len(), kvs.len());
    assert!(restored.range(everything(revision)).await.unwrap().kvs == kvs);
    if revision > 1 {
        let compacted = (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted".to_owned());
        assert_eq!(refusal(restored.range(everything(revision - 1)).await), compacted);
        let mut watching = restored.watch([watch_all(revision - 1)]).await;
        assert!(watching.next().await.unwrap().created);
        assert_eq!(watching.next().await.unwrap().compact_revision, revision);
    }
    let mut watching = restored.watch([watch_all(revision + 1)]).await;
    assert!(watching.next().await.unwrap().created);
    assert_eq!(restored.put("new", "1").await, revision + 1);
    let events = watching.events(1).await;
    assert_eq!((&events[0].kv.as_ref().unwrap().key[..], events.len()), (&b"new"[..], 1));
    restored
        .kv
        .compact(proto::etcdserverpb::CompactionRequest { revision: revision + 1, physical: true })
        .await
        .unwrap();
    assert_eq!(
        restored.range(everything(0)).await.unwrap().kvs.len(),
        kvs.len() + usize::from(!kvs.iter().any(|kv| kv.key == "new"))
    );
}

fn assert_lacks(file: &[u8], forbidden: &[&[u8]]) {
    for forbidden in forbidden {
        let found = file.windows(forbidden.len()).position(|window| window == *forbidden);
        assert_eq!(found, None, "{:?} is in the file", forbidden.escape_ascii().to_string());
    }
}

fn puts<'a>(pairs: impl IntoIterator<Item = (&'a str, Bytes)>) -> TxnRequest {
    let put = |(key, value): (&str, Bytes)| RequestOp {
        request: Some(Request::RequestPut(PutRequest { key: key.to_owned().into(), value, ..Default::default() })),
    };
    TxnRequest { success: pairs.into_iter().map(put).collect(), ..Default::default() }
}

/// Tenants with all that a key can have, and a neighbour who has the last word.
async fn busy(etcd: &Etcd) -> (Proxy, Proxy) {
    let (proxy, other) = (Proxy::start(etcd, PREFIX).await, Proxy::start(etcd, NEIGHBOUR).await);
    let (mut a, mut b) = (proxy.client().await, other.client().await);
    b.put("k", "the neighbour's value").await;
    // What a grpc-proxy makes of an empty key in a Txn. It is nobody's.
    etcd.client().await.put(PREFIX, "of no tenant").await;
    for value in ["1", "2", "3"] {
        a.put("changed", value).await;
    }
    a.put("deleted", "x").await;
    a.put("again", "x").await;
    for key in ["deleted", "again"] {
        a.kv.delete_range(DeleteRangeRequest { key: key.into(), ..Default::default() }).await.unwrap();
    }
    a.put("again", "").await;
    a.put(b"\0\xff\x80/".as_slice(), b"\0binary\xff".as_slice()).await;
    a.put("large", vec![b'l'; 1_400_000]).await;
    a.kv.txn(puts([("z", "1".into()), ("y", "2".into()), ("x", vec![7; 5000].into())])).await.unwrap();
    for (id, ttl) in [(4711, 600), (-7, 900), (1234, 700)] {
        assert_eq!(a.grant(id, ttl).await.unwrap(), id);
    }
    a.put_with_lease("leased", 4711).await.unwrap();
    a.put_with_lease("leased/too", 4711).await.unwrap();
    a.put_with_lease("negative", -7).await.unwrap();
    let lease = b.grant(99, 600).await.unwrap();
    b.put_with_lease("leased by the neighbour", lease).await.unwrap();
    (proxy, other)
}

/// As an etcd says it, which those before 3.6 do not.
async fn storage_version(direct: &mut Client) -> String {
    direct.maintenance.status(StatusRequest {}).await.unwrap().into_inner().storage_version
}

async fn is_whole(variable: &'static str) {
    let etcd = Etcd::start_binary(variable, &[]).await;
    let (proxy, _other) = busy(&etcd).await;
    let (mut a, mut direct) = (proxy.client().await, etcd.client().await);
    let taken = save(&proxy).await.unwrap();
    let kvs = a.range(everything(taken.status.revision)).await.unwrap().kvs;
    assert_eq!((kvs.len(), taken.status.total_key), (10, 10));
    assert_eq!(taken.status.version, storage_version(&mut direct).await);
    assert_eq!(taken.status.revision, direct.range(everything(0)).await.unwrap().header.unwrap().revision);

    let file = std::fs::read(&taken.path).unwrap();
    let secret = direct.range(RangeRequest { range_end: "/etcd-proxy.meta0".into(), ..everything(0) }).await.unwrap();
    let secrets: Vec<&[u8]> =
        secret.kvs.iter().filter(|kv| kv.key.ends_with(b"secret")).map(|kv| &kv.value[..]).collect();
    assert_eq!(secrets.len(), 2);
    assert_lacks(&file, &secrets);
    let ids: Vec<[u8; 8]> = direct.leases().await.into_iter().map(i64::to_be_bytes).collect();
    assert_eq!(ids.len(), 4);
    assert_lacks(&file, &ids.each_ref_slices());
    assert_lacks(&file, &[b"the-tenant", b"neighbour", b"etcd-proxy", hex::encode(PREFIX).as_bytes()]);

    let restored = Etcd::restore(variable, &taken.path, &[]).await;
    let mut r = restored.client().await;
    let leases = leases_of(&mut a).await;
    assert_eq!(leases.keys().copied().collect::<Vec<_>>(), [-7, 1234, 4711]);
    assert_eq!(leases_of(&mut r).await, leases);
    assert_holds(&mut r, taken.status.revision, &kvs).await;
    r.lease.lease_revoke(LeaseRevokeRequest { id: 4711 }).await.unwrap();
    assert_eq!((r.get("leased").await, r.get("leased/too").await), (None, None));
    assert!(r.get("negative").await.is_some());
    assert!(!proxy.saw_foreign_keys());
}

trait Slices {
    fn each_ref_slices(&self) -> Vec<&[u8]>;
}

impl Slices for Vec<[u8; 8]> {
    fn each_ref_slices(&self) -> Vec<&[u8]> {
        self.iter().map(<[u8; 8]>::as_slice).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_the_tenant_whole_and_alone() {
    is_whole("TEST_ETCD").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_so_on_etcd_3_6() {
    is_whole("TEST_ETCD_3_6").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_so_on_etcd_3_5() {
    is_whole("TEST_ETCD_3_5").await;
}

/// `--bump-revision` counts from the snapshot's revision, although the last change was the neighbour's.
#[tokio::test(flavor = "multi_thread")]
async fn revisions_are_bumped_from_there() {
    let etcd = Etcd::start().await;
    let (proxy, _other) = busy(&etcd).await;
    let taken = save(&proxy).await.unwrap();
    let revision = etcd.client().await.range(everything(0)).await.unwrap().header.unwrap().revision;
    let flags = ["--bump-revision=1000", "--mark-compacted"];
    let restored = Etcd::restore("TEST_ETCD", &taken.path, &flags).await;
    let mut r = restored.client().await;
    let kvs = proxy.client().await.range(everything(taken.status.revision)).await.unwrap().kvs;
    assert_holds(&mut r, revision + 1000, &kvs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_without_keys() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, PREFIX).await;
    for writes in 0..2 {
        let taken = save(&proxy).await.unwrap();
        assert_eq!((taken.status.total_key, taken.status.revision), (0, 1 + writes));
        let restored = Etcd::restore("TEST_ETCD", &taken.path, &[]).await;
        assert_holds(&mut restored.client().await, 1 + writes, &[]).await;
        etcd.client().await.put("/the-neighbour/k", "v").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_small_keys_and_some_large_ones() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, PREFIX).await;
    let mut a = proxy.client().await;
    for batch in 0..1000 {
        let keys: Vec<String> = (0..100).map(|key| format!("registry/pods/{key:03}/{batch:04}")).collect();
        a.kv.txn(puts(keys.iter().map(|key| (key.as_str(), Bytes::from(format!("value of {key}")))))).await.unwrap();
    }
    for large in 0..20u8 {
        a.put(format!("large/{large}"), vec![large; 1 << 20]).await;
    }
    let taken = save(&proxy).await.unwrap();
    assert_eq!(taken.status.total_key, 100_020);
    let kvs = a.range(everything(taken.status.revision)).await.unwrap().kvs;
    let restored = Etcd::restore("TEST_ETCD", &taken.path, &[]).await;
    assert_holds(&mut restored.client().await, taken.status.revision, &kvs).await;
}

/// Every snapshot is the state of one revision, whatever is written and compacted meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn while_writing_and_compacting() {
    let etcd = Etcd::start().await;
    let (proxy, other) = (Proxy::start(&etcd, PREFIX).await, Proxy::start(&etcd, NEIGHBOUR).await);
    let mut a = proxy.client().await;
    let mut large: Vec<Write> = Vec::new();
    for number in 0..12u8 {
        let (key, value) = (Bytes::from(format!("large/{number:02}")), Bytes::from(vec![number; 1 << 20]));
        large.push((a.put(key.clone(), value.clone()).await, key, Some(value)));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for (number, mut client) in [(0, proxy.client().await), (1, proxy.client().await), (2, other.client().await)] {
        let stop = stop.clone();
        writers.push(tokio::spawn(async move {
            let (mut turn, mut log) = (0u32, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                turn += 1;
                let (key, pair) = (format!("k{number}/{}", turn % 50), format!("pair{number}/{}", turn % 7));
                let value = Bytes::from(format!("value {turn}"));
                let txn = puts([(key.as_str(), value.clone()), (pair.as_str(), value.clone())]);
                let revision = client.kv.txn(txn).await.unwrap().into_inner().header.unwrap().revision;
                log.extend([&key, &pair].map(|key| (revision, Bytes::from(key.clone()), Some(value.clone()))));
                if turn.is_multiple_of(5) {
                    let key = Bytes::from(key);
                    let delete = DeleteRangeRequest { key: key.clone(), ..Default::default() };
                    let deleted = client.kv.delete_range(delete).await.unwrap().into_inner();
                    log.push((deleted.header.unwrap().revision, key, None));
                }
            }
            log
        }));
    }
    // At first so often that a snapshot has hardly a chance to be read before its revision goes, and then less often.
    let pause = Arc::new(AtomicU64::new(10));
    let (stopped, pausing, mut direct) = (stop.clone(), pause.clone(), etcd.client().await);
    let compacting = tokio::spawn(async move {
        while !stopped.load(Ordering::Relaxed) {
            let revision = direct.put("/elsewhere", "").await;
            direct.compact(revision).await.unwrap();
            tokio::time::sleep(Duration::from_millis(pausing.load(Ordering::Relaxed))).await;
        }
    });
    let mut snapshots = Vec::new();
    for _ in 0..4 {
        let taken = loop {
            match save(&proxy).await {
                Ok(taken) => break taken,
                Err(text) => assert!(text.contains("compacted the revision away"), "{text}"),
            }
            pause.fetch_add(pause.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        snapshots.push(taken);
    }
    stop.store(true, Ordering::Relaxed);
    compacting.await.unwrap();
    let mut log: Vec<Write> = Vec::new();
    for writer in writers.drain(..2) {
        log.extend(writer.await.unwrap());
    }
    log.sort_by_key(|(revision, ..)| *revision);
    assert!(!writers.remove(0).await.unwrap().is_empty());
    for taken in &snapshots {
        let restored = Etcd::restore("TEST_ETCD", &taken.path, &[]).await;
        let revision = taken.status.revision;
        let file = std::fs::read(&taken.path).unwrap();
        assert_lacks(&file, &[b"the-tenant", b"the-neighbour", b"elsewhere", b"k2/"]);
        let expected = state_at(revision, large.iter().chain(&log));
        assert_holds(&mut restored.client().await, revision, &expected).await;
    }
}

/// A put, or a deletion: its revision, key and value.
type Write = (i64, Bytes, Option<Bytes>);

/// What there is at `revision` after these writes, which are in the order of their revisions.
fn state_at<'a>(revision: i64, writes: impl Iterator<Item = &'a Write>) -> Vec<KeyValue> {
    let mut state: BTreeMap<Bytes, KeyValue> = BTreeMap::new();
    for (mod_revision, key, value) in writes.take_while(|(written, ..)| *written <= revision) {
        let Some(value) = value else {
            state.remove(key);
            continue;
        };
        let kv = state.entry(key.clone()).or_insert_with(|| KeyValue {
            key: key.clone(),
            create_revision: *mod_revision,
            ..Default::default()
        });
        (kv.value, kv.mod_revision, kv.version) = (value.clone(), *mod_revision, kv.version + 1);
    }
    state.into_values().collect()
}

/// Of a lease that is over by the time it is asked for nobody can say how long it lived: its keys go soon after a restore.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_meanwhile_ends_in_the_restored_etcd() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, PREFIX).await;
    let mut a = proxy.client().await;
    a.grant(4711, 600).await.unwrap();
    a.grant(5, 300).await.unwrap();
    a.put_with_lease("k", 4711).await.unwrap();
    let then = snapshot::moment(&proxy.tenant).await.unwrap();
    a.lease.lease_revoke(LeaseRevokeRequest { id: 4711 }).await.unwrap();
    a.grant(6, 300).await.unwrap();
    let leases = snapshot::leases(&proxy.tenant, then.revision, BTreeSet::from([4711])).await.unwrap();
    let [lives, over] = leases.try_into().unwrap();
    assert_eq!((lives.id, lives.ttl), (5, 300));
    assert_eq!(over, TenantLease { id: 4711, ttl: 1, remaining: 1 });
}

/// etcd's own messages: pieces of 32 KiB, what remains, and the checksum.
#[tokio::test(flavor = "multi_thread")]
async fn messages_are_like_etcds() {
    let etcd = Etcd::start().await;
    let (proxy, _other) = busy(&etcd).await;
    let version = storage_version(&mut etcd.client().await).await;
    for (mut client, own) in [(etcd.client().await, false), (proxy.client().await, true)] {
        let mut messages = client.maintenance.snapshot(SnapshotRequest {}).await.unwrap().into_inner();
        let (mut pieces, mut remaining) = (Vec::new(), Vec::new());
        while let Some(message) = messages.message().await.unwrap() {
            assert_eq!((message.version.as_str(), message.header), (version.as_str(), None));
            pieces.push(message.blob);
            remaining.push(message.remaining_bytes);
        }
        let checksum = pieces.pop().unwrap();
        assert_eq!((checksum.len(), remaining.pop()), (32, Some(0)), "own: {own}");
        let total: usize = pieces.iter().map(Bytes::len).sum();
        let mut sent = 0;
        for (piece, remaining) in pieces.iter().zip(remaining) {
            sent += piece.len();
            assert_eq!(remaining, (total - sent) as u64);
            assert!(piece.len() == 32 * 1024 || remaining == 0, "own: {own}");
        }
    }
}

/// Who does not read on holds one of few places, and its client's deadline frees it.
#[tokio::test(flavor = "multi_thread")]
async fn places_are_few_and_come_back() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, PREFIX).await;
    let mut a = proxy.client().await;
    for large in 0..40u8 {
        a.put(format!("large/{large}"), vec![large; 1 << 20]).await;
    }
    let open = async |timeout| {
        let mut request = tonic::Request::new(SnapshotRequest {});
        request.set_timeout(timeout);
        proxy.client().await.maintenance.snapshot(request).await.map(tonic::Response::into_inner)
    };
    let (mut first, mut second) = (open(PATIENCE * 10).await.unwrap(), open(PATIENCE * 10).await.unwrap());
    assert!(first.message().await.unwrap().is_some() && second.message().await.unwrap().is_some());
    let refused = (Code::ResourceExhausted, "etcdserver: too many requests".to_owned());
    assert_eq!(refusal(open(PATIENCE * 10).await), refused);
    drop(first);
    assert!(open(PATIENCE * 10).await.unwrap().message().await.unwrap().is_some());
    let late = open(Duration::from_millis(1)).await;
    // The second is what the client says if its own clock is first.
    assert!(matches!(refusal(late).0, Code::DeadlineExceeded | Code::Cancelled));
}

/// The writer of files against bbolt itself: etcdutl runs its check and hashes every entry.
#[test]
fn bbolt_reads_what_is_written() {
    type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;
    let value = prop_oneof![
        60 => proptest::collection::vec(any::<u8>(), 0..300),
        1 => (0usize..2_000_000).prop_map(|length| vec![b'v'; length]),
    ];
    let pairs = proptest::collection::btree_map(proptest::collection::vec(any::<u8>(), 1..60), value, 0..300);
    let mut runner = TestRunner::default();
    let dir = tempfile::tempdir().unwrap();
    for case in 0..12 {
        let contents: Vec<Pairs> = (0..2).map(|_| pairs.new_tree(&mut runner).unwrap().current()).collect();
        let revisions: Pairs = (0..case * case * 100u64)
            .map(|main| {
                let key = [main.to_be_bytes().as_slice(), b"_", &0u64.to_be_bytes()].concat();
                (key, vec![])
            })
            .collect();
        let meta = Pairs::from([(b"storageVersion".to_vec(), b"3.7.0".to_vec())]);
        let [first, second] = contents.try_into().unwrap();
        let buckets = BTreeMap::from([("alarm", first), ("key", revisions), ("lease", second), ("meta", meta)]);
        let mut file = bbolt::File::plan(
            buckets
                .iter()
                .map(|(name, pairs)| {
                    let entries: Vec<(Bytes, Bytes)> =
                        pairs.iter().map(|(key, value)| (key.clone().into(), value.clone().into())).collect();
                    bbolt::Bucket::new(name, entries)
                })
                .collect(),
        )
        .unwrap();
        let mut bytes = Vec::new();
        while let Some(pages) = file.next_pages().unwrap() {
            bytes.extend_from_slice(&pages);
        }
        let path = dir.path().join(case.to_string());
        std::fs::write(&path, &bytes).unwrap();
        let mut hash = !0;
        for (name, pairs) in &buckets {
            crc32c(&mut hash, name.as_bytes());
            for (key, value) in pairs {
                crc32c(&mut hash, key);
                crc32c(&mut hash, value);
            }
        }
        let status = status(&path);
        assert_eq!((status.hash, status.version.as_str()), (!hash, "3.7.0"), "case {case}");
    }
}

fn crc32c(state: &mut u32, bytes: &[u8]) {
    for byte in bytes {
        *state ^= u32::from(*byte);
        for _ in 0..8 {
            *state = (*state >> 1) ^ (0x82f6_3b78 & (*state & 1).wrapping_neg());
        }
    }
}
