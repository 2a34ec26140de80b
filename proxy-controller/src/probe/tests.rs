//! Probes of the proxy's own TLS server, and of servers that behave badly.

use std::{
    collections::BTreeMap,
    fs,
    future::{Ready, ready},
    path::Path,
    sync::Arc,
    time::Duration,
};

use etcd_proxy::{
    config::{ConnectionSettings, ListenAddress, ListenUrl},
    drain::Shutdown,
    server::{ConnectionMetrics, Handler, Listener, Peer, Server},
    tls::{AllowedClients, Reload as _, ServerTls, ServerTlsFiles, TlsVersions},
};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tonic::body::Body;

use super::*;
use crate::pki::{Authority, Observed, Owner, Phase, Plan, Seen, Stored, Wanted, plan};

const NAME: &str = "base.proxies.svc";
const COMMON_NAME: &str = "ns/tenant/default";

/// A controller's side of one object, at the present time.
struct Tenant {
    wanted: Wanted,
    authority: Option<Authority>,
    stored: Stored,
}

/// The proxy's server, which serves what was delivered to its directory.
struct Proxy {
    address: SocketAddr,
    dir: TempDir,
    tls: Arc<ServerTls>,
}

/// Refuses every method, as the proxy does with what the probe asks.
#[derive(Clone)]
struct Refuses;

impl Handler for Refuses {
    type Future = Ready<Response<Body>>;

    fn handle(&self, request: Request<Incoming>, _: Peer) -> Self::Future {
        assert_eq!((request.method().as_str(), request.uri().path()), ("HEAD", "/health"));
        let mut response = Response::new(Body::default());
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        ready(response)
    }
}

impl Tenant {
    fn new(name: &str) -> Self {
        let wanted = Wanted {
            owner: Owner { namespace: "ns".into(), name: name.into(), uid: name.into() },
            dns_names: [NAME.to_owned()].into(),
            ip_addresses: ["127.0.0.1".parse().unwrap()].into(),
            clients: BTreeMap::from([
                ("default".to_owned(), COMMON_NAME.to_owned()),
                ("other".to_owned(), "ns/tenant/other".to_owned()),
            ]),
            validity: Duration::from_secs(3600),
            ca_validity: Duration::from_secs(36000),
            rotation: 0,
        };
        Self { wanted, authority: None, stored: Stored::default() }
    }

    fn step(&mut self, observed: Observed) -> Plan {
        let now = Timestamp::now();
        let plan = plan(self.authority.as_ref(), &self.stored, &self.wanted, observed, now).unwrap();
        self.authority = Some(plan.authority.clone());
        self.stored.serving = Some(plan.serving.identity.clone());
        self.stored.clients = plan.clients.iter().map(|(name, leaf)| (name.clone(), leaf.identity.clone())).collect();
        plan
    }
}

impl Proxy {
    async fn start(plan: &Plan, versions: TlsVersions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), plan);
        let path = |name: &str| dir.path().join(name);
        let allowed = AllowedClients::CommonNames(vec![COMMON_NAME.to_owned()]);
        let files = ServerTlsFiles::new(path("tls.crt"), path("tls.key"));
        let files = files.with_client_ca(path("ca.crt"), allowed).with_versions(versions);
        let tls = Arc::new(ServerTls::load(files).unwrap());
        let settings = ConnectionSettings {
            max_connections: 8,
            max_connections_per_client: 8,
            max_concurrent_streams: 8,
            handshake_timeout: Duration::from_secs(10),
            keepalive_interval: None,
            keepalive_timeout: Duration::from_secs(10),
            unix_socket_mode: 0o600,
        };
        let trackers = TaskTracker::new();
        let server =
            Server::new(settings, trackers.clone(), trackers, Shutdown::default(), ConnectionMetrics::default());
        let url = ListenUrl { address: ListenAddress::Tcp("127.0.0.1:0".parse().unwrap()), tls: true };
        let listener = Listener::bind(url, 0o600).await.unwrap();
        let address = listener.to_string().strip_prefix("https://").unwrap().parse().unwrap();
        server.serve(listener, Some(tls.clone()), Refuses);
        Self { address, dir, tls }
    }

    fn deliver(&self, plan: &Plan) {
        write(self.dir.path(), plan);
        assert!(self.tls.reload().unwrap());
    }

    async fn probe(&self, bundle: &str, identity: &Identity) -> Result<Observation, ProbeError> {
        probe(Target { address: self.address, name: NAME, bundle }, identity, soon()).await
    }
}

