//! The end of an EtcdProxy: its proxies first, then its data if that is to go, then it.

use std::time::Duration;

use etcd_proxy::prefix::Prefix;
use jiff::Timestamp;
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};
use tokio::time::Instant;

use super::{
    PassError, certificates,
    proxy::{Pass, seen_by_tenant},
    upstream_of,
};
use crate::{
    api::{DeletionPolicy, DeletionProgress, EtcdUpstream, FINALIZER, Mode},
    objects::Kind,
    policy,
    status::{self, Deleting, Notice, Problem, counted},
    upstream::{Progress, Release, Shared},
};

/// How soon it is looked whether what is going has gone.
const GOING: Duration = Duration::from_secs(2);

/// How long one pass deletes data before it lets others have their turn.
const SLICE: Duration = Duration::from_secs(2);

/// How often progress is written meanwhile.
const REPORT: Duration = Duration::from_secs(1);

/// How soon it is tried again where somebody has to do something.
const BLOCKED: Duration = Duration::from_secs(30);

impl Pass<'_> {
    /// Removes everything that was made for the object. Answers whether the object is gone.
    pub(super) async fn clean_up(&mut self) -> Result<bool, PassError> {
        if !self.proxy.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
            self.forget();
            return Ok(true);
        }
        let mut made = self.context.applier.made_for(&self.names.uid).await?;
        // Also if somebody took its label away.
        made.entry(certificates::authority_id(&self.names)).or_default();
        let deployed = made.keys().any(|id| id.kind == Kind::Deployment);
        let removal = self.context.applier.remove(made).await?;
        // A Deployment stays until its pods have gone, and nobody writes any more then. Others may linger where somebody
        // else's finalizer holds them; nothing waits for those.
        if deployed {
            self.waits(GOING, "the proxies are going");
            return Ok(false);
        }
        if removal.left > 0 {
            self.waits(GOING, "what was made for it is going");
            return Ok(false);
        }
        let Some(outcome) = self.without_data().await? else { return Ok(false) };
        for Notice { reason, note, .. } in &outcome {
            tracing::info!(owner = %self.names.owner(), reason, "{note}");
        }
        // While there is something to tell it of.
        self.context.tell(self.proxy, outcome).await;
        self.set_finalizer(false).await?;
        self.forget();
        Ok(true)
    }

    fn forget(&self) {
        let context = self.context;
        context.failures.none(&self.owner);
        context.usages.forget(&self.names.uid);
        context.written.lock().remove(&self.names.uid);
        context.applier.forget_owner(&self.names.uid);
    }

    fn waits(&mut self, again: Duration, message: &str) {
        self.again = again;
        let deleting = self.findings.deleting.get_or_insert_default();
        deleting.message = message.to_owned();
    }

    /// The data cannot be deleted, for a reason that concerns the shared etcd.
    fn blocked(&mut self, prefix: &str, why: &Problem) {
        self.again = BLOCKED;
        let message = format!(
            "the data under {prefix} is to be deleted, and {}; it goes on when that is mended, or with deletionPolicy: Retain, which leaves the data",
            why.message
        );
        let problem = Problem::new("DeletionBlocked", message.clone());
        self.findings.deleting = Some(Deleting { message, progress: None, blocked: Some(problem) });
    }

    /// Sees that the data is where it belongs, kept or gone, and answers what is to be told of it; nothing while it is not.
    async fn without_data(&mut self) -> Result<Option<Vec<Notice>>, PassError> {
        let claimed = self.proxy.status.as_ref().and_then(|status| status.prefix.clone());
        let name = upstream_of(self.proxy);
        if self.proxy.spec.deletion_policy == DeletionPolicy::Retain {
            if self.release_if_empty(claimed.clone(), name).await? {
                return Ok(Some(Vec::new()));
            }
            let retained = claimed.map(|prefix| {
                let note = format!(
                    "the data under {prefix} stays, claimed: EtcdUpstream {name} lists it (status.retained), and the operator can give it to another object or delete it"
                );
                Notice::normal("DataRetained", "Delete", note)
            });
            return Ok(Some(retained.into_iter().collect()));
        }
        let Some(upstream) = self.context.stores.upstreams.get(&ObjectRef::new(name)) else {
            let Some(prefix) = claimed else { return Ok(Some(Vec::new())) };
            let problem = Problem::new("UpstreamNotFound", format!("there is no EtcdUpstream {name} any more"));
            self.blocked(&prefix, &problem);
            self.findings.upstream = Some(Err(problem));
            return Ok(None);
        };
        let Some(prefix) = self.own_prefix(claimed, &upstream) else { return Ok(Some(Vec::new())) };
        let shared = match self.context.connected(&upstream).await? {
            Ok((shared, _)) => shared,
            Err(problem) => {
                let problem = seen_by_tenant(&upstream, problem.reason);
                self.blocked(&prefix.to_string(), &problem);
                self.findings.upstream = Some(Err(problem));
                return Ok(None);
            }
        };
        match self.delete(&shared, &prefix).await {
            Ok(gone) => Ok(gone),
            Err(PassError::Shared(error)) => {
                tracing::warn!(%prefix, owner = %self.names.owner(), %error, "data that is to go cannot be deleted");
                let reason = if error.is_unreachable() { "UpstreamUnreachable" } else { "ClaimError" };
                let problem = seen_by_tenant(&upstream, reason);
                self.blocked(&prefix.to_string(), &problem);
                self.findings.upstream = error.is_unreachable().then_some(Err(problem));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Releases a claim that keeps nothing: an allocated prefix is nobody else's wish, and whoever makes and deletes objects
    /// in a loop would fill the shared etcd with claims. Only in mode Deployment, where no proxy is left that could write.
    /// A shared etcd that cannot be used does not hold the object up: the claim stays, then.
    async fn release_if_empty(&self, claimed: Option<String>, upstream: &str) -> Result<bool, PassError> {
        if self.proxy.spec.prefix.is_some() || self.proxy.spec.mode != Mode::Deployment {
            return Ok(false);
        }
        let Some(upstream) = self.context.stores.upstreams.get(&ObjectRef::new(upstream)) else { return Ok(false) };
        let Some(prefix) = self.own_prefix(claimed, &upstream) else { return Ok(false) };
        let Ok((shared, _)) = self.context.connected(&upstream).await? else { return Ok(false) };
        self.context.fence.check()?;
        let owner = self.names.owner();
        match shared.release(&prefix, &owner, &self.names.uid).await {
            Ok(release) => Ok(release == Release::Done),
            Err(error) => {
                tracing::warn!(%prefix, owner, %error, "the claim stays: it cannot be seen whether there is data");
                Ok(false)
            }
        }
    }

    /// Also one whose claim was made and never told.
    fn own_prefix(&self, claimed: Option<String>, upstream: &EtcdUpstream) -> Option<Prefix> {
        match claimed {
            Some(prefix) => Prefix::new(prefix).ok(),
            None => policy::wanted_prefix(self.proxy, upstream).ok(),
        }
    }

    async fn delete(&mut self, shared: &Shared, prefix: &Prefix) -> Result<Option<Vec<Notice>>, PassError> {
        let (owner, uid) = (self.names.owner(), self.names.uid.clone());
        let began = Instant::now();
        let mut told = began;
        let deletion = shared.deletion(prefix, &owner, &uid).await?;
        let held = deletion.is_some();
        if let Some(mut deletion) = deletion {
            loop {
                self.context.fence.check()?;
                let Some(progress) = deletion.step().await? else { break };
                if began.elapsed() > SLICE {
                    self.tell_progress(prefix, progress);
                    self.again = Duration::from_millis(500);
                    return Ok(None);
                }
                if told.elapsed() > REPORT {
                    told = Instant::now();
                    self.tell_progress(prefix, progress);
                    let status = status::status(self.proxy, &self.findings, Timestamp::now());
                    self.context.write_status(self.proxy, &status).await?;
                }
            }
        }
        self.context.fence.check()?;
        match shared.release(prefix, &owner, &uid).await? {
            Release::Done => {
                let note = format!("the data under {prefix} is deleted, and the prefix released");
                let deleted = held.then(|| Notice::normal("DataDeleted", "Delete", note));
                Ok(Some(deleted.into_iter().collect()))
            }
            Release::NotEmpty { keys, leases } => {
                let message = format!(
                    "{} and {} came while the data was deleted; is a proxy still running?",
                    counted(keys, "key", "keys"),
                    counted(leases, "lease", "leases")
                );
                self.waits(GOING, &message);
                Ok(None)
            }
        }
    }

    fn tell_progress(&mut self, prefix: &Prefix, progress: Progress) {
        let Progress { keys_deleted, keys_left, .. } = progress;
        self.findings.deleting = Some(Deleting {
            message: format!("deleting the data under {prefix}: {} left", counted(keys_left, "key", "keys")),
            progress: Some(DeletionProgress { keys_deleted, keys_left }),
            blocked: None,
        });
    }
}
