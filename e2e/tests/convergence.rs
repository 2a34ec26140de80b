//! The controller converges from any state: two hundred random creations, changes and deletions while it is killed between
//! its calls, the API server fails it, others write over what it made, and its rights are taken away for a while.
//!
//! What happens comes from a seed, which is printed first; `CONVERGENCE_SEED` repeats it, as far as two processes repeat
//! themselves.

#[path = "convergence/certificates.rs"]
mod certificates;
#[path = "convergence/claims.rs"]
mod claims;
#[path = "convergence/controller.rs"]
mod controller;
#[path = "convergence/data.rs"]
mod data;
#[path = "convergence/expectation.rs"]
mod expectation;
#[path = "convergence/operations.rs"]
mod operations;
#[path = "convergence/relay.rs"]
mod relay;
#[path = "convergence/world.rs"]
mod world;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rand::{Rng, SeedableRng, rngs::StdRng};
use xtask::cluster::{Cluster, Node, Options, provide_upstream};

use self::{
    claims::Claims,
    controller::{Controller, GUARDED},
    expectation::Snapshot,
    relay::Relay,
    world::{ELSEWHERE, TENANTS, World},
};

/// Creations, changes and deletions that were accepted.
const OPERATIONS: u64 = 200;

/// The longest pause between two of them.
const PACE: Duration = Duration::from_millis(120);

/// How long the controller has in the end. What it has given up for a while, it tries again within a minute.
const CONVERGED: Duration = Duration::from_secs(100);

#[expect(clippy::print_stderr, reason = "who repeats a failed run needs its seed")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_controller_converges_from_any_state_and_never_gives_a_prefix_twice() -> Result<()> {
    let seed = match std::env::var("CONVERGENCE_SEED") {
        Ok(seed) => seed.parse().context("CONVERGENCE_SEED is a number")?,
        Err(_) => rand::random(),
    };
    eprintln!("CONVERGENCE_SEED={seed}");
    run(seed).await.with_context(|| format!("with CONVERGENCE_SEED={seed}"))
}

#[expect(clippy::print_stderr, reason = "what a run came to is worth a line")]
async fn run(seed: u64) -> Result<()> {
    let cluster = Cluster::start(Options::of_test("convergence")?)?;
    let node = Node::start(&cluster.site, cluster.kubectl(), Duration::ZERO)?;
    let relay = Arc::new(Relay::start(&cluster.site, cluster.kube_apiserver.server(), seed).await?);
    let controller = Controller::start(&cluster, &node, &relay)?;
    let mut world = prepare(&cluster, seed).await?;

    let began = Instant::now();
    relay.set_faults(true);
    controller.set_killing(true, &relay);
    let mut done = 0;
    while done < OPERATIONS {
        done += u64::from(world.operate().await?);
        // Sometimes in the middle of what it is doing, sometimes when it is done.
        let some = world.random.random_range(0..50);
        relay.more(some, PACE).await;
    }
    world.restore().await?;
    controller.set_killing(false, &relay);
    relay.set_faults(false);
    let lasted = began.elapsed();

    let began = Instant::now();
    let converged = converge(&world).await?;
    ensure!(controller.is_kept(), "the controller was not started again");
    eprintln!(
        "{:?}, {} starts, {:?} in {} s; converged {} s later: {} EtcdProxies, {} objects, {} changes of claims, {} keys",
        world.done,
        controller.starts(),
        relay.tally(),
        lasted.as_secs(),
        began.elapsed().as_secs(),
        converged.proxies.len(),
        converged.owned.len(),
        converged.history.changes.len(),
        world.keys.len(),
    );
    enough(&world, &controller, &relay)?;

    // A fresh controller finds nothing to do.
    let before = converged.versions();
    controller.kill()?;
    relay.more(u64::MAX / 2, Duration::from_secs(6)).await;
    let after = converge(&world).await?.versions();
    let differ: BTreeMap<_, _> = after.iter().filter(|(place, version)| before.get(*place) != Some(version)).collect();
    ensure!(differ.is_empty() && before.len() == after.len(), "a fresh controller made changes: {differ:?}");
    Ok(())
}

async fn prepare(cluster: &Cluster, seed: u64) -> Result<World> {
    let kubectl = cluster.kubectl();
    for (place, namespace) in TENANTS.into_iter().chain([ELSEWHERE]).enumerate() {
        kubectl.ok(&["create", "namespace", namespace])?;
        if place < 2 {
            kubectl.ok(&["label", "namespace", namespace, &format!("{GUARDED}=true")])?;
        }
    }
    provide_upstream(kubectl, &cluster.etcd, &TENANTS)?;
    let patch = r#"{"spec": {"allowedPrefixes": ["/shared/"], "allowSidecarCredentials": true}}"#;
    kubectl.ok(&["patch", "etcdupstream", "default", "--type=merge", "--patch", patch])?;
    let etcd = e2e::etcd_client(&cluster.etcd.endpoint("observer")?).await?;
    let mut world = World {
        client: e2e::client(kubectl.kubeconfig(), &[]).await?,
        claims: Claims::follow(etcd.clone()).await?,
        etcd,
        // Not the relay's sequence.
        random: StdRng::seed_from_u64(seed.wrapping_add(1)),
        lives: BTreeMap::new(),
        adoptions: Vec::new(),
        keys: Vec::new(),
        foreign: Vec::new(),
        withdrawn: Vec::new(),
        done: BTreeMap::new(),
    };
    for _ in 0..10 {
        world.grant().await?;
    }
    Ok(world)
}

/// Waits until everything is as it is to be.
async fn converge(world: &World) -> Result<Snapshot> {
    let began = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_millis(500));
    loop {
        ticks.tick().await;
        let snapshot = Snapshot::take(world).await?;
        // What must never have been is no matter of time.
        ensure!(snapshot.history.violations.is_empty(), "{:#?}", snapshot.history.violations);
        let mut problems = snapshot.problems(world);
        problems.extend(foreign_changed(world).await?);
        if problems.is_empty() {
            let problems = data::problems(world, &snapshot.history).await?;
            ensure!(problems.is_empty(), "{problems:#?}");
            return Ok(snapshot);
        }
        if began.elapsed() > CONVERGED {
            bail!("not as it is to be after {} s: {problems:#?}", CONVERGED.as_secs());
        }
    }
}

/// Objects of others that are not as they were.
async fn foreign_changed(world: &World) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for (kind, namespace, name) in &world.foreign {
        let object = world.api(kind, namespace).get_opt(name).await?;
        let whole = object.is_some_and(|object| {
            object.metadata.labels.is_none_or(|labels| labels.is_empty())
                && object.metadata.annotations.is_some_and(|annotations| annotations.len() == 1)
                && object.data.get("data").is_none()
        });
        if !whole {
            problems.push(format!("{kind} {namespace}/{name} was somebody else's, and was changed"));
        }
    }
    Ok(problems)
}

/// The run was one that could have shown something.
fn enough(world: &World, controller: &Controller, relay: &Relay) -> Result<()> {
    let done = |what: &str| world.done.get(what).copied().unwrap_or(0);
    let faults = relay.tally();
    ensure!(controller.starts() > 8, "it was hardly ever killed");
    ensure!(faults.killed_before > 0 && faults.killed_after > 0, "{faults:?}");
    ensure!(faults.refused > 20 && faults.cut_before > 10 && faults.cut_after > 10, "{faults:?}");
    ensure!(done("created") > 20 && done("changed") > 20 && done("deleted") > 10, "{:?}", world.done);
    ensure!(!world.keys.is_empty(), "no key was written");
    Ok(())
}
