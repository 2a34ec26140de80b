//! The certificates as TLS sees them, at chosen times.

mod leaves;
mod rotations;
mod schedules;
mod storage;
mod verify;

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};

use super::{Authority, Identity, Observed, Owner, PkiError, Plan, Stored, Wanted, plan};

const HOUR: u64 = 3600;
const NAME: &str = "base.proxies.svc";

/// What a controller does: plans, stores, and plans again later from what it stored.
struct World {
    now: Timestamp,
    wanted: Wanted,
    files: Option<BTreeMap<String, Vec<u8>>>,
    stored: Stored,
}

impl World {
    /// Leaves of one hour, CAs of twelve.
    fn new() -> Self {
        Self::of("tenant")
    }

    fn of(name: &str) -> Self {
        let wanted = Wanted {
            owner: Owner { namespace: "ns".into(), name: name.into(), uid: format!("uid-of-{name}") },
            dns_names: [NAME.to_owned(), "*.pods.svc".to_owned()].into(),
            ip_addresses: ["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()].into(),
            clients: [("default".to_owned(), format!("ns/{name}/default"))].into(),
            validity: Duration::from_secs(HOUR),
            ca_validity: Duration::from_secs(12 * HOUR),
            rotation: 0,
        };
        Self { now: "2026-12-01T10:00:00.25Z".parse().unwrap(), wanted, files: None, stored: Stored::default() }
    }

    fn authority(&self) -> Option<Authority> {
        let files = self.files.as_ref()?;
        Some(Authority::decode(files, &self.wanted.owner).unwrap())
    }

    fn try_plan(&self, observed: Observed) -> Result<Plan, PkiError> {
        plan(self.authority().as_ref(), &self.stored, &self.wanted, observed, self.now)
    }

    /// Plans and stores.
    fn step(&mut self, observed: Observed) -> Plan {
        let plan = self.try_plan(observed).unwrap();
        let files = plan.authority.encode();
        assert_eq!(plan.authority_changed, self.files.as_ref() != Some(&files));
        self.files = Some(files);
        self.stored.serving = Some(plan.serving.identity.clone());
        self.stored.clients = plan.clients.iter().map(|(name, leaf)| (name.clone(), leaf.identity.clone())).collect();
        assert!(plan.wake > self.now, "wakes at {} and it is {}", plan.wake, self.now);
        plan
    }

    /// Nothing is known of the proxies.
    fn blind(&mut self) -> Plan {
        self.step(Observed::default())
    }

    /// Every proxy has what is stored.
    fn settled(&mut self) -> Plan {
        self.step(Observed::nothing_runs())
    }

    fn pass(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }
}

fn client(plan: &Plan) -> &Identity {
    &plan.clients["default"].identity
}
