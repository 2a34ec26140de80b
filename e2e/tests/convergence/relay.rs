//! What stands between the controller and kube-apiserver: it forwards, and now and then refuses, cuts, delays, or has the
//! controller killed between two of its calls.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    body::Incoming,
    client::conn::http1::{self as outgoing, SendRequest},
    server::conn::http1 as incoming,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use xtask::{
    cluster::Server,
    pki::{Ca, Request as CertificateRequest},
    site::Site,
};

/// How many of a hundred requests meet a fault while faults are on; of those for the Lease far fewer, since a lead that is
/// lost is one fault with a long shadow.
const FAULTS: u32 = 12;
const LEASE_FAULTS: u32 = 2;

/// The relay. Dropping the runtime ends it.
pub(super) struct Relay {
    /// Where the controller finds it, and whom it trusts.
    pub(super) server: Server,
    shared: Arc<Shared>,
}

/// What was done to the controller.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) requests: u64,
    pub(super) refused: u64,
    pub(super) cut_before: u64,
    pub(super) cut_after: u64,
    pub(super) delayed: u64,
    pub(super) killed_before: u64,
    pub(super) killed_after: u64,
}

struct Shared {
    upstream: SocketAddr,
    connector: TlsConnector,
    faults: Mutex<Faults>,
    requests: watch::Sender<u64>,
    kill: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct Faults {
    random: StdRng,
    on: bool,
    /// After how many calls the controller is killed next.
    until_kill: Option<u32>,
    tally: Tally,
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Forwarded,
    Refused(StatusCode),
    /// The request never arrives.
    CutBefore,
    /// It does, and the controller never hears.
    CutAfter,
    Delayed(Duration),
    /// Killed with the request not sent.
    KilledBefore,
    /// Killed with the request done and the answer not delivered.
    KilledAfter,
}

/// The connection is closed without an answer.
#[derive(Debug)]
struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection is cut")
    }
}

impl std::error::Error for Cut {}

type Body = BoxBody<Bytes, hyper::Error>;

// === impl Relay ===

impl Relay {
    /// Begins to forward to `apiserver`, on a port of its own with an authority of its own. Faults are off.
    pub(super) async fn start(site: &Site, apiserver: &Server, seed: u64) -> Result<Self> {
        let ca = Ca::create(&site.pki("relay-ca")?, "relay-ca")?;
        let identity = ca.issue(&CertificateRequest {
            file: "relay",
            common_name: "relay",
            organization: None,
            server_names: &["kubernetes"],
            client: false,
        })?;
        let chain = vec![CertificateDer::from_pem_file(&identity.cert)?];
        let key = PrivateKeyDer::from_pem_file(&identity.key)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(apiserver.ca.as_bytes())?)?;
        let connector = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let upstream = apiserver.url.strip_prefix("https://").context("kube-apiserver speaks TLS")?.parse()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let faults =
            Faults { random: StdRng::seed_from_u64(seed), on: false, until_kill: None, tally: Tally::default() };
        let shared = Arc::new(Shared {
            upstream,
            connector: TlsConnector::from(Arc::new(connector)),
            faults: Mutex::new(faults),
            requests: watch::Sender::new(0),
            kill: OnceLock::new(),
        });
        tokio::spawn(accept(listener, TlsAcceptor::from(Arc::new(tls)), shared.clone()));
        Ok(Self { server: Server { url: format!("https://{address}"), ca: ca.pem() }, shared })
    }

    /// How the controller is killed: it has ended when this returns.
    pub(super) fn set_kill(&self, kill: impl Fn() + Send + Sync + 'static) {
        // Set once, before faults are on.
        let _ = self.shared.kill.set(Box::new(kill));
    }

    /// Has the controller killed before or after one of its next calls.
    pub(super) fn arm(&self, within: u32) {
        let mut faults = self.shared.faults.lock();
        faults.until_kill = Some(faults.random.random_range(0..within));
    }

    /// Turns faults on or off.
    pub(super) fn set_faults(&self, on: bool) {
        self.shared.faults.lock().on = on;
    }

    /// Waits until `count` more requests have come, for at most `limit`: an idle controller sends none.
    pub(super) async fn more(&self, count: u64, limit: Duration) {
        let mut requests = self.shared.requests.subscribe();
        let wanted = *requests.borrow() + count;
        let _ = tokio::time::timeout(limit, requests.wait_for(|seen| *seen >= wanted)).await;
    }

    pub(super) fn tally(&self) -> Tally {
        self.shared.faults.lock().tally.clone()
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, shared) = (acceptor.clone(), shared.clone());
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let upstream = Arc::new(tokio::sync::Mutex::new(None));
            let serve = service_fn(move |request| {
                let (shared, upstream) = (shared.clone(), upstream.clone());
                async move { shared.serve(request, &upstream).await }
            });
            // A connection that is cut ends with an error, as it is meant to.
            let _ = incoming::Builder::new().serve_connection(TokioIo::new(stream), serve).await;
        });
    }
}

