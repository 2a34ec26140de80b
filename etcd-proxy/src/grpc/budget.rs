//! The bytes that long answers may take while they are passed on.
//!
//! How long an answer is its first bytes tell. A long one takes a share of the budget before it is read on, and keeps it
//! until its client has it; while it waits, HTTP/2 holds it back at the upstream, but for the window of its stream. Short ones
//! neither wait nor count. One that is longer than the whole budget gets no share: the bound holds, whatever is asked for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tonic::Status;

use crate::error::EtcdError;

/// From how many bytes on an answer is long.
pub const LONG: usize = 256 * 1024;
/// Bytes in which shares are measured.
const UNIT: usize = 4096;
/// Answers that wait at a time. Each holds a window of its stream meanwhile.
const WAITING: usize = 128;
/// How long an answer waits for its share. Readers that stall are given up before that.
const PATIENCE: Duration = Duration::from_secs(120);

/// What long answers share.
#[derive(Debug)]
pub struct Budget {
    /// `None` without a bound.
    units: Option<Units>,
    waiting: AtomicUsize,
    /// What has been given out, and how many wait.
    shown: (Gauge, Gauge),
}

#[derive(Debug)]
struct Units {
    free: Arc<Semaphore>,
    /// All of the budget in bytes.
    bytes: usize,
}

/// Why there is no share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoShare {
    /// The wish is greater than all there is.
    TooLong {
        /// The bytes that were wished for.
        wanted: usize,
        /// The bytes that there are.
        bound: usize,
    },
    /// Too many wait already, or no share got free.
    Crowded,
}

/// A part of the budget, held until it is dropped.
#[derive(Debug)]
pub struct Share {
    units: Option<OwnedSemaphorePermit>,
    bytes: i64,
    shown: Gauge,
}

/// Counts one that waits until it is dropped.
struct Waiting<'a>(&'a Budget);

// === impl Budget ===

impl Budget {
    /// A budget of so many bytes, 0 for no bound, that shows what is given out of it and how many wait.
    pub fn new(bytes: usize, given: Gauge, waiting: Gauge) -> Self {
        let units = (bytes > 0).then(|| Units { free: Arc::new(Semaphore::new(units(bytes) as usize)), bytes });
        Self { units, waiting: AtomicUsize::new(0), shown: (given, waiting) }
    }

    /// A share for so many bytes.
    ///
    /// # Errors
    /// When there will be none.
    pub async fn share(&self, bytes: usize) -> Result<Share, NoShare> {
        let Some(Units { free, bytes: bound }) = &self.units else { return Ok(self.given(bytes, None)) };
        if bytes > *bound {
            return Err(NoShare::TooLong { wanted: bytes, bound: *bound });
        }
        let wanted = units(bytes);
        if let Ok(units) = free.clone().try_acquire_many_owned(wanted) {
            return Ok(self.given(bytes, Some(units)));
        }
        let _waiting = Waiting::new(self).ok_or(NoShare::Crowded)?;
        match timeout(PATIENCE, free.clone().acquire_many_owned(wanted)).await {
            Ok(Ok(units)) => Ok(self.given(bytes, Some(units))),
            _ => Err(NoShare::Crowded),
        }
    }

    /// The same, but a wish that exceeds the whole budget gets all of it, so that it is at least alone.
    ///
    /// # Errors
    /// When too many wait already, or no share gets free.
    pub async fn share_or_all(&self, bytes: usize) -> Result<Share, NoShare> {
        self.share(self.units.as_ref().map_or(bytes, |units| units.bytes.min(bytes))).await
    }

