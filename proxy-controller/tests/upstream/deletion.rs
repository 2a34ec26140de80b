//! Deleting what a tenant stored, that and nothing else.

use bytes::Bytes;
use etcd_proxy::prefix::Prefix;
use proxy_controller::upstream::{Claiming, Heirloom, Progress, Release, Shared, SharedError};
use tokio::{sync::mpsc, time::timeout};

use crate::etcd::{Etcd, PATIENCE, layout, prefix};

const OWNER: (&str, &str) = ("ns/a", "1");
const MIB: usize = 1 << 20;

async fn claimed(shared: &Shared, prefix: &Prefix) {
    assert_eq!(shared.ensure_claim(prefix, OWNER.0, OWNER.1).await.unwrap(), Claiming::Claimed);
}

fn numbered(prefix: &Prefix, count: usize) -> impl Iterator<Item = Bytes> {
    (0..count).map(|number| prefix.key(format!("{number:06}").as_bytes()))
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_leases_go_and_neighbours_stay() {
    let etcd = Etcd::start().await;
    let (shared, own, neighbour) = (etcd.shared(), prefix("/a/"), prefix("/ab/"));
    let mut direct = etcd.direct().await;
    claimed(&shared, &own).await;
    assert_eq!(shared.ensure_claim(&neighbour, "ns/b", "2").await.unwrap(), Claiming::Claimed);
    let theirs = direct.grant(&neighbour).await;
    for key in ["/a", "/a.", "/a0", "/ab/k", "/ab/l", "/b/k", "/", "\0", "z"] {
        direct.put(key, "theirs", if key == "/ab/l" { theirs } else { 0 }).await;
    }
    direct.put(layout().tenant(&neighbour).secret(), "theirs", 0).await;
    let before = direct.all().await;
    // Up to the last byte that is the tenant's, and with leases.
    direct.fill(numbered(&own, 1200), "v").await;
    for key in [b"/a/".to_vec(), b"/a/\0".to_vec(), [&b"/a/"[..], &[0xff; 20]].concat()] {
        direct.put(key, "v", 0).await;
    }
    for _ in 0..120 {
        let lease = direct.grant(&own).await;
        direct.put(own.key(format!("lease {lease}").as_bytes()), "v", lease).await;
    }
    direct.put(layout().tenant(&own).secret(), "secret", 0).await;
    // A mark without its lease, as of a restored backup, and one that is none.
    direct.put(layout().tenant(&own).lease_mark(77), "", 0).await;
    direct.put([&layout().tenant(&own).lease_marks().0[..], b"x"].concat(), "", 0).await;

    let mut reports = Vec::new();
    let work = shared.delete_data(&own, OWNER.0, OWNER.1, |progress| reports.push(progress));
    let done = timeout(PATIENCE, work).await.expect("an end in time").unwrap();
    assert_eq!(done, Progress { keys_deleted: 1323, keys_left: 0, leases_revoked: 122, leases_left: 0 });
    assert!(reports.len() >= 5, "{reports:?}");
    assert!(reports.windows(2).all(|two| two[0].keys_deleted <= two[1].keys_deleted), "{reports:?}");
    assert!(reports.iter().all(|one| one.keys_deleted + one.keys_left == 1323), "{reports:?}");
    assert_eq!(direct.leases().await, [theirs]);
    assert_eq!(shared.release(&own, OWNER.0, OWNER.1).await.unwrap(), Release::Done);
    // Neither value nor revision of anything else has changed, but for the claims' generation, which came first.
    let generation = layout().claims_generation();
    let others = |all: Vec<proto::mvccpb::KeyValue>| {
        all.into_iter().filter(|kv| kv.key != generation && kv.key != layout().claim(&own)).collect::<Vec<_>>()
    };
    assert_eq!(others(direct.all().await), others(before));
    // What is gone need not be deleted, nor what was never held.
    assert_eq!(shared.delete_data(&own, OWNER.0, OWNER.1, |_| panic!()).await.unwrap(), Progress::default());
}

/// etcd is killed in the middle of it; whoever comes next finishes.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_goes_on_after_a_crash_of_etcd() {
    const KEYS: usize = 50_000;
    let mut etcd = Etcd::start().await;
    let (shared, own) = (etcd.shared(), prefix("/a/"));
    let mut direct = etcd.direct().await;
    claimed(&shared, &own).await;
    direct.fill(numbered(&own, KEYS), "v").await;
    direct.put("/a0", "theirs", 0).await;

    let (told, mut heard) = mpsc::unbounded_channel();
    let deleting = {
        let (shared, own) = (shared.clone(), own.clone());
        tokio::spawn(async move {
            shared.delete_data(&own, OWNER.0, OWNER.1, |progress| told.send(progress).unwrap()).await
        })
    };
    for _ in 0..10 {
        heard.recv().await.unwrap();
    }
    etcd.kill();
    let broken_off = deleting.await.unwrap().unwrap_err();
    assert!(broken_off.is_unreachable(), "{broken_off}");
    let mut deleted = 0;
    while let Some(progress) = heard.recv().await {
        deleted = progress.keys_deleted;
    }
    etcd.run();
    etcd.ready().await;
    let mut direct = etcd.direct().await;
    let left = direct.count(&own).await;
    let all = i64::try_from(KEYS).unwrap();
    assert!(0 < left && left <= all - deleted, "{left} left after {deleted}");
    assert_eq!(shared.release(&own, OWNER.0, OWNER.1).await.unwrap(), Release::NotEmpty { keys: left, leases: 0 });
    let done = shared.delete_data(&own, OWNER.0, OWNER.1, |_| {}).await.unwrap();
    assert_eq!(done.keys_deleted, left);
    assert_eq!(shared.release(&own, OWNER.0, OWNER.1).await.unwrap(), Release::Done);
    let keys: Vec<_> = direct.all().await.into_iter().map(|kv| kv.key).collect();
    assert_eq!(keys, [Bytes::from_static(b"/a0"), layout().claims_generation()]);
}

