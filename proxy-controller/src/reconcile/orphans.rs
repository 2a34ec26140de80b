//! Objects whose EtcdProxy is gone though they are not: somebody took its finalizer away by hand.
//!
//! Tenants can do that as often as they like, so it is noticed at once, when the EtcdProxy goes; what was missed then (nobody led,
//! or a watch was lost) is found by looking through everything from time to time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use kube::{Api, ResourceExt as _, api::ListParams};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::{
    Context, PassError,
    apply::{Removal, listed},
};
use crate::{api::EtcdProxy, objects::ObjectId};

/// How often they are looked for.
const EVERY: Duration = Duration::from_secs(600);

/// How often what was forbidden to be deleted is tried again.
const FORGET: u32 = 6;

/// More than these are left to the next look through everything.
const MOST: usize = 10_000;

/// The uids of EtcdProxies that are gone, until somebody looks whether something of them is left.
#[derive(Debug, Default)]
pub struct Gone {
    uids: Mutex<BTreeSet<String>>,
    news: Notify,
}

/// Removes them until `stop`.
pub(super) async fn sweep(context: Arc<Context>, stop: CancellationToken) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sweeps: u32 = 0;
    loop {
        let removed = tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {
                sweeps = sweeps.wrapping_add(1);
                if sweeps.is_multiple_of(FORGET) {
                    context.applier.forget_refused();
                }
                stop.run_until_cancelled(context.sweep()).await
            }
            uids = context.stores.gone.next() => stop.run_until_cancelled(context.clear_away(&uids)).await,
        };
        if let Some(Err(error)) = removed {
            tracing::warn!(%error, "objects whose EtcdProxy is gone could not be removed");
        }
    }
}

impl Context {
    /// Removes what is left of EtcdProxies that have just gone, as far as the caches know and this process made it.
    async fn clear_away(&self, uids: &BTreeSet<String>) -> Result<(), PassError> {
        for uid in uids {
            let left = self.applier.known_of(uid);
            if !left.is_empty() {
                self.remove_lost(left).await?;
            }
            self.applier.forget_owner(uid);
        }
        Ok(())
    }

    async fn sweep(&self) -> Result<(), PassError> {
        let known: BTreeSet<_> =
            self.stores.proxies.state().iter().filter_map(|proxy| proxy.metadata.uid.clone()).collect();
        self.stores.forget_gone();
        self.forget_gone(&known);
        let mut lost = self.stores.all_made();
        lost.retain(|uid, _| !known.contains(uid));
        if lost.is_empty() {
            return Ok(());
        }
        // A cache may be behind; the API server is not.
        let proxies: Api<EtcdProxy> = Api::all(self.client.clone());
        let living = listed(&proxies, ListParams::default(), |proxy| proxy.uid());
        for uid in living.await.map_err(PassError::api("list all EtcdProxies"))?.into_iter().flatten() {
            lost.remove(&uid);
        }
        self.remove_lost(lost.into_values().flatten().collect()).await
    }

    async fn remove_lost(&self, objects: BTreeMap<ObjectId, Option<String>>) -> Result<(), PassError> {
        let Removal { gone, left } = self.applier.remove(objects).await?;
        for id in gone {
            tracing::warn!(%id, "removed: its EtcdProxy went without being finalized");
        }
        if left > 0 {
            tracing::info!(left, "objects labelled as made for EtcdProxies that are gone are left to the next sweep");
        }
        Ok(())
    }
}

// === impl Gone ===

impl Gone {
    /// Tells that an EtcdProxy is gone. Never waits: a replica that does not lead keeps some, and the look at everything, with
    /// which a lead begins, finds the rest.
    pub fn push(&self, uid: String) {
        let mut uids = self.uids.lock();
        if uids.len() < MOST {
            uids.insert(uid);
        }
        drop(uids);
        self.news.notify_one();
    }

    async fn next(&self) -> BTreeSet<String> {
        loop {
            let uids = std::mem::take(&mut *self.uids.lock());
            if !uids.is_empty() {
                return uids;
            }
            self.news.notified().await;
        }
    }
}
