//! Puts and gets, by etcd's own benchmark tool.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use xtask::{progress::Progress, tools::Tool};

use super::{SUBJECTS, targets::Targets};
use crate::{
    Bench,
    etcd::{self, Access, Load, Outcome, Request},
    report::{Row, Table, Unit, at_least, at_most},
    stats::{Series, count, megabytes, micros},
    usage::{self, Meter},
};

/// The size of each value in bytes.
const VALUE: usize = 1024;

/// Longest time for one load.
const LIMIT: Duration = Duration::from_secs(300);

/// What one load showed of each target.
#[derive(Default)]
struct Figures {
    rate: [Series; 3],
    p50: [Series; 3],
    p99: [Series; 3],
    cpu: [Series; 3],
    peak: [Series; 3],
}

pub(super) fn run(bench: &Bench, targets: &mut Targets) -> Result<Vec<Table>> {
    let key = format!("{:k<64}", "read-");
    bench.runtime.block_on(async {
        for target in &targets.all {
            etcd::put(&etcd::connect(&target.url).await?, &key, Bytes::from(vec![b'v'; VALUE])).await?;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let mut tables = Vec::new();
    let mut peaks = [Series::default(), Series::default()];
    for (name, request) in [("put", Request::Put { value: VALUE }), ("get", Request::Get { key })] {
        for (clients, connections) in [(1, 1), (64, 8)] {
            let load = Load { request: request.clone(), clients, connections };
            let figures = measure(bench, targets, name, &load)?;
            if clients > 1 {
                let [_, peer, ours] = &figures.peak;
                for (peaks, new) in peaks.iter_mut().zip([peer, ours]) {
                    peaks.push(new.summary().map_or(0.0, |summary| summary.max));
                }
            }
            tables.push(table(name, &load, figures));
        }
    }
    tables.push(memory(bench, targets, peaks)?);
    Ok(tables)
}

fn measure(bench: &Bench, targets: &Targets, name: &str, load: &Load) -> Result<Figures> {
    let tool = bench.tools.path(Tool::EtcdBenchmark)?;
    let plan = &bench.plan;
    let step = Progress::start(format!("{name}, {}", who(load)));
    let mut requests = Vec::new();
    for target in &targets.all {
        step.note(format!("warming up: {}", target.name));
        requests.push(load.calibrate(&tool, &Access::plaintext(&target.url), plan.warm_up, plan.load)?);
    }
    let mut figures = Figures::default();
    for round in 0..plan.rounds {
        for index in Targets::turn(round) {
            let (Some(target), Some(requests)) = (targets.all.get(index), requests.get(index)) else { continue };
            step.note(format!("round {} of {}: {}", round + 1, plan.rounds, target.name));
            let meter = Meter::start(target.pid()?)?;
            let outcome = load.run(&tool, &Access::plaintext(&target.url), *requests, LIMIT)?;
            figures.push(index, outcome, meter.stop()?, *requests);
        }
    }
    step.done();
    Ok(figures)
}

impl Figures {
    fn push(&mut self, index: usize, outcome: Outcome, usage: usage::Usage, requests: usize) {
        let values = [
            (&mut self.rate, outcome.rate),
            (&mut self.p50, micros(outcome.p50)),
            (&mut self.p99, micros(outcome.p99)),
            (&mut self.cpu, micros(usage.cpu) / count(requests.max(1))),
            (&mut self.peak, megabytes(usage.peak)),
        ];
        for (series, value) in values {
            if let Some(series) = series.get_mut(index) {
                series.push(value);
            }
        }
    }
}

fn who(load: &Load) -> String {
    match load.clients {
        1 => "1 client".to_owned(),
        clients => format!("{clients} clients on {} connections", load.connections),
    }
}

fn table(name: &str, load: &Load, figures: Figures) -> Table {
    let one = load.clients == 1;
    let all = |[a, b, c]: &[Series; 3]| vec![Some(a.clone()), Some(b.clone()), Some(c.clone())];
    let proxies = |[_, b, c]: &[Series; 3]| vec![None, Some(b.clone()), Some(c.clone())];
    let added = |[direct, b, c]: &[Series; 3]| vec![None, Some(b.above(direct)), Some(c.above(direct))];
    let mut rows = vec![
        Row::new("throughput", Unit::PerSecond, all(&figures.rate)).goal_if(!one, at_least(1.5).of_peer()),
        Row::new("processor time of the proxy per request", Unit::Micros, proxies(&figures.cpu))
            .goal(at_most(if one { 0.5 } else { 1.0 / 3.0 }).of_peer()),
        Row::new("median time", Unit::Micros, all(&figures.p50)),
        Row::new("99th percentile", Unit::Micros, all(&figures.p99)),
    ];
    if one {
        rows.push(Row::new("added to the median", Unit::Micros, added(&figures.p50)).goal(at_most(150.0).absolute()));
        rows.push(
            Row::new("added to the 99th percentile", Unit::Micros, added(&figures.p99)).goal(at_most(300.0).absolute()),
        );
    }
    Table {
        file: format!("etcd-proxy-{name}-{}", load.clients),
        title: format!("{name}, {}", who(load)),
        notes: vec![match name {
            "put" => "Keys of 64 bytes, values of 1 KiB, by etcd's benchmark tool.".into(),
            _ => "Linearizable reads of one key of 64 bytes with a value of 1 KiB, by etcd's benchmark tool.".into(),
        }],
        subjects: SUBJECTS.to_vec(),
        rows,
    }
}

/// Memory under the loads of many clients, and some time after all of them.
fn memory(bench: &Bench, targets: &Targets, peaks: [Series; 2]) -> Result<Table> {
    let step = Progress::start(format!("memory after {:?} without requests", bench.plan.idle));
    bench.rest(bench.plan.idle);
    let idle = targets.proxies().map(|target| Ok::<_, anyhow::Error>(megabytes(usage::resident(target.pid()?)?)));
    let [peer, ours] = idle;
    let cells = |peer: Series, ours: Series| vec![None, Some(peer), Some(ours)];
    let one = |value: f64| [value].into_iter().collect::<Series>();
    let rows = vec![
        {
            let [peer, ours] = peaks;
            Row::new("under 64 clients, the most seen", Unit::Megabytes, cells(peer, ours))
                .goal(at_most(16.0).absolute())
        },
        Row::new("idle afterwards", Unit::Megabytes, cells(one(peer?), one(ours?))).goal(at_most(8.0).absolute()),
    ];
    step.done();
    Ok(Table {
        file: "etcd-proxy-memory".into(),
        title: "Memory under and after these loads".into(),
        notes: vec![format!("Resident; the last row after {:?} without requests.", bench.plan.idle)],
        subjects: SUBJECTS.to_vec(),
        rows,
    })
}
