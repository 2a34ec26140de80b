//! EtcdUpstreams: whether they answer, what they hold, and what was promised of them. Each is looked at from time to time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use etcd_proxy::meta::Held;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{Api, ResourceExt as _, runtime::reflector::ObjectRef};
use tokio::{sync::Notify, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Context, PassError, log_changes, outcome, stores::Change, upstream_of};
use crate::{
    api::{EtcdUpstream, EtcdUpstreamStatus, StatusClaim},
    objects::Settings,
    status::{Notice, Problem, changed, human, whole_seconds},
    upstream::Probe,
};

/// The reason where one does not answer.
const UNREACHABLE: &str = "UpstreamUnreachable";

/// How often each is looked at.
const EVERY: Duration = Duration::from_secs(15);

/// How soon after a look another may follow: many tenants may come or go at once.
const REST: Duration = Duration::from_secs(1);

/// How often figures alone are worth a write.
const FIGURES: Duration = Duration::from_secs(300);

/// Most retained claims that are listed.
const LISTED: usize = 100;

/// Above this part of the upstream's own quota it is said how much was promised.
const COMMITTED: f64 = 0.8;

/// One watcher for each EtcdUpstream.
pub(super) struct Watchers {
    context: Arc<Context>,
    tasks: TaskTracker,
    stop: CancellationToken,
    running: BTreeMap<String, Watcher>,
}

struct Watcher {
    stop: CancellationToken,
    changed: Arc<Notify>,
}

impl Watchers {
    pub(super) fn new(context: Arc<Context>, tasks: TaskTracker, stop: CancellationToken) -> Self {
        let mut watchers = Self { context, tasks, stop, running: BTreeMap::new() };
        watchers.sync();
        watchers
    }

    /// Begins to watch those that are new, and ends with those that are gone.
    fn sync(&mut self) {
        let names: BTreeSet<_> =
            self.context.stores.upstreams.state().iter().map(|upstream| upstream.name_any()).collect();
        self.running.retain(|name, watcher| {
            let stays = names.contains(name);
            if !stays {
                watcher.stop.cancel();
                self.context.connector.forget(name);
            }
            stays
        });
        for name in names {
            if self.running.contains_key(&name) {
                continue;
            }
            let watcher = Watcher { stop: self.stop.child_token(), changed: Arc::new(Notify::new()) };
            let (context, stop, changed) = (self.context.clone(), watcher.stop.clone(), watcher.changed.clone());
            self.running.insert(name.clone(), watcher);
            self.tasks.spawn(async move {
                let _ = stop.run_until_cancelled(watch(&context, &name, &changed)).await;
            });
        }
    }

    /// Looks at all of them at once.
    pub(super) fn all_changed(&mut self) {
        self.sync();
        self.running.values().for_each(|watcher| watcher.changed.notify_one());
    }

    /// Looks at one at once.
    pub(super) fn changed(&mut self, name: &str) {
        self.sync();
        if let Some(watcher) = self.running.get(name) {
            watcher.changed.notify_one();
        }
    }
}

async fn watch(context: &Context, name: &str, changed: &Notify) {
    loop {
        let counted = context.metrics.reconcile.begin("EtcdUpstream");
        let result = context.look_at_upstream(name).await;
        if let Err(error) = &result {
            tracing::warn!(upstream = name, %error, "an EtcdUpstream could not be looked at");
        }
        let (outcome, reason) = outcome(&result, None);
        counted.end(outcome, reason);
        tokio::time::sleep(REST).await;
        // Not all replicas of all upstreams at once.
        let pause = EVERY.mul_f64(0.9 + rand::random::<f64>() / 5.0);
        let _ = tokio::time::timeout(pause, changed.notified()).await;
    }
}

