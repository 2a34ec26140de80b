//! What happens to the members, the proxies and the network, and how soon writes succeed again.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use proptest::prelude::*;
use tokio::time::sleep;

use crate::{
    clients::Shared,
    cluster::{Cluster, PATIENCE},
    history::Operation,
    network::{MEMBERS, Manner},
};

/// How long a fault lasts, and how long it is quiet after one.
const FAULT: Duration = Duration::from_millis(2500);
/// How long the leader is parted from the other members: they elect another after one to two seconds, and are to write a while.
const PARTED: Duration = Duration::from_millis(4000);
const QUIET: Duration = Duration::from_millis(500);
/// How long the processor time of the proxies is watched while all members are down and nobody asks, and what each may use then.
const IDLE: Duration = Duration::from_secs(2);
const IDLE_CPU: Duration = Duration::from_millis(100);

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    KillLeader,
    KillFollower,
    PauseLeader,
    PauseFollower,
    /// Parted from the other members, not from its clients.
    IsolateLeader(Manner),
    IsolateFollower(Manner),
    /// Parted from the proxies, not from the other members.
    HideLeader(Manner),
    KillProxies,
    KillAll,
}

/// A fault as it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Past {
    fault: Fault,
    began: Duration,
    ended: Duration,
    /// The processor time that a proxy used in `IDLE`, at most, where that was looked at.
    idle: Option<Duration>,
}

/// Each fault once, in some order.
pub(crate) fn faults() -> impl Strategy<Value = Vec<Fault>> {
    use Fault::{
        HideLeader, IsolateFollower, IsolateLeader, KillAll, KillFollower, KillLeader, KillProxies, PauseFollower,
        PauseLeader,
    };
    let mut faults = vec![KillLeader, KillFollower, PauseLeader, PauseFollower, KillProxies, KillAll];
    for manner in [Manner::Cut, Manner::Silent] {
        faults.extend([IsolateLeader(manner), IsolateFollower(manner), HideLeader(manner)]);
    }
    Just(faults).prop_shuffle().no_shrink()
}

/// Carries a fault out, and takes it back.
pub(crate) async fn happen(fault: Fault, cluster: &mut Cluster, shared: &Arc<Shared>) -> Result<Past, String> {
    let leader = cluster.leader().await;
    let follower = (leader + 1) % MEMBERS;
    let began = shared.start.elapsed();
    let mut idle = None;
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
        Fault::IsolateLeader(manner) => {
            cluster.isolate(leader, manner);
            sleep(PARTED).await;
            cluster.mend();
        }
        Fault::IsolateFollower(manner) => {
            cluster.isolate(follower, manner);
            sleep(FAULT).await;
            cluster.mend();
        }
        Fault::HideLeader(manner) => {
            cluster.hide(leader, manner);
            sleep(FAULT).await;
            cluster.mend();
        }
        Fault::KillProxies => cluster.start_proxies(),
        Fault::KillAll => {
            (0..MEMBERS).for_each(|member| cluster.kill(member));
            sleep(FAULT).await;
            // Nobody asks from now on, once those who do have been answered.
            shared.hold.store(true, Ordering::SeqCst);
            sleep(QUIET).await;
            let before = cluster.proxy_cpu();
            sleep(IDLE).await;
            let used = cluster.proxy_cpu().into_iter().zip(before).map(|(after, before)| after - before).max();
            shared.hold.store(false, Ordering::SeqCst);
            idle = used;
            if used.is_some_and(|used| used > IDLE_CPU) {
                return Err(format!("{used:?} of processor time in {IDLE:?} while all members are down"));
            }
            (0..MEMBERS).for_each(|member| cluster.run(member));
        }
    }
    Ok(Past { fault, began, ended: shared.start.elapsed(), idle })
}

/// Waits until every client has written something that was called from now on.
pub(crate) async fn recovered(shared: &Arc<Shared>) -> Result<(), String> {
    let writes = || shared.writes.iter().map(|writes| writes.load(Ordering::SeqCst));
    let (start, before) = (Instant::now(), writes().collect::<Vec<_>>());
    // A client has one call under way.
    while writes().zip(&before).any(|(now, before)| now < before + 2) {
        if start.elapsed() > PATIENCE {
            return Err(format!("no writes of some client within {PATIENCE:?} after a fault"));
        }
        sleep(Duration::from_millis(20)).await;
    }
    sleep(QUIET).await;
    Ok(())
}

/// A line on each fault: how soon after its begin and its end somebody's write was answered, and a write of each client.
pub(crate) fn table(past: &[Past], clients: usize, operations: &[Operation]) -> String {
    let next = |client: usize, from: Duration| {
        let writes = operations.iter().filter(|operation| {
            operation.client == client
                && operation.called >= from
                && operation.answered.is_some_and(|(_, answer)| answer.wrote)
        });
        writes.filter_map(|operation| Some(operation.answered?.0 - from)).min().unwrap_or(Duration::MAX)
    };
    let time = |time: Option<Duration>| match time {
        Some(time) if time < Duration::MAX => format!("{} ms", time.as_millis()),
        _ => "never".to_owned(),
    };
    let mut table = format!(
        "{:<26}{:>10}{:>34}{:>34}\n",
        "fault", "lasts", "begin to first, every write", "end to first, every write"
    );
    for Past { fault, began, ended, idle } in past {
        table += &format!("{:<26}{:>10}", format!("{fault:?}"), time(Some(*ended - *began)));
        for from in [*began, *ended] {
            let times: Vec<Duration> = (0..clients).map(|client| next(client, from)).collect();
            table += &format!("{:>22}{:>12}", time(times.iter().min().copied()), time(times.iter().max().copied()));
        }
        table += &idle.map_or(String::new(), |idle| format!("  {idle:?} of processor time in {IDLE:?}"));
        table.push('\n');
    }
    table
}
