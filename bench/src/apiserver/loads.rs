//! Loads: so many connections, each with one request at a time, until time is up.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use http::Method;
use serde_json::{Value, json};

use super::servers::{LISTED, Server, WRITTEN, name, path};
use crate::{
    https::{Ask, Client, Connection},
    stats::{count, quantile},
    usage::{Meter, Usage},
};

/// What is asked, over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// One object, as of now.
    Get,
    /// All objects of a namespace, as of now.
    List,
    /// All objects of a namespace, as of any time.
    ListAny,
    /// An object is made and deleted again, in turn, so that their number stays.
    CreateDelete,
    /// An object is replaced, on condition of the version read before.
    Update,
    /// An object is changed by a merge patch.
    Patch,
}

/// What a load showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Requests a second.
    pub(super) rate: f64,
    /// Requests.
    pub(super) requests: usize,
    /// The time of the middle request.
    pub(super) p50: Duration,
    /// The time that one in a hundred exceeds.
    pub(super) p99: Duration,
    /// The size of the last answer in bytes.
    pub(super) size: usize,
    /// What the server used meanwhile.
    pub(super) usage: Usage,
}

impl Verb {
    /// What it is called in tables.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::List => "LIST, consistent",
            Self::ListAny => "LIST, resourceVersion=0",
            Self::CreateDelete => "create and delete",
            Self::Update => "update",
            Self::Patch => "patch",
        }
    }
}

/// One connection's state.
struct Worker<'a> {
    server: &'a Server,
    connection: Connection,
    verb: Verb,
    path: String,
    object: Value,
    step: usize,
}

/// Runs a load on connections of its own. `server` is whose processor time counts; `connect` leads to it.
///
/// # Errors
/// When a request fails.
pub(super) async fn run(
    server: &Server,
    client: &Client,
    verb: Verb,
    connections: usize,
    time: Duration,
) -> Result<Outcome> {
    let started = (0..connections).map(|index| Worker::start(server, client, verb, index));
    let mut workers = try_join_all(started).await.with_context(|| format!("{} on {}", verb.name(), server.name))?;
    let meter = Meter::start(server.pid()?)?;
    let start = Instant::now();
    let end = start + time;
    let running = workers.iter_mut().map(|worker| async move {
        let mut times = Vec::new();
        loop {
            let before = Instant::now();
            let size = worker.ask().await?;
            let after = Instant::now();
            times.push(after - before);
            if after >= end && worker.may_end() {
                return Ok::<_, anyhow::Error>((times, size));
            }
        }
    });
    let answers = try_join_all(running).await.with_context(|| format!("{} on {}", verb.name(), server.name))?;
    let (elapsed, usage) = (start.elapsed(), meter.stop()?);
    drop(workers);
    let size = answers.last().map_or(0, |(_, size)| *size);
    let mut times: Vec<Duration> = answers.into_iter().flat_map(|(times, _)| times).collect();
    let requests = times.len();
    let rate = count(requests) / elapsed.as_secs_f64();
    Ok(Outcome { rate, requests, p50: quantile(&mut times, 0.5), p99: quantile(&mut times, 0.99), size, usage })
}

impl<'a> Worker<'a> {
    async fn start(server: &'a Server, client: &Client, verb: Verb, index: usize) -> Result<Self> {
        let mut connection = client.connect().await?;
        let own = format!("worker-{index:03}");
        let mut object = server.object(&own);
        let path = match verb {
            Verb::Get => format!("{}/{}", path(LISTED), name(0)),
            Verb::List => path(LISTED),
            Verb::ListAny => format!("{}?resourceVersion=0", path(LISTED)),
            Verb::CreateDelete => path(WRITTEN),
            Verb::Update | Verb::Patch => {
                let collection = path(WRITTEN);
                // It may be there from an earlier round.
                let _ = connection.size(&Ask::json(Method::POST, &collection, object.to_string())).await;
                object = serde_json::from_slice(&connection.body(&Ask::get(format!("{collection}/{own}"))).await?)?;
                format!("{collection}/{own}")
            }
        };
        if verb == Verb::CreateDelete {
            object = server.object(&format!("created-{index:03}"));
        }
        Ok(Self { server, connection, verb, path, object, step: 0 })
    }

    /// Whether the last request left things as they were before the load.
    fn may_end(&self) -> bool {
        self.verb != Verb::CreateDelete || self.step.is_multiple_of(2)
    }

    /// One request; the size of its answer.
    async fn ask(&mut self) -> Result<usize> {
        self.step += 1;
        match self.verb {
            Verb::Get | Verb::List | Verb::ListAny => self.connection.size(&Ask::get(&self.path)).await,
            Verb::CreateDelete if self.step % 2 == 1 => {
                self.connection.size(&Ask::json(Method::POST, &self.path, self.object.to_string())).await
            }
            Verb::CreateDelete => {
                let name = self.object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                self.connection.size(&Ask::delete(format!("{}/{name}", self.path))).await
            }
            Verb::Update => {
                *self.object.pointer_mut("/metadata/labels/tier").context("an object without its label")? =
                    json!(format!("{:08}", self.step));
                let ask = Ask::json(Method::PUT, &self.path, self.object.to_string());
                let answer = self.connection.body(&ask).await?;
                self.object =
                    serde_json::from_slice(&answer).with_context(|| format!("an answer of {}", self.server.name))?;
                Ok(answer.len())
            }
            Verb::Patch => {
                let patch = format!(r#"{{"metadata":{{"labels":{{"tier":"{:08}"}}}}}}"#, self.step);
                self.connection.size(&Ask::merge_patch(&self.path, patch)).await
            }
        }
    }
}
