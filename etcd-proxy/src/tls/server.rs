//! TLS towards the tenant's clients.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, ServerConfig, SignatureScheme,
    SupportedProtocolVersion,
    client::{danger::HandshakeSignatureValid, verify_server_name},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::{TLS12, TLS13},
};
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer};

use super::{
    TlsError,
    client::PROVIDER,
    files::{Contents, IdentityFiles},
    reload::{Loaded, Source},
    suites::CipherSuites,
};

/// Which certificates a client may show, besides being signed by the client CA. etcd names these `allowed-cn` and
/// `allowed-hostname` and takes one kind or the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllowedClients {
    /// Every certificate of the CA.
    #[default]
    Any,
    /// A subject whose common name is one of these.
    CommonNames(Vec<String>),
    /// A subject alternative name that covers one of these, as a server's certificate would.
    Hostnames(Vec<ServerName<'static>>),
}

/// The TLS versions that clients may speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVersions {
    /// 1.2 and 1.3, etcd's default.
    #[default]
    From12,
    /// 1.3 alone.
    Only13,
    /// 1.2 alone.
    Only12,
}

/// A certificate of the CA whose names are not among those that are allowed.
#[derive(Debug, thiserror::Error)]
pub enum NotAllowed {
    /// By its common name, which is given as it may be logged.
    #[error("--client-cert-allowed-cn does not name the client's common name {0}")]
    CommonName(String),
    /// By its subject alternative names, likewise.
    #[error("--client-cert-allowed-hostname names none of the client's alternative names {0}")]
    Hostnames(String),
}

/// Most that is said of one name of a client.
const NAME: usize = 64;
/// Most names of a client that are said.
const NAMES: usize = 4;

/// Which files to use towards clients.
#[derive(Clone, Debug)]
pub struct ServerTlsFiles {
    identity: IdentityFiles,
    clients: Option<(PathBuf, AllowedClients)>,
    versions: TlsVersions,
    suites: CipherSuites,
}

/// webpki's verification, and then the names.
#[derive(Debug)]
struct NamedClients {
    chain: Arc<dyn ClientCertVerifier>,
    allowed: AllowedClients,
}

// === impl AllowedClients ===

impl AllowedClients {
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        let refused = match self {
            Self::Any => None,
            Self::CommonNames(names) => {
                let parsed = parse(certificate)?;
                // The last one counts where there are several, as with Go's pkix.Name.
                let name = parsed.subject().iter_common_name().last().and_then(|name| name.as_str().ok());
                let allowed = name.is_some_and(|name| names.iter().any(|allowed| allowed == name));
                (!allowed).then(|| NotAllowed::CommonName(said(name.unwrap_or_default())))
            }
            Self::Hostnames(names) => {
                let parsed = ParsedCertificate::try_from(certificate)?;
                let allowed = names.iter().any(|name| verify_server_name(&parsed, name).is_ok());
                if allowed { None } else { Some(NotAllowed::Hostnames(alternative_names(&parse(certificate)?))) }
            }
        };
        match refused {
            None => Ok(()),
            Some(refused) => Err(CertificateError::Other(OtherError(Arc::new(refused))).into()),
        }
    }
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, rustls::Error> {
    match X509Certificate::from_der(certificate) {
        Ok((_, certificate)) => Ok(certificate),
        Err(_) => Err(CertificateError::BadEncoding.into()),
    }
}

/// A name that somebody else chose, as it may be logged.
fn said(name: &str) -> String {
    match name.char_indices().nth(NAME) {
        Some((end, _)) => format!("{:?}…", name.get(..end).unwrap_or_default()),
        None => format!("{name:?}"),
    }
}

fn alternative_names(certificate: &X509Certificate<'_>) -> String {
    let extension = certificate.subject_alternative_name().ok().flatten();
    let names = extension.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    let mut words: Vec<String> = names.iter().take(NAMES).map(named).collect();
    if names.len() > NAMES {
        words.push("…".to_owned());
    }
    format!("[{}]", words.join(", "))
}

