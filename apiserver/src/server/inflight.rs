//! How many requests are worked on at one time (k8s.io/apiserver `pkg/server/filters/maxinflight.go`).

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    authorization::SYSTEM_MASTERS,
    request::{RequestInfo, UserInfo},
};

/// Bounds for reads and writes; long-running requests are not counted.
#[derive(Clone, Debug)]
pub struct InFlight {
    reads: Option<Arc<Semaphore>>,
    writes: Option<Arc<Semaphore>>,
}

/// Whether a request may be worked on.
pub(super) enum Admission {
    /// It may, and holds this while it does.
    Go(Option<OwnedSemaphorePermit>),
    /// There are too many.
    TooMany,
}

// === impl InFlight ===

impl InFlight {
    /// At most this many reads and writes; zero: no bound.
    pub fn new(reads: usize, writes: usize) -> Self {
        let bound = |n: usize| (n > 0).then(|| Arc::new(Semaphore::new(n.min(Semaphore::MAX_PERMITS))));
        Self { reads: bound(reads), writes: bound(writes) }
    }

    pub(super) fn admit(&self, info: &RequestInfo, user: &UserInfo) -> Admission {
        let bound = if info.is_read_only() { &self.reads } else { &self.writes };
        let Some(bound) = bound.as_ref().filter(|_| !info.is_long_running()) else { return Admission::Go(None) };
        match bound.clone().try_acquire_owned() {
            Ok(permit) => Admission::Go(Some(permit)),
            // Administrators always get through, or they could not help.
            Err(_) if user.groups.iter().any(|group| group == SYSTEM_MASTERS) => Admission::Go(None),
            Err(_) => Admission::TooMany,
        }
    }
}
