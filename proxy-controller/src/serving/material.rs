//! The webhook's CA and serving certificate: what there is, what is wanted now, and how to get from one to the other.
//! No I/O; the time is given.
//!
//! A new CA comes in this order: it is added to the bundle; when the bundle has been where API servers read it for a while,
//! the serving certificate comes from it; the old CA leaves the bundle when it has expired. A serving certificate of either
//! CA, on whichever replica, is accepted all the time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::{
    RootCertStore, ServerConfig, client::WebPkiServerVerifier, client::danger::ServerCertVerifier as _,
    crypto::CryptoProvider,
};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer, ServerName, UnixTime,
    pem::{self, PemObject as _},
};
use x509_parser::{certificate::X509Certificate, prelude::FromDer as _};

/// Keys of the Secret: the serving certificate and its key, as in every Secret of its type,
const TLS_CERT: &str = "tls.crt";
const TLS_KEY: &str = "tls.key";
/// all CAs that API servers are to trust,
const CA_BUNDLE: &str = "ca.crt";
/// the CA that signs,
const SIGNER_CERT: &str = "signer.crt";
const SIGNER_KEY: &str = "signer.key";
/// and the one that is to sign next, while there is one.
const NEXT_CERT: &str = "next-signer.crt";
const NEXT_KEY: &str = "next-signer.key";

/// For how long a CA is valid.
const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 86400);
/// For how long a serving certificate is valid.
const LEAF_LIFETIME: Duration = Duration::from_secs(90 * 86400);
/// How far certificates begin in the past, for clocks that are behind.
const BACKDATE: Duration = Duration::from_secs(300);
/// How long a bundle is where API servers read it before they are expected to use it: they follow their configuration by
/// a watch, and drop the connections that they made with the old bundle.
pub(super) const SETTLING: Duration = Duration::from_secs(60);

/// Everything in the Secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Material {
    leaf: Pair,
    signer: Pair,
    next: Option<Pair>,
    /// CAs that signed once and are still trusted.
    old: Vec<Certificate>,
}

/// A certificate and its key.
#[derive(Clone, PartialEq, Eq)]
struct Pair {
    certificate: Certificate,
    /// PKCS #8, PEM.
    key: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Certificate {
    pem: String,
    der: CertificateDer<'static>,
    not_before: Timestamp,
    not_after: Timestamp,
}

/// What is to be done about the material.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing before this moment.
    Keep {
        /// When to look again.
        until: Timestamp,
    },
    /// A change.
    Change(Change),
}

/// A change of the material.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A new serving certificate.
    Leaf,
    /// A CA to come joins the bundle.
    Announce,
    /// The CA to come signs from now on.
    Promote,
    /// CAs that have expired leave the bundle.
    Prune,
    /// Nothing can be kept but the bundle.
    Everything,
}

