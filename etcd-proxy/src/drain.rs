//! The way to the end: leaving, closing, aborting.
//!
//! On SIGTERM or SIGINT `/readyz` fails at once; after `--shutdown-delay` the listeners close, watches and other endless
//! streams end with `Unavailable`, and connections are told to go away once their requests are answered; what is left after
//! `--drain-timeout` is cut off. A second signal cuts off at once.

use std::io;

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::config::ShutdownSettings;

/// How far the end has come. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    leaving: CancellationToken,
    closing: CancellationToken,
    aborting: CancellationToken,
}

/// The signals that end the process.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

// === impl Shutdown ===

impl Shutdown {
    /// The process is to be taken out of load balancing; everything still works.
    pub fn leaving(&self) -> &CancellationToken {
        &self.leaving
    }

    /// No new connections, no endless streams; requests under way finish.
    pub fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// What is left is cut off.
    pub fn aborting(&self) -> &CancellationToken {
        &self.aborting
    }

    /// Goes through the phases until `connections` have ended, and what goes on without them, if it keeps the time.
    pub async fn run(
        &self,
        settings: ShutdownSettings,
        signals: &mut Signals,
        connections: &TaskTracker,
        outliving: &TaskTracker,
    ) {
        self.leaving.cancel();
        let orderly = async {
            if !settings.delay.is_zero() {
                tracing::info!(delay = ?settings.delay, "leaving: /readyz fails, still serving");
                sleep(settings.delay).await;
            }
            tracing::info!(connections = connections.len(), timeout = ?settings.drain_timeout, "closing: finishing requests under way");
            self.closing.cancel();
            connections.close();
            let finish = async {
                connections.wait().await;
                outliving.close();
                outliving.wait().await;
            };
            if timeout(settings.drain_timeout, finish).await.is_err() {
                tracing::warn!(
                    connections = connections.len(),
                    "requests still under way after the drain timeout are cut off"
                );
            }
        };
        tokio::select! {
            () = orderly => {}
            signal = signals.next() => tracing::warn!(signal, "second signal: cutting everything off"),
        }
        self.closing.cancel();
        self.aborting.cancel();
        connections.close();
        connections.wait().await;
    }
}

// === impl Signals ===

impl Signals {
    /// Takes the signals over from the system's default, which is to die at once.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn install() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The name of the next signal.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
