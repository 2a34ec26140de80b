//! Reading PEM files.

use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject},
};

use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use super::{TlsError, reload::Loaded};

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
        self.digest.update(&bytes.len().to_be_bytes());
        self.digest.update(&bytes);
        Ok(bytes)
    }

    /// The trust anchors in `path`.
    pub(super) fn anchors(&mut self, path: &Path) -> Result<RootCertStore, TlsError> {
        let mut store = RootCertStore::empty();
        for certificate in certificates(&self.read(path)?, path)? {
            store.add(certificate).map_err(|source| TlsError::Anchor { path: path.to_owned(), source })?;
        }
        Ok(store)
    }

    /// The chain and the key in `files`.
    pub(super) fn identity(
        &mut self,
        files: &IdentityFiles,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let chain = certificates(&self.read(&files.cert)?, &files.cert)?;
        self.expires = chain.first().and_then(|leaf| {
            let (_, leaf) = X509Certificate::from_der(leaf).ok()?;
            Some(leaf.validity().not_after.timestamp())
        });
        let key = PrivateKeyDer::from_pem_slice(&self.read(&files.key)?).map_err(|source| TlsError::Pem {
            path: files.key.clone(),
            what: "private key",
            source,
        })?;
        Ok((chain, key))
    }
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