impl Context {
    async fn look_at_upstream(&self, name: &str) -> Result<(), PassError> {
        let Some(upstream) = self.stores.upstreams.get(&ObjectRef::new(name)) else { return Ok(()) };
        let old = upstream.status.clone().unwrap_or_default();
        let mut new = EtcdUpstreamStatus {
            conditions: Vec::new(),
            observed_generation: upstream.metadata.generation,
            ..old.clone()
        };
        let referring = self.stores.proxies.state_filter(|proxy| upstream_of(proxy) == name);
        new.tenants = i64::try_from(referring.len()).ok();
        let reachable = match self.connected(&upstream).await? {
            Err(problem) => Err(problem),
            Ok((shared, _)) => match tokio::join!(shared.probe(), shared.claims()) {
                (Ok(probe), Ok(claims)) => {
                    self.tell_damaged(name, &claims.claims);
                    self.add_claims(&claims.claims, &mut new);
                    add_figures(&probe, &mut new);
                    Ok(probe)
                }
                (Err(error), _) | (_, Err(error)) => Err(Problem::new(UNREACHABLE, error.to_string())),
            },
        };
        self.unreachable.lock().retain(|unreachable| *unreachable != name);
        if reachable.as_ref().is_err_and(|problem| problem.reason == UNREACHABLE) {
            self.unreachable.lock().insert(name.to_owned());
        }
        let quotas = referring.iter().filter_map(|proxy| Settings::new(proxy, &upstream, "").quota());
        let committed = quotas.fold(0, i64::saturating_add);
        new.committed_bytes = Some(committed);
        new.conditions = vec![
            condition("Reachable", reachable_words(&reachable), &old, &upstream),
            condition("QuotaCommitted", committed_words(committed, reachable.as_ref().ok()), &old, &upstream),
        ];
        let told = |status: &EtcdUpstreamStatus| {
            let conditions = status.conditions.iter();
            conditions
                .map(|one| (one.type_.clone(), one.status.clone(), one.reason.clone(), one.message.clone()))
                .collect::<Vec<_>>()
        };
        let figures_only = told(&old) == told(&new)
            && (old.tenants, old.retained_claims, &old.retained, old.observed_generation)
                == (new.tenants, new.retained_claims, &new.retained, new.observed_generation);
        if figures_only && (old == new || !self.figures_due(name)) {
            return Ok(());
        }
        let api: Api<EtcdUpstream> = Api::all(self.client.clone());
        self.apply_status(&api, upstream.as_ref(), &new).await?;
        log_changes("EtcdUpstream", name, &old.conditions, &new.conditions);
        self.tell(upstream.as_ref(), notices(&old.conditions, &new.conditions)).await;
        let reached = |status: &EtcdUpstreamStatus| {
            status.conditions.iter().any(|condition| condition.type_ == "Reachable" && condition.status == "True")
        };
        if reached(&old) != reached(&new) {
            // Those that refer to it say so, too.
            self.changes.push(Change::Upstream(name.to_owned()));
        }
        Ok(())
    }

    /// Whether the shared etcd answered when it was last looked at; one that was never looked at may.
    pub(super) fn is_reachable(&self, name: &str) -> bool {
        !self.unreachable.lock().contains(name)
    }

    fn add_claims(&self, claims: &[Held], status: &mut EtcdUpstreamStatus) {
        // Of whichever EtcdUpstream: several may describe one etcd.
        let living: BTreeSet<_> =
            self.stores.proxies.state().iter().filter_map(|proxy| proxy.metadata.uid.clone()).collect();
        let retained: Vec<_> = claims
            .iter()
            .map(|held| (held, held.names()))
            .filter(|(_, (_, uid))| !living.contains(uid))
            .map(|(held, (owner, _))| StatusClaim { prefix: held.prefix.escape_ascii().to_string(), owner })
            .collect();
        status.retained_claims = i64::try_from(retained.len()).ok();
        status.retained = retained.into_iter().take(LISTED).collect();
    }

    /// Logs which claims cannot be read, when that changes.
    fn tell_damaged(&self, name: &str, claims: &[Held]) {
        let damaged: BTreeSet<_> =
            claims.iter().filter(|held| held.claim.is_err()).map(|held| held.prefix.clone()).collect();
        let before = self.damaged.lock().insert(name.to_owned(), damaged.clone()).unwrap_or_default();
        for held in claims.iter().filter(|held| !before.contains(&held.prefix)) {
            if let Err(error) = &held.claim {
                tracing::warn!(
                    upstream = name, prefix = %held.prefix.escape_ascii(), %error,
                    "nobody knows who holds this prefix"
                );
            }
        }
        for prefix in before.difference(&damaged) {
            tracing::info!(upstream = name, prefix = %prefix.escape_ascii(), "a damaged claim is mended, or gone");
        }
    }

    /// Whether figures that moved are worth a write again.
    fn figures_due(&self, name: &str) -> bool {
        let now = Instant::now();
        let mut told = self.figures_told.lock();
        let due = told.get(name).is_none_or(|told| *told + FIGURES <= now);
        if due {
            told.insert(name.to_owned(), now);
        }
        due
    }
}

fn add_figures(probe: &Probe, status: &mut EtcdUpstreamStatus) {
    status.version = Some(probe.version.clone());
    status.members = i64::try_from(probe.members).ok();
    status.bytes = Some(probe.db_size);
    let of = probe.quota.map(|quota| format!("/{}", human(quota))).unwrap_or_default();
    status.size = Some(format!("{}{of}", human(probe.db_size)));
}

type Words = (&'static str, &'static str, String);

