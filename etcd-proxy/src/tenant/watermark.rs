//! The revision up to which a tenant has compacted, as known to this replica.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use proto::{
    etcdserverpb::{RangeRequest, WatchCreateRequest},
    mvccpb::event::EventType,
};
use tonic::{Code, Status};

use super::{Tenant, joined::Joined};
use crate::{
    meta::{self, TenantKeys},
    metrics::Metrics,
    upstream::{Lost, Position, Upstream},
};

/// The watermark of a tenant that never compacted, as etcd's own (`storage/mvcc/kvstore.go`, `compactMainRev`).
const NONE: i64 = -1;
/// How long the follower waits before it looks again after the upstream was lost.
const PAUSE: Duration = Duration::from_secs(1);

/// The watermark, loaded once and then moved by Compact and by the follower.
#[derive(Debug)]
pub(super) struct Watermark {
    current: AtomicI64,
    /// A revision from which on `current` has been the watermark: the one that wrote it, or the first at which it was found.
    since: AtomicI64,
    /// As of when `current` is known, so that news never overtakes newer news.
    known: Mutex<Option<Position>>,
    loaded: OnceLock<()>,
    loading: Joined<()>,
    gauge: Gauge,
    went_back: Counter,
}

// === impl Watermark ===

impl Watermark {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            current: AtomicI64::new(NONE),
            since: AtomicI64::new(0),
            known: Mutex::new(None),
            loaded: OnceLock::new(),
            loading: Joined::default(),
            gauge: metrics.watermark.clone(),
            went_back: metrics.went_back.clone(),
        }
    }

    /// The watermark, if it has been loaded.
    pub(super) fn get(&self) -> Option<i64> {
        self.loaded.get().map(|()| self.current.load(Ordering::Acquire))
    }

    /// A revision from which on what [`get`](Self::get) has returned before has been the watermark.
    pub(super) fn since(&self) -> i64 {
        self.since.load(Ordering::Acquire)
    }

    /// The watermark; if it has not been loaded yet, `read` does that, by [`Watermark::read`].
    pub(super) async fn load<F>(&self, read: impl FnOnce() -> F) -> Result<i64, Status>
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        if self.loaded.get().is_none() {
            self.loading.ask(read).await?;
            self.loaded.get_or_init(|| ());
        }
        Ok(self.current.load(Ordering::Acquire))
    }

    /// As of when the watermark is known.
    pub(super) fn known(&self) -> Option<Position> {
        *self.known.lock()
    }

    /// Notes the watermark as of `now`, by an event.
    fn moved(&self, revision: i64, now: Position) {
        self.answered(None, revision, now);
    }

    /// Notes the watermark as of `now`, by the answer to a question that was asked when it was [known](Self::known) as of
    /// `before`. A linearizable answer from before that is one of a store that has gone back, in which that never was.
    pub(super) fn answered(&self, before: Option<Position>, revision: i64, now: Position) {
        let mut known = self.known.lock();
        // If somebody else has noticed meanwhile, what is known is of the same store as the answer.
        let undone = (*known).filter(|known| Some(*known) == before && !now.continues(*known));
        if let Some(undone) = undone {
            self.went_back.inc();
            tracing::error!(
                from_revision = undone.revision,
                to_revision = now.revision,
                from_cluster = undone.cluster_id,
                to_cluster = now.cluster_id,
                "the upstream has gone back to an earlier state, as when a snapshot is restored: what this proxy held of the later one is forgotten; restart clients that do not notice, and see that the claims are still right (`etcd-proxy check`)"
            );
        }
        if undone.is_some() || known.is_none_or(|known| now.continues(known)) {
            *known = Some(now);
            if undone.is_some() || self.current.load(Ordering::Acquire) != revision {
                // First, so that nobody takes the new watermark to be older than it is.
                self.since.store(now.revision, Ordering::Release);
            }
            self.current.store(revision, Ordering::Release);
            self.gauge.set(revision);
        }
    }

    /// Reads the meta key. Returns where the upstream was at that moment.
    pub(super) async fn read(&self, upstream: &Upstream, keys: &TenantKeys) -> Result<Position, Status> {
        let before = self.known();
        let request = RangeRequest { key: keys.watermark(), ..Default::default() };
        let answer = upstream.range(request).await?;
        let now = Position::of(answer.header)?;
        // Only after the tenant's meta keys were removed can there have been one before where there is none.
        let revision = answer.kvs.first().map_or(Ok(NONE), |kv| decode(&kv.value))?;
        self.answered(before, revision, now);
        Ok(now)
    }
}

