//! Acknowledged writes survive, and what is read never contradicts them, through proxies before three members, while members and
//! proxies are killed, paused and parted.
//!
//! `TEST_ETCD` names the etcd's binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails by panicking"
)]

#[path = "../process/child.rs"]
#[expect(dead_code, reason = "shared with the tests of the program")]
mod child;
mod clients;
mod cluster;
mod events;
mod faults;
mod history;
#[path = "../process/http.rs"]
#[expect(dead_code, reason = "shared with the tests of the program")]
mod http;
mod leases;
mod linear;
mod network;
mod reads;
#[path = "../common/runs.rs"]
mod runs;
#[path = "../common/signal.rs"]
mod signal;
mod validate;
mod watchers;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::time::timeout;

use self::{
    clients::Shared,
    cluster::{Cluster, PATIENCE, PREFIX},
    faults::{Fault, faults},
    runs::Runs,
    watchers::WATCHERS,
};

/// Clients that read and write at once, two of each proxy.
const CLIENTS: usize = 6;
/// The longest that judging a history may take.
const JUDGING: Duration = Duration::from_secs(120);

#[test]
fn writes_survive_and_reads_are_linearizable_under_faults() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    Runs { name: "--test members writes_survive_and_reads_are_linearizable_under_faults", cases: 1 }
        .run(&(any::<u64>().no_shrink(), faults()), |(seed, faults)| runtime.block_on(case(*seed, faults)));
}

#[expect(clippy::print_stderr, reason = "says how soon writes succeed again")]
async fn case(seed: u64, faults: &[Fault]) -> Result<(), String> {
    let mut cluster = Cluster::start().await;
    let shared = Arc::new(Shared {
        urls: cluster.urls(),
        seed,
        start: Instant::now(),
        stop: AtomicBool::new(false),
        hold: AtomicBool::new(false),
        values: Mutex::default(),
        writes: (0..CLIENTS).map(|_| AtomicU64::new(0)).collect(),
        end: AtomicI64::new(i64::MAX),
    });
    let watchers: Vec<_> = WATCHERS
        .iter()
        .enumerate()
        .map(|(number, watcher)| tokio::spawn(watcher.run(number, shared.clone())))
        .collect();
    let pairs = tokio::spawn(clients::pairs(shared.clone()));
    let holder = tokio::spawn(leases::holder(shared.clone()));
    let readers: Vec<_> =
        (0..shared.urls.len()).map(|proxy| tokio::spawn(reads::reader(proxy, shared.clone()))).collect();
    let clients: Vec<_> = (0..CLIENTS).map(|number| tokio::spawn(clients::client(number, shared.clone()))).collect();
    faults::recovered(&shared).await?;
    let mut past = Vec::new();
    for fault in faults {
        past.push(faults::happen(*fault, &mut cluster, &shared).await?);
        faults::recovered(&shared).await?;
    }
    shared.stop.store(true, Ordering::SeqCst);
    let mut operations = Vec::new();
    for client in clients {
        operations.extend(client.await.unwrap());
    }
    pairs.await.unwrap();
    let leased = holder.await.unwrap();
    let mut reads = Vec::new();
    for reader in readers {
        reads.extend(reader.await.unwrap());
    }
    leases::vanished(&shared).await?;
    let last = clients::finish(&shared).await?;
    shared.end.store(last, Ordering::SeqCst);
    let truth = timeout(PATIENCE, watchers::truth(cluster.member(0), PREFIX, &shared, last)).await;
    let truth = truth.map_err(|_| format!("member 0 tells nobody of revision {last}"))??;
    let mut watches = Vec::new();
    for (number, watcher) in watchers.into_iter().enumerate() {
        let told = timeout(PATIENCE, watcher).await.map_err(|_| {
            format!("watch: after {PATIENCE:?}, {:?} has not been told of revision {last}", WATCHERS[number])
        })?;
        watches.extend(told.unwrap());
    }
    let unknown = operations.iter().filter(|operation| operation.answered.is_none()).count();
    eprint!("{}", faults::table(&past, CLIENTS, &operations));
    eprintln!("{} operations, {unknown} without an answer", operations.len());
    eprintln!(
        "{} events, {} watches, {} serializable reads, {} leases",
        truth.events().len(),
        watches.len(),
        reads.len(),
        leased.len()
    );
    validate::writes(&operations, &truth)?;
    watches.iter().try_for_each(|watch| validate::watch(watch, &truth))?;
    leases::check(&leased, &truth, &leases::seen(&watches))?;
    reads::check(reads, &truth, &shared.values.lock())?;
    linear::check(&operations, Instant::now() + JUDGING)
}
