//! One CA: what leaves look like, and when they are issued anew.

use rustls::CertificateError;

use super::{super::Why, HOUR, NAME, World, client, verify};

#[test]
fn leaves_are_accepted_by_the_other_side_only() {
    let mut world = World::new();
    let plan = world.blind();
    assert_eq!((plan.serving.new, plan.clients["default"].new), (Some(Why::Missing), Some(Why::Missing)));
    for name in [NAME, "one.pods.svc", "10.0.0.7", "fd00::7"] {
        verify::server(&plan.bundle, &plan.serving.identity, name, world.now).unwrap();
    }
    verify::server(&plan.bundle, &plan.serving.identity, "10.0.0.8", world.now).unwrap_err();
    verify::client(&plan.bundle, client(&plan), world.now).unwrap();
    assert!(matches!(
        verify::client(&plan.bundle, &plan.serving.identity, world.now),
        Err(CertificateError::InvalidPurposeContext { .. })
    ));
    assert!(matches!(
        verify::server(&plan.bundle, client(&plan), NAME, world.now),
        Err(CertificateError::InvalidPurposeContext { .. })
    ));
}

#[test]
fn another_object_trusts_nothing_of_this_one() {
    let (mut one, mut other) = (World::new(), World::of("other"));
    let mut namesake = World::new();
    namesake.wanted.owner.uid = "later".into();
    let plan = one.blind();
    for other in [other.blind(), namesake.blind()] {
        assert_eq!(verify::client(&other.bundle, client(&plan), one.now), Err(CertificateError::UnknownIssuer));
        assert_eq!(
            verify::server(&other.bundle, &plan.serving.identity, NAME, one.now),
            Err(CertificateError::UnknownIssuer)
        );
    }
}

#[test]
fn a_leaf_is_kept_until_two_thirds_of_its_life_are_over() {
    let mut world = World::new();
    let first = world.blind();
    assert_eq!(first.wake.as_second(), world.now.as_second() + 2400);
    world.pass(2399);
    let plan = world.blind();
    assert!(plan.serving.new.is_none() && plan.clients["default"].new.is_none() && !plan.authority_changed);
    assert_eq!(plan.serving.identity, first.serving.identity);
    world.pass(1);
    let plan = world.blind();
    assert_eq!((plan.serving.new, plan.clients["default"].new), (Some(Why::Due), Some(Why::Due)));
    assert_eq!(plan.serving.expires.as_second(), world.now.as_second() + 3600);
    assert!(plan.authority_changed, "the authority has to remember until when its leaves live");
}

#[test]
fn a_clock_that_is_behind_accepts_a_fresh_leaf() {
    let mut world = World::new();
    let plan = world.blind();
    world.pass(-299);
    verify::client(&plan.bundle, client(&plan), world.now).unwrap();
}

/// `(what is done to the world, why leaves are issued, whether the client's too)`
type Change = (fn(&mut World), Why, bool);

#[test]
fn what_differs_from_the_wish_is_issued_at_once() {
    let changes: [Change; 8] = [
        (|world| world.wanted.dns_names.extend(["more.svc".into()]), Why::Names, false),
        (|world| world.wanted.dns_names.retain(|name| name == NAME), Why::Names, false),
        (|world| world.wanted.ip_addresses.retain(|address| address.is_ipv6()), Why::Names, false),
        (|world| world.wanted.validity *= 2, Why::Validity, true),
        (|world| world.wanted.validity /= 2, Why::Validity, true),
        (|world| world.files = None, Why::Signer, true),
        (
            |world| {
                let other = World::of("other").blind();
                world.stored.serving = Some(other.serving.identity);
                world.stored.clients = [("default".into(), client(&World::of("other").blind()).clone())].into();
            },
            Why::Signer,
            true,
        ),
        (
            |world| {
                let client = world.stored.clients["default"].clone();
                world.stored.clients.insert("default".into(), world.stored.serving.replace(client).unwrap());
            },
            Why::Usage,
            true,
        ),
    ];
    for (number, (change, why, client_too)) in changes.into_iter().enumerate() {
        let mut world = World::new();
        world.blind();
        change(&mut world);
        let plan = world.blind();
        let client_why = client_too.then_some(why);
        assert_eq!((plan.serving.new, plan.clients["default"].new), (Some(why), client_why), "change {number}");
        let plan = world.blind();
        assert_eq!((plan.serving.new, plan.clients["default"].new), (None, None), "change {number} has no end");
        verify::server(&plan.bundle, &plan.serving.identity, "fd00::7", world.now).unwrap();
    }
}

