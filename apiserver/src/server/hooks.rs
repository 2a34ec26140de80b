//! Work at the start and at the end of a server's life (k8s.io/apiserver `pkg/server/hooks.go`).

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::health::Check;

/// What a hook comes back with.
pub type HookResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;

type HookFuture = Pin<Box<dyn Future<Output = HookResult> + Send>>;
type HookFn = Box<dyn FnOnce(HookContext) -> HookFuture + Send>;

/// What a hook may use.
#[derive(Clone)]
pub struct HookContext {
    /// A client for this very server, as a user who may do everything.
    pub loopback: kube::Client,
    /// Cancelled when the server has answered its last request: long tasks end then.
    pub stop: CancellationToken,
    /// Where long tasks are started, so that the server waits for their end.
    pub tasks: TaskTracker,
}

/// A named piece of work.
pub struct Hook {
    name: String,
    run: HookFn,
    done: Arc<AtomicBool>,
}

/// A hook that failed.
#[derive(Debug, thiserror::Error)]
#[error("the {stage} hook {name:?} failed: {error}")]
pub struct HookError {
    stage: &'static str,
    name: String,
    error: Box<dyn std::error::Error + Send + Sync>,
}

// === impl Hook ===

impl Hook {
    /// Names a piece of work.
    pub fn new<F>(name: impl Into<String>, run: impl FnOnce(HookContext) -> F + Send + 'static) -> Self
    where
        F: Future<Output = HookResult> + Send + 'static,
    {
        Self { name: name.into(), run: Box::new(|context| Box::pin(run(context))), done: Arc::default() }
    }

    /// The check that passes once the hook has run: `poststarthook/<name>`.
    pub fn check(&self) -> Check {
        let done = self.done.clone();
        Check::new(format!("poststarthook/{}", self.name), move || {
            let finished = done.load(Ordering::Acquire);
            async move { if finished { Ok(()) } else { Err("not finished".to_owned()) } }
        })
    }

    /// The hook's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) async fn run(self, stage: &'static str, context: HookContext) -> Result<(), HookError> {
        let outcome = (self.run)(context).await;
        match outcome {
            Ok(()) => {
                self.done.store(true, Ordering::Release);
                tracing::debug!(name = self.name, stage, "hook finished");
                Ok(())
            }
            Err(error) => Err(HookError { stage, name: self.name, error }),
        }
    }
}

// === impl HookError ===

impl HookError {
    pub(super) fn crashed(error: tokio::task::JoinError) -> Self {
        Self { stage: "post-start", name: "(unknown)".to_owned(), error: error.into() }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").field("name", &self.name).finish_non_exhaustive()
    }
}
