//! What goes on on a connection: whether anything does, and since when not.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use super::chain::Origin;

/// The requests of one connection, counted.
pub(super) struct Activity(Mutex<Now>);

struct Now {
    /// Requests whose answers are not through yet.
    requests: usize,
    /// Whether there has ever been one.
    used: bool,
    /// When the last one was through, or when the connection began.
    quiet_since: Instant,
}

/// Counts one request while it lives.
pub(super) struct Active(Arc<Origin>);

// === impl Activity ===

impl Default for Activity {
    fn default() -> Self {
        Self(Mutex::new(Now { requests: 0, used: false, quiet_since: Instant::now() }))
    }
}

impl Activity {
    /// A request of the connection begins.
    pub(super) fn begin(origin: Arc<Origin>) -> Active {
        let mut now = origin.activity().0.lock();
        now.requests += 1;
        now.used = true;
        drop(now);
        Active(origin)
    }

    /// Completes when there has been no request for a while: `first` before the first one, `later` after one.
    pub(super) async fn quiet_for(&self, first: Duration, later: Duration) {
        loop {
            let time = Instant::now();
            let until = {
                let now = self.0.lock();
                let limit = if now.used { later } else { first };
                (if now.requests > 0 { time } else { now.quiet_since }) + limit
            };
            if until <= time {
                return;
            }
            // A first request in the meantime changes the limit.
            sleep_until(until.min(time + later)).await;
        }
    }
}

// === impl Active ===

impl Drop for Active {
    fn drop(&mut self) {
        let mut now = self.0.activity().0.lock();
        now.requests -= 1;
        if now.requests == 0 {
            now.quiet_since = Instant::now();
        }
    }
}
