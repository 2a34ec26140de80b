use super::*;

const NAME: &str = "proxy-controller-webhook.control.svc";
const DAY: i64 = 86400;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn new() -> Material {
    Material::create(NAME, &[], at(0)).unwrap()
}

fn accepted(bundle: &str, material: &Material, now: Timestamp) -> bool {
    accepts(bundle, &material.leaf.certificate.der, NAME, now)
}

#[test]
fn what_is_stored_is_read_again() {
    let material = new();
    assert_eq!(Material::parse(&material.data()).unwrap(), material);
    let rotating = material.changed(Change::Announce, NAME, at(1)).unwrap();
    assert_eq!(Material::parse(&rotating.data()).unwrap(), rotating);
    let rotated = rotating.changed(Change::Promote, NAME, at(100)).unwrap();
    assert_eq!(Material::parse(&rotated.data()).unwrap(), rotated);
    assert_eq!(rotated.bundle().matches("BEGIN CERTIFICATE").count(), 2);
    // The old CA's key is nowhere any more.
    let keys: Vec<_> = rotated.data().into_values().map(|value| String::from_utf8(value.0).unwrap()).collect();
    assert!(keys.iter().all(|value| !value.contains(material.signer.key.lines().nth(1).unwrap())));
}

#[test]
fn damage_is_named() {
    let data = new().data();
    for key in [TLS_CERT, TLS_KEY, CA_BUNDLE, SIGNER_CERT, SIGNER_KEY] {
        let mut without = data.clone();
        without.remove(key);
        assert!(Material::parse(&without).unwrap_err().to_string().contains(key), "{key}");
    }
    for key in [TLS_CERT, CA_BUNDLE, SIGNER_CERT] {
        for garbage in [&b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"[..], b"x", b"\xff\xfe"] {
            let mut damaged = data.clone();
            damaged.insert(key.to_owned(), ByteString(garbage.to_vec()));
            assert!(Material::parse(&damaged).unwrap_err().to_string().contains(key), "{key}");
        }
    }
    let mut halfway = data;
    halfway.insert(NEXT_CERT.to_owned(), ByteString(new().signer.certificate.pem.into_bytes()));
    assert!(Material::parse(&halfway).unwrap_err().to_string().contains(NEXT_KEY));
}

#[test]
fn a_certificate_for_another_name_or_key_is_replaced() {
    let material = new();
    let until = at(-300 + (LEAF_LIFETIME.as_secs().cast_signed() + 300) / 3 * 2);
    assert_eq!(material.step(NAME, None, at(0)), Step::Keep { until });
    assert_eq!(material.step("other.control.svc", None, at(0)), Step::Change(Change::Leaf));
    let mut mixed = material.clone();
    mixed.leaf.key = new().leaf.key;
    assert_eq!(mixed.step(NAME, None, at(0)), Step::Change(Change::Leaf));
    let mut foreign = material.clone();
    foreign.leaf = new().leaf;
    assert_eq!(foreign.step(NAME, None, at(0)), Step::Change(Change::Leaf));
    let repaired = foreign.changed(Change::Leaf, NAME, at(0)).unwrap();
    assert!(accepted(&material.bundle(), &repaired, at(0)));
}

#[test]
fn a_promotion_waits_until_the_bundle_is_in_use() {
    let rotating = new().changed(Change::Announce, NAME, at(0)).unwrap();
    for published in [None, Some(Duration::ZERO), Some(SETTLING - Duration::from_millis(1))] {
        assert!(matches!(rotating.step(NAME, published, at(0)), Step::Keep { .. }), "{published:?}");
    }
    assert_eq!(rotating.step(NAME, Some(SETTLING), at(0)), Step::Change(Change::Promote));
}

#[test]
fn what_was_away_for_too_long_begins_anew() {
    let material = new();
    let late = at(20 * 365 * DAY);
    assert_eq!(material.step(NAME, None, late), Step::Change(Change::Everything));
    let anew = material.changed(Change::Everything, NAME, late).unwrap();
    assert!(accepted(&anew.bundle(), &anew, late));
    assert!(matches!(anew.step(NAME, None, late), Step::Keep { .. }));
    // The leaf alone.
    let late = at(100 * DAY);
    assert_eq!(material.step(NAME, None, late), Step::Change(Change::Leaf));
    let renewed = material.changed(Change::Leaf, NAME, late).unwrap();
    assert!(accepted(&material.bundle(), &renewed, late));
}

#[test]
fn a_deleted_secret_comes_back_with_what_is_in_use_and_other_keys_to_come() {
    let material = new();
    let recovered = Material::recovered(Some(&material), NAME, at(5)).unwrap();
    assert!(accepted(&material.bundle(), &recovered, at(5)));
    assert_eq!(recovered.step(NAME, Some(SETTLING), at(100)), Step::Change(Change::Promote));
    let again = Material::recovered(Some(&recovered), NAME, at(6)).unwrap();
    assert_eq!(again, recovered, "a second replica comes to the same");
}

/// Thirty years, with API servers that use each bundle a minute late, and replicas that serve with each certificate a minute
/// late.
#[test]
fn every_api_server_trusts_every_replica_all_the_time() {
    let lag = Duration::from_secs(60);
    let mut material = new();
    let mut now = at(0);
    // What is still in use somewhere: bundles and materials, with the moment at which each was replaced.
    let (mut bundles, mut served) = (vec![(material.bundle(), None)], vec![(material.clone(), None)]);
    let mut published = now;
    let (mut promotions, mut leaves) = (0, 0);
    while now < at(30 * 365 * DAY) {
        let step = material.step(NAME, Duration::try_from(now.duration_since(published)).ok(), now);
        let Step::Change(change) = step else {
            let Step::Keep { until } = step else { unreachable!() };
            assert!(until > now);
            // Often enough to see a rotation's minute, and not for every minute of thirty years.
            now = until.min(if material.next.is_some() { now + Duration::from_secs(20) } else { until });
            continue;
        };
        promotions += usize::from(change == Change::Promote);
        leaves += usize::from(change == Change::Leaf);
        assert_ne!(change, Change::Everything);
        material = material.changed(change, NAME, now).unwrap();
        if material.bundle() != bundles.last().unwrap().0 {
            bundles.last_mut().unwrap().1 = Some(now);
            bundles.push((material.bundle(), None));
            published = now;
        }
        served.last_mut().unwrap().1 = Some(now);
        served.push((material.clone(), None));
        let in_use = |replaced: Option<Timestamp>| replaced.is_none_or(|at| now < at + lag);
        bundles.retain(|(_, replaced)| in_use(*replaced));
        served.retain(|(_, replaced)| in_use(*replaced));
        for (bundle, _) in &bundles {
            for (shown, _) in &served {
                assert!(accepted(bundle, shown, now), "at {now} after {change:?}");
            }
        }
    }
    assert!(promotions >= 3 && leaves > 100, "{promotions} promotions, {leaves} leaves");
    assert!(material.bundle().matches("BEGIN").count() <= 3, "old CAs leave");
}
