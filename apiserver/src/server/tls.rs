//! TLS of the listener. The whole configuration is replaced when a certificate or a CA changes; connections that are open
//! keep theirs.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
    SupportedProtocolVersion,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key},
    server::danger::{ClientCertVerified, ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
};
use rustls_pki_types::{CertificateDer, UnixTime};
use tokio_util::sync::CancellationToken;
use x509_parser::{
    asn1_rs::{Any, FromDer as _},
    certificate::X509Certificate,
    x509::{SubjectPublicKeyInfo, X509Version},
};

use super::certificates::{self, KeyPairFiles, SharedKey};
use crate::authentication::{Trust, trust::provider};

/// How often files are looked at. Mounted Secrets change by a rename that file notifications miss.
pub(crate) const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// What the TLS layer is allowed to do.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// The versions, newest first.
    pub versions: Vec<&'static SupportedProtocolVersion>,
    /// The cipher suites; empty: the library's defaults.
    pub cipher_suites: Vec<rustls::SupportedCipherSuite>,
    /// Whether HTTP/2 is offered.
    pub http2: bool,
}

/// The TLS configuration of new connections.
pub struct ServingTls {
    files: KeyPairFiles,
    settings: TlsSettings,
    trust: Arc<Trust>,
    current: ArcSwap<ServerConfig>,
    key: ArcSwap<CertifiedKey>,
}

/// Asks for a certificate and believes none: the key must fit it, and the rest is the authenticators' business.
#[derive(Debug)]
struct ProofOfPossession {
    provider: Arc<CryptoProvider>,
    hints: Vec<DistinguishedName>,
}

// === impl TlsSettings ===

impl Default for TlsSettings {
    fn default() -> Self {
        Self {
            versions: vec![&rustls::version::TLS13, &rustls::version::TLS12],
            cipher_suites: Vec::new(),
            http2: true,
        }
    }
}

impl TlsSettings {
    fn build(&self, key: SharedKey, hints: Vec<DistinguishedName>) -> Result<ServerConfig, rustls::Error> {
        let mut crypto = rustls::crypto::ring::default_provider();
        if !self.cipher_suites.is_empty() {
            crypto.cipher_suites.clone_from(&self.cipher_suites);
        }
        let crypto = Arc::new(crypto);
        let verifier = Arc::new(ProofOfPossession { provider: provider(), hints });
        let mut config = ServerConfig::builder_with_provider(crypto)
            .with_protocol_versions(&self.versions)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        config.alpn_protocols =
            if self.http2 { vec![b"h2".to_vec(), b"http/1.1".to_vec()] } else { vec![b"http/1.1".to_vec()] };
        Ok(config)
    }
}

// === impl ServingTls ===

impl ServingTls {
    /// Serves this certificate, and asks clients for certificates of what is trusted.
    ///
    /// # Errors
    /// When the certificate cannot be used.
    pub fn new(
        files: KeyPairFiles,
        settings: TlsSettings,
        trust: Arc<Trust>,
    ) -> Result<Self, certificates::CertificateError> {
        let key = Arc::new(files.load()?);
        let config =
            settings.build(key.clone(), trust.subjects()).map_err(|error| certificates::CertificateError::Pair {
                certificate: files.certificate.clone(),
                key: files.key.clone(),
                error,
            })?;
        Ok(Self { files, settings, trust, current: ArcSwap::from_pointee(config), key: ArcSwap::new(key) })
    }

    /// The configuration for a new connection.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }

    /// Follows changes of the files and of what is trusted, until the server stops. What cannot be used is reported, and
    /// the last good one stays.
    pub async fn follow(&self, stop: CancellationToken) {
        let mut trusted = self.trust.subscribe();
        let mut ticks = tokio::time::interval(RELOAD_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => self.reload_certificate(),
                Ok(()) = trusted.changed() => self.rebuild(),
            }
        }
    }

    /// Looks whether the files have changed.
    pub fn reload_certificate(&self) {
        match self.files.load() {
            Ok(key) if key.cert != self.key.load().cert => {
                self.key.store(Arc::new(key));
                self.rebuild();
                tracing::info!(certificate = %self.files.certificate.display(), "serving a new certificate");
            }
            Ok(_) => {}
            Err(error) => tracing::error!(%error, "cannot reload the serving certificate; the last one stays in use"),
        }
    }

    fn rebuild(&self) {
        match self.settings.build(self.key.load_full(), self.trust.subjects()) {
            Ok(config) => self.current.store(Arc::new(config)),
            Err(error) => tracing::error!(%error, "cannot rebuild the TLS configuration; the last one stays in use"),
        }
    }
}

// === impl ProofOfPossession ===

