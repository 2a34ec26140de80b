//! Looking at certificate files again from time to time.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::time::{MissedTickBehavior, interval};
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

/// Reloads every `period` until `stop`.
///
/// The contents are compared rather than watched by inotify: mounted Secrets change by a swap of symbolic links, network
/// file systems do not notify, and a look every few seconds costs nothing to speak of.
pub async fn keep_fresh(
    all: Vec<Arc<dyn Reload>>,
    period: Duration,
    metrics: CertificateMetrics,
    stop: CancellationToken,
) {
    if all.is_empty() {
        return;
    }
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        for one in &all {
            let certificates = one.name();
            match one.reload() {
                Ok(false) => {}
                Ok(true) => {
                    metrics.reloaded(certificates, ReloadResult::changed);
                    tracing::info!(certificates, "certificates reloaded");
                }
                Err(error) => {
                    metrics.reloaded(certificates, ReloadResult::failed);
                    let error = &error as &dyn Error;
                    tracing::error!(
                        certificates,
                        error,
                        "certificates cannot be reloaded, the previous ones stay in use"
                    );
                }
            }
            if let Some(expires) = one.expires() {
                metrics.expires.get_or_create(&Certificates { certificates }).set(expires);
            }
        }
    }
}

// === impl Reloadable ===

impl<S: Source> Reloadable<S> {
    /// Reads the files.
    ///
    /// # Errors
    /// Names the file that is missing or unusable.
    pub fn load(source: impl Into<S>) -> Result<Self, TlsError> {
        let source = source.into();
        let Loaded { config, fingerprint, expires } = source.load()?;
        Ok(Self { source, current: ArcSwap::from_pointee(config), contents: Mutex::new((fingerprint, expires)) })
    }

    /// For the next connection.
    pub(crate) fn current(&self) -> Arc<S::Config> {
        self.current.load_full()
    }
}

impl<S: Source> Reload for Reloadable<S> {
    fn reload(&self) -> Result<bool, TlsError> {
        let Loaded { config, fingerprint, expires } = self.source.load()?;
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
