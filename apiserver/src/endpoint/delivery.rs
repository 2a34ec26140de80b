//! The last part of an answer's way. A client that does not read must not hold for ever what its answer holds: nobody asks
//! a body for more while there is no room, so a bound that lies in the body would never be looked at.

use std::{future::poll_fn, pin::Pin, sync::Arc};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

/// The way of one answer to its client, for whoever bounds it. Clones are the same way.
///
/// Whoever serves waits for [`ended`](Self::ended) beside the answer's stream, or beside the connection where that carries
/// one answer at a time, and gives it up then.
#[derive(Clone, Debug, Default)]
pub struct Delivery {
    way: Arc<Way>,
    /// Which of the answers on this way is meant.
    turn: u64,
}

#[derive(Debug, Default)]
struct Way {
    now: Mutex<Now>,
    waiting: AtomicWaker,
}

#[derive(Debug, Default)]
struct Now {
    turn: u64,
    end: Option<Instant>,
}

impl Delivery {
    /// The client must have taken the whole answer by then. Of several times the earliest counts.
    pub fn end_at(&self, end: Instant) {
        let mut now = self.way.now.lock();
        if now.turn == self.turn && now.end.is_none_or(|other| end < other) {
            now.end = Some(end);
            drop(now);
            self.way.waiting.wake();
        }
    }

    /// The answer is through: there is nothing to end any more.
    pub fn done(&self) {
        let mut now = self.way.now.lock();
        if now.turn == self.turn {
            now.end = None;
        }
    }

    /// The next answer on the same way. What is said of earlier ones has no effect any more.
    #[must_use]
    pub fn next(&self) -> Self {
        let mut now = self.way.now.lock();
        *now = Now { turn: now.turn + 1, end: None };
        Self { way: self.way.clone(), turn: now.turn }
    }

    /// Completes when the answer that is on this way must end although it is not through. One waits at a time.
    pub async fn ended(&self) {
        let mut timer: Option<Pin<Box<Sleep>>> = None;
        poll_fn(|context| {
            self.way.waiting.register(context.waker());
            let Some(end) = self.way.now.lock().end else { return std::task::Poll::Pending };
            let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
            if timer.deadline() != end {
                timer.as_mut().reset(end);
            }
            timer.as_mut().poll(context)
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_earliest_end_of_this_turn_counts() {
        let way = Delivery::default();
        let begin = Instant::now();
        let first = way.next();
        first.end_at(begin + Duration::from_secs(9));
        first.done();
        first.end_at(begin + Duration::from_secs(7));
        let second = way.next();
        first.end_at(begin + Duration::from_secs(1));
        assert!(way.ended().now_or_never().is_none());

        let waiting = tokio::spawn({
            let way = way.clone();
            async move { way.ended().await }
        });
        tokio::task::yield_now().await;
        second.end_at(begin + Duration::from_secs(5));
        tokio::task::yield_now().await;
        second.end_at(begin + Duration::from_secs(3));
        second.end_at(begin + Duration::from_secs(4));
        first.done();
        waiting.await.unwrap();
        assert_eq!(begin.elapsed().as_secs(), 3);
    }
}
