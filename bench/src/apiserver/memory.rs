//! Starts, and what a server occupies.

use std::time::Duration;

use anyhow::Result;
use xtask::progress::Progress;

use super::{SUBJECTS, servers::Servers};
use crate::{
    Bench,
    report::{Row, Table, Unit, at_most},
    stats::{Series, megabytes, millis},
    usage,
};

/// How long a server has to settle after its start.
const SETTLE: Duration = Duration::from_secs(1);

pub(super) fn starts(bench: &Bench, servers: &Servers) -> Result<Table> {
    let step = Progress::start("starts of the servers");
    let (mut times, mut memory): ([Series; 2], [Series; 2]) = Default::default();
    for round in 0..bench.plan.starts {
        for index in Servers::turn(round) {
            let Some(server) = servers.both.get(index) else { continue };
            step.note(format!("{} of {}: {}", round + 1, bench.plan.starts, server.name));
            let time = server.restart(bench)?;
            bench.rest(bench.plan.idle.min(SETTLE));
            let resident = usage::resident(server.pid()?)?;
            if let (Some(times), Some(memory)) = (times.get_mut(index), memory.get_mut(index)) {
                times.push(millis(time));
                memory.push(megabytes(resident));
            }
        }
    }
    step.done();
    Ok(Table {
        file: "apiserver-start".into(),
        title: "Start".into(),
        notes: vec![format!(
            "From the start of the process until /readyz answers 200, with {} objects in the store, and the resident memory a \
             second later.",
            bench.plan.listed + bench.plan.unlisted
        )],
        subjects: SUBJECTS.to_vec(),
        rows: vec![
            Row::new("start to ready", Unit::Millis, times.map(Some).to_vec()).goal(at_most(50.0).absolute()),
            Row::new("memory after start", Unit::Megabytes, memory.map(Some).to_vec()).goal(at_most(0.125).of_peer()),
        ],
    })
}

pub(super) fn afterwards(bench: &Bench, servers: &Servers) -> Result<Table> {
    let idle = bench.plan.idle;
    let step = Progress::start(format!("memory after the loads, and after {idle:?} without requests"));
    let read = || {
        let both = servers.both.each_ref().map(|server| {
            let resident = usage::resident(server.pid()?)?;
            Ok::<_, anyhow::Error>(Some([megabytes(resident)].into_iter().collect::<Series>()))
        });
        both.into_iter().collect::<Result<Vec<_>>>()
    };
    let now = read()?;
    bench.rest(idle);
    let later = read()?;
    step.done();
    Ok(Table {
        file: "apiserver-memory".into(),
        title: "Memory after all these loads".into(),
        notes: vec![format!("Resident, at once and after {idle:?} without requests.")],
        subjects: SUBJECTS.to_vec(),
        rows: vec![
            Row::new("after the loads", Unit::Megabytes, now).goal(at_most(0.125).of_peer()),
            Row::new("idle afterwards", Unit::Megabytes, later).goal(at_most(0.125).of_peer()),
        ],
    })
}
