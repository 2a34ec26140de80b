//! Leader election among replicas, on the storage that they share
//! (k8s.io/client-go `tools/leaderelection/leaderelection.go`).
//!
//! A record under one key says who leads. The holder renews it; a candidate that has seen no renewal for a whole lease
//! takes it over. Nobody compares clocks: each candidate measures on its own, monotonic clock for how long it has seen the
//! record unchanged. The storage's conditional writes see to it that of several candidates one wins.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::storage::{Expected, Freshness, KeyValue, Storage, StorageError, Written};

/// How an election goes.
#[derive(Clone, Debug)]
pub struct LeaderElection {
    /// The key of the record, for example `/leases/pizza-pricing`.
    pub key: String,
    /// This candidate's name, different from every other's.
    pub identity: String,
    /// For how long others wait after the last renewal that they have seen.
    pub lease_duration: Duration,
    /// After how long without a successful renewal the leader stops leading. Less than [`Self::lease_duration`].
    pub renew_deadline: Duration,
    /// How often the leader renews, and the others look.
    pub retry_period: Duration,
}

/// What is wrong with the times of an election.
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// A leader could go on leading when another has taken over.
    #[error("the lease must last longer than the leader tries to renew it (renew deadline)")]
    Deadline,
    /// The leader would give up before it has tried twice.
    #[error("the renew deadline must be longer than the retry period and its jitter")]
    Retry,
}

/// What the record says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    holder_identity: String,
    lease_duration_seconds: u64,
    /// Milliseconds since 1970 on the holder's clock; for people.
    acquire_time: i64,
    /// Counts renewals, so that each one changes the record.
    renewals: u64,
    leader_transitions: u64,
}

/// The record as this candidate last saw it, and since when.
struct Observed {
    kv: Option<KeyValue>,
    since: Instant,
}

/// A candidate.
struct Candidate {
    election: LeaderElection,
    storage: Arc<dyn Storage>,
    observed: Option<Observed>,
}

/// Longest wait, as a multiple of the period, so that candidates do not act in step (`JitterFactor`).
const JITTER: f64 = 1.2;

// === impl LeaderElection ===

impl LeaderElection {
    /// An election with client-go's usual times: 15 s, 10 s and 2 s.
    pub fn new(key: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    /// Stands for election again and again until `stop`. Each time that this candidate leads, `lead` runs with a token that
    /// is cancelled when it leads no more; `lead` has to end then, before another candidate can begin: it has from
    /// [`Self::renew_deadline`] to [`Self::lease_duration`] for that. When `lead` ends by itself, the lead is given back.
    ///
    /// # Errors
    /// When the times make no sense.
    pub async fn run<F>(
        self,
        storage: Arc<dyn Storage>,
        stop: CancellationToken,
        mut lead: impl FnMut(CancellationToken) -> F,
    ) -> Result<(), ElectionError>
    where
        F: Future<Output = ()>,
    {
        if self.lease_duration <= self.renew_deadline {
            return Err(ElectionError::Deadline);
        }
        if self.renew_deadline <= self.retry_period.mul_f64(JITTER) {
            return Err(ElectionError::Retry);
        }
        let mut candidate = Candidate { election: self, storage, observed: None };
        while let Some(elected) = candidate.wait_until_elected(&stop).await {
            tracing::info!(key = candidate.election.key, identity = candidate.election.identity, "leading");
            let leading = stop.child_token();
            let work = lead(leading.clone());
            candidate.lead_while_renewed(work, leading, elected).await;
            tracing::info!(
                key = candidate.election.key,
                identity = candidate.election.identity,
                "not leading any more"
            );
            if stop.is_cancelled() {
                break;
            }
        }
        Ok(())
    }
}

// === impl Candidate ===

impl Candidate {
    /// When this candidate asked for the lead that it got: others count from a later moment. `None` when told to stop.
    async fn wait_until_elected(&mut self, stop: &CancellationToken) -> Option<Instant> {
        loop {
            let started = Instant::now();
            let attempt = tokio::time::timeout(self.election.renew_deadline, self.try_acquire_or_renew());
            let outcome = tokio::select! {
                () = stop.cancelled() => return None,
                outcome = attempt => outcome,
            };
            match outcome {
                Ok(Ok(true)) => return Some(started),
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, key = self.election.key, "cannot stand for election, trying again")
                }
                Err(_) => {
                    tracing::warn!(key = self.election.key, "the storage is too slow for an election, trying again")
                }
            }
            let wait = self.election.retry_period.mul_f64(1.0 + rand::random::<f64>() * (JITTER - 1.0));
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Runs the leader's work, and renews the lease meanwhile. Comes back when the work has ended.
    async fn lead_while_renewed(
        &mut self,
        work: impl Future<Output = ()>,
        leading: CancellationToken,
        elected: Instant,
    ) {
        let mut work = std::pin::pin!(work);
        let mut renewed = elected;
        while !leading.is_cancelled() {
            let deadline = renewed + self.election.renew_deadline;
            let retry_period = self.election.retry_period;
            tokio::select! {
                () = work.as_mut() => return self.release().await,
                () = leading.cancelled() => break,
                () = tokio::time::sleep_until((renewed + retry_period).min(deadline)) => {}
            }
            // Tries until it works or the deadline has passed; the work goes on meanwhile.
            let renewal = async {
                loop {
                    let started = Instant::now();
                    match self.try_acquire_or_renew().await {
                        Ok(true) => return Some(started),
                        Ok(false) => return None,
                        Err(error) => tracing::warn!(%error, "cannot renew the lead, trying again"),
                    }
                    tokio::time::sleep(retry_period.min(Duration::from_secs(1))).await;
                }
            };
            let outcome = tokio::select! {
                () = work.as_mut() => return self.release().await,
                () = leading.cancelled() => break,
                outcome = tokio::time::timeout_at(deadline, renewal) => outcome,
            };
            match outcome {
                Ok(Some(started)) => renewed = started,
                Ok(None) => {
                    tracing::warn!(key = self.election.key, "another candidate has taken the lead");
                    break;
                }
                Err(_) => {
                    tracing::error!(key = self.election.key, "the lead could not be renewed in time");
                    break;
                }
            }
        }
        leading.cancel();
        // Whatever the work still has to do is bounded by the time that others wait.
        let remaining = (renewed + self.election.lease_duration).saturating_duration_since(Instant::now());
        if tokio::time::timeout(remaining, work.as_mut()).await.is_err() {
            tracing::error!(key = self.election.key, "the leader's work did not end in time and was dropped");
        }
        self.release().await;
    }

