//! Looking at certificate files again from time to time.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use futures::future::join_all;
use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::{task::spawn_blocking, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{TlsError, files::Fingerprint};

/// Files that a TLS configuration is made from.
pub trait Source: Send + Sync {
    /// What is made.
    type Config: Send + Sync + fmt::Debug;

    /// For log and metrics: whose certificates these are.
    const NAME: &str;

    /// Reads the files.
    ///
    /// # Errors
    /// Names the file that is missing or unusable.
    fn load(&self) -> Result<Loaded<Self::Config>, TlsError>;
}

/// What was made from the files' present contents.
pub struct Loaded<C> {
    pub(super) config: C,
    pub(super) fingerprint: Fingerprint,
    pub(super) expires: Option<i64>,
}

/// A TLS configuration that follows its files.
#[derive(Debug)]
pub struct Reloadable<S: Source> {
    source: S,
    current: ArcSwap<S::Config>,
    contents: Mutex<(Fingerprint, Option<i64>)>,
}

/// Something made from files that can be made again.
pub trait Reload: Send + Sync {
    /// Reads the files and, if their contents changed and are valid, puts the new state in place of the old one.
    /// Answers whether it changed.
    ///
    /// # Errors
    /// Names the unusable file; the old state stays.
    fn reload(&self) -> Result<bool, TlsError>;

    /// For log and metrics: whose certificates these are.
    fn name(&self) -> &'static str;

    /// When the certificate in use expires, in seconds since 1970, if there is one.
    fn expires(&self) -> Option<i64>;
}

/// What is counted about certificates. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CertificateMetrics {
    expires: Family<Certificates, Gauge>,
    reloads: Family<Reloads, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Certificates {
    certificates: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reloads {
    certificates: &'static str,
    result: ReloadResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "label values are lower case")]
enum ReloadResult {
    changed,
    failed,
}

/// How soon files that cannot be used together are looked at again.
const SOON: Duration = Duration::from_millis(250);
/// How often that happens before it is complained of: whoever writes several files needs a moment.
const PATIENCE: u32 = 4;
/// How often files are read in order to read them as they are at one moment.
const READS: usize = 4;

/// Reloads every `period` until `stop`, and sooner for a while when files turn out not to fit together. Files that cannot be read
/// because a disk does not answer hold up nothing, not even the others.
///
/// The contents are compared rather than watched by inotify: mounted Secrets change by a swap of symbolic links, network
/// file systems do not notify, and a look every few seconds costs nothing to speak of.
pub async fn keep_fresh(
    all: Vec<Arc<dyn Reload>>,
    period: Duration,
    metrics: CertificateMetrics,
    stop: CancellationToken,
) {
    let each = all.into_iter().map(|one| keep_one_fresh(one, period, &metrics));
    let _stopped = stop.run_until_cancelled(join_all(each)).await;
}

async fn keep_one_fresh(one: Arc<dyn Reload>, period: Duration, metrics: &CertificateMetrics) {
    let certificates = one.name();
    for result in [ReloadResult::changed, ReloadResult::failed] {
        drop(metrics.reloads.get_or_create(&Reloads { certificates, result }));
    }
    let mut failures = 0_u32;
    loop {
        let mut pause = period;
        let reading = one.clone();
        let reloaded = match spawn_blocking(move || reading.reload()).await {
            Ok(reloaded) => reloaded.map_err(|error| Box::new(error) as Box<dyn Error + Send + Sync>),
            Err(failed) => Err(failed.into()),
        };
        failures = if reloaded.is_ok() { 0 } else { failures.saturating_add(1) };
        match reloaded {
            Ok(false) => {}
            Ok(true) => {
                metrics.reloaded(certificates, ReloadResult::changed);
                tracing::info!(certificates, "certificates reloaded");
            }
            Err(error) if failures < PATIENCE => {
                pause = period.min(SOON);
                let error = &*error as &dyn Error;
                tracing::debug!(certificates, error, "certificate files do not fit together, looking again");
            }
            Err(error) => {
                metrics.reloaded(certificates, ReloadResult::failed);
                let error = &*error as &dyn Error;
                tracing::error!(certificates, error, "certificates cannot be reloaded, the previous ones stay in use");
            }
        }
        if let Some(expires) = one.expires() {
            metrics.expires.get_or_create(&Certificates { certificates }).set(expires);
        }
        sleep(pause).await;
    }
}

/// Reads the files as they are at one moment: they may be exchanged between the first that is read and the last (a mounted
/// Secret's all at once), and then belong to two states, which need not show. So they are read until they are the same twice.
fn settled<S: Source>(source: &S) -> Result<Loaded<S::Config>, TlsError> {
    let mut last = source.load();
    for _ in 1..READS {
        let next = source.load();
        let same = matches!((&last, &next), (Ok(last), Ok(next)) if last.fingerprint == next.fingerprint);
        last = next;
        if same {
            break;
        }
    }
    last
}

// === impl Reloadable ===

impl<S: Source> Reloadable<S> {
    /// Reads the files.
    ///
    /// # Errors
    /// Names the file that is missing or unusable.
    pub fn load(source: impl Into<S>) -> Result<Self, TlsError> {
        let source = source.into();
        let Loaded { config, fingerprint, expires } = settled(&source)?;
        Ok(Self { source, current: ArcSwap::from_pointee(config), contents: Mutex::new((fingerprint, expires)) })
    }

    /// For the next connection.
    pub(crate) fn current(&self) -> Arc<S::Config> {
        self.current.load_full()
    }
}

impl<S: Source> Reload for Reloadable<S> {
    fn reload(&self) -> Result<bool, TlsError> {
        let in_use = self.contents.lock().0;
        if self.source.load().is_ok_and(|loaded| loaded.fingerprint == in_use) {
            return Ok(false);
        }
        let Loaded { config, fingerprint, expires } = settled(&self.source)?;
        let mut contents = self.contents.lock();
        if contents.0 == fingerprint {
            return Ok(false);
        }
        *contents = (fingerprint, expires);
        self.current.store(Arc::new(config));
        Ok(true)
    }

    fn name(&self) -> &'static str {
        S::NAME
    }

    fn expires(&self) -> Option<i64> {
        self.contents.lock().1
    }
}

