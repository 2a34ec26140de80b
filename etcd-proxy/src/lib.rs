//! A virtual etcd for one tenant: the etcd v3 API confined to a key prefix of a shared etcd.

pub mod tls;
pub mod upstream;
