//! A library for aggregated Kubernetes API servers: types in, a complete API group out.

pub mod admission;
pub mod authentication;
pub mod authorization;
pub mod codec;
pub mod continue_token;
pub mod delegation;
pub mod discovery;
pub mod endpoint;
pub mod leader;
pub mod list_options;
pub mod loopback;
pub mod meta;
pub mod names;
pub mod negotiate;
pub mod number;
pub mod openapi;
pub mod options;
pub mod partial;
pub mod patch;
pub mod query;
pub mod registry;
pub mod request;
pub mod scheme;
pub mod selector;
pub mod server;
pub mod status;
pub mod storage;
pub mod table;
pub mod validation;

mod egress;
mod quote;

pub use self::codec::protobuf;

#[cfg(test)]
mod test_vectors;