// === impl CertificateMetrics ===

impl CertificateMetrics {
    /// Registers everything with `registry`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "certificate_expiry_timestamp_seconds",
            "When the certificate in use expires, in seconds since 1970",
            self.expires.clone(),
        );
        registry.register(
            "certificate_reloads",
            "Times that certificate files changed or could not be read",
            self.reloads.clone(),
        );
    }

    fn reloaded(&self, certificates: &'static str, result: ReloadResult) {
        self.reloads.get_or_create(&Reloads { certificates, result }).inc();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::time::Instant;

    use super::*;

    /// Files that are found in one state after the other; the last one stays. `None` is one that cannot be used.
    #[derive(Debug)]
    struct Scripted(Mutex<VecDeque<Option<u8>>>);

    fn scripted(states: &[Option<u8>]) -> Scripted {
        Scripted(Mutex::new(states.iter().copied().collect()))
    }

    impl Source for Scripted {
        type Config = u8;

        const NAME: &str = "scripted";

        fn load(&self) -> Result<Loaded<u8>, TlsError> {
            let mut states = self.0.lock();
            let state = if states.len() > 1 { states.pop_front() } else { states.front().copied() };
            match state.unwrap() {
                Some(config) => Ok(Loaded { config, fingerprint: [config; 32], expires: None }),
                None => Err(TlsError::Empty { path: "tls.key".into(), what: "private key" }),
            }
        }
    }

    /// 2 stands for files of two states, 3 for the new one.
    #[test]
    fn files_of_two_states_are_not_used() {
        for states in [&[Some(2), Some(3)][..], &[None, Some(3)], &[None, Some(2), Some(3)]] {
            assert_eq!(settled(&scripted(states)).unwrap_or_else(|_| panic!("{states:?}")).config, 3, "{states:?}");
        }
        assert!(settled(&scripted(&[None])).is_err());
        // Files that never settle are not waited for.
        let restless: Vec<_> = (1..100).map(Some).collect();
        assert!(settled(&scripted(&restless)).is_ok());
    }

    #[test]
    fn the_old_state_stays_until_there_is_a_whole_new_one() {
        let files = Reloadable::<Scripted>::load(scripted(&[
            Some(1),
            Some(1),
            Some(1),
            Some(2),
            Some(2),
            Some(3),
            Some(3),
            None,
        ]))
        .unwrap();
        assert!(!files.reload().unwrap());
        assert!(files.reload().unwrap());
        assert_eq!(*files.current(), 3);
        assert!(files.reload().is_err());
        assert_eq!(*files.current(), 3);
    }

    /// Tells at which times it was looked at. Fails so often.
    struct Failing {
        failures: usize,
        looks: Mutex<Vec<Duration>>,
        started: Instant,
    }

    impl Reload for Failing {
        fn reload(&self) -> Result<bool, TlsError> {
            let mut looks = self.looks.lock();
            looks.push(self.started.elapsed());
            match looks.len() {
                look if look <= self.failures => Err(TlsError::Empty { path: "tls.key".into(), what: "private key" }),
                look => Ok(look == self.failures + 1),
            }
        }

        fn name(&self) -> &'static str {
            "failing"
        }

        fn expires(&self) -> Option<i64> {
            None
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_misfit_is_looked_at_again_soon_and_complained_of_when_it_stays() {
        for (failures, looks, complaints) in [
            (1, &[0, 250, 10_250][..], 0),
            (3, &[0, 250, 500, 750, 10_750], 0),
            (4, &[0, 250, 500, 750, 10_750], 1),
            (6, &[0, 250, 500, 750, 10_750, 20_750, 30_750], 3),
        ] {
            let failing = Arc::new(Failing { failures, looks: Mutex::default(), started: Instant::now() });
            let metrics = CertificateMetrics::default();
            let fresh =
                keep_fresh(vec![failing.clone()], Duration::from_secs(10), metrics.clone(), CancellationToken::new());
            let end = looks.last().copied().unwrap() + 1;
            assert!(tokio::time::timeout(Duration::from_millis(end), fresh).await.is_err());
            let seen: Vec<_> = failing.looks.lock().iter().map(Duration::as_millis).collect();
            assert_eq!(seen, looks.iter().map(|&look| u128::from(look)).collect::<Vec<_>>());
            let count = |result| metrics.reloads.get_or_create(&Reloads { certificates: "failing", result }).get();
            assert_eq!((count(ReloadResult::failed), count(ReloadResult::changed)), (complaints, 1));
        }
    }
}
