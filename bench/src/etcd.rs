//! Speaking to an etcd, real or virtual: etcd's own `benchmark` tool for the common requests, and a small client for
//! what the tool does not do.

mod client;
mod tool;

pub(crate) use self::{
    client::{Watchers, connect, put, range, range_stream, seed},
    tool::{Access, Load, Outcome, Request},
};
