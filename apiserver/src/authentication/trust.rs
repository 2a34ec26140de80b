//! The CAs that are believed, replaceable while the server runs.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::ArcSwapOption;
use rustls::{
    DistinguishedName, RootCertStore,
    crypto::CryptoProvider,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime, pem::PemObject as _};
use tokio::sync::watch;

use super::request_header::RequestHeaderNames;

/// Some CA certificates, and what verifies client certificates against them.
pub struct CaBundle {
    /// Differs between any two bundles of a process, so that a verdict can be remembered with the bundle it is of.
    id: u64,
    certificates: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// Why CA certificates are of no use.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The text is no PEM.
    #[error("the CA bundle is not valid PEM: {0}")]
    Pem(rustls_pki_types::pem::Error),
    /// There is no certificate in it.
    #[error("the CA bundle holds no certificate")]
    Empty,
    /// A certificate cannot be a CA's.
    #[error("a certificate of the CA bundle cannot be used: {0}")]
    Certificate(rustls::Error),
    /// The verifier could not be made.
    #[error("the CA bundle cannot be used: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// When to believe a front proxy, and where it tells of users.
pub struct RequestHeaderTrust {
    /// The CA of the front proxies' certificates.
    pub ca: CaBundle,
    /// The common names that count; empty: all.
    pub allowed_names: Vec<String>,
    /// The headers.
    pub names: RequestHeaderNames,
}

/// What is believed now. Whoever replaces a CA here need do nothing else.
pub struct Trust {
    client: ArcSwapOption<CaBundle>,
    request_header: ArcSwapOption<RequestHeaderTrust>,
    changes: watch::Sender<u64>,
}

// === impl CaBundle ===

impl CaBundle {
    /// Reads certificates from PEM text.
    ///
    /// # Errors
    /// When there is none, or one is unusable.
    pub fn from_pem(pem: &[u8]) -> Result<Self, CaError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(CaError::Pem)?;
        if certificates.is_empty() {
            return Err(CaError::Empty);
        }
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots.add(certificate.clone()).map_err(CaError::Certificate)?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build()?;
        Ok(Self { id: NEXT.fetch_add(1, Ordering::Relaxed), certificates, verifier })
    }

    /// A number that no other bundle of this process has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Whether other holds the same certificates.
    pub fn same(&self, other: &Self) -> bool {
        self.certificates == other.certificates
    }

    /// Verifies a chain for client authentication, at a time.
    pub(crate) fn verify(&self, chain: &[CertificateDer<'static>], now: UnixTime) -> Result<(), rustls::Error> {
        let (end_entity, intermediates) = chain.split_first().ok_or(rustls::Error::NoCertificatesPresented)?;
        self.verifier.verify_client_cert(end_entity, intermediates, now).map(|_| ())
    }

    /// The names that tell a client which of its certificates to send.
    pub(crate) fn subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }
}

// === impl Trust ===

impl Default for Trust {
    fn default() -> Self {
        Self { client: ArcSwapOption::empty(), request_header: ArcSwapOption::empty(), changes: watch::Sender::new(0) }
    }
}

impl Trust {
    /// The CA of client certificates.
    pub fn client_ca(&self) -> Option<Arc<CaBundle>> {
        self.client.load_full()
    }

    /// When to believe a front proxy; `None`: never.
    pub fn request_header(&self) -> Option<Arc<RequestHeaderTrust>> {
        self.request_header.load_full()
    }

    /// Believes client certificates of this CA from now on, and of no other.
    pub fn set_client_ca(&self, ca: CaBundle) {
        if self.client.load().as_deref().is_none_or(|old| !old.same(&ca)) {
            self.client.store(Some(Arc::new(ca)));
            self.changes.send_modify(|n| *n = n.wrapping_add(1));
        }
    }

    /// Believes these front proxies from now on, and no others.
    pub fn set_request_header(&self, trust: RequestHeaderTrust) {
        let unchanged = self.request_header.load().as_deref().is_some_and(|old| {
            old.ca.same(&trust.ca) && old.allowed_names == trust.allowed_names && old.names == trust.names
        });
        if !unchanged {
            self.request_header.store(Some(Arc::new(trust)));
            self.changes.send_modify(|n| *n = n.wrapping_add(1));
        }
    }

    /// Tells of replacements.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The subjects of all CAs, for the hint in the TLS handshake.
    pub(crate) fn subjects(&self) -> Vec<DistinguishedName> {
        let mut subjects = Vec::new();
        if let Some(ca) = self.client_ca() {
            subjects.extend_from_slice(ca.subjects());
        }
        if let Some(trust) = self.request_header() {
            subjects.extend_from_slice(trust.ca.subjects());
        }
        subjects
    }
}

/// The one provider of cryptography in this process.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
