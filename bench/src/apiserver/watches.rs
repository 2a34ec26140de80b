//! Many watchers, each on a connection of its own, as clients are.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use futures::{
    StreamExt,
    future::join_all,
    stream::{self, TryStreamExt},
};
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval, timeout};
use xtask::progress::Progress;

use super::{
    SUBJECTS,
    servers::{Server, Servers, WRITTEN, path},
};
use crate::{
    Bench,
    https::{Ask, Connection},
    plan::FanOut,
    report::{Row, Table, Unit, at_most},
    stats::{Series, count, megabytes, micros},
    usage::{Meter, Usage},
};

/// How long all deliveries of one round may take.
const LIMIT: Duration = Duration::from_secs(120);

/// How many watches are opened at the same time.
const OPENING: usize = 32;

const OBJECT: &str = "watched";

/// What one round showed.
struct Outcome {
    delivered: usize,
    time: Duration,
    usage: Usage,
}

pub(super) fn run(bench: &Bench, servers: &Servers) -> Result<Table> {
    let sizes = bench.plan.api_watchers;
    let FanOut { watchers, events, rate, .. } = sizes;
    let step = Progress::start(format!("{watchers} watchers, {events} events"));
    let (mut speed, mut cpu, mut peak): ([Series; 2], [Series; 2], [Series; 2]) = Default::default();
    let mut lost = [0, 0];
    let rounds = bench.plan.rounds.min(5);
    for round in 0..rounds {
        for index in Servers::turn(round) {
            let Some(server) = servers.both.get(index) else { continue };
            step.note(format!("round {} of {rounds}: {}", round + 1, server.name));
            let outcome = bench.runtime.block_on(fan_out(server, sizes))?;
            let delivered = count(outcome.delivered.max(1));
            let values = [
                (&mut speed, delivered / outcome.time.as_secs_f64()),
                (&mut cpu, micros(outcome.usage.cpu) / delivered),
                (&mut peak, megabytes(outcome.usage.peak)),
            ];
            for (series, value) in values {
                if let Some(series) = series.get_mut(index) {
                    series.push(value);
                }
            }
            if let Some(lost) = lost.get_mut(index) {
                *lost += watchers * events - outcome.delivered;
            }
        }
    }
    step.done();
    let mut notes = vec![format!(
        "{watchers} watchers of one namespace, each on a connection of its own; {events} patches of one object, at most {rate} a \
         second, whose processor time is included; from the first patch to the last delivery."
    )];
    for (name, lost) in SUBJECTS.iter().zip(lost).filter(|(_, lost)| *lost > 0) {
        notes.push(format!("{name} ended watches before their last event: {lost} deliveries are missing."));
    }
    Ok(Table {
        file: "apiserver-watch".into(),
        title: "Watches".into(),
        notes,
        subjects: SUBJECTS.to_vec(),
        rows: vec![
            Row::new("events delivered", Unit::PerSecond, speed.map(Some).to_vec()),
            Row::new("processor time per event delivered", Unit::Micros, cpu.map(Some).to_vec())
                .goal(at_most(0.1).of_peer()),
            Row::new("memory, the most seen", Unit::Megabytes, peak.map(Some).to_vec()),
        ],
    })
}

async fn fan_out(server: &Server, sizes: FanOut) -> Result<Outcome> {
    let mut writer = server.client.connect().await?;
    let (collection, object) = (path(WRITTEN), format!("{}/{OBJECT}", path(WRITTEN)));
    // It is there from the second round on.
    let _ = writer.size(&Ask::json(Method::POST, &collection, server.object(OBJECT).to_string())).await;
    let list: Value = serde_json::from_slice(&writer.body(&Ask::get(format!("{collection}?limit=1"))).await?)?;
    let version =
        list.pointer("/metadata/resourceVersion").and_then(Value::as_str).context("a list without version")?;
    let watch = Ask::get(format!("{collection}?watch=true&resourceVersion={version}"));

    let open = stream::iter(0..sizes.watchers).map(|_| async {
        let mut connection = server.client.connect().await?;
        let body = connection.head(&watch).await?;
        Ok::<_, anyhow::Error>((connection, body))
    });
    let watchers: Vec<(Connection, Incoming)> = open.buffer_unordered(OPENING).try_collect().await?;

    let delivered = AtomicUsize::new(0);
    let meter = Meter::start(server.pid()?)?;
    let start = Instant::now();
    let write = async {
        let mut pace = interval(Duration::from_secs(1) / sizes.rate.max(1));
        pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for step in 0..sizes.events {
            pace.tick().await;
            let patch = format!(r#"{{"metadata":{{"labels":{{"tier":"{step:08}-{version}"}}}}}}"#);
            writer.size(&Ask::merge_patch(&object, patch)).await?;
        }
        Ok::<_, anyhow::Error>(())
    };
    let read = join_all(watchers.into_iter().map(|(_connection, mut body)| {
        let delivered = &delivered;
        async move {
            let mut seen = 0;
            while seen < sizes.events {
                // One event a line. A watch that ends early, or breaks, is told by what is missing.
                let Some(Ok(frame)) = body.frame().await else { break };
                let lines =
                    frame.data_ref().map_or(0, |data: &Bytes| data.iter().filter(|byte| **byte == b'\n').count());
                seen += lines;
                delivered.fetch_add(lines, Ordering::Relaxed);
            }
            Instant::now()
        }
    }));
    let (written, read) = futures::join!(write, timeout(LIMIT, read));
    written?;
    let last = read.ok().and_then(|times| times.into_iter().max()).unwrap_or_else(Instant::now);
    let delivered = delivered.into_inner();
    if delivered == 0 {
        bail!("{}: no watcher saw an event", server.name);
    }
    Ok(Outcome { delivered: delivered.min(sizes.watchers * sizes.events), time: last - start, usage: meter.stop()? })
}
