//! TLS towards the shared etcd.

use std::{
    path::PathBuf,
    sync::{Arc, LazyLock},
};

use rustls::{ClientConfig, crypto::CryptoProvider};
use tokio_rustls::TlsConnector;

use super::{
    ClientTls, TlsError,
    files::{Contents, IdentityFiles},
    reload::{Loaded, Source},
};

/// Which files to use towards the shared etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTlsFiles {
    ca: PathBuf,
    identity: Option<IdentityFiles>,
}

/// The one crypto provider of the process, made once.
pub(super) static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));

// === impl ClientTlsFiles ===

impl ClientTlsFiles {
    /// Servers must have a certificate of `ca`.
    pub fn new(ca: PathBuf) -> Self {
        Self { ca, identity: None }
    }

    /// Shows the certificate in `cert`, whose private key is in `key`, to the server.
    #[must_use]
    pub fn with_identity(mut self, cert: PathBuf, key: PathBuf) -> Self {
        self.identity = Some(IdentityFiles { cert, key });
        self
    }
}

impl Source for ClientTlsFiles {
    type Config = ClientConfig;

    const NAME: &str = "upstream";

    fn load(&self) -> Result<Loaded<ClientConfig>, TlsError> {
        let mut contents = Contents::new();
        let anchors = contents.anchors(&self.ca)?;
        let builder = ClientConfig::builder_with_provider(PROVIDER.clone())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(anchors);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(files) => {
                let (chain, key) = contents.identity(files)?;
                builder.with_client_auth_cert(chain, key).map_err(|source| TlsError::Identity {
                    cert: files.cert.clone(),
                    key: files.key.clone(),
                    source,
                })?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(contents.loaded(config))
    }
}

// === impl ClientTls ===

impl ClientTls {
    /// For the next connection.
    pub(crate) fn connector(&self) -> TlsConnector {
        TlsConnector::from(self.current())
    }
}
