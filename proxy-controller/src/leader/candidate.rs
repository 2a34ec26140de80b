//! What a candidate has seen, and what follows from it. No I/O, no clock of its own.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use tokio::time::Instant;

/// A candidate's knowledge.
pub(super) struct Candidate {
    namespace: String,
    name: String,
    identity: String,
    lease_duration: Duration,
    /// Whether the last that this candidate wrote, or learnt, is that it leads.
    leads: bool,
    observed: Option<Observed>,
}

/// The Lease as it was last seen, and since when its record is so.
struct Observed {
    lease: Lease,
    since: Instant,
}

/// What a candidate does after it has read the Lease.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// There is none: be the first.
    Create(Lease),
    /// It is this candidate's, given back, or not renewed for too long: write this, under its resourceVersion.
    Replace(Lease),
    /// Somebody else holds it.
    Wait,
    /// It was this candidate's and is no more.
    Lost {
        /// Who is in it now; empty: nobody.
        holder: String,
    },
}

impl Candidate {
    pub(super) fn new(namespace: &str, name: &str, identity: &str, lease_duration: Duration) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            lease_duration,
            leads: false,
            observed: None,
        }
    }

    /// Who leads as far as is known; `None`: nobody, or never looked.
    pub(super) fn holder(&self) -> Option<&str> {
        self.observed.as_ref().map(|observed| holder(&observed.lease)).filter(|holder| !holder.is_empty())
    }

    /// What renews the lead that this candidate has, without reading first.
    pub(super) fn renewal(&self, now: Instant, time: Timestamp) -> Option<Lease> {
        let observed = self.observed.as_ref().filter(|observed| observed.is_valid(now))?;
        (holder(&observed.lease) == self.identity).then(|| self.renewed(observed.lease.clone(), time))
    }

    /// What to do about the Lease as it was read at `now`.
    pub(super) fn after_reading(&mut self, found: Option<Lease>, now: Instant, time: Timestamp) -> Step {
        let Some(found) = found else {
            self.observed = None;
            return Step::Create(self.first(time));
        };
        let observed = match self.observed.take() {
            // Only the record counts: labels change without the holder's doing.
            Some(Observed { lease, since }) if lease.spec == found.spec => Observed { lease: found, since },
            _ => Observed { lease: found, since: now },
        };
        let holder = holder(&observed.lease).to_owned();
        let lease = observed.lease.clone();
        let is_free = holder.is_empty() || !observed.is_valid(now);
        self.observed = Some(observed);
        if holder == self.identity {
            Step::Replace(self.renewed(lease, time))
        } else if std::mem::take(&mut self.leads) {
            Step::Lost { holder }
        } else if is_free {
            Step::Replace(self.taken_over(lease, time))
        } else {
            Step::Wait
        }
    }

    /// The API server has accepted what this candidate wrote.
    pub(super) fn wrote(&mut self, lease: Lease, now: Instant) {
        self.leads = holder(&lease) == self.identity;
        self.observed = Some(Observed { lease, since: now });
    }

    /// What gives the lead back, if this candidate has it.
    pub(super) fn released(&self, found: Lease, time: Timestamp) -> Option<Lease> {
        if holder(&found) != self.identity {
            return None;
        }
        let transitions = transitions(&found);
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            // The API server takes no 0.
            lease_duration_seconds: Some(1),
            ..self.spec(time, MicroTime(time), transitions)
        };
        Some(Lease { spec: Some(spec), ..found })
    }

    fn first(&self, time: Timestamp) -> Lease {
        let metadata = ObjectMeta {
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            ..ObjectMeta::default()
        };
        Lease { metadata, spec: Some(self.spec(time, MicroTime(time), 0)) }
    }

    fn renewed(&self, lease: Lease, time: Timestamp) -> Lease {
        let acquired = lease.spec.as_ref().and_then(|spec| spec.acquire_time.clone()).unwrap_or(MicroTime(time));
        let spec = self.spec(time, acquired, transitions(&lease));
        Lease { spec: Some(spec), ..lease }
    }

    fn taken_over(&self, lease: Lease, time: Timestamp) -> Lease {
        let spec = self.spec(time, MicroTime(time), transitions(&lease).saturating_add(1));
        Lease { spec: Some(spec), ..lease }
    }

    fn spec(&self, renewed: Timestamp, acquired: MicroTime, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(self.lease_duration.as_secs()).unwrap_or(i32::MAX)),
            acquire_time: Some(acquired),
            renew_time: Some(MicroTime(renewed)),
            lease_transitions: Some(transitions),
            preferred_holder: None,
            strategy: None,
        }
    }
}

