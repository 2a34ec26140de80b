//! kill -9 of every part of the path, again and again under load: what was acknowledged stays, and watches miss nothing.

#[path = "crashes/load.rs"]
mod load;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::client;
use kube::Client;
use tokio::{sync::watch, time::Instant};
use xtask::{
    cluster::{Cluster, Informer, Options},
    process::Process,
};

use self::load::{Journal, Observer, Writer};

/// How often each part is killed.
const ROUNDS: usize = 20;

/// What must be acknowledged after each restart before the next kill.
const PROGRESS: usize = 15;

/// How long that may take. Connections that wait for a dead peer have their own time limits.
const RECOVERY: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn acknowledged_writes_stay_and_watches_miss_nothing() -> Result<()> {
    let cluster = Cluster::start(Options::of_test("crashes")?.with_restaurant()?)?;
    cluster.kubectl().in_folder(e2e::examples()).ok(&["create", "-f", "topping-tomato.yaml"])?;
    let server = &cluster.restaurant()?.server;
    let direct = client(server.direct().kubeconfig(), &[]).await?;
    let aggregated = client(cluster.kubectl().kubeconfig(), &[]).await?;
    let informer =
        Informer::start(&cluster.tools, cluster.kubectl(), "restaurant.programming-kubernetes.info/v1beta1/pizzas")?;

    let journal = Arc::new(Journal::default());
    // The writers end first: the observer is done when it has seen all that they were promised.
    let (stop, stopped) = watch::channel(false);
    let (stop_observer, observer_stopped) = watch::channel(false);
    let observer = tokio::spawn(
        Observer::new(direct.clone(), load::version(&direct).await?).run(observer_stopped, Arc::clone(&journal)),
    );
    let clients = [("a", &direct), ("b", &direct), ("c", &direct), ("through-the-aggregator", &aggregated)];
    let writers: Vec<_> = clients
        .map(|(name, client)| {
            tokio::spawn(Writer::new(name, client.clone(), Arc::clone(&journal)).run(stopped.clone()))
        })
        .into();

    let killed = kill_in_turn(&cluster, &journal).await;
    stop.send(true)?;
    let mut written = BTreeMap::new();
    for writer in writers {
        written.extend(writer.await??);
    }
    stop_observer.send(true)?;
    killed?;
    // Until now the aggregator may have thought the server away.
    server.wait_available(cluster.kubectl())?;
    let seen = tokio::time::timeout(RECOVERY, observer).await.context("the watch did not catch up")???;
    let acknowledged = journal.acknowledged();
    ensure!(acknowledged.len() >= 3 * ROUNDS * PROGRESS, "only {} writes were acknowledged", acknowledged.len());
    for (revision, name) in &acknowledged {
        let missed = || format!("the watch missed {name} at {revision}; it told {:?}", seen.around(*revision));
        ensure!(seen.events.get(revision) == Some(name), missed());
    }
    read_back(&direct, &written).await?;
    let last = load::version(&direct).await?;
    drop(direct);
    informer_agrees(&informer, &acknowledged, &last)?;
    cluster.remove()
}

/// Kills and restarts one part after the other, and no other.
async fn kill_in_turn(cluster: &Cluster, journal: &Journal) -> Result<()> {
    let restaurant = cluster.restaurant()?;
    let proxy = restaurant.proxy()?;
    let victims: [(&Process, &(dyn Fn() -> Result<()> + Sync)); 3] = [
        (&proxy.process, &|| proxy.wait_ready()),
        (&cluster.etcd.process, &|| cluster.etcd.wait_ready()),
        (&restaurant.server.process, &|| restaurant.server.wait_ready()),
    ];
    journal.progress(PROGRESS, Instant::now() + RECOVERY).await.context("before the first kill")?;
    for round in 0..ROUNDS {
        for (process, wait_ready) in victims {
            let what = || format!("round {round}, {} killed", process.name());
            process.restart().with_context(what)?;
            tokio::task::block_in_place(wait_ready).with_context(what)?;
            journal.progress(PROGRESS, Instant::now() + RECOVERY).await.with_context(what)?;
        }
    }
    for process in cluster.processes() {
        ensure!(process.ended()?.is_none(), "{} ended though nobody killed it", process.name());
    }
    Ok(())
}

/// Each object is as its last acknowledged write left it, revision included, or as a later one that was cut off meant it.
async fn read_back(client: &Client, written: &BTreeMap<String, load::State>) -> Result<()> {
    let stored = load::list(client).await?;
    for (name, state) in written {
        ensure!(state.allows(stored.get(name)), "{name} should be {state:?} and is {:?}", stored.get(name));
    }
    for name in stored.keys() {
        ensure!(written.contains_key(name), "{name} is stored and was never written");
    }
    Ok(())
}

/// A Go client's informer, which went through the aggregator all the while, has come to the same end.
fn informer_agrees(informer: &Informer, acknowledged: &BTreeMap<u64, String>, last: &str) -> Result<()> {
    let Some((revision, name)) = acknowledged.last_key_value() else { return Ok(()) };
    informer.expect(
        &format!("{name} at {revision}, the store being at {last}"),
        Duration::from_secs(120),
        |event| event.name == *name && event.resource_version.parse::<u64>().is_ok_and(|seen| seen >= *revision),
    )?;
    Ok(())
}
