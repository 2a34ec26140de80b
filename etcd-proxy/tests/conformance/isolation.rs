//! Two tenants and the bare upstream: nobody sees or changes anything of anybody else.

use proto::etcdserverpb::{Compare, DeleteRangeRequest, RangeRequest, TxnRequest, response_op::Response};

use crate::support::{Client, Etcd, Proxy, delete_op, put_op, range_op, txn_op, watch_all};

/// Upstream keys next to tenant `/a/` in every way: before, after, its bare prefix, its successor, other tenants' and
/// Kubernetes' keys.
const NEIGHBOURS: [&str; 9] = ["", "/", "/a", "/a/", "/a.", "/a0", "/ab/k", "/b/k", "/registry/pods/p"];

struct Field {
    etcd: Etcd,
    a: Proxy,
    _b: Proxy,
}

impl Field {
    /// Tenant `a` with keys, and neighbours.
    async fn new() -> (Self, Client, Client, Vec<(bytes::Bytes, i64)>) {
        let etcd = Etcd::start().await;
        let a = Proxy::start(&etcd, "/a/").await;
        let b = Proxy::start(&etcd, "/b/").await;
        let mut direct = etcd.client().await;
        for key in NEIGHBOURS.into_iter().filter(|key| !key.is_empty()) {
            direct.put(key, "neighbour").await;
        }
        let mut tenant = a.client().await;
        for key in ["\0", "k1", "k2", "\u{7f}"] {
            tenant.put(key, "mine").await;
        }
        let before = Self::outside(&mut direct).await;
        (Self { etcd, a, _b: b }, tenant, direct, before)
    }

