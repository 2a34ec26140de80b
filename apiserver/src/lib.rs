//! A library for aggregated Kubernetes API servers: types in, a complete API group out.

pub mod authorization;
pub mod endpoint;
pub mod meta;
pub mod request;
pub mod scheme;
pub mod storage;
