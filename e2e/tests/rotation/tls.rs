//! The TLS of the test's own clients, made anew for each connection from files that the kubelet's stand-in exchanges.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose};
use rustls::{
    AlertDescription, ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use x509_parser::{certificate::X509Certificate, prelude::FromDer as _};

const PATIENCE: Duration = Duration::from_secs(20);

/// What a client of HTTP/2 says first (RFC 9113, section 3.4): the preface and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A certificate with its key and what its owner trusts, as PEM.
#[derive(Clone, Debug)]
pub(crate) struct Material {
    pub(crate) ca: Vec<u8>,
    pub(crate) cert: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

/// How a client connects.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    /// Where to.
    pub(crate) address: SocketAddr,
    /// The name that the server's certificate must have.
    pub(crate) host: String,
    /// The folder of the client's Secret.
    pub(crate) folder: PathBuf,
    /// What is trusted, if not what the folder says at each connection.
    pub(crate) ca: Option<Arc<[u8]>>,
}

/// What was seen of a server.
#[derive(Debug)]
pub(crate) struct Look {
    /// The certificates that it showed, its own first.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    /// How it refused the client's certificate; `None` if it went on.
    pub(crate) refusal: Option<AlertDescription>,
}

// === impl Material ===

impl Material {
    /// Reads a Secret's folder as it is at one moment: all files of one state, which is what `..data` leads to.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let read = || {
            let state = std::fs::canonicalize(folder.join("..data"))?;
            let file = |name: &str| std::fs::read(state.join(name));
            Ok::<_, std::io::Error>(Self { ca: file("ca.crt")?, cert: file("tls.crt")?, key: file("tls.key")? })
        };
        // A state may be removed while it is read; then there is a newer one.
        read().or_else(|_| read()).with_context(|| folder.display().to_string())
    }

    fn config(&self) -> Result<ClientConfig> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca)? {
            roots.add(certificate)?;
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(certificates(&self.cert)?, PrivateKeyDer::from_pem_slice(&self.key)?)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    /// Connects; of servers that speak TLS 1.3 this says nothing yet about the client's certificate.
    async fn connect(&self, address: SocketAddr, host: &str) -> Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned())?;
        let connecting = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok::<_, anyhow::Error>(TlsConnector::from(Arc::new(self.config()?)).connect(name, stream).await?)
        };
        timeout(PATIENCE, connecting).await?.with_context(|| format!("connecting to {host} at {address}"))
    }

    /// Looks at a server, which must verify.
    pub(crate) async fn look(&self, address: SocketAddr, host: &str) -> Result<Look> {
        let mut stream = self.connect(address, host).await?;
        let chain = stream.get_ref().1.peer_certificates().context("it showed no certificate")?;
        let chain = chain.iter().cloned().map(CertificateDer::into_owned).collect();
        // Where this fails, what is read next says why.
        let _ = stream.write_all(PREFACE).await;
        let mut answer = [0; 1];
        let refusal = match timeout(PATIENCE, stream.read(&mut answer)).await? {
            Ok(0) => bail!("{address} closed the connection without a word"),
            Ok(_) => None,
            Err(error) => match error.get_ref().and_then(|error| error.downcast_ref()) {
                Some(rustls::Error::AlertReceived(alert)) => Some(*alert),
                _ => return Err(error).with_context(|| address.to_string()),
            },
        };
        Ok(Look { chain, refusal })
    }
}

// === impl Dialer ===

impl Dialer {
    /// A connection with the present files.
    pub(crate) async fn dial(&self) -> Result<TlsStream<TcpStream>> {
        let mut material = Material::read(&self.folder)?;
        if let Some(ca) = &self.ca {
            material.ca = ca.to_vec();
        }
        material.connect(self.address, &self.host).await
    }
}

/// A client's certificate of a CA whose key has got into wrong hands: valid now, and of the common name of a client.
pub(crate) fn forge(ca: &[u8], ca_key: &str, common_name: &str) -> Result<Material> {
    let der = certificates(ca)?.pop().context("there is no CA")?;
    let (_, parsed) = X509Certificate::from_der(&der)?;
    let (mut organizations, mut common_names) =
        (parsed.subject().iter_organization(), parsed.subject().iter_common_name());
    // In this order the name is the same byte for byte.
    let mut name = DistinguishedName::new();
    for (kind, value) in [(DnType::OrganizationName, organizations.next()), (DnType::CommonName, common_names.next())] {
        name.push(kind, value.context("the CA lacks a name")?.as_str()?);
    }
    let mut of_ca = CertificateParams::default();
    of_ca.distinguished_name = name;
    let issuer = Issuer::new(of_ca, KeyPair::from_pem(ca_key)?);
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    let cert = params.signed_by(&key, &issuer)?;
    Ok(Material { ca: ca.to_vec(), cert: cert.pem().into_bytes(), key: key.serialize_pem().into_bytes() })
}

/// The certificates of a PEM text.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    Ok(CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?)
}

/// Subject and issuer of a certificate.
pub(crate) fn names(certificate: &CertificateDer<'_>) -> Result<(String, String)> {
    let (_, parsed) = X509Certificate::from_der(certificate)?;
    Ok((parsed.subject().to_string(), parsed.issuer().to_string()))
}