fn write(dir: &Path, plan: &Plan) {
    fs::write(dir.join("tls.crt"), &plan.serving.identity.chain).unwrap();
    fs::write(dir.join("tls.key"), &plan.serving.identity.key).unwrap();
    fs::write(dir.join("ca.crt"), &plan.bundle).unwrap();
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn client<'a>(plan: &'a Plan, name: &str) -> &'a Identity {
    &plan.clients[name].identity
}

#[tokio::test]
async fn a_proxy_is_seen_whichever_tls_it_speaks() {
    let mut tenant = Tenant::new("tenant");
    let plan = tenant.step(Observed::default());
    for versions in [TlsVersions::Only12, TlsVersions::Only13, TlsVersions::From12] {
        let proxy = Proxy::start(&plan, versions).await;
        let seen = proxy.probe(&plan.bundle, client(&plan, "default")).await.unwrap();
        assert_eq!(seen.client, Answer::Accepted(405));
        assert_eq!(seen.not_after, plan.serving.expires);
        assert!(seen.issuer.contains("CN=ns/tenant CA 1"), "{}", seen.issuer);
        assert_eq!(plan.authority.issuer_of(&seen.leaf), Some(plan.authority.generation()));
        assert_eq!(seen.fingerprint().len(), 64);

        // Of the right CA, and not of an allowed name.
        let refused = proxy.probe(&plan.bundle, client(&plan, "other")).await.unwrap();
        assert!(matches!(refused.client, Answer::Refused(_)), "{versions:?}: {refused:?}");
        assert_eq!(refused.leaf, seen.leaf);

        // Of another CA.
        let stranger = Tenant::new("stranger").step(Observed::default());
        let refused = proxy.probe(&plan.bundle, client(&stranger, "default")).await.unwrap();
        assert_eq!(refused.client, Answer::Refused(AlertDescription::UnknownCA), "{versions:?}");
        let untrusted = proxy.probe(&stranger.bundle, client(&stranger, "default")).await.unwrap_err();
        assert!(matches!(untrusted, ProbeError::Untrusted { .. }), "{versions:?}: {untrusted}");
    }
}

/// The whole way, with nothing but probes to go by. A refusal that comes as a reset would show in some of the many dials.
#[tokio::test]
async fn probes_carry_a_rotation_to_its_end() {
    let mut tenant = Tenant::new("tenant");
    let first = tenant.step(Observed::default());
    let proxies = [Proxy::start(&first, TlsVersions::From12).await, Proxy::start(&first, TlsVersions::From12).await];
    let look = async |plan: &Plan| {
        let probing = plan.authority.probe_identity(COMMON_NAME, Timestamp::now()).unwrap();
        let identity = probing.as_ref().unwrap_or(client(plan, "default"));
        let mut seen = Vec::new();
        for proxy in &proxies {
            seen.push(proxy.probe(&plan.bundle, identity).await.unwrap());
        }
        let seen = seen.iter().map(|seen| Some(Seen { leaf: &seen.leaf, accepts_next: seen.client.accepted() }));
        Observed::of(&plan.authority, seen)
    };
    tenant.wanted.rotation = 1;
    let plan = tenant.step(look(&first).await);
    assert_eq!(plan.phase, Phase::Distributing);
    for _ in 0..20 {
        assert_eq!(look(&plan).await.accepted, None);
    }
    proxies[0].deliver(&plan);
    let plan = tenant.step(look(&plan).await);
    assert_eq!(plan.phase, Phase::Distributing, "one of two has the bundle");
    proxies[1].deliver(&plan);
    let plan = tenant.step(look(&plan).await);
    assert_eq!(plan.phase, Phase::Replacing);

    // A client that read everything before the rotation, and one that read everything now.
    for proxy in &proxies {
        for (bundle, identity) in [(&first.bundle, client(&first, "default")), (&plan.bundle, client(&plan, "default"))]
        {
            assert!(proxy.probe(bundle, identity).await.unwrap().client.accepted());
        }
    }
    proxies[0].deliver(&plan);
    assert_eq!(tenant.step(look(&plan).await).phase, Phase::Replacing);
    proxies[1].deliver(&plan);
    assert_eq!(tenant.step(look(&plan).await).phase, Phase::Retiring);
    for proxy in &proxies {
        for (bundle, identity) in
            [(&first.bundle, client(&first, "default")), (&first.bundle, client(&plan, "default"))]
        {
            assert!(proxy.probe(bundle, identity).await.unwrap().client.accepted());
        }
    }
}

