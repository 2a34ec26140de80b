use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, request::Parts};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    authentication::{
        CaBundle, DelegatingAuthenticator, RequestHeaderNames, RequestHeaderTrust, TokenReviewer, Trust,
        trust::provider,
    },
    authorization::{AuthorizationAttributes, Authorizer, Decision},
    endpoint::{ApiGroup, Endpoint, RequestBody, ResourceDescription, ResponseBody, Verb, VersionDescription, full},
    meta::{ResourceNames, Scope},
    options::serving::SecureServingOptions,
    request::RequestContext,
    server::{Config, RunError, Server, VersionInfo, certificates::EphemeralCa, config::Serving},
};

/// A CA whose certificates may be wrong in various ways.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(super) pem: String,
}

/// What a client certificate is to be.
pub(super) struct Leaf {
    pub(super) common_name: &'static str,
    pub(super) organization: Option<&'static str>,
    pub(super) usage: ExtendedKeyUsagePurpose,
    /// In days from now.
    pub(super) valid: (i64, i64),
}

#[derive(Clone)]
pub(super) struct ClientCertificate {
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivateKeyDer<'static>>,
}

/// A server on a port of its own.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    pub(super) trust: Arc<Trust>,
    pub(super) echo: Arc<Echo>,
    pub(super) stop: CancellationToken,
    roots: RootCertStore,
    task: JoinHandle<Result<(), RunError>>,
    _directory: tempfile::TempDir,
}

/// The length of the answer about the object `big`, in bytes: more than the kernel takes for a client that does not read.
pub(super) const BIG: usize = 24 * 1024 * 1024;

/// Answers with what it was asked, or as the object's name says.
pub(super) struct Echo {
    description: ResourceDescription,
    pub(super) release: Notify,
    pub(super) started: AtomicUsize,
    pub(super) finished: AtomicUsize,
}

pub(super) struct AllowAll;

#[async_trait]
impl Authorizer for AllowAll {
    async fn authorize(&self, _: &AuthorizationAttributes<'_>) -> Decision {
        Decision::Allow
    }
}

impl Authority {
    pub(super) fn new(name: &str) -> Self {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = DistinguishedName::new();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(parameters, key), pem }
    }

    pub(super) fn bundle(&self) -> CaBundle {
        CaBundle::from_pem(self.pem.as_bytes()).unwrap()
    }

    pub(super) fn sign(&self, leaf: &Leaf) -> ClientCertificate {
        let mut parameters = CertificateParams::default();
        let mut name = DistinguishedName::new();
        name.push(DnType::CommonName, leaf.common_name);
        if let Some(organization) = leaf.organization {
            name.push(DnType::OrganizationName, organization);
        }
        parameters.distinguished_name = name;
        parameters.extended_key_usages = vec![leaf.usage.clone()];
        let day = |days: i64| {
            let now = std::time::SystemTime::now();
            let distance = Duration::from_secs(days.unsigned_abs() * 86400);
            if days < 0 { now - distance } else { now + distance }
        };
        parameters.not_before = day(leaf.valid.0).into();
        parameters.not_after = day(leaf.valid.1).into();
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        ClientCertificate { chain: vec![certificate.der().clone()], key: Arc::new(key) }
    }
}

impl ClientCertificate {
    /// A certificate and a key, both in PEM. The key need not fit.
    pub(super) fn from_pem(certificate: &[u8], key: &[u8]) -> Self {
        let chain = CertificateDer::pem_slice_iter(certificate).map(Result::unwrap).collect();
        Self { chain, key: Arc::new(PrivateKeyDer::from_pem_slice(key).unwrap()) }
    }
}

impl Leaf {
    pub(super) fn named(common_name: &'static str) -> Self {
        Self { common_name, organization: None, usage: ExtendedKeyUsagePurpose::ClientAuth, valid: (-1, 1) }
    }
}

/// Believes front proxies of `ca` under the usual headers.
pub(super) fn front_proxy(ca: &Authority, allowed: &[&str]) -> RequestHeaderTrust {
    RequestHeaderTrust {
        ca: ca.bundle(),
        allowed_names: allowed.iter().map(|n| (*n).to_owned()).collect(),
        names: RequestHeaderNames::standard(),
    }
}

impl Running {
    pub(super) async fn start() -> Self {
        Self::start_with(Arc::new(AllowAll), None, |config| config, |_| {}).await
    }

