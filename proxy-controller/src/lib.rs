//! Provisions virtual etcds: an `EtcdProxy` object becomes a claimed prefix, proxies before the shared etcd, and certificates
//! in the tenant's namespace.

pub mod admission;
pub mod api;
pub mod cli;
pub mod leader;
pub mod lookup;
pub mod metrics;
pub mod objects;
pub mod pki;
pub mod policy;
pub mod probe;
pub mod process;
pub mod reconcile;
pub mod serving;
pub mod status;
pub mod upstream;
