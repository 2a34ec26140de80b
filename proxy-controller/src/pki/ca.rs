//! One CA: a key, its own certificate, and certificates of the same key by older CAs.

use std::{fmt, sync::Arc, time::SystemTime};

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SerialNumber,
};
use ring::{
    rand::{SecureRandom as _, SystemRandom},
    signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey},
};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::{certificate::X509Certificate, prelude::FromDer as _};

use super::{BACKDATE, Generation, Owner, PkiError, Wanted, after, part};

/// A CA with its private key.
#[derive(Clone)]
pub(super) struct Ca {
    pub(super) generation: Generation,
    /// The request for replacement that it answered.
    pub(super) rotation: i64,
    pub(super) issued: Timestamp,
    pub(super) not_after: Timestamp,
    /// When the last leaf that it signed expires.
    pub(super) leaves_until: Timestamp,
    pub(super) pem: String,
    pub(super) key: Arc<KeyPair>,
    /// Newest issuer first. Empty for a retired CA.
    pub(super) crosses: Vec<Cross>,
}

/// A certificate of a CA's key by an older CA.
#[derive(Clone, Debug)]
pub(super) struct Cross {
    pub(super) issuer: Generation,
    pub(super) not_after: Timestamp,
    pub(super) pem: String,
}

// === impl Ca ===

impl Ca {
    /// Makes a key and a self-signed certificate.
    pub(super) fn create(
        wanted: &Wanted,
        generation: Generation,
        rotation: i64,
        now: Timestamp,
    ) -> Result<Self, PkiError> {
        let issued = whole(now)?;
        let not_after = after(issued, wanted.ca_validity)?;
        let key = KeyPair::generate().map_err(crypto)?;
        let params = params(&wanted.owner, generation, issued, not_after)?;
        let pem = params.self_signed(&key).map_err(crypto)?.pem();
        Ok(Self {
            generation,
            rotation,
            issued,
            not_after,
            leaves_until: issued,
            pem,
            key: Arc::new(key),
            crosses: Vec::new(),
        })
    }

    /// Has the key certified by `older` too, for those who know only that one.
    pub(super) fn cross_sign(&mut self, owner: &Owner, older: &Self, now: Timestamp) -> Result<(), PkiError> {
        let not_after = self.not_after.min(older.not_after);
        let params = params(owner, self.generation, whole(now)?, not_after)?;
        let pem = params.signed_by(&*self.key, &older.issuer(owner)?).map_err(crypto)?.pem();
        self.crosses.push(Cross { issuer: older.generation, not_after, pem });
        Ok(())
    }

    /// What signs with this CA's key and name.
    pub(super) fn issuer(&self, owner: &Owner) -> Result<Issuer<'static, &KeyPair>, PkiError> {
        Ok(Issuer::new(params(owner, self.generation, self.issued, self.not_after)?, &*self.key))
    }

    /// When time comes to make the next CA: at two thirds of this one's life.
    pub(super) fn due(&self) -> Timestamp {
        part(self.issued, self.not_after, 2, 3)
    }

    /// When the next CA has to sign, proven to be trusted or not: with half of the time left that [`Self::due`] left.
    pub(super) fn overdue(&self) -> Timestamp {
        part(self.issued, self.not_after, 5, 6)
    }

    pub(super) fn expired(&self, now: Timestamp) -> bool {
        now >= self.not_after
    }

    /// Whole seconds.
    pub(super) fn life(&self) -> u64 {
        u64::try_from(self.not_after.as_second().saturating_sub(self.issued.as_second())).unwrap_or_default()
    }

    /// Whether this CA's key signed `certificate`.
    pub(super) fn signed(&self, certificate: &X509Certificate<'_>) -> bool {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, self.key.public_key_raw())
            .verify(certificate.tbs_certificate.as_ref(), &certificate.signature_value.data)
            .is_ok()
    }

    /// The CA's common name.
    pub(super) fn common_name(owner: &Owner, generation: Generation) -> String {
        format!("{}/{} CA {generation}", owner.namespace, owner.name)
    }
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ca")
            .field("generation", &self.generation)
            .field("rotation", &self.rotation)
            .field("issued", &self.issued)
            .field("not_after", &self.not_after)
            .field("leaves_until", &self.leaves_until)
            .field("crosses", &self.crosses.iter().map(|cross| cross.issuer).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// The parameters of a certificate of a CA's key, whoever signs it. The object's uid is in the name, so that a later object
/// of the same name has CAs of other names.
fn params(
    owner: &Owner,
    generation: Generation,
    issued: Timestamp,
    not_after: Timestamp,
) -> Result<CertificateParams, PkiError> {
    let mut params = validity(CertificateParams::default(), issued, not_after)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, owner.uid.as_str());
    params.distinguished_name.push(DnType::CommonName, Ca::common_name(owner, generation));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    Ok(params)
}

/// Sets what every certificate has: dates, a random serial number, the signer's key id.
pub(super) fn validity(
    mut params: CertificateParams,
    issued: Timestamp,
    not_after: Timestamp,
) -> Result<CertificateParams, PkiError> {
    params.not_before = SystemTime::from(not_before(issued)?).into();
    params.not_after = SystemTime::from(not_after).into();
    let mut serial = [0; 16];
    SystemRandom::new().fill(&mut serial).map_err(|_| PkiError::Crypto("the system has no randomness".to_owned()))?;
    // Positive, and 16 bytes however they fall.
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn not_before(issued: Timestamp) -> Result<Timestamp, PkiError> {
    issued.checked_sub(BACKDATE).map_err(|error| PkiError::Crypto(error.to_string()))
}

/// When a certificate was issued: the inverse of what [`validity`] does.
pub(super) fn issued(certificate: &X509Certificate<'_>) -> Option<Timestamp> {
    let not_before = Timestamp::from_second(certificate.validity().not_before.timestamp()).ok()?;
    not_before.checked_add(BACKDATE).ok()
}

/// A certificate's `notAfter`.
pub(super) fn not_after(certificate: &X509Certificate<'_>) -> Option<Timestamp> {
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

/// Certificates know whole seconds.
pub(super) fn whole(now: Timestamp) -> Result<Timestamp, PkiError> {
    Timestamp::from_second(now.as_second()).map_err(|error| PkiError::Crypto(error.to_string()))
}

/// The only certificate in `pem`; `None` if there is none, or another, or anything around it.
pub(super) fn single(pem: &str) -> Option<CertificateDer<'static>> {
    if !pem.starts_with("-----BEGIN CERTIFICATE-----\n") || !pem.ends_with("\n-----END CERTIFICATE-----\n") {
        return None;
    }
    let mut all = CertificateDer::pem_slice_iter(pem.as_bytes());
    let only = all.next()?.ok()?;
    all.next().is_none().then_some(only)
}

/// Reads a certificate and nothing after it.
pub(super) fn parse<'a>(der: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    let (rest, certificate) = X509Certificate::from_der(der).ok()?;
    rest.is_empty().then_some(certificate)
}

#[expect(clippy::needless_pass_by_value, reason = "the form that map_err takes")]
pub(super) fn crypto(error: rcgen::Error) -> PkiError {
    PkiError::Crypto(error.to_string())
}
