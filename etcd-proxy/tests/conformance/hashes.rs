//! HashKV: the tenant's keys as an etcd hashes them whose history is compacted.

use std::{path::Path, process::Command, time::Duration};

use proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, HashKvRequest, HashKvResponse, RangeRequest, TxnRequest,
};
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::{
    etcdctl::etcdctl,
    relay::Relay,
    support::{Client, Etcd, Proxy, at_least, binary, eventually, put_op, refusal},
};

async fn hash(client: &Client, revision: i64) -> Result<HashKvResponse, Status> {
    client.clone().maintenance.hash_kv(HashKvRequest { revision }).await.map(tonic::Response::into_inner)
}

/// Keys that were changed, deleted, made again, and put together. Returns the last revision.
async fn write(client: &mut Client) -> i64 {
    for value in ["1", "2", "3"] {
        client.put("changed", value).await;
    }
    client.put("deleted", "x").await;
    client.put(b"\0\xff\x80/".as_slice(), b"\0binary\xff".as_slice()).await;
    client.kv.delete_range(DeleteRangeRequest { key: "deleted".into(), ..Default::default() }).await.unwrap();
    client.put("deleted", "").await;
    client.put("gone", "x").await;
    let together =
        TxnRequest { success: vec![put_op("x", "1"), put_op("y", "2"), put_op("z", "3")], ..Default::default() };
    client.kv.txn(together).await.unwrap();
    client.put("large", vec![b'l'; 1_000_000]).await;
    let gone = DeleteRangeRequest { key: "gone".into(), ..Default::default() };
    client.kv.delete_range(gone).await.unwrap().into_inner().header.unwrap().revision
}

/// The same keys at the same revisions, in an etcd that has compacted what was before: etcd's own hash of them.
#[tokio::test(flavor = "multi_thread")]
async fn it_is_the_hash_of_an_etcd() {
    let (mut etcd, shared) = (Etcd::start().await, Etcd::start().await);
    let proxy = Proxy::start(&shared, "/a/").await;
    let (mut direct, mut a) = (etcd.client().await, proxy.client().await);
    let revision = write(&mut a).await;
    assert_eq!(write(&mut direct).await, revision, "the same history");
    for compacted in [revision - 1, revision] {
        direct.kv.compact(CompactionRequest { revision: compacted, physical: true }).await.unwrap();
        // An etcd keeps for a while what the hash at this revision was before it compacted.
        etcd.kill();
        etcd.restart().await;
        direct = etcd.client().await;
        let (expected, hashed) = (hash(&direct, compacted).await.unwrap(), hash(&a, compacted).await.unwrap());
        assert_eq!(
            (hashed.hash, hashed.hash_revision, hashed.compact_revision),
            (expected.hash, compacted, expected.compact_revision)
        );
        assert_eq!(hashed.header.unwrap().revision, revision);
    }
    let (past, now) = (hash(&a, 4).await.unwrap(), hash(&a, 0).await.unwrap());
    assert_eq!(now, hash(&a, revision).await.unwrap());
    assert_ne!(past.hash, now.hash);

    // A neighbour changes nothing of it, another proxy of the same tenant says the same, and a change is one.
    let (replica, neighbour) = (Proxy::start(&shared, "/a/").await, Proxy::start(&shared, "/b/").await);
    neighbour.client().await.put("k", "v").await;
    for client in [&a, &replica.client().await] {
        assert_eq!(hash(client, revision).await.unwrap().hash, now.hash);
        assert_eq!(hash(client, 0).await.unwrap().hash, now.hash);
    }
    assert_ne!(hash(&neighbour.client().await, 0).await.unwrap().hash, now.hash);
    a.put("changed", "3").await;
    assert_ne!(hash(&a, 0).await.unwrap().hash, now.hash);
    assert_eq!(hash(&a, revision).await.unwrap().hash, now.hash);
    // What it has not is nothing.
    let nothing = hash(&neighbour.client().await, revision).await.unwrap();
    assert_eq!(nothing.hash, hash(&a, -5).await.unwrap().hash);
    assert_eq!(hash(&direct, -5).await.unwrap().hash, nothing.hash);
}

