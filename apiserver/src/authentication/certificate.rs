//! Client certificates: verification, and the user they name
//! (k8s.io/apiserver `pkg/authentication/request/x509/x509.go`).

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ring::digest;
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer as _, X509Certificate, X509Version};

use super::{AuthenticationError, CaBundle};
use crate::request::UserInfo;

/// How long a verdict on a certificate counts on one connection. Verifying takes a good part of a small request's time,
/// and the aggregator sends all its requests over few connections.
const VERDICT_LIFETIME: Duration = Duration::from_secs(10);

/// The object identifier of a user's unique id in a certificate's subject (k8s.io/apimachinery `pkg/apis/asn1`).
const UID_OID: &str = "1.3.6.1.4.1.57683.2";

/// What is told to whoever issued a certificate that is not of version 3.
const OLD_VERSION: &str = " (it is an X.509 certificate of version 1 or 2, and only version 3 can be verified: issue it \
    anew with extensions, for example by \"openssl x509 -req … -extfile client.ext\" with a file client.ext that says \
    \"extendedKeyUsage = clientAuth\")";

/// The other end of a connection.
#[derive(Default)]
pub struct Peer {
    /// What the peer sent, its own certificate first. It holds the key, and more is not known.
    chain: Vec<CertificateDer<'static>>,
    verdicts: Mutex<Vec<Verdict>>,
}

struct Verdict {
    ca: u64,
    since: Instant,
    outcome: Result<(), String>,
}

/// What the subject of a certificate says.
struct Subject {
    common_name: String,
    organizations: Vec<String>,
    uid: String,
}

// === impl Peer ===

impl Peer {
    /// A peer that sent this chain of certificates, and proved to hold the first one's key.
    pub fn new(chain: Vec<CertificateDer<'static>>) -> Self {
        Self { chain, verdicts: Mutex::default() }
    }

    /// Whether the peer sent a certificate.
    pub fn has_certificate(&self) -> bool {
        !self.chain.is_empty()
    }

    /// Whether the certificate is of this CA, for client authentication, and valid now. A verdict counts for
    /// a few seconds, and never for another CA.
    pub fn verify(&self, ca: &CaBundle) -> Result<(), AuthenticationError> {
        let now = Instant::now();
        let mut verdicts = self.verdicts.lock();
        verdicts.retain(|v| now.saturating_duration_since(v.since) < VERDICT_LIFETIME);
        let outcome = match verdicts.iter().find(|v| v.ca == ca.id()) {
            Some(verdict) => verdict.outcome.clone(),
            None => {
                let outcome = ca.verify(&self.chain, UnixTime::now()).map_err(|error| error.to_string());
                verdicts.push(Verdict { ca: ca.id(), since: now, outcome: outcome.clone() });
                outcome
            }
        };
        outcome.map_err(|error| {
            let hint = if self.is_old() { OLD_VERSION } else { "" };
            AuthenticationError::new(format!(
                "verifying the client certificate {} failed: {error}{hint}",
                self.describe()
            ))
        })
    }

    /// The user whom the certificate names, if this CA vouches for it.
    ///
    /// # Errors
    /// When a certificate was sent and the CA does not vouch for it.
    pub fn user(&self, ca: &CaBundle) -> Result<Option<UserInfo>, AuthenticationError> {
        let Some(certificate) = self.chain.first() else { return Ok(None) };
        self.verify(ca)?;
        let subject = subject(certificate)?;
        if subject.common_name.is_empty() {
            return Ok(None);
        }
        let fingerprint = hex::encode(digest::digest(&digest::SHA256, certificate));
        Ok(Some(UserInfo {
            name: subject.common_name,
            uid: subject.uid,
            groups: subject.organizations,
            extra: [(
                "authentication.kubernetes.io/credential-id".to_owned(),
                vec![format!("X509SHA256={fingerprint}")],
            )]
            .into(),
        }))
    }

    /// The certificate's common name; empty when there is none.
    ///
    /// # Errors
    /// When the certificate cannot be read.
    pub fn common_name(&self) -> Result<String, AuthenticationError> {
        self.chain.first().map_or_else(|| Ok(String::new()), |certificate| Ok(subject(certificate)?.common_name))
    }

    /// Whether the certificate is of another version than 3.
    fn is_old(&self) -> bool {
        let parsed = self.chain.first().map(|certificate| X509Certificate::from_der(certificate));
        matches!(parsed, Some(Ok((_, parsed))) if parsed.version() != X509Version::V3)
    }

    fn describe(&self) -> String {
        let Some(certificate) = self.chain.first() else { return "(none)".to_owned() };
        match X509Certificate::from_der(certificate) {
            Ok((_, parsed)) => {
                format!("SN={}, subject {:?}", parsed.raw_serial_as_string(), parsed.subject().to_string())
            }
            Err(_) => "(unreadable)".to_owned(),
        }
    }
}

fn subject(certificate: &CertificateDer<'_>) -> Result<Subject, AuthenticationError> {
    let unreadable = |what: &str| AuthenticationError::new(format!("the client certificate's subject: {what}"));
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| unreadable(&error.to_string()))?;
    let mut subject = Subject { common_name: String::new(), organizations: Vec::new(), uid: String::new() };
    for attribute in parsed.subject().iter_attributes() {
        let text = || attribute.as_str().map(str::to_owned).map_err(|_| unreadable("a name is no text"));
        match attribute.attr_type().to_id_string().as_str() {
            "2.5.4.3" => subject.common_name = text()?,
            "2.5.4.10" => subject.organizations.push(text()?),
            UID_OID if !subject.uid.is_empty() => return Err(unreadable("expected 1 UID, but found several")),
            UID_OID => match text()? {
                empty if empty.is_empty() => return Err(unreadable("the UID cannot be an empty string")),
                uid => subject.uid = uid,
            },
            _ => {}
        }
    }
    Ok(subject)
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::pem::PemObject as _;

    use super::*;

    #[test]
    fn an_old_version_is_told_with_its_remedy() {
        let pem = include_bytes!("../server/tests/testdata/version1.pem");
        let peer = Peer::new(vec![CertificateDer::from_pem_slice(pem).unwrap()]);
        let error = peer.user(&CaBundle::from_pem(pem).unwrap()).unwrap_err().to_string();
        assert!(error.contains("only version 3 can be verified") && error.contains("clientAuth"), "{error}");
        assert!(error.contains("CN=jane"), "{error}");
    }

    #[test]
    fn subjects_are_read_as_go_reads_them() {
        let pem = include_bytes!("certificate/testdata/several-names.pem");
        let subject = subject(&CertificateDer::from_pem_slice(pem).unwrap()).unwrap();
        assert_eq!(subject.common_name, "jane", "the last one counts");
        assert_eq!(
            (subject.organizations, subject.uid),
            (vec!["dev".to_owned(), "ops".to_owned()], "uid-7".to_owned())
        );
    }
}
