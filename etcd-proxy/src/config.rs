//! From flags to a configuration that is known to make sense. Certificates are not read here and nothing is bound.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::{NonZeroU32, NonZeroUsize},
    os::unix::ffi::OsStringExt,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use rustls::pki_types::ServerName;

use crate::{
    cli::{CompactionArg, ListenArgs, QuotaArgs, SecurityArgs, ServeArgs, TelemetryArgs, TenantArgs, UpstreamArgs},
    limits::{LimitSettings, RateSettings},
    prefix::{Prefix, PrefixError},
    tenant::{CompactionPolicy, MAX_RANGE_STREAMS},
    tls::{
        AllowedClients, CipherSuites, ClientTls, ClientTlsFiles, ServerTlsFiles, TlsError, TlsVersions, UnknownSuite,
    },
    traces::TraceSettings,
    upstream::{Address, Credentials, Endpoint, EndpointError, Password, Secret, UpstreamConfig},
};

/// Most connections at a time on the metrics listeners.
const PROBES: usize = 64;

/// Shortest time between pings to the upstream (`google.golang.org/grpc/internal.KeepaliveMinPingTime`).
const LEAST_KEEPALIVE: Duration = Duration::from_secs(10);

/// Time to wait for the answer to a ping where 0 is asked for (`grpc/internal/transport.defaultServerKeepaliveTimeout`).
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Where `etcd grpc-proxy start` listens, and what it advertises, unless told otherwise.
pub(crate) const GRPC_PROXY_ADDRESS: &str = "127.0.0.1:23790";

/// A valid configuration of `serve`.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whose keys.
    pub tenancy: Tenancy,
    /// The name of the one member that member lists show.
    pub name: String,
    /// What the tenant's compactions do.
    pub compaction: CompactionPolicy,
    /// URLs that member lists name.
    pub advertise: Vec<String>,
    /// Where clients connect.
    pub clients: Vec<ListenUrl>,
    /// Where probes and Prometheus connect.
    pub metrics: Vec<ListenUrl>,
    /// TLS of the https and unixs listeners of both.
    pub tls: Option<ServerTlsFiles>,
    /// How often certificate files are looked at.
    pub cert_reload_interval: Duration,
    /// The shared etcd.
    pub upstream: UpstreamSettings,
    /// How connections of clients are treated.
    pub connections: ConnectionSettings,
    /// How the process ends.
    pub shutdown: ShutdownSettings,
    /// Largest request in bytes.
    pub max_request_bytes: usize,
    /// Most operations in one Txn.
    pub max_txn_ops: usize,
    /// Bytes that long answers may take, 0 for no bound.
    pub max_buffered_bytes: usize,
    /// How long the reader of a long answer may take nothing of it.
    pub stalled_reader_timeout: Option<Duration>,
    /// Most RangeStreams at a time.
    pub max_range_streams: usize,
    /// What the tenant may use.
    pub limits: LimitSettings,
    /// Whether each RPC is logged.
    pub access_log: bool,
    /// Where traces go, if they do.
    pub traces: Option<TraceSettings>,
}

/// Which keys are the tenant's, and where the bookkeeping is.
#[derive(Clone, Debug)]
pub struct Tenancy {
    /// The tenant's prefix.
    pub prefix: Prefix,
    /// The prefix of the meta keys.
    pub meta_prefix: Prefix,
}

/// How to reach the shared etcd, with certificates still unread.
#[derive(Clone, Debug)]
pub struct UpstreamSettings {
    config: UpstreamConfig,
    tls: Option<ClientTlsFiles>,
}

/// How connections of clients are treated.
#[derive(Clone, Debug)]
pub struct ConnectionSettings {
    /// Most connections at a time, of all clients together.
    pub max_connections: usize,
    /// Most connections at a time of one client: an IP address, or a process at a unix socket.
    pub max_connections_per_client: usize,
    /// Most requests at a time on one HTTP/2 connection.
    pub max_concurrent_streams: u32,
    /// Longest time for a TLS handshake, and again for the first bytes of HTTP.
    pub handshake_timeout: Duration,
    /// Time between pings to a client; `None` for no pings.
    pub keepalive_interval: Option<Duration>,
    /// Time to wait for the answer to a ping.
    pub keepalive_timeout: Duration,
    /// Permissions of unix sockets.
    pub unix_socket_mode: u32,
}

