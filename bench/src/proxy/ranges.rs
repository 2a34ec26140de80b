//! One long range, as a stream of parts and as one answer.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tonic::transport::Channel;
use xtask::progress::Progress;

use super::{
    SUBJECTS,
    targets::{Target, Targets},
};
use crate::{
    Bench, etcd,
    report::{Row, Table, Unit, at_least, at_most},
    stats::{Series, count, megabytes},
    usage::{self, Meter},
};

/// How long a proxy has to give memory back at most.
const GIVE_BACK: Duration = Duration::from_secs(2);

/// Parts of the key, on the etcd and by each target.
const KEYS: &str = "long/";

#[derive(Clone, Copy)]
enum Kind {
    Stream,
    Unary,
}

#[derive(Default)]
struct Figures {
    speed: [Series; 3],
    growth: [Series; 3],
    kept: [Series; 3],
    cpu: [Series; 3],
}

pub(super) fn run(bench: &Bench, targets: &Targets) -> Result<Table> {
    let bytes = bench.plan.range_bytes;
    let size = megabytes(bytes as u64);
    let step = Progress::start(format!("a range of {size:.1} MB"));
    step.note("writing what is read");
    bench.runtime.block_on(async {
        let etcd = etcd::connect(&targets.etcd().url).await?;
        for target in &targets.all {
            etcd::seed(&etcd, &format!("{}{KEYS}", target.prefix), bytes).await?;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let give_back = GIVE_BACK.min(bench.plan.idle);
    let (mut stream, mut unary) = (Figures::default(), Figures::default());
    // A long range says enough in few rounds.
    let rounds = bench.plan.rounds.min(5);
    for round in 0..rounds {
        for index in Targets::turn(round) {
            let Some(target) = targets.all.get(index) else { continue };
            step.note(format!("round {} of {rounds}: {}", round + 1, target.name));
            for (kind, figures) in [(Kind::Stream, &mut stream), (Kind::Unary, &mut unary)] {
                if !target.direct {
                    // What earlier loads left behind must not hide what this one takes.
                    target.restart(bench)?;
                }
                bench.runtime.block_on(one(target, kind, bytes, give_back, index, figures))?;
            }
        }
    }
    step.done();
    Ok(Table {
        file: "etcd-proxy-range".into(),
        title: format!("A range of {size:.0} MB"),
        notes: vec![format!(
            "Values of 8 KiB, read by a RangeStream and by one Range with one answer. Each proxy is started anew before each. \
             “Growth” is the most resident memory seen during it above that before; “kept” what is left of that {give_back:?} \
             later. A dash: the server does not serve it."
        )],
        subjects: SUBJECTS.to_vec(),
        rows: rows("RangeStream", stream, size, Kind::Stream).chain(rows("Range", unary, size, Kind::Unary)).collect(),
    })
}

async fn one(
    target: &Target,
    kind: Kind,
    bytes: usize,
    give_back: Duration,
    index: usize,
    figures: &mut Figures,
) -> Result<()> {
    let channel: Channel = etcd::connect(&target.url).await?;
    // The connection's own buffers are there before the range is.
    etcd::range(&channel, "/nothing/").await?;
    let pid = target.pid()?;
    let before = usage::resident(pid)?;
    let meter = Meter::start(pid)?;
    let start = Instant::now();
    let read = match kind {
        Kind::Stream => etcd::range_stream(&channel, KEYS).await?,
        Kind::Unary => etcd::range(&channel, KEYS).await?,
    };
    let time = start.elapsed();
    let usage = meter.stop()?;
    let Some(read) = read else { return Ok(()) };
    ensure!(read >= bytes, "{} answered {read} of {bytes} bytes", target.name);
    let push = |series: &mut [Series; 3], value: f64| {
        if let Some(series) = series.get_mut(index) {
            series.push(value);
        }
    };
    push(&mut figures.speed, count(read) / 1e6 / time.as_secs_f64());
    if !target.direct {
        tokio::time::sleep(give_back).await;
        push(&mut figures.growth, megabytes(usage.peak.saturating_sub(before)));
        push(&mut figures.kept, megabytes(usage::resident(pid)?.saturating_sub(before)));
        push(&mut figures.cpu, usage.cpu.as_secs_f64() * 1e3);
    }
    Ok(())
}

fn rows(name: &str, figures: Figures, size: f64, kind: Kind) -> impl Iterator<Item = Row> + use<> {
    let some = |series: Series| series.summary().map(|_| series);
    let cells = |series: [Series; 3]| series.map(some).to_vec();
    let growth = match kind {
        Kind::Stream => at_most(8.0),
        // One copy of it, and what was there for streams.
        Kind::Unary => at_most(size + 8.0),
    };
    [
        Row::new(format!("{name}: speed"), Unit::MegabytesPerSecond, cells(figures.speed))
            .goal(at_least(0.8).of_direct()),
        Row::new(format!("{name}: growth"), Unit::Megabytes, cells(figures.growth)).goal(growth.absolute()),
        Row::new(format!("{name}: kept"), Unit::Megabytes, cells(figures.kept)).goal(at_most(8.0).absolute()),
        Row::new(format!("{name}: processor time"), Unit::Millis, cells(figures.cpu)),
    ]
    .into_iter()
}
