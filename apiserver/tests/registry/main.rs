//! The generic registry, driven as a client would: requests in, answers out, over the storage in memory.
//! `registry_etcd3` runs the same cases over etcd.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, reason = "tests fail by panicking")]

mod admission;
mod api;
mod counted;
mod counting;
mod create;
mod delete;
mod flunder;
mod get;
mod informer;
mod list;
mod patch;
mod races;
mod timing;
mod update;
mod watch;

/// Where the cases keep their objects.
mod backend {
    use std::{any::Any, sync::Arc};

    use apiserver::storage::{Storage, memory::Memory};

    pub(crate) async fn start() -> (Arc<dyn Storage>, Box<dyn Any + Send + Sync>) {
        (Arc::new(Memory::default()), Box::new(()))
    }
}
