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
    api::{DeletionPolicy, DeletionProgress, EtcdUpstream, FINALIZER},
    objects::Kind,
    policy,
    status::{self, Deleting, Problem},
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
        let mut deployed = false;
        for (id, uid) in made {
            self.context.applier.delete(&id, uid.as_deref()).await?;
            deployed |= id.kind == Kind::Deployment;
        }
        // A Deployment stays until its pods have gone, and nobody writes any more then. Others may linger where somebody
        // else's finalizer holds them; nothing waits for those.
        if deployed {
            return Ok(self.waits(GOING, "the proxies are going"));
        }
        if !self.without_data().await? {
            return Ok(false);
        }
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

    fn waits(&mut self, again: Duration, message: &str) -> bool {
        self.again = again;
        let deleting = self.findings.deleting.get_or_insert_default();
        deleting.message = message.to_owned();
        false
    }

    fn blocked(&mut self, problem: Problem) -> bool {
        self.again = BLOCKED;
        let message = problem.message.clone();
        self.findings.deleting = Some(Deleting { message, progress: None, blocked: Some(problem) });
        false
    }

    /// Whether the data is where it belongs: kept, or gone.
    async fn without_data(&mut self) -> Result<bool, PassError> {
        if self.proxy.spec.deletion_policy == DeletionPolicy::Retain {
            return Ok(true);
        }
        let claimed = self.proxy.status.as_ref().and_then(|status| status.prefix.clone());
        let name = upstream_of(self.proxy);
        let Some(upstream) = self.context.stores.upstreams.get(&ObjectRef::new(name)) else {
            let Some(prefix) = claimed else { return Ok(true) };
            let message = format!(
                "the data under {prefix} is to be deleted, and EtcdUpstream {name} is gone; bring it back, or set deletionPolicy: Retain"
            );
            return Ok(self.blocked(Problem::new("DeletionBlocked", message)));
        };
        let shared = match self.context.connected(&upstream).await? {
            Ok((shared, _)) => shared,
            Err(problem) => return Ok(self.blocked(seen_by_tenant(&upstream, problem.reason))),
        };
        let Some(prefix) = self.own_prefix(claimed, &upstream) else { return Ok(true) };
        match self.delete(&shared, &prefix).await {
            Ok(gone) => Ok(gone),
            Err(PassError::Shared(error)) => {
                tracing::warn!(%prefix, owner = %self.names.owner(), %error, "data that is to go cannot be deleted");
                let reason = if error.is_unreachable() { "UpstreamUnreachable" } else { "ClaimError" };
                let problem = seen_by_tenant(&upstream, reason);
                let message = format!("the data under {prefix} is to be deleted, and {}", problem.message);
                self.findings.upstream = error.is_unreachable().then_some(Err(problem));
                Ok(self.blocked(Problem::new("DeletionBlocked", message)))
            }
            Err(error) => Err(error),
        }
    }

    /// Also one whose claim was made and never told.
    fn own_prefix(&self, claimed: Option<String>, upstream: &EtcdUpstream) -> Option<Prefix> {
        match claimed {
            Some(prefix) => Prefix::new(prefix).ok(),
            None => policy::wanted_prefix(self.proxy, upstream).ok(),
        }
    }

    async fn delete(&mut self, shared: &Shared, prefix: &Prefix) -> Result<bool, PassError> {
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
                    return Ok(false);
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
                if held {
                    tracing::info!(%prefix, owner, "the data is deleted, and the prefix released");
                }
                Ok(true)
            }
            Release::NotEmpty { keys, leases } => {
                let message = format!(
                    "{keys} keys and {leases} leases came while the data was deleted; is a proxy still running?"
                );
                Ok(self.waits(GOING, &message))
            }
        }
    }

    fn tell_progress(&mut self, prefix: &Prefix, progress: Progress) {
        let Progress { keys_deleted, keys_left, .. } = progress;
        self.findings.deleting = Some(Deleting {
            message: format!("deleting the data under {prefix}: {keys_left} keys left"),
            progress: Some(DeletionProgress { keys_deleted, keys_left }),
            blocked: None,
        });
    }
}
