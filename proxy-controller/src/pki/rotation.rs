//! When a CA is replaced, and by which steps.

use jiff::Timestamp;

use super::{Authority, Generation, Observed, Phase, PkiError, Wanted, authority::Retired, ca::Ca};

/// So many retired CAs that have not expired are the most that a request adds to: the leaves carry a certificate for each. A
/// CA that is replaced every year and valid for ten never meets it. Age alone replaces a CA nevertheless.
pub const MAX_RETIRED: usize = 12;

/// Where it stands.
pub(super) struct Rotation {
    pub(super) phase: Phase,
    pub(super) reason: String,
}

/// Whether the signer is to be replaced.
enum Replacement {
    No,
    Now,
    /// It is asked for, but has to wait.
    Waits(String),
}

impl Authority {
    /// Takes every step that time, wishes and observations admit.
    pub(super) fn advance(
        &mut self,
        wanted: &Wanted,
        observed: Observed,
        now: Timestamp,
    ) -> Result<Rotation, PkiError> {
        self.expire(now);
        for retired in &mut self.retired {
            retired.replaced |= observed.shown.is_some_and(|shown| shown > retired.ca.generation);
        }
        let mut waits = None;
        // After an expiry or a long wait the CA just promoted may itself be due: at most a few turns.
        loop {
            if self.next.is_none() {
                match self.replacement(wanted, now) {
                    Replacement::No => break,
                    Replacement::Waits(reason) => {
                        waits = Some(reason);
                        break;
                    }
                    Replacement::Now => self.start(wanted, now)?,
                }
            }
            if !self.promote(observed, now) {
                break;
            }
        }
        if let Some(next) = &self.next
            && wanted.rotation > next.rotation
        {
            waits = Some(format!("rotation {} follows", wanted.rotation));
        }
        Ok(self.standing(waits, now))
    }

    /// Forgets what has expired.
    fn expire(&mut self, now: Timestamp) {
        self.retired.retain(|retired| !retired.ca.expired(now));
        self.next.take_if(|next| next.expired(now));
        for ca in self.next.iter_mut().chain([&mut self.signer]) {
            ca.crosses.retain(|cross| now < cross.not_after);
        }
    }

    fn replacement(&self, wanted: &Wanted, now: Timestamp) -> Replacement {
        if now >= self.signer.due() {
            return Replacement::Now;
        }
        let what = if wanted.rotation > self.signer.rotation {
            format!("rotation {}", wanted.rotation)
        } else if wanted.ca_validity.as_secs() != self.signer.life() {
            "a CA of the new validity".to_owned()
        } else {
            return Replacement::No;
        };
        if self.retired.iter().any(|retired| !retired.replaced) {
            return Replacement::Waits(format!("{what} waits for the end of the present one"));
        }
        match self.retired.iter().map(|retired| retired.ca.not_after).min() {
            Some(first) if self.retired.len() >= MAX_RETIRED => Replacement::Waits(format!(
                "{what} waits: {} replaced CAs have not expired, and clients that read their bundle once may depend on each; \
                 the first expires at {first}",
                self.retired.len()
            )),
            _ => Replacement::Now,
        }
    }

    fn start(&mut self, wanted: &Wanted, now: Timestamp) -> Result<(), PkiError> {
        self.last = Generation(self.last.0.saturating_add(1));
        let generation = self.last;
        let rotation = wanted.rotation.max(self.signer.rotation);
        let mut next = Ca::create(wanted, generation, rotation, now)?;
        for older in [&self.signer].into_iter().chain(self.retired.iter().map(|retired| &retired.ca)) {
            if !older.expired(now) {
                next.cross_sign(&self.owner, older, now)?;
            }
        }
        self.next = Some(next);
        Ok(())
    }

    /// Lets the next CA sign if it is known to be trusted, or if there is no more time to wait: the cross certificates make up
    /// for a bundle that is not in use yet.
    fn promote(&mut self, observed: Observed, now: Timestamp) -> bool {
        let overdue = now >= self.signer.overdue();
        let promoted =
            self.next.take_if(|next| overdue || observed.accepted.is_some_and(|accepted| accepted >= next.generation));
        let Some(next) = promoted else { return false };
        let mut old = std::mem::replace(&mut self.signer, next);
        old.crosses.clear();
        if !old.expired(now) {
            self.retired.insert(0, Retired { ca: old, replaced: false });
        }
        true
    }

    fn standing(&self, waits: Option<String>, now: Timestamp) -> Rotation {
        let signer = self.signer.generation;
        let (phase, mut reason) = if let Some(next) = &self.next {
            let next = next.generation;
            let text = format!(
                "CA {next} is in the bundle and signs as soon as every proxy trusts it; until then CA {signer} signs"
            );
            (Phase::Distributing, text)
        } else if self.retired.iter().any(|retired| !retired.replaced) {
            let text = format!("CA {signer} signs; not every proxy has been seen with a certificate of it");
            (Phase::Replacing, text)
        } else if let Some(last) =
            self.retired.iter().filter(|retired| retired.in_bundle(now)).map(|retired| retired.ca.leaves_until).max()
        {
            let text = format!(
                "CA {signer} signs; older CAs stay in the bundle until their last certificates expire, at the latest at {last}"
            );
            (Phase::Retiring, text)
        } else {
            (Phase::Stable, format!("CA {signer} signs until {}", self.signer.due()))
        };
        if let Some(waits) = waits {
            reason.push_str("; ");
            reason.push_str(&waits);
        }
        Rotation { phase, reason }
    }
}
