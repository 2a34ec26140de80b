//! Rust clients that write without pause, each over a connection of its own that it makes anew when it is lost, as
//! `tools/writers` does for Go.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use etcd_client::{Channel, Client, Compare, CompareOp, Txn, TxnOp, TxnOpResponse};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};
use tonic::transport::{Endpoint, Uri};

use super::{record::Failure, tls::Dialer};

/// How long one write may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Clients at work.
pub(crate) struct Clients {
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    ledger: Arc<Mutex<Ledger>>,
}

/// What the clients did so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    /// Acknowledged writes of each client.
    pub(crate) writes: Vec<u64>,
    /// Writes that failed.
    pub(crate) failures: Vec<Failure>,
    /// Writes that were acknowledged and found gone.
    pub(crate) lost: Vec<String>,
}

struct Writer {
    number: usize,
    key: String,
    client: Client,
    ledger: Arc<Mutex<Ledger>>,
    /// What the key holds as far as is known, and what the next write puts there.
    last: u64,
    next: u64,
}

// === impl Clients ===

impl Clients {
    /// Starts one client for each of the ways to connect, `rate` writes a second each, and waits until each has written once.
    pub(crate) async fn start(dialers: Vec<Dialer>, rate: u32) -> Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let ledger = Arc::new(Mutex::new(Ledger { writes: vec![0; dialers.len()], ..Ledger::default() }));
        let mut tasks = Vec::new();
        for (number, dialer) in dialers.into_iter().enumerate() {
            let key = format!("rust/{number}");
            let mut client = Client::from_channel(channel(dialer)?, None).await?;
            client.put(key.as_str(), "0", None).await.with_context(|| format!("Rust client {number}"))?;
            let writer = Writer { number, key, client, ledger: Arc::clone(&ledger), last: 0, next: 1 };
            tasks.push(tokio::spawn(writer.write(stopped.clone(), rate)));
        }
        Ok(Self { stop, tasks, ledger })
    }

    /// What they did so far.
    pub(crate) fn ledger(&self) -> Ledger {
        self.ledger.lock().clone()
    }

    /// Ends them, writes under way finished.
    pub(crate) async fn stop(self) -> Result<Ledger> {
        self.stop.send(true)?;
        for task in self.tasks {
            task.await?;
        }
        Ok(self.ledger.lock().clone())
    }
}

/// A channel that connects when it is used and has no connection.
fn channel(dialer: Dialer) -> Result<Channel> {
    let origin: Uri = format!("https://{}", dialer.host).parse()?;
    let connector = tower::service_fn(move |_: Uri| {
        let dialer = dialer.clone();
        async move { dialer.dial().await.map(TokioIo::new) }
    });
    // The connector speaks TLS itself.
    let endpoint = Endpoint::from_static("http://etcd").origin(origin);
    Ok(Channel::Tonic(endpoint.connect_with_connector_lazy(connector)))
}

// === impl Writer ===

impl Writer {
    async fn write(mut self, mut stopped: watch::Receiver<bool>, rate: u32) {
        let mut ticks = interval(Duration::from_secs(1) / rate);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = stopped.changed() => return,
                _ = ticks.tick() => {
                    if !self.once().await {
                        // hyper takes one more request for a connection that has just ended, and hands it back unsent.
                        ticks.reset();
                    }
                }
            }
        }
    }

    /// Writes the next number where the last one is, and sees what is there instead. Answers whether there was an answer.
    async fn once(&mut self) -> bool {
        let from = Timestamp::now();
        let key = self.key.as_str();
        let txn = Txn::new()
            .when([Compare::value(key, CompareOp::Equal, self.last.to_string())])
            .and_then([TxnOp::put(key, self.next.to_string(), None)])
            .or_else([TxnOp::get(key, None)]);
        let answer = match timeout(LIMIT, self.client.txn(txn)).await {
            Ok(answer) => answer.map_err(anyhow::Error::from),
            Err(late) => Err(late.into()),
        };
        let mut ledger = self.ledger.lock();
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                let client = format!("Rust client {}", self.number);
                ledger.failures.push(Failure { client, from, to: Timestamp::now(), error: format!("{error:#}") });
                // Whether it was done, the next one will see.
                self.next += 1;
                return false;
            }
        };
        if answer.succeeded() {
            if let Some(writes) = ledger.writes.get_mut(self.number) {
                *writes += 1;
            }
            (self.last, self.next) = (self.next, self.next + 1);
            return true;
        }
        let found = match answer.op_responses().first() {
            Some(TxnOpResponse::Get(found)) => found.kvs().first().and_then(|kv| kv.value_str().ok()?.parse().ok()),
            _ => None,
        };
        match found {
            // A write that seemed to have failed was done.
            Some(found) if found > self.last && found < self.next => self.last = found,
            found => {
                let Self { number, last, next, .. } = self;
                ledger.lost.push(format!("Rust client {number}: {found:?} instead of {last}, {next} is next"));
                self.last = found.unwrap_or(self.last);
            }
        }
        true
    }
}
