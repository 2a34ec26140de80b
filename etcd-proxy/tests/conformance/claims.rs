//! Claims: no two prefixes that overlap are ever held, whoever comes first.

use etcd_proxy::{
    meta::{
        Claim, ClaimError, DEFAULT_META_PREFIX, FORMAT, MetaLayout, ReleaseError, Standing, TransferError, claim,
        claim_empty, read_claim, read_claims, release, standing, transfer,
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

/// Who may not inherit gets a prefix only if nothing at all is left under it.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_may_not_inherit_finds_nothing() {
    let etcd = Etcd::start().await;
    let (mut kv, meta, own) = (kv(&etcd), layout(), prefix("/a/"));
    let mut direct = etcd.client().await;
    let new = owned_by("x", "1");
    // Neighbours are no hindrance.
    for neighbour in ["/a", "/a0", "/ab/k", "/b/k"] {
        direct.put(neighbour, "").await;
    }
    let remnants = [
        own.key(b""),
        own.key(b"k"),
        meta.tenant(&own).secret(),
        meta.tenant(&own).watermark(),
        meta.tenant(&own).lease_mark(-1),
    ];
    for remnant in remnants {
        direct.put(remnant.clone(), "").await;
        let refused = claim_empty(&mut kv, &meta, &own, &new).await.unwrap_err();
        let expected = if own.strip(&remnant).is_ok() || remnant == own.as_bytes() { (1, 0) } else { (0, 1) };
        assert!(
            matches!(&refused, ClaimError::HoldsData { keys, meta_keys, .. } if (*keys, *meta_keys) == expected),
            "{remnant:?}: {refused}"
        );
        assert!(read_claim(&mut kv, &meta, &own).await.unwrap().is_none());
        direct
            .kv
            .delete_range(proto::etcdserverpb::DeleteRangeRequest { key: remnant, ..Default::default() })
            .await
            .unwrap();
    }
    claim_empty(&mut kv, &meta, &own, &new).await.unwrap();
    // Its own data is no hindrance to whoever holds it already.
    direct.put(own.key(b"k"), "").await;
    claim_empty(&mut kv, &meta, &own, &new).await.unwrap();
    assert_eq!(read_claim(&mut kv, &meta, &own).await.unwrap().unwrap().claim.unwrap(), new);
    // Of another owner's claim nothing is said but that.
    let refused = claim_empty(&mut kv, &meta, &own, &owned_by("x", "2")).await.unwrap_err();
    assert!(matches!(&refused, ClaimError::Held { uid, .. } if uid == "1"), "{refused}");
}

/// A key that comes while the prefix is being claimed is either refused the claim or later than it.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_slips_in_while_a_prefix_is_claimed() {
    let etcd = Etcd::start().await;
    let (mut kv, meta, own) = (kv(&etcd), layout(), prefix("/a/"));
    let mut direct = etcd.client().await;
    let mut refused = 0;
    for delay in 0..80 {
        let mut writer = direct.clone();
        let put = async {
            tokio::time::sleep(std::time::Duration::from_micros(delay * 50)).await;
            writer.put("/a/k", "v").await
        };
        let new = owned_by("x", "1");
        let (claimed, put) = tokio::join!(claim_empty(&mut kv, &meta, &own, &new), put);
        match claimed {
            Ok(()) => {
                let made = read_claim(&mut kv, &meta, &own).await.unwrap().unwrap().mod_revision;
                assert!(put > made, "the key of revision {put} was inherited by the claim of revision {made}");
            }
            Err(error) => {
                assert!(matches!(error, ClaimError::HoldsData { keys: 1, meta_keys: 0, .. }), "{error}");
                refused += 1;
            }
        }
        direct.delete_all().await;
    }
    assert!(refused > 0, "no key ever came in between");
}

/// Two owners want prefixes that overlap, at the same instant, a hundred times: exactly one gets its.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_claims_at_once_one_is_granted() {
    let etcd = Etcd::start().await;
    let (one, other) = (kv(&etcd), kv(&etcd));
    let mut winners = [0, 0];
    for round in 0..100 {
        let (first, second) = [("/a/", "/a/"), ("/a/", "/a/b/"), ("/a/b/", "/a/")][round % 3];
        let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(2));
        let contestants = [(one.clone(), first, "1"), (other.clone(), second, "2")].map(|(mut kv, wanted, uid)| {
            let barrier = barrier.clone();
            tokio::spawn(async move {
                barrier.wait().await;
                claim_empty(&mut kv, &layout(), &prefix(wanted), &owned_by("ns/name", uid)).await
            })
        });
        let answers = futures::future::join_all(contestants).await.into_iter().map(Result::unwrap).collect::<Vec<_>>();
        let held = read_claims(&mut one.clone(), &layout()).await.unwrap().claims;
        assert_eq!(held.len(), 1, "{answers:?}");
        let winner = usize::from(answers[0].is_err());
        let loser = answers[1 - winner].as_ref().unwrap_err();
        assert!(answers[winner].is_ok(), "{answers:?}");
        assert!(
            matches!(loser, ClaimError::Held { uid, mod_revision, .. }
                if *uid == (winner + 1).to_string() && *mod_revision == held[0].mod_revision),
            "{answers:?}"
        );
        winners[winner] += 1;
        release(&mut one.clone(), &layout(), &prefix([first, second][winner]), None, false).await.unwrap();
    }
    assert!(winners.iter().all(|won| *won > 0), "{winners:?}: the two were never at once");
}