/// Why material cannot be read or made.
#[derive(Debug, thiserror::Error)]
pub(super) enum MaterialError {
    #[error("key {0} is missing")]
    Missing(&'static str),
    #[error("key {key} holds no certificate or key in PEM: {source}")]
    Pem { key: &'static str, source: pem::Error },
    #[error("key {0} is no text")]
    Text(&'static str),
    #[error("key {0} holds a certificate that cannot be parsed")]
    Certificate(&'static str),
    #[error("certificate and key cannot be used together: {0}")]
    Pair(#[from] rustls::Error),
    #[error("a certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error("the system's time {0} is out of range")]
    Time(Timestamp),
}

// === impl Material ===

impl Material {
    /// A new CA and a serving certificate of it for `name`. What an older bundle held and is still valid stays trusted.
    pub(super) fn create(name: &str, trusted: &[Self], now: Timestamp) -> Result<Self, MaterialError> {
        let signer = new_ca(name, now)?;
        let leaf = new_leaf(name, &signer, now)?;
        let old = trusted.iter().flat_map(|material| material.trusted().cloned()).filter(|ca| now < ca.not_after);
        Ok(Self { leaf, signer, next: None, old: old.collect() })
    }

    /// What to store when the Secret is gone or damaged. Who deletes it wants other keys, and nobody wants a webhook that no
    /// API server trusts: so what is in use stays, and a new CA comes in its order.
    pub(super) fn recovered(known: Option<&Self>, name: &str, now: Timestamp) -> Result<Self, MaterialError> {
        match known {
            None => Self::create(name, &[], now),
            Some(known) if known.next.is_some() => Ok(known.clone()),
            Some(known) => known.changed(Change::Announce, name, now),
        }
    }

    /// Reads a Secret's data.
    pub(super) fn parse(data: &BTreeMap<String, ByteString>) -> Result<Self, MaterialError> {
        let leaf = Pair::parse(data, TLS_CERT, TLS_KEY)?;
        let signer = Pair::parse(data, SIGNER_CERT, SIGNER_KEY)?;
        let next = match data.contains_key(NEXT_CERT) {
            true => Some(Pair::parse(data, NEXT_CERT, NEXT_KEY)?),
            false => None,
        };
        let known = |ca: &Certificate| {
            ca.der == signer.certificate.der || next.as_ref().is_some_and(|next| ca.der == next.certificate.der)
        };
        let mut old = certificates(data, CA_BUNDLE)?;
        old.retain(|ca| !known(ca));
        Ok(Self { leaf, signer, next, old })
    }

    /// The data of a Secret of the type `kubernetes.io/tls`.
    pub(super) fn data(&self) -> BTreeMap<String, ByteString> {
        let pair = |cert, key, pair: &Pair| [(cert, pair.certificate.pem.clone()), (key, pair.key.clone())];
        let next = self.next.as_ref().map(|next| pair(NEXT_CERT, NEXT_KEY, next));
        pair(TLS_CERT, TLS_KEY, &self.leaf)
            .into_iter()
            .chain(pair(SIGNER_CERT, SIGNER_KEY, &self.signer))
            .chain(next.into_iter().flatten())
            .chain([(CA_BUNDLE, self.bundle())])
            .map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())))
            .collect()
    }

    /// What API servers are to trust, in PEM.
    pub(super) fn bundle(&self) -> String {
        self.trusted().map(|ca| ca.pem.as_str()).collect()
    }

    /// When the serving certificate expires.
    pub(super) fn expires(&self) -> Timestamp {
        self.leaf.certificate.not_after
    }

    /// What connections are served with.
    pub(super) fn server_config(&self) -> Result<ServerConfig, MaterialError> {
        let key = PrivateKeyDer::from_pem_slice(self.leaf.key.as_bytes())
            .map_err(|source| MaterialError::Pem { key: TLS_KEY, source })?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![self.leaf.certificate.der.clone()], key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// What is to be done. `published` is for how long API servers have had all of the present bundle.
    pub(super) fn step(&self, name: &str, published: Option<Duration>, now: Timestamp) -> Step {
        let next = self.next.as_ref().map(|next| &next.certificate);
        let settled = published.is_some_and(|published| published >= SETTLING);
        if !accepts(&self.bundle(), &self.leaf.certificate.der, name, now) || self.server_config().is_err() {
            return Step::Change(match next {
                _ if self.signer.certificate.is_valid(now) => Change::Leaf,
                Some(next) if next.is_valid(now) => Change::Promote,
                _ => Change::Everything,
            });
        }
        if next.is_some() && settled {
            return Step::Change(Change::Promote);
        }
        if next.is_none() && now >= self.signer.certificate.renewal() {
            return Step::Change(Change::Announce);
        }
        if now >= self.leaf.certificate.renewal() && self.signer.certificate.not_after > self.leaf.certificate.not_after
        {
            return Step::Change(Change::Leaf);
        }
        if self.old.iter().any(|ca| now >= ca.not_after) {
            return Step::Change(Change::Prune);
        }
        let times = [self.leaf.certificate.renewal(), self.signer.certificate.renewal()];
        let ends = self.old.iter().map(|ca| ca.not_after).chain([self.leaf.certificate.not_after]);
        // What has passed waits for something else, which is looked at when it happens.
        let until = times.into_iter().chain(ends).filter(|time| *time > now).min();
        Step::Keep { until: until.unwrap_or(now) }
    }

    /// The material after a change.
    pub(super) fn changed(&self, change: Change, name: &str, now: Timestamp) -> Result<Self, MaterialError> {
        let mut changed = self.clone();
        match (change, self.next.clone()) {
            (Change::Everything, _) | (Change::Promote, None) => {
                return Self::create(name, std::slice::from_ref(self), now);
            }
            (Change::Leaf, _) => changed.leaf = new_leaf(name, &self.signer, now)?,
            (Change::Announce, _) => changed.next = Some(new_ca(name, now)?),
            (Change::Promote, Some(next)) => {
                changed.leaf = new_leaf(name, &next, now)?;
                changed.old.push(std::mem::replace(&mut changed.signer, next).certificate);
                changed.next = None;
            }
            (Change::Prune, _) => {}
        }
        changed.old.retain(|ca| now < ca.not_after);
        Ok(changed)
    }

    fn trusted(&self) -> impl Iterator<Item = &Certificate> {
        let next = self.next.as_ref().map(|next| &next.certificate);
        [&self.signer.certificate].into_iter().chain(next).chain(&self.old)
    }
}

impl std::fmt::Debug for Material {
    /// Without the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Material").field("expires", &self.expires()).finish_non_exhaustive()
    }
}

// === impl Pair ===

impl Pair {
    fn parse(
        data: &BTreeMap<String, ByteString>,
        cert: &'static str,
        key: &'static str,
    ) -> Result<Self, MaterialError> {
        let certificate = certificates(data, cert)?.into_iter().next().ok_or(MaterialError::Missing(cert))?;
        let text = data.get(key).ok_or(MaterialError::Missing(key))?.0.clone();
        let text = String::from_utf8(text).map_err(|_| MaterialError::Text(key))?;
        Ok(Self { certificate, key: text })
    }

    fn issuer(&self) -> Result<Issuer<'static, KeyPair>, rcgen::Error> {
        Issuer::from_ca_cert_der(&self.certificate.der, KeyPair::from_pem(&self.key)?)
    }
}

// === impl Certificate ===

impl Certificate {
    fn parse(pem: &str, key: &'static str) -> Result<Self, MaterialError> {
        let der =
            CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|source| MaterialError::Pem { key, source })?;
        let unparsable = MaterialError::Certificate(key);
        let Ok((_, parsed)) = X509Certificate::from_der(&der) else { return Err(unparsable) };
        let (from, to) = (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
        let (Ok(not_before), Ok(not_after)) = (Timestamp::from_second(from), Timestamp::from_second(to)) else {
            return Err(unparsable);
        };
        Ok(Self { pem: format!("{}\n", pem.trim()), der, not_before, not_after })
    }

