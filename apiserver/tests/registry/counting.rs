//! What a storage is asked, counted.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use apiserver::storage::{
    Expected, Freshness, Got, ListRange, Page, Revision, Storage, StorageError, Watch, WatchRange, Written,
    memory::{Memory, MemoryOptions},
};
use async_trait::async_trait;
use bytes::Bytes;

/// A storage in memory that counts.
#[derive(Default)]
pub(crate) struct Counting {
    storage: Memory,
    reads: AtomicUsize,
    watches: AtomicUsize,
}

impl Counting {
    pub(crate) fn new(options: MemoryOptions) -> Self {
        Self { storage: Memory::new(options), ..Self::default() }
    }

    /// How many reads there were.
    pub(crate) fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }

    /// How many watches there were.
    pub(crate) fn watches(&self) -> usize {
        self.watches.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Storage for Counting {
    async fn get(&self, key: &str, at: Freshness) -> Result<Got, StorageError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.storage.get(key, at).await
    }

    async fn list(&self, range: ListRange<'_>) -> Result<Page, StorageError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.storage.list(range).await
    }

    async fn put(
        &self,
        key: &str,
        expected: Expected,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Written, StorageError> {
        self.storage.put(key, expected, value, ttl).await
    }

    async fn delete(&self, key: &str, expected: Revision) -> Result<Written, StorageError> {
        self.storage.delete(key, expected).await
    }

    async fn watch(&self, range: WatchRange<'_>, after: Revision) -> Result<Watch, StorageError> {
        self.watches.fetch_add(1, Ordering::Relaxed);
        self.storage.watch(range, after).await
    }

    async fn current_revision(&self) -> Result<Revision, StorageError> {
        self.storage.current_revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StorageError> {
        self.storage.compact(revision).await
    }
}
