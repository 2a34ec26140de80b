//! Compactions of the shared history that the tenant's own bring about: one at a time, and of those that come meanwhile the
//! furthest.

use std::time::Duration;

use parking_lot::Mutex;
use proto::etcdserverpb::CompactionRequest;
use tokio::time::timeout;
use tonic::Status;

use super::Tenant;
use crate::error::EtcdError;

/// How long one may take. etcd answers when it has noted the revision, and compacts afterwards.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is still to be compacted upstream.
#[derive(Debug, Default)]
pub(super) struct Compactions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Somebody sees to it.
    under_way: bool,
    /// Up to where, if anybody has asked since the last one began.
    wanted: Option<i64>,
}

// === impl Compactions ===

impl Compactions {
    /// Notes what is wanted. Returns whether the caller has to see to it.
    fn want(&self, revision: i64) -> bool {
        let mut state = self.0.lock();
        state.wanted = state.wanted.max(Some(revision));
        !std::mem::replace(&mut state.under_way, true)
    }

    /// What to do next, for whoever sees to it until there is nothing.
    fn next(&self) -> Option<i64> {
        let mut state = self.0.lock();
        let next = state.wanted.take();
        state.under_way = next.is_some();
        next
    }
}

impl Tenant {
    /// Has the shared history compacted up to `revision`, but only as far as it is known to be old enough: the tenant has no
    /// right to the others' recent past. To the tenant its compaction is done by the watermark, so nobody waits for this.
    pub(crate) fn compact_upstream(&self, revision: i64) {
        if self.compactable().is_none() || !self.0.compactions.want(revision) {
            return;
        }
        let tenant = self.clone();
        self.outliving().spawn(async move {
            while let Some(revision) = tenant.0.compactions.next() {
                let Some(old) = tenant.compactable() else { continue };
                tenant.compact_up_to(revision.min(old)).await;
            }
        });
    }

    async fn compact_up_to(&self, revision: i64) {
        let mut kv = self.upstream().kv();
        let compaction = timeout(PATIENCE, kv.compact(CompactionRequest { revision, physical: false })).await;
        let late = |_| Err(Status::deadline_exceeded(format!("no answer within {PATIENCE:?}")));
        let refused = match compaction.unwrap_or_else(late) {
            Ok(_) => {
                tracing::debug!(revision, "compacted the upstream");
                return;
            }
            Err(refused) => refused,
        };
        // Somebody else was faster.
        if (refused.code(), refused.message()) != (EtcdError::Compacted.code(), EtcdError::Compacted.text()) {
            tracing::warn!(
                revision,
                code = ?refused.code(),
                message = refused.message(),
                "the upstream was not compacted; the tenant's next compaction tries again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_carried_out_at_a_time_and_then_the_furthest() {
        let compactions = Compactions::default();
        assert!(compactions.want(5));
        assert_eq!(compactions.next(), Some(5));
        assert!(!compactions.want(9) && !compactions.want(7));
        assert_eq!(compactions.next(), Some(9));
        assert_eq!(compactions.next(), None);
        assert!(compactions.want(10));
    }
}