    fn is_valid(&self, now: Timestamp) -> bool {
        self.not_before <= now && now < self.not_after
    }

    /// Two thirds of its life.
    fn renewal(&self) -> Timestamp {
        let life = self.not_after.as_second() - self.not_before.as_second();
        Timestamp::from_second(self.not_before.as_second() + life / 3 * 2).unwrap_or(self.not_after)
    }
}

fn certificates(data: &BTreeMap<String, ByteString>, key: &'static str) -> Result<Vec<Certificate>, MaterialError> {
    let ByteString(text) = data.get(key).ok_or(MaterialError::Missing(key))?;
    let text = str::from_utf8(text).map_err(|_| MaterialError::Text(key))?;
    let blocks = text.split_inclusive("-----END CERTIFICATE-----").filter(|block| !block.trim().is_empty());
    blocks.map(|block| Certificate::parse(block, key)).collect()
}

/// Whether a client that trusts `bundle` and expects `name` takes this certificate, in the way of webpki and Go.
pub(super) fn accepts(bundle: &str, leaf: &CertificateDer<'_>, name: &str, now: Timestamp) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(bundle.as_bytes()).filter_map(Result::ok));
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
    let (Ok(verifier), Ok(name)) = (verifier, ServerName::try_from(name)) else { return false };
    let now = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0)));
    verifier.verify_server_cert(leaf, &[], &name, &[], now).is_ok()
}

fn new_ca(name: &str, now: Timestamp) -> Result<Pair, MaterialError> {
    // The time makes the names of two CAs differ, which verifiers need to tell them apart.
    let mut parameters = parameters(&format!("CA {} of {name}", now.as_second()), now, until(now, CA_LIFETIME)?)?;
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    pair(parameters.self_signed(&key)?, &key)
}

fn new_leaf(name: &str, signer: &Pair, now: Timestamp) -> Result<Pair, MaterialError> {
    let not_after = until(now, LEAF_LIFETIME)?.min(signer.certificate.not_after);
    let mut parameters = parameters(name, now, not_after)?;
    parameters.subject_alt_names = vec![SanType::DnsName(name.try_into()?)];
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    parameters.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    pair(parameters.signed_by(&key, &signer.issuer()?)?, &key)
}

fn pair(certificate: rcgen::Certificate, key: &KeyPair) -> Result<Pair, MaterialError> {
    let certificate = Certificate::parse(&certificate.pem(), TLS_CERT)?;
    Ok(Pair { certificate, key: key.serialize_pem() })
}

fn parameters(common_name: &str, now: Timestamp, not_after: Timestamp) -> Result<CertificateParams, MaterialError> {
    let mut parameters = CertificateParams::default();
    let mut name = DistinguishedName::new();
    // X.520 gives a common name 64 characters.
    name.push(DnType::CommonName, common_name.chars().take(64).collect::<String>());
    parameters.distinguished_name = name;
    parameters.not_before = (system_time(now)? - BACKDATE).into();
    parameters.not_after = system_time(not_after)?.into();
    Ok(parameters)
}

fn until(now: Timestamp, lifetime: Duration) -> Result<Timestamp, MaterialError> {
    now.checked_add(lifetime).map_err(|_| MaterialError::Time(now))
}

fn system_time(time: Timestamp) -> Result<std::time::SystemTime, MaterialError> {
    let seconds = u64::try_from(time.as_second()).map_err(|_| MaterialError::Time(time))?;
    Ok(std::time::UNIX_EPOCH + Duration::from_secs(seconds))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests;
