//! Certificates in Secrets, judged as the other side of a connection would.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::WebPkiClientVerifier,
    sign::CertifiedKey,
};
use serde_json::Value;
use x509_parser::prelude::{FromDer, X509Certificate};

/// A chain with its key, out of a Secret of type `kubernetes.io/tls`.
pub(super) struct Leaf {
    chain: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

/// A file in a Secret.
pub(super) fn file(secret: &Value, name: &str) -> Result<String> {
    let data = secret.get("data").and_then(|data| data.get(name)).and_then(Value::as_str);
    let data = data.with_context(|| format!("no {name}"))?;
    Ok(String::from_utf8(STANDARD.decode(data)?)?)
}

fn roots(bundle: &str) -> Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate?)?;
    }
    ensure!(!roots.is_empty(), "an empty bundle");
    Ok(Arc::new(roots))
}

impl Leaf {
    /// Certificate and key must belong together.
    pub(super) fn of(secret: &Value) -> Result<Self> {
        let chain =
            CertificateDer::pem_slice_iter(file(secret, "tls.crt")?.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(file(secret, "tls.key")?.as_bytes())?;
        let provider = Arc::new(ring::default_provider());
        CertifiedKey::from_der(chain.clone(), key, &provider)?.keys_match()?;
        Ok(Self { chain, provider })
    }

    fn parts(&self) -> Result<(&CertificateDer<'static>, &[CertificateDer<'static>])> {
        self.chain.split_first().context("an empty chain")
    }

    /// As a client that knows `bundle` and calls `host`.
    pub(super) fn serves(&self, bundle: &str, host: &str) -> Result<()> {
        let (leaf, further) = self.parts()?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots(bundle)?, self.provider.clone()).build()?;
        let name = ServerName::try_from(host.to_owned())?;
        verifier
            .verify_server_cert(leaf, further, &name, &[], UnixTime::now())
            .map(drop)
            .with_context(|| host.to_owned())
    }

    /// As a server that knows `bundle` and expects `common_name`.
    pub(super) fn is_client(&self, bundle: &str, common_name: &str) -> Result<()> {
        let (leaf, further) = self.parts()?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots(bundle)?, self.provider.clone()).build()?;
        verifier.verify_client_cert(leaf, further, UnixTime::now())?;
        let (_, certificate) = X509Certificate::from_der(leaf).map_err(|error| anyhow!("{error}"))?;
        let found = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        ensure!(found == Some(common_name), "the name is {found:?}, not {common_name}");
        Ok(())
    }

    /// Good for `validity` from some moment in the past, and not for longer.
    pub(super) fn ends_within(&self, validity: Duration) -> Result<()> {
        let (_, certificate) = X509Certificate::from_der(self.parts()?.0).map_err(|error| anyhow!("{error}"))?;
        let left = certificate.validity().time_to_expiration().context("expired")?;
        ensure!(left.unsigned_abs() <= validity, "it is good for {left}, and {validity:?} was asked for");
        Ok(())
    }
}
