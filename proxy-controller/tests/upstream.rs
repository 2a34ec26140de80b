//! The controller's side of the shared etcd, against real ones.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "upstream/claims.rs"]
mod claims;
#[path = "upstream/connection.rs"]
mod connection;
#[path = "upstream/deletion.rs"]
mod deletion;
#[path = "upstream/etcd.rs"]
mod etcd;
#[path = "../../etcd-proxy/tests/common/signal.rs"]
mod signal;
#[path = "upstream/usage.rs"]
mod usage;
