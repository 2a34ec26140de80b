//! What the controller listens on: the admission webhook by HTTPS, probes and metrics by HTTP.
//!
//! Every replica serves both, whether it leads or not. Connections are those of `etcd_proxy::server`: bounded in number,
//! handshakes bounded in time, HTTP/1.1 and HTTP/2, and an orderly end.

mod certificate;
mod material;
mod metrics;
mod probes;
mod webhook;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use etcd_proxy::{
    config::{ConnectionSettings, ListenAddress, ListenUrl},
    drain::Shutdown,
    server::{BindError, ConnectionMetrics, Handler, Listener, Server},
    tls::ServerTls,
};
use tokio_util::task::TaskTracker;

pub use self::{
    certificate::{ServingTls, WebhookCertificate, WebhookIdentity},
    metrics::{DecisionLabel, WebhookMetrics},
    probes::{Pending, Probes, Readiness},
    webhook::{Denial, Review, Webhook},
};

/// Most connections at a time on each listener. An API server keeps a few. Where there is no room for a new one it takes the place of
/// another: whoever can reach the port could keep the API servers out otherwise, and with them every EtcdProxy.
const CONNECTIONS: usize = 512;
/// Most connections at a time of one address.
const CONNECTIONS_PER_CLIENT: usize = 16;
/// Most requests at a time on one HTTP/2 connection.
const STREAMS: u32 = 100;
/// For a TLS handshake, and again for the head of a request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that has gone is noticed after both.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// The bound listeners.
#[derive(Debug)]
pub struct Listeners {
    probes: Listener,
    webhook: Option<Listener>,
}

/// How listeners are served, and where their tasks run.
#[derive(Clone, Debug)]
pub struct Serving {
    shutdown: Shutdown,
    listeners: TaskTracker,
    connections: TaskTracker,
    metrics: ConnectionMetrics,
}

// === impl Listeners ===

impl Listeners {
    /// Binds the addresses, the webhook's only if there is one.
    ///
    /// # Errors
    /// Names the address that cannot be bound.
    pub async fn bind(metrics: SocketAddr, webhook: Option<SocketAddr>) -> Result<Self, BindError> {
        let probes = bind(metrics, false).await?;
        let webhook = match webhook {
            Some(address) => Some(bind(address, true).await?),
            None => None,
        };
        Ok(Self { probes, webhook })
    }
}

async fn bind(address: SocketAddr, tls: bool) -> Result<Listener, BindError> {
    // There is no unix socket whose permissions would matter.
    Listener::bind(ListenUrl { address: ListenAddress::Tcp(address), tls }, 0).await
}

// === impl Serving ===

impl Serving {
    /// Accept loops run among `listeners` and connections among `connections`, until `shutdown`.
    pub fn new(
        shutdown: Shutdown,
        listeners: TaskTracker,
        connections: TaskTracker,
        metrics: ConnectionMetrics,
    ) -> Self {
        Self { shutdown, listeners, connections, metrics }
    }

    /// Answers probes at once, and the webhook's requests as soon as its certificate is there: connections wait until then,
    /// and `/readyz` says so.
    pub fn serve(
        &self,
        listeners: Listeners,
        probes: Probes,
        webhook: impl Handler + Sync,
        certificate: Option<WebhookCertificate>,
    ) {
        if let (Some(listener), Some(certificate)) = (listeners.webhook, certificate) {
            let pending = probes.readiness().wait_for("webhook-certificate");
            let serving = self.clone();
            self.listeners.spawn(async move {
                let closing = serving.shutdown.closing();
                if let Some(Some(tls)) = closing.run_until_cancelled(certificate.loaded()).await {
                    serving.server().serve(listener, Some(tls), webhook);
                    pending.done();
                }
            });
        }
        self.server().serve(listeners.probes, None::<Arc<ServerTls>>, probes);
    }

    /// Each listener has places of its own: requests to the webhook do not keep probes out.
    fn server(&self) -> Server {
        let settings = ConnectionSettings {
            max_connections: CONNECTIONS,
            max_connections_per_client: CONNECTIONS_PER_CLIENT,
            max_concurrent_streams: STREAMS,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            keepalive_interval: Some(KEEPALIVE_INTERVAL),
            keepalive_timeout: KEEPALIVE_TIMEOUT,
            unix_socket_mode: 0,
        };
        let (listeners, connections) = (self.listeners.clone(), self.connections.clone());
        Server::new(settings, listeners, connections, self.shutdown.clone(), self.metrics.clone()).making_room()
    }
}

#[cfg(test)]
mod tests;
