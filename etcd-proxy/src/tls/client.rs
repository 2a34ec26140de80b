//! TLS towards the shared etcd.

use std::{
    path::PathBuf,
    sync::{Arc, LazyLock},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::{ClientConfig, crypto::CryptoProvider};
use tokio_rustls::TlsConnector;

use super::{
    Reload, TlsError,
    files::{Contents, Fingerprint, IdentityFiles},
};

/// Which files to use towards the shared etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTlsFiles {
    ca: PathBuf,
    identity: Option<IdentityFiles>,
}

/// TLS towards the shared etcd; new connections use the files' latest valid contents.
#[derive(Debug)]
pub struct ClientTls {
    files: ClientTlsFiles,
    current: ArcSwap<ClientConfig>,
    fingerprint: Mutex<Fingerprint>,
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

    fn load(&self) -> Result<(ClientConfig, Fingerprint), TlsError> {
        let mut contents = Contents::new();
        let anchors = contents.anchors(&self.ca)?;
        let builder = ClientConfig::builder_with_provider(PROVIDER.clone())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(anchors);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(files) => {
                let (chain, key) = contents.identity(files)?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|source| TlsError::Identity {
                        cert: files.cert.clone(),
                        key: files.key.clone(),
                        source,
                    })?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok((config, contents.fingerprint()))
    }
}

// === impl ClientTls ===

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// Names the file that is missing or unusable.
    pub fn load(files: ClientTlsFiles) -> Result<Self, TlsError> {
        let (config, fingerprint) = files.load()?;
        Ok(Self {
            files,
            current: ArcSwap::from_pointee(config),
            fingerprint: Mutex::new(fingerprint),
        })
    }

    /// For the next connection.
    pub(crate) fn connector(&self) -> TlsConnector {
        TlsConnector::from(self.current.load_full())
    }
}

impl Reload for ClientTls {
    fn reload(&self) -> Result<bool, TlsError> {
        let (config, fingerprint) = self.files.load()?;
        let mut known = self.fingerprint.lock();
        if *known == fingerprint {
            return Ok(false);
        }
        *known = fingerprint;
        self.current.store(Arc::new(config));
        Ok(true)
    }

    fn name(&self) -> &'static str {
        "upstream"
    }
}