impl ProofOfPossession {
    /// The key of a certificate whose version is too old for the library: it reads version 3 alone. The handshake is to
    /// succeed all the same, so that the client is told over HTTP, and the log why.
    fn old_key<'a>(cert: &'a CertificateDer<'_>) -> Option<SubjectPublicKeyInfo<'a>> {
        let (_, parsed) = X509Certificate::from_der(cert).ok()?;
        (parsed.version() != X509Version::V3).then_some(parsed.tbs_certificate.subject_pki)
    }

    /// As the library does it for a certificate that it can read: each algorithm of the scheme that fits the key is tried.
    fn verify_old_tls12(
        &self,
        key: &SubjectPublicKeyInfo<'_>,
        message: &[u8],
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = self.provider.signature_verification_algorithms.mapping.iter();
        let possible = known.filter(|(scheme, _)| *scheme == dss.scheme).flat_map(|(_, algorithms)| *algorithms);
        let identifier = algorithm_identifier(key.raw);
        let bits = &*key.subject_public_key.data;
        possible
            .filter(|algorithm| identifier == Some(algorithm.public_key_alg_id().as_ref()))
            .any(|algorithm| algorithm.verify_signature(bits, message, dss.signature()).is_ok())
            .then(HandshakeSignatureValid::assertion)
            .ok_or_else(|| CertificateError::BadSignature.into())
    }
}

/// What says of which kind a public key is: the content of the first element of a `SubjectPublicKeyInfo`.
fn algorithm_identifier(key: &[u8]) -> Option<&[u8]> {
    let (_, outer) = Any::from_der(key).ok()?;
    let (_, algorithm) = Any::from_der(outer.data).ok()?;
    Some(algorithm.data)
}

impl ClientCertVerifier for ProofOfPossession {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        // Like Go's `tls.RequestClientCert`: nothing follows from this alone. See the authentication module.
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        match Self::old_key(cert) {
            Some(key) => self.verify_old_tls12(&key, message, dss),
            None => verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        match Self::old_key(cert) {
            Some(key) => verify_tls13_signature_with_raw_key(message, &key.raw.into(), dss, known),
            None => verify_tls13_signature(message, cert, dss, known),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::{authentication::CaBundle, server::certificates::EphemeralCa};

    fn write_pair(directory: &Path) {
        let pair = EphemeralCa::new("ca").unwrap().serving(&["localhost".to_owned()], &[]).unwrap();
        fs::write(directory.join("crt"), pair.certificate).unwrap();
        fs::write(directory.join("key"), pair.key).unwrap();
    }

    fn serving(directory: &Path, trust: &Arc<Trust>) -> ServingTls {
        let files = KeyPairFiles { certificate: directory.join("crt"), key: directory.join("key") };
        ServingTls::new(files, TlsSettings::default(), trust.clone()).unwrap()
    }

    #[test]
    fn a_new_certificate_is_served_and_a_bad_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        write_pair(directory.path());
        let tls = serving(directory.path(), &Arc::default());
        let (first, old) = (tls.current(), tls.key.load_full());
        tls.reload_certificate();
        assert!(Arc::ptr_eq(&first, &tls.current()), "nothing has changed");

        // Half of a change: the certificate is there, its key is not yet.
        let old_key = fs::read(directory.path().join("key")).unwrap();
        write_pair(directory.path());
        let new_key = fs::read(directory.path().join("key")).unwrap();
        fs::write(directory.path().join("key"), old_key).unwrap();
        tls.reload_certificate();
        assert!(Arc::ptr_eq(&first, &tls.current()), "key and certificate do not match");
        fs::write(directory.path().join("key"), new_key).unwrap();
        tls.reload_certificate();
        assert!(!Arc::ptr_eq(&first, &tls.current()));
        assert_ne!(old.cert, tls.key.load().cert);

        fs::write(directory.path().join("crt"), "no certificate").unwrap();
        let second = tls.current();
        tls.reload_certificate();
        assert!(Arc::ptr_eq(&second, &tls.current()));
    }

    #[tokio::test]
    async fn clients_are_told_of_new_cas() {
        let directory = tempfile::tempdir().unwrap();
        write_pair(directory.path());
        let trust = Arc::new(Trust::default());
        let tls = Arc::new(serving(directory.path(), &trust));
        let first = tls.current();
        let stop = CancellationToken::new();
        let following = tokio::spawn({
            let (tls, stop) = (tls.clone(), stop.clone());
            async move { tls.follow(stop).await }
        });
        // The subscription must be there before the change.
        tokio::task::yield_now().await;
        trust.set_client_ca(CaBundle::from_pem(EphemeralCa::new("clients").unwrap().pem().as_bytes()).unwrap());
        assert_eq!(trust.subjects().len(), 1);
        let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
        while Arc::ptr_eq(&first, &tls.current()) {
            assert!(tokio::time::Instant::now() < deadline, "the configuration is not rebuilt");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
        following.await.unwrap();
    }
}