/// Follows the meta key for as long as it is polled, whatever happens to the upstream.
pub(super) async fn follow(tenant: &Tenant) {
    let keys = &tenant.0.keys;
    let mut told = false;
    loop {
        match follow_once(tenant).await {
            Lost::Sight(status) => {
                // Nobody's absence but somebody's oversight, and it does not go away by itself.
                if status.code() == Code::PermissionDenied && !std::mem::replace(&mut told, true) {
                    let key = keys.watermark();
                    tracing::warn!(key = %key.escape_ascii(), message = status.message(), "the upstream's user may not read this tenant's meta keys: compactions, leases and reads of revisions fail; grant it readwrite on them");
                }
                tracing::debug!(code = ?status.code(), message = status.message(), "lost sight of the compaction watermark; looking again");
            }
            lost @ (Lost::Compacted | Lost::WentBack) => {
                tracing::debug!(?lost, "the compaction watermark is read again");
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Follows the meta key until the upstream is lost.
async fn follow_once(tenant: &Tenant) -> Lost {
    let followed: Result<std::convert::Infallible, Lost> = async {
        let (watermark, upstream, keys) = (&tenant.0.watermark, &tenant.0.upstream, &tenant.0.keys);
        tenant.watermark().await?;
        let now = watermark.read(upstream, keys).await?;
        tenant.check_leases().await?;
        let create = WatchCreateRequest { key: keys.watermark(), ..Default::default() };
        let mut following = upstream.follow(now, create).await?;
        loop {
            let response = following.next().await?;
            for event in &response.events {
                let Some(kv) = &event.kv else { continue };
                let revision = match event.r#type() {
                    EventType::Put => decode(&kv.value)?,
                    EventType::Delete => NONE,
                };
                watermark.moved(revision, Position { revision: kv.mod_revision, ..now });
            }
        }
    }
    .await;
    match followed {
        Err(lost) => lost,
    }
}

fn decode(value: &[u8]) -> Result<i64, Status> {
    meta::decode_watermark(value).map_err(|error| {
        tracing::error!(%error, "the compaction watermark of the tenant cannot be read");
        Status::internal(format!("etcd-proxy: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    fn at(revision: i64) -> Position {
        Position { cluster_id: 1, revision }
    }

    #[test]
    fn news_never_overtakes_newer_news() {
        let watermark = Watermark::new(&Metrics::new(&mut Registry::default()));
        let current = || watermark.current.load(Ordering::Acquire);
        watermark.answered(None, 5, at(10));
        let asked = watermark.known();
        watermark.moved(8, at(20));
        // Read before, and heard of after the event.
        watermark.answered(asked, 5, at(12));
        assert_eq!((current(), watermark.known()), (8, Some(at(20))));
        watermark.moved(6, at(15));
        assert_eq!(current(), 8);
        // It is not as new as the last look at it.
        watermark.answered(watermark.known(), 8, at(30));
        assert_eq!((current(), watermark.since()), (8, 20));
        assert_eq!(watermark.went_back.get(), 0);
    }

    #[test]
    fn a_store_that_went_back_is_believed() {
        let watermark = Watermark::new(&Metrics::new(&mut Registry::default()));
        let current = || watermark.current.load(Ordering::Acquire);
        watermark.answered(None, 90, at(100));
        let asked = watermark.known();
        watermark.answered(asked, 5, at(50));
        assert_eq!((current(), watermark.since(), watermark.went_back.get()), (5, 50, 1));
        // Asked by another at the same time, answered later.
        watermark.answered(asked, 7, at(60));
        assert_eq!((current(), watermark.went_back.get()), (7, 1));
        watermark.answered(asked, 6, at(55));
        assert_eq!((current(), watermark.went_back.get()), (7, 1));
        // Another cluster may be further.
        watermark.answered(watermark.known(), NONE, Position { cluster_id: 2, revision: 1000 });
        assert_eq!((current(), watermark.went_back.get()), (NONE, 2));
    }
}