    /// Everything on the upstream that is not tenant `a`'s, with the revisions of its last change.
    async fn outside(direct: &mut Client) -> Vec<(bytes::Bytes, i64)> {
        let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
        let kvs = direct.range(all).await.unwrap().kvs;
        let own = |key: &[u8]| key.len() > 3 && key.starts_with(b"/a/");
        kvs.into_iter().filter(|kv| !own(&kv.key)).map(|kv| (kv.key, kv.mod_revision)).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_see_the_tenants_keys_alone() {
    let (field, mut tenant, _, _) = Field::new().await;
    assert_eq!(tenant.keys().await, ["\0", "k1", "k2", "\u{7f}"]);
    let count = RangeRequest { key: "\0".into(), range_end: "\0".into(), count_only: true, ..Default::default() };
    assert_eq!(tenant.range(count).await.unwrap().count, 4);
    for (key, end, expected) in [
        ("k1", "\0", vec!["k1", "k2", "\u{7f}"]),
        ("\0", "k2", vec!["\0", "k1"]),
        ("k1", "\u{10ffff}", vec!["k1", "k2", "\u{7f}"]),
        ("z", "a", vec![]),
        ("/b/k", "", vec![]),
        ("../b/k", "", vec![]),
    ] {
        for serializable in [false, true] {
            let request = RangeRequest { key: key.into(), range_end: end.into(), serializable, ..Default::default() };
            let keys: Vec<_> = tenant.range(request).await.unwrap().kvs.into_iter().map(|kv| kv.key).collect();
            assert_eq!(keys, expected, "[{key:?}, {end:?})");
        }
    }
    assert!(!field.a.saw_foreign_keys());
}

/// A serializable read from a key on sees what was written after the first such read (no cache stands between).
#[tokio::test(flavor = "multi_thread")]
async fn serializable_reads_are_not_stale() {
    let (_field, mut tenant, _, _) = Field::new().await;
    let from = RangeRequest { key: "k".into(), range_end: "\0".into(), serializable: true, ..Default::default() };
    let before = tenant.range(from.clone()).await.unwrap().count;
    tenant.put("l", "new").await;
    assert_eq!(tenant.range(from).await.unwrap().count, before + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_everything_deletes_the_tenants_keys_alone() {
    let (_field, mut tenant, mut direct, before) = Field::new().await;
    assert_eq!(tenant.delete_all().await, 4);
    assert_eq!(tenant.keys().await, Vec::<bytes::Bytes>::new());
    assert_eq!(Field::outside(&mut direct).await, before);
    // From key on, and a range that ends beyond the prefix's.
    for end in ["\0", "\u{10ffff}"] {
        tenant.put("x", "v").await;
        let request = DeleteRangeRequest { key: "a".into(), range_end: end.into(), prev_kv: true };
        assert_eq!(tenant.kv.delete_range(request).await.unwrap().into_inner().prev_kvs[0].key, "x");
        assert_eq!(Field::outside(&mut direct).await, before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_txns_read_and_change_the_tenants_keys_alone() {
    let (field, mut tenant, mut direct, before) = Field::new().await;
    let everything = || range_op(RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() });
    // No key of anybody else takes part in the comparison: all of the tenant's have version 1.
    let all_new = Compare {
        key: "\0".into(),
        range_end: "\0".into(),
        target_union: Some(proto::etcdserverpb::compare::TargetUnion::Version(1)),
        ..Default::default()
    };
    direct.put("/b/k", "second version").await;
    let before = {
        let changed = Field::outside(&mut direct).await;
        assert_eq!(changed.len(), before.len());
        changed
    };
    let inner = TxnRequest {
        compare: vec![all_new.clone()],
        success: vec![everything(), delete_op("k2", "\0")],
        failure: vec![put_op("wrong", "")],
    };
    let outer = TxnRequest {
        compare: vec![all_new],
        success: vec![everything(), txn_op(inner), put_op("k1", "txn")],
        failure: vec![put_op("wrong", "")],
    };
    let answer = tenant.kv.txn(outer).await.unwrap().into_inner();
    assert!(answer.succeeded);
    let Some(Response::ResponseRange(range)) = &answer.responses[0].response else { panic!("{answer:?}") };
    assert_eq!(range.kvs.iter().map(|kv| &kv.key[..]).collect::<Vec<_>>(), [b"\0".as_slice(), b"k1", b"k2", b"\x7f"]);
    let Some(Response::ResponseTxn(inner)) = &answer.responses[1].response else { panic!("{answer:?}") };
    let Some(Response::ResponseDeleteRange(deleted)) = &inner.responses[1].response else { panic!("{inner:?}") };
    assert_eq!(deleted.prev_kvs.iter().map(|kv| &kv.key[..]).collect::<Vec<_>>(), [b"k2".as_slice(), b"\x7f"]);
    assert_eq!(tenant.keys().await, ["\0", "k1"]);
    assert_eq!(Field::outside(&mut direct).await, before);
    assert!(!field.a.saw_foreign_keys());
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_see_the_tenants_events_alone() {
    let (field, mut tenant, mut direct, _) = Field::new().await;
    let mut watching = tenant
        .watch([watch_all(1), proto::etcdserverpb::WatchCreateRequest { start_revision: 1, ..Default::default() }])
        .await;
    for key in NEIGHBOURS.into_iter().filter(|key| !key.is_empty()) {
        direct.put(key, "again").await;
    }
    let request = DeleteRangeRequest { key: "/".into(), range_end: "/a/".into(), prev_kv: true };
    direct.kv.delete_range(request).await.unwrap();
    tenant.put("last", "v").await;
    let mut seen = Vec::new();
    while !seen.iter().any(|(id, key)| *id == 0 && key == "last") || !seen.iter().any(|(id, _)| *id == 1) {
        let response = watching.next().await.unwrap();
        seen.extend(response.events.into_iter().map(|event| (response.watch_id, event.kv.unwrap().key)));
    }
    let of = |id| seen.iter().filter(|(of, _)| *of == id).map(|(_, key)| &key[..]).collect::<Vec<_>>();
    assert_eq!(of(0), [b"\0".as_slice(), b"k1", b"k2", b"\x7f", b"last"]);
    // A watch without key and end is one of the key \0.
    assert_eq!(of(1), [b"\0"]);
    assert!(!field.a.saw_foreign_keys());
}

/// The prefix never shows, not even where somebody wrote the bare prefix key (as etcd's grpc-proxy does for an empty key
/// in a Txn).
#[tokio::test(flavor = "multi_thread")]
async fn data_lies_at_prefix_and_key() {
    let (field, mut tenant, mut direct, _) = Field::new().await;
    tenant.put("dir/k", "v").await;
    assert_eq!(direct.get("/a/dir/k").await.unwrap().value, "v");
    direct.put("/a/from-outside", "v").await;
    assert_eq!(tenant.get("from-outside").await.unwrap().value, "v");
    drop(field.etcd);
}