    pub(super) async fn start_with(
        authorizer: Arc<dyn Authorizer>,
        tokens: Option<TokenReviewer>,
        configure: impl FnOnce(Config<Serving>) -> Config<Serving>,
        extend: impl FnOnce(&mut Server),
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let trust = Arc::new(Trust::default());
        let ca = EphemeralCa::new("server-ca").unwrap();
        let pair = ca.serving(&["localhost".to_owned()], &[IpAddr::V4(Ipv4Addr::LOCALHOST)]).unwrap();
        let (certificate, key) = (directory.path().join("tls.crt"), directory.path().join("tls.key"));
        std::fs::write(&certificate, pair.certificate).unwrap();
        std::fs::write(&key, pair.key).unwrap();
        let options = SecureServingOptions {
            bind_address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            secure_port: Some(0),
            cert_dir: directory.path().to_owned(),
            tls_cert_file: Some(certificate),
            tls_private_key_file: Some(key),
            tls_min_version: "VersionTLS12".to_owned(),
            tls_cipher_suites: Vec::new(),
            http2_max_streams_per_connection: 1000,
            disable_http2_serving: false,
        };
        let serving = options.serving(trust.clone()).await.unwrap();
        let authenticator = Arc::new(DelegatingAuthenticator::new(trust.clone(), tokens, true));
        let config = configure(Config::new(VersionInfo::of_crate("1.2.3")).serving(serving));
        let mut server = config.authenticator(authenticator).authorizer(authorizer).complete().server();
        let echo = Arc::new(Echo::new());
        let group = ApiGroup {
            name: "example.test".to_owned(),
            versions: vec!["v1".to_owned()],
            endpoints: vec![echo.clone()],
        };
        server.install(group).unwrap();
        extend(&mut server);
        let server = server.prepare().unwrap();
        let address = server.local_addr().unwrap();
        let stop = CancellationToken::new();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.pem().as_bytes()).unwrap()).unwrap();
        let stopped = stop.clone();
        let task = tokio::spawn(server.run(async move { stopped.cancelled().await }));
        Self { address, trust, echo, stop, roots, task, _directory: directory }
    }

    /// Asks the server to stop, and waits for its end.
    pub(super) async fn stop(self) -> Result<(), RunError> {
        self.stop.cancel();
        tokio::time::timeout(Duration::from_secs(30), self.task).await.expect("the server does not end").unwrap()
    }

    /// Waits for the server to end by itself.
    pub(super) async fn ended(self) -> Result<(), RunError> {
        tokio::time::timeout(Duration::from_secs(30), self.task).await.expect("the server does not end").unwrap()
    }

    pub(super) async fn tls(
        &self,
        certificate: Option<&ClientCertificate>,
        alpn: &[u8],
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        self.tls_of(rustls::DEFAULT_VERSIONS, certificate, alpn).await
    }

    pub(super) async fn tls_of(
        &self,
        versions: &[&'static rustls::SupportedProtocolVersion],
        certificate: Option<&ClientCertificate>,
        alpn: &[u8],
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(self.roots.clone());
        let mut config = match certificate {
            Some(c) => {
                // Whatever CAs the server hints at: a client with bad intentions sends what it likes.
                let key = provider().key_provider.load_private_key(c.key.clone_key()).unwrap();
                let key = rustls::sign::CertifiedKey::new(c.chain.clone(), key);
                builder.with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key)))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = if alpn.is_empty() { Vec::new() } else { vec![alpn.to_vec()] };
        let stream = TcpStream::connect(self.address).await?;
        tokio_rustls::TlsConnector::from(Arc::new(config))
            .connect(ServerName::try_from("localhost").unwrap(), stream)
            .await
    }

    pub(super) async fn http1(&self, certificate: Option<&ClientCertificate>) -> Client1 {
        Client1::over(self.tls(certificate, b"http/1.1").await.unwrap()).await
    }

    pub(super) async fn http2(&self) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
        let stream = self.tls(None, b"h2").await.unwrap();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    /// A connection on which each stream may bring this many bytes, until the client reads them, and its end.
    pub(super) async fn http2_with(
        &self,
        certificate: Option<&ClientCertificate>,
        window: u32,
    ) -> (hyper::client::conn::http2::SendRequest<Full<Bytes>>, JoinHandle<hyper::Result<()>>) {
        let stream = self.tls(certificate, b"h2").await.unwrap();
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        (sender, tokio::spawn(connection))
    }

    /// One request on a connection of its own.
    pub(super) async fn get(&self, path: &str) -> Answer {
        self.http1(None).await.get(path, &[]).await
    }
}

pub(super) struct Client1(pub(super) hyper::client::conn::http1::SendRequest<Full<Bytes>>);

pub(super) struct Answer {
    pub(super) code: StatusCode,
    pub(super) headers: http::HeaderMap,
    pub(super) body: String,
}

impl Client1 {
    pub(super) async fn over(stream: tokio_rustls::client::TlsStream<TcpStream>) -> Self {
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    pub(super) async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(Method::GET, path, headers).await
    }

