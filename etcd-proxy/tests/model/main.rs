//! Nobody sees, changes or ends anything of anybody else, and each tenant has an etcd: shown by random steps of two tenants,
//! each behind an etcd-proxy of its own, and of a client of the shared etcd, held against a model of three etcds.
//!
//! What a shared etcd cannot hide is all that the comparison lets through: the revision is that of all writes, bookkeeping
//! included; ids of cluster, member and term; time. `TEST_ETCD` names the etcd's binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails by panicking"
)]

mod check;
#[path = "../process/child.rs"]
#[expect(dead_code, reason = "shared with the tests of the program")]
mod child;
#[path = "../process/http.rs"]
#[expect(dead_code, reason = "shared with the tests of the program")]
mod http;
#[path = "../common/places.rs"]
mod places;
#[path = "../common/requests.rs"]
mod requests;
#[path = "../common/runs.rs"]
mod runs;
#[path = "../common/signal.rs"]
mod signal;
mod steps;
mod store;
mod stream;
#[path = "../conformance/support.rs"]
#[expect(dead_code, reason = "shared with the tests of conformance")]
mod support;
mod txn;
mod world;

use self::{runs::Runs, steps::steps, world::World};

#[test]
fn two_tenants_and_the_bare_etcd_are_as_their_models() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut world = runtime.block_on(World::start());
    Runs { name: "--test model two_tenants_and_the_bare_etcd_are_as_their_models", cases: 100 }
        .run(&steps(), |steps| runtime.block_on(world.case(steps)));
    runtime.block_on(world.end());
}
