//! The cases of `registry` over etcd, each in one of its own, and what only a storage elsewhere can do: fail.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    missing_docs,
    reason = "tests fail by panicking"
)]

#[path = "../registry/admission.rs"]
mod admission;
#[path = "../registry/api.rs"]
mod api;
#[path = "../registry/create.rs"]
mod create;
#[path = "../registry/delete.rs"]
mod delete;
#[path = "../storage/etcd.rs"]
#[expect(dead_code, reason = "the tests of the storage use the rest of it")]
mod etcd;
mod failures;
#[path = "../registry/flunder.rs"]
mod flunder;
#[path = "../registry/get.rs"]
mod get;
#[path = "../registry/informer.rs"]
mod informer;
#[path = "../registry/list.rs"]
mod list;
#[path = "../registry/patch.rs"]
mod patch;
#[path = "../registry/races.rs"]
mod races;
#[path = "../registry/update.rs"]
mod update;
#[path = "../registry/watch.rs"]
mod watch;

/// Where the cases keep their objects.
mod backend {
    use std::{any::Any, sync::Arc};

    use apiserver::storage::Storage;

    use crate::etcd::Etcd;

    pub(crate) async fn start() -> (Arc<dyn Storage>, Box<dyn Any + Send + Sync>) {
        let store = Etcd::start().await.store().await;
        (store.storage.clone(), Box::new(store))
    }
}
