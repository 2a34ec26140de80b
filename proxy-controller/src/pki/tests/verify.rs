//! Verification as a TLS peer does it. webpki does not look at the dates of trust anchors and Go does: here an expired one is
//! not used.

use std::sync::Arc;

use jiff::Timestamp;
use rustls::{
    CertificateError, RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    crypto::ring::default_provider,
    server::WebPkiClientVerifier,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _};

use super::super::{
    Identity,
    ca::{not_after, parse},
};

pub(super) fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect()
}

/// Whether some CA of the bundle has not expired.
pub(super) fn alive(bundle: &str, now: Timestamp) -> bool {
    !anchors(bundle, now).is_empty()
}

fn anchors(bundle: &str, now: Timestamp) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(bundle) {
        if not_after(&parse(&certificate).unwrap()).unwrap() > now {
            roots.add(certificate).unwrap();
        }
    }
    roots
}

fn unix(now: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(now.as_second().try_into().unwrap()))
}

fn reason(error: rustls::Error) -> CertificateError {
    match error {
        rustls::Error::InvalidCertificate(error) => error,
        other => panic!("{other}"),
    }
}

/// A client that trusts `bundle` meets a server with `identity`.
pub(super) fn server(bundle: &str, identity: &Identity, name: &str, now: Timestamp) -> Result<(), CertificateError> {
    let chain = certificates(&identity.chain);
    let roots = anchors(bundle, now);
    if roots.is_empty() {
        return Err(CertificateError::UnknownIssuer);
    }
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider())).build().unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    verifier.verify_server_cert(&chain[0], &chain[1..], &name, &[], unix(now)).map(drop).map_err(reason)
}

/// A server that trusts `bundle` meets a client with `identity`.
pub(super) fn client(bundle: &str, identity: &Identity, now: Timestamp) -> Result<(), CertificateError> {
    let chain = certificates(&identity.chain);
    let roots = anchors(bundle, now);
    if roots.is_empty() {
        return Err(CertificateError::UnknownIssuer);
    }
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider())).build().unwrap();
    verifier.verify_client_cert(&chain[0], &chain[1..], unix(now)).map(drop).map_err(reason)
}
