//! The flags of `serve`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use super::{LogArgs, TelemetryArgs, TenantArgs, UpstreamArgs, values};

/// Flags of `serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Which tenant is served.
    #[command(flatten)]
    pub tenant: TenantArgs,
    /// What the tenant sees.
    #[command(flatten)]
    pub view: ViewArgs,
    /// Where clients connect.
    #[command(flatten)]
    pub listen: ListenArgs,
    /// Certificates shown to and demanded of clients.
    #[command(flatten)]
    pub security: SecurityArgs,
    /// The shared etcd.
    #[command(flatten)]
    pub upstream: UpstreamArgs,
    /// What is bounded.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// What the tenant may use.
    #[command(flatten)]
    pub quotas: QuotaArgs,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
    /// What is told of single calls.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// What the tenant sees.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Tenant")]
pub struct ViewArgs {
    /// Human-readable name of the one member that member lists show.
    #[arg(long, env = "ETCD_PROXY_NAME", default_value = "etcd-proxy")]
    pub name: String,
    /// What the tenant's compactions do: virtual (the tenant itself no longer sees its old revisions, the shared history
    /// stays), passthrough (the same, and the shared history is compacted as far as it is older than --compaction-min-age) or
    /// deny.
    #[arg(long, env = "ETCD_PROXY_COMPACTION_POLICY", default_value = "virtual")]
    pub compaction_policy: CompactionArg,
    /// How old a revision must be for a compaction to reach it on the upstream, with --compaction-policy=passthrough. Ages are
    /// counted from the start of the process. With 0s compactions are handed on as they are, and reach everybody's history.
    #[arg(long, env = "ETCD_PROXY_COMPACTION_MIN_AGE", value_parser = values::duration, default_value = "10m")]
    pub compaction_min_age: Duration,
}

/// What the tenant's compactions do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompactionArg {
    /// They move the tenant's watermark.
    Virtual,
    /// They move the tenant's watermark and compact what is old of the shared history.
    Passthrough,
    /// They are refused.
    Deny,
}

/// Where clients connect, and how the process ends.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Clients")]
pub struct ListenArgs {
    /// List of URLs to listen on for client grpc traffic and http: http://IP:PORT, https://IP:PORT, unix:///PATH or
    /// unixs:///PATH.
    #[arg(long, env = "ETCD_PROXY_LISTEN_CLIENT_URLS", value_parser = values::listen_url, value_delimiter = ',', default_value = "http://localhost:2379")]
    pub listen_client_urls: Vec<String>,
    /// Listen on HOST:PORT, as grpc-proxy spells it: with TLS if --cert-file is given. In place of --listen-client-urls.
    #[arg(long, env = "ETCD_PROXY_LISTEN_ADDR")]
    pub listen_addr: Option<String>,
    /// List of this proxy's client URLs as member lists name them. Without it, those of --listen-client-urls.
    #[arg(
        long,
        env = "ETCD_PROXY_ADVERTISE_CLIENT_URLS",
        value_delimiter = ',',
        visible_alias = "advertise-client-url"
    )]
    pub advertise_client_urls: Vec<String>,
    /// List of URLs to listen on for the /metrics, /usage, /livez, /readyz, /health and /version endpoints. For https, the
    /// client URL TLS info is used. Plaintext is served on any address, as by etcd: there is no way to the keys here.
    #[arg(long, env = "ETCD_PROXY_LISTEN_METRICS_URLS", value_parser = values::listen_url, value_delimiter = ',', visible_alias = "metrics-addr")]
    pub listen_metrics_urls: Vec<String>,
    /// Permissions of unix sockets, in octal.
    #[arg(long, env = "ETCD_PROXY_UNIX_SOCKET_MODE", value_parser = values::mode, default_value = "0600")]
    pub unix_socket_mode: u32,
    /// Serve plaintext on addresses other than loopback and unix sockets. Everyone who reaches the port is the tenant.
    #[arg(long, env = "ETCD_PROXY_ALLOW_PLAINTEXT", value_parser = values::boolean,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub allow_plaintext: bool,
    /// Time between the signal to end and the closing of the listeners, with /readyz failing already, for load
    /// balancers to notice.
    #[arg(long, env = "ETCD_PROXY_SHUTDOWN_DELAY", value_parser = values::duration, default_value = "0s")]
    pub shutdown_delay: Duration,
    /// Longest time that requests under way get to finish once the listeners are closed.
    #[arg(long, env = "ETCD_PROXY_DRAIN_TIMEOUT", value_parser = values::duration, default_value = "10s")]
    pub drain_timeout: Duration,
    /// Frequency duration of server-to-client ping to check if a connection is alive (0 to disable).
    #[arg(long, env = "ETCD_PROXY_GRPC_KEEPALIVE_INTERVAL", value_parser = values::duration, default_value = "2h")]
    pub grpc_keepalive_interval: Duration,
    /// Additional duration of wait before closing a non-responsive connection (0 for 20s, as in grpc-go).
    #[arg(long, env = "ETCD_PROXY_GRPC_KEEPALIVE_TIMEOUT", value_parser = values::duration, default_value = "20s")]
    pub grpc_keepalive_timeout: Duration,
    /// Whether the defaults are those of `etcd grpc-proxy start`.
    #[arg(skip)]
    pub grpc_proxy: bool,
}

