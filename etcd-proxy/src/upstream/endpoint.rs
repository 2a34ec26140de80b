//! Where an etcd member listens, in the notations that etcdctl and etcd's clients accept.

use std::{fmt, path::PathBuf, str::FromStr};

use http::uri::{Authority, Scheme};
use rustls::pki_types::ServerName;

/// A transport address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host name or IP address (without brackets), and port.
    Tcp(String, u16),
    /// Path of a socket in the file system.
    Unix(PathBuf),
}

/// One address of the shared etcd, and whether it speaks TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Where to connect.
    pub address: Address,
    /// TLS or plaintext.
    pub tls: bool,
    authority: Authority,
}

/// An endpoint that cannot be understood.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "endpoint {endpoint:?}: {reason}; write http://HOST:PORT, https://HOST:PORT, unix:///PATH, unixs:///PATH or HOST:PORT"
)]
pub struct EndpointError {
    endpoint: String,
    reason: &'static str,
}

// === impl Endpoint ===

impl Endpoint {
    /// Reads `text`. Without a scheme the endpoint speaks TLS if `tls_by_default`, as with etcdctl when it is given certificates.
    ///
    /// # Errors
    /// Says what is wrong with `text` and what is accepted.
    pub fn parse(text: &str, tls_by_default: bool) -> Result<Self, EndpointError> {
        let refuse = |reason| EndpointError { endpoint: text.to_owned(), reason };
        let (tls, rest, unix) = if let Some(rest) = text.strip_prefix("https://") {
            (true, rest, false)
        } else if let Some(rest) = text.strip_prefix("http://") {
            (false, rest, false)
        } else if let Some(rest) = text.strip_prefix("unixs:") {
            (true, rest, true)
        } else if let Some(rest) = text.strip_prefix("unix:") {
            (false, rest, true)
        } else if text.contains("://") {
            return Err(refuse("unknown scheme"));
        } else {
            (tls_by_default, text, false)
        };
        if unix {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            if path.is_empty() {
                return Err(refuse("the path of the socket is missing"));
            }
            let authority = Authority::from_static("localhost");
            return Ok(Self { address: Address::Unix(path.into()), tls, authority });
        }
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let authority = Authority::from_str(rest).map_err(|_| refuse("not a host and port"))?;
        if authority.as_str().contains('@') {
            return Err(refuse("a user name has no place in it"));
        }
        let port = match authority.port_u16() {
            Some(port) => port,
            None if authority.as_str().len() > authority.host().len() + 1 => {
                return Err(refuse("the port is no number up to 65535"));
            }
            None => return Err(refuse("the port is missing")),
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(refuse("the host is missing"));
        }
        Ok(Self { address: Address::Tcp(host, port), tls, authority })
    }

    /// The name that the member's certificate must bear: the host, or, as etcd's clients have it, the last part of a socket's
    /// path up to a colon.
    ///
    /// # Errors
    /// If that is neither a DNS name nor an IP address.
    pub fn server_name(&self) -> Result<ServerName<'static>, EndpointError> {
        let refuse = |reason| EndpointError { endpoint: self.to_string(), reason };
        let (name, otherwise) = match &self.address {
            Address::Tcp(host, _) => (host.as_str(), "the host is neither a DNS name nor an IP address"),
            Address::Unix(path) => {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                (
                    name.split(':').next().unwrap_or_default(),
                    "the socket's name, which the certificate must bear, is neither a DNS name nor an IP address",
                )
            }
        };
        ServerName::try_from(name.to_owned()).map_err(|_| refuse(otherwise))
    }

    pub(super) fn authority(&self) -> &Authority {
        &self.authority
    }

    pub(super) fn scheme(&self) -> Scheme {
        if self.tls { Scheme::HTTPS } else { Scheme::HTTP }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.address, self.tls) {
            (Address::Tcp(..), false) => write!(f, "http://{}", self.authority),
            (Address::Tcp(..), true) => write!(f, "https://{}", self.authority),
            (Address::Unix(path), false) => write!(f, "unix://{}", path.display()),
            (Address::Unix(path), true) => write!(f, "unixs://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_etcdctl_accepts() {
        let tcp = |host: &str, port| Address::Tcp(host.to_owned(), port);
        for (text, tls_by_default, address, tls) in [
            ("127.0.0.1:2379", false, tcp("127.0.0.1", 2379), false),
            ("127.0.0.1:2379", true, tcp("127.0.0.1", 2379), true),
            ("http://etcd:2379", true, tcp("etcd", 2379), false),
            ("https://etcd-0.etcd.svc:2379/", false, tcp("etcd-0.etcd.svc", 2379), true),
            ("https://[::1]:2379", false, tcp("::1", 2379), true),
            ("unix:///run/etcd.sock", true, Address::Unix("/run/etcd.sock".into()), false),
            ("unix:/run/etcd.sock", false, Address::Unix("/run/etcd.sock".into()), false),
            ("unixs:///run/etcd.sock", false, Address::Unix("/run/etcd.sock".into()), true),
        ] {
            let endpoint = Endpoint::parse(text, tls_by_default).unwrap();
            assert_eq!((&endpoint.address, endpoint.tls), (&address, tls), "{text}");
            assert!(endpoint.server_name().is_ok(), "{text}");
        }
    }

    /// As etcdctl would look for it (`client/v3/internal/endpoint`).
    #[test]
    fn certificates_bear_the_host_or_the_name_of_the_socket() {
        for (text, name) in [
            ("https://etcd-0.etcd.svc:2379", Some("etcd-0.etcd.svc")),
            ("https://[::1]:2379", Some("::1")),
            ("unixs:///run/etcd.sock", Some("etcd.sock")),
            ("unixs:///run/localhost:m0", Some("localhost")),
            ("unixs://127.0.0.1:2379", Some("127.0.0.1")),
            ("unixs:///run/my socket", None),
            ("unixs:///run/..", None),
        ] {
            let found = Endpoint::parse(text, false).unwrap().server_name();
            assert_eq!(found.as_ref().ok().map(|name| name.to_str()).as_deref(), name, "{text}: {found:?}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, reason) in [
            ("", "not a host"),
            ("etcd", "port is missing"),
            ("etcd:", "port is missing"),
            ("[::1]", "port is missing"),
            ("etcd:65536", "no number up to 65535"),
            ("[::1]:99999", "no number up to 65535"),
            ("http://:2379", "host"),
            ("ftp://etcd:2379", "unknown scheme"),
            ("http://user@etcd:2379", "user name"),
            ("http://etcd:2379/path", "not a host and port"),
            ("unix://", "path"),
        ] {
            let message = Endpoint::parse(text, false).unwrap_err().to_string();
            assert!(message.contains(reason) && message.contains("HOST:PORT"), "{text}: {message}");
        }
    }
}
