//! The same by way of kube-apiserver, which is what most clients see: there its own work is the larger part.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use xtask::{poll, progress::Progress};

use super::{
    SUBJECTS,
    loads::{self, Verb},
    servers::{LISTED, Server, Servers, name, path},
};
use crate::{
    Bench,
    https::{Ask, Client},
    report::{Row, Table, Unit},
    stats::{Series, count, micros},
};

/// Connections to kube-apiserver.
const CONNECTIONS: usize = 16;

/// How long kube-apiserver may take to turn to another server.
const SWITCH: Duration = Duration::from_secs(60);

/// A few rounds: each has to turn kube-apiserver from one server to the other.
const ROUNDS: usize = 3;

pub(super) fn run(bench: &Bench, servers: &Servers) -> Result<Table> {
    let step = Progress::start("through the aggregator");
    let through = Client::new(servers.kube_apiserver.port(), &servers.kube_apiserver.cluster_ca.pem(), &servers.token)?;
    let verbs = [Verb::Get, Verb::List, Verb::ListAny];
    let [mut rate, mut p50, mut cpu]: [[[Series; 2]; 3]; 3] = Default::default();
    for round in 0..bench.plan.rounds.min(ROUNDS) {
        for index in Servers::turn(round) {
            let Some(server) = servers.both.get(index) else { continue };
            step.note(format!("round {}: turning to {}", round + 1, server.name));
            switch(bench, servers, server, &through)?;
            for (position, verb) in verbs.into_iter().enumerate() {
                step.note(format!("round {}: {}: {}", round + 1, server.name, verb.name()));
                let load = loads::run(server, &through, verb, CONNECTIONS, bench.plan.load);
                let outcome = bench.runtime.block_on(load)?;
                let values = [
                    (&mut rate, outcome.rate),
                    (&mut p50, micros(outcome.p50)),
                    (&mut cpu, micros(outcome.usage.cpu) / count(outcome.requests.max(1))),
                ];
                for (series, value) in values {
                    if let Some(series) = series.get_mut(position).and_then(|both| both.get_mut(index)) {
                        series.push(value);
                    }
                }
            }
        }
    }
    step.done();
    let figures = verbs.into_iter().zip(rate).zip(p50).zip(cpu);
    let rows = figures.flat_map(|(((verb, rate), p50), cpu)| {
        let row = |what: &str, unit, figures: [Series; 2]| {
            Row::new(format!("{}: {what}", verb.name()), unit, figures.map(Some).to_vec())
        };
        [
            row("throughput", Unit::PerSecond, rate),
            row("median time", Unit::Micros, p50),
            row("processor time of the server per request", Unit::Micros, cpu),
        ]
    });
    Ok(Table {
        file: "apiserver-aggregator".into(),
        title: format!("Through the aggregator, {CONNECTIONS} connections"),
        notes: vec![
            "The same reads by way of kube-apiserver. No goals: its own work limits both. Processor time is that of the server \
             behind it alone."
                .into(),
        ],
        subjects: SUBJECTS.to_vec(),
        rows: rows.collect(),
    })
}

/// Has kube-apiserver send the group's requests to this server, and waits until it does.
fn switch(bench: &Bench, servers: &Servers, server: &Server, through: &Client) -> Result<()> {
    let object = Ask::get(format!("{}/{}", path(LISTED), name(0)));
    let uid = |client: &Client| {
        let object: Value = serde_json::from_slice(&bench.runtime.block_on(client.ask(&object))?)?;
        object.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned).context("an object without uid")
    };
    servers.kube_apiserver.admin().apply(&[
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "wardle"}}),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "api", "namespace": "wardle"},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }),
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1alpha1.wardle.example.com"},
            "spec": {
                "group": "wardle.example.com", "version": "v1alpha1", "groupPriorityMinimum": 1000, "versionPriority": 10,
                "service": {"namespace": "wardle", "name": "api", "port": server.port},
                "caBundle": servers.ca_bundle(),
            },
        }),
    ])?;
    // Its objects are known by their uids: the other server has others of the same names.
    let wanted = uid(&server.client)?;
    let start = Instant::now();
    poll::until("kube-apiserver to turn to the other server", SWITCH, || {
        ensure!(uid(through)? == wanted, "it still asks the other, {:?} after the change", start.elapsed());
        Ok(())
    })
}
