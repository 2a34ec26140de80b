//! Hostile frames: whatever a client sends and whatever an upstream answers, the process goes on, within its memory, with
//! everybody else served, and shows nobody what is not his.
//!
//! `TEST_ETCD` names the etcd's binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails by panicking"
)]

mod calls;
#[path = "../process/child.rs"]
#[expect(dead_code, reason = "shared with the tests of the program")]
mod child;
#[path = "../process/http.rs"]
#[expect(dead_code, reason = "shared with the tests of the program")]
mod http;
mod mangled;
mod raw;
#[path = "../common/requests.rs"]
mod requests;
#[path = "../common/runs.rs"]
mod runs;
#[path = "../common/signal.rs"]
mod signal;
mod tap;
#[path = "../common/wire.rs"]
#[expect(dead_code, reason = "shared with the tests of the program")]
mod wire;
mod witness;

use proptest::prelude::*;

use self::{calls::Call, raw::Conversation, runs::Runs, tap::Tap, witness::Ground};

/// What one client does.
#[derive(Clone, Debug)]
enum Attack {
    /// Frames below HTTP/2.
    Frames(Conversation),
    /// Calls in good HTTP/2.
    Calls(Vec<Call>),
}

#[test]
fn hostile_clients_end_and_learn_nothing() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut ground = runtime.block_on(async {
        let ground = Ground::start().await;
        let upstream = ground.etcd.url.clone();
        ground.before(upstream).await
    });
    let attack = prop_oneof![
        raw::conversation().prop_map(Attack::Frames),
        prop::collection::vec(calls::hostile(), 1..6).prop_map(Attack::Calls),
    ];
    Runs { name: "--test frames hostile_clients_end_and_learn_nothing", cases: 300 }.run(&attack, |attack| {
        runtime.block_on(async {
            let heard = match attack {
                Attack::Frames(conversation) => raw::hold(&ground.proxy, conversation).await,
                Attack::Calls(calls) => calls::make(&ground.proxy, calls).await,
            };
            ground.check(heard).await
        })
    });
    runtime.block_on(ground.end());
}

#[test]
fn wrong_answers_end_and_show_nothing() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (mut ground, tap) = runtime.block_on(async {
        let ground = Ground::start().await;
        let tap = Tap::start(&ground.etcd.url).await;
        (ground.before(tap.url.clone()).await, tap)
    });
    let case = (tap::plan(), prop::collection::vec(calls::good(), 1..8));
    Runs { name: "--test frames wrong_answers_end_and_show_nothing", cases: 45 }.run(&case, |(plan, calls)| {
        runtime.block_on(async {
            ground.fill().await;
            tap.follow(plan.clone());
            let heard = calls::make(&ground.proxy, calls).await;
            tap.follow(tap::Plan::default());
            ground.check(heard).await
        })
    });
    runtime.block_on(ground.end());
    drop(tap);
}

/// An event has its key where a Status has the version of the storage, which passes as it is, and stands in a snapshot.
#[test]
fn events_in_the_place_of_answers_show_no_keys() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let ground = Ground::start().await;
        let tap = Tap::start(&ground.etcd.url).await;
        let mut ground = ground.before(tap.url.clone()).await;
        ground.fill().await;
        // None asks the upstream more often.
        for (call, others) in calls::each().iter().flat_map(|call| (0..5).map(move |others| (call, others))) {
            tap.follow(tap::Plan::event(others));
            let heard = calls::make(&ground.proxy, std::slice::from_ref(call)).await;
            tap.follow(tap::Plan::default());
            ground.check(heard).await.unwrap_or_else(|wrong| panic!("{call:?} after {others}: {wrong}"));
        }
        ground.end().await;
    });
}
