//! The way to the shared etcd: endpoints, connections, failover.
//!
//! An [`Upstream`] holds three pools of HTTP/2 connections: for unary calls, for ranges that come in a stream, and for
//! watches and the other endless streams. So a large range cannot starve watches, and a client that does not read on in a
//! streamed one holds up no unary call. Connections are made on demand: when nobody asks, nothing is dialled, and while every endpoint
//! is down the process sleeps. A request that may have reached an endpoint is never sent again; only one that surely was
//! not sent (no connection, or a connection that closed before the request was handed to it), or of which the endpoint says
//! that it has not looked at it (a refused stream, a connection that goes away before it), moves on to another one.
//!
//! Connection tasks run on the runtime that made the request, so a process with one runtime per core makes one
//! `Upstream` per runtime and no request crosses threads.

mod backoff;
mod body;
mod credentials;
mod dial;
mod endpoint;
mod following;
mod greeting;
mod keys;
mod login;
mod metrics;
mod own;
mod payload;
mod pool;
mod revocable;
mod sender;
mod status;

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use proto::etcdserverpb::kv_client::KvClient;

pub use self::{
    body::UpstreamBody,
    credentials::{Credentials, Password, Secret, expired, is_refused_watch},
    endpoint::{Address, Endpoint, EndpointError},
    following::Position,
    metrics::UpstreamMetrics,
    pool::UpstreamChannel,
};
use self::{dial::Dialer, pool::Pool};
pub(crate) use self::{
    following::Lost,
    keys::{Reader, after, in_time},
    own::PATIENCE,
};
use crate::{tls::ClientTls, traces::Tracer};

/// How to reach the shared etcd.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// The members' client addresses, tried in turn; connections are spread over them.
    pub endpoints: Vec<Endpoint>,
    /// Certificates for the endpoints that speak TLS.
    pub tls: Option<Arc<ClientTls>>,
    /// Name and password, where the upstream's user is not that of a certificate.
    pub user: Option<Arc<Credentials>>,
    /// Connections for unary calls.
    pub unary_connections: NonZeroUsize,
    /// Connections for streams (watches, keep-alives).
    pub stream_connections: NonZeroUsize,
    /// The longest that one attempt to connect may take, TLS handshake included.
    pub dial_timeout: Duration,
    /// Time between HTTP/2 pings, `None` for no pings; etcd closes connections that ping more often than every 5 s, so it is at
    /// least 10 s.
    pub keepalive_time: Option<Duration>,
    /// How long an unanswered ping is waited for.
    pub keepalive_timeout: Duration,
    /// Whether pings are sent while nothing is under way, which etcd takes for an attack.
    pub keepalive_while_idle: bool,
    /// What is counted.
    pub metrics: UpstreamMetrics,
    /// Begins the spans of calls that are traced.
    pub tracer: Option<Tracer>,
}

/// A client of the upstream's KV service.
pub type Kv = KvClient<UpstreamChannel>;

/// Connections to the shared etcd. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Upstream {
    unary: UpstreamChannel,
    ranges: UpstreamChannel,
    streams: UpstreamChannel,
    members: Arc<[UpstreamChannel]>,
    dialer: Arc<Dialer>,
}

// === impl UpstreamConfig ===

impl UpstreamConfig {
    /// A configuration with this project's defaults for everything but the endpoints.
    pub fn new(endpoints: Vec<Endpoint>, tls: Option<Arc<ClientTls>>) -> Self {
        const TWO: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1);
        Self {
            endpoints,
            tls,
            user: None,
            unary_connections: TWO,
            stream_connections: NonZeroUsize::MIN,
            dial_timeout: Duration::from_secs(5),
            keepalive_time: Some(Duration::from_secs(10)),
            keepalive_timeout: Duration::from_secs(10),
            keepalive_while_idle: false,
            metrics: UpstreamMetrics::default(),
            tracer: None,
        }
    }
}

// === impl Upstream ===

impl Upstream {
    /// Prepares the pools. Nothing is dialled before the first request.
    pub fn new(config: UpstreamConfig) -> Self {
        let (unary, streams) = (config.unary_connections, config.stream_connections);
        let dialer = Arc::new(Dialer::new(config));
        let members =
            (0..dialer.endpoints()).map(|index| UpstreamChannel::new(Pool::to_member(dialer.clone(), index))).collect();
        Self {
            unary: UpstreamChannel::new(Pool::unary(dialer.clone(), unary)),
            ranges: UpstreamChannel::new(Pool::ranges(dialer.clone(), NonZeroUsize::MIN)),
            streams: UpstreamChannel::new(Pool::streams(dialer.clone(), streams)),
            members,
            dialer,
        }
    }

    /// The connections for unary calls.
    pub fn unary(&self) -> UpstreamChannel {
        self.unary.clone()
    }

    /// A client of the upstream's KV service, for answers of any size.
    pub fn kv(&self) -> Kv {
        KvClient::new(self.unary()).max_decoding_message_size(usize::MAX)
    }

    /// The connection for ranges that come in a stream.
    pub fn ranges(&self) -> UpstreamChannel {
        self.ranges.clone()
    }

    /// The connections for streams.
    pub fn streams(&self) -> UpstreamChannel {
        self.streams.clone()
    }

    /// The members' addresses, in the order of [`Upstream::members`].
    pub fn endpoints(&self) -> &[Endpoint] {
        self.dialer.all_endpoints()
    }

    /// Name and password, where the upstream's user is not that of a certificate.
    pub fn user(&self) -> Option<&Arc<Credentials>> {
        self.dialer.user()
    }

    /// The endpoints that could not be connected to when that was last tried, and why. They are told to operators, not to
    /// tenants.
    pub fn failures(&self) -> Vec<(&Endpoint, String)> {
        self.dialer.failures()
    }

    /// One channel per configured endpoint, for questions that every member must answer (its version, say).
    pub fn members(&self) -> &[UpstreamChannel] {
        &self.members
    }
}