/// A TLS server that sends `answer` once it has accepted the client, and keeps the connection open.
async fn odd(plan: &Plan, answer: Vec<u8>) -> SocketAddr {
    let chain = certificates(&plan.serving.identity.chain).unwrap();
    let key = PrivateKeyDer::from_pem_slice(plan.serving.identity.key.as_bytes()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await.unwrap();
        _ = stream.write_all(&answer).await;
        _ = stream.flush().await;
        std::future::pending::<()>().await;
    });
    address
}

#[tokio::test]
async fn what_is_not_http_is_no_acceptance_and_ends() {
    let mut tenant = Tenant::new("tenant");
    let plan = tenant.step(Observed::default());
    for answer in [b"SSH-2.0-x\r\n".to_vec(), vec![b'x'; 1 << 20], b"HTTP/1.1 20\r\n".to_vec(), b"HTTP/1.1 \n".to_vec()]
    {
        let address = odd(&plan, answer).await;
        let error = probe(Target { address, name: NAME, bundle: &plan.bundle }, client(&plan, "default"), soon()).await;
        assert!(matches!(error, Err(ProbeError::Answer { .. })), "{error:?}");
    }
}

#[tokio::test]
async fn silence_ends_at_the_deadline() {
    let mut tenant = Tenant::new("tenant");
    let plan = tenant.step(Observed::default());
    // One that does not even shake hands, and one that does and says nothing.
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for address in [mute.local_addr().unwrap(), odd(&plan, Vec::new()).await, odd(&plan, b"HTTP/1.1 20".to_vec()).await]
    {
        let deadline = Instant::now() + Duration::from_millis(300);
        let target = Target { address, name: NAME, bundle: &plan.bundle };
        let error = probe(target, client(&plan, "default"), deadline).await;
        assert!(matches!(error, Err(ProbeError::Timeout { .. })), "{error:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_tried_is_named() {
    let mut tenant = Tenant::new("tenant");
    let plan = tenant.step(Observed::default());
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let target = Target { address: closed, name: NAME, bundle: &plan.bundle };
    let identity = client(&plan, "default");
    let keyless = Identity { key: identity.key.replace("BEGIN", "START"), ..identity.clone() };
    let error = probe(target, identity, soon()).await.unwrap_err();
    assert!(matches!(error, ProbeError::Connect { .. }), "{error}");
    let error = probe(target, &keyless, soon()).await.unwrap_err();
    assert!(matches!(error, ProbeError::Identity(_)), "{error}");
    let error = probe(Target { bundle: "", ..target }, identity, soon()).await.unwrap_err();
    assert!(matches!(error, ProbeError::Bundle(_)), "{error}");
    let error = probe(Target { name: "no name", ..target }, identity, soon()).await.unwrap_err();
    assert!(error.to_string().contains("no name"));
}
