//! A LIST of many objects: what each costs beside those of a short one, and what the server needs to hold.

use std::time::Instant;

use anyhow::Result;
use xtask::progress::Progress;

use super::{
    SUBJECTS,
    servers::{LISTED, Server, Servers, UNLISTED, path},
};
use crate::{
    Bench,
    https::Ask,
    report::{Row, Table, Unit, at_most},
    stats::{Series, count, megabytes, micros},
    usage::{self, Meter},
};

/// A short LIST is repeated until so many objects were answered, or its processor time would be less than a tick.
const AT_LEAST: usize = 20_000;

/// How much more an object of a long LIST may cost and still count as no more.
const FLAT: f64 = 1.25;

/// What one server showed of one size.
#[derive(Clone, Copy)]
struct Outcome {
    time_per_object: f64,
    cpu_per_object: f64,
    growth: f64,
}

pub(super) fn run(bench: &Bench, servers: &Servers) -> Result<Table> {
    let (short, long) = (bench.plan.listed, bench.plan.large);
    let step = Progress::start(format!("a LIST of {long} objects"));
    for server in &servers.both {
        step.note(format!("writing them: {}", server.name));
        bench.runtime.block_on(server.seed(UNLISTED, bench.plan.unlisted..long))?;
    }
    let mut figures: [[Series; 2]; 4] = Default::default();
    let rounds = bench.plan.rounds.min(5);
    for round in 0..rounds {
        for index in Servers::turn(round) {
            let Some(server) = servers.both.get(index) else { continue };
            step.note(format!("round {} of {rounds}: {}", round + 1, server.name));
            let small = bench.runtime.block_on(list(server, LISTED, short))?;
            let large = bench.runtime.block_on(list(server, UNLISTED, long))?;
            let flat = large.time_per_object / small.time_per_object;
            let values = [large.time_per_object, flat, large.cpu_per_object, large.growth];
            for (series, value) in figures.iter_mut().zip(values) {
                if let Some(series) = series.get_mut(index) {
                    series.push(value);
                }
            }
        }
    }
    step.done();
    let [time, flat, cpu, growth] = figures.map(|both| both.map(Some).to_vec());
    Ok(Table {
        file: "apiserver-large".into(),
        title: format!("A LIST of {long} objects"),
        notes: vec![format!(
            "On one connection, consistent and without a limit. The second row is the time per object through that of a LIST of \
             {short}; up to {FLAT} counts as flat. “Growth” is the most resident memory seen during it above that before."
        )],
        subjects: SUBJECTS.to_vec(),
        rows: vec![
            Row::new("time per object", Unit::Micros, time),
            Row::new(format!("time per object, of that at {short}"), Unit::Times, flat).goal(at_most(FLAT).absolute()),
            Row::new("processor time per object", Unit::Micros, cpu).goal(at_most(0.1).of_peer()),
            Row::new("growth", Unit::Megabytes, growth),
        ],
    })
}

async fn list(server: &Server, namespace: &str, objects: usize) -> Result<Outcome> {
    let mut connection = server.client.connect().await?;
    let ask = Ask::get(path(namespace));
    let times = AT_LEAST.div_ceil(objects.max(1)).min(20);
    let pid = server.pid()?;
    let before = usage::resident(pid)?;
    let meter = Meter::start(pid)?;
    let start = Instant::now();
    for _ in 0..times {
        connection.size(&ask).await?;
    }
    let (time, usage) = (start.elapsed(), meter.stop()?);
    let all = count(objects * times);
    Ok(Outcome {
        time_per_object: micros(time) / all,
        cpu_per_object: micros(usage.cpu) / all,
        growth: megabytes(usage.peak.saturating_sub(before)),
    })
}
