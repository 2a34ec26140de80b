//! What is noted down on the way, and judged at the end: failed writes and cuts, certificates and when they changed, the
//! phases of rotations, processes.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{interval, timeout},
};
use x509_parser::{certificate::X509Certificate, prelude::FromDer as _};
use xtask::process::Process;

use super::tls;

/// How long a client may take to notice that its connection was cut; until then it may begin a request on it.
const NOTICE: SignedDuration = SignedDuration::from_millis(500);

/// How often certificate files are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// A write that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) client: String,
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
    pub(crate) error: String,
}

/// One cut of every connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
}

/// A leaf that lay in a file.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    /// When it was first seen there.
    pub(crate) at: Timestamp,
    /// The CA that signed it.
    pub(crate) issuer: String,
    pub(crate) not_after: Timestamp,
}

/// What an EtcdProxy's status says of its certificates: the phase, and the last rotation that was carried out.
pub(crate) type Standing = (String, i64);

/// Something that is noted down without end.
pub(crate) struct Log<T> {
    entries: watch::Receiver<Vec<T>>,
    task: JoinHandle<Result<()>>,
}

// === failures ===

/// How many writes failed at each cut.
///
/// # Errors
/// When one failed that was not under way at a cut, or more than one of a client at one cut.
pub(crate) fn at_cuts(failures: &[Failure], cuts: &[Cut]) -> Result<Vec<usize>> {
    let mut of_client = BTreeMap::<(usize, &str), usize>::new();
    for failure in failures {
        let at = cuts.iter().position(|cut| failure.from <= cut.to + NOTICE && failure.to >= cut.from);
        let at = at.with_context(|| {
            let Failure { client, from, to, error } = failure;
            format!("a write of {client} from {from} to {to} was under way at none of {cuts:?}: {error}")
        })?;
        *of_client.entry((at, failure.client.as_str())).or_default() += 1;
    }
    for ((at, client), count) in &of_client {
        ensure!(*count == 1, "cut {at} failed {count} writes of {client}: {failures:?}");
    }
    Ok((0..cuts.len()).map(|cut| of_client.keys().filter(|(at, _)| *at == cut).count()).collect())
}

// === leaves ===

impl Leaf {
    /// The first certificate in a file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let pem = std::fs::read(path).with_context(|| path.display().to_string())?;
        let chain = tls::certificates(&pem)?;
        let leaf = chain.first().context("there is no certificate")?;
        let (_, parsed) = X509Certificate::from_der(leaf)?;
        let not_after = Timestamp::from_second(parsed.validity().not_after.timestamp())?;
        Ok(Self { at: Timestamp::now(), issuer: parsed.issuer().to_string(), not_after })
    }

    /// Notes down each leaf that comes into a file.
    pub(crate) fn follow(path: PathBuf) -> Log<Self> {
        Log::start(async move |sender| {
            let mut ticks = interval(LOOK);
            loop {
                ticks.tick().await;
                // In the midst of an exchange there may be none.
                let Ok(leaf) = Self::read(&path) else { continue };
                sender.send_if_modified(|leaves: &mut Vec<Self>| {
                    let new = leaves.last().is_none_or(|last| last.not_after != leaf.not_after);
                    if new {
                        leaves.push(leaf);
                    }
                    new
                });
            }
        })
    }
}

/// How many of the exchanges were renewals: by a leaf of the same CA.
pub(crate) fn renewals(leaves: &[Leaf]) -> usize {
    leaves.windows(2).filter(|pair| matches!(pair, [old, new] if old.issuer == new.issuer)).count()
}

/// Checks that every leaf was replaced in time, and none needlessly.
///
/// # Errors
/// When one was not.
pub(crate) fn renewed_in_time(leaves: &[Leaf], validity: Duration) -> Result<()> {
    let validity = SignedDuration::try_from(validity)?;
    for pair in leaves.windows(2) {
        let [old, new] = pair else { continue };
        let age = new.at.duration_since(old.not_after - validity);
        ensure!(age < validity, "a leaf was replaced when it was {age:#} old: {pair:?}");
        let due = validity * 2 / 3;
        ensure!(old.issuer != new.issuer || age >= due, "a leaf was renewed when it was only {age:#} old: {pair:?}");
    }
    Ok(())
}

// === phases ===

