//! Where etcd is, and how a connection to it is made: TCP, through a proxy if there is one, or a unix socket; plain or TLS.

use std::{
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use proto::etcdserverpb::RangeRequest;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};
use tokio_rustls::TlsConnector;
use tonic::{
    Code,
    transport::{Channel, Endpoint, Uri},
};

use super::{
    OptionsError,
    error::{chain, is_transport},
    range,
};
use crate::egress::{self, DialError};

/// The files of a TLS connection. They are read anew for every connection, so that renewed ones are used without a restart.
#[derive(Clone, Debug)]
pub(super) struct TlsFiles {
    pub(super) ca: PathBuf,
    pub(super) identity: Option<(PathBuf, PathBuf)>,
}

/// How the HTTP/2 connections of one kind are set up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transport {
    pub(super) dial_timeout: Duration,
    pub(super) keepalive_interval: Duration,
    pub(super) keepalive_timeout: Duration,
    /// How much a call's answer may be ahead of its reader, in bytes.
    pub(super) stream_window: u32,
    /// The same for the whole connection. Far larger, so that readers that stand still do not stop the others.
    pub(super) connection_window: u32,
}

/// One etcd server.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// As it was given.
    pub(super) name: String,
    address: Address,
    tls: Option<(TlsFiles, ServerName<'static>)>,
    /// What the requests say they are for; scheme and authority.
    origin: Uri,
}

#[derive(Clone, Debug)]
enum Address {
    Tcp(String),
    Unix(PathBuf),
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

// === impl Target ===

impl Target {
    /// Reads `http://HOST:PORT`, `https://HOST:PORT`, `unix:PATH`, `unix://PATH`, or `HOST:PORT`, which is https when there
    /// are TLS files and http otherwise.
    pub(super) fn parse(server: &str, files: Option<&TlsFiles>) -> Result<Self, OptionsError> {
        let wrong = |why: &str| OptionsError::Server { server: server.to_owned(), why: why.to_owned() };
        if let Some(path) = server.strip_prefix("unix://").or_else(|| server.strip_prefix("unix:")) {
            if path.is_empty() {
                return Err(wrong("the path of the socket is missing"));
            }
            let origin = Uri::from_static("http://localhost");
            return Ok(Self { name: server.to_owned(), address: Address::Unix(path.into()), tls: None, origin });
        }
        let text = match (server.contains("://"), files) {
            (true, _) => server.to_owned(),
            (false, Some(_)) => format!("https://{server}"),
            (false, None) => format!("http://{server}"),
        };
        let uri: Uri = text.parse().map_err(|error: http::uri::InvalidUri| wrong(&error.to_string()))?;
        let (Some(host), Some(port)) = (uri.host(), uri.port_u16()) else {
            return Err(wrong("it needs a host and a port"));
        };
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("a path or a query has no meaning for etcd"));
        }
        let tls = match (uri.scheme_str(), files) {
            (Some("http"), _) => None,
            (Some("https"), Some(files)) => {
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(host).map_err(|error| wrong(&error.to_string()))?;
                Some((files.clone(), name))
            }
            (Some("https"), None) => {
                return Err(wrong("https needs the CA that signed etcd's certificate (--etcd-cafile)"));
            }
            _ => return Err(wrong("the scheme is none of http, https, unix")),
        };
        // The port was read, so there is an authority.
        let authority = format!("{host}:{port}");
        Ok(Self { name: server.to_owned(), address: Address::Tcp(authority), tls, origin: uri })
    }

    pub(super) fn uses_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Connects, and answers when the server has answered a read of the key `proof`. When the connection is lost, it stays
    /// so: calls on it fail unsent.
    pub(super) async fn dial(&self, transport: Transport, proof: &Bytes) -> Result<Channel, String> {
        let mut target = Some(self.clone());
        let connector = tower::service_fn(move |_: Uri| {
            // Left to itself tonic would connect again, to this server and to no other.
            let target = target.take();
            let io: Pin<Box<dyn Future<Output = Result<_, DialError>> + Send>> = Box::pin(async move {
                let target = target.ok_or("the connection was lost")?;
                Ok(TokioIo::new(target.open().await?))
            });
            io
        });
        // The connector speaks TLS itself. To tonic the connection is a plain one, only what it says about it is not.
        let endpoint = Endpoint::from_static("http://etcd")
            .origin(self.origin.clone())
            .connect_timeout(transport.dial_timeout)
            .initial_stream_window_size(transport.stream_window)
            .initial_connection_window_size(transport.connection_window)
            .http2_keep_alive_interval(transport.keepalive_interval)
            .keep_alive_timeout(transport.keepalive_timeout)
            // etcd closes connections that ping without a call under way (PermitWithoutStream in embed/etcd.go).
            .keep_alive_while_idle(false);
        let dial = async {
            let channel = endpoint.connect_with_connector(connector).await.map_err(|error| chain(&error))?;
            // A connection is no sign of a server that works: something else may have accepted it, and a client's
            // certificate is refused after the handshake. The member's own word is enough; it need not have a leader.
            let request = RangeRequest { key: proof.clone(), limit: 1, serializable: true, ..RangeRequest::default() };
            match range(channel.clone(), request).await {
                Err(status) if is_transport(&status) || status.code() == Code::Unavailable => Err(chain(&status)),
                _answered => Ok(channel),
            }
        };
        match tokio::time::timeout(transport.dial_timeout, dial).await {
            Ok(Ok(channel)) => Ok(channel),
            Ok(Err(why)) => Err(format!("{}: {why}", self.name)),
            Err(_) => Err(format!("{}: no answer within {:?}", self.name, transport.dial_timeout)),
        }
    }

    async fn open(&self) -> Result<Box<dyn Io>, DialError> {
        let io: Box<dyn Io> = match &self.address {
            Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Address::Tcp(authority) => {
                let stream = egress::connect(authority).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
        };
        match &self.tls {
            None => Ok(io),
            Some((files, name)) => {
                let config = files.load().await?;
                Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name.clone(), io).await?))
            }
        }
    }
}