#[test]
fn a_renamed_client_gets_a_new_certificate_and_the_others_keep_theirs() {
    let mut world = World::new();
    world.wanted.clients.insert("b".into(), "ns/tenant/b".into());
    world.blind();
    world.wanted.clients.insert("b".into(), "ns/tenant/c".into());
    let plan = world.blind();
    assert_eq!((plan.clients["b"].new, plan.clients["default"].new), (Some(Why::Names), None));
}

#[test]
fn damage_is_repaired() {
    let intact = World::new().blind().serving.identity;
    type Damage = fn(&str, &str) -> (String, String);
    let damages: [(Damage, Why); 8] = [
        (|_, key| (String::new(), key.into()), Why::Damaged),
        (|chain, _| (chain.into(), String::new()), Why::Damaged),
        (|chain, key| (chain.replace("BEGIN", "BEGUN"), key.into()), Why::Damaged),
        (|chain, key| (format!("note\n{chain}"), key.into()), Why::Damaged),
        (|chain, key| (chain.replacen('M', "A", 3), key.into()), Why::Damaged),
        (|chain, key| (chain.into(), format!("{key}\n")), Why::Damaged),
        (|chain, key| (format!("{chain}{chain}"), key.into()), Why::Chain),
        (|chain, _| (chain.into(), World::of("other").blind().serving.identity.key), Why::Key),
    ];
    for (number, (damage, why)) in damages.into_iter().enumerate() {
        let mut world = World::new();
        world.blind();
        let stored = world.stored.serving.as_mut().unwrap();
        (stored.chain, stored.key) = damage(&stored.chain, &stored.key);
        let plan = world.blind();
        assert_eq!(plan.serving.new, Some(why), "damage {number}");
        assert_ne!(plan.serving.identity, intact);
        verify::server(&plan.bundle, &plan.serving.identity, NAME, world.now).unwrap();
    }
}

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    let mut world = World::new();
    world.blind();
    let intact = world.stored.serving.clone().unwrap();
    let lines: Vec<&str> = intact.chain.lines().collect();
    for at in 1..lines.len() - 1 {
        let mut lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        let other = if lines[at].as_bytes()[9] == b'A' { "B" } else { "A" };
        lines[at].replace_range(9..10, other);
        world.stored.serving.as_mut().unwrap().chain = lines.join("\n") + "\n";
        assert!(world.try_plan(super::Observed::default()).unwrap().serving.new.is_some(), "line {at}");
    }
}

#[test]
fn a_leaf_never_outlives_its_ca() {
    let mut world = World::new();
    world.wanted.validity = std::time::Duration::from_secs(12 * HOUR);
    let first = world.blind();
    assert_eq!(first.serving.expires, first.ca_expires);
    world.pass(8 * 3600 - 1);
    assert!(world.blind().serving.new.is_none());
    // The next CA exists and does not sign yet: a new leaf of the old one would not live longer.
    world.pass(1);
    let plan = world.blind();
    assert!(plan.serving.new.is_none());
    world.now = plan.wake;
    let plan = world.blind();
    assert_eq!(plan.serving.new, Some(Why::Signer));
    assert!(plan.serving.expires > first.ca_expires);
    // And issued later it is shorter than wanted.
    world.pass(1000);
    world.stored.serving = None;
    let plan = world.blind();
    assert_eq!((plan.serving.new, plan.serving.expires), (Some(Why::Missing), plan.ca_expires));
    assert!(world.blind().serving.new.is_none());
}

#[test]
fn impossible_wishes_are_refused_by_name() {
    let mut world = World::new();
    world.wanted.dns_names.insert("no name".into());
    assert!(world.try_plan(super::Observed::default()).unwrap_err().to_string().contains("no name"));
    let mut world = World::new();
    world.wanted.validity = std::time::Duration::MAX;
    world.try_plan(super::Observed::default()).unwrap_err();
    world.wanted.validity = std::time::Duration::from_secs(9);
    world.try_plan(super::Observed::default()).unwrap_err();
}
