//! Requests per second: a token bucket in one atomic word.
//!
//! It is kept as the *theoretical arrival time* of the generic cell rate algorithm (ITU-T I.371, annex A): the moment at which
//! the bucket is full again. A request takes place if that moment is near enough, and moves it on by the time of one request.
//! Nothing has to be filled up by a timer, and two threads that ask at once take a token each.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU64, Ordering},
};

use tokio::{
    sync::Mutex,
    time::{Duration, Instant, sleep, sleep_until},
};

const SECOND: u64 = 1_000_000_000;

/// A bucket of `burst` tokens into which fall `per_second` ones.
#[derive(Debug)]
pub(super) struct Rate {
    bucket: Bucket,
    started: Instant,
    /// Nanoseconds after `started` at which the bucket is full again.
    full_at: AtomicU64,
    /// Whose turn it is of those who wait for a token.
    line: Mutex<()>,
}

/// The measures of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bucket {
    /// Nanoseconds in which a token falls.
    interval: u64,
    /// Nanoseconds in which all but one fall.
    rest: u64,
}

// === impl Rate ===

impl Rate {
    pub(super) fn new(per_second: NonZeroU32, burst: NonZeroU32) -> Self {
        Self {
            bucket: Bucket::new(per_second, burst),
            started: Instant::now(),
            full_at: AtomicU64::new(0),
            line: Mutex::new(()),
        }
    }

    /// Takes a token, if there is one.
    pub(super) fn take(&self) -> bool {
        let now = self.now();
        self.full_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| self.bucket.take(full_at, now))
            .is_ok()
    }

    /// Takes a token, if there is one and nobody is in line for it.
    pub(super) fn take_in_turn(&self) -> bool {
        self.line.try_lock().is_ok_and(|_turn| self.take())
    }

    /// Waits in line for a token. Those who wait and those who do not get as many when both want more than there are.
    pub(super) async fn wait(&self) {
        let _turn = self.line.lock().await;
        if self.take() {
            return;
        }
        // The next token is for who does not wait, or is left.
        sleep(Duration::from_nanos(self.bucket.interval.saturating_mul(2))).await;
        let now = self.now();
        let next = |full_at: u64| Some(full_at.max(now).saturating_add(self.bucket.interval));
        let (Ok(full_at) | Err(full_at)) = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let there = Duration::from_nanos(full_at.saturating_sub(self.bucket.rest));
        sleep_until(self.started + there).await;
    }

    /// Tokens that are missing from the bucket.
    pub(super) fn taken(&self) -> u64 {
        self.bucket.taken(self.full_at.load(Ordering::Relaxed), self.now())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

// === impl Bucket ===

impl Bucket {
    fn new(per_second: NonZeroU32, burst: NonZeroU32) -> Self {
        let interval = (SECOND / u64::from(per_second.get())).max(1);
        Self { interval, rest: interval.saturating_mul(u64::from(burst.get()) - 1) }
    }

    /// When the bucket that is full at `full_at` is full again after a token was taken `now`; `None` if it is empty.
    fn take(self, full_at: u64, now: u64) -> Option<u64> {
        let full_at = full_at.max(now);
        (full_at - now <= self.rest).then(|| full_at.saturating_add(self.interval))
    }

    fn taken(self, full_at: u64, now: u64) -> u64 {
        full_at.saturating_sub(now).div_ceil(self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(per_second: u32, burst: u32) -> Bucket {
        Bucket::new(NonZeroU32::new(per_second).unwrap(), NonZeroU32::new(burst).unwrap())
    }

    /// How many of `wanted` requests pass at `now`.
    fn pass(bucket: Bucket, full_at: &mut u64, now: u64, wanted: u32) -> u32 {
        (0..wanted).map(|_| bucket.take(*full_at, now).map(|next| *full_at = next).map_or(0, |()| 1)).sum()
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let (bucket, mut full_at) = (bucket(10, 5), 0);
        let start = 7 * SECOND;
        assert_eq!(pass(bucket, &mut full_at, start, 100), 5);
        assert_eq!(bucket.taken(full_at, start), 5);
        // A tenth of a second is one request, and a moment less is none.
        assert_eq!(pass(bucket, &mut full_at, start + SECOND / 10 - 1, 100), 0);
        assert_eq!(pass(bucket, &mut full_at, start + SECOND / 10, 100), 1);
        // However long nobody asks, no more than the burst is saved.
        assert_eq!(pass(bucket, &mut full_at, start + 3600 * SECOND, 100), 5);
        let mut passed = 0;
        for millisecond in 1..=10_000 {
            passed += pass(bucket, &mut full_at, start + 3600 * SECOND + millisecond * SECOND / 1000, 3);
        }
        assert_eq!(passed, 100);
    }

    #[test]
    fn extremes_neither_overflow_nor_lock_out() {
        let (fast, mut full_at) = (bucket(u32::MAX, u32::MAX), 0);
        assert_eq!(pass(fast, &mut full_at, u64::MAX, 10), 10);
        let (slow, mut full_at) = (bucket(1, u32::MAX), 0);
        assert_eq!(pass(slow, &mut full_at, 1, 10), 10);
        let (one, mut full_at) = (bucket(1, 1), 0);
        assert_eq!(pass(one, &mut full_at, 0, 10), 1);
        assert_eq!(pass(one, &mut full_at, SECOND, 10), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_gets_its_turn_beside_those_who_do_not() {
        let rate = Rate::new(NonZeroU32::new(100).unwrap(), NonZeroU32::new(10).unwrap());
        assert_eq!((0..20).filter(|_| rate.take_in_turn()).count(), 10);
        // Alone, those who wait get all.
        let start = Instant::now();
        for _ in 0..100 {
            rate.wait().await;
        }
        let took = start.elapsed();
        assert!((Duration::from_millis(990)..Duration::from_millis(1100)).contains(&took), "{took:?}");
        // With others who ask every millisecond, half of it.
        let start = Instant::now();
        let waiting = async {
            for _ in 0..100 {
                rate.wait().await;
            }
            start.elapsed()
        };
        let asking = async {
            let mut passed = 0;
            loop {
                sleep(Duration::from_millis(1)).await;
                passed += u32::from(rate.take());
                if start.elapsed() > Duration::from_secs(2) {
                    return passed;
                }
            }
        };
        let (took, passed) = tokio::join!(waiting, asking);
        assert!((Duration::from_millis(1800)..Duration::from_millis(2400)).contains(&took), "{took:?}");
        assert!((70..130).contains(&passed), "{passed}");
        // Nobody overtakes who is in line.
        while rate.take() {}
        let mut first = Box::pin(rate.wait());
        assert!(futures::poll!(first.as_mut()).is_pending());
        assert!(!rate.take_in_turn());
        first.await;
    }

    #[test]
    fn threads_share_the_tokens() {
        let rate = Rate::new(NonZeroU32::MIN, NonZeroU32::new(1000).unwrap());
        let taken: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| (0..1000).filter(|_| rate.take()).count())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        // One more for every second that the test takes.
        assert!((1000..1100).contains(&taken), "{taken}");
    }
}