/// How the process ends.
#[derive(Clone, Copy, Debug)]
pub struct ShutdownSettings {
    /// Between the signal and the closing of the listeners.
    pub delay: Duration,
    /// For requests under way, afterwards.
    pub drain_timeout: Duration,
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenUrl {
    /// The address to bind.
    pub address: ListenAddress,
    /// TLS or plaintext.
    pub tls: bool,
}

/// An address to bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// IP address and port.
    Tcp(SocketAddr),
    /// Path of the socket.
    Unix(PathBuf),
}

/// A configuration that makes no sense, or none that is safe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message is the documentation of its variant")]
pub enum ConfigError {
    #[error("--prefix is missing: the key prefix of the tenant on the upstream, for example --prefix=/tenant-a/")]
    NoPrefix,
    #[error("--prefix={prefix}: {source}{hint}")]
    Prefix { prefix: String, source: PrefixError, hint: &'static str },
    #[error("--meta-prefix={prefix}: {source}")]
    MetaPrefix { prefix: String, source: PrefixError },
    #[error(
        "--prefix={prefix} overlaps --meta-prefix={meta_prefix}, where the proxies keep their own bookkeeping; choose another prefix"
    )]
    OverlapsMeta { prefix: String, meta_prefix: String },
    #[error(
        "--prefix={0} overlaps /registry/, where kube-apiserver keeps its data; choose another prefix, or add --force if no kube-apiserver uses this etcd"
    )]
    OverlapsKubernetes(Prefix),
    #[error("{flag}={url:?}: {reason}")]
    Url { flag: &'static str, url: String, reason: &'static str },
    #[error("{flag} is empty")]
    Empty { flag: &'static str },
    #[error(
        "{url} would serve plaintext beyond this host, and whoever reaches the port is the tenant; use https with --cert-file and --key-file (and --trusted-ca-file), a loopback address or a unix socket, or add --allow-plaintext"
    )]
    Plaintext { url: ListenUrl },
    #[error("--advertise-client-urls is missing: {url} is no address that a client could connect to")]
    NoAdvertise { url: ListenUrl },
    #[error("--listen-addr and --listen-client-urls are two ways to say the same; give one of them")]
    ListenTwice,
    #[error("{url} needs --cert-file and --key-file")]
    NoCertificate { url: ListenUrl },
    #[error("{given} needs {missing}")]
    Incomplete { given: &'static str, missing: &'static str },
    #[error(
        "--client-cert-allowed-cn and --client-cert-allowed-hostname exclude each other, as in etcd; give one of them"
    )]
    AllowedTwice,
    #[error("--client-cert-allowed-hostname={0:?} is neither a DNS name nor an IP address")]
    Hostname(String),
    #[error(
        "--tls-min-version={min:?} and --tls-max-version={max:?} leave no version; possible values are TLS1.2 and TLS1.3"
    )]
    TlsVersions { min: String, max: String },
    #[error("--cipher-suites: {0}")]
    CipherSuite(#[from] UnknownSuite),
    #[error(
        "--cipher-suites={0} with --tls-min-version=TLS1.3: cipher suites cannot be configured when only TLS1.3 is enabled; give one of the two"
    )]
    CipherSuitesOf13(String),
    #[error("--cipher-suites={0} names no suite of TLS1.2, and --tls-max-version=TLS1.2 leaves no other; name one")]
    NoCipherSuite(String),
    #[error("--endpoints: {0}")]
    Endpoint(#[from] EndpointError),
    #[error("--endpoints names {0}, which speaks TLS; give --cacert, the CA that verifies it")]
    NoCa(Endpoint),
    #[error(
        "--endpoints={endpoint} leads to this proxy itself, which listens on {url}; name the shared etcd there, or another address in {flag}"
    )]
    Itself { endpoint: String, url: ListenUrl, flag: &'static str },
    #[error("--password and --password-file exclude each other; give one of them")]
    PasswordTwice,
    #[error("--max-range-streams={0} is not between 1 and {MAX_RANGE_STREAMS}")]
    RangeStreams(usize),
    #[error("{flag} must be greater than 0")]
    Zero { flag: &'static str },
}

// === impl Config ===

impl TryFrom<ServeArgs> for Config {
    type Error = ConfigError;

    fn try_from(args: ServeArgs) -> Result<Self, ConfigError> {
        let tls = server_tls(&args.security)?;
        let clients = client_urls(&args, tls.is_some())?;
        let metrics = listen_urls("--listen-metrics-urls", &args.listen.listen_metrics_urls)?;
        for url in clients.iter().chain(&metrics) {
            if url.tls && tls.is_none() {
                return Err(ConfigError::NoCertificate { url: url.clone() });
            }
        }
        if let Some(url) = clients.iter().find(|url| !url.tls && !url.stays_on_this_host())
            && !args.listen.allow_plaintext
        {
            return Err(ConfigError::Plaintext { url: url.clone() });
        }
        let advertise = advertised(&args.listen, &clients, tls.is_some())?;
        for (flag, duration) in [
            ("--cert-reload-interval", args.security.cert_reload_interval),
            ("--handshake-timeout", args.limits.handshake_timeout),
        ] {
            if duration.is_zero() {
                return Err(ConfigError::Zero { flag });
            }
        }
        for (flag, number) in [
            ("--max-concurrent-streams", u64::from(args.limits.max_concurrent_streams)),
            ("--max-connections", u64::try_from(args.limits.max_connections).unwrap_or(u64::MAX)),
            ("--max-connections-per-client", u64::try_from(args.limits.max_connections_per_client).unwrap_or(u64::MAX)),
            ("--max-request-bytes", u64::from(args.limits.max_request_bytes)),
            ("--max-txn-ops", u64::from(args.limits.max_txn_ops)),
        ] {
            if number == 0 {
                return Err(ConfigError::Zero { flag });
            }
        }
        if !(1..=MAX_RANGE_STREAMS).contains(&args.limits.max_range_streams) {
            return Err(ConfigError::RangeStreams(args.limits.max_range_streams));
        }
        let interval = args.listen.grpc_keepalive_interval;
        let keepalive_timeout = match args.listen.grpc_keepalive_timeout {
            Duration::ZERO => KEEPALIVE_TIMEOUT,
            timeout => timeout,
        };
        let tenancy = Tenancy::try_from(args.tenant)?;
        let upstream = UpstreamSettings::try_from(args.upstream)?;
        // Last, since it is so by default.
        refuse_itself(&upstream, "--listen-client-urls", &clients)?;
        refuse_itself(&upstream, "--listen-metrics-urls", &metrics)?;
        Ok(Self {
            tenancy,
            name: args.view.name,
            compaction: match args.view.compaction_policy {
                CompactionArg::Virtual => CompactionPolicy::Virtual,
                CompactionArg::Passthrough => CompactionPolicy::Passthrough { min_age: args.view.compaction_min_age },
                CompactionArg::Deny => CompactionPolicy::Deny,
            },
            advertise,
            clients,
            metrics,
            tls,
            cert_reload_interval: args.security.cert_reload_interval,
            upstream,
            connections: ConnectionSettings {
                max_connections: args.limits.max_connections,
                max_connections_per_client: args.limits.max_connections_per_client,
                max_concurrent_streams: args.limits.max_concurrent_streams,
                handshake_timeout: args.limits.handshake_timeout,
                keepalive_interval: (!interval.is_zero()).then_some(interval),
                keepalive_timeout,
                unix_socket_mode: args.listen.unix_socket_mode,
            },
            shutdown: ShutdownSettings { delay: args.listen.shutdown_delay, drain_timeout: args.listen.drain_timeout },
            max_request_bytes: usize::try_from(args.limits.max_request_bytes).unwrap_or(usize::MAX),
            max_txn_ops: usize::try_from(args.limits.max_txn_ops).unwrap_or(usize::MAX),
            max_buffered_bytes: args.limits.max_buffered_bytes,
            stalled_reader_timeout: Some(args.limits.stalled_reader_timeout).filter(|timeout| !timeout.is_zero()),
            max_range_streams: args.limits.max_range_streams,
            limits: limits(&args.quotas, args.limits.max_streams)?,
            access_log: args.telemetry.access_log,
            traces: traces(args.telemetry),
        })
    }
}

/// A proxy that is its own upstream would wait for itself for ever. By default both are at port 2379 of this host.
fn refuse_itself(upstream: &UpstreamSettings, flag: &'static str, urls: &[ListenUrl]) -> Result<(), ConfigError> {
    for endpoint in &upstream.config.endpoints {
        if let Some(url) = urls.iter().find(|url| url.takes(&endpoint.address)) {
            return Err(ConfigError::Itself { endpoint: endpoint.to_string(), url: url.clone(), flag });
        }
    }
    Ok(())
}

fn limits(args: &QuotaArgs, max_streams: usize) -> Result<LimitSettings, ConfigError> {
    let requests_per_second = match (NonZeroU32::new(args.max_requests_per_second), args.max_requests_burst) {
        (Some(per_second), burst) => {
            Some(RateSettings { per_second, burst: NonZeroU32::new(burst).unwrap_or(per_second) })
        }
        (None, 0) => None,
        (None, _) => {
            let (given, missing) = ("--max-requests-burst", "--max-requests-per-second");
            return Err(ConfigError::Incomplete { given, missing });
        }
    };
    Ok(LimitSettings {
        quota_bytes: NonZeroUsize::new(args.quota_bytes),
        quota_keys: NonZeroUsize::new(args.quota_keys),
        requests_per_second,
        concurrent_requests: NonZeroUsize::new(args.max_concurrent_requests),
        streams: NonZeroUsize::new(max_streams),
        watches: NonZeroUsize::new(args.max_watches),
        leases: NonZeroUsize::new(args.max_leases),
    })
}

fn traces(args: TelemetryArgs) -> Option<TraceSettings> {
    args.enable_distributed_tracing.then(|| TraceSettings {
        address: args.distributed_tracing_address,
        service_name: args.distributed_tracing_service_name,
        instance_id: Some(args.distributed_tracing_instance_id).filter(|id| !id.is_empty()),
        samples_per_million: args.distributed_tracing_sampling_rate,
    })
}

fn client_urls(args: &ServeArgs, tls: bool) -> Result<Vec<ListenUrl>, ConfigError> {
    const FLAG: &str = "--listen-client-urls";
    let default = args.listen.listen_client_urls == ["http://localhost:2379"];
    match &args.listen.listen_addr {
        None if args.listen.grpc_proxy && default => Ok(vec![listen_addr(GRPC_PROXY_ADDRESS, tls)?]),
        None => {
            let urls = listen_urls(FLAG, &args.listen.listen_client_urls)?;
            if urls.is_empty() { Err(ConfigError::Empty { flag: FLAG }) } else { Ok(urls) }
        }
        Some(_) if !default => Err(ConfigError::ListenTwice),
        Some(address) => Ok(vec![listen_addr(address, tls)?]),
    }
}

/// An address in Go's form: without a host all of them.
fn listen_addr(address: &str, tls: bool) -> Result<ListenUrl, ConfigError> {
    let scheme = if tls { "https" } else { "http" };
    let host = if address.starts_with(':') { "0.0.0.0" } else { "" };
    listen_url("--listen-addr", &format!("{scheme}://{host}{address}"))
}

fn listen_urls(flag: &'static str, urls: &[String]) -> Result<Vec<ListenUrl>, ConfigError> {
    urls.iter().filter(|url| !url.is_empty()).map(|url| listen_url(flag, url)).collect()
}

fn listen_url(flag: &'static str, url: &str) -> Result<ListenUrl, ConfigError> {
    ListenUrl::parse(url).map_err(|reason| ConfigError::Url { flag, url: url.to_owned(), reason })
}

fn advertised(args: &ListenArgs, clients: &[ListenUrl], tls: bool) -> Result<Vec<String>, ConfigError> {
    const FLAG: &str = "--advertise-client-urls";
    let given: Vec<&String> = args.advertise_client_urls.iter().filter(|url| !url.is_empty()).collect();
    if given.is_empty() {
        return clients
            .iter()
            .map(|url| match &url.address {
                ListenAddress::Tcp(address) if address.ip().is_unspecified() || address.port() == 0 => {
                    if !args.grpc_proxy {
                        return Err(ConfigError::NoAdvertise { url: url.clone() });
                    }
                    tracing::warn!("--advertise-client-url is missing: member lists name {GRPC_PROXY_ADDRESS}, as grpc-proxy's would, which leads nowhere");
                    Ok(format!("{}://{GRPC_PROXY_ADDRESS}", if tls { "https" } else { "http" }))
                }
                _ => Ok(url.to_string()),
            })
            .collect();
    }
    given
        .into_iter()
        .map(|url| {
            // grpc-proxy's --advertise-client-url is an address without a scheme.
            let url = match url.contains("://") {
                true => url.clone(),
                false => format!("{}://{url}", if tls { "https" } else { "http" }),
            };
            match Endpoint::parse(&url, tls) {
                Ok(_) => Ok(url),
                Err(_) => Err(ConfigError::Url {
                    flag: FLAG,
                    url,
                    reason: "not a URL that clients can connect to; write for example https://HOST:PORT",
                }),
            }
        })
        .collect()
}

fn server_tls(args: &SecurityArgs) -> Result<Option<ServerTlsFiles>, ConfigError> {
    let allowed = match (args.client_cert_allowed_cn.as_slice(), args.client_cert_allowed_hostname.as_slice()) {
        ([], []) => AllowedClients::Any,
        (names, []) => AllowedClients::CommonNames(names.to_vec()),
        ([], names) => AllowedClients::Hostnames(
            names
                .iter()
                .map(|name| ServerName::try_from(name.clone()).map_err(|_| ConfigError::Hostname(name.clone())))
                .collect::<Result<_, _>>()?,
        ),
        _ => return Err(ConfigError::AllowedTwice),
    };
    let versions = match (args.tls_min_version.as_str(), args.tls_max_version.as_str()) {
        ("" | "TLS1.2", "" | "TLS1.3") => TlsVersions::From12,
        ("" | "TLS1.2", "TLS1.2") => TlsVersions::Only12,
        ("TLS1.3", "" | "TLS1.3") => TlsVersions::Only13,
        (min, max) => {
            return Err(ConfigError::TlsVersions { min: min.to_owned(), max: max.to_owned() });
        }
    };
    let suites = cipher_suites(&args.cipher_suites, versions)?;
    let incomplete = |given, missing| Err(ConfigError::Incomplete { given, missing });
    let files = match (&args.cert_file, &args.key_file) {
        (Some(cert), Some(key)) => {
            let files = ServerTlsFiles::new(cert.clone(), key.clone()).with_versions(versions);
            Some(suites.into_iter().fold(files, ServerTlsFiles::with_cipher_suites))
        }
        (Some(_), None) => return incomplete("--cert-file", "--key-file"),
        (None, Some(_)) => return incomplete("--key-file", "--cert-file"),
        (None, None) if suites.is_some() => return incomplete("--cipher-suites", "--cert-file and --key-file"),
        (None, None) => None,
    };
    match (files, &args.trusted_ca_file) {
        (Some(files), Some(ca)) => Ok(Some(files.with_client_ca(ca.clone(), allowed))),
        (None, Some(_)) => incomplete("--trusted-ca-file", "--cert-file and --key-file"),
        (_, None) if args.client_cert_auth => incomplete("--client-cert-auth", "--trusted-ca-file"),
        (_, None) if allowed != AllowedClients::Any => {
            incomplete("--client-cert-allowed-cn or --client-cert-allowed-hostname", "--trusted-ca-file")
        }
        (files, None) => Ok(files),
    }
}

/// The suites of these names; none for no names. etcd refuses them, too, where only TLS 1.3 is left
/// (`embed.Config.Validate`).
fn cipher_suites(names: &[String], versions: TlsVersions) -> Result<Option<CipherSuites>, ConfigError> {
    let names: Vec<String> = names.iter().filter(|name| !name.is_empty()).cloned().collect();
    if names.is_empty() {
        return Ok(None);
    }
    let suites = CipherSuites::named(&names)?;
    match versions {
        TlsVersions::Only13 => Err(ConfigError::CipherSuitesOf13(names.join(","))),
        TlsVersions::Only12 if !suites.serve_tls12() => Err(ConfigError::NoCipherSuite(names.join(","))),
        TlsVersions::From12 | TlsVersions::Only12 => Ok(Some(suites)),
    }
}

// === impl ConnectionSettings ===

impl ConnectionSettings {
    /// Those for the metrics listeners. Probes and Prometheus have places of their own: a proxy whose clients take all of
    /// theirs is busy, not dead.
    pub fn for_probes(&self) -> Self {
        Self { max_connections: PROBES, max_connections_per_client: PROBES, ..self.clone() }
    }
}

// === impl Tenancy ===

impl TryFrom<TenantArgs> for Tenancy {
    type Error = ConfigError;

    fn try_from(args: TenantArgs) -> Result<Self, ConfigError> {
        // Keys are bytes: a prefix need not be text.
        let bytes = args.prefix.filter(|prefix| !prefix.is_empty()).ok_or(ConfigError::NoPrefix)?.into_vec();
        let prefix = match args.allow_unterminated_prefix {
            true => Prefix::unterminated(bytes.clone()),
            false => Prefix::new(bytes.clone()),
        };
        let prefix = prefix.map_err(|source| ConfigError::Prefix {
            prefix: bytes.escape_ascii().to_string(),
            source,
            hint: match source {
                PrefixError::Unterminated => {
                    ", so it would contain its siblings (/a contains /ab); add the '/', or, to take over data that lies under this prefix, --allow-unterminated-prefix"
                }
                _ => "",
            },
        })?;
        let bytes = args.meta_prefix.into_vec();
        let meta_prefix = Prefix::new(bytes.clone())
            .map_err(|source| ConfigError::MetaPrefix { prefix: bytes.escape_ascii().to_string(), source })?;
        if prefix.overlaps(meta_prefix.as_bytes()) {
            return Err(ConfigError::OverlapsMeta { prefix: prefix.to_string(), meta_prefix: meta_prefix.to_string() });
        }
        if prefix.overlaps_kubernetes() && !args.force {
            return Err(ConfigError::OverlapsKubernetes(prefix));
        }
        Ok(Self { prefix, meta_prefix })
    }
}

// === impl UpstreamSettings ===

impl UpstreamSettings {
    /// Reads the certificates.
    ///
    /// # Errors
    /// Names the file that is missing or unusable.
    pub fn load(&self) -> Result<UpstreamConfig, TlsError> {
        let tls = self.tls.clone().map(ClientTls::load).transpose()?.map(Arc::new);
        Ok(UpstreamConfig { tls, ..self.config.clone() })
    }
}

impl TryFrom<UpstreamArgs> for UpstreamSettings {
    type Error = ConfigError;

    fn try_from(args: UpstreamArgs) -> Result<Self, ConfigError> {
        let incomplete = |given, missing| Err(ConfigError::Incomplete { given, missing });
        let tls = match (args.cacert, args.cert, args.key) {
            (Some(ca), Some(cert), Some(key)) => Some(ClientTlsFiles::new(ca).with_identity(cert, key)),
            (Some(ca), None, None) => Some(ClientTlsFiles::new(ca)),
            (None, None, None) => None,
            (_, Some(_), None) => return incomplete("--cert", "--key"),
            (_, None, Some(_)) => return incomplete("--key", "--cert"),
            (None, Some(_), Some(_)) => return incomplete("--cert", "--cacert"),
        };
        let mut endpoints = Vec::new();
        for text in args.endpoints.iter().filter(|text| !text.is_empty()) {
            let endpoint = Endpoint::parse(text, tls.is_some())?;
            endpoint.server_name()?;
            if endpoint.tls && tls.is_none() {
                return Err(ConfigError::NoCa(endpoint));
            }
            endpoints.push(endpoint);
        }
        if endpoints.is_empty() {
            return Err(ConfigError::Empty { flag: "--endpoints" });
        }
        let keepalive_time = (!args.keepalive_time.is_zero()).then(|| args.keepalive_time.max(LEAST_KEEPALIVE));
        if keepalive_time.is_some_and(|time| time != args.keepalive_time) {
            tracing::warn!(
                "--keepalive-time={:?} is raised to {LEAST_KEEPALIVE:?}, as etcd hangs up on clients that ping so often",
                args.keepalive_time
            );
        }
        for (flag, duration) in [("--dial-timeout", args.dial_timeout), ("--keepalive-timeout", args.keepalive_timeout)]
        {
            if duration.is_zero() {
                return Err(ConfigError::Zero { flag });
            }
        }
        let config = UpstreamConfig {
            user: user(args.user, args.password, args.password_file)?,
            unary_connections: args.upstream_connections,
            stream_connections: args.upstream_stream_connections,
            dial_timeout: args.dial_timeout,
            keepalive_time,
            keepalive_timeout: args.keepalive_timeout,
            keepalive_while_idle: args.permit_without_stream,
            ..UpstreamConfig::new(endpoints, None)
        };
        Ok(Self { config, tls })
    }
}

/// The upstream's user, as etcdctl takes it: without a password of its own, the name has it behind its first colon.
fn user(
    name: Option<Secret>,
    password: Option<Secret>,
    file: Option<PathBuf>,
) -> Result<Option<Arc<Credentials>>, ConfigError> {
    let incomplete = |given, missing| Err(ConfigError::Incomplete { given, missing });
    let present = |text: &Secret| !text.expose().is_empty();
    let Some(name) = name.filter(present) else {
        return match (password.filter(present), file) {
            (Some(_), _) => incomplete("--password", "--user"),
            (_, Some(_)) => incomplete("--password-file", "--user"),
            (None, None) => Ok(None),
        };
    };
    let (name, password) = match (name.expose(), password.filter(present), file) {
        (_, Some(_), Some(_)) => return Err(ConfigError::PasswordTwice),
        (name, Some(text), None) => (name, Password::Text(text)),
        (name, None, Some(file)) => (name, Password::File(file)),
        (name, None, None) => match name.split_once(':') {
            Some((name, password)) if !password.is_empty() => (name, Password::Text(password.into())),
            _ => return incomplete("--user", "--password-file, --password or NAME:PASSWORD"),
        },
    };
    Ok(Some(Arc::new(Credentials::new(name, password))))
}

// === impl ListenUrl ===

impl ListenUrl {
    /// Reads a URL, or says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        if let Some((tls, path)) = text
            .strip_prefix("unix://")
            .map(|path| (false, path))
            .or_else(|| text.strip_prefix("unixs://").map(|path| (true, path)))
        {
            if !path.starts_with('/') {
                return Err("the path of the socket must be absolute: unix:///PATH");
            }
            return Ok(Self { address: ListenAddress::Unix(path.into()), tls });
        }
        let (tls, rest) = text
            .strip_prefix("http://")
            .map(|rest| (false, rest))
            .or_else(|| text.strip_prefix("https://").map(|rest| (true, rest)))
            .ok_or("the scheme must be http, https, unix or unixs")?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':').ok_or("the port is missing")?;
        let port = port.parse().map_err(|_| "the port is no number up to 65535")?;
        let ip = match host.trim_start_matches('[').trim_end_matches(']') {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            host => host.parse().map_err(|_| "the host must be an IP address or localhost, as in etcd")?,
        };
        Ok(Self { address: ListenAddress::Tcp(SocketAddr::new(ip, port)), tls })
    }

    /// Whether whoever connects to `address` comes here, as far as that can be told without asking for names.
    fn takes(&self, address: &Address) -> bool {
        match (&self.address, address) {
            (ListenAddress::Tcp(own), Address::Tcp(host, port)) => {
                let own_ip = own.ip().to_canonical();
                let same_host = match host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
                    // Somebody else may listen on the loopback address of the other family.
                    Ok(ip) if own_ip.is_unspecified() => {
                        (ip.is_loopback() || ip.is_unspecified()) && (own_ip.is_ipv6() || ip.is_ipv4())
                    }
                    Ok(ip) => {
                        ip == own_ip || ip.is_unspecified() && own_ip.is_loopback() && ip.is_ipv4() == own_ip.is_ipv4()
                    }
                    Err(_) => {
                        host.eq_ignore_ascii_case("localhost") && (own_ip.is_loopback() || own_ip.is_unspecified())
                    }
                };
                // Port 0 is whichever the system chooses.
                same_host && own.port() == *port && *port != 0
            }
            (ListenAddress::Unix(own), Address::Unix(path)) => own == path,
            _ => false,
        }
    }

    /// Whether only processes on this host can connect.
    fn stays_on_this_host(&self) -> bool {
        match &self.address {
            ListenAddress::Tcp(address) => address.ip().is_loopback(),
            ListenAddress::Unix(_) => true,
        }
    }
}

impl fmt::Display for ListenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.address, self.tls) {
            (ListenAddress::Tcp(address), false) => write!(f, "http://{address}"),
            (ListenAddress::Tcp(address), true) => write!(f, "https://{address}"),
            (ListenAddress::Unix(path), false) => write!(f, "unix://{}", path.display()),
            (ListenAddress::Unix(path), true) => write!(f, "unixs://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests;
