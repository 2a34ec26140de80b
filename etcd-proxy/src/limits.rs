//! What one tenant may use: storage, requests, watches, leases.
//!
//! Everything but the bound of streams is off unless it is asked for, and costs nothing then but the counting of what is there.
//! Requests, streams, watches and requests under way are counted in this process alone. What is stored, leases among it, is one for all replicas of a proxy:
//! each follows it on the upstream.

mod account;
mod follow;
mod ledger;
mod rate;
mod tally;
mod usage;

use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use prometheus_client::{metrics::counter::Counter, registry::Registry};
use tokio::{
    sync::{Notify, Semaphore},
    time::{sleep, timeout},
};

use self::{
    account::Refused,
    follow::Subject,
    ledger::Quota,
    rate::Rate,
    usage::{Hits, LimitsCollector},
};
pub(crate) use self::{
    account::{Account, NotAdmitted, Place, is_doubtful},
    follow::measure,
    tally::Present,
};
pub use self::{ledger::Amount, tally::Tally, usage::Usage};
use crate::{error::EtcdError, meta::TenantKeys, prefix::Prefix, upstream::Upstream};

/// For how long what is stored without a quota is followed when nobody asks for it any more.
const FORGOTTEN: Duration = Duration::from_secs(300);
/// How long a client waits to be told that its request is one too many. Most ask again at once, and who does that costs the other
/// tenants' proxies the processor time that it takes to refuse him.
const HELD_BACK: Duration = Duration::from_millis(100);
/// How many wait for it at a time. Of each only what a call has without its message is kept.
const MOST_HELD_BACK: usize = 1024;

/// The limits of a tenant; what is `None` is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitSettings {
    /// Bytes of live keys and their values.
    pub quota_bytes: Option<NonZeroUsize>,
    /// Live keys.
    pub quota_keys: Option<NonZeroUsize>,
    /// Requests per second.
    pub requests_per_second: Option<RateSettings>,
    /// Unary requests at a time.
    pub concurrent_requests: Option<NonZeroUsize>,
    /// Streams at a time, and as many unary requests where these are not limited.
    pub streams: Option<NonZeroUsize>,
    /// Watches at a time.
    pub watches: Option<NonZeroUsize>,
    /// Leases at a time.
    pub leases: Option<NonZeroUsize>,
}

/// A rate and what may come at once after a time of rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateSettings {
    /// Requests per second.
    pub per_second: NonZeroU32,
    /// Requests at once.
    pub burst: NonZeroU32,
}

/// The limits of a tenant and what it uses of them.
#[derive(Debug)]
pub struct Limits {
    settings: LimitSettings,
    rate: Option<Rate>,
    in_flight: Arc<Tally>,
    streams: Arc<Tally>,
    watches: Arc<Tally>,
    storage: (Account, Subject),
    /// Somebody asked for what is stored.
    asked: Notify,
    leases: Option<(Account, Subject)>,
    held_back: Semaphore,
    hits: Hits,
}

// === impl Limits ===

impl Limits {
    /// The limits of the tenant with this prefix and these meta keys.
    pub(crate) fn new(settings: LimitSettings, prefix: &Prefix, keys: &TenantKeys) -> Self {
        let hits = Hits::default();
        let quota = Quota { keys: signed(settings.quota_keys), bytes: signed(settings.quota_bytes) };
        let refused = Refused { keys: hits.quota_keys.clone(), bytes: hits.quota_bytes.clone() };
        let (key, range_end) = prefix.keys();
        let subject = Subject { what: "keys", key, range_end, strip: Some(prefix.as_bytes().len()) };
        let storage = (Account::new(quota, refused), subject);
        // What bounds requests is what they hit.
        let (in_flight, refused_requests) = match settings.concurrent_requests {
            Some(most) => (Some(most), &hits.concurrent_requests),
            None => (settings.streams, &hits.streams),
        };
        let leases = settings.leases.map(|most| {
            let quota = Quota { keys: signed(Some(most)), bytes: None };
            let refused = Refused { keys: hits.leases.clone(), bytes: Counter::default() };
            let (key, range_end) = keys.lease_marks();
            (Account::new(quota, refused), Subject { what: "leases", key, range_end, strip: None })
        });
        Self {
            settings,
            rate: settings.requests_per_second.map(|rate| Rate::new(rate.per_second, rate.burst)),
            in_flight: Arc::new(Tally::new(in_flight.map(NonZeroUsize::get), refused_requests.clone())),
            streams: Arc::new(Tally::new(settings.streams.map(NonZeroUsize::get), hits.streams.clone())),
            watches: Arc::new(Tally::new(settings.watches.map(NonZeroUsize::get), hits.watches.clone())),
            storage,
            asked: Notify::new(),
            leases,
            held_back: Semaphore::new(MOST_HELD_BACK),
            hits,
        }
    }

    /// Registers limits, use and hits of `limits` with the registry of this program's own metrics.
    pub fn register(limits: &Arc<Self>, registry: &mut Registry) {
        registry.register_collector(Box::new(LimitsCollector::new(limits.clone())));
    }

    /// What is set.
    pub fn settings(&self) -> &LimitSettings {
        &self.settings
    }

    /// Takes a request for one of those of this second.
    ///
    /// # Errors
    /// etcd's for too many requests.
    pub(crate) fn request(&self) -> Result<(), EtcdError> {
        match &self.rate {
            Some(rate) if !rate.take() => {
                self.hits.requests_per_second.inc();
                Err(EtcdError::TooManyRequests)
            }
            _ => Ok(()),
        }
    }

