//! What a server is made of. The type says which parts are there: `complete` exists only for a configuration that has all.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Check, Lifecycle, Metrics, Server, VersionInfo, accept::Bounds, chain::Manners, inflight::InFlight, tls::ServingTls,
};
use crate::{authentication::Authenticator, authorization::Authorizer, loopback::Loopback};

/// A part that is not there yet.
#[derive(Debug)]
pub struct Missing;

/// The listener and its TLS.
pub struct Serving {
    /// The socket, bound already: a port that is taken is an error before anything else has begun.
    pub listener: TcpListener,
    /// The certificates.
    pub tls: Arc<ServingTls>,
    /// The bounds.
    pub bounds: Bounds,
}

/// Work that goes on in the background until it is told to stop.
pub type Background = Box<dyn FnOnce(CancellationToken) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// A configuration with some of its parts. `S` is [`Serving`], `N` the authenticator and `Z` the authorizer, or [`Missing`].
pub struct Config<S = Missing, N = Missing, Z = Missing> {
    serving: S,
    authenticator: N,
    authorizer: Z,
    rest: Rest,
}

/// Parts that have defaults.
struct Rest {
    title: String,
    manners: Manners,
    version: VersionInfo,
    metrics: Metrics,
    lifecycle: Lifecycle,
    loopback: Loopback,
    tasks: TaskTracker,
    checks: Vec<Check>,
    readiness: Vec<Check>,
    background: Vec<Background>,
    shutdown_delay: Duration,
    shutdown_timeout: Duration,
    livez_grace_period: Duration,
}

/// A configuration with all its parts.
pub struct CompletedConfig {
    pub(super) title: String,
    pub(super) serving: Serving,
    pub(super) authenticator: Arc<dyn Authenticator>,
    pub(super) authorizer: Arc<dyn Authorizer>,
    pub(super) manners: Manners,
    pub(super) version: VersionInfo,
    pub(super) metrics: Metrics,
    pub(super) lifecycle: Lifecycle,
    pub(super) loopback: Loopback,
    pub(super) tasks: TaskTracker,
    pub(super) checks: Vec<Check>,
    pub(super) readiness: Vec<Check>,
    pub(super) background: Vec<Background>,
    pub(super) shutdown_delay: Duration,
    pub(super) shutdown_timeout: Duration,
    pub(super) livez_grace_period: Duration,
}

// === impl Manners ===

impl Default for Manners {
    fn default() -> Self {
        Self {
            in_flight: InFlight::new(400, 200),
            request_timeout: Duration::from_secs(60),
            send_retry_after: false,
            goaway_chance: 0.0,
            strict_transport_security: None,
        }
    }
}

// === impl Config ===

impl Config {
    /// A configuration without its three main parts, with Kubernetes' defaults for the rest.
    pub fn new(version: VersionInfo) -> Self {
        Self {
            serving: Missing,
            authenticator: Missing,
            authorizer: Missing,
            rest: Rest {
                title: "Generic API Server".to_owned(),
                manners: Manners::default(),
                version,
                metrics: Metrics::default(),
                lifecycle: Lifecycle::default(),
                loopback: Loopback::default(),
                tasks: TaskTracker::new(),
                checks: Vec::new(),
                readiness: Vec::new(),
                background: Vec::new(),
                shutdown_delay: Duration::ZERO,
                shutdown_timeout: Duration::from_secs(60),
                livez_grace_period: Duration::ZERO,
            },
        }
    }
}

impl<N, Z> Config<Missing, N, Z> {
    /// Adds the listener.
    pub fn serving(self, serving: Serving) -> Config<Serving, N, Z> {
        Config { serving, authenticator: self.authenticator, authorizer: self.authorizer, rest: self.rest }
    }
}

