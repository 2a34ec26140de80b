//! `/healthz`, `/livez` and `/readyz` with their named checks (k8s.io/apiserver `pkg/server/healthz/healthz.go`).

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    future::Future,
    io::Write as _,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use http::{Response, StatusCode};
use parking_lot::Mutex;

use super::respond;
use crate::{endpoint::ResponseBody, query, quote::quote};

type CheckFuture = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// How long logging may be stuck before `log` fails.
const LOG_PATIENCE: Duration = Duration::from_secs(120);

/// A named check. Clones are the same check.
#[derive(Clone)]
pub struct Check {
    name: Arc<str>,
    check: Arc<dyn Fn() -> CheckFuture + Send + Sync>,
}

/// The checks behind one path.
pub struct HealthChecks {
    /// `healthz`, `livez` or `readyz`.
    name: &'static str,
    checks: Vec<Check>,
}

// === impl Check ===

impl Check {
    /// Names a check, which says what is wrong if something is.
    pub fn new<F>(name: impl Into<Arc<str>>, check: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        Self { name: name.into(), check: Arc::new(move || Box::pin(check())) }
    }

    /// `ping`: passes whenever there is an answer at all.
    pub fn ping() -> Self {
        Self::new("ping", || async { Ok(()) })
    }

    /// `log`: fails when the standard streams have not taken anything for a while, because a full pipe blocks them.
    pub fn log() -> Self {
        let last = Arc::new(Mutex::new(Instant::now()));
        let writer = OnceLock::new();
        Self::new("log", move || {
            let flushed = last.clone();
            writer.get_or_init(|| {
                tokio::spawn(async move {
                    loop {
                        let flush = tokio::task::spawn_blocking(|| {
                            let streams = std::io::stdout().lock().flush();
                            streams.and(std::io::stderr().lock().flush())
                        });
                        if matches!(flush.await, Ok(Ok(()))) {
                            *flushed.lock() = Instant::now();
                        }
                        tokio::time::sleep(LOG_PATIENCE / 2).await;
                    }
                });
            });
            let age = last.lock().elapsed();
            async move { if age < LOG_PATIENCE { Ok(()) } else { Err("logging blocked".to_owned()) } }
        })
    }

    /// With `lenient`, the check passes in any case for this time from now on.
    pub(super) fn passing_for(self, grace: Duration, lenient: bool) -> Self {
        if grace.is_zero() || !lenient {
            return self;
        }
        let (start, inner) = (Instant::now(), self.clone());
        Self::new(self.name, move || {
            let (inner, early) = (inner.clone(), start.elapsed() < grace);
            async move { if early { Ok(()) } else { inner.run().await } }
        })
    }

    /// The check's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    async fn run(&self) -> Result<(), String> {
        (self.check)().await
    }
}

// === impl HealthChecks ===

impl HealthChecks {
    /// The checks of `/<name>`, in this order.
    pub fn new(name: &'static str, checks: Vec<Check>) -> Self {
        Self { name, checks }
    }

    /// The paths that are answered, for the index.
    pub fn paths(&self) -> impl Iterator<Item = String> {
        let one = |check: &Check| format!("/{}/{}", self.name, check.name);
        std::iter::once(format!("/{}", self.name)).chain(self.checks.iter().map(one))
    }

    /// Answers a path below this one, `check` being what follows `/<name>/`; `None` for a check that does not exist.
    pub async fn serve_one(&self, check: &str) -> Option<Response<ResponseBody>> {
        let check = self.checks.iter().find(|c| &*c.name == check)?;
        Some(match check.run().await {
            Ok(()) => respond::plain("ok".to_owned()),
            Err(error) => {
                respond::plain_error(StatusCode::INTERNAL_SERVER_ERROR, &format!("internal server error: {error}"))
            }
        })
    }

    /// Answers `/<name>` itself.
    pub async fn serve_all(&self, query: &str) -> Response<ResponseBody> {
        let excluded: BTreeSet<String> = query::all(query, "exclude").into_iter().map(Into::into).collect();
        let mut unknown = excluded.clone();
        let (mut report, mut reasons) = (String::new(), Vec::new());
        for check in &self.checks {
            let name = check.name();
            // Writing to a String cannot fail.
            if excluded.contains(name) {
                unknown.remove(name);
                let _ = writeln!(report, "[+]{name} excluded: ok");
            } else if let Err(reason) = check.run().await {
                let _ = writeln!(report, "[-]{name} failed: reason withheld");
                reasons.push(format!("{name}: {reason}"));
            } else {
                let _ = writeln!(report, "[+]{name} ok");
            }
        }
        if !unknown.is_empty() {
            let names: Vec<String> = unknown.iter().map(|name| quote(name)).collect();
            let _ = writeln!(report, "warn: some health checks cannot be excluded: no matches for {}", names.join(","));
        }
        if !reasons.is_empty() {
            tracing::info!(check = self.name, failed = reasons.join("; "), "health check failed");
            return respond::plain_error(
                StatusCode::INTERNAL_SERVER_ERROR,
                &format!("{report}{} check failed", self.name),
            );
        }
        let verbose = query::first(query, "verbose").is_some();
        respond::plain(if verbose { format!("{report}{} check passed\n", self.name) } else { "ok".to_owned() })
    }
}

#[cfg(test)]
mod tests;
