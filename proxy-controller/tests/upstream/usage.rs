//! Counting what a tenant stores.

use proto::etcdserverpb::DeleteRangeRequest;
use proxy_controller::upstream::UsageTracker;

use crate::etcd::{Etcd, eventually, prefix};

#[tokio::test(flavor = "multi_thread")]
async fn many_keys_are_counted_as_the_tenant_sees_them() {
    let etcd = Etcd::start().await;
    let (shared, own) = (etcd.shared(), prefix("/a/"));
    let mut direct = etcd.direct().await;
    let empty = shared.usage(&own).await.unwrap();
    assert_eq!((empty.keys, empty.bytes), (0, 0));
    for neighbour in ["/a", "/a0", "/ab/k"] {
        direct.put(neighbour, "theirs", 0).await;
    }
    direct.fill((0..50_000).map(|number| own.key(format!("{number:06}").as_bytes())), "value").await;
    // What history holds does not count.
    let last = direct.put("/a/000000", "longer", 0).await;
    let usage = shared.usage(&own).await.unwrap();
    assert_eq!((usage.keys, usage.bytes, usage.revision), (50_000, 50_000 * 11 + 1, last));
}

/// All of it is counted at one revision, though others write and compact meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_count_is_of_one_moment() {
    let etcd = Etcd::start().await;
    let (shared, own) = (etcd.shared(), prefix("/a/"));
    let mut direct = etcd.direct().await;
    direct.fill((0..20_000).map(|number| own.key(format!("{number:06}").as_bytes())), "v").await;
    let mut writer = direct.clone();
    // The number of keys stays: one goes at the end for each that comes at the beginning.
    let writing = tokio::spawn(async move {
        use proto::etcdserverpb::{PutRequest, RequestOp, TxnRequest, request_op::Request};
        for number in 0.. {
            let put = PutRequest { key: format!("/a/+{number:06}").into(), value: "v".into(), ..Default::default() };
            let delete = DeleteRangeRequest { key: format!("/a/{:06}", 19_999 - number).into(), ..Default::default() };
            let success = [Request::RequestPut(put), Request::RequestDeleteRange(delete)];
            let success = success.map(|request| RequestOp { request: Some(request) }).into();
            writer.kv.txn(TxnRequest { success, ..Default::default() }).await.unwrap();
        }
    });
    for _ in 0..5 {
        assert_eq!(shared.usage(&own).await.unwrap().keys, 20_000);
    }
    assert!(!writing.is_finished());
    writing.abort();
}

/// An idle tenant costs nothing, whatever the others do.
#[tokio::test(flavor = "multi_thread")]
async fn who_changes_nothing_is_not_counted_again() {
    let mut etcd = Etcd::start().await;
    let (shared, own) = (etcd.shared(), prefix("/a/"));
    let mut direct = etcd.direct().await;
    direct.put("/a/k", "v", 0).await;
    let mut tracker = UsageTracker::new(own.clone());
    let first = tracker.usage(&shared).await.unwrap();
    assert_eq!((first.keys, first.bytes), (1, 2));
    let ranges = etcd.answered("Range").await;
    for _ in 0..20 {
        direct.put("/a0", "theirs", 0).await;
        assert_eq!(tracker.usage(&shared).await.unwrap(), first);
    }
    assert_eq!(etcd.answered("Range").await, ranges);
    // Each kind of change is noticed, one by one.
    direct.put("/a/k", "longer", 0).await;
    let mut counted = async |expected: (i64, i64)| {
        eventually("the change is counted", async || {
            let usage = tracker.usage(&shared).await.unwrap();
            ((usage.keys, usage.bytes) == expected).then_some(())
        })
        .await;
    };
    counted((1, 7)).await;
    direct.put("/a/l", "", 0).await;
    counted((2, 8)).await;
    direct.kv.delete_range(DeleteRangeRequest { key: "/a/k".into(), ..Default::default() }).await.unwrap();
    counted((1, 1)).await;
    assert!(etcd.answered("Range").await >= ranges + 3);
    // What happened while etcd was away is noticed as well.
    etcd.kill();
    etcd.run();
    etcd.ready().await;
    etcd.direct().await.put("/a/m", "", 0).await;
    eventually("the change is counted", async || {
        // The connection may be found dead only by this.
        let usage = tracker.usage(&shared).await.ok()?;
        ((usage.keys, usage.bytes) == (2, 2)).then_some(())
    })
    .await;
}