    /// Whether somebody waits.
    pub fn is_crowded(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn given(&self, bytes: usize, units: Option<OwnedSemaphorePermit>) -> Share {
        let (bytes, shown) = (i64::try_from(bytes).unwrap_or(i64::MAX), self.shown.0.clone());
        shown.inc_by(bytes);
        Share { units, bytes, shown }
    }
}

// === impl Share ===

impl Share {
    /// Gives back what is beyond so many bytes.
    pub fn shrink(&mut self, bytes: usize) {
        let kept = self.bytes.min(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.shown.dec_by(self.bytes - kept);
        self.bytes = kept;
        if let Some(held) = &mut self.units {
            let beyond = held.num_permits().saturating_sub(units(bytes) as usize);
            drop(held.split(beyond));
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shown.dec_by(self.bytes);
    }
}

/// As many permits as a semaphore has at most, on 32 bits as well.
const MAX_UNITS: u32 = u32::MAX >> 3;

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(MAX_UNITS)
}

// === impl NoShare ===

impl From<NoShare> for Status {
    fn from(none: NoShare) -> Self {
        match none {
            NoShare::Crowded => EtcdError::TooManyRequests.into(),
            NoShare::TooLong { wanted, bound } => Self::resource_exhausted(format!(
                "etcd-proxy: the answer takes {wanted} bytes of memory, more than all of --max-buffered-bytes={bound}: ask for less at a time"
            )),
        }
    }
}

// === impl Waiting ===

impl<'a> Waiting<'a> {
    fn new(budget: &'a Budget) -> Option<Self> {
        let waiting = Self(budget);
        budget.shown.1.inc();
        (budget.waiting.fetch_add(1, Ordering::Relaxed) < WAITING).then_some(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.shown.1.dec();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn budget(bytes: usize) -> Budget {
        Budget::new(bytes, Gauge::default(), Gauge::default())
    }

    #[tokio::test(start_paused = true)]
    async fn shares_are_waited_for_but_not_for_ever() {
        let budget = budget(10 * UNIT);
        let first = budget.share(6 * UNIT).await.unwrap();
        let mut second = Box::pin(budget.share(5 * UNIT));
        assert!(second.as_mut().now_or_never().is_none());
        assert_eq!(budget.shown.1.get(), 1);
        // Who asks for less does not overtake.
        drop(first);
        let second = second.await.unwrap();
        assert_eq!(budget.shown.1.get(), 0);
        let third = budget.share(UNIT).await.unwrap();
        assert_eq!(budget.share(5 * UNIT).await.unwrap_err(), NoShare::Crowded);
        drop((second, third));
        let all = budget.share(10 * UNIT).await.unwrap();
        assert!(budget.share(1).now_or_never().is_none());
        drop(all);
        drop(budget.share(1).await.unwrap());
        assert_eq!(budget.shown.0.get(), 0);
    }

    #[tokio::test]
    async fn nobody_gets_more_than_there_is() {
        let budget = budget(10 * UNIT + 1);
        let refused = budget.share(10 * UNIT + 2).now_or_never().unwrap().unwrap_err();
        assert_eq!(refused, NoShare::TooLong { wanted: 10 * UNIT + 2, bound: 10 * UNIT + 1 });
        let status = Status::from(refused);
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert!(status.message().contains("40962 bytes") && status.message().contains("--max-buffered-bytes=40961"));
        drop(budget.share(10 * UNIT + 1).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn few_wait() {
        let budget = budget(UNIT);
        let _all = budget.share(UNIT).await.unwrap();
        let mut waiting: Vec<_> = (0..WAITING).map(|_| Box::pin(budget.share(1))).collect();
        assert!(waiting.iter_mut().all(|share| share.as_mut().now_or_never().is_none()));
        assert_eq!(budget.share(1).now_or_never().unwrap().unwrap_err(), NoShare::Crowded);
        waiting.pop();
        assert!(budget.share(1).now_or_never().is_none());
    }

    #[tokio::test]
    async fn no_bound_is_no_wait() {
        let budget = budget(0);
        let _one = budget.share(usize::MAX).await.unwrap();
        let _two = budget.share(usize::MAX).await.unwrap();
    }
}
