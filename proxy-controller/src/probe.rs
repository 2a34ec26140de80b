//! A look at a running proxy from outside: which certificate it shows, and whether it accepts one.
//!
//! What a Secret says and what a process has read are two things: kubelet takes its time, and so does the process. A rotation
//! goes on when [`probe`] has seen the latter. It dials once, never resumes a session, and bounds what it reads and waits for.

#[cfg(test)]
mod tests;

use std::{fmt, io, net::SocketAddr, sync::Arc};

use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::{
    AlertDescription, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tokio_rustls::TlsConnector;
use x509_parser::{certificate::X509Certificate, prelude::FromDer as _};

use crate::pki::Identity;

/// Any answer will do, so the request is one that the proxy answers by itself, without asking the upstream: etcd answers all
/// methods but GET on this path with 405 (`server/etcdserver/api/etcdhttp/health.go`).
const REQUEST: &[u8] =
    b"HEAD /health HTTP/1.1\r\nHost: probe\r\nUser-Agent: proxy-controller\r\nConnection: close\r\n\r\n";

/// The longest status line that is read.
const STATUS_LINE: usize = 256;

/// Whom to dial.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The proxy's client port.
    pub address: SocketAddr,
    /// The DNS name or IP address that its certificate must cover.
    pub name: &'a str,
    /// The CA certificates that its certificate is verified with, as PEM.
    pub bundle: &'a str,
}

/// What a proxy showed and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The leaf that it showed; verified.
    pub leaf: CertificateDer<'static>,
    /// The leaf's issuer, for people.
    pub issuer: String,
    /// The leaf's `notAfter`.
    pub not_after: Timestamp,
    /// What it did with the client's certificate.
    pub client: Answer,
}

/// What a proxy did with a client's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It answered the request, with this HTTP status.
    Accepted(u16),
    /// It refused the certificate with this TLS alert.
    Refused(AlertDescription),
}

/// Why nothing was learnt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The CA certificates cannot be used.
    #[error("the CA bundle for the probe is unusable: {0}")]
    Bundle(String),
    /// The client's certificate cannot be used.
    #[error("the client certificate for the probe is unusable: {0}")]
    Identity(String),
    /// The name is neither a DNS name nor an IP address.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    Name(String),
    /// Nobody answers.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// Its certificate is not one of this proxy, or has expired.
    #[error("{address} shows a certificate that does not verify: {source}")]
    Untrusted {
        /// The address.
        address: SocketAddr,
        /// What rustls says.
        source: rustls::Error,
    },
    /// TLS fails for another reason than a certificate.
    #[error("no TLS with {address}: {source}")]
    Tls {
        /// The address.
        address: SocketAddr,
        /// What rustls or the system says.
        source: io::Error,
    },
    /// It closed the connection, or answered something that is not HTTP: whether it accepted the certificate is not known.
    #[error("{address} did not answer with HTTP: {what}")]
    Answer {
        /// The address.
        address: SocketAddr,
        /// What it did.
        what: String,
    },
    /// It takes too long.
    #[error("{address} did not answer in time")]
    Timeout {
        /// The address.
        address: SocketAddr,
    },
}

/// webpki's verification, which remembers what it was shown: a refusal may come before anybody else can ask for it.
#[derive(Debug)]
struct Recorder {
    webpki: Arc<WebPkiServerVerifier>,
    leaf: Mutex<Option<CertificateDer<'static>>>,
}

/// Dials `target` with `identity`, and ends by `deadline` at the latest.
///
/// # Errors
/// When nothing is learnt. A refused client certificate is no error but an [`Answer`].
pub async fn probe(target: Target<'_>, identity: &Identity, deadline: Instant) -> Result<Observation, ProbeError> {
    let (config, recorder) = config(target, identity)?;
    let name = ServerName::try_from(target.name.to_owned()).map_err(|_| ProbeError::Name(target.name.to_owned()))?;
    let answer = timeout_at(deadline, ask(target.address, config, name))
        .await
        .map_err(|_| ProbeError::Timeout { address: target.address })??;
    let unclear = |what: &str| ProbeError::Answer { address: target.address, what: what.to_owned() };
    let leaf = recorder.leaf.lock().take().ok_or_else(|| unclear("it showed no certificate"))?;
    let (issuer, not_after) = describe(&leaf).ok_or_else(|| unclear("its certificate cannot be read"))?;
    Ok(Observation { leaf, issuer, not_after, client: answer })
}

