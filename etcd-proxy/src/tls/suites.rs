//! Cipher suites towards clients, by the names that Go gives them (`crypto/tls.CipherSuites`), which are IANA's.

use std::sync::{Arc, LazyLock};

use rustls::{SupportedCipherSuite, crypto::CryptoProvider, version::TLS12};

use super::client::PROVIDER;

/// The cipher suites that clients may use; all that rustls has by default, none of which is weak.
///
/// As in Go, what is chosen is those of TLS 1.2: with TLS 1.3 there are always all of its own. Which one is used of those that
/// both sides have is not said by their order here.
#[derive(Clone, Debug)]
pub struct CipherSuites {
    provider: Arc<CryptoProvider>,
}

/// A name that is no suite of rustls. Those of Go's that rustls has not (with CBC, RC4 or without forward secrecy) are weak.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not among the cipher suites that there are, {known}", known = known().join(", "))]
pub struct UnknownSuite(String);

/// Every suite with its name in Go.
static NAMES: LazyLock<Vec<(SupportedCipherSuite, String)>> = LazyLock::new(|| {
    let named = |suite: &SupportedCipherSuite| {
        // rustls tells the suites of TLS 1.3 apart by a prefix of its own.
        suite.suite().as_str().map(|name| (*suite, name.replacen("TLS13_", "TLS_", 1)))
    };
    PROVIDER.cipher_suites.iter().filter_map(named).collect()
});

fn known() -> Vec<&'static str> {
    NAMES.iter().map(|(_, name)| name.as_str()).collect()
}

// === impl CipherSuites ===

impl CipherSuites {
    /// Those of these names alone. etcd knows two by their former names, without `_SHA256`, too
    /// (`client/pkg/tlsutil.GetCipherSuite`).
    ///
    /// # Errors
    /// When a name is not among those that there are, which the error lists.
    pub fn named(names: &[String]) -> Result<Self, UnknownSuite> {
        let find = |given: &String| {
            let full = if given.ends_with("_CHACHA20_POLY1305") { format!("{given}_SHA256") } else { given.clone() };
            let suite = NAMES.iter().find(|(_, name)| *name == full).map(|(suite, _)| *suite);
            suite.ok_or_else(|| UnknownSuite(given.clone()))
        };
        let chosen = names.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let mut provider = CryptoProvider::clone(&PROVIDER);
        provider.cipher_suites.retain(|suite| suite.version() != &TLS12 || chosen.contains(suite));
        Ok(Self { provider: Arc::new(provider) })
    }

    /// Whether a client that speaks TLS 1.2 alone can be served.
    pub fn serve_tls12(&self) -> bool {
        self.provider.cipher_suites.iter().any(|suite| suite.version() == &TLS12)
    }

    pub(super) fn provider(&self) -> Arc<CryptoProvider> {
        self.provider.clone()
    }
}

impl Default for CipherSuites {
    fn default() -> Self {
        Self { provider: PROVIDER.clone() }
    }
}

#[cfg(test)]
mod tests {
    use rustls::CipherSuite;

    use super::*;

    fn named(names: &[&str]) -> Result<CipherSuites, UnknownSuite> {
        CipherSuites::named(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }

    fn of_tls12(suites: &CipherSuites) -> Vec<CipherSuite> {
        let suites = suites.provider.cipher_suites.iter();
        suites.filter(|suite| suite.version() == &TLS12).map(SupportedCipherSuite::suite).collect()
    }

    #[test]
    fn suites_have_the_names_that_go_gives_them() {
        let mut names = known();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "TLS_AES_128_GCM_SHA256",
                "TLS_AES_256_GCM_SHA384",
                "TLS_CHACHA20_POLY1305_SHA256",
                "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
                "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
                "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
                "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
                "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
                "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
            ]
        );
    }

    #[test]
    fn what_is_named_is_chosen_of_tls_1_2_alone() {
        let suites =
            named(&["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305"]).unwrap();
        let mut chosen = of_tls12(&suites);
        chosen.sort_unstable_by_key(|suite| u16::from(*suite));
        assert_eq!(
            chosen,
            [
                CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
                CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            ]
        );
        assert_eq!(suites.provider.cipher_suites.len(), 2 + 3, "all of TLS 1.3");
        let only_13 = named(&["TLS_AES_128_GCM_SHA256"]).unwrap();
        assert!(suites.serve_tls12() && !only_13.serve_tls12());
        assert_eq!(only_13.provider.cipher_suites.len(), 3, "all of TLS 1.3");
    }

    #[test]
    fn a_suite_that_is_not_there_is_refused_with_those_that_are() {
        for name in ["TLS_RSA_WITH_AES_128_CBC_SHA", "TLS_ECDHE_RSA_WITH_RC4_128_SHA", "TLS13_AES_128_GCM_SHA256", "x"]
        {
            let error = named(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", name]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"), "{error}");
        }
    }
}
