//! What happens to the members and the proxy, and how soon writes succeed again.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use proptest::prelude::*;
use tokio::time::sleep;

use crate::{
    clients::Shared,
    cluster::{Cluster, PATIENCE},
    history::{Operation, Request},
};

/// How long a fault lasts, and how long it is quiet after one.
const FAULT: Duration = Duration::from_secs(3);
const QUIET: Duration = Duration::from_secs(1);
/// How long the processor time of the proxy is watched while all members are down and nobody asks, and what it may use then.
const IDLE: Duration = Duration::from_secs(2);
const IDLE_CPU: Duration = Duration::from_millis(100);

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    KillLeader,
    KillFollower,
    PauseLeader,
    PauseFollower,
    KillProxy,
    KillAll,
}

/// A fault as it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Past {
    fault: Fault,
    began: Duration,
    ended: Duration,
}

/// Each fault once, in some order.
pub(crate) fn faults() -> impl Strategy<Value = Vec<Fault>> {
    use Fault::{KillAll, KillFollower, KillLeader, KillProxy, PauseFollower, PauseLeader};
    Just(vec![KillLeader, KillFollower, PauseLeader, PauseFollower, KillProxy, KillAll]).prop_shuffle().no_shrink()
}

/// Carries a fault out, and takes it back.
pub(crate) async fn happen(fault: Fault, cluster: &mut Cluster, shared: &Arc<Shared>) -> Result<Past, String> {
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    let began = shared.start.elapsed();
    match fault {
        Fault::KillLeader | Fault::KillFollower => {
            let member = if fault == Fault::KillLeader { leader } else { follower };
            cluster.kill(member);
            sleep(FAULT).await;
            cluster.run(member);
        }
        Fault::PauseLeader | Fault::PauseFollower => {
            let member = if fault == Fault::PauseLeader { leader } else { follower };
            cluster.signal(member, "STOP");
            sleep(FAULT).await;
            cluster.signal(member, "CONT");
        }
        Fault::KillProxy => cluster.start_proxy(),
        Fault::KillAll => {
            (0..3).for_each(|member| cluster.kill(member));
            sleep(FAULT).await;
            // Nobody asks from now on, once those who do have been answered.
            shared.hold.store(true, Ordering::SeqCst);
            sleep(QUIET).await;
            let before = cluster.proxy_cpu();
            sleep(IDLE).await;
            let used = cluster.proxy_cpu() - before;
            shared.hold.store(false, Ordering::SeqCst);
            if used > IDLE_CPU {
                return Err(format!("{used:?} of processor time in {IDLE:?} while all members are down"));
            }
            (0..3).for_each(|member| cluster.run(member));
        }
    }
    Ok(Past { fault, began, ended: shared.start.elapsed() })
}

/// Waits until a write that was called from now on has succeeded.
pub(crate) async fn recovered(shared: &Arc<Shared>) -> Result<(), String> {
    let (start, writes) = (Instant::now(), shared.writes.load(Ordering::SeqCst));
    while shared.writes.load(Ordering::SeqCst) < writes + 20 {
        if start.elapsed() > PATIENCE {
            return Err(format!("no writes within {PATIENCE:?} after a fault"));
        }
        sleep(Duration::from_millis(20)).await;
    }
    sleep(QUIET).await;
    Ok(())
}

/// A line on each fault.
pub(crate) fn table(past: &[Past], operations: &[Operation]) -> String {
    let next = |from: Duration| {
        let writes =
            operations.iter().filter(|operation| operation.request != Request::Get && operation.called >= from);
        let answered = writes.filter_map(|operation| Some(operation.answered?.0)).min();
        answered.map_or("never".to_owned(), |at| format!("{} ms", (at - from).as_millis()))
    };
    let mut table =
        format!("{:<16}{:>10}{:>24}{:>24}\n", "fault", "lasts", "write after its begin", "write after its end");
    for Past { fault, began, ended } in past {
        let lasts = format!("{} ms", (*ended - *began).as_millis());
        table += &format!("{:<16}{lasts:>10}{:>24}{:>24}\n", format!("{fault:?}"), next(*began), next(*ended));
    }
    table
}
