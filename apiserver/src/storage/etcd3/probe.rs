//! Whether etcd answers, for `/readyz` and `/livez`: a read of one key, within two seconds, at most once a second
//! (`newETCD3Check` in `k8s.io/apiserver/pkg/storage/storagebackend/factory/etcd3.go`).

use std::{future::Future, time::Duration};

use bytes::Bytes;
use tokio::{sync::Mutex, time::Instant};

use crate::storage::StorageError;

pub(super) struct Probe {
    /// What is read. It need not exist.
    pub(super) key: Bytes,
    pub(super) timeout: Duration,
    last: Mutex<Option<(Instant, Result<(), StorageError>)>>,
}

impl Probe {
    pub(super) fn new(key: Bytes, timeout: Duration) -> Self {
        Self { key, timeout, last: Mutex::new(None) }
    }

    /// The outcome of `read`, or of the last one if that was just now.
    pub(super) async fn ready<F>(&self, read: impl FnOnce() -> F) -> Result<(), StorageError>
    where
        F: Future<Output = Result<(), StorageError>>,
    {
        // Held during the read: who asks meanwhile shares the outcome.
        let mut last = self.last.lock().await;
        if let Some((at, outcome)) = &*last
            && at.elapsed() < self.timeout / 2
        {
            return outcome.clone();
        }
        let outcome = read().await;
        *last = Some((Instant::now(), outcome.clone()));
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_outcome_is_kept_for_half_the_timeout() {
        let probe = Probe::new(Bytes::new(), Duration::from_secs(2));
        let down = || async { Err(StorageError::Unavailable("down".into())) };
        assert!(probe.ready(down).await.is_err());
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(probe.ready(|| async { Ok(()) }).await.is_err());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(probe.ready(|| async { Ok(()) }).await.is_ok());
        assert!(probe.ready(down).await.is_ok());
    }
}