fn named(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(name) => said(name),
        GeneralName::IPAddress(bytes) => match (<[u8; 4]>::try_from(*bytes), <[u8; 16]>::try_from(*bytes)) {
            (Ok(v4), _) => std::net::IpAddr::from(v4).to_string(),
            (_, Ok(v6)) => std::net::IpAddr::from(v6).to_string(),
            _ => "an address of no known kind".to_owned(),
        },
        // Of a kind that `verify_server_name` does not look at.
        _ => "a name that is no host's".to_owned(),
    }
}

// === impl NotAllowed ===

impl NotAllowed {
    /// What came of a handshake, if it was this.
    pub fn of(error: &io::Error) -> Option<&Self> {
        match error.get_ref()?.downcast_ref()? {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(other))) => other.downcast_ref(),
            _ => None,
        }
    }
}

// === impl TlsVersions ===

impl TlsVersions {
    fn supported(self) -> &'static [&'static SupportedProtocolVersion] {
        const ONLY_13: &[&SupportedProtocolVersion] = &[&TLS13];
        const ONLY_12: &[&SupportedProtocolVersion] = &[&TLS12];
        match self {
            Self::From12 => rustls::ALL_VERSIONS,
            Self::Only13 => ONLY_13,
            Self::Only12 => ONLY_12,
        }
    }
}

// === impl ServerTlsFiles ===

impl ServerTlsFiles {
    /// Shows the certificate in `cert`, whose private key is in `key`; asks for no client certificate.
    pub fn new(cert: PathBuf, key: PathBuf) -> Self {
        Self {
            identity: IdentityFiles { cert, key },
            clients: None,
            versions: TlsVersions::default(),
            suites: CipherSuites::default(),
        }
    }

    /// Demands a client certificate of the CA in `ca`, of one of the `allowed`.
    #[must_use]
    pub fn with_client_ca(mut self, ca: PathBuf, allowed: AllowedClients) -> Self {
        self.clients = Some((ca, allowed));
        self
    }

    /// Narrows the TLS versions.
    #[must_use]
    pub fn with_versions(mut self, versions: TlsVersions) -> Self {
        self.versions = versions;
        self
    }

    /// Narrows the cipher suites. Without one of TLS 1.2, nothing can be served where that is the only version.
    #[must_use]
    pub fn with_cipher_suites(mut self, suites: CipherSuites) -> Self {
        self.suites = suites;
        self
    }
}

impl Source for ServerTlsFiles {
    type Config = ServerConfig;

    const NAME: &str = "serving";

    fn load(&self) -> Result<Loaded<ServerConfig>, TlsError> {
        let mut contents = Contents::new();
        let builder = ServerConfig::builder_with_provider(self.suites.provider())
            .with_protocol_versions(self.versions.supported())?;
        let builder = match &self.clients {
            None => builder.with_no_client_auth(),
            Some((ca, allowed)) => builder.with_client_cert_verifier(client_verifier(&mut contents, ca, allowed)?),
        };
        let (chain, key) = contents.identity(&self.identity)?;
        let mut config = builder.with_single_cert(chain, key).map_err(|source| TlsError::Identity {
            cert: self.identity.cert.clone(),
            key: self.identity.key.clone(),
            source,
        })?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        if self.clients.is_some() {
            // rustls resumes a session with the certificate that it began with, and nobody looks whether that is still valid:
            // each resumption would lead to the next, for as long as the client likes. Go looks (`crypto/tls`, `checkForResumption`).
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(contents.loaded(config))
    }
}

fn client_verifier(
    contents: &mut Contents,
    ca: &Path,
    allowed: &AllowedClients,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let anchors = contents.anchors(ca)?;
    let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(anchors), PROVIDER.clone())
        .build()
        .map_err(|source| TlsError::Verifier { path: ca.to_owned(), source })?;
    Ok(match allowed {
        AllowedClients::Any => chain,
        _ => Arc::new(NamedClients { chain, allowed: allowed.clone() }),
    })
}

// === impl NamedClients ===

impl ClientCertVerifier for NamedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        self.allowed.check(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_said_in_bounds() {
        assert_eq!(said("team-b"), "\"team-b\"");
        assert_eq!(said("a\nb\u{1b}[31m"), r#""a\nb\u{1b}[31m""#);
        let long = said(&"ü".repeat(10_000));
        assert_eq!(long.chars().count(), NAME + 3, "{long}");
        assert!(long.ends_with("\"…"), "{long}");
    }
}
