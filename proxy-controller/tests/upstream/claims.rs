//! Who gets a prefix, and who does not.

use std::sync::Arc;

use etcd_proxy::meta::DEFAULT_META_PREFIX;
use proxy_controller::upstream::{Claiming, Heirloom, Release, SharedError};
use tokio::sync::Barrier;

use crate::etcd::{Etcd, layout, prefix};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_free_is_claimed_and_what_is_held_is_not() {
    let etcd = Etcd::start().await;
    let (shared, own) = (etcd.shared(), prefix("/t/a/"));
    // Once more, as after a crash between the claim and its note in the status.
    for _ in 0..2 {
        assert_eq!(shared.ensure_claim(&own, "ns/a", "1").await.unwrap(), Claiming::Claimed);
    }
    // The same name is not the same owner.
    let Claiming::Held(holder) = shared.ensure_claim(&own, "ns/a", "2").await.unwrap() else { panic!("given twice") };
    assert_eq!((&*holder.prefix, &*holder.owner, &*holder.uid), (&b"/t/a/"[..], "ns/a", "1"));
    for overlapping in ["/t/", "/t/a/b/"] {
        let Claiming::Overlaps(other) = shared.ensure_claim(&prefix(overlapping), "ns/b", "3").await.unwrap() else {
            panic!("{overlapping} was given")
        };
        assert_eq!(other, holder);
    }
    assert_eq!(shared.ensure_claim(&prefix("/t/ab/"), "ns/b", "3").await.unwrap(), Claiming::Claimed);

    let claims = shared.claims().await.unwrap();
    let overlapping = |wish| claims.overlapping(&prefix(wish)).map(|held| held.prefix.clone()).collect::<Vec<_>>();
    assert_eq!(overlapping("/t/"), [b"/t/a/".to_vec(), b"/t/ab/".to_vec()]);
    assert_eq!(overlapping("/t/a/b/"), [b"/t/a/".to_vec()]);
    assert!(overlapping("/t/b/").is_empty());
}

/// Not even an heir gets what is nobody's to have.
#[tokio::test(flavor = "multi_thread")]
async fn some_prefixes_are_for_no_tenant() {
    let etcd = Etcd::start().await;
    let shared = etcd.shared();
    for reserved in ["/registry/", "/registry/pods/", "/", DEFAULT_META_PREFIX, "/etcd-proxy.meta/claims/"] {
        let reserved = prefix(reserved);
        for refused in [
            shared.ensure_claim(&reserved, "ns/a", "1").await,
            shared.adopt(&reserved, "ns/a", "1", &Heirloom::Data).await,
        ] {
            assert!(matches!(refused, Err(SharedError::Reserved { .. })), "{reserved}: {refused:?}");
        }
    }
    assert!(shared.claims().await.unwrap().claims.is_empty());
}

/// What somebody left goes to an heir, and to nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn left_data_goes_to_an_heir_alone() {
    let etcd = Etcd::start().await;
    let (shared, own) = (etcd.shared(), prefix("/t/a/"));
    let mut direct = etcd.direct().await;
    direct.put("/t/a/k", "v", 0).await;
    let holds_data = Claiming::HoldsData { keys: 1, meta_keys: 0 };
    assert_eq!(shared.ensure_claim(&own, "ns/a", "1").await.unwrap(), holds_data);
    assert!(shared.claims().await.unwrap().claims.is_empty());
    assert_eq!(shared.adopt(&own, "ns/a", "1", &Heirloom::Data).await.unwrap(), Claiming::Claimed);
    // A claim that was kept, and one that has changed hands since it was looked at.
    let Claiming::Held(kept) = shared.ensure_claim(&own, "ns/a", "2").await.unwrap() else { panic!() };
    let kept = Heirloom::Claim(kept);
    // Keys alone say nothing about a claim.
    let refused = shared.adopt(&own, "ns/a", "2", &Heirloom::Data).await.unwrap();
    assert!(matches!(&refused, Claiming::Held(holder) if holder.uid == "1"), "{refused:?}");
    for _ in 0..2 {
        assert_eq!(shared.adopt(&own, "ns/a", "2", &kept).await.unwrap(), Claiming::Claimed);
    }
    let late = shared.adopt(&own, "ns/b", "3", &kept).await.unwrap();
    assert!(matches!(&late, Claiming::Held(holder) if holder.uid == "2"), "{late:?}");
    assert_eq!(direct.count(&own).await, 1);

    // It is released once nothing is left, and then there is nothing to inherit.
    let (a, b) = (("ns/a", "2"), ("ns/a", "1"));
    let not_empty = Release::NotEmpty { keys: 1, leases: 0 };
    assert_eq!(shared.release(&own, a.0, a.1).await.unwrap(), not_empty);
    // Others have nothing to release.
    assert_eq!(shared.release(&own, b.0, b.1).await.unwrap(), Release::Done);
    assert_eq!(shared.claims().await.unwrap().claims.len(), 1);
    shared.delete_data(&own, a.0, a.1, |_| {}).await.unwrap();
    for _ in 0..2 {
        assert_eq!(shared.release(&own, a.0, a.1).await.unwrap(), Release::Done);
    }
    assert!(shared.claims().await.unwrap().claims.is_empty());
    assert_eq!(shared.adopt(&own, "ns/b", "3", &kept).await.unwrap(), Claiming::Claimed);
}

