//! The signals of a server's life, in the order in which they come (k8s.io/apiserver `pkg/server/lifecycle_signals.go`).

use tokio_util::sync::CancellationToken;

/// Signals that are given once and stay given. Clones are the same signals.
#[derive(Clone, Debug, Default)]
pub struct Lifecycle {
    /// Somebody asked the server to stop: `/readyz` fails from now on, everything else goes on.
    pub shutdown_initiated: CancellationToken,
    /// The delay for load balancers is over and pre-shutdown hooks have run: no new connections, and watches end.
    pub not_accepting: CancellationToken,
    /// Every request has been answered, or is given up: background tasks end.
    pub drained: CancellationToken,
}
