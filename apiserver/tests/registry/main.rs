//! The generic registry, driven as a client would: requests in, answers out, over a real storage.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod api;
mod flunder;

mod admission;
mod create;
mod delete;
mod get;
mod list;
mod patch;
mod update;
mod watch;
