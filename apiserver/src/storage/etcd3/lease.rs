//! Leases for keys that end by themselves.
//!
//! Leases are dear to etcd, so keys with about the same time to live share one, as in
//! `k8s.io/apiserver/pkg/storage/etcd3/lease_manager.go`: a lease lives a little longer than asked for, by 5 % and a minute at
//! most, and is given out again as long as what remains is enough. Nothing revokes or prolongs a lease.

use std::{future::Future, time::Duration};

use tokio::{sync::Mutex, time::Instant};

/// The longest time for which a lease is given out again.
const MAX_REUSE: u64 = 60;
/// How many keys share a lease at most: they all end in one revision.
const MAX_KEYS: u32 = 1000;

/// The lease given out last.
#[derive(Default)]
pub(super) struct Leases {
    last: Mutex<Option<Lease>>,
}

struct Lease {
    id: i64,
    ends: Instant,
    keys: u32,
}

impl Leases {
    /// The id of a lease that lasts at least `ttl`, from `grant` (which takes whole seconds) if need be.
    pub(super) async fn lease<F, E>(&self, ttl: Duration, grant: impl FnOnce(i64) -> F) -> Result<i64, E>
    where
        F: Future<Output = Result<i64, E>>,
    {
        // Held during the grant: whoever comes meanwhile shares what it brings.
        let mut last = self.last.lock().await;
        let now = Instant::now();
        let seconds = whole_seconds(ttl);
        let reuse = (seconds / 20).min(MAX_REUSE);
        if let Some(lease) = last.as_mut()
            && now + Duration::from_secs(seconds) < lease.ends
            && lease.ends <= now + Duration::from_secs(seconds + reuse)
            && lease.keys < MAX_KEYS
        {
            lease.keys += 1;
            return Ok(lease.id);
        }
        let granted = seconds + reuse;
        let id = grant(i64::try_from(granted).unwrap_or(i64::MAX)).await?;
        *last = Some(Lease { id, ends: now + Duration::from_secs(granted), keys: 1 });
        Ok(id)
    }

    /// Does not give out a lease again that turned out to be gone.
    pub(super) async fn forget(&self, id: i64) {
        let mut last = self.last.lock().await;
        if last.as_ref().is_some_and(|lease| lease.id == id) {
            *last = None;
        }
    }
}

/// Rounded up, at least one; no more than etcd grants (`MaxLeaseTTL` in `server/lease/lessor.go`).
fn whole_seconds(ttl: Duration) -> u64 {
    ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0)).clamp(1, 9_000_000_000 - MAX_REUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_shared_while_it_lasts_long_enough() {
        let leases = Leases::default();
        let granted = parking_lot::Mutex::new(Vec::new());
        let ask = async |seconds| {
            let grant = async |ttl| {
                let mut granted = granted.lock();
                granted.push(ttl);
                Ok::<_, ()>(i64::try_from(granted.len()).unwrap())
            };
            leases.lease(Duration::from_secs(seconds), grant).await.unwrap()
        };
        assert_eq!(ask(1000).await, 1);
        assert_eq!(ask(1000).await, 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(ask(1000).await, 1);
        assert_eq!(ask(100).await, 2, "a much shorter time is not served by a long lease");
        assert_eq!(ask(1000).await, 3, "nor a longer one by a short lease");
        tokio::time::advance(Duration::from_secs(51)).await;
        assert_eq!(ask(1000).await, 4, "the lease has less left than asked for");
        leases.forget(4).await;
        assert_eq!(ask(1000).await, 5);
        assert_eq!(granted.lock().as_slice(), [1050, 105, 1050, 1050, 1050]);
    }

    #[tokio::test(start_paused = true)]
    async fn at_most_a_thousand_keys_share_a_lease() {
        let leases = Leases::default();
        let mut ids = Vec::new();
        for next in 0..2000 {
            let ttl = Duration::from_secs(1000);
            ids.push(leases.lease(ttl, async |_| Ok::<_, ()>(next)).await.unwrap());
        }
        assert_eq!(ids[999], 0);
        assert_ne!(ids[1000], 0);
    }

    #[test]
    fn parts_of_a_second_count_as_one() {
        assert_eq!(whole_seconds(Duration::ZERO), 1);
        assert_eq!(whole_seconds(Duration::from_millis(1500)), 2);
        assert_eq!(whole_seconds(Duration::from_secs(2)), 2);
        assert_eq!(whole_seconds(Duration::MAX), 9_000_000_000 - MAX_REUSE);
    }
}
