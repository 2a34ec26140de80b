//! How many of something there are, and the most that there may be.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use prometheus_client::metrics::counter::Counter;

/// Counts what there is at a time, in this process.
#[derive(Debug, Default)]
pub struct Tally {
    most: Option<usize>,
    present: AtomicUsize,
    refused: Counter,
}

/// One that is there until it is dropped.
#[derive(Debug)]
pub(crate) struct Present(Arc<Tally>);

// === impl Tally ===

impl Tally {
    pub(super) fn new(most: Option<usize>, refused: Counter) -> Self {
        Self { most, present: AtomicUsize::new(0), refused }
    }

    /// How many there are.
    pub(crate) fn present(&self) -> usize {
        self.present.load(Ordering::Relaxed)
    }

    /// Counts one more, if there may be one more.
    pub(crate) fn add(&self) -> bool {
        let Some(most) = self.most else {
            self.present.fetch_add(1, Ordering::Relaxed);
            return true;
        };
        let one_more = |present| (present < most).then_some(present + 1);
        let added = self.present.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok();
        if !added {
            self.refused.inc();
        }
        added
    }

    /// Counts one more until the answer is dropped.
    pub(crate) fn keep(self: &Arc<Self>) -> Option<Present> {
        self.add().then(|| Present(self.clone()))
    }

    /// So many of them are gone.
    pub(crate) fn gone(&self, count: usize) {
        self.present.fetch_sub(count, Ordering::Relaxed);
    }
}

// === impl Present ===

impl Present {
    /// Whether there are more than half of what there may be.
    pub(crate) fn is_one_of_many(&self) -> bool {
        self.0.most.is_some_and(|most| self.0.present() > most / 2)
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.gone(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_than_there_may_be() {
        let refused = Counter::default();
        let tally = Arc::new(Tally::new(Some(2), refused.clone()));
        let (first, second) = (tally.keep(), tally.keep());
        assert!(first.is_some() && second.is_some());
        assert!(tally.keep().is_none() && !tally.add());
        assert_eq!((tally.present(), refused.get()), (2, 2));
        drop(first);
        assert!(tally.add());
        tally.gone(1);
        drop(second);
        assert_eq!(tally.present(), 0);
        let unlimited = Tally::new(None, refused.clone());
        assert!((0..1000).all(|_| unlimited.add()));
    }
}