impl Observed {
    /// Whether its holder may still lead. The record says for how long it is good, not this candidate's own flag.
    fn is_valid(&self, now: Instant) -> bool {
        let seconds = self.lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
        let duration = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        now.saturating_duration_since(self.since) < duration
    }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

fn transitions(lease: &Lease) -> i32 {
    lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    fn candidate(identity: &str) -> Candidate {
        Candidate::new("control", "proxy-controller", identity, LEASE)
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn created(candidate: &mut Candidate, now: Instant) -> Lease {
        match candidate.after_reading(None, now, at(0)) {
            Step::Create(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_creates_it_and_keeps_it() {
        let (mut a, now) = (candidate("a"), Instant::now());
        let lease = created(&mut a, now);
        assert_eq!(a.renewal(now, at(0)), None, "not accepted yet");
        a.wrote(lease, now);
        let spec = a.renewal(now + Duration::from_secs(2), at(2)).unwrap().spec.unwrap();
        assert_eq!(spec.holder_identity.as_deref(), Some("a"));
        assert_eq!((spec.acquire_time, spec.renew_time), (Some(MicroTime(at(0))), Some(MicroTime(at(2)))));
        assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(15), Some(0)));
        assert_eq!(a.renewal(now + LEASE, at(15)), None, "others may have taken it");
    }

    #[test]
    fn others_wait_for_a_whole_lease_on_their_own_clock() {
        let now = Instant::now();
        let mut lease = created(&mut candidate("a"), now);
        // The holder's clock is years behind: nothing depends on it.
        let spec = lease.spec.as_mut().unwrap();
        spec.renew_time = Some(MicroTime(Timestamp::UNIX_EPOCH));
        let mut b = candidate("b");
        let almost = LEASE - Duration::from_millis(1);
        assert_eq!(b.after_reading(Some(lease.clone()), now, at(0)), Step::Wait);
        assert_eq!(b.after_reading(Some(lease.clone()), now + almost, at(14)), Step::Wait);
        // A renewal starts the wait anew; a label does not.
        lease.spec.as_mut().unwrap().renew_time = Some(MicroTime(at(1)));
        assert_eq!(b.after_reading(Some(lease.clone()), now + almost, at(14)), Step::Wait);
        lease.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        assert_eq!(b.after_reading(Some(lease.clone()), now + almost + almost, at(28)), Step::Wait);
        let Step::Replace(taken) = b.after_reading(Some(lease.clone()), now + almost + LEASE, at(30)) else {
            panic!("not taken over");
        };
        let spec = taken.spec.unwrap();
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_transitions), (Some("b"), Some(1)));
        assert_eq!(spec.acquire_time, Some(MicroTime(at(30))));
        assert_eq!(taken.metadata, lease.metadata, "written under the resourceVersion that was read");
    }

    #[test]
    fn a_lease_that_was_given_back_is_free_at_once() {
        let now = Instant::now();
        let mut a = candidate("a");
        let lease = created(&mut a, now);
        a.wrote(lease.clone(), now);
        let released = a.released(lease, at(3)).unwrap();
        let spec = released.spec.clone().unwrap();
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some(""), Some(1)));
        let mut b = candidate("b");
        let Step::Replace(taken) = b.after_reading(Some(released), now, at(3)) else { panic!("not taken") };
        assert_eq!(taken.spec.as_ref().unwrap().lease_transitions, Some(1));
        assert_eq!(a.released(taken, at(4)), None, "another's lease is not given back");
    }

    #[test]
    fn a_leader_that_finds_another_name_has_lost() {
        let now = Instant::now();
        for holder in ["b", ""] {
            let mut a = candidate("a");
            let mut lease = created(&mut a, now);
            a.wrote(lease.clone(), now);
            lease.spec.as_mut().unwrap().holder_identity = Some(holder.to_owned());
            assert_eq!(a.after_reading(Some(lease), now, at(1)), Step::Lost { holder: holder.to_owned() });
        }
    }

    #[test]
    fn a_leader_whose_lease_was_deleted_makes_it_again_unless_another_was_faster() {
        let now = Instant::now();
        let mut a = candidate("a");
        let lease = created(&mut a, now);
        a.wrote(lease, now);
        created(&mut a, now);
        let other = created(&mut candidate("b"), now);
        assert_eq!(a.after_reading(Some(other), now, at(1)), Step::Lost { holder: "b".to_owned() });
    }

    #[test]
    fn a_write_whose_answer_was_lost_is_recognised() {
        let now = Instant::now();
        let mut a = candidate("a");
        let lease = created(&mut a, now);
        let Step::Replace(renewed) = a.after_reading(Some(lease), now, at(2)) else { panic!("its own lease") };
        assert_eq!(renewed.spec.unwrap().lease_transitions, Some(0));
    }
}