fn config(target: Target<'_>, identity: &Identity) -> Result<(ClientConfig, Arc<Recorder>), ProbeError> {
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(target.bundle).map_err(ProbeError::Bundle)? {
        roots.add(certificate).map_err(|error| ProbeError::Bundle(error.to_string()))?;
    }
    let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| ProbeError::Bundle(error.to_string()))?;
    let recorder = Arc::new(Recorder { webpki, leaf: Mutex::new(None) });
    let chain = certificates(&identity.chain).map_err(ProbeError::Identity)?;
    // What the parser says of a bad key is not repeated: it is about a key.
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())
        .map_err(|_| ProbeError::Identity("its key is not a private key in PEM form".to_owned()))?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ProbeError::Bundle(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(recorder.clone())
        .with_client_auth_cert(chain, key)
        .map_err(|error| ProbeError::Identity(error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A resumed session would show nothing and prove nothing.
    config.resumption = Resumption::disabled();
    Ok((config, recorder))
}

async fn ask(address: SocketAddr, config: ClientConfig, name: ServerName<'static>) -> Result<Answer, ProbeError> {
    let stream = TcpStream::connect(address).await.map_err(|source| ProbeError::Connect { address, source })?;
    let mut stream = match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        Ok(stream) => stream,
        // With TLS 1.2 the refusal is part of the handshake.
        Err(error) => return refusal(&error).ok_or_else(|| failure(address, error)),
    };
    // With TLS 1.3 the client's handshake ends before the server has seen its certificate: only an answer tells. A failed
    // write is left for the read to explain, which finds the alert.
    let _sent = stream.write_all(REQUEST).await.and(stream.flush().await);
    match status_line(&mut stream).await {
        Ok(line) => status(&line).map(Answer::Accepted).ok_or_else(|| ProbeError::Answer {
            address,
            what: format!("it began with {:?}", String::from_utf8_lossy(&line)),
        }),
        Err(error) => refusal(&error)
            .ok_or_else(|| ProbeError::Answer { address, what: format!("the connection ended: {error}") }),
    }
}

/// Reads up to the end of the first line.
async fn status_line(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut line = Vec::with_capacity(STATUS_LINE);
    let mut stream = stream.take(STATUS_LINE as u64);
    while !line.contains(&b'\n') {
        if stream.read_buf(&mut line).await? == 0 {
            break;
        }
    }
    if line.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(line) }
}

fn status(line: &[u8]) -> Option<u16> {
    let line = str::from_utf8(line).ok()?.lines().next()?;
    let (version, rest) = line.split_once(' ')?;
    let code = rest.split(' ').next()?;
    (version.starts_with("HTTP/1.") && code.len() == 3).then(|| code.parse().ok())?
}

/// Whether it is about the client's certificate. rustls and Go choose their alerts as RFC 8446, section 6.2, has them.
fn refusal(error: &io::Error) -> Option<Answer> {
    use AlertDescription as Alert;
    match error.get_ref()?.downcast_ref()? {
        rustls::Error::AlertReceived(
            alert @ (Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::DecryptError
            | Alert::CertificateRequired),
        ) => Some(Answer::Refused(*alert)),
        _ => None,
    }
}

fn failure(address: SocketAddr, error: io::Error) -> ProbeError {
    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(source @ rustls::Error::InvalidCertificate(_)) => {
            ProbeError::Untrusted { address, source: source.clone() }
        }
        _ => ProbeError::Tls { address, source: error },
    }
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Vec<_> =
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    if all.is_empty() { Err("it holds no certificate".to_owned()) } else { Ok(all) }
}

fn describe(leaf: &CertificateDer<'_>) -> Option<(String, Timestamp)> {
    let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
    let not_after = Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()?;
    Some((certificate.issuer().to_string(), not_after))
}

// === impl Observation ===

impl Observation {
    /// SHA-256 of the leaf, in hexadecimal: what `openssl x509 -fingerprint -sha256` prints, without the colons.
    pub fn fingerprint(&self) -> String {
        hex::encode(Sha256::digest(&self.leaf))
    }
}

// === impl Answer ===

impl Answer {
    /// Whether the certificate was accepted.
    #[must_use]
    pub fn accepted(self) -> bool {
        matches!(self, Self::Accepted(_))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted(status) => write!(f, "accepted (HTTP {status})"),
            Self::Refused(alert) => write!(f, "refused ({alert:?})"),
        }
    }
}

// === impl Recorder ===

impl ServerCertVerifier for Recorder {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        *self.leaf.lock() = Some(end_entity.clone().into_owned());
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}