// === impl TlsFiles ===

impl TlsFiles {
    /// Reads the files and checks that they fit together.
    pub(super) async fn load(&self) -> Result<ClientConfig, OptionsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca).await? {
            roots.add(certificate).map_err(|error| file_error(&self.ca, error))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| file_error(&self.ca, error))?
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let pem = read(key).await?;
                let parsed = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| file_error(key, error))?;
                builder
                    .with_client_auth_cert(certificates(certificate).await?, parsed)
                    .map_err(|error| file_error(certificate, error))?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

async fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, OptionsError> {
    let pem = read(path).await?;
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().map_err(|error| file_error(path, error))?;
    if certificates.is_empty() {
        return Err(file_error(path, "there is no certificate in it"));
    }
    Ok(certificates)
}

async fn read(path: &Path) -> Result<Vec<u8>, OptionsError> {
    tokio::fs::read(path).await.map_err(|error| file_error(path, error))
}

fn file_error(path: &Path, error: impl ToString) -> OptionsError {
    OptionsError::File { path: path.to_owned(), why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> TlsFiles {
        TlsFiles { ca: "ca.crt".into(), identity: None }
    }

    #[test]
    fn servers_are_read_as_etcd_reads_them() {
        let plain = Target::parse("http://10.0.0.1:2379", None).unwrap();
        assert!(matches!(&plain.address, Address::Tcp(at) if at == "10.0.0.1:2379") && !plain.uses_tls());
        let tls = Target::parse("https://etcd.kube-system.svc:2379", Some(&files())).unwrap();
        assert_eq!(tls.tls.unwrap().1, ServerName::try_from("etcd.kube-system.svc").unwrap());
        let v6 = Target::parse("https://[::1]:2379", Some(&files())).unwrap();
        assert!(matches!(&v6.address, Address::Tcp(at) if at == "[::1]:2379"));
        assert_eq!(v6.tls.unwrap().1, ServerName::try_from("::1").unwrap());
        assert!(!Target::parse("127.0.0.1:2379", None).unwrap().uses_tls());
        assert!(Target::parse("127.0.0.1:2379", Some(&files())).unwrap().uses_tls());
        for socket in ["unix:///run/etcd.sock", "unix:/run/etcd.sock"] {
            let unix = Target::parse(socket, None).unwrap();
            assert!(matches!(&unix.address, Address::Unix(path) if path == &PathBuf::from("/run/etcd.sock")));
        }
    }

    #[test]
    fn a_wrong_server_is_named_with_the_reason() {
        for (server, why) in [
            ("https://a:2379", "--etcd-cafile"),
            ("http://a", "host and a port"),
            ("ftp://a:2379", "scheme"),
            ("http://a:2379/v3", "path"),
            ("unix:", "path of the socket"),
            ("http://a b:1", "invalid"),
        ] {
            let error = Target::parse(server, None).unwrap_err().to_string();
            assert!(error.contains(server) && error.contains(why), "{error}");
        }
    }
}
