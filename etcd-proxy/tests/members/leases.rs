//! Keys with leases that nobody renews: each vanishes, and no earlier than its lease ends.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use proptest::prelude::RngExt as _;
use proto::etcdserverpb::{
    LeaseGrantRequest, PutRequest, RangeRequest, kv_client::KvClient, lease_client::LeaseClient,
};
use tokio::time::{sleep, timeout};

use crate::{
    clients::{LIMIT, Shared},
    cluster::{self, PATIENCE},
    events::{Truth, Watch},
    history::Revision,
};

/// Where the keys are.
const PLACE: &str = "leased/";
/// What follows the last of them.
const BEYOND: &str = "leased0";
/// Between two leases, and between two looks whether all keys have vanished.
const PAUSE: Duration = Duration::from_millis(300);

/// A key with a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leased {
    pub(crate) value: u64,
    /// When the lease was asked for.
    pub(crate) asked: Duration,
    /// What it was granted.
    pub(crate) ttl: Duration,
}

/// Grants leases by one proxy and puts a key with each by another, until it is to stop.
pub(crate) async fn holder(shared: Arc<Shared>) -> Vec<Leased> {
    let mut rng = shared.rng(200);
    let mut leases = LeaseClient::new(cluster::channel(&shared.urls[1]));
    let mut kv = KvClient::new(cluster::channel(&shared.urls[2]));
    let mut all = Vec::new();
    while !shared.stop.load(Ordering::SeqCst) {
        sleep(PAUSE).await;
        if shared.hold.load(Ordering::SeqCst) {
            continue;
        }
        let asked = shared.start.elapsed();
        let grant = LeaseGrantRequest { ttl: rng.random_range(2..5), id: 0 };
        let Ok(Ok(granted)) = timeout(LIMIT, leases.lease_grant(grant)).await else { continue };
        let granted = granted.into_inner();
        let value = shared.value();
        all.push(Leased { value, asked, ttl: Duration::from_secs(u64::try_from(granted.ttl).unwrap()) });
        let put = PutRequest {
            key: format!("{PLACE}{value}").into(),
            value: value.to_string().into(),
            lease: granted.id,
            ..Default::default()
        };
        // Whether it happened, the history tells.
        _ = timeout(LIMIT, kv.put(put)).await;
    }
    all
}

/// Waits until all keys have vanished.
///
/// # Errors
/// When some do not.
pub(crate) async fn vanished(shared: &Shared) -> Result<(), String> {
    let mut kv = KvClient::new(cluster::channel(&shared.urls[0]));
    let range = RangeRequest { key: PLACE.into(), range_end: BEYOND.into(), ..Default::default() };
    let start = Instant::now();
    loop {
        let found = kv.range(range.clone()).await.map(tonic::Response::into_inner);
        match found {
            Ok(found) if found.kvs.is_empty() => return Ok(()),
            found if start.elapsed() > PATIENCE => {
                return Err(format!("leases: keys have not vanished after {PATIENCE:?}: {found:?}"));
            }
            _ => sleep(PAUSE).await,
        }
    }
}

/// When each deletion of such a key was told of first.
pub(crate) fn seen(watches: &[Watch]) -> HashMap<Revision, Duration> {
    let mut seen = HashMap::new();
    for response in watches.iter().flat_map(|watch| &watch.responses) {
        for event in response.events.iter().filter(|event| event.key.starts_with(PLACE) && event.put.is_none()) {
            let first = seen.entry(event.revision).or_insert(response.at);
            *first = response.at.min(*first);
        }
    }
    seen
}

/// Checks that every key has vanished, and that none did before its lease ended.
///
/// # Errors
/// With a key that has not, or that did.
pub(crate) fn check(leased: &[Leased], truth: &Truth, seen: &HashMap<Revision, Duration>) -> Result<(), String> {
    let leased: HashMap<u64, &Leased> = leased.iter().map(|leased| (leased.value, leased)).collect();
    let mut there = BTreeMap::new();
    for event in truth.events().iter().filter(|event| event.key.starts_with(PLACE)) {
        if event.put.is_some() {
            there.insert(&event.key, event);
            continue;
        }
        there.remove(&event.key);
        let lease = event.before.and_then(|kv| leased.get(&kv.value));
        let Some(Leased { asked, ttl, .. }) = lease else { return Err(format!("leases: nobody's key: {event:?}")) };
        if let Some(at) = seen.get(&event.revision).filter(|at| **at < *asked + *ttl) {
            return Err(format!("leases: seen at {at:?}, though {ttl:?} were granted not before {asked:?}: {event:?}"));
        }
    }
    match there.pop_first() {
        Some((_, event)) => Err(format!("leases: it never vanished: {event:?}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        events::{Asked, Event, Response},
        history::Kv,
    };

    fn events() -> Vec<Event> {
        let key = format!("{PLACE}7");
        let kv = Some(Kv { value: 7, version: 1, created: 5, modified: 5 });
        vec![
            Event { revision: 5, key: key.clone(), put: kv, before: None },
            Event { revision: 9, key, put: None, before: kv },
        ]
    }

    /// Judges a key whose lease of two seconds was asked for after one, and whose end was seen by two watches.
    fn judge(events: Vec<Event>, seen_at: [u64; 2]) -> Result<(), String> {
        let asked = Asked { prefix: "", start: 0, without: None, before: true };
        let watch = |seconds| {
            let response = Response { at: Duration::from_secs(seconds), revision: 9, events: events[1..].to_vec() };
            Watch { asked, responses: vec![response] }
        };
        let seen = seen(&seen_at.map(watch));
        let leased = Leased { value: 7, asked: Duration::from_secs(1), ttl: Duration::from_secs(2) };
        check(&[leased], &Truth::new(events).unwrap(), &seen)
    }

    #[test]
    fn a_key_that_vanishes_after_its_time_is_right() {
        judge(events(), [4, 3]).unwrap();
    }

    #[test]
    fn a_key_that_vanishes_too_early_is_found() {
        assert!(judge(events(), [4, 2]).unwrap_err().contains("granted not before"));
    }

    #[test]
    fn a_key_that_stays_is_found() {
        let mut events = events();
        events.pop();
        assert!(judge(events, [4, 4]).unwrap_err().contains("never vanished"));
    }
}
