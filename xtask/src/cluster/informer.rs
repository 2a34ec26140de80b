//! A Go program's view of a resource: `tools/informer`, client-go's shared informer, read as it goes.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::Kubectl;
use crate::tools::{Tool, Tools};

/// What an informer tells in one line.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// `added`, `updated`, `deleted`, `synced` or `error`.
    pub event: String,
    /// The object's namespace; empty for one without.
    #[serde(default)]
    pub namespace: String,
    /// The object's name.
    #[serde(default)]
    pub name: String,
    /// The object's resource version; with `synced` that of the store.
    #[serde(default)]
    pub resource_version: String,
    /// With `added`: the object was there at the start.
    #[serde(default)]
    pub initial: bool,
    /// With `deleted`: the deletion itself was missed, and a later list showed the object gone.
    #[serde(default)]
    pub final_state_unknown: bool,
    /// With `synced`: how many objects there are.
    pub count: Option<u64>,
    /// With `error`: what went wrong.
    pub message: Option<String>,
}

/// A running informer. Dropping it kills it.
pub struct Informer {
    child: Child,
    events: mpsc::Receiver<Event>,
}

impl Informer {
    /// Starts following a resource, `group/version/resource`, in all namespaces, as the user of `kubectl`.
    ///
    /// # Errors
    /// When the tool is missing or cannot be started.
    pub fn start(tools: &Tools, kubectl: &Kubectl, resource: &str) -> Result<Self> {
        let mut command = Command::new(tools.path(Tool::Informer)?);
        command.args(["--resource", resource, "--kubeconfig"]).arg(kubectl.kubeconfig());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let stdout = child.stdout.take().context("the informer's output is not piped")?;
        let (sender, events) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Nobody listens any more, or it is no event: either ends the reading, and the reader sees the end.
                let Ok(event) = serde_json::from_str(&line) else { return };
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, events })
    }

    /// Reads on until an event that `wanted` accepts.
    ///
    /// # Errors
    /// When none comes within `limit`: what came instead.
    pub fn expect(&self, what: &str, limit: Duration, wanted: impl Fn(&Event) -> bool) -> Result<Event> {
        let deadline = Instant::now() + limit;
        let mut seen = Vec::new();
        while let Ok(event) = self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            if wanted(&event) {
                return Ok(event);
            }
            seen.push(event);
        }
        bail!("the informer did not tell within {} s: {what}; it told {seen:?}", limit.as_secs())
    }

    /// The events that came by now and were not read yet.
    pub fn drain(&self) -> Vec<Event> {
        self.events.try_iter().collect()
    }
}

impl Drop for Informer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
