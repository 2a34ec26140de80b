//! One connection from its handshake to its end.

use std::{error::Error, pin::pin, sync::Arc, time::Duration};

use hyper_util::{rt::TokioIo, server::conn::auto};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::{
    ConnectionMetrics, Handler, HyperService, Peer, Standing, client_stream::ClientStream, listener::Stream,
    metrics::Refused,
};
use crate::{cork::Corked, drain::Shutdown, grpc::Calls, tls::NotAllowed};

/// What a connection is served with.
pub(super) struct Connection {
    pub(super) http: auto::Builder<Calls>,
    pub(super) handshake_timeout: Duration,
    pub(super) shutdown: Shutdown,
    pub(super) metrics: ConnectionMetrics,
    pub(super) peer: Peer,
    /// Where the server makes room for new connections.
    pub(super) standing: Option<Standing>,
}

impl Connection {
    /// Serves until the client leaves, misbehaves, or the process ends.
    pub(super) async fn serve(self, stream: Stream, tls: Option<Arc<ServerConfig>>, handler: impl Handler) {
        let _open = self.metrics.opened();
        let Some(config) = tls else {
            return self.serve_http(stream, handler).await;
        };
        let handshake = timeout(self.handshake_timeout, TlsAcceptor::from(config).accept(stream));
        let peer = self.peer;
        match self.shutdown.closing().run_until_cancelled(handshake).await {
            None => {}
            Some(Ok(Ok(stream))) => self.serve_http(stream, handler).await,
            Some(Ok(Err(error))) => {
                self.metrics.refused(Refused::handshake);
                let error: &dyn Error = match NotAllowed::of(&error) {
                    Some(refused) => refused,
                    None => &error,
                };
                tracing::info!(%peer, error, "TLS handshake failed");
            }
            Some(Err(_)) => {
                self.metrics.refused(Refused::timeout);
                tracing::info!(%peer, "TLS handshake not finished in time");
            }
        }
    }

    async fn serve_http(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, handler: impl Handler) {
        let peer = self.peer;
        let (stream, arrived, back) = ClientStream::new(stream);
        let service = HyperService { handler, peer, standing: self.standing.clone() };
        let mut connection = Box::pin(self.http.serve_connection(TokioIo::new(Corked::new(stream)), service));
        let mut patience = pin!(sleep(self.handshake_timeout));
        let mut patient = true;
        let mut closing = pin!(self.shutdown.closing().cancelled());
        let mut open = true;
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%peer, error = &*error, "connection ended");
                        return;
                    }
                    break;
                }
                () = &mut patience, if patient => {
                    patient = false;
                    if !arrived.yet() {
                        self.metrics.refused(Refused::timeout);
                        tracing::info!(%peer, "connection closed: no request within the handshake timeout");
                        return;
                    }
                }
                () = &mut closing, if open => {
                    open = false;
                    connection.as_mut().graceful_shutdown();
                }
                () = self.shutdown.aborting().cancelled(), if !open => return,
            }
        }
        drop(connection);
        // `None` if everything is being cut off.
        let _cut = self.shutdown.aborting().run_until_cancelled(back.linger()).await;
    }
}
