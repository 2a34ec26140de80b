//! Starts: how soon a proxy serves, and what it occupies then.

use anyhow::Result;
use xtask::progress::Progress;

use super::{SUBJECTS, targets::Targets};
use crate::{
    Bench,
    report::{Row, Table, Unit, at_most},
    stats::{Series, megabytes, millis},
    usage,
};

pub(super) fn starts(bench: &Bench, targets: &Targets) -> Result<Table> {
    let step = Progress::start("starts of the proxies");
    let mut times = [Series::default(), Series::default()];
    let mut memory = [Series::default(), Series::default()];
    for round in 0..bench.plan.starts {
        step.note(format!("{} of {}", round + 1, bench.plan.starts));
        for (index, target) in targets.proxies().into_iter().enumerate() {
            let time = target.restart(bench)?;
            bench.rest(bench.plan.idle.min(std::time::Duration::from_millis(500)));
            let resident = usage::resident(target.pid()?)?;
            if let (Some(times), Some(memory)) = (times.get_mut(index), memory.get_mut(index)) {
                times.push(millis(time));
                memory.push(megabytes(resident));
            }
        }
    }
    step.done();
    let row = |what: &str, unit, [peer, ours]: [Series; 2]| Row::new(what, unit, vec![None, Some(peer), Some(ours)]);
    Ok(Table {
        file: "etcd-proxy-start".into(),
        title: "Start".into(),
        notes: vec![
            "From the start of the process to its first answer to a consistent read, and the resident memory then."
                .into(),
        ],
        subjects: SUBJECTS.to_vec(),
        rows: vec![
            row("start to serving", Unit::Millis, times).goal(at_most(30.0).absolute()),
            row("memory after start", Unit::Megabytes, memory).goal(at_most(8.0).absolute()),
        ],
    })
}
