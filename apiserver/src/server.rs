//! The server: HTTPS, the chain of filters, health, metrics, and an orderly start and end.
//!
//! ```text
//! RecommendedOptions ──config()──▶ Config<…> ──complete()──▶ CompletedConfig ──server()──▶ Server ──prepare()──▶ PreparedServer ──run()
//! ```
//!
//! A [`Config`] says by its type which parts it has; only one that has them all can be completed.

pub mod accept;
mod activity;
mod body;
pub mod certificates;
pub mod chain;
pub mod config;
mod documents;
pub mod health;
pub mod hooks;
mod impersonation;
pub mod inflight;
pub mod lifecycle;
pub mod metrics;
pub mod respond;
pub mod router;
mod run;
pub mod tls;
pub mod version;

use std::{future::Future, sync::Arc};

pub use self::{
    config::{CompletedConfig, Config},
    documents::PrepareError,
    health::Check,
    hooks::{Hook, HookContext, HookResult},
    lifecycle::Lifecycle,
    metrics::Metrics,
    router::{InstalledTwice, PathHandler},
    run::{RunError, shutdown_signal},
    version::VersionInfo,
};
use self::{health::HealthChecks, router::Router};
use crate::{authorization::Authorizer, endpoint::ApiGroup, loopback::Loopback};

/// A server that is being put together.
pub struct Server {
    config: CompletedConfig,
    router: Router,
    groups: Vec<ApiGroup>,
    checks: Vec<Check>,
    readiness: Vec<Check>,
    post_start: Vec<Hook>,
    pre_shutdown: Vec<Hook>,
}

/// A server with all its paths, ready to run.
pub struct PreparedServer {
    config: CompletedConfig,
    handler: Arc<chain::Handler>,
    post_start: Vec<Hook>,
    pre_shutdown: Vec<Hook>,
}

// === impl Server ===

impl Server {
    pub(crate) fn new(config: CompletedConfig) -> Self {
        let (checks, readiness) = (config.checks.clone(), config.readiness.clone());
        Self {
            config,
            router: Router::default(),
            groups: Vec::new(),
            checks,
            readiness,
            post_start: Vec::new(),
            pre_shutdown: Vec::new(),
        }
    }

    /// Serves an API group.
    ///
    /// # Errors
    /// When it is served already.
    pub fn install(&mut self, group: ApiGroup) -> Result<(), InstalledTwice> {
        self.router.install(&group)?;
        self.groups.push(group);
        Ok(())
    }

    /// Serves a path; one that ends in `/` with everything below it.
    pub fn handle(&mut self, path: &str, handler: Arc<dyn PathHandler>) {
        self.router.handle(path, handler);
    }

    /// The groups that are served.
    pub fn groups(&self) -> &[ApiGroup] {
        &self.groups
    }

    /// Adds a check to `/healthz`, `/livez` and `/readyz`.
    pub fn add_check(&mut self, check: Check) {
        self.checks.push(check);
    }

    /// Adds a check to `/readyz` alone.
    pub fn add_readiness_check(&mut self, check: Check) {
        self.readiness.push(check);
    }

    /// Does something once the server serves. The health checks pass only when it is done; when it fails, the server ends.
    pub fn add_post_start_hook<F>(&mut self, name: &str, run: impl FnOnce(HookContext) -> F + Send + 'static)
    where
        F: Future<Output = HookResult> + Send + 'static,
    {
        self.post_start.push(Hook::new(name, run));
    }

    /// Does something when the server has been asked to stop, while it still serves.
    pub fn add_pre_shutdown_hook<F>(&mut self, name: &str, run: impl FnOnce(HookContext) -> F + Send + 'static)
    where
        F: Future<Output = HookResult> + Send + 'static,
    {
        self.pre_shutdown.push(Hook::new(name, run));
    }

    /// A client for this server, as a user who may do everything. Requests wait for nothing: before the server is
    /// [prepared](Self::prepare) they fail with 503.
    pub fn loopback(&self) -> &Loopback {
        &self.config.loopback
    }

    /// What the server asks about permissions.
    pub fn authorizer(&self) -> Arc<dyn Authorizer> {
        self.config.authorizer.clone()
    }

    /// The signals of the server's life.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.config.lifecycle
    }

    /// The server's metrics, to add some.
    pub fn metrics(&self) -> &Metrics {
        &self.config.metrics
    }

    /// Closes the list of paths, and writes the documents about them. From here on the loopback client works.
    ///
    /// # Errors
    /// When the resources cannot be described.
    pub fn prepare(mut self) -> Result<PreparedServer, PrepareError> {
        self.add_documents()?;
        let hooks = self.post_start.iter().map(Hook::check).collect::<Vec<_>>();
        let basic = [Check::ping(), Check::log()].into_iter().chain(self.checks);
        let common: Vec<Check> = basic.chain(hooks.iter().cloned()).collect();
        let shutdown = self.config.lifecycle.shutdown_initiated.clone();
        let shutting_down = Check::new("shutdown", move || {
            let going = shutdown.is_cancelled();
            async move { if going { Err("process is shutting down".to_owned()) } else { Ok(()) } }
        });
        let grace = self.config.livez_grace_period;
        let live =
            common.iter().map(|check| check.clone().passing_for(grace, hooks.iter().any(|h| h.name() == check.name())));
        self.router.health("livez", HealthChecks::new("livez", live.collect()));
        let ready = common.iter().cloned().chain(self.readiness).chain([shutting_down]);
        self.router.health("readyz", HealthChecks::new("readyz", ready.collect()));
        self.router.health("healthz", HealthChecks::new("healthz", common));
        let handler = Arc::new(chain::Handler {
            router: self.router,
            authenticator: self.config.authenticator.clone(),
            authorizer: self.config.authorizer.clone(),
            manners: self.config.manners.clone(),
            version: self.config.version.clone(),
            metrics: self.config.metrics.clone(),
            lifecycle: self.config.lifecycle.clone(),
            requests: Default::default(),
            watches: Default::default(),
        });
        self.config.loopback.connect(&handler);
        Ok(PreparedServer {
            config: self.config,
            handler,
            post_start: self.post_start,
            pre_shutdown: self.pre_shutdown,
        })
    }
}

#[cfg(test)]
mod tests;
