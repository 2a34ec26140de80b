//! The storage backends: the suite on each, what only one of them promises, and both side by side.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "tests fail by panicking")]

#[path = "storage/differential.rs"]
mod differential;
#[path = "storage/etcd.rs"]
mod etcd;
#[path = "storage/etcd3.rs"]
mod etcd3;
#[path = "storage/failures.rs"]
mod failures;
#[path = "storage/memory.rs"]
mod memory;
#[path = "storage/model.rs"]
mod model;

use std::sync::Arc;

use apiserver::storage::memory::Memory;

apiserver::storage_suite!(suite_on_memory, async || Arc::new(Memory::default()));
apiserver::storage_suite!(suite_on_etcd3, async || etcd::Etcd::start().await.store().await);
