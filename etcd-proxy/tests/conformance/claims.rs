//! Claims: no two prefixes that overlap are ever held, whoever comes first.

use etcd_proxy::{
    meta::{
        Claim, ClaimError, DEFAULT_META_PREFIX, FORMAT, MetaLayout, ReleaseError, Standing, claim, read_claims,
        release, standing,
    },
    prefix::Prefix,
    upstream::{Endpoint, Kv, Upstream, UpstreamConfig},
};

use crate::support::{Etcd, Proxy};

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
    claim(&mut kv, &meta, &prefix("/a/"), &owned_by("x", "1")).await.unwrap();
    // Again by the same, which changes nothing.
    claim(&mut kv, &meta, &prefix("/a/"), &owned_by("x", "1")).await.unwrap();
    for (other, owner, uid) in [("/a/", "x", "2"), ("/a/", "y", "1"), ("/a/b/", "y", "1")] {
        let refused = claim(&mut kv, &meta, &prefix(other), &owned_by(owner, uid)).await.unwrap_err();
        assert!(
            matches!(&refused, ClaimError::Held { held, owner, .. } if held == b"/a/" && owner == "x"),
            "{other}: {refused}"
        );
    }
    claim(&mut kv, &meta, &prefix("/ab/"), &owned_by("y", "")).await.unwrap();
    // No tool of ours does that.
    let mut direct = etcd.client().await;
    direct.put(meta.claim(&prefix("/a/b/")), owned_by("y", "").encode()).await;
    for meta_overlap in ["/etcd-proxy.meta/", "/etcd-proxy.meta/x/", "/"] {
        let refused = claim(&mut kv, &meta, &prefix(meta_overlap), &owned_by("y", "")).await;
        assert!(matches!(refused, Err(ClaimError::Meta { .. })), "{meta_overlap}");
        assert!(matches!(standing(&mut kv, &meta, &prefix(meta_overlap)).await, Err(ClaimError::Meta { .. })));
    }
    assert_eq!(read_claims(&mut kv, &meta).await.unwrap().claims.len(), 3);
    let of_overlapping = standing(&mut kv, &meta, &prefix("/a/")).await.unwrap();
    let found = matches!(&of_overlapping, Standing::Overlaps { prefix, owner } if prefix == b"/a/b/" && owner == "y");
    assert!(found, "{of_overlapping:?}");
    let of_own = standing(&mut kv, &meta, &prefix("/ab/")).await.unwrap();
    assert!(matches!(&of_own, Standing::Claimed { claim, others_seen: true } if claim.owner == "y"), "{of_own:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_held_is_released() {
    let etcd = Etcd::start().await;
    let (mut kv, meta) = (kv(&etcd), layout());
    let free = release(&mut kv, &meta, &prefix("/a/"), None, false).await;
    assert!(matches!(free, Err(ReleaseError::NotClaimed(_))));
    claim(&mut kv, &meta, &prefix("/a/"), &owned_by("x", "1")).await.unwrap();
    let other = release(&mut kv, &meta, &prefix("/a/"), Some(("x", "2")), false).await;
    assert!(matches!(other, Err(ReleaseError::Held { .. })));
    assert_eq!(release(&mut kv, &meta, &prefix("/a/"), Some(("x", "1")), false).await.unwrap(), owned_by("x", "1"));
    claim(&mut kv, &meta, &prefix("/"), &owned_by("y", "")).await.unwrap_err();
    claim(&mut kv, &meta, &prefix("/a/b/"), &owned_by("y", "")).await.unwrap();
}

/// Claims that do not know of each other: of those that overlap one is granted, and of the others every one.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_claims_do_not_overlap() {
    let etcd = Etcd::start().await;
    for round in 0..5 {
        let wanted = ["/a/", "/a/b/", "/a/b/c/", "/x/", "/y/", "/a/"];
        let claims = wanted.iter().enumerate().map(|(number, wanted)| {
            let (mut kv, owner) = (kv(&etcd), owned_by(&number.to_string(), &round.to_string()));
            async move { claim(&mut kv, &layout(), &prefix(wanted), &owner).await }
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
            release(&mut kv(&etcd), &layout(), &prefix(one), None, false).await.unwrap();
        }
    }
}

