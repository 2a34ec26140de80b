//! Objects whose EtcdProxy is gone though they are not: somebody took its finalizer away by hand.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use kube::{Api, api::ListParams};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::{Context, PassError};
use crate::api::EtcdProxy;

/// How often they are looked for.
const EVERY: Duration = Duration::from_secs(600);

/// Most EtcdProxies whose objects are removed in one go.
const AT_ONCE: usize = 100;

/// Removes them until `stop`.
pub(super) async fn sweep(context: Arc<Context>, stop: CancellationToken) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        if let Some(Err(error)) = stop.run_until_cancelled(context.sweep()).await {
            tracing::warn!(%error, "objects whose EtcdProxy is gone could not be removed");
        }
    }
}

impl Context {
    async fn sweep(&self) -> Result<(), PassError> {
        let known: BTreeSet<_> =
            self.stores.proxies.state().iter().filter_map(|proxy| proxy.metadata.uid.clone()).collect();
        self.stores.forget_gone();
        self.forget_gone(&known);
        let mut lost: BTreeSet<_> = self.stores.labelled_uids().difference(&known).cloned().collect();
        if lost.is_empty() {
            return Ok(());
        }
        // A cache may be behind; the API server is not.
        let proxies: Api<EtcdProxy> = Api::all(self.client.clone());
        let living =
            proxies.list_metadata(&ListParams::default()).await.map_err(PassError::api("list all EtcdProxies"))?;
        for proxy in living {
            proxy.metadata.uid.iter().for_each(|uid| _ = lost.remove(uid));
        }
        // Anybody may write the label, and any number of uids.
        for uid in lost.into_iter().take(AT_ONCE) {
            for (id, object) in self.applier.made_for(&uid).await? {
                if self.applier.delete(&id, object.as_deref()).await? {
                    tracing::warn!(%id, uid, "removed: its EtcdProxy went without being finalized");
                }
            }
        }
        Ok(())
    }
}
