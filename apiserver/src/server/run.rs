//! Running, and stopping in the field's order (k8s.io/apiserver `pkg/server/genericapiserver.go`, `RunWithContext`).

use std::{future::Future, sync::Arc, time::Duration};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    PreparedServer,
    accept::Acceptor,
    hooks::{Hook, HookContext, HookError},
};
use crate::registry::store::WRITE_TIMEOUT;

/// How long background tasks and aborted connections may take to end, before the server goes without them.
const LAST_GRACE: Duration = Duration::from_secs(5);

/// Why a server ended although nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A hook failed.
    #[error(transparent)]
    Hook(#[from] HookError),
    /// Signals cannot be received.
    #[error("cannot wait for signals: {0}")]
    Signals(#[from] std::io::Error),
}

/// Completes on SIGTERM or SIGINT. A second signal ends the process at once.
///
/// # Errors
/// When signals cannot be received.
pub fn shutdown_signal() -> std::io::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let first = CancellationToken::new();
    let waiter = first.clone();
    tokio::spawn(async move {
        for nth in 1.. {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            if nth > 1 {
                tracing::warn!("a second signal: ending at once");
                std::process::exit(1);
            }
            tracing::info!("asked to stop");
            first.cancel();
        }
    });
    Ok(async move { waiter.cancelled().await })
}

// === impl PreparedServer ===

impl PreparedServer {
    /// The address that is listened on.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn local_addr(&self) -> std::io::Result<std::net::SocketAddr> {
        self.config.serving.listener.local_addr()
    }

    /// Serves until `shutdown` completes, and then ends in this order: `/readyz` fails at once; pre-shutdown hooks run and
    /// the delay for load balancers passes, while everything is still served; no more connections are accepted, and
    /// watches end; requests are answered; connections, writes without a client and background tasks end.
    ///
    /// # Errors
    /// When a hook fails.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        let Self { config, handler, post_start, pre_shutdown } = self;
        let lifecycle = config.lifecycle.clone();
        let tasks = TaskTracker::new();
        for work in config.background {
            tasks.spawn(work(lifecycle.drained.clone()));
        }
        let tls = config.serving.tls.clone();
        tasks.spawn({
            let stop = lifecycle.drained.clone();
            async move { tls.follow(stop).await }
        });
        let send_retry_after = config.manners.send_retry_after;
        let acceptor = Arc::new(Acceptor {
            tls: config.serving.tls,
            handler: handler.clone(),
            bounds: config.serving.bounds,
            stop_accepting: CancellationToken::new(),
            close: CancellationToken::new(),
            abort: CancellationToken::new(),
            connections: TaskTracker::new(),
            handshake_log: parking_lot::Mutex::default(),
        });
        match config.serving.listener.local_addr() {
            Ok(address) => tracing::info!(%address, "serving"),
            Err(error) => tracing::warn!(%error, "serving on an unknown address"),
        }
        tasks.spawn(acceptor.clone().run(config.serving.listener));
        let context =
            HookContext { loopback: config.loopback.client(), stop: lifecycle.drained.clone(), tasks: tasks.clone() };
        let mut outcome = tokio::select! {
            () = shutdown => Ok(()),
            error = first_failure(post_start, &context) => Err(error.into()),
        };

        tracing::info!(delay = ?config.shutdown_delay, "shutting down");
        lifecycle.shutdown_initiated.cancel();
        let hooks = async {
            for hook in pre_shutdown {
                if let Err(error) = hook.run("pre-shutdown", context.clone()).await {
                    tracing::error!(%error, "going on with the shutdown");
                    if outcome.is_ok() {
                        outcome = Err(error.into());
                    }
                }
            }
        };
        tokio::join!(hooks, tokio::time::sleep(config.shutdown_delay));

        // Watches end by this signal, and new requests on open connections are told to go elsewhere or are still answered.
        lifecycle.not_accepting.cancel();
        if !send_retry_after {
            acceptor.stop_accepting.cancel();
            acceptor.close.cancel();
        }
        handler.requests.close();
        handler.watches.close();
        let answered = async { tokio::join!(handler.requests.wait(), handler.watches.wait()) };
        if tokio::time::timeout(config.shutdown_timeout, answered).await.is_err() {
            tracing::warn!(timeout = ?config.shutdown_timeout, requests = handler.requests.len(), watches = handler.watches.len(), "some requests did not end in time");
        }
        acceptor.stop_accepting.cancel();
        acceptor.close.cancel();
        acceptor.connections.close();
        if tokio::time::timeout(LAST_GRACE, acceptor.connections.wait()).await.is_err() {
            tracing::info!(
                connections = acceptor.connections.len(),
                "ending connections that do not end by themselves"
            );
            acceptor.abort.cancel();
        }
        // Writes whose request was given up, or whose client is gone, come to their end.
        config.tasks.close();
        let patience = config.shutdown_timeout.min(WRITE_TIMEOUT);
        if tokio::time::timeout(patience, config.tasks.wait()).await.is_err() {
            tracing::warn!(
                ?patience,
                tasks = config.tasks.len(),
                "some writes did not end in time; whether they happened is not known"
            );
        }
        lifecycle.drained.cancel();
        tasks.close();
        if tokio::time::timeout(LAST_GRACE, tasks.wait()).await.is_err() {
            tracing::warn!(tasks = tasks.len(), "some background tasks did not end in time");
        }
        tracing::info!("stopped");
        outcome
    }
}

/// Runs the hooks side by side; completes only when one fails.
async fn first_failure(hooks: Vec<Hook>, context: &HookContext) -> HookError {
    let mut running = tokio::task::JoinSet::new();
    for hook in hooks {
        running.spawn(hook.run("post-start", context.clone()));
    }
    while let Some(finished) = running.join_next().await {
        match finished {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error,
            Err(error) => return HookError::crashed(error),
        }
    }
    std::future::pending().await
}