    pub(super) async fn send(&mut self, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
        let response = self.0.send_request(request(method, path, headers)).await.unwrap();
        Answer::read(response).await
    }
}

impl Answer {
    pub(super) async fn read(response: Response<hyper::body::Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Self { code: parts.status, headers: parts.headers, body: String::from_utf8(body.to_vec()).unwrap() }
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The name of the user whom the server took the client for, or the code of its refusal.
    pub(super) fn user(&self) -> String {
        if self.code == StatusCode::OK {
            self.json()["user"].as_str().unwrap().to_owned()
        } else {
            assert_eq!(self.json()["kind"], "Status", "{}", self.body);
            self.code.as_u16().to_string()
        }
    }
}

pub(super) fn request(method: Method, path: &str, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::default()).unwrap()
}

impl Echo {
    fn new() -> Self {
        let names = ResourceNames {
            plural: "echoes",
            singular: "echo",
            kind: "Echo",
            short_names: &[],
            categories: &[],
            scope: Scope::Namespaced,
        };
        let schema = schemars::Schema::try_from(json!({"type": "object"})).unwrap();
        let description = ResourceDescription {
            group: "example.test".to_owned(),
            names,
            list_kind: "EchoList".to_owned(),
            verbs: Verb::STORED.to_vec(),
            versions: vec![VersionDescription { name: "v1".to_owned(), schema }],
            storage_version: "v1".to_owned(),
            subresources: Vec::new(),
        };
        Self { description, release: Notify::new(), started: AtomicUsize::new(0), finished: AtomicUsize::new(0) }
    }
}

#[async_trait]
impl Endpoint for Echo {
    fn description(&self) -> &ResourceDescription {
        &self.description
    }

    async fn serve(&self, context: RequestContext, parts: Parts, _: RequestBody) -> Response<ResponseBody> {
        self.started.fetch_add(1, Ordering::SeqCst);
        match context.info.name.as_str() {
            "panic" => panic!("as was asked for"),
            "wait" => self.release.notified().await,
            "big" => return Response::new(full(vec![b'x'; BIG])),
            "stream" => {
                context.delivery.end_at(tokio::time::Instant::now() + Duration::from_millis(300));
                return Response::new(StreamBody::new(futures::stream::pending()).boxed_unsync());
            }
            "warn" => context.warnings.add("mind the \"gap\""),
            _ if context.info.verb == "watch" => context.shutdown.cancelled().await,
            _ => {}
        }
        self.finished.fetch_add(1, Ordering::SeqCst);
        let headers: Vec<&str> = parts.headers.keys().map(http::HeaderName::as_str).collect();
        Response::new(full(
            json!({
                "user": context.user.name, "uid": context.user.uid, "groups": context.user.groups,
                "extra": context.user.extra, "verb": context.info.verb, "headers": headers,
            })
            .to_string(),
        ))
    }
}

/// Looks again and again until it holds.
pub(super) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "{what} does not come about");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A cluster that answers reviews as it is told.
pub(super) struct Cluster {
    address: SocketAddr,
    pub(super) reviews: Arc<AtomicUsize>,
    pub(super) answer: Arc<parking_lot::Mutex<(StatusCode, Value)>>,
    pub(super) last: Arc<parking_lot::Mutex<Value>>,
}

impl Cluster {
    pub(super) async fn start(code: StatusCode, answer: Value) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let reviews = Arc::new(AtomicUsize::new(0));
        let answer = Arc::new(parking_lot::Mutex::new((code, answer)));
        let last = Arc::new(parking_lot::Mutex::new(Value::Null));
        let (count, given, seen) = (reviews.clone(), answer.clone(), last.clone());
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (count, given, seen) = (count.clone(), given.clone(), seen.clone());
                let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
                    let (count, given, seen) = (count.clone(), given.clone(), seen.clone());
                    async move {
                        count.fetch_add(1, Ordering::SeqCst);
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        let mut review: Value = serde_json::from_slice(&body).unwrap();
                        *seen.lock() = review["spec"].clone();
                        let (code, answer) = given.lock().clone();
                        review["status"] = answer;
                        let body = if code.is_success() {
                            review
                        } else {
                            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(), "message": "as was asked for", "reason": "Unknown"})
                        };
                        let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
                        *response.status_mut() = code;
                        Ok::<_, std::convert::Infallible>(response)
                    }
                });
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        Self { address, reviews, answer, last }
    }

    pub(super) fn client(&self) -> kube::Client {
        let config = kube::Config::new(format!("http://{}", self.address).parse().unwrap());
        kube::Client::try_from(config).unwrap()
    }

    pub(super) fn count(&self) -> usize {
        self.reviews.load(Ordering::SeqCst)
    }
}
