//! Go programs that write to an etcd without pause: `tools/writers`, listened to as it goes.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use super::Endpoint;
use crate::{
    process::Spec,
    site::{MARK, Site},
    tools::{Tool, Tools},
};

/// How long the writers may take to start, to report and to end.
const LIMIT: Duration = Duration::from_secs(60);

/// A write that failed.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Which client's, counted from 0.
    pub client: usize,
    /// When it had failed (RFC 3339).
    pub time: String,
    /// What the client was told.
    pub error: String,
    /// gRPC's code, such as `Unavailable`.
    pub code: String,
    /// How long it had taken, in milliseconds.
    pub took_ms: u64,
}

/// What the writers did so far.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Writes that failed.
    pub failed: u64,
    /// Writes that were acknowledged and found gone.
    pub lost: u64,
    /// Failed writes that were found done after all.
    pub found_done: u64,
    /// The longest an acknowledged write took, in milliseconds.
    pub slowest_ms: u64,
    /// The same for each client.
    pub clients: Vec<Tally>,
}

/// What one client did so far.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each is one client's part of the summary's field")]
pub struct Tally {
    pub client: usize,
    pub writes: u64,
    pub failed: u64,
    pub lost: u64,
    pub found_done: u64,
    pub slowest_ms: u64,
}

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "camelCase")]
enum Line {
    Started,
    Failed(Failure),
    Lost {},
    Summary(Summary),
}

/// Writers at work. Dropping it kills them.
pub struct Writers {
    child: Child,
    stdin: ChildStdin,
    lines: mpsc::Receiver<Summary>,
    failures: Arc<Mutex<Vec<Failure>>>,
    reader: Option<JoinHandle<()>>,
    site: Site,
    name: String,
}

impl Writers {
    /// Starts `clients` clients of clientv3, each with connections of its own, that write `rate` times a second each
    /// below the key `name/`, and waits until each has written once.
    ///
    /// # Errors
    /// When the tool is missing or the clients cannot write.
    pub fn start(
        site: &Site,
        tools: &Tools,
        endpoint: &Endpoint,
        name: &str,
        clients: usize,
        rate: u32,
    ) -> Result<Self> {
        let spec = endpoint
            .client_flags(Spec::new(name, tools.path(Tool::Writers)?))
            .flag("clients", clients.to_string())
            .flag("rate", rate.to_string())
            .flag("prefix", format!("{name}/"));
        let log = std::fs::File::create(site.log(name))?;
        let mut command = Command::new(&spec.program);
        command.args(&spec.args).envs(spec.env).env(MARK, site.dir());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn()?;
        let stdin = child.stdin.take().context("the writers' input is not piped")?;
        let stdout = child.stdout.take().context("the writers' output is not piped")?;
        let (started, starting) = mpsc::channel();
        let (sender, lines) = mpsc::channel();
        let failures = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&failures);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Each way, what nobody waits for is nobody's loss; a lost write is in the summary too.
                match serde_json::from_str(&line) {
                    Ok(Line::Started) => drop(started.send(())),
                    Ok(Line::Failed(failure)) => told.lock().push(failure),
                    Ok(Line::Summary(summary)) => drop(sender.send(summary)),
                    Ok(Line::Lost {}) | Err(_) => {}
                }
            }
        });
        let this =
            Self { child, stdin, lines, failures, reader: Some(reader), site: site.clone(), name: name.to_owned() };
        match starting.recv_timeout(LIMIT) {
            Ok(()) => Ok(this),
            Err(_) => bail!("the writers {name} did not start; they said: {}", this.said()),
        }
    }

    /// The number of their process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The writes that failed so far.
    pub fn failures(&self) -> Vec<Failure> {
        self.failures.lock().clone()
    }

    /// What they did so far.
    ///
    /// # Errors
    /// When they have ended or do not answer.
    pub fn report(&mut self) -> Result<Summary> {
        self.stdin.write_all(b"report\n").context("the writers have ended")?;
        self.lines.recv_timeout(LIMIT).with_context(|| format!("the writers do not answer: {}", self.said()))
    }

    /// Has every client close its connections and make new ones with what it read when it started.
    ///
    /// # Errors
    /// When they have ended.
    pub fn connect_anew(&mut self) -> Result<()> {
        self.stdin.write_all(b"connect\n").context("the writers have ended")
    }

    /// Ends them in order and answers what they did and which writes failed.
    ///
    /// # Errors
    /// When they had ended by themselves or do not end.
    pub fn stop(mut self) -> Result<(Summary, Vec<Failure>)> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("no such process number")?;
        // Not waited for yet, so that the number is still its own.
        kill_process(pid, Signal::TERM)?;
        let summary = self.lines.recv_timeout(LIMIT);
        let summary = summary.with_context(|| format!("the writers did not end in order: {}", self.said()))?;
        self.child.wait()?;
        // The reader ends with the output; whatever failed has been told then.
        let _ = self.reader.take().map(JoinHandle::join);
        let failures = self.failures();
        Ok((summary, failures))
    }

    fn said(&self) -> String {
        crate::process::tail(&self.site.log(&self.name)).unwrap_or_else(|error| format!("{error:#}"))
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        // They may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