fn reachable_words(reachable: &Result<Probe, Problem>) -> Words {
    match reachable {
        Err(problem) => ("False", problem.reason, problem.message.clone()),
        Ok(probe) => {
            let silent = probe.endpoints.iter().filter_map(|endpoint| {
                let why = endpoint.version.as_ref().err()?;
                Some(format!("{}: {why}", endpoint.endpoint))
            });
            let notes: Vec<_> = silent.chain(probe.complaints.iter().cloned()).collect();
            match notes.is_empty() {
                true => ("True", "Answering", "every endpoint answers".to_owned()),
                false => ("True", "AnsweringInPart", notes.join("; ")),
            }
        }
    }
}

fn committed_words(committed: i64, probe: Option<&Probe>) -> Words {
    match probe.map(|probe| probe.quota) {
        None => {
            ("Unknown", "NotLookedAt", "the etcd could not be asked how large it may become: see Reachable".to_owned())
        }
        Some(None) => ("Unknown", "QuotaUnknown", "this etcd does not tell how large it may become".to_owned()),
        Some(Some(quota)) => {
            let text =
                format!("storage quotas of {} are given out, of {} that the etcd has", human(committed), human(quota));
            #[expect(clippy::cast_precision_loss, reason = "a share of bytes needs no last digit")]
            let much = committed as f64 > quota as f64 * COMMITTED;
            if much { ("True", "MostlyCommitted", text) } else { ("False", "EnoughLeft", text) }
        }
    }
}

/// What an operator is told when a condition changes: that it is not reached, or again; that most of it is given out.
fn notices(old: &[Condition], new: &[Condition]) -> Vec<Notice> {
    let judged = |one: &Condition| one.status != "Unknown";
    let told = changed(old, new).filter(|after| judged(after)).filter_map(|after| {
        let good = if after.type_ == "Reachable" { "True" } else { "False" };
        let before = old.iter().find(|before| before.type_ == after.type_ && judged(before));
        let is_good = after.status == good && after.reason != "AnsweringInPart";
        match is_good {
            // What was never otherwise is no news.
            true => before.map(|_| Notice::normal(&after.reason, "Probe", after.message.clone())),
            false => Some(Notice::warning(&after.reason, "Probe", after.message.clone())),
        }
    });
    told.collect()
}

fn condition(
    kind: &str,
    (status, reason, message): Words,
    old: &EtcdUpstreamStatus,
    upstream: &EtcdUpstream,
) -> Condition {
    let before = old.conditions.iter().find(|condition| condition.type_ == kind && condition.status == status);
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: upstream.metadata.generation,
        last_transition_time: before
            .map(|before| before.last_transition_time.clone())
            .unwrap_or_else(|| Time(whole_seconds(Timestamp::now()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(reachable: Words, committed: Words) -> Vec<Condition> {
        let upstream = EtcdUpstream::new("a", serde_json::from_value(serde_json::json!({"endpoints": []})).unwrap());
        let old = EtcdUpstreamStatus::default();
        let condition = |kind, words| condition(kind, words, &old, &upstream);
        vec![condition("Reachable", reachable), condition("QuotaCommitted", committed)]
    }

    #[test]
    fn who_was_not_asked_has_not_answered() {
        assert_eq!(committed_words(0, None).1, "NotLookedAt");
        let probe = |quota| Probe {
            version: String::new(),
            members: 1,
            db_size: 0,
            db_size_in_use: 0,
            quota,
            endpoints: vec![],
            complaints: vec![],
        };
        assert_eq!(committed_words(0, Some(&probe(None))).1, "QuotaUnknown");
        assert_eq!(committed_words(79, Some(&probe(Some(100)))).1, "EnoughLeft");
        assert_eq!(committed_words(81, Some(&probe(Some(100)))).1, "MostlyCommitted");
    }

    #[test]
    fn trouble_and_its_end_are_told_to_the_operator() {
        let good = conditions(("True", "Answering", "yes".into()), ("False", "EnoughLeft", String::new()));
        let away = ("False", "UpstreamSecretMissing", "no Secret".to_owned());
        let away = conditions(away, ("Unknown", "NotLookedAt", String::new()));
        let reasons = |old: &[Condition], new: &[Condition]| -> Vec<String> {
            notices(old, new).into_iter().map(|notice| notice.reason).collect()
        };
        assert_eq!(reasons(&[], &good), Vec::<String>::new());
        assert_eq!(reasons(&[], &away), ["UpstreamSecretMissing"]);
        assert_eq!(reasons(&good, &away), ["UpstreamSecretMissing"]);
        assert_eq!(reasons(&away, &away), Vec::<String>::new());
        assert_eq!(reasons(&away, &good), ["Answering"]);
        let part =
            conditions(("True", "AnsweringInPart", "two do not".into()), ("True", "MostlyCommitted", String::new()));
        assert_eq!(reasons(&good, &part), ["AnsweringInPart", "MostlyCommitted"]);
        assert_eq!(reasons(&part, &good), ["Answering", "EnoughLeft"]);
    }
}