/// Two controllers, two owners, overlapping prefixes, at the same instant, a hundred times.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_at_once_one_gets_the_prefix() {
    let etcd = Etcd::start().await;
    let both = [etcd.shared(), etcd.shared()];
    let mut won = [0, 0];
    for round in 0..100 {
        let wishes = [["/t/", "/t/"], ["/t/", "/t/a/"], ["/t/a/", "/t/"]][round % 3].map(prefix);
        let barrier = Arc::new(Barrier::new(2));
        let claims = [0, 1].map(|number| {
            let (shared, wish, barrier) = (both[number].clone(), wishes[number].clone(), barrier.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                shared.ensure_claim(&wish, "ns/a", &number.to_string()).await.unwrap()
            })
        });
        let [first, second] = claims;
        let answers = [first.await.unwrap(), second.await.unwrap()];
        let winner = usize::from(answers[0] != Claiming::Claimed);
        assert_eq!(answers[winner], Claiming::Claimed, "{answers:?}");
        let (Claiming::Held(holder) | Claiming::Overlaps(holder)) = &answers[1 - winner] else {
            panic!("{answers:?}");
        };
        assert_eq!(holder.uid, winner.to_string());
        assert_eq!(shared_claims(&both[0]).await, [wishes[winner].as_bytes().to_vec()]);
        won[winner] += 1;
        both[0].release(&wishes[winner], "ns/a", &winner.to_string()).await.unwrap();
    }
    assert!(won.iter().all(|won| *won > 0), "{won:?}: they were never at once");
}

async fn shared_claims(shared: &proxy_controller::upstream::Shared) -> Vec<Vec<u8>> {
    shared.claims().await.unwrap().claims.into_iter().map(|held| held.prefix).collect()
}

/// Somebody else's claim that cannot be read holds its prefix; it is neither adopted nor released.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_left_alone() {
    let etcd = Etcd::start().await;
    let (shared, own) = (etcd.shared(), prefix("/t/a/"));
    let mut direct = etcd.direct().await;
    let revision = direct.put(layout().claim(&own), r#"{"format":2}"#, 0).await;
    let Claiming::Overlaps(holder) = shared.ensure_claim(&prefix("/t/a/b/"), "ns/a", "1").await.unwrap() else {
        panic!()
    };
    assert_eq!((holder.mod_revision, holder.uid.as_str()), (revision, ""));
    for refused in [
        shared.ensure_claim(&own, "ns/a", "1").await.unwrap_err(),
        shared.adopt(&own, "ns/a", "1", &Heirloom::Claim(holder)).await.unwrap_err(),
        shared.release(&own, "ns/a", "1").await.unwrap_err(),
        shared.delete_data(&own, "ns/a", "1", |_| {}).await.unwrap_err(),
    ] {
        assert!(matches!(refused, SharedError::Meta(_)), "{refused}");
    }
    assert_eq!(direct.all().await.len(), 1);
}