/// Certificates shown to and demanded of clients. The names are etcd's.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Security")]
pub struct SecurityArgs {
    /// Path to the client server TLS cert file.
    #[arg(long, env = "ETCD_PROXY_CERT_FILE")]
    pub cert_file: Option<PathBuf>,
    /// Path to the client server TLS key file.
    #[arg(long, env = "ETCD_PROXY_KEY_FILE")]
    pub key_file: Option<PathBuf>,
    /// Enable client cert authentication. Needs --trusted-ca-file, which alone enables it, too.
    #[arg(long, env = "ETCD_PROXY_CLIENT_CERT_AUTH", value_parser = values::boolean,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub client_cert_auth: bool,
    /// Path to the client server TLS trusted CA cert file.
    #[arg(long, env = "ETCD_PROXY_TRUSTED_CA_FILE")]
    pub trusted_ca_file: Option<PathBuf>,
    /// Comma-separated list of common names for client cert authentication.
    #[arg(long, env = "ETCD_PROXY_CLIENT_CERT_ALLOWED_CN", value_delimiter = ',')]
    pub client_cert_allowed_cn: Vec<String>,
    /// Comma-separated list of SAN hostnames for client cert authentication.
    #[arg(long, env = "ETCD_PROXY_CLIENT_CERT_ALLOWED_HOSTNAME", value_delimiter = ',')]
    pub client_cert_allowed_hostname: Vec<String>,
    /// Minimum TLS version. Possible values: TLS1.2, TLS1.3.
    #[arg(long, env = "ETCD_PROXY_TLS_MIN_VERSION", value_parser = values::tls_version, default_value = "TLS1.2")]
    pub tls_min_version: String,
    /// Maximum TLS version. Possible values: TLS1.2, TLS1.3 (empty for the newest).
    #[arg(long, env = "ETCD_PROXY_TLS_MAX_VERSION", value_parser = values::tls_version, default_value = "")]
    pub tls_max_version: String,
    /// Comma-separated list of supported TLS cipher suites between clients and the proxy, by Go's names (empty for all that
    /// there are). They are those of TLS 1.2: the ones of TLS 1.3 cannot be chosen.
    #[arg(long, env = "ETCD_PROXY_CIPHER_SUITES", value_delimiter = ',', visible_alias = "listen-cipher-suites")]
    pub cipher_suites: Vec<String>,
    /// How often certificate and CA files, also those of the upstream, are looked at for changes.
    #[arg(long, env = "ETCD_PROXY_CERT_RELOAD_INTERVAL", value_parser = values::duration, default_value = "10s")]
    pub cert_reload_interval: Duration,
}

