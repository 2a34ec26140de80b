//! The program as an operator meets it: the real binary against a real etcd, asked by etcdctl, tonic and plain HTTP.
//!
//! `TEST_ETCD` and `TEST_ETCDCTL` name the binaries; `cargo xtask test` sets them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "process/access_log.rs"]
mod access_log;
#[path = "process/arriving.rs"]
mod arriving;
#[path = "process/authentication.rs"]
mod authentication;
#[path = "process/backup.rs"]
mod backup;
#[path = "process/buffered.rs"]
mod buffered;
#[path = "process/child.rs"]
mod child;
#[path = "process/claims.rs"]
mod claims;
#[path = "process/config_file.rs"]
mod config_file;
#[path = "process/connections.rs"]
mod connections;
#[path = "process/deep.rs"]
mod deep;
#[path = "process/failover.rs"]
mod failover;
#[path = "process/forwarder.rs"]
mod forwarder;
#[path = "process/grpc_proxy.rs"]
mod grpc_proxy;
#[path = "process/help.rs"]
mod help;
#[path = "process/http.rs"]
mod http;
#[path = "process/limits.rs"]
mod limits;
#[path = "process/metrics.rs"]
mod metrics;
#[path = "process/neighbours.rs"]
mod neighbours;
#[path = "process/pki.rs"]
mod pki;
#[path = "process/probes.rs"]
mod probes;
#[path = "process/reflection.rs"]
mod reflection;
#[path = "process/refusals.rs"]
mod refusals;
#[path = "process/rotation.rs"]
mod rotation;
#[path = "process/service_manager.rs"]
mod service_manager;
#[path = "common/signal.rs"]
mod signal;
#[path = "process/stalled.rs"]
mod stalled;
#[path = "process/stop.rs"]
mod stop;
#[path = "process/tls.rs"]
mod tls;
#[path = "process/tls_volume.rs"]
mod tls_volume;
#[path = "process/together.rs"]
mod together;
#[path = "process/tools.rs"]
mod tools;
#[path = "process/traces.rs"]
mod traces;
#[path = "process/unix.rs"]
mod unix;
#[path = "process/unread_log.rs"]
mod unread_log;
#[path = "process/untaken.rs"]
mod untaken;
#[path = "common/wire.rs"]
mod wire;