/// Notes down what an EtcdProxy's status says of its certificates, each time that it says something new.
pub(crate) fn follow_phases(client: Client, namespace: &str, name: &str) -> Log<Standing> {
    let kind = GroupVersionKind::gvk("etcd.programming-kubernetes.info", "v1alpha1", "EtcdProxy");
    let resource = ApiResource::from_gvk_with_plural(&kind, "etcdproxies");
    let api = Api::<DynamicObject>::namespaced_with(client, namespace, &resource);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    Log::start(async move |sender| {
        let mut objects = std::pin::pin!(watcher(api, config).default_backoff().applied_objects());
        while let Some(object) = objects.next().await {
            // A watch that was lost is begun again.
            let Ok(object) = object else { continue };
            let certificates = object.data.pointer("/status/certificates");
            let phase = certificates.and_then(|certificates| certificates.get("phase")?.as_str());
            let rotation = certificates.and_then(|certificates| certificates.get("caRotation")?.as_i64());
            let Some(standing) = phase.map(str::to_owned).zip(rotation) else { continue };
            sender.send_if_modified(|standings: &mut Vec<Standing>| {
                let new = standings.last() != Some(&standing);
                if new {
                    standings.push(standing);
                }
                new
            });
        }
        Ok(())
    })
}

// === impl Log ===

impl<T: Clone + std::fmt::Debug + Send + Sync + 'static> Log<T> {
    fn start<F>(follow: impl FnOnce(watch::Sender<Vec<T>>) -> F) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let (sender, entries) = watch::channel(Vec::new());
        Self { entries, task: tokio::spawn(follow(sender)) }
    }

    /// What was noted down so far.
    pub(crate) fn entries(&self) -> Vec<T> {
        self.entries.borrow().clone()
    }

    /// Waits until the entries are as wanted.
    ///
    /// # Errors
    /// When they are not within `limit`, or nothing is noted down any more.
    pub(crate) async fn wait(&self, what: &str, limit: Duration, wanted: impl FnMut(&Vec<T>) -> bool) -> Result<()> {
        let mut entries = self.entries.clone();
        let waited = timeout(limit, entries.wait_for(wanted)).await.map(|waited| waited.map(drop));
        waited
            .map_err(anyhow::Error::from)
            .and_then(|waited| Ok(waited?))
            .with_context(|| format!("{what}: not within {} s, only {:?}", limit.as_secs(), self.entries()))
    }
}

impl<T> Drop for Log<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === processes ===

/// The number of a process and when it was started, in the kernel's ticks since boot.
pub(crate) fn identity(pid: u32) -> Result<(u32, u64)> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    // The name, in parentheses, may have anything in it; behind it comes the third field (proc_pid_stat(5)).
    let (_, rest) = text.rsplit_once(')').context("there is no name")?;
    let started = rest.split_whitespace().nth(22 - 3).context("there is no start time")?;
    Ok((pid, started.parse()?))
}

/// The same of several, by name.
pub(crate) fn identities<'a>(processes: impl Iterator<Item = &'a Process>) -> Result<BTreeMap<String, (u32, u64)>> {
    let identify = |process: &Process| {
        ensure!(process.ended()?.is_none(), "{} has ended", process.name());
        let pid = process.pid().with_context(|| format!("{} does not run", process.name()))?;
        Ok((process.name().to_owned(), identity(pid)?))
    };
    processes.map(identify).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn only_what_was_under_way_at_a_cut_is_forgiven_and_once() {
        let cuts = [10, 20].map(|at| Cut { from: second(at), to: second(at) });
        let failure = |client: &str, from: i64, to: i64| {
            let error = "broken".to_owned();
            Failure { client: client.to_owned(), from: second(from), to: second(to), error }
        };
        let of = |failures: &[Failure]| at_cuts(failures, &cuts).ok();
        assert_eq!(of(&[failure("a", 9, 11), failure("b", 10, 10), failure("a", 19, 21)]), Some(vec![2, 1]));
        assert_eq!(of(&[failure("a", 7, 9)]), None, "before the cut");
        assert_eq!(of(&[failure("a", 11, 12)]), None, "after the cut");
        assert_eq!(of(&[failure("a", 9, 10), failure("a", 10, 11)]), None, "two of one client at one cut");
    }

    #[test]
    fn late_and_needless_renewals_are_seen() {
        let of = |replaced: i64, issuer: &str| {
            let leaf = |at: i64, issued: i64, issuer: &str| {
                let issuer = issuer.to_owned();
                Leaf { at: second(at), issuer, not_after: second(issued + 60) }
            };
            let leaves = [leaf(1, 0, "CA 1"), leaf(replaced, replaced - 1, issuer)];
            renewed_in_time(&leaves, Duration::from_secs(60)).map(|()| renewals(&leaves)).ok()
        };
        assert_eq!(of(43, "CA 1"), Some(1));
        assert_eq!(of(60, "CA 1"), None, "it had expired");
        assert_eq!(of(39, "CA 1"), None, "it had a third of its life before it");
        assert_eq!((of(5, "CA 2"), of(60, "CA 2")), (Some(0), None), "a new CA's leaf may come at any time but late");
    }
}
