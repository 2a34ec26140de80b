//! Claims: no two prefixes that overlap are ever held, whoever comes first.

use etcd_proxy::{
    meta::{
        Claim, ClaimError, DEFAULT_META_PREFIX, FORMAT, MetaLayout, ReleaseError, Standing, claim, read_claims,
        release, standing,
    },
    prefix::Prefix,
    upstream::{Endpoint, Kv, Upstream, UpstreamConfig},
};

use crate::support::Etcd;

fn layout() -> MetaLayout {
    MetaLayout::new(prefix(DEFAULT_META_PREFIX))
}

fn prefix(text: &'static str) -> Prefix {
    Prefix::new(text).unwrap()
}

fn owned_by(owner: &str, uid: &str) -> Claim {
    Claim { format: FORMAT, owner: owner.into(), uid: uid.into(), created_at: jiff::Timestamp::UNIX_EPOCH }
}

fn kv(etcd: &Etcd) -> Kv {
    Upstream::new(UpstreamConfig::new(vec![Endpoint::parse(&etcd.url(), false).unwrap()], None)).kv()
}

#[tokio::test(flavor = "multi_thread")]
async fn held_prefixes_are_not_given_again() {
    let etcd = Etcd::start().await;
    let (mut kv, meta) = (kv(&etcd), layout());
    assert!(matches!(standing(&mut kv, &meta, &prefix("/a/")).await.unwrap(), Standing::Unclaimed));
    claim(&mut kv, &meta, &prefix("/a/"), &owned_by("x", "1"), false).await.unwrap();
    // Again by the same, which changes nothing.
    claim(&mut kv, &meta, &prefix("/a/"), &owned_by("x", "1"), false).await.unwrap();
    for (other, owner, uid, force) in [("/a/", "x", "2", false), ("/a/", "y", "1", true), ("/a/b/", "y", "1", false)] {
        let refused = claim(&mut kv, &meta, &prefix(other), &owned_by(owner, uid), force).await.unwrap_err();
        assert!(
            matches!(&refused, ClaimError::Held { held, owner, .. } if held == b"/a/" && owner == "x"),
            "{other}: {refused}"
        );
    }
    claim(&mut kv, &meta, &prefix("/ab/"), &owned_by("y", ""), false).await.unwrap();
    claim(&mut kv, &meta, &prefix("/a/b/"), &owned_by("y", ""), true).await.unwrap();
    for meta_overlap in ["/etcd-proxy.meta/", "/etcd-proxy.meta/x/", "/"] {
        let refused = claim(&mut kv, &meta, &prefix(meta_overlap), &owned_by("y", ""), true).await;
        assert!(matches!(refused, Err(ClaimError::Meta { .. })), "{meta_overlap}");
        assert!(matches!(standing(&mut kv, &meta, &prefix(meta_overlap)).await, Err(ClaimError::Meta { .. })));
    }
    assert_eq!(read_claims(&mut kv, &meta).await.unwrap().claims.len(), 3);
    let of_overlapping = standing(&mut kv, &meta, &prefix("/a/")).await.unwrap();
    assert!(matches!(&of_overlapping, Standing::Overlaps { prefix, .. } if prefix == b"/a/b/"), "{of_overlapping:?}");
    let of_own = standing(&mut kv, &meta, &prefix("/ab/")).await.unwrap();
    assert!(matches!(&of_own, Standing::Claimed { claim, others_seen: true } if claim.owner == "y"), "{of_own:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_held_is_released() {
    let etcd = Etcd::start().await;
    let (mut kv, meta) = (kv(&etcd), layout());
    let free = release(&mut kv, &meta, &prefix("/a/"), None).await;
    assert!(matches!(free, Err(ReleaseError::NotClaimed(_))));
    claim(&mut kv, &meta, &prefix("/a/"), &owned_by("x", "1"), false).await.unwrap();
    let other = release(&mut kv, &meta, &prefix("/a/"), Some(("x", "2"))).await;
    assert!(matches!(other, Err(ReleaseError::Held { .. })));
    assert_eq!(release(&mut kv, &meta, &prefix("/a/"), Some(("x", "1"))).await.unwrap(), owned_by("x", "1"));
    claim(&mut kv, &meta, &prefix("/"), &owned_by("y", ""), false).await.unwrap_err();
    claim(&mut kv, &meta, &prefix("/a/b/"), &owned_by("y", ""), false).await.unwrap();
}

/// Claims that do not know of each other: of those that overlap one is granted, and of the others every one.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_claims_do_not_overlap() {
    let etcd = Etcd::start().await;
    for round in 0..5 {
        let wanted = ["/a/", "/a/b/", "/a/b/c/", "/x/", "/y/", "/a/"];
        let claims = wanted.iter().enumerate().map(|(number, wanted)| {
            let (mut kv, owner) = (kv(&etcd), owned_by(&number.to_string(), &round.to_string()));
            async move { claim(&mut kv, &layout(), &prefix(wanted), &owner, false).await }
        });
        let answers = futures::future::join_all(claims).await;
        let granted: Vec<&str> =
            wanted.into_iter().zip(&answers).filter(|(_, answer)| answer.is_ok()).map(|(wanted, _)| wanted).collect();
        for (number, one) in granted.iter().enumerate() {
            for other in &granted[number + 1..] {
                assert!(!prefix(one).overlaps(other.as_bytes()), "{granted:?}");
            }
        }
        assert_eq!(granted.len(), 3, "{answers:?}");
        for one in granted {
            release(&mut kv(&etcd), &layout(), &prefix(one), None).await.unwrap();
        }
    }
}

/// What a newer version wrote is not guessed at.
#[tokio::test(flavor = "multi_thread")]
async fn newer_formats_are_refused() {
    let etcd = Etcd::start().await;
    let (mut kv, meta) = (kv(&etcd), layout());
    let mut direct = etcd.client().await;
    direct.put(meta.claim(&prefix("/z/")), r#"{"format":2,"holder":{}}"#).await;
    for refused in [
        claim(&mut kv, &meta, &prefix("/a/"), &owned_by("x", ""), true).await.unwrap_err(),
        standing(&mut kv, &meta, &prefix("/a/")).await.unwrap_err(),
    ] {
        assert!(refused.to_string().contains("format 2"), "{refused}");
    }
}