/// A claim goes to another owner only as it was read, with all that belongs to it.
#[tokio::test(flavor = "multi_thread")]
async fn claims_are_given_away_with_the_data() {
    let etcd = Etcd::start().await;
    let (mut kv, meta, own) = (kv(&etcd), layout(), prefix("/a/"));
    let mut direct = etcd.client().await;
    claim(&mut kv, &meta, &own, &owned_by("x", "1")).await.unwrap();
    for key in [own.key(b"k"), meta.tenant(&own).secret()] {
        direct.put(key, "v").await;
    }
    let before = direct.keys().await;
    let old = read_claim(&mut kv, &meta, &own).await.unwrap().unwrap();
    // Of others' comings and goings it is independent.
    claim(&mut kv, &meta, &prefix("/b/"), &owned_by("z", "9")).await.unwrap();
    release(&mut kv, &meta, &prefix("/b/"), None, false).await.unwrap();
    transfer(&mut kv, &meta, &own, old.mod_revision, &owned_by("y", "2")).await.unwrap();
    // Once more, as after a crash.
    transfer(&mut kv, &meta, &own, old.mod_revision, &owned_by("y", "2")).await.unwrap();
    let new = read_claim(&mut kv, &meta, &own).await.unwrap().unwrap();
    assert_eq!(new.claim.as_ref().unwrap(), &owned_by("y", "2"));
    assert_eq!(direct.keys().await, before);
    // What was read of the old claim is good for nothing any more, also if that owner comes back.
    let late = transfer(&mut kv, &meta, &own, old.mod_revision, &owned_by("z", "3")).await.unwrap_err();
    assert!(matches!(&late, TransferError::Changed { uid, .. } if uid == "2"), "{late}");
    transfer(&mut kv, &meta, &own, new.mod_revision, &owned_by("x", "1")).await.unwrap();
    let late = transfer(&mut kv, &meta, &own, old.mod_revision, &owned_by("z", "3")).await.unwrap_err();
    assert!(matches!(&late, TransferError::Changed { uid, .. } if uid == "1"), "{late}");
    release(&mut kv, &meta, &own, None, true).await.unwrap();
    let gone = transfer(&mut kv, &meta, &own, old.mod_revision, &owned_by("z", "3")).await.unwrap_err();
    assert!(matches!(gone, TransferError::NotClaimed(_)), "{gone}");
    // What cannot be read is not overwritten.
    direct.put(meta.claim(&own), r#"{"format":2}"#).await;
    let newer = read_claim(&mut kv, &meta, &own).await.unwrap().unwrap();
    let refused = transfer(&mut kv, &meta, &own, newer.mod_revision, &owned_by("z", "3")).await.unwrap_err();
    assert!(matches!(refused, TransferError::Format(_)), "{refused}");
}

/// Two new owners at once, a hundred times, and the old one that lets go of it meanwhile: one of them has it in the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_given_away_once() {
    let etcd = Etcd::start().await;
    let (mut kv, meta, own) = (kv(&etcd), layout(), prefix("/a/"));
    for round in 0..100 {
        claim(&mut kv, &meta, &own, &owned_by("x", "0")).await.unwrap();
        let old = read_claim(&mut kv, &meta, &own).await.unwrap().unwrap().mod_revision;
        let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(3));
        let takers = ["1", "2"].map(|uid| {
            let (mut kv, barrier) = (kv.clone(), barrier.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                transfer(&mut kv, &layout(), &prefix("/a/"), old, &owned_by("y", uid)).await
            })
        });
        barrier.wait().await;
        let released = round % 2 == 0 && release(&mut kv, &meta, &own, Some(("x", "0")), false).await.is_ok();
        let answers = futures::future::join_all(takers).await.into_iter().map(Result::unwrap).collect::<Vec<_>>();
        let taken = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(taken + usize::from(released), 1, "{answers:?}");
        let held = read_claim(&mut kv, &meta, &own).await.unwrap();
        match answers.iter().position(Result::is_ok) {
            Some(winner) => assert_eq!(held.unwrap().claim.unwrap().uid, (winner + 1).to_string()),
            None => assert!(held.is_none()),
        }
        if !released {
            release(&mut kv, &meta, &own, None, false).await.unwrap();
        }
    }
}
