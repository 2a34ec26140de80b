//! Through the proxy nothing differs from etcd, and no tenant sees or changes anything of another.
//!
//! Every test runs a real etcd; those about sameness run two, one asked directly and one through the proxy.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod authentication;
mod claims;
mod cluster;
mod compaction;
mod differential;
mod elections;
mod errors;
mod etcdctl;
mod hashes;
mod isolation;
mod leases;
mod limits;
mod locks;
#[path = "../common/places.rs"]
mod places;
mod relay;
#[path = "../common/requests.rs"]
mod requests;
mod restored;
#[path = "../common/runs.rs"]
mod runs;
mod services;
#[path = "../common/signal.rs"]
mod signal;
mod snapshot;
mod support;
mod transport;
mod upstream;
mod versions;
mod watches;
#[expect(dead_code, reason = "shared with the tests of the program")]
#[path = "../common/wire.rs"]
mod wire;
