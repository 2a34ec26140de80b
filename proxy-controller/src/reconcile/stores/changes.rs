//! What has changed and was not taken up yet. Whoever tells a change never waits: a cache must not stand still because nobody
//! acts, as in a replica that waits for the lead.

use std::collections::{BTreeSet, HashSet};

use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::api::EtcdProxy;

/// More objects than this are told as everything.
const MOST: usize = 100_000;

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This EtcdProxy, or something that was made for it.
    Proxy(ObjectRef<EtcdProxy>),
    /// This EtcdUpstream, and so everything that refers to it.
    Upstream(String),
    /// Who refers to this EtcdUpstream: that is told in its status.
    Tenants(String),
    /// Something that may concern any EtcdProxy.
    Everything,
}

/// Changes that wait, each object once however often it changed.
#[derive(Default)]
pub struct Changes {
    waiting: Mutex<Waiting>,
    news: Notify,
}

#[derive(Default)]
struct Waiting {
    everything: bool,
    proxies: HashSet<ObjectRef<EtcdProxy>>,
    upstreams: BTreeSet<String>,
    tenants: BTreeSet<String>,
}

impl Changes {
    /// Tells a change.
    pub fn push(&self, change: Change) {
        let mut waiting = self.waiting.lock();
        match change {
            Change::Proxy(object) if waiting.proxies.len() < MOST => _ = waiting.proxies.insert(object),
            Change::Upstream(name) if waiting.upstreams.len() < MOST => _ = waiting.upstreams.insert(name),
            Change::Tenants(name) if waiting.tenants.len() < MOST => _ = waiting.tenants.insert(name),
            Change::Proxy(_) | Change::Upstream(_) | Change::Tenants(_) | Change::Everything => {
                waiting.everything = true;
            }
        }
        drop(waiting);
        self.news.notify_one();
    }

    /// Waits for changes, and takes all there are.
    pub async fn next(&self) -> Vec<Change> {
        loop {
            let Waiting { everything, proxies, upstreams, tenants } = std::mem::take(&mut *self.waiting.lock());
            let upstreams = upstreams.into_iter().map(Change::Upstream);
            let upstreams = upstreams.chain(tenants.into_iter().map(Change::Tenants));
            let changes: Vec<_> = match everything {
                true => upstreams.chain([Change::Everything]).collect(),
                false => upstreams.chain(proxies.into_iter().map(Change::Proxy)).collect(),
            };
            if !changes.is_empty() {
                return changes;
            }
            self.news.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn nobody_waits_to_tell_and_each_object_is_told_once() {
        let changes = Changes::default();
        let object = |name: &str| ObjectRef::<EtcdProxy>::new(name).within("a");
        for _ in 0..5000 {
            changes.push(Change::Proxy(object("x")));
            changes.push(Change::Proxy(object("y")));
        }
        assert_eq!(changes.next().now_or_never().unwrap().len(), 2);
        assert!(changes.next().now_or_never().is_none());
        changes.push(Change::Proxy(object("x")));
        changes.push(Change::Upstream("u".into()));
        changes.push(Change::Tenants("u".into()));
        changes.push(Change::Everything);
        assert_eq!(
            changes.next().now_or_never().unwrap(),
            [Change::Upstream("u".into()), Change::Tenants("u".into()), Change::Everything]
        );
    }
}
