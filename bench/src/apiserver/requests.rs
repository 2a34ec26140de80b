//! Reads and writes, on many connections and on one.

use std::time::Duration;

use anyhow::Result;
use xtask::{progress::Progress, tools::Tool};

use super::{
    SUBJECTS,
    loads::{self, Outcome, Verb},
    servers::Servers,
};
use crate::{
    Bench,
    etcd::{Access, Load, Request},
    report::{Row, Table, Unit, at_most},
    stats::{Series, count, micros},
};

/// Connections of the loads by many.
const CONNECTIONS: usize = 16;

/// What one verb showed of both servers.
#[derive(Default)]
struct Figures {
    rate: [Series; 2],
    cpu: [Series; 2],
    p50: [Series; 2],
    p99: [Series; 2],
    size: [Series; 2],
}

impl Figures {
    fn push(&mut self, index: usize, outcome: &Outcome) {
        let values = [
            (&mut self.rate, outcome.rate),
            (&mut self.cpu, micros(outcome.usage.cpu) / count(outcome.requests.max(1))),
            (&mut self.p50, micros(outcome.p50)),
            (&mut self.p99, micros(outcome.p99)),
            (&mut self.size, count(outcome.size)),
        ];
        for (series, value) in values {
            if let Some(series) = series.get_mut(index) {
                series.push(value);
            }
        }
    }
}

fn measure(bench: &Bench, servers: &Servers, verb: Verb, connections: usize, step: &Progress) -> Result<Figures> {
    let plan = &bench.plan;
    for server in &servers.both {
        step.note(format!("{}: warming up {}", verb.name(), server.name));
        bench.runtime.block_on(loads::run(server, &server.client, verb, connections, plan.load / 4))?;
    }
    let mut figures = Figures::default();
    for round in 0..plan.rounds {
        for index in Servers::turn(round) {
            let Some(server) = servers.both.get(index) else { continue };
            step.note(format!("{}: round {} of {}: {}", verb.name(), round + 1, plan.rounds, server.name));
            let outcome = bench.runtime.block_on(loads::run(server, &server.client, verb, connections, plan.load))?;
            figures.push(index, &outcome);
        }
    }
    Ok(figures)
}

/// On many connections: a table of reads and one of writes.
pub(super) fn many(bench: &Bench, servers: &Servers) -> Result<Vec<Table>> {
    let listed = bench.plan.listed;
    let tables = [
        ("apiserver-read", "Reads", vec![(Verb::Get, 0.25), (Verb::List, 0.1), (Verb::ListAny, 0.1)]),
        ("apiserver-write", "Writes", vec![(Verb::CreateDelete, 0.5), (Verb::Update, 0.5), (Verb::Patch, 0.5)]),
    ];
    let mut done = Vec::new();
    for (file, title, verbs) in tables {
        let step = Progress::start(format!("{}, {CONNECTIONS} connections", title.to_lowercase()));
        let mut rows = Vec::new();
        for (verb, goal) in verbs {
            let figures = measure(bench, servers, verb, CONNECTIONS, &step)?;
            let row = |what: &str, unit, figures: [Series; 2]| {
                Row::new(format!("{}: {what}", verb.name()), unit, figures.map(Some).to_vec())
            };
            rows.push(row("throughput", Unit::PerSecond, figures.rate));
            rows.push(row("processor time per request", Unit::Micros, figures.cpu).goal(at_most(goal).of_peer()));
            rows.push(row("median time", Unit::Micros, figures.p50));
            rows.push(row("99th percentile", Unit::Micros, figures.p99));
            if verb != Verb::CreateDelete {
                rows.push(row("size of an answer", Unit::Bytes, figures.size));
            }
        }
        step.done();
        done.push(Table {
            file: file.into(),
            title: format!("{title}, {CONNECTIONS} connections"),
            notes: vec![match title {
                "Reads" => format!("A LIST answers {listed} objects as JSON."),
                _ => "Each connection has an object of its own. Creations and deletions alternate; each is a request."
                    .into(),
            }],
            subjects: SUBJECTS.to_vec(),
            rows,
        });
    }
    Ok(done)
}

/// On one connection: how long a request takes, beside a put to the etcd behind.
pub(super) fn one(bench: &Bench, servers: &Servers) -> Result<Table> {
    let step = Progress::start("one connection");
    let (etcd, size) = etcd_put(bench, servers, &step)?;
    let mut rows = Vec::new();
    for verb in [Verb::Get, Verb::CreateDelete, Verb::Update, Verb::Patch] {
        let [peer, ours] = measure(bench, servers, verb, 1, &step)?.p50;
        let name = verb.name();
        if verb == Verb::Get {
            rows.push(Row::new(format!("{name}: median time"), Unit::Micros, vec![None, Some(peer), Some(ours)]));
        } else {
            let above = vec![None, Some(peer.above(&etcd)), Some(ours.above(&etcd))];
            let cells = vec![Some(etcd.clone()), Some(peer), Some(ours)];
            rows.push(Row::new(format!("{name}: median time"), Unit::Micros, cells));
            rows.push(
                Row::new(format!("{name}: above etcd's own put"), Unit::Micros, above).goal(at_most(300.0).absolute()),
            );
        }
    }
    step.done();
    let [peer, ours] = SUBJECTS;
    Ok(Table {
        file: "apiserver-one".into(),
        title: "One connection".into(),
        notes: vec![format!(
            "Beside a put of {size} bytes to the same etcd over TLS by one client of etcd's benchmark tool."
        )],
        subjects: vec!["etcd's put", peer, ours],
        rows,
    })
}

fn etcd_put(bench: &Bench, servers: &Servers, step: &Progress) -> Result<(Series, usize)> {
    // About what an object takes in the store.
    let value = 512;
    let access = Access::tls(&servers.etcd.endpoint("bench")?);
    let load = Load { request: Request::Put { value }, clients: 1, connections: 1 };
    let tool = bench.tools.path(Tool::EtcdBenchmark)?;
    step.note("puts to etcd");
    let requests = load.calibrate(&tool, &access, bench.plan.warm_up, bench.plan.load)?;
    let mut series = Series::default();
    for _ in 0..bench.plan.rounds {
        series.push(micros(load.run(&tool, &access, requests, Duration::from_secs(300))?.p50));
    }
    Ok((series, value))
}
