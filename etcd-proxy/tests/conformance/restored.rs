//! An upstream that is restored to an earlier state under running proxies.

use std::num::NonZeroUsize;

use etcd_proxy::limits::LimitSettings;
use proto::etcdserverpb::{PutRequest, RangeRequest};
use tonic::Code;

use crate::{
    etcdctl::etcdctl,
    support::{Client, Etcd, Proxy, eventually, refusal, watch_all},
};

/// Room for the first value and two more.
const QUOTA: usize = 3500;

async fn put(client: &Client, key: &'static str) -> (Code, String) {
    let request = PutRequest { key: key.into(), value: vec![b'v'; 1000].into(), ..Default::default() };
    refusal(client.clone().kv.put(request).await)
}

async fn used(proxy: &Proxy) -> Option<i64> {
    proxy.tenant.usage().await.bytes
}

/// Restores what `etcd` held when `snapshot` was taken. Returns once the proxy reaches it again.
async fn go_back(etcd: &mut Etcd, snapshot: &std::path::Path, flags: &[&str], client: &Client) {
    etcd.go_back(snapshot, flags).await;
    eventually("the proxy reaches what was restored", || {
        let mut client = client.clone();
        async move { client.range(RangeRequest { key: "base".into(), ..Default::default() }).await.is_ok() }
    })
    .await;
}

/// Another replica, which knows nothing of before, sees the ids of leases that `client` is granted.
async fn forgotten_secret(etcd: &Etcd, client: &Client) -> (Proxy, Client) {
    let proxy = Proxy::start(etcd, "/a/").await;
    let other = proxy.client().await;
    eventually("the secret of before is forgotten", || {
        let (mut client, mut other) = (client.clone(), other.clone());
        async move {
            let granted = client.grant(0, 1000).await.unwrap();
            other.leases().await.contains(&granted)
        }
    })
    .await;
    (proxy, other)
}

/// Whatever a proxy holds of the later state goes: watermark, count, secret of the leases; and it says so.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_held_of_a_state_that_was_undone() {
    let mut etcd = Etcd::start().await;
    let limits = LimitSettings { quota_bytes: NonZeroUsize::new(QUOTA), ..Default::default() };
    let proxy = Proxy::start_with(&etcd, "/a/", |config| config.limits = limits).await;
    let mut client = proxy.client().await;
    let base = client.put("base", vec![b'v'; 1000]).await;
    let dir = tempfile::tempdir().unwrap();
    let snapshot = dir.path().join("before.db");
    etcdctl(&etcd.url(), &["snapshot", "save", snapshot.to_str().unwrap()], "").await.unwrap();

    // Up to the quota, compacted, and with the tenant's first lease.
    assert_eq!(put(&client, "late-1").await.0, Code::Ok);
    assert_eq!(put(&client, "late-2").await.0, Code::Ok);
    assert_eq!(put(&client, "late-3").await.0, Code::ResourceExhausted);
    let lease = client.grant(0, 1000).await.unwrap();
    assert_eq!(client.leases().await, [lease]);
    let mut watching = client.watch([watch_all(0)]).await;
    assert!(watching.next().await.unwrap().created);
    let last = client.put("base", vec![b'w'; 1000]).await;
    assert_eq!(watching.events(1).await[0].kv.as_ref().unwrap().mod_revision, last);
    client.compact(last).await.unwrap();
    let below = RangeRequest { key: "base".into(), revision: base, ..Default::default() };
    assert_eq!(refusal(client.range(below.clone()).await).0, Code::OutOfRange);
    eventually("all is counted", || async { used(&proxy).await == Some(3016) }).await;

    go_back(&mut etcd, &snapshot, &[], &client).await;

    // The stream does not outlive the store it was of.
    assert_eq!(refusal(watching.next().await).0, Code::Unavailable);
    eventually("the watermark of before is forgotten", || async {
        client.clone().range(below.clone()).await.is_ok_and(|answer| answer.kvs[0].mod_revision == base)
    })
    .await;
    eventually("what is stored is counted anew", || async { used(&proxy).await == Some(1004) }).await;
    assert_eq!(put(&client, "new-1").await.0, Code::Ok);
    assert_eq!(put(&client, "new-2").await.0, Code::Ok);
    assert_eq!(put(&client, "new-3").await.0, Code::ResourceExhausted);
    assert!(proxy.metrics().contains("etcd_proxy_upstream_went_back_total 1\n"), "{}", proxy.metrics());

    let (_replica, mut other) = forgotten_secret(&etcd, &client).await;

    // And what is told from here on is followed.
    let mut watching = client.watch([watch_all(0)]).await;
    assert!(watching.next().await.unwrap().created);
    client.compact(base + 1).await.unwrap();
    let put_at = other.put("base", "1").await;
    assert_eq!(watching.events(1).await[0].kv.as_ref().unwrap().mod_revision, put_at);
    assert_eq!(refusal(client.range(below).await).0, Code::OutOfRange);
    let after = RangeRequest { key: "base".into(), revision: base + 1, ..Default::default() };
    assert_eq!(client.range(after).await.unwrap().kvs[0].mod_revision, base);
    eventually("what changes is followed", || async { used(&proxy).await == Some(2015) }).await;
}

/// With etcdutl's --bump-revision revisions do not go back, and what was held is wrong all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_state_with_later_revisions_counts_as_it_is() {
    let mut etcd = Etcd::start().await;
    let limits = LimitSettings { quota_bytes: NonZeroUsize::new(QUOTA), ..Default::default() };
    let proxy = Proxy::start_with(&etcd, "/a/", |config| config.limits = limits).await;
    let mut client = proxy.client().await;
    client.put("base", vec![b'v'; 1000]).await;
    let dir = tempfile::tempdir().unwrap();
    let snapshot = dir.path().join("before.db");
    etcdctl(&etcd.url(), &["snapshot", "save", snapshot.to_str().unwrap()], "").await.unwrap();
    assert_eq!(put(&client, "late-1").await.0, Code::Ok);
    let lease = client.grant(0, 1000).await.unwrap();
    assert_eq!(client.leases().await, [lease]);
    let last = client.put("late-2", vec![b'w'; 1000]).await;
    client.compact(last).await.unwrap();

    go_back(&mut etcd, &snapshot, &["--bump-revision=1000000", "--mark-compacted"], &client).await;

    eventually("the watermark of before is forgotten", || async {
        proxy.metrics().contains("etcd_proxy_watermark_revision -1\n")
    })
    .await;
    eventually("what is stored is counted anew", || async { used(&proxy).await == Some(1004) }).await;
    let (_replica, mut other) = forgotten_secret(&etcd, &client).await;
    assert!(other.put("base", "1").await > 1_000_000);
}
