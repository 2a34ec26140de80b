//! Serving certificates: read from files, and read again when they change, or made by the server itself.

use std::{
    fs,
    io::Write as _,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

use crate::authentication::trust::provider;

/// For how long a certificate made here is valid, in days. It is made anew at each start that finds none.
const LIFETIME_DAYS: i64 = 365;

/// Why there is no serving certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: std::io::Error,
    },
    /// A file is no PEM of the right kind.
    #[error("{path}: {error}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: rustls_pki_types::pem::Error,
    },
    /// A file has no certificate.
    #[error("{0}: no certificate in the file")]
    NoCertificate(PathBuf),
    /// Key and certificate do not fit together, or cannot be used.
    #[error("the certificate {certificate} and the key {key} cannot be used together: {error}")]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        error: rustls::Error,
    },
    /// A certificate could not be made.
    #[error("a certificate could not be made: {0}")]
    Make(#[from] rcgen::Error),
}

/// Two files that hold a certificate chain and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPairFiles {
    /// The chain in PEM, the server's certificate first.
    pub certificate: PathBuf,
    /// The key in PEM.
    pub key: PathBuf,
}

/// A CA that exists only while this process runs.
pub struct EphemeralCa {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate chain and its key in PEM.
pub struct PemPair {
    /// The chain.
    pub certificate: String,
    /// The key.
    pub key: String,
}

// === impl KeyPairFiles ===

impl KeyPairFiles {
    /// Reads both, and sees that they belong together.
    ///
    /// # Errors
    /// When a file is missing, is not what it should be, or does not fit the other.
    pub fn load(&self) -> Result<CertifiedKey, CertificateError> {
        let pem_error = |path: &Path, error| CertificateError::Pem { path: path.to_owned(), error };
        let chain = CertificateDer::pem_slice_iter(&read(&self.certificate)?)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| pem_error(&self.certificate, error))?;
        if chain.is_empty() {
            return Err(CertificateError::NoCertificate(self.certificate.clone()));
        }
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?).map_err(|error| pem_error(&self.key, error))?;
        let pair_error =
            |error| CertificateError::Pair { certificate: self.certificate.clone(), key: self.key.clone(), error };
        let certified = CertifiedKey::from_der(chain, key, &provider()).map_err(pair_error)?;
        certified.keys_match().map_err(pair_error)?;
        Ok(certified)
    }

    /// The files `<name>.crt` and `<name>.key` of a directory, made if one of them is missing, self-signed for these names
    /// (k8s.io/apiserver `pkg/server/options/serving.go`, `MaybeDefaultWithSelfSignedCerts`).
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn generated(directory: &Path, name: &str, names: &[String], ips: &[IpAddr]) -> Result<Self, CertificateError> {
        let files =
            Self { certificate: directory.join(format!("{name}.crt")), key: directory.join(format!("{name}.key")) };
        if files.certificate.exists() && files.key.exists() {
            return Ok(files);
        }
        let ca = EphemeralCa::new(&format!("{}-ca", names.first().map_or("localhost", String::as_str)))?;
        let pair = ca.serving(names, ips)?;
        fs::create_dir_all(directory).map_err(|error| CertificateError::File { path: directory.to_owned(), error })?;
        write(&files.certificate, pair.certificate.as_bytes(), 0o644)?;
        write(&files.key, pair.key.as_bytes(), 0o600)?;
        tracing::info!(certificate = %files.certificate.display(), "made a self-signed serving certificate");
        Ok(files)
    }
}

// === impl EphemeralCa ===

impl EphemeralCa {
    /// Makes a CA with this common name.
    ///
    /// # Errors
    /// When there is no randomness.
    pub fn new(common_name: &str) -> Result<Self, CertificateError> {
        let mut parameters = parameters(common_name, None);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate()?;
        let pem = parameters.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(parameters, key), pem })
    }

    /// The CA's certificate.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A serving certificate for these names and addresses. The chain ends with the CA.
    ///
    /// # Errors
    /// When a name is no ASCII.
    pub fn serving(&self, names: &[String], ips: &[IpAddr]) -> Result<PemPair, CertificateError> {
        let mut parameters = parameters(names.first().map_or("localhost", String::as_str), None);
        for name in names {
            parameters.subject_alt_names.push(SanType::DnsName(name.as_str().try_into()?));
        }
        parameters.subject_alt_names.extend(ips.iter().copied().map(SanType::IpAddress));
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&mut parameters)
    }

    /// A client certificate for a user of this group.
    ///
    /// # Errors
    /// When there is no randomness.
    pub fn client(&self, user: &str, group: &str) -> Result<PemPair, CertificateError> {
        let mut parameters = parameters(user, Some(group));
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&mut parameters)
    }

    fn sign(&self, parameters: &mut CertificateParams) -> Result<PemPair, CertificateError> {
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        let key = KeyPair::generate()?;
        let certificate = parameters.signed_by(&key, &self.issuer)?;
        Ok(PemPair { certificate: format!("{}{}", certificate.pem(), self.pem), key: key.serialize_pem() })
    }
}

fn parameters(common_name: &str, organization: Option<&str>) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    parameters.distinguished_name = name;
    // One hour early, for clocks that are behind.
    let now = std::time::SystemTime::now();
    parameters.not_before = (now - std::time::Duration::from_secs(3600)).into();
    parameters.not_after = parameters.not_before + std::time::Duration::from_secs(LIFETIME_DAYS.unsigned_abs() * 86400);
    parameters
}

fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    fs::read(path).map_err(|error| CertificateError::File { path: path.to_owned(), error })
}

/// Writes a file with this mode, also where an older one had another.
pub(crate) fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), CertificateError> {
    let wrap = |error| CertificateError::File { path: path.to_owned(), error };
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(wrap(error)),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(wrap)?;
    file.write_all(content).map_err(wrap)
}

/// The certified key, shared.
pub(crate) type SharedKey = Arc<CertifiedKey>;