/// What is bounded.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Maximum client request size in bytes the server will accept. At most the upstream's own.
    #[arg(long, env = "ETCD_PROXY_MAX_REQUEST_BYTES", visible_alias = "max-send-bytes", default_value = "1572864")]
    pub max_request_bytes: u32,
    /// Maximum number of operations permitted in a transaction. At most the upstream's own.
    #[arg(long, env = "ETCD_PROXY_MAX_TXN_OPS", default_value = "128")]
    pub max_txn_ops: u32,
    /// Maximum concurrent streams that each client can open at a time.
    #[arg(long, env = "ETCD_PROXY_MAX_CONCURRENT_STREAMS", default_value = "4096")]
    pub max_concurrent_streams: u32,
    /// Maximum number of streams of all clients at a time, 0 for no limit: watch and keep-alive streams, RangeStreams, snapshots,
    /// observers of elections and calls that wait for a lock or in an election. Further ones are refused. As many unary
    /// requests may be under way besides, unless --max-concurrent-requests says otherwise.
    #[arg(long, env = "ETCD_PROXY_MAX_STREAMS", default_value = "10000")]
    pub max_streams: usize,
    /// Maximum number of RangeStreams at a time, up to 512. Each may hold a part of its range in memory while its client does
    /// not read on. Further ones wait 10s for a place and are then refused.
    #[arg(long, env = "ETCD_PROXY_MAX_RANGE_STREAMS", default_value = "32")]
    pub max_range_streams: usize,
    /// Bytes that long answers to unary requests and long messages of watches may take together while they are passed on, 0
    /// for no limit. One that finds no room waits for it; an answer that is longer than this is refused. Short answers that are
    /// not taken yet may take a quarter of it besides, and so may requests.
    #[arg(long, env = "ETCD_PROXY_MAX_BUFFERED_BYTES", default_value = "134217728")]
    pub max_buffered_bytes: usize,
    /// Longest time for which the reader of an answer or of a stream may read nothing of it before the rest is given up (0
    /// for no limit).
    #[arg(long, env = "ETCD_PROXY_STALLED_READER_TIMEOUT", value_parser = values::duration, default_value = "1m")]
    pub stalled_reader_timeout: Duration,
    /// Maximum number of client connections. Further ones are closed at once.
    #[arg(long, env = "ETCD_PROXY_MAX_CONNECTIONS", default_value = "4096")]
    pub max_connections: usize,
    /// Maximum number of connections of one client: an IP address, or a process at a unix socket. Further ones are closed at
    /// once. Raise it where many clients share an address, as behind a load balancer that hides them.
    #[arg(long, env = "ETCD_PROXY_MAX_CONNECTIONS_PER_CLIENT", default_value = "1024")]
    pub max_connections_per_client: usize,
    /// Longest time that a new connection may take for its TLS handshake and its first bytes of HTTP.
    #[arg(long, env = "ETCD_PROXY_HANDSHAKE_TIMEOUT", value_parser = values::duration, default_value = "10s")]
    pub handshake_timeout: Duration,
}

/// What the tenant may use. All of it is off unless asked for.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Quotas")]
pub struct QuotaArgs {
    /// Bytes that the tenant's live keys and their values may have together, 0 for no limit. A write that would go beyond
    /// is refused as by an etcd without space; deletions and writes that shrink pass. One for all replicas.
    #[arg(long, env = "ETCD_PROXY_QUOTA_BYTES", default_value = "0")]
    pub quota_bytes: usize,
    /// Live keys that the tenant may have, 0 for no limit; as --quota-bytes.
    #[arg(long, env = "ETCD_PROXY_QUOTA_KEYS", default_value = "0")]
    pub quota_keys: usize,
    /// Requests (RPCs, streams that are opened among them, and messages of clients on open streams) per second in this process,
    /// 0 for no limit. Further RPCs are refused, further messages wait.
    #[arg(long, env = "ETCD_PROXY_MAX_REQUESTS_PER_SECOND", default_value = "0")]
    pub max_requests_per_second: u32,
    /// Requests that may come at once after a time of rest, with --max-requests-per-second; 0 for as many as in a second.
    #[arg(long, env = "ETCD_PROXY_MAX_REQUESTS_BURST", default_value = "0")]
    pub max_requests_burst: u32,
    /// Unary requests at a time in this process, 0 for no limit. Further ones are refused. Waiting for a lock or in an
    /// election counts among the watches instead.
    #[arg(long, env = "ETCD_PROXY_MAX_CONCURRENT_REQUESTS", default_value = "0")]
    pub max_concurrent_requests: usize,
    /// Watches at a time in this process, on all streams together, 0 for no limit. Further ones are answered as denied by
    /// etcd; their stream goes on.
    #[arg(long, env = "ETCD_PROXY_MAX_WATCHES", default_value = "0")]
    pub max_watches: usize,
    /// Leases that the tenant may have, 0 for no limit. Further ones are refused. One for all replicas.
    #[arg(long, env = "ETCD_PROXY_MAX_LEASES", default_value = "0")]
    pub max_leases: usize,
}
