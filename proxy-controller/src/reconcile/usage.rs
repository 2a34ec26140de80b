//! What tenants store, counted from time to time and only where something changed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use etcd_proxy::prefix::Prefix;
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::{Context, stores::Change, upstream_of};
use crate::upstream::{Shared, Usage, UsageTracker};

/// How often it is looked whether there is a tenant that was never counted.
const NEWCOMERS: Duration = Duration::from_secs(5);

/// How often it is looked at most whether something changed.
const EVERY: Duration = Duration::from_secs(30);

/// Counting takes at most this part of the time.
const SHARE: u32 = 20;

/// The last counts, by uid of the EtcdProxy.
#[derive(Default)]
pub(super) struct Usages(Mutex<HashMap<String, Usage>>);

struct Tracked {
    tracker: UsageTracker,
    /// Not counted again before: a large tenant is counted less often.
    rests_until: Instant,
}

impl Usages {
    pub(super) fn of(&self, uid: &str) -> Option<Usage> {
        self.0.lock().get(uid).copied()
    }

    pub(super) fn retain(&self, uids: &BTreeSet<String>) {
        self.0.lock().retain(|uid, _| uids.contains(uid));
    }

    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

/// Counts until `stop`.
pub(super) async fn count(context: Arc<Context>, stop: CancellationToken) {
    let mut tracked: BTreeMap<String, Tracked> = BTreeMap::new();
    let mut ticks = interval(NEWCOMERS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let proxies = context.stores.proxies.state();
        tracked.retain(|uid, _| proxies.iter().any(|proxy| proxy.metadata.uid.as_ref() == Some(uid)));
        for proxy in proxies {
            let claimed = proxy.status.as_ref().and_then(|status| status.prefix.clone());
            let (Some(uid), Some(Ok(prefix))) = (proxy.uid(), claimed.map(Prefix::new)) else { continue };
            let upstream = upstream_of(&proxy);
            let Some(shared) = context.connector.known(upstream).filter(|_| context.is_reachable(upstream)) else {
                continue;
            };
            let entry = tracked
                .entry(uid.clone())
                .or_insert_with(|| Tracked { tracker: UsageTracker::new(prefix), rests_until: Instant::now() });
            let Some(usage) = stop.run_until_cancelled(entry.count(&shared)).await else { return };
            let Some(usage) = usage else { continue };
            let before = context.usages.0.lock().insert(uid, usage);
            if before.is_none_or(|before| (before.keys, before.bytes) != (usage.keys, usage.bytes)) {
                context.changes.push(Change::Proxy(ObjectRef::from_obj(proxy.as_ref())));
            }
        }
    }
}

impl Tracked {
    async fn count(&mut self, shared: &Shared) -> Option<Usage> {
        let began = Instant::now();
        if began < self.rests_until {
            return None;
        }
        let usage = self.tracker.usage(shared).await;
        self.rests_until = Instant::now() + EVERY.max(began.elapsed() * SHARE);
        // What is in the way stands in the EtcdUpstream's status.
        usage.inspect_err(|error| tracing::debug!(%error, "a tenant could not be counted")).ok()
    }
}
