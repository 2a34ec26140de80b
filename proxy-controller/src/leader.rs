//! Leader election among the replicas by a Lease (k8s.io/client-go `tools/leaderelection/leaderelection.go`,
//! `resourcelock/leaselock.go`).
//!
//! The Lease says who leads. The holder renews it; a candidate that has seen no renewal for a whole lease takes it over.
//! Nobody compares clocks: each candidate measures on its own, monotonic clock for how long it has seen the record unchanged,
//! and the times in the record are for people. The resourceVersion of each write sees to it that of several candidates one
//! wins.
//!
//! Stricter than client-go in two points, both towards leading less. The renew deadline counts from the moment at which the
//! last successful renewal was *sent*, which is before the moment from which others count. And a leader that finds another
//! name in the Lease stops at once instead of at its deadline.
//!
//! Rights: `get`, `create` and `update` of `leases` in the own namespace.

mod candidate;
mod fence;
mod metrics;

use std::{error::Error, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, api::PostParams};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::candidate::{Candidate, Step};
pub use self::{
    fence::{Fence, Fenced, LeadershipLost},
    metrics::LeaderMetrics,
};

/// Longest wait of a candidate between two looks, in retry periods beyond the first (`JitterFactor`).
const JITTER: f64 = 1.2;

/// How an election goes in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

/// What is wrong with the times of an election (`NewLeaderElector`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimesError {
    /// The Lease counts in seconds.
    #[error("the lease duration ({0:?}) must be whole seconds, at least one")]
    Lease(Duration),
    /// A leader could go on leading when another has taken over.
    #[error("the lease duration ({lease:?}) must be longer than the renew deadline ({deadline:?})")]
    Deadline {
        /// The lease duration.
        lease: Duration,
        /// The renew deadline.
        deadline: Duration,
    },
    /// The leader would give up before it has tried twice.
    #[error(
        "the renew deadline ({deadline:?}) must be longer than 1.2 times the retry period ({retry:?}), which must not be 0"
    )]
    Retry {
        /// The renew deadline.
        deadline: Duration,
        /// The retry period.
        retry: Duration,
    },
}

/// Which Lease, and as whom.
#[derive(Clone, Debug)]
pub struct ElectionConfig {
    /// The Lease's namespace.
    pub namespace: String,
    /// The Lease's name.
    pub name: String,
    /// This candidate's name, different from every other's; see [`identity`].
    pub identity: String,
    /// The times.
    pub times: Times,
}

/// A candidate that has not won yet.
pub struct Election {
    config: ElectionConfig,
    leases: Api<Lease>,
    candidate: Candidate,
    metrics: LeaderMetrics,
}

/// The lead. It is renewed for as long as this value lives.
#[derive(Debug)]
pub struct Leadership {
    fence: Fence,
    give_back: Option<oneshot::Sender<()>>,
    tasks: TaskTracker,
}

/// What came of one attempt.
enum Attempt {
    /// This candidate leads. Sent at this moment, so before anybody else began to count.
    Leading(Instant),
    /// Somebody else leads, or did a moment ago.
    Following,
    /// This candidate led, and does no more.
    Lost {
        /// Who is in the Lease now; empty: nobody.
        holder: String,
    },
}

/// A name that no other candidate has, even on the same host and after a restart: `<host>_<uuid>`, in the form of
/// kube-controller-manager's.
pub fn identity(host: &str) -> String {
    format!("{host}_{}", uuid::Uuid::new_v4())
}

// === impl Times ===

impl Times {
    /// Times that make sense together.
    ///
    /// # Errors
    /// When others could take over before the leader has stopped, or the leader would hardly try.
    pub fn new(lease_duration: Duration, renew_deadline: Duration, retry_period: Duration) -> Result<Self, TimesError> {
        if lease_duration.as_secs() == 0 || lease_duration.subsec_nanos() != 0 {
            return Err(TimesError::Lease(lease_duration));
        }
        if lease_duration <= renew_deadline {
            return Err(TimesError::Deadline { lease: lease_duration, deadline: renew_deadline });
        }
        if retry_period.is_zero() || renew_deadline <= retry_period.mul_f64(JITTER) {
            return Err(TimesError::Retry { deadline: renew_deadline, retry: retry_period });
        }
        Ok(Self { lease_duration, renew_deadline, retry_period })
    }

