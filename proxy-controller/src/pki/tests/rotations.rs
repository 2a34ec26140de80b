//! Replacing the CA.

use rustls_pki_types::CertificateDer;

use super::{
    super::{Generation, MAX_RETIRED, Observed, Phase, Seen, Why},
    HOUR, NAME, Plan, World, client, verify,
};

fn accepted(generation: u64) -> Observed {
    Observed { accepted: Some(Generation(generation)), shown: None }
}

fn shown(generation: u64) -> Observed {
    Observed { accepted: None, shown: Some(Generation(generation)) }
}

fn cas(plan: &Plan) -> usize {
    verify::certificates(&plan.bundle).len()
}

fn chain(plan: &Plan) -> usize {
    verify::certificates(&plan.serving.identity.chain).len()
}

#[test]
fn bundle_then_leaves_then_the_old_ca_goes() {
    let mut world = World::new();
    let first = world.settled();
    assert_eq!((first.phase, cas(&first), chain(&first), first.rotation), (Phase::Stable, 1, 1, 0));

    world.wanted.rotation = 1;
    let plan = world.blind();
    assert_eq!((plan.phase, cas(&plan), chain(&plan), plan.rotation), (Phase::Distributing, 2, 1, 0));
    assert!(plan.serving.new.is_none(), "the old CA signs until the new one is trusted");
    assert_eq!(world.step(accepted(1)).phase, Phase::Distributing, "that is the old CA");

    let plan = world.step(accepted(2));
    assert_eq!((plan.phase, cas(&plan), chain(&plan), plan.rotation), (Phase::Replacing, 2, 2, 1));
    assert_eq!((plan.serving.new, plan.clients["default"].new), (Some(Why::Signer), Some(Why::Signer)));
    // The bundle that a client read before the rotation.
    verify::server(&first.bundle, &plan.serving.identity, NAME, world.now).unwrap();
    verify::client(&first.bundle, client(&plan), world.now).unwrap();
    // A client with its old certificate.
    verify::client(&plan.bundle, client(&first), world.now).unwrap();
    assert_eq!(plan.oldest_read_once_until, first.ca_expires);
    assert_eq!(plan.read_once_until, plan.ca_expires);

    world.pass(3700);
    let plan = world.step(shown(1));
    assert_eq!((plan.phase, cas(&plan)), (Phase::Replacing, 2), "a proxy still shows a leaf of the old CA");
    let plan = world.step(shown(2));
    assert_eq!((plan.phase, cas(&plan)), (Phase::Stable, 1), "its last leaf has expired");
    verify::server(&first.bundle, &plan.serving.identity, NAME, world.now).unwrap();

    // When the old CA expires the certificates by it go too.
    world.now = first.ca_expires;
    let plan = world.blind();
    assert!(!verify::alive(&first.bundle, world.now));
    assert!(plan.oldest_read_once_until > world.now);
    assert!(!plan.authority.encode().contains_key("ca-1.key"));
    assert_eq!(chain(&world.blind()), chain(&plan));
}

#[test]
fn the_old_ca_stays_while_a_leaf_of_it_lives() {
    let mut world = World::new();
    let first = world.settled();
    world.pass(1000);
    world.wanted.rotation = 1;
    world.blind();
    let plan = world.settled();
    assert_eq!(plan.phase, Phase::Replacing);
    let plan = world.settled();
    assert_eq!((plan.phase, cas(&plan)), (Phase::Retiring, 2));
    world.now = first.serving.expires;
    world.pass(-1);
    let plan = world.blind();
    assert_eq!((plan.phase, cas(&plan)), (Phase::Retiring, 2));
    verify::client(&plan.bundle, client(&first), world.now).unwrap();
    assert_eq!(plan.wake, first.serving.expires);
    world.pass(1);
    let plan = world.blind();
    assert_eq!((plan.phase, cas(&plan)), (Phase::Stable, 1));
}

#[test]
fn a_request_during_a_rotation_waits_and_then_proceeds() {
    let mut world = World::new();
    let first = world.settled();
    world.wanted.rotation = 1;
    world.blind();
    world.wanted.rotation = 7;
    let plan = world.blind();
    assert!(plan.reason.contains("rotation 7 follows"), "{}", plan.reason);
    let plan = world.step(accepted(2));
    assert_eq!((plan.phase, plan.rotation), (Phase::Replacing, 1));
    assert!(plan.reason.contains("rotation 7 waits"), "{}", plan.reason);
    let second = world.step(shown(2));
    assert_eq!((second.phase, cas(&second)), (Phase::Distributing, 3));
    let third = world.step(accepted(3));
    assert_eq!((third.rotation, chain(&third), cas(&third)), (7, 3, 3));
    for bundle in [&first.bundle, &second.bundle, &third.bundle] {
        verify::server(bundle, &third.serving.identity, NAME, world.now).unwrap();
        verify::client(bundle, client(&third), world.now).unwrap();
    }
    world.settled();
    assert_eq!(world.blind().phase, Phase::Retiring, "and it was the last");
}

#[test]
fn a_lower_number_asks_for_nothing() {
    let mut world = World::new();
    world.wanted.rotation = 5;
    assert_eq!(world.blind().rotation, 5);
    world.wanted.rotation = 4;
    assert_eq!(world.blind().phase, Phase::Stable);
}

