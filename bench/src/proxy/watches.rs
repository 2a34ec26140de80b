//! Many watchers of one key, and many watches to which nothing happens.

use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use tokio::time::{MissedTickBehavior, interval};
use xtask::progress::Progress;

use super::{
    SUBJECTS,
    targets::{Target, Targets},
};
use crate::{
    Bench,
    etcd::{self, Watchers},
    plan::FanOut,
    report::{Row, Table, Unit, at_most},
    stats::{Series, count, megabytes, micros},
    usage::{self, Meter, Usage},
};

/// The size of each value in bytes.
const VALUE: usize = 100;

const KEY: &str = "watched";

pub(super) fn run(bench: &Bench, targets: &Targets) -> Result<Table> {
    let FanOut { watchers, streams, events, rate } = bench.plan.etcd_watchers;
    let step = Progress::start(format!("{watchers} watchers, {events} events"));
    let mut speed: [Series; 3] = Default::default();
    let mut cpu: [Series; 3] = Default::default();
    let rounds = bench.plan.rounds.min(5);
    for round in 0..rounds {
        for index in Targets::turn(round) {
            let Some(target) = targets.all.get(index) else { continue };
            step.note(format!("round {} of {rounds}: {}", round + 1, target.name));
            let (time, usage) = bench.runtime.block_on(fan_out(target, targets.etcd(), bench.plan.etcd_watchers))?;
            let delivered = count(watchers * events);
            if let (Some(speed), Some(cpu)) = (speed.get_mut(index), cpu.get_mut(index)) {
                speed.push(delivered / time.as_secs_f64());
                cpu.push(micros(usage.cpu) / delivered);
            }
        }
    }
    step.done();
    let (growth, sizes) = idle(bench, targets)?;
    let idle = bench.plan.idle_watches;
    let proxies = |[_, peer, ours]: [Series; 3]| vec![None, Some(peer), Some(ours)];
    let pair = |[peer, ours]: [Series; 2]| vec![None, Some(peer), Some(ours)];
    let idle_name = format!("{} idle watches on {} streams", idle.watches, idle.streams);
    Ok(Table {
        file: "etcd-proxy-watch".into(),
        title: "Watches".into(),
        notes: vec![format!(
            "{watchers} watchers of one key on {streams} streams; {events} puts of {VALUE} bytes, at most {rate} a second and made \
             to etcd itself; from the first put to the last delivery. The goal of 40 MB is for 10,000 idle watches on 100 streams."
        )],
        subjects: SUBJECTS.to_vec(),
        rows: vec![
            Row::new("events delivered", Unit::PerSecond, speed.map(Some).to_vec()),
            Row::new("processor time of the proxy per event delivered", Unit::Micros, proxies(cpu))
                .goal(at_most(0.5).of_peer()),
            Row::new(format!("{idle_name}: memory"), Unit::Megabytes, pair(sizes))
                .goal_if(idle.watches >= 10_000, at_most(40.0).absolute()),
            Row::new(format!("{idle_name}: growth"), Unit::Megabytes, pair(growth)),
        ],
    })
}

async fn fan_out(target: &Target, etcd: &Target, sizes: FanOut) -> Result<(Duration, Usage)> {
    let mut watchers = Watchers::open(&target.url, sizes.watchers, sizes.streams, |_| KEY.to_owned()).await?;
    let writer = etcd::connect(&etcd.url).await?;
    let key = format!("{}{KEY}", target.prefix);
    let meter = Meter::start(target.pid()?)?;
    let start = Instant::now();
    let write = async {
        let mut pace = interval(Duration::from_secs(1) / sizes.rate.max(1));
        pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for _ in 0..sizes.events {
            pace.tick().await;
            etcd::put(&writer, &key, Bytes::from_static(&[b'v'; VALUE])).await?;
        }
        Ok::<_, anyhow::Error>(())
    };
    let ((), last) = futures::try_join!(write, watchers.receive(sizes.events))?;
    Ok((last - start, meter.stop()?))
}

/// The growth and the size of each proxy with idle watches, each started anew.
fn idle(bench: &Bench, targets: &Targets) -> Result<([Series; 2], [Series; 2])> {
    let sizes = bench.plan.idle_watches;
    let step = Progress::start(format!("{} idle watches", sizes.watches));
    let (mut growth, mut resident): ([Series; 2], [Series; 2]) = Default::default();
    for _ in 0..bench.plan.rounds.min(3) {
        for (index, target) in targets.proxies().into_iter().enumerate() {
            step.note(target.name);
            target.restart(bench)?;
            let pid = target.pid()?;
            let before = usage::resident(pid)?;
            let after = bench.runtime.block_on(async {
                let key = |index: usize| format!("idle/{index:06}");
                let watchers = Watchers::open(&target.url, sizes.watches, sizes.streams, key).await?;
                tokio::time::sleep(bench.plan.idle.min(Duration::from_secs(5))).await;
                let resident = usage::resident(pid);
                drop(watchers);
                resident
            })?;
            if let (Some(growth), Some(resident)) = (growth.get_mut(index), resident.get_mut(index)) {
                growth.push(megabytes(after.saturating_sub(before)));
                resident.push(megabytes(after));
            }
        }
    }
    step.done();
    Ok((growth, resident))
}