    /// For one request to the API server: time is left for a second attempt (`resourcelock.NewFromKubeconfig`).
    fn request(&self) -> Duration {
        self.renew_deadline / 2
    }

    /// `wait.JitterUntil`: candidates do not act in step.
    fn pause(&self) -> Duration {
        self.retry_period.mul_f64(1.0 + rand::random::<f64>() * JITTER)
    }
}

impl Default for Times {
    /// client-go's usual times: 15 s, 10 s and 2 s.
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

// === impl Election ===

impl Election {
    /// A candidate. `client` should not repeat requests by itself (`kube::Config::default_retry`): an answer that comes
    /// after the deadline is worth nothing.
    pub fn new(client: Client, config: ElectionConfig, metrics: LeaderMetrics) -> Self {
        let leases = Api::namespaced(client, &config.namespace);
        let candidate = Candidate::new(&config.namespace, &config.name, &config.identity, config.times.lease_duration);
        Self { config, leases, candidate, metrics }
    }

    /// Waits until this candidate leads. `None` when told to stop.
    pub async fn lead(mut self, stop: &CancellationToken) -> Option<Leadership> {
        let times = self.config.times;
        tracing::info!(lease = %self.lease(), identity = self.config.identity, "standing for election");
        loop {
            let attempt = timeout(times.request(), self.attempt());
            let outcome = tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                outcome = attempt => outcome,
            };
            match outcome {
                Ok(Ok(Attempt::Leading(since))) => return Some(self.leadership(since)),
                Ok(Ok(Attempt::Following | Attempt::Lost { .. })) => {}
                Ok(Err(error)) => {
                    self.metrics.failed();
                    let error = &error as &dyn Error;
                    tracing::warn!(error, lease = %self.lease(), "cannot stand for election, trying again");
                }
                Err(_) => {
                    self.metrics.failed();
                    tracing::warn!(lease = %self.lease(), "the API server is too slow for an election, trying again");
                }
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = sleep(times.pause()) => {}
            }
        }
    }

