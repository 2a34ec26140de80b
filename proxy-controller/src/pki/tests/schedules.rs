//! Random histories: time passes, the CA is asked to be replaced, validities change, Secrets reach proxies and clients late or
//! never. Whoever meets whom, they accept each other.

use std::{cell::Cell, time::Duration};

use proptest::{collection::vec, prelude::*, test_runner::TestRunner};

use super::{
    super::{Identity, MAX_RETIRED, Observed, Phase, Seen, Wanted},
    NAME, Plan, World, client, verify,
};

#[derive(Clone, Debug)]
enum Event {
    /// So many seconds pass, and the controller plans whenever it asked to be woken.
    Pass(i64),
    /// So many seconds pass, and the controller does not run meanwhile.
    Sleep(i64),
    /// Somebody raises `caRotation`.
    Rotate,
    /// Somebody changes the validity of leaves, or of CAs.
    Validity(u64),
    CaValidity(u64),
    /// What is stored now reaches a proxy.
    Deliver(usize),
    /// What is stored now reaches the client that reads its files again.
    Read,
    /// A client starts that reads its bundle now and never again.
    Start,
    /// The controller looks at the proxies.
    Probe,
    /// What is stored now reaches every proxy, and the controller sees that it did.
    Settle,
}

/// What somebody has read.
#[derive(Clone)]
struct Held {
    bundle: String,
    identity: Identity,
}

struct History {
    world: World,
    proxies: Vec<Held>,
    /// The identity is the latest, as with Go's client; the bundle is the one of the start.
    once: Vec<Held>,
    /// Reads both again, late.
    late: Held,
    last: Plan,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        5 => (1_i64..400).prop_map(Event::Pass),
        1 => (1_i64..700).prop_map(Event::Sleep),
        4 => Just(Event::Rotate),
        1 => (60_u64..200).prop_map(Event::Validity),
        1 => (900_u64..2000).prop_map(Event::CaValidity),
        5 => (0_usize..2).prop_map(Event::Deliver),
        4 => Just(Event::Read),
        3 => Just(Event::Start),
        5 => Just(Event::Probe),
        6 => Just(Event::Settle),
    ];
    vec(event, 10..50)
}

fn served(plan: &Plan) -> Held {
    Held { bundle: plan.bundle.clone(), identity: plan.serving.identity.clone() }
}

fn held(plan: &Plan) -> Held {
    Held { bundle: plan.bundle.clone(), identity: client(plan).clone() }
}

impl History {
    fn new() -> Self {
        let mut world = World::new();
        world.wanted.validity = Duration::from_secs(90);
        world.wanted.ca_validity = Duration::from_secs(900);
        let last = world.blind();
        let proxies = vec![served(&last), served(&last)];
        Self { world, proxies, once: vec![held(&last)], late: held(&last), last }
    }

    fn step(&mut self, observed: Observed) {
        self.last = self.world.step(observed);
    }

    fn happen(&mut self, event: &Event) {
        match *event {
            Event::Pass(seconds) => {
                let end = self.world.now + jiff::SignedDuration::from_secs(seconds);
                while self.last.wake <= end {
                    self.world.now = self.last.wake;
                    // Up to the very moment of the renewal, what is stored is good.
                    assert!(self.last.serving.expires >= self.world.now);
                    self.step(Observed::default());
                    self.verify();
                }
                self.world.now = end;
            }
            Event::Sleep(seconds) => {
                self.world.pass(seconds);
                self.step(Observed::default());
            }
            Event::Rotate => {
                self.world.wanted.rotation += 1;
                self.step(Observed::default());
            }
            Event::Validity(seconds) => {
                self.world.wanted.validity = Duration::from_secs(seconds);
                self.step(Observed::default());
            }
            Event::CaValidity(seconds) => {
                self.world.wanted.ca_validity = Duration::from_secs(seconds);
                self.step(Observed::default());
            }
            Event::Deliver(proxy) => self.proxies[proxy] = served(&self.last),
            Event::Read => self.late = held(&self.last),
            Event::Start => self.once.push(held(&self.last)),
            Event::Probe => self.probe(),
            Event::Settle => {
                self.proxies.fill(served(&self.last));
                self.probe();
            }
        }
        self.verify();
    }

    /// What a real probe tells, by real verification.
    fn probe(&mut self) {
        let now = self.world.now;
        let name = self.world.wanted.clients["default"].clone();
        let probe = self.last.authority.probe_identity(&name, now).unwrap();
        let leaves: Vec<_> =
            self.proxies.iter().map(|proxy| verify::certificates(&proxy.identity.chain)[0].clone()).collect();
        let seen = self.proxies.iter().zip(&leaves).map(|(proxy, leaf)| {
            let accepts_next = probe.as_ref().is_some_and(|probe| verify::client(&proxy.bundle, probe, now).is_ok());
            Some(Seen { leaf, accepts_next })
        });
        let observed = Observed::of(&self.last.authority, seen);
        self.step(observed);
    }

    fn verify(&mut self) {
        let now = self.world.now;
        let current = (served(&self.last), held(&self.last));
        // Those whose every CA has expired are beyond the promise.
        self.once.retain(|client| verify::alive(&client.bundle, now));
        let latest = client(&self.last);
        let servers: Vec<&Held> = self.proxies.iter().chain([&current.0]).collect();
        let clients = self.once.iter().map(|once| (once.bundle.as_str(), latest));
        let clients = clients.chain([&self.late, &current.1].map(|held| (held.bundle.as_str(), &held.identity)));
        for (bundle, identity) in clients {
            for server in &servers {
                if fresh(&server.identity, now) && verify::alive(bundle, now) {
                    verify::server(bundle, &server.identity, NAME, now).unwrap();
                }
                if fresh(identity, now) && verify::alive(&server.bundle, now) {
                    verify::client(&server.bundle, identity, now).unwrap();
                }
            }
        }
        verify::server(&current.1.bundle, &current.0.identity, NAME, now).unwrap();
        verify::client(&current.0.bundle, &current.1.identity, now).unwrap();
        assert!(self.last.authority.encode().len() <= 1 + 2 * (MAX_RETIRED + 6) + 2 * (MAX_RETIRED + 6));
    }
}

fn fresh(identity: &Identity, now: jiff::Timestamp) -> bool {
    use super::super::ca::{not_after, parse};
    not_after(&parse(&verify::certificates(&identity.chain)[0]).unwrap()).unwrap() > now
}

#[test]
fn whoever_meets_whom_they_accept_each_other() {
    let met = Cell::new(0);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 16,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result = runner.run(&events(), |events| {
        let mut history = History::new();
        for event in &events {
            history.happen(event);
            let oldest = history.once.iter().map(|once| verify::certificates(&once.bundle).len()).min();
            let replaced = history.last.authority.generation().0 > 3;
            met.set(met.get() + usize::from(replaced && oldest == Some(1)));
        }
        // Whatever happened, it goes on: the last wish is carried out once everybody reads what is stored.
        let wanted: Wanted = history.world.wanted.clone();
        for _ in 0..60 {
            let plan = history.world.settled();
            if plan.rotation == wanted.rotation && plan.phase == Phase::Stable {
                return Ok(());
            }
            history.world.now = plan.wake;
        }
        Err(TestCaseError::fail(format!("rotation {} is never carried out", wanted.rotation)))
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(met.get() > 0, "no client with the first bundle was there after three CAs");
}
