//! Certificates for test and demo clusters: short-lived authorities whose keys never touch the disk.

use std::{
    net::{IpAddr, Ipv4Addr},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};

/// How long a certificate is good for: longer than anybody leaves a demo running, and not for ever.
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// A certificate authority. Its certificate is on disk, its key is not.
pub struct Ca {
    dir: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
    cert: PathBuf,
}

/// A certificate with its key, as files in PEM form.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub cert: PathBuf,
    /// The private key (PKCS #8, mode 0600).
    pub key: PathBuf,
}

/// What a certificate is asked for.
pub struct Request<'a> {
    /// The name of the files, without ending; unique in the authority's folder.
    pub file: &'a str,
    /// The subject's common name: to Kubernetes a user, to etcd likewise.
    pub common_name: &'a str,
    /// The subject's organisation: to Kubernetes a group. One at most: rcgen keeps one value per attribute type.
    pub organization: Option<&'a str>,
    /// DNS names of a server; loopback addresses and `localhost` are added. Empty for a mere client.
    pub server_names: &'a [&'a str],
    /// Whether the certificate may be used by a client.
    pub client: bool,
}

impl Ca {
    /// Makes an authority called `name`, with its certificate in `dir/name.crt`.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn create(dir: &Path, name: &str) -> Result<Self> {
        let mut params = validity(CertificateParams::default());
        params.distinguished_name = subject(name, None);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let cert = dir.join(format!("{name}.crt"));
        write(&cert, issuer.pem().as_bytes(), 0o644)?;
        Ok(Self { dir: dir.to_path_buf(), issuer, cert })
    }

    /// The path of the authority's certificate.
    pub fn cert(&self) -> &Path {
        &self.cert
    }

    /// The authority's certificate in PEM form.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Issues a certificate.
    ///
    /// # Errors
    /// When a name is not a valid one, or the folder cannot be written.
    pub fn issue(&self, request: &Request<'_>) -> Result<Identity> {
        let mut params = validity(CertificateParams::default());
        params.distinguished_name = subject(request.common_name, request.organization);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        if request.client {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        if !request.server_names.is_empty() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
            for name in request.server_names.iter().chain(&["localhost"]) {
                let name = (*name).try_into().with_context(|| format!("server name {name:?}"))?;
                params.subject_alt_names.push(SanType::DnsName(name));
            }
            params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        }
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?;
        let identity = Identity {
            cert: self.dir.join(format!("{}.crt", request.file)),
            key: self.dir.join(format!("{}.key", request.file)),
        };
        write(&identity.cert, cert.pem().as_bytes(), 0o644)?;
        write(&identity.key, key.serialize_pem().as_bytes(), 0o600)?;
        Ok(identity)
    }

    /// Issues a client's certificate, for the user `common_name` in the group `organization`.
    ///
    /// # Errors
    /// As [`Ca::issue`].
    pub fn client(&self, common_name: &str, organization: Option<&str>) -> Result<Identity> {
        let file: String = common_name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        self.issue(&Request { file: &file, common_name, organization, server_names: &[], client: true })
    }
}

/// A key pair without certificate.
#[derive(Clone, Debug)]
pub struct SigningKey {
    /// The private key (PKCS #8, mode 0600).
    pub private: PathBuf,
    /// The public key.
    pub public: PathBuf,
}

/// Writes a new key pair to `<path>.key` and `<path>.pub`: kube-apiserver wants one to sign the tokens of service
/// accounts with.
///
/// # Errors
/// When a file cannot be written.
pub fn signing_key(path: &Path) -> Result<SigningKey> {
    let pair = KeyPair::generate()?;
    let key = SigningKey { private: path.with_extension("key"), public: path.with_extension("pub") };
    write(&key.private, pair.serialize_pem().as_bytes(), 0o600)?;
    write(&key.public, pair.public_key_pem().as_bytes(), 0o644)?;
    Ok(key)
}

/// Writes a file with exactly these rights from the start, so that a key is never readable in between.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(mode).open(path);
    file.and_then(|mut file| std::io::Write::write_all(&mut file, content))
        .with_context(|| format!("writing {}", path.display()))
}

fn subject(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    if let Some(organization) = organization {
        subject.push(DnType::OrganizationName, organization);
    }
    subject.push(DnType::CommonName, common_name);
    subject
}

fn validity(mut params: CertificateParams) -> CertificateParams {
    let now = SystemTime::now();
    // An hour back, for a reader whose clock is a little behind.
    params.not_before = (now - Duration::from_secs(3600)).into();
    params.not_after = (now + LIFETIME).into();
    params
}
