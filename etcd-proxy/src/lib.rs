//! A virtual etcd for one tenant: the etcd v3 API confined to a key prefix of a shared etcd.

pub mod cli;
pub mod config;
pub mod drain;
pub mod error;
pub mod gate;
pub mod grpc;
pub mod health;
pub mod lease_id;
pub mod limits;
pub mod logging;
pub mod meta;
pub mod metrics;
pub mod prefix;
pub mod rewrite;
pub mod serve;
pub mod server;
pub mod service;
pub mod service_manager;
pub mod snapshot;
pub mod startup;
pub mod tenant;
pub mod tls;
pub mod tools;
pub mod unknown;
pub mod upstream;
pub mod validate;
