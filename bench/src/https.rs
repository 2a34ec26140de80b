//! HTTP/1.1 over TLS with as little work as there can be: one connection a worker, bodies counted and dropped.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;
use tokio_util::task::TaskTracker;

/// How long one request may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A server, and who asks it.
#[derive(Clone)]
pub(crate) struct Client {
    port: u16,
    token: String,
    tls: TlsConnector,
    /// Drives the connections; each ends when its last user does.
    tasks: TaskTracker,
}

/// One connection.
pub(crate) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    authorization: header::HeaderValue,
}

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// The method.
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) path: String,
    /// What kind of body, if any.
    pub(crate) content_type: Option<&'static str>,
    /// The body.
    pub(crate) body: Bytes,
}

impl Ask {
    /// Reads a path.
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), content_type: None, body: Bytes::new() }
    }

    /// Deletes what is at a path.
    pub(crate) fn delete(path: impl Into<String>) -> Self {
        Self { method: Method::DELETE, ..Self::get(path) }
    }

    /// Sends JSON.
    pub(crate) fn json(method: Method, path: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self { method, path: path.into(), content_type: Some("application/json"), body: body.into() }
    }

    /// Sends a JSON merge patch (RFC 7396).
    pub(crate) fn merge_patch(path: impl Into<String>, body: impl Into<Bytes>) -> Self {
        let content_type = Some("application/merge-patch+json");
        Self { method: Method::PATCH, path: path.into(), content_type, body: body.into() }
    }
}

impl Client {
    /// For a port on loopback, with an authority in PEM form that vouches for it.
    ///
    /// # Errors
    /// When that is no certificate.
    pub(crate) fn new(port: u16, ca: &str, token: &str) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
            roots.add(certificate?)?;
        }
        let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { port, token: token.to_owned(), tls: TlsConnector::from(Arc::new(config)), tasks: TaskTracker::new() })
    }

    /// Connects.
    ///
    /// # Errors
    /// When nothing listens there, or it is not who it should be.
    pub(crate) async fn connect(&self) -> Result<Connection> {
        let connect = async {
            let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
            stream.set_nodelay(true)?;
            let stream = self.tls.connect(ServerName::try_from("localhost")?, stream).await?;
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            // Its error reaches whoever waits for an answer.
            self.tasks.spawn(async move { drop(connection.await) });
            let authorization = header::HeaderValue::try_from(format!("Bearer {}", self.token))?;
            Ok(Connection { sender, authorization })
        };
        timeout(LIMIT, connect).await.context("connecting")?
    }

    /// Asks once, on a connection of its own, and answers the body.
    ///
    /// # Errors
    /// When the answer tells of no success.
    pub(crate) async fn ask(&self, ask: &Ask) -> Result<Bytes> {
        self.connect().await?.body(ask).await
    }
}

impl Connection {
    /// Asks, and answers as soon as the head of the answer is there.
    ///
    /// # Errors
    /// When none comes, or it tells of no success.
    pub(crate) async fn head(&mut self, ask: &Ask) -> Result<Incoming> {
        let mut request = Request::builder()
            .method(&ask.method)
            .uri(&ask.path)
            .header(header::HOST, "localhost")
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, "bench")
            .header(header::AUTHORIZATION, &self.authorization);
        if let Some(kind) = ask.content_type {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        let request = request.body(Full::new(ask.body.clone()))?;
        self.sender.ready().await?;
        let what = || format!("{} {}", ask.method, ask.path);
        let response =
            timeout(LIMIT, self.sender.send_request(request)).await.with_context(what)?.with_context(what)?;
        let status = response.status();
        if !status.is_success() {
            let body = timeout(LIMIT, response.into_body().collect()).await??.to_bytes();
            bail!("{}: {status}: {}", what(), String::from_utf8_lossy(&body));
        }
        ensure!(status != StatusCode::ACCEPTED, "{}: only begun", what());
        Ok(response.into_body())
    }

    /// Asks, reads the whole answer and tells its size.
    ///
    /// # Errors
    /// As [`Connection::head`], and when the body breaks off.
    pub(crate) async fn size(&mut self, ask: &Ask) -> Result<usize> {
        let mut body = self.head(ask).await?;
        let read = async {
            let mut size = 0;
            while let Some(frame) = body.frame().await {
                size += frame?.data_ref().map_or(0, Bytes::len);
            }
            Ok(size)
        };
        timeout(LIMIT, read).await.context("reading an answer")?
    }

    /// Asks and keeps the answer.
    ///
    /// # Errors
    /// As [`Connection::size`].
    pub(crate) async fn body(&mut self, ask: &Ask) -> Result<Bytes> {
        let body = self.head(ask).await?;
        Ok(timeout(LIMIT, body.collect()).await.context("reading an answer")??.to_bytes())
    }
}