impl<S, Z> Config<S, Missing, Z> {
    /// Adds what finds out who asks.
    pub fn authenticator(self, authenticator: Arc<dyn Authenticator>) -> Config<S, Arc<dyn Authenticator>, Z> {
        Config { serving: self.serving, authenticator, authorizer: self.authorizer, rest: self.rest }
    }
}

impl<S, N> Config<S, N, Missing> {
    /// Adds what decides who may do what.
    pub fn authorizer(self, authorizer: Arc<dyn Authorizer>) -> Config<S, N, Arc<dyn Authorizer>> {
        Config { serving: self.serving, authenticator: self.authenticator, authorizer, rest: self.rest }
    }
}

impl<S, N, Z> Config<S, N, Z> {
    /// Gives OpenAPI documents a title.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.rest.title = title.into();
        self
    }

    /// Replaces limits and habits.
    #[must_use]
    pub fn manners(mut self, manners: Manners) -> Self {
        self.rest.shutdown_timeout = manners.request_timeout;
        self.rest.manners = manners;
        self
    }

    /// Keeps serving for this time after being asked to stop.
    #[must_use]
    pub fn shutdown_delay(mut self, delay: Duration) -> Self {
        self.rest.shutdown_delay = delay;
        self
    }

    /// For how long `/livez` passes although post-start hooks are not done.
    #[must_use]
    pub fn livez_grace_period(mut self, period: Duration) -> Self {
        self.rest.livez_grace_period = period;
        self
    }

    /// Adds a check to all health paths.
    #[must_use]
    pub fn check(mut self, check: Check) -> Self {
        self.rest.checks.push(check);
        self
    }

    /// Adds a check to `/readyz`.
    #[must_use]
    pub fn readiness_check(mut self, check: Check) -> Self {
        self.rest.readiness.push(check);
        self
    }

    /// Does something in the background while the server runs.
    #[must_use]
    pub fn background<F>(mut self, work: impl FnOnce(CancellationToken) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.rest.background.push(Box::new(|stop| Box::pin(work(stop))));
        self
    }

    /// The client that reaches this server from within, for what has to be made before the server.
    pub fn loopback(&self) -> &Loopback {
        &self.rest.loopback
    }

    /// Where what does not run within its request is tracked, for
    /// [`Environment::tasks`](crate::registry::Environment::tasks). Before the server ends, it waits for these tasks.
    pub fn tasks(&self) -> &TaskTracker {
        &self.rest.tasks
    }

    /// The signals of the server's life.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.rest.lifecycle
    }

    /// The metrics that will be served.
    pub fn metrics(&self) -> &Metrics {
        &self.rest.metrics
    }
}

impl<N, Z> Config<Serving, N, Z> {
    /// Replaces the bounds of the listener.
    #[must_use]
    pub fn bounds(mut self, bounds: Bounds) -> Self {
        self.serving.bounds = bounds;
        self
    }
}

impl Config<Serving, Arc<dyn Authenticator>, Arc<dyn Authorizer>> {
    /// What the server asks about permissions, for handlers that have questions of their own.
    pub fn authorizer_handle(&self) -> Arc<dyn Authorizer> {
        self.authorizer.clone()
    }

    /// Nothing is missing any more.
    pub fn complete(self) -> CompletedConfig {
        let Rest {
            title,
            manners,
            version,
            metrics,
            lifecycle,
            loopback,
            tasks,
            checks,
            readiness,
            background,
            shutdown_delay,
            shutdown_timeout,
            livez_grace_period,
        } = self.rest;
        CompletedConfig {
            title,
            serving: self.serving,
            authenticator: self.authenticator,
            authorizer: self.authorizer,
            manners,
            version,
            metrics,
            lifecycle,
            loopback,
            tasks,
            checks,
            readiness,
            background,
            shutdown_delay,
            shutdown_timeout,
            livez_grace_period,
        }
    }
}

// === impl CompletedConfig ===

impl CompletedConfig {
    /// A server to install groups in.
    pub fn server(self) -> Server {
        Server::new(self)
    }
}
