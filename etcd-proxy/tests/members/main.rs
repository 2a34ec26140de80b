//! What clients are told by a virtual etcd is linearizable: a checker of histories.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails by panicking"
)]

mod history;
mod linear;
