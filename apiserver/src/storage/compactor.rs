//! Periodic compaction: history older than one interval is forgotten, so that slow watchers and paged lists have at least
//! that long to catch up and the store does not grow without end.
//!
//! Of the servers that share a store one compacts in each interval; they agree by the *compaction time*, a counter in the
//! store that only the one whose own count is right may advance (`k8s.io/apiserver/pkg/storage/etcd3/compact.go`). When a
//! server dies the next one whose turn comes takes over, so the interval is at most doubled.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Revision, Storage, StorageError};

/// The default of `--etcd-compaction-interval`.
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// What one server knows of the compaction that all servers of a store share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionTurn {
    /// The compaction time: how many turns anybody has had. Zero in the beginning.
    pub time: i64,
    /// The store's revision at the last turn; zero in the beginning. The next turn compacts to it.
    pub revision: Revision,
}

/// Compacts a store again and again.
pub struct Compactor {
    storage: Arc<dyn Storage>,
    interval: Duration,
    turn: CompactionTurn,
    compacted: watch::Sender<Revision>,
}

impl Compactor {
    /// A compactor whose first turn comes after `interval`; zero turns it off.
    #[must_use]
    pub fn new(storage: Arc<dyn Storage>, interval: Duration) -> Self {
        let compacted = watch::Sender::new(Revision(0));
        Self { storage, interval, turn: CompactionTurn::default(), compacted }
    }

    /// Follows the revision to which history is known to be compacted (by whomever); zero until that is known.
    #[must_use]
    pub fn compacted(&self) -> watch::Receiver<Revision> {
        self.compacted.subscribe()
    }

    /// Takes a turn after each interval until `stop`. A turn that fails is logged; the next one comes all the same.
    pub async fn run(mut self, stop: CancellationToken) {
        if self.interval.is_zero() {
            tracing::info!("compaction is off; something else has to compact the storage");
            return stop.cancelled().await;
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(self.interval) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.take_turn() => {}
            }
        }
    }

    async fn take_turn(&mut self) {
        match self.storage.compaction_turn(&mut self.turn).await {
            Ok(compacted) => {
                tracing::debug!(?compacted, turn = ?self.turn, "compaction turn");
                if let Some(revision) = compacted {
                    self.compacted.send_if_modified(|known| {
                        let newer = revision > *known;
                        *known = revision.max(*known);
                        newer
                    });
                }
            }
            // Another tenant of the same etcd may compact too: what was asked for is done.
            Err(StorageError::Compacted { .. }) => tracing::debug!(turn = ?self.turn, "already compacted further"),
            Err(error) => {
                tracing::warn!(%error, "compaction failed; the storage keeps its history until the next turn");
            }
        }
    }
}