    /// One attempt to take or keep the lead (`tryAcquireOrRenew`).
    async fn attempt(&mut self) -> Result<Attempt, kube::Error> {
        let parameters = PostParams::default();
        let name = self.config.name.clone();
        let started = Instant::now();
        // Nobody else writes while this candidate leads, so the Lease most likely is as it was left.
        if let Some(lease) = self.candidate.renewal(started, Timestamp::now()) {
            match self.leases.replace(&name, &parameters, &lease).await {
                Ok(lease) => return Ok(self.written(lease, started)),
                Err(error) => {
                    let error = &error as &dyn Error;
                    tracing::debug!(error, lease = %self.lease(), "the Lease is not as it was left, reading it again");
                }
            }
        }
        let found = self.leases.get_opt(&name).await?;
        let before = self.candidate.holder().map(str::to_owned);
        let step = self.candidate.after_reading(found, Instant::now(), Timestamp::now());
        if let Some(holder) = self.candidate.holder()
            && before.as_deref() != Some(holder)
            && holder != self.config.identity
        {
            tracing::info!(lease = %self.lease(), holder, "another replica leads, or did last");
        }
        let started = Instant::now();
        match step {
            Step::Wait => Ok(Attempt::Following),
            Step::Lost { holder } => Ok(Attempt::Lost { holder }),
            Step::Create(lease) => match self.leases.create(&parameters, &lease).await {
                Ok(lease) => Ok(self.written(lease, started)),
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Attempt::Following),
                Err(error) => Err(error),
            },
            Step::Replace(lease) => match self.leases.replace(&name, &parameters, &lease).await {
                Ok(lease) => Ok(self.written(lease, started)),
                Err(kube::Error::Api(status)) if status.is_conflict() => Ok(Attempt::Following),
                Err(error) => Err(error),
            },
        }
    }

    fn written(&mut self, lease: Lease, started: Instant) -> Attempt {
        self.candidate.wrote(lease, Instant::now());
        Attempt::Leading(started)
    }

    fn leadership(self, since: Instant) -> Leadership {
        tracing::info!(lease = %self.lease(), identity = self.config.identity, "leading");
        self.metrics.leads(true);
        let fence = Fence::new(since + self.config.times.renew_deadline);
        let (give_back, given_back) = oneshot::channel();
        let tasks = TaskTracker::new();
        tasks.spawn(self.keep(since, fence.clone(), given_back));
        tasks.close();
        Leadership { fence, give_back: Some(give_back), tasks }
    }

    /// Renews until the lead is lost, given back or forgotten.
    async fn keep(mut self, since: Instant, fence: Fence, mut given_back: oneshot::Receiver<()>) {
        let give_back = tokio::select! {
            biased;
            order = &mut given_back => order.is_ok(),
            () = self.renew(since, &fence) => false,
        };
        fence.close();
        self.metrics.leads(false);
        if give_back {
            self.release().await;
        }
        tracing::info!(lease = %self.lease(), identity = self.config.identity, "not leading any more");
    }

    /// Comes back when the lead is lost.
    async fn renew(&mut self, since: Instant, fence: &Fence) {
        let times = self.config.times;
        let mut renewed = since;
        loop {
            let deadline = renewed + times.renew_deadline;
            sleep_until(renewed + times.retry_period).await;
            match timeout_at(deadline, self.renew_once()).await {
                Ok(Ok(since)) => {
                    renewed = since;
                    fence.extend(renewed + times.renew_deadline);
                    self.metrics.renewed();
                }
                Ok(Err(holder)) => {
                    tracing::error!(lease = %self.lease(), holder, "the Lease is not this replica's any more");
                    return;
                }
                Err(_) => {
                    tracing::error!(lease = %self.lease(), deadline = ?times.renew_deadline, "the lead could not be renewed in time");
                    return;
                }
            }
        }
    }

    /// Tries until it has worked, or somebody else is in the Lease.
    async fn renew_once(&mut self) -> Result<Instant, String> {
        let times = self.config.times;
        loop {
            match timeout(times.request(), self.attempt()).await {
                Ok(Ok(Attempt::Leading(since))) => return Ok(since),
                Ok(Ok(Attempt::Lost { holder })) => return Err(holder),
                // Written by somebody between reading and writing: read again.
                Ok(Ok(Attempt::Following)) => {}
                Ok(Err(error)) => {
                    self.metrics.failed();
                    let error = &error as &dyn Error;
                    tracing::warn!(error, lease = %self.lease(), "cannot renew the lead, trying again");
                }
                Err(_) => {
                    self.metrics.failed();
                    tracing::warn!(lease = %self.lease(), "no answer to the renewal of the lead, trying again");
                }
            }
            sleep(times.retry_period).await;
        }
    }

    /// Gives the lead back, so that the next candidate need not wait (`tryRelease`).
    async fn release(&mut self) {
        match timeout(self.config.times.request(), self.try_release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = &error as &dyn Error;
                tracing::warn!(error, lease = %self.lease(), "cannot give the lead back; others wait until it expires");
            }
            Err(_) => {
                tracing::warn!(lease = %self.lease(), "cannot give the lead back in time; others wait until it expires");
            }
        }
    }

    async fn try_release(&mut self) -> Result<(), kube::Error> {
        loop {
            // Read anew: a renewal may have been under way when it was interrupted.
            let Some(found) = self.leases.get_opt(&self.config.name).await? else { return Ok(()) };
            let Some(released) = self.candidate.released(found, Timestamp::now()) else { return Ok(()) };
            match self.leases.replace(&self.config.name, &PostParams::default(), &released).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn lease(&self) -> String {
        format!("{}/{}", self.config.namespace, self.config.name)
    }
}

// === impl Leadership ===

impl Leadership {
    /// The lead where nobody else stands for election (`--leader-elect=false`). It is never lost.
    pub fn unopposed() -> Self {
        Self { fence: Fence::open(), give_back: None, tasks: TaskTracker::new() }
    }

    /// Fires when the lead is lost: at the renew deadline at the latest, which is before another replica can lead. What
    /// was begun has to end then, and the process had better end, too.
    pub fn lost(&self) -> &CancellationToken {
        self.fence.closed()
    }

    /// What keeps writes from happening after the loss.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Gives the lead back. To be called when everything that it guards has ended.
    pub async fn release(mut self) {
        if let Some(give_back) = self.give_back.take() {
            // Nobody hears it if the lead is lost already.
            _ = give_back.send(());
        }
        self.fence.close();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

#[cfg(test)]
mod tests;