    /// One attempt to take or keep the lead.
    async fn try_acquire_or_renew(&mut self) -> Result<bool, StorageError> {
        let LeaderElection { key, identity, lease_duration, .. } = &self.election;
        let got = self.storage.get(key, Freshness::Latest).await?;
        let now = Instant::now();
        let observed = match &mut self.observed {
            Some(observed) if observed.kv == got.kv => observed,
            other => other.insert(Observed { kv: got.kv, since: now }),
        };
        let found = observed.kv.as_ref().map(|kv| (kv, serde_json::from_slice::<Record>(&kv.value).ok()));
        let (expected, record) = match found {
            None => (Expected::Absent, self.election.record(1, 0, 0)),
            Some((kv, Some(record))) if record.holder_identity == *identity => {
                let renewed = Record { renewals: record.renewals.wrapping_add(1), ..record };
                (Expected::At(kv.mod_revision), renewed)
            }
            Some((kv, record)) => {
                let held = record.as_ref().is_none_or(|record| !record.holder_identity.is_empty());
                if held && now.saturating_duration_since(observed.since) < *lease_duration {
                    return Ok(false);
                }
                let transitions = record.map_or(0, |record| record.leader_transitions.wrapping_add(1));
                (Expected::At(kv.mod_revision), self.election.record(1, transitions, now_in_milliseconds()))
            }
        };
        self.write(expected, &record).await
    }

    async fn write(&mut self, expected: Expected, record: &Record) -> Result<bool, StorageError> {
        let value = Bytes::from(serde_json::to_vec(record).map_err(|error| StorageError::Internal(error.to_string()))?);
        let written = self.storage.put(&self.election.key, expected, value.clone(), None).await?;
        let (kv, won) = match written {
            Written::Done(mod_revision) => {
                (Some(KeyValue { key: self.election.key.clone(), value, mod_revision }), true)
            }
            Written::Conflict(kv) => (kv, false),
        };
        self.observed = Some(Observed { kv, since: Instant::now() });
        Ok(won)
    }

    /// Gives the lead back, so that the next candidate need not wait.
    async fn release(&mut self) {
        let Some(Observed { kv: Some(kv), .. }) = &self.observed else { return };
        let Ok(record) = serde_json::from_slice::<Record>(&kv.value) else { return };
        if record.holder_identity != self.election.identity {
            return;
        }
        let released = Record { holder_identity: String::new(), ..record };
        let expected = Expected::At(kv.mod_revision);
        match tokio::time::timeout(self.election.renew_deadline, self.write(expected, &released)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, key = self.election.key, "cannot give the lead back; others wait until it expires")
            }
            Err(_) => tracing::warn!(
                key = self.election.key,
                "cannot give the lead back in time; others wait until it expires"
            ),
        }
    }
}

impl LeaderElection {
    fn record(&self, renewals: u64, leader_transitions: u64, acquire_time: i64) -> Record {
        Record {
            holder_identity: self.identity.clone(),
            lease_duration_seconds: self.lease_duration.as_secs(),
            acquire_time: if acquire_time == 0 { now_in_milliseconds() } else { acquire_time },
            renewals,
            leader_transitions,
        }
    }
}

fn now_in_milliseconds() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

#[cfg(test)]
mod tests;