/// A claim that cannot be read holds its prefix against others and stops nobody else; nor does a key that names no prefix.
#[tokio::test(flavor = "multi_thread")]
async fn claims_that_cannot_be_read_hold_their_prefix_and_no_more() {
    let etcd = Etcd::start().await;
    let (mut kv, meta) = (kv(&etcd), layout());
    let mut direct = etcd.client().await;
    direct.put(meta.claim(&prefix("/y/")), "damaged").await;
    direct.put(meta.claim(&prefix("/z/")), r#"{"format":2,"holder":{}}"#).await;
    for no_prefix in ["", "zz", "2f612"] {
        direct.put([&meta.claims().0[..], no_prefix.as_bytes()].concat(), "{}").await;
    }
    claim(&mut kv, &meta, &prefix("/a/"), &owned_by("x", "")).await.unwrap();
    let own = standing(&mut kv, &meta, &prefix("/a/")).await.unwrap();
    assert!(matches!(&own, Standing::Claimed { others_seen: true, .. }), "{own:?}");
    release(&mut kv, &meta, &prefix("/a/"), None, false).await.unwrap();

    for (other, why) in [("/y/b/", "damaged"), ("/z/b/", "format 2")] {
        let refused = claim(&mut kv, &meta, &prefix(other), &owned_by("x", "")).await.unwrap_err();
        assert!(matches!(&refused, ClaimError::Held { owner, .. } if owner.contains(why)), "{refused}");
        let overlaps = standing(&mut kv, &meta, &prefix(other)).await.unwrap();
        assert!(matches!(&overlaps, Standing::Overlaps { owner, .. } if owner.contains(why)), "{overlaps:?}");
    }
    // One's own is not guessed at.
    let own = prefix("/z/");
    for refused in [
        claim(&mut kv, &meta, &own, &owned_by("x", "")).await.unwrap_err().to_string(),
        standing(&mut kv, &meta, &own).await.unwrap_err().to_string(),
        release(&mut kv, &meta, &own, None, true).await.unwrap_err().to_string(),
    ] {
        assert!(refused.contains("format 2"), "{refused}");
    }
}

/// What one owner leaves the next one does not find, unless told to.
#[tokio::test(flavor = "multi_thread")]
async fn a_released_prefix_is_as_good_as_new() {
    let etcd = Etcd::start().await;
    let (mut kv, meta, own) = (kv(&etcd), layout(), prefix("/a/"));
    let mut direct = etcd.client().await;
    claim(&mut kv, &meta, &own, &owned_by("x", "")).await.unwrap();
    let lease = {
        let proxy = Proxy::start(&etcd, "/a/").await;
        let mut client = proxy.client().await;
        let revision = client.put("k", "v").await;
        client.compact(revision).await.unwrap();
        client.grant(0, 600).await.unwrap();
        let left = release(&mut kv, &meta, &own, None, false).await.unwrap_err();
        assert!(matches!(left, ReleaseError::NotEmpty { keys: 1, leases: 1, .. }), "{left}");
        client.delete_all().await;
        let left = release(&mut kv, &meta, &own, None, false).await.unwrap_err();
        assert!(matches!(left, ReleaseError::NotEmpty { keys: 0, leases: 1, .. }), "{left}");
        client.leases().await[0]
    };
    // The next owner inherits on purpose …
    release(&mut kv, &meta, &own, None, true).await.unwrap();
    claim(&mut kv, &meta, &own, &owned_by("y", "")).await.unwrap();
    let proxy = Proxy::start(&etcd, "/a/").await;
    let mut client = proxy.client().await;
    assert_eq!(client.leases().await, [lease]);
    client.lease.lease_revoke(proto::etcdserverpb::LeaseRevokeRequest { id: lease }).await.unwrap();
    // … or not at all.
    release(&mut kv, &meta, &own, None, false).await.unwrap();
    assert_eq!(direct.keys().await, [meta.claims_generation()]);
}

/// A key that comes while the prefix is being released is not left behind unseen.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_slips_in_while_a_prefix_is_released() {
    let etcd = Etcd::start().await;
    let (mut kv, meta, own) = (kv(&etcd), layout(), prefix("/a/"));
    let mut direct = etcd.client().await;
    for delay in 0..80 {
        claim(&mut kv, &meta, &own, &owned_by("x", "")).await.unwrap();
        let mut writer = direct.clone();
        let put = async {
            tokio::time::sleep(std::time::Duration::from_micros(delay * 50)).await;
            writer.put("/a/k", "v").await
        };
        let (released, put) = tokio::join!(release(&mut kv, &meta, &own, None, false), put);
        match released {
            Ok(_) => {
                let generation = direct.get(meta.claims_generation()).await.unwrap().mod_revision;
                assert!(put > generation, "the key of revision {put} was left behind by the release at {generation}");
            }
            Err(error) => assert!(matches!(error, ReleaseError::NotEmpty { .. }), "{error}"),
        }
        direct.delete_all().await;
    }
}
