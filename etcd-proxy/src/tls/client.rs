//! TLS towards the shared etcd.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use bytes::Bytes;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer},
};
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

/// A PEM text in memory. Its contents are never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    name: PathBuf,
    text: Bytes,
}

/// Certificates to use towards the shared etcd that somebody else has read, from a Secret, say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTlsPem {
    ca: Pem,
    identity: Option<(Pem, Pem)>,
}

/// Where the certificates to use towards the shared etcd come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientTlsSource {
    /// Files, which may change.
    Files(ClientTlsFiles),
    /// Memory.
    Pem(ClientTlsPem),
}

/// What one end of a connection shows: certificate chain, private key, and what both are called in messages.
struct Shown {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    names: IdentityFiles,
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

// === impl Pem ===

impl Pem {
    /// `text`, which messages call `name`: `ca.crt of Secret ns/name`, say.
    pub fn new(name: impl Into<PathBuf>, text: impl Into<Bytes>) -> Self {
        Self { name: name.into(), text: text.into() }
    }

    pub(super) fn name(&self) -> &Path {
        &self.name
    }

    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pem").field("name", &self.name).finish_non_exhaustive()
    }
}

// === impl ClientTlsPem ===

impl ClientTlsPem {
    /// Servers must have a certificate of `ca`.
    pub fn new(ca: Pem) -> Self {
        Self { ca, identity: None }
    }

    /// Shows the certificate `cert`, whose private key is `key`, to the server.
    #[must_use]
    pub fn with_identity(mut self, cert: Pem, key: Pem) -> Self {
        self.identity = Some((cert, key));
        self
    }
}

// === impl ClientTlsSource ===

impl From<ClientTlsFiles> for ClientTlsSource {
    fn from(files: ClientTlsFiles) -> Self {
        Self::Files(files)
    }
}

impl From<ClientTlsPem> for ClientTlsSource {
    fn from(pem: ClientTlsPem) -> Self {
        Self::Pem(pem)
    }
}

impl Source for ClientTlsSource {
    type Config = ClientConfig;

    const NAME: &str = "upstream";

    fn load(&self) -> Result<Loaded<ClientConfig>, TlsError> {
        let mut contents = Contents::new();
        let (anchors, shown) = match self {
            Self::Files(files) => (contents.anchors(&files.ca)?, shown_files(&mut contents, files)?),
            Self::Pem(pem) => (contents.anchors_in(&pem.ca)?, shown_pem(&mut contents, pem)?),
        };
        Ok(contents.loaded(config(anchors, shown)?))
    }
}

fn shown_files(contents: &mut Contents, files: &ClientTlsFiles) -> Result<Option<Shown>, TlsError> {
    let Some(names) = &files.identity else { return Ok(None) };
    let (chain, key) = contents.identity(names)?;
    Ok(Some(Shown { chain, key, names: names.clone() }))
}

fn shown_pem(contents: &mut Contents, pem: &ClientTlsPem) -> Result<Option<Shown>, TlsError> {
    let Some((cert, key)) = &pem.identity else { return Ok(None) };
    let names = IdentityFiles { cert: cert.name.clone(), key: key.name.clone() };
    let (chain, key) = contents.identity_in(cert, key)?;
    Ok(Some(Shown { chain, key, names }))
}

fn config(anchors: RootCertStore, shown: Option<Shown>) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(PROVIDER.clone())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(anchors);
    let mut config = match shown {
        None => builder.with_no_client_auth(),
        Some(Shown { chain, key, names: IdentityFiles { cert, key: key_name } }) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|source| TlsError::Identity { cert, key: key_name, source })?,
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

// === impl ClientTls ===

impl ClientTls {
    /// For the next connection.
    pub(crate) fn connector(&self) -> TlsConnector {
        TlsConnector::from(self.current())
    }
}
