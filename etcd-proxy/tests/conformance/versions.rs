//! The older etcds that an upstream may be: what works on all of them, and what an older one lacks.

use proto::etcdserverpb::{
    Compare, LeaseRevokeRequest, RangeRequest, StatusRequest, TxnRequest, WatchCreateRequest, compare::TargetUnion,
};
use tonic::Code;

use crate::support::{Etcd, Proxy, put_op, refusal};

async fn works_on(variable: &'static str, version: &str) {
    let etcd = Etcd::start_binary(variable, &[]).await;
    let (first, second) = (Proxy::start(&etcd, "/a/").await, Proxy::start(&etcd, "/b/").await);
    let (mut a, mut b, mut direct) = (first.client().await, second.client().await, etcd.client().await);
    let status = a.maintenance.status(StatusRequest {}).await.unwrap().into_inner();
    assert!(status.version.starts_with(version), "{}", status.version);

    let mut watching = a.watch([WatchCreateRequest { key: "k".into(), prev_kv: true, ..Default::default() }]).await;
    assert!(watching.next().await.unwrap().created);
    let first_revision = a.put("k", "1").await;
    assert_eq!(a.get("k").await.unwrap().value, "1");
    let unchanged =
        Compare { key: "k".into(), target_union: Some(TargetUnion::Version(1)), target: 0, ..Default::default() };
    let txn = TxnRequest { compare: vec![unchanged], success: vec![put_op("k", "2")], ..Default::default() };
    assert!(a.kv.txn(txn).await.unwrap().into_inner().succeeded);
    let events = watching.events(2).await;
    assert_eq!(events[1].kv.as_ref().unwrap().value, "2");
    assert_eq!(events[1].prev_kv.as_ref().unwrap().value, "1");

    let lease = a.grant(0, 600).await.unwrap();
    a.put_with_lease("leased", lease).await.unwrap();
    assert_eq!((a.leases().await, b.leases().await), (vec![lease], vec![]));
    assert_eq!(a.keep_alive(lease).await.unwrap().ttl, 600);
    a.lease.lease_revoke(LeaseRevokeRequest { id: lease }).await.unwrap();
    assert_eq!(a.get("leased").await, None);

    a.compact(first_revision + 1).await.unwrap();
    let old = |key: &'static str| RangeRequest { key: key.into(), revision: first_revision, ..Default::default() };
    let compacted = (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted".to_owned());
    assert_eq!(refusal(a.range(old("k")).await), compacted);
    assert_eq!(refusal(a.compact(first_revision).await), compacted);
    assert_eq!(direct.range(old("/a/k")).await.unwrap().kvs[0].value, "1");

    // On which clients fall back to Range, and on nothing else.
    let stream = a.kv.range_stream(RangeRequest { key: "k".into(), ..Default::default() }).await;
    let refused = match stream {
        Ok(answer) => refusal(answer.into_inner().message().await),
        Err(status) => (status.code(), status.message().to_owned()),
    };
    assert_eq!(refused.0, Code::Unimplemented, "{refused:?}");

    b.put("k", "of b").await;
    assert_eq!(a.keys().await, ["k"]);
    assert_eq!((a.delete_all().await, b.keys().await), (1, vec!["k".into()]));
    assert!(!first.saw_foreign_keys() && !second.saw_foreign_keys());
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_3_5_serves_as_upstream() {
    works_on("TEST_ETCD_3_5", "3.5.").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_3_6_serves_as_upstream() {
    works_on("TEST_ETCD_3_6", "3.6.").await;
}
