//! Certificates for both sides, read from files and read again when the files change; towards the shared etcd also from
//! memory.
//!
//! A new configuration is built completely before it takes the place of the old one, and only new connections see it: a
//! rotation drops nobody. Files that do not fit together, half-written or half-exchanged, are left for another look.

mod client;
mod files;
mod reload;
mod server;
mod suites;

use std::{io, path::PathBuf, sync::Arc};

use rustls::{ServerConfig, pki_types::pem};

pub use self::{
    client::{ClientTlsFiles, ClientTlsPem, ClientTlsSource, Pem},
    reload::{CertificateMetrics, Reload, Reloadable, keep_fresh},
    server::{AllowedClients, NotAllowed, ServerTlsFiles, TlsVersions},
    suites::{CipherSuites, UnknownSuite},
};

/// TLS towards the shared etcd; new connections use the files' latest valid contents.
pub type ClientTls = Reloadable<ClientTlsSource>;

/// TLS towards clients; new connections use the files' latest valid contents.
pub type ServerTls = Reloadable<ServerTlsFiles>;

/// Where a listener finds its TLS configuration. It is asked for each connection, so that a new certificate needs no new
/// listener and no connection ends because of it.
pub trait ServerTlsSource: Send + Sync + 'static {
    /// The configuration of the next connection.
    fn server_config(&self) -> Arc<ServerConfig>;
}

impl ServerTlsSource for ServerTls {
    fn server_config(&self) -> Arc<ServerConfig> {
        self.current()
    }
}

/// Certificates that cannot be used. Where they were not read from files ([`ClientTlsPem`]), a `path` is the name that they
/// were given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file is not PEM of the expected kind.
    #[error("{path} holds no usable {what}: {source}", path = path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What was expected in it.
        what: &'static str,
        /// What the parser says.
        source: pem::Error,
    },
    /// A file has no entry of the expected kind.
    #[error("{path} holds no {what}", path = path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What was expected in it.
        what: &'static str,
    },
    /// A CA certificate that cannot serve as a trust anchor.
    #[error("{path} holds a certificate that cannot be a trust anchor: {source}", path = path.display())]
    Anchor {
        /// The file.
        path: PathBuf,
        /// What rustls says.
        source: rustls::Error,
    },
    /// Certificate and key do not belong together, or are of an unknown kind.
    #[error("certificate {cert} and key {key} cannot be used together: {source}", cert = cert.display(), key = key.display())]
    Identity {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What rustls says.
        source: rustls::Error,
    },
    /// Client certificates cannot be verified with this CA.
    #[error("client CA {path}: {source}", path = path.display())]
    Verifier {
        /// The CA's file.
        path: PathBuf,
        /// What rustls says.
        source: rustls::server::VerifierBuilderError,
    },
    /// The library refuses the combination of versions.
    #[error("TLS configuration: {0}")]
    Config(#[from] rustls::Error),
}