/// A controller that went on deleting after the prefix was given to somebody else deletes nothing of theirs.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_later_owner_is_deleted() {
    let etcd = Etcd::start().await;
    let (shared, own) = (etcd.shared(), prefix("/a/"));
    let mut direct = etcd.direct().await;
    // Given away with the data, released and claimed anew, and even claimed anew by the same owner.
    for (case, next) in [("2", true), ("2", false), ("1", false)] {
        claimed(&shared, &own).await;
        direct.fill(numbered(&own, 2000), "v").await;
        let mut late = shared.deletion(&own, OWNER.0, OWNER.1).await.unwrap().unwrap();
        let progress = late.step().await.unwrap().unwrap();
        assert_eq!((progress.keys_deleted, progress.keys_left), (500, 1500));
        if next {
            let Claiming::Held(holder) = shared.ensure_claim(&own, "ns/a", case).await.unwrap() else { panic!() };
            let heir = shared.adopt(&own, "ns/a", case, &Heirloom::Claim(holder)).await.unwrap();
            assert_eq!(heir, Claiming::Claimed);
        } else {
            shared.delete_data(&own, OWNER.0, OWNER.1, |_| {}).await.unwrap();
            assert_eq!(shared.release(&own, OWNER.0, OWNER.1).await.unwrap(), Release::Done);
            assert_eq!(shared.ensure_claim(&own, "ns/a", case).await.unwrap(), Claiming::Claimed);
        }
        direct.put("/a/theirs", "v", 0).await;
        let lease = direct.grant(&own).await;
        let before = direct.count(&own).await;
        let refused = late.step().await.unwrap_err();
        assert!(matches!(refused, SharedError::NotHeld { .. }), "{refused}");
        assert_eq!((direct.count(&own).await, direct.leases().await), (before, vec![lease]));

        shared.delete_data(&own, "ns/a", case, |_| {}).await.unwrap();
        assert_eq!(shared.release(&own, "ns/a", case).await.unwrap(), Release::Done);
    }
}

/// Keys that come while it deletes are deleted, too.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_behind_is_found() {
    let etcd = Etcd::start().await;
    let (shared, own) = (etcd.shared(), prefix("/a/"));
    let mut direct = etcd.direct().await;
    claimed(&shared, &own).await;
    direct.fill(numbered(&own, 600), "v").await;
    let mut deletion = shared.deletion(&own, OWNER.0, OWNER.1).await.unwrap().unwrap();
    deletion.step().await.unwrap().unwrap();
    direct.put(own.key(b"0"), "late", 0).await;
    while deletion.step().await.unwrap().is_some() {}
    assert_eq!(deletion.progress().keys_deleted, 601);
    assert_eq!(direct.count(&own).await, 0);
}

/// Values of the largest size, and keys of it, which no request holds two of.
#[tokio::test(flavor = "multi_thread")]
async fn large_values_and_large_keys() {
    let etcd = Etcd::start().await;
    let (shared, own) = (etcd.shared(), prefix("/a/"));
    let mut direct = etcd.direct().await;
    claimed(&shared, &own).await;
    for number in 0..40 {
        direct.put(own.key(format!("value {number}").as_bytes()), vec![b'v'; MIB], 0).await;
    }
    let keys = (0..40)
        .map(|number| own.key(&[format!("key {number:02}").as_bytes(), &vec![0xff; 3 * MIB / 2 - 4096]].concat()));
    let mut expected = 40 * MIB + "value 0".len() * 40 + 30;
    for key in keys {
        expected += key.len() - own.as_bytes().len();
        direct.put(key, "", 0).await;
    }
    direct.put("/a0", "theirs", 0).await;
    let usage = shared.usage(&own).await.unwrap();
    assert_eq!((usage.keys, usage.bytes), (80, i64::try_from(expected).unwrap()));
    let done = shared.delete_data(&own, OWNER.0, OWNER.1, |_| {}).await.unwrap();
    assert_eq!((done.keys_deleted, done.keys_left), (80, 0));
    assert_eq!(shared.release(&own, OWNER.0, OWNER.1).await.unwrap(), Release::Done);
    assert_eq!(direct.all().await.len(), 2);
}