#[test]
fn age_replaces_a_ca_and_does_not_wait_for_ever() {
    let mut world = World::new();
    let first = world.blind();
    world.pass(8 * 3600 - 1);
    assert_eq!(world.blind().phase, Phase::Stable);
    world.pass(1);
    assert_eq!(world.blind().phase, Phase::Distributing);
    world.pass(2 * 3600 - 1);
    let plan = world.blind();
    assert_eq!((plan.phase, plan.wake.as_second()), (Phase::Distributing, world.now.as_second() + 1));
    world.pass(1);
    let plan = world.blind();
    assert_eq!((plan.phase, plan.serving.new), (Phase::Replacing, Some(Why::Signer)));
    // Nobody has seen the new bundle.
    verify::server(&first.bundle, &plan.serving.identity, NAME, world.now).unwrap();
    verify::client(&first.bundle, client(&plan), world.now).unwrap();
}

#[test]
fn another_ca_validity_replaces_the_ca() {
    let mut world = World::new();
    let first = world.settled();
    world.wanted.ca_validity /= 2;
    assert_eq!(world.blind().phase, Phase::Distributing);
    let plan = world.settled();
    assert_eq!(plan.ca_expires.as_second(), world.now.as_second() + 6 * 3600);
    // What read its bundle once outlives the shorter CA in between.
    world.settled();
    world.pass(7 * 3600);
    world.settled();
    let plan = world.settled();
    assert!(plan.authority.generation() > Generation(2) && verify::alive(&first.bundle, world.now));
    verify::server(&first.bundle, &plan.serving.identity, NAME, world.now).unwrap();
}

#[test]
fn a_long_sleep_ends_with_working_certificates() {
    for hours in [9, 11, 12, 13, 100] {
        for asked in [0, 1] {
            let mut world = World::new();
            world.blind();
            world.wanted.rotation = asked;
            world.blind();
            world.pass(hours * 3600);
            let plan = world.blind();
            verify::server(&plan.bundle, &plan.serving.identity, NAME, world.now).unwrap();
            verify::client(&plan.bundle, client(&plan), world.now).unwrap();
            assert!(plan.ca_expires > world.now && plan.serving.expires > world.now, "after {hours} hours");
        }
    }
}

#[test]
fn requests_do_not_grow_the_secret_for_ever() {
    let mut world = World::new();
    let first = world.settled();
    for rotation in 1..=40 {
        world.wanted.rotation = rotation;
        world.settled();
        world.settled();
    }
    let plan = world.settled();
    assert!(plan.rotation <= 13 && plan.reason.contains("have not expired"), "{}", plan.reason);
    assert_eq!(chain(&plan), MAX_RETIRED + 1);
    // One way for each, with a single intermediate: webpki's limit of six is not met.
    verify::server(&first.bundle, &plan.serving.identity, NAME, world.now).unwrap();
    let bytes: usize = plan.authority.encode().values().map(Vec::len).sum();
    assert!(bytes < 64 * 1024, "{bytes}");
    // Age does not wait.
    world.pass(8 * 3600);
    assert_eq!(world.blind().phase, Phase::Distributing);
    // And when the old ones have expired it goes on.
    world.pass(4 * 3600);
    world.settled();
    world.settled();
    assert_eq!(world.settled().rotation, 40);
}

#[test]
fn an_unused_next_ca_that_expires_is_made_again_under_another_number() {
    let mut world = World::new();
    world.blind();
    world.wanted.ca_validity = std::time::Duration::from_secs(HOUR);
    world.wanted.validity = std::time::Duration::from_secs(600);
    assert!(world.blind().reason.contains("CA 2 is in the bundle"));
    world.pass(3600);
    let plan = world.blind();
    assert!(plan.reason.contains("CA 3 is in the bundle"), "{}", plan.reason);
}

#[test]
fn what_probes_see_is_what_is_observed() {
    let mut world = World::new();
    let first = world.settled();
    let leaf = |plan: &Plan| verify::certificates(&plan.serving.identity.chain)[0].clone();
    let old = leaf(&first);
    fn of(plan: &Plan, proxies: &[Option<(&CertificateDer<'static>, bool)>]) -> Observed {
        let proxies = proxies.iter().map(|proxy| proxy.map(|(leaf, accepts_next)| Seen { leaf, accepts_next }));
        Observed::of(&plan.authority, proxies)
    }
    assert_eq!(of(&first, &[Some((&old, false))]), shown(1));
    assert_eq!(of(&first, &[Some((&old, true))]), shown(1), "there is no next CA to accept");
    assert_eq!(of(&first, &[Some((&old, false)), None]), Observed::default());
    assert_eq!(of(&first, &[]), Observed::nothing_runs());

    world.wanted.rotation = 1;
    let plan = world.blind();
    let both = |a, b| Observed { accepted: Some(Generation(a)), shown: Some(Generation(b)) };
    assert_eq!(of(&plan, &[Some((&old, true)), Some((&old, false))]), shown(1));
    assert_eq!(of(&plan, &[Some((&old, true)), Some((&old, true))]), both(2, 1));
    let plan = world.step(both(2, 1));
    let new = leaf(&plan);
    assert_eq!(of(&plan, &[Some((&old, false)), Some((&new, false))]), shown(1));
    assert_eq!(of(&plan, &[Some((&new, false)), Some((&new, false))]), shown(2));
    let foreign = leaf(&World::of("other").blind());
    assert_eq!(of(&plan, &[Some((&new, false)), Some((&foreign, false))]), Observed::default());
}

#[test]
fn a_probe_is_accepted_by_the_new_bundle_only() {
    let mut world = World::new();
    let first = world.settled();
    assert_eq!(first.authority.probe_identity("ns/tenant/default", world.now).unwrap(), None);
    world.wanted.rotation = 1;
    let plan = world.blind();
    let probe = plan.authority.probe_identity("ns/tenant/default", world.now).unwrap().unwrap();
    verify::client(&first.bundle, &probe, world.now).unwrap_err();
    verify::client(&plan.bundle, &probe, world.now).unwrap();
}
