//! How old revisions are. etcd does not know; this process notes now and then which revision is the current one, and what was
//! there then is at least as old as the note. So after a start nothing is old for as long as it takes to get there.

use std::{collections::VecDeque, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Tenant;
use crate::tenant::CompactionPolicy;

/// Notes within the minimum age.
const NOTES: u32 = 16;
/// Shortest time between two notes.
const SHORTEST: Duration = Duration::from_millis(50);
/// Longest time between two notes.
const LONGEST: Duration = Duration::from_secs(60);

/// Which revision was the current one when.
#[derive(Debug, Default)]
pub(super) struct Ages(Mutex<VecDeque<Note>>);

#[derive(Clone, Copy, Debug)]
struct Note {
    at: Instant,
    revision: i64,
}

// === impl Ages ===

impl Ages {
    /// Notes that `revision` was there at `at`, and forgets what is of no use any more.
    fn note(&self, at: Instant, revision: i64, minimum: Duration) {
        let mut notes = self.0.lock();
        // Revisions of a store that was restored to an earlier state are new again.
        if notes.back().is_some_and(|last| last.revision > revision) {
            notes.clear();
        }
        notes.push_back(Note { at, revision });
        // Of those that are old enough the last is the one that counts.
        while notes.get(1).is_some_and(|second| second.is_older(at, minimum)) {
            notes.pop_front();
        }
    }

    /// The highest revision that is known to be of this age at least.
    fn older_than(&self, minimum: Duration, now: Instant) -> Option<i64> {
        self.0.lock().iter().rev().find(|note| note.is_older(now, minimum)).map(|note| note.revision)
    }
}

impl Note {
    fn is_older(&self, now: Instant, age: Duration) -> bool {
        now.saturating_duration_since(self.at) >= age
    }
}

impl Tenant {
    /// Up to which revision the tenant may have the upstream compacted at this moment. `None` where it may not, or where
    /// nothing is known to be old enough.
    pub(crate) fn compactable(&self) -> Option<i64> {
        match self.0.config.compaction {
            CompactionPolicy::Passthrough { min_age } => self.0.ages.older_than(min_age, Instant::now()),
            CompactionPolicy::Virtual | CompactionPolicy::Deny => None,
        }
    }
}

/// Takes notes for as long as it is polled, if the tenant's compactions go by age.
pub(super) async fn take_notes(tenant: &Tenant) {
    let CompactionPolicy::Passthrough { min_age } = tenant.0.config.compaction else { return };
    if min_age.is_zero() {
        return;
    }
    let mut ticks = interval((min_age / NOTES).clamp(SHORTEST, LONGEST));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match tenant.0.upstream.position(tenant.watermark_key()).await {
            // Not before it has come: until then it was there.
            Ok(now) => tenant.0.ages.note(Instant::now(), now.revision, min_age),
            Err(status) => tracing::debug!(code = ?status.code(), "the upstream's revision could not be noted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_when_it_was_noted_is_as_old_as_the_note() {
        let (ages, start, minimum) = (Ages::default(), Instant::now(), Duration::from_secs(10));
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(ages.older_than(minimum, at(100)), None);
        for (seconds, revision) in [(0, 5), (4, 5), (8, 70), (12, 80)] {
            ages.note(at(seconds), revision, minimum);
        }
        for (seconds, revision) in
            [(9, None), (10, Some(5)), (17, Some(5)), (18, Some(70)), (22, Some(80)), (99, Some(80))]
        {
            assert_eq!(ages.older_than(minimum, at(seconds)), revision, "{seconds}");
        }
    }

    #[test]
    fn few_notes_are_kept() {
        let (ages, start, minimum) = (Ages::default(), Instant::now(), Duration::from_secs(16));
        for second in 0_u32..1000 {
            ages.note(start + Duration::from_secs(second.into()), second.into(), minimum);
            assert!(ages.0.lock().len() <= 18);
        }
        assert_eq!(ages.older_than(minimum, start + Duration::from_secs(999)), Some(983));
    }

    #[test]
    fn a_store_that_went_back_is_young() {
        let (ages, start, minimum) = (Ages::default(), Instant::now(), Duration::from_secs(10));
        ages.note(start, 1000, minimum);
        ages.note(start + Duration::from_secs(20), 30, minimum);
        assert_eq!(ages.older_than(minimum, start + Duration::from_secs(29)), None);
        assert_eq!(ages.older_than(minimum, start + Duration::from_secs(30)), Some(30));
    }
}