// === impl Shared ===

impl Shared {
    async fn serve(
        &self,
        request: Request<Incoming>,
        upstream: &tokio::sync::Mutex<Option<SendRequest<Incoming>>>,
    ) -> Result<Response<Body>, Cut> {
        let fate = self.faults.lock().fate(&request);
        self.requests.send_modify(|seen| *seen += 1);
        match fate {
            Fate::Refused(status) => return Ok(refusal(status)),
            Fate::CutBefore => return Err(Cut),
            Fate::KilledBefore => {
                self.kill().await;
                return Err(Cut);
            }
            Fate::Delayed(pause) => tokio::time::sleep(pause).await,
            Fate::Forwarded | Fate::CutAfter | Fate::KilledAfter => {}
        }
        let answer = self.forward(request, upstream).await.map_err(|_| Cut)?;
        match fate {
            Fate::CutAfter => Err(Cut),
            Fate::KilledAfter => {
                self.kill().await;
                Err(Cut)
            }
            _ => Ok(answer),
        }
    }

    async fn forward(
        &self,
        request: Request<Incoming>,
        upstream: &tokio::sync::Mutex<Option<SendRequest<Incoming>>>,
    ) -> Result<Response<Body>> {
        let mut upstream = upstream.lock().await;
        if upstream.as_ref().is_none_or(SendRequest::is_closed) {
            *upstream = Some(self.connect().await?);
        }
        let sender = upstream.as_mut().context("no connection")?;
        sender.ready().await?;
        Ok(sender.send_request(request).await?.map(BodyExt::boxed))
    }

    async fn connect(&self) -> Result<SendRequest<Incoming>> {
        let stream = TcpStream::connect(self.upstream).await?;
        let name = ServerName::from(self.upstream.ip());
        let stream = self.connector.connect(name, stream).await?;
        let (sender, connection) = outgoing::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// Returns when the controller has ended: it makes no further call.
    async fn kill(self: &Shared) {
        if let Some(kill) = self.kill.get() {
            tokio::task::block_in_place(kill);
        }
    }
}

// === impl Faults ===

impl Faults {
    fn fate<B>(&mut self, request: &Request<B>) -> Fate {
        self.tally.requests += 1;
        if !self.on {
            return Fate::Forwarded;
        }
        let lease = request.uri().path().contains("/leases");
        let watch = request.uri().query().is_some_and(|query| query.contains("watch="));
        if let (Some(left), false) = (self.until_kill, lease || watch) {
            self.until_kill = left.checked_sub(1);
            if left == 0 {
                let before = self.random.random();
                *(if before { &mut self.tally.killed_before } else { &mut self.tally.killed_after }) += 1;
                return if before { Fate::KilledBefore } else { Fate::KilledAfter };
            }
        }
        if self.random.random_range(0..100) >= if lease { LEASE_FAULTS } else { FAULTS } {
            return Fate::Forwarded;
        }
        match self.random.random_range(0..10) {
            0..4 => {
                self.tally.refused += 1;
                // Only a change can conflict; that of a deletion would mean another object, which is not made up here.
                let changes = [Method::PATCH, Method::PUT].contains(request.method());
                Fate::Refused(match self.random.random_range(0..4) {
                    0 => StatusCode::INTERNAL_SERVER_ERROR,
                    1 => StatusCode::SERVICE_UNAVAILABLE,
                    2 if changes => StatusCode::CONFLICT,
                    _ => StatusCode::TOO_MANY_REQUESTS,
                })
            }
            4..6 => {
                self.tally.cut_before += 1;
                Fate::CutBefore
            }
            6..8 => {
                self.tally.cut_after += 1;
                Fate::CutAfter
            }
            _ => {
                self.tally.delayed += 1;
                Fate::Delayed(Duration::from_millis(self.random.random_range(1..800)))
            }
        }
    }
}

/// As kube-apiserver says it.
fn refusal(status: StatusCode) -> Response<Body> {
    let reason = match status {
        StatusCode::CONFLICT => "Conflict",
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        _ => "InternalError",
    };
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason,
        "message": "injected: the object has been modified, or the server is unwell", "code": status.as_u16(),
    });
    let body = Full::from(body.to_string()).map_err(|never: Infallible| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
