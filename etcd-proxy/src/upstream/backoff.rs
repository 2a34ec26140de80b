//! Exponential back-off with jitter, as a value: the caller brings the clock.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    time::Duration,
};

use tokio::time::Instant;

/// Wait after the first failure.
const FIRST: Duration = Duration::from_millis(50);
/// Longest wait: also the longest that a returned etcd goes unnoticed by a client that keeps asking.
const LONGEST: Duration = Duration::from_secs(2);

/// Until when an endpoint is left alone.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    until: Option<Instant>,
}

impl Backoff {
    /// Whether the endpoint may be tried at `now`.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    /// Notes a failure at `now` and answers how long to wait.
    pub(super) fn failed(&mut self, now: Instant) -> Duration {
        let wait = jitter(FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST));
        self.failures = self.failures.saturating_add(1);
        self.until = Some(now + wait);
        wait
    }

    /// Notes that the endpoint works.
    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }
}

/// Between three quarters and all of `wait`, so that many proxies do not come back in step.
fn jitter(wait: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    let part = u32::try_from(random % 256).unwrap_or(0);
    wait - wait * part / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_a_success_forgets_them() {
        let now = Instant::now();
        let mut backoff = Backoff::default();
        assert!(backoff.is_over(now));
        let waits: Vec<_> = (0..40).map(|_| backoff.failed(now)).collect();
        assert!(waits[0] <= FIRST && waits[0] >= FIRST * 3 / 4, "{waits:?}");
        assert!(waits[5] > waits[0] * 8, "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= LONGEST), "{waits:?}");
        assert!(waits[39] >= LONGEST * 3 / 4, "{waits:?}");
        assert!(!backoff.is_over(now));
        assert!(backoff.is_over(now + LONGEST));
        backoff.succeeded();
        assert!(backoff.is_over(now));
        assert!(backoff.failed(now) <= FIRST);
    }
}
