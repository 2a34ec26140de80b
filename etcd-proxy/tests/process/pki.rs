//! Certificates for tests.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// A certificate authority whose files are in a directory.
pub(crate) struct Ca {
    params: CertificateParams,
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
    pub(crate) file: PathBuf,
}

/// A certificate and its key in files.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl Ca {
    pub(crate) fn new(dir: &Path, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let file = dir.join(format!("{name}.pem"));
        fs::write(&file, &pem).unwrap();
        Self { issuer: Issuer::new(params.clone(), key), params, pem, file }
    }

    /// A certificate for 127.0.0.1, localhost and `name`, for servers and clients, with common name `name`.
    pub(crate) fn issue(&self, dir: &Path, name: &str) -> Identity {
        self.issue_with(dir, name, &self.pem)
    }

    /// This CA as `by` certifies it, for those who know only that one.
    pub(crate) fn cross_signed(&self, by: &Self) -> String {
        self.params.signed_by(self.issuer.key(), &by.issuer).unwrap().pem()
    }

    /// The same, for not so long.
    pub(crate) fn issue_until(&self, dir: &Path, name: &str, end: SystemTime) -> Identity {
        let mut params = params(name);
        params.not_after = end.into();
        self.sign(dir, name, &params, &self.pem)
    }

    /// The same, with the certificates that lead to a CA which the other side knows.
    pub(crate) fn issue_with(&self, dir: &Path, name: &str, chain: &str) -> Identity {
        self.sign(dir, name, &params(name), chain)
    }

    fn sign(&self, dir: &Path, name: &str, params: &CertificateParams, chain: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let identity = Identity { cert: dir.join(format!("{name}.crt")), key: dir.join(format!("{name}.key")) };
        fs::write(&identity.cert, certificate.pem() + chain).unwrap();
        fs::write(&identity.key, key.serialize_pem()).unwrap();
        identity
    }
}

/// For 127.0.0.1, localhost and `name`.
fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["127.0.0.1".into(), "localhost".into(), name.into()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
