//! Looking at certificate files again from time to time.

use std::{error::Error, sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::TlsError;

/// Something made from files that can be made again.
pub trait Reload: Send + Sync {
    /// Reads the files and, if their contents changed and are valid, puts the new state in place of the old one.
    /// Answers whether it changed.
    ///
    /// # Errors
    /// Names the unusable file; the old state stays.
    fn reload(&self) -> Result<bool, TlsError>;

    /// For the log: whose certificates these are.
    fn name(&self) -> &'static str;
}

/// Reloads every `period` until `stop`.
///
/// The contents are compared rather than watched by inotify: mounted Secrets change by a swap of symbolic links, network
/// file systems do not notify, and a look every few seconds costs nothing to speak of.
pub async fn keep_fresh(all: Vec<Arc<dyn Reload>>, period: Duration, stop: CancellationToken) {
    if all.is_empty() {
        return;
    }
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        for one in &all {
            match one.reload() {
                Ok(true) => tracing::info!(certificates = one.name(), "certificates reloaded"),
                Ok(false) => {}
                Err(error) => tracing::error!(
                    certificates = one.name(),
                    error = &error as &dyn Error,
                    "certificates cannot be reloaded, the previous ones stay in use"
                ),
            }
        }
    }
}