    /// Waits as a client does whose request is refused, if not too many wait already.
    pub(crate) async fn hold_back(&self) {
        if let Ok(_place) = self.held_back.try_acquire() {
            sleep(HELD_BACK).await;
        }
    }

    /// Takes a message on an open stream for a request of this second. If it is none, it has to wait for its
    /// [turn](Limits::turn).
    pub(crate) fn message(&self) -> bool {
        self.rate.as_ref().is_none_or(Rate::take_in_turn)
    }

    /// Waits until it is a message's turn.
    pub(crate) async fn turn(&self) {
        if let Some(rate) = &self.rate {
            rate.wait().await;
        }
    }

    /// Counts a unary request until what this returns is dropped.
    ///
    /// # Errors
    /// etcd's for too many requests.
    pub(crate) fn unary(&self) -> Result<Present, EtcdError> {
        self.in_flight.keep().ok_or(EtcdError::TooManyRequests)
    }

    /// Counts a stream, or a call that waits as long as one, until the answer is dropped.
    ///
    /// # Errors
    /// etcd's for too many requests.
    pub(crate) fn stream(&self) -> Result<Present, EtcdError> {
        self.streams.keep().ok_or(EtcdError::TooManyRequests)
    }

    /// The tenant's watches in this process.
    pub(crate) fn watches(&self) -> &Arc<Tally> {
        &self.watches
    }

    /// What the tenant has stored, if there is a quota.
    pub(crate) fn storage(&self) -> Option<&Account> {
        self.quota().map(|(account, _)| account)
    }

    /// What the tenant has stored; `None` while it cannot be counted. Without a quota it is counted, and followed from then on for
    /// as long as somebody asks.
    pub(crate) async fn stored(&self) -> Option<Amount> {
        let (account, _) = &self.storage;
        if self.quota().is_none() {
            self.asked.notify_one();
            account.first_count().await?;
        }
        account.stored()
    }

    /// The tenant's leases, if their number is limited.
    pub(crate) fn leases(&self) -> Option<&Account> {
        self.leases.as_ref().map(|(account, _)| account)
    }

    /// Whether everything that has to be counted was counted once; `None` if nothing has to be.
    pub(crate) fn counted(&self) -> Option<bool> {
        let counted = |(account, _): &(Account, Subject)| account.stored().is_some();
        let mut all = self.limited().map(counted).peekable();
        all.peek().is_some().then(|| all.all(|counted| counted))
    }

    /// Follows what is limited and stored on `upstream`, for as long as it is polled.
    pub(crate) async fn follow(&self, upstream: &Upstream) {
        let limited = self.limited().map(|(account, subject)| follow::follow(upstream, account, subject));
        let others = async {
            if self.quota().is_none() {
                self.follow_for_who_asks(upstream).await;
            }
        };
        tokio::join!(futures::future::join_all(limited), others);
    }

    async fn follow_for_who_asks(&self, upstream: &Upstream) {
        let (account, subject) = &self.storage;
        loop {
            self.asked.notified().await;
            tokio::select! {
                () = follow::follow(upstream, account, subject) => {}
                () = async { while timeout(FORGOTTEN, self.asked.notified()).await.is_ok() {} } => {}
            }
            account.forget();
        }
    }

    fn quota(&self) -> Option<&(Account, Subject)> {
        (self.settings.quota_bytes.is_some() || self.settings.quota_keys.is_some()).then_some(&self.storage)
    }

    /// Of what is stored, what is limited.
    fn limited(&self) -> impl Iterator<Item = &(Account, Subject)> {
        self.quota().into_iter().chain(&self.leases)
    }
}

fn signed(most: Option<NonZeroUsize>) -> Option<i64> {
    most.map(|most| i64::try_from(most.get()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures::{StreamExt as _, poll, stream::FuturesUnordered};
    use tokio::time::Instant;

    use super::*;
    use crate::meta::MetaLayout;

    fn limits(settings: LimitSettings) -> Limits {
        let prefix = Prefix::new("/t/").unwrap();
        let keys = MetaLayout::new(Prefix::new("/meta/").unwrap()).tenant(&prefix);
        Limits::new(settings, &prefix, &keys)
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_refused_waits_if_not_too_many_do() {
        let limits = limits(LimitSettings::default());
        let start = Instant::now();
        let mut waiting: FuturesUnordered<Pin<Box<_>>> =
            (0..MOST_HELD_BACK).map(|_| Box::pin(limits.hold_back())).collect();
        assert!(poll!(waiting.next()).is_pending());
        limits.hold_back().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(waiting.count().await, MOST_HELD_BACK);
        assert!(start.elapsed() >= HELD_BACK);
        // A place that was given up is free.
        assert!(poll!(Box::pin(limits.hold_back())).is_pending());
        assert_eq!(limits.held_back.available_permits(), MOST_HELD_BACK);
    }

    #[test]
    fn requests_hit_what_bounds_them() {
        let one = NonZeroUsize::new(1);
        let hit = |concurrent_requests| {
            let settings = LimitSettings { concurrent_requests, streams: one, ..Default::default() };
            let limits = limits(settings);
            let _first = limits.unary().unwrap();
            limits.unary().unwrap_err();
            (limits.hits.concurrent_requests.get(), limits.hits.streams.get())
        };
        assert_eq!(hit(one), (1, 0));
        assert_eq!(hit(None), (0, 1));
    }
}
