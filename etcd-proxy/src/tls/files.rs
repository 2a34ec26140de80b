//! Reading PEM, from files and from memory.

use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject},
};

use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use super::{TlsError, client::Pem, reload::Loaded};

/// A certificate chain and its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IdentityFiles {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
}

/// The contents of some files, read at one time, and a digest that tells whether they changed.
pub(super) struct Contents {
    digest: Context,
    expires: Option<i64>,
}

/// A certificate chain and its private key, read.
type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Tells one state of the files from another. Not secret: a digest.
pub(super) type Fingerprint = [u8; 32];

// === impl Contents ===

impl Contents {
    pub(super) fn new() -> Self {
        Self { digest: Context::new(&SHA256), expires: None }
    }

    /// `config` was made of these contents.
    pub(super) fn loaded<C>(self, config: C) -> Loaded<C> {
        let mut fingerprint = Fingerprint::default();
        fingerprint.copy_from_slice(self.digest.finish().as_ref());
        Loaded { config, fingerprint, expires: self.expires }
    }

    fn read(&mut self, path: &Path) -> Result<Vec<u8>, TlsError> {
        let bytes = std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })?;
        self.note(&bytes);
        Ok(bytes)
    }

    fn note(&mut self, bytes: &[u8]) {
        self.digest.update(&bytes.len().to_be_bytes());
        self.digest.update(bytes);
    }

    /// The trust anchors in `path`.
    pub(super) fn anchors(&mut self, path: &Path) -> Result<RootCertStore, TlsError> {
        anchors(&self.read(path)?, path)
    }

    /// The trust anchors in a text.
    pub(super) fn anchors_in(&mut self, pem: &Pem) -> Result<RootCertStore, TlsError> {
        self.note(pem.text());
        anchors(pem.text(), pem.name())
    }

    /// The chain and the key in `files`.
    pub(super) fn identity(&mut self, files: &IdentityFiles) -> Result<Identity, TlsError> {
        let (cert, key) = (self.read(&files.cert)?, self.read(&files.key)?);
        self.identity_of((&cert, &files.cert), (&key, &files.key))
    }

    /// The chain and the key in two texts.
    pub(super) fn identity_in(&mut self, cert: &Pem, key: &Pem) -> Result<Identity, TlsError> {
        self.note(cert.text());
        self.note(key.text());
        self.identity_of((cert.text(), cert.name()), (key.text(), key.name()))
    }

    fn identity_of(&mut self, cert: (&[u8], &Path), key: (&[u8], &Path)) -> Result<Identity, TlsError> {
        let chain = certificates(cert.0, cert.1)?;
        self.expires = chain.first().and_then(|leaf| {
            let (_, leaf) = X509Certificate::from_der(leaf).ok()?;
            Some(leaf.validity().not_after.timestamp())
        });
        let key = PrivateKeyDer::from_pem_slice(key.0).map_err(|source| TlsError::Pem {
            path: key.1.to_owned(),
            what: "private key",
            source,
        })?;
        Ok((chain, key))
    }
}

fn anchors(pem: &[u8], path: &Path) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem, path)? {
        store.add(certificate).map_err(|source| TlsError::Anchor { path: path.to_owned(), source })?;
    }
    Ok(store)
}

fn certificates(bytes: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    const WHAT: &str = "certificate";
    let certificates = CertificateDer::pem_slice_iter(bytes)
        .collect::<Result<Vec<_>, pem::Error>>()
        .map_err(|source| TlsError::Pem { path: path.to_owned(), what: WHAT, source })?;
    if certificates.is_empty() {
        return Err(TlsError::Empty { path: path.to_owned(), what: WHAT });
    }
    Ok(certificates)
}
