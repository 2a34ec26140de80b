//! The generic registry: from a [`Strategy`] and a [`Kind`](crate::scheme::Kind) to a resource that answers every verb.
//!
//! [`Store`] is the in-process side: create, get, list, watch, update and delete on objects of the hub type.
//! [`ResourceHandler`] is the HTTP side, an [`Endpoint`](crate::endpoint::Endpoint) on top of it.

mod errors;
mod handlers;
mod keys;
mod metadata;
pub mod store;
mod strategy;

pub use self::{
    handlers::ResourceHandler,
    store::{Change, Environment, Informer, Part, Store, Write},
    strategy::{StatusStrategy, Strategy},
};