/// What an operator compares after a restore: the tenant, the file, and the etcd that was made of it.
#[tokio::test(flavor = "multi_thread")]
async fn tenant_snapshot_and_restored_etcd_have_one_hash() {
    let shared = Etcd::start().await;
    let (proxy, neighbour) = (Proxy::start(&shared, "/a/").await, Proxy::start(&shared, "/b/").await);
    let mut a = proxy.client().await;
    write(&mut a).await;
    a.grant(-7, 600).await.unwrap();
    a.put_with_lease("leased", -7).await.unwrap();
    neighbour.client().await.put("k", "the last word").await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("snapshot.db");
    let endpoint = format!("http://{}", proxy.address);
    etcdctl(&endpoint, &["snapshot", "save", file.to_str().unwrap()], "").await.unwrap();
    a.put("later", "v").await;
    // It writes to the file.
    let copy = dir.path().join("copy.db");
    std::fs::copy(&file, &copy).unwrap();
    let (of_file, revision) = hash_of_file(&copy);
    let printed = etcdctl(&endpoint, &["endpoint", "hashkv", &format!("--rev={revision}")], "").await.unwrap();
    assert!(printed.contains(&format!("{of_file}")), "{printed}");
    assert_eq!(hash(&a, revision).await.unwrap().hash, of_file);
    let restored = Etcd::restore("TEST_ETCD", &file, &[]).await;
    let hashed = hash(&restored.client().await, 0).await.unwrap();
    assert_eq!((hashed.hash, hashed.compact_revision), (of_file, revision));
    // etcd 3.5 does not say which revision that was.
    assert_eq!(hashed.hash_revision, if at_least(6) { revision } else { 0 });
}

fn hash_of_file(file: &Path) -> (u32, i64) {
    let output = Command::new(binary("TEST_ETCDUTL")).args(["hashkv", "--write-out=json"]).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    (printed["hash"].as_u64().unwrap().try_into().unwrap(), printed["hashRevision"].as_i64().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn revisions_that_are_not_there_are_refused_alike() {
    let (etcd, shared) = (Etcd::start().await, Etcd::start().await);
    let proxy = Proxy::start(&shared, "/a/").await;
    let compacted = (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted".to_owned());
    for mut client in [etcd.client().await, proxy.client().await] {
        let revision = write(&mut client).await;
        let future = (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision".to_owned());
        assert_eq!(refusal(hash(&client, revision + 100).await), future);
        client.compact(revision - 2).await.unwrap();
        assert_eq!(refusal(hash(&client, revision - 3).await), compacted);
        hash(&client, revision - 2).await.unwrap();
    }
    // What the upstream has compacted is gone, too.
    let mut direct = shared.client().await;
    let now =
        direct.range(RangeRequest { key: "k".into(), ..Default::default() }).await.unwrap().header.unwrap().revision;
    direct.kv.compact(CompactionRequest { revision: now, physical: true }).await.unwrap();
    assert_eq!(refusal(hash(&proxy.client().await, now - 1).await), compacted);
    hash(&proxy.client().await, 0).await.unwrap();
}

/// A call holds one of two places, so nothing in it waits for ever: neither the look at what there is to read, nor that at the
/// secret of the lease ids. The clock is paused while nothing else happens.
#[tokio::test]
async fn an_upstream_that_gives_no_answer_is_not_waited_for() {
    let etcd = Etcd::start().await;
    let mut before = Proxy::start(&etcd, "/a/").await.client().await;
    let lease = before.grant(0, 600).await.unwrap();
    before.put_with_lease("k", lease).await.unwrap();
    for (marker, patience) in [("/a0", "30s"), ("/secret", "8s")] {
        let relay = Relay::before(&etcd, "/etcdserverpb.KV/Range", marker).await;
        let proxy = Proxy::start_at(&relay.url, "/a/", |_| {}).await;
        let client = proxy.client().await;
        relay.hold();
        // Together they would have all places.
        for nth in 1..=2 {
            let hashing = tokio::spawn({
                let client = client.clone();
                async move { hash(&client, 0).await }
            });
            eventually("it waits", || async { relay.seen() == nth }).await;
            tokio::time::pause();
            let hashed = timeout(Duration::from_secs(120), hashing).await.expect("an answer in time").unwrap();
            tokio::time::resume();
            let (code, text) = refusal(hashed);
            let expected = format!("no answer within {patience}");
            assert!(code == Code::Unavailable && text.contains(&expected), "{marker}: {code:?}, {text}");
        }
        relay.forsake();
        hash(&client, 0).await.unwrap();
    }
}
