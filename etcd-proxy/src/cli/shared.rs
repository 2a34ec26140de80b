//! Flags that several commands have.

use std::{ffi::OsString, num::NonZeroUsize, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use super::values;
use crate::upstream::Secret;

/// Which tenant.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Tenant")]
pub struct TenantArgs {
    /// Key prefix of the tenant on the upstream, ending in "/". The tenant never sees it.
    #[arg(long, env = "ETCD_PROXY_PREFIX", visible_alias = "namespace")]
    pub prefix: Option<OsString>,
    /// Key prefix of the proxies' own bookkeeping on the upstream, the same for all that share it.
    #[arg(long, env = "ETCD_PROXY_META_PREFIX", default_value = "/etcd-proxy.meta/")]
    pub meta_prefix: OsString,
    /// Accept a prefix that does not end in "/", to take over the data of a grpc-proxy with such a namespace. No other
    /// prefix may begin with it.
    #[arg(long, env = "ETCD_PROXY_ALLOW_UNTERMINATED_PREFIX", value_parser = values::boolean,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub allow_unterminated_prefix: bool,
    /// Accept a prefix that lies under or around "/registry/", where kube-apiserver keeps its data. A prefix that overlaps
    /// a claimed one is refused all the same.
    #[arg(long, env = "ETCD_PROXY_FORCE", value_parser = values::boolean,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub force: bool,
}

/// How to reach the shared etcd. The names are etcdctl's.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Upstream")]
pub struct UpstreamArgs {
    /// Comma-separated addresses of the upstream's members: http://HOST:PORT, https://HOST:PORT, unix:///PATH,
    /// unixs:///PATH, or HOST:PORT, which speaks TLS if --cacert is given.
    #[arg(long, env = "ETCD_PROXY_ENDPOINTS", value_delimiter = ',', default_value = "127.0.0.1:2379")]
    pub endpoints: Vec<String>,
    /// Path to the CA bundle that verifies the upstream's certificates.
    #[arg(long, env = "ETCD_PROXY_CACERT")]
    pub cacert: Option<PathBuf>,
    /// Path to the client certificate shown to the upstream.
    #[arg(long, env = "ETCD_PROXY_CERT")]
    pub cert: Option<PathBuf>,
    /// Path to the private key of --cert.
    #[arg(long, env = "ETCD_PROXY_KEY")]
    pub key: Option<PathBuf>,
    /// User of the upstream where it has authentication on: NAME, with the password by --password-file or --password, or
    /// NAME:PASSWORD. Without it, the user is the common name of --cert.
    #[arg(long, env = "ETCD_PROXY_USER", value_parser = values::secret)]
    pub user: Option<Secret>,
    /// Password of --user. Whoever may list processes can read it: prefer --password-file or the environment.
    #[arg(long, env = "ETCD_PROXY_PASSWORD", value_parser = values::secret)]
    pub password: Option<Secret>,
    /// Path to a file with the password of --user. It is read for each login, so it may change.
    #[arg(long, env = "ETCD_PROXY_PASSWORD_FILE")]
    pub password_file: Option<PathBuf>,
    /// Longest time for one attempt to connect, TLS handshake included.
    #[arg(long, env = "ETCD_PROXY_DIAL_TIMEOUT", value_parser = values::duration, default_value = "5s")]
    pub dial_timeout: Duration,
    /// Time between HTTP/2 pings to the upstream (0 to disable). At least 10s, to which less is raised, as by grpc-go: etcd hangs
    /// up on those that ping too often.
    #[arg(long, env = "ETCD_PROXY_KEEPALIVE_TIME", visible_alias = "dial-keepalive-time",
        value_parser = values::duration, default_value = "10s")]
    pub keepalive_time: Duration,
    /// Time to wait for the answer to a ping before the connection counts as lost.
    #[arg(long, env = "ETCD_PROXY_KEEPALIVE_TIMEOUT", visible_alias = "dial-keepalive-timeout",
        value_parser = values::duration, default_value = "10s")]
    pub keepalive_timeout: Duration,
    /// Ping the upstream also while nothing is under way, for load balancers that forget idle connections. etcd itself hangs up on
    /// clients that do.
    #[arg(long, env = "ETCD_PROXY_PERMIT_WITHOUT_STREAM", value_parser = values::boolean,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub permit_without_stream: bool,
    /// HTTP/2 connections to the upstream for unary calls. They are opened as they are needed.
    #[arg(long, env = "ETCD_PROXY_UPSTREAM_CONNECTIONS", default_value = "2")]
    pub upstream_connections: NonZeroUsize,
    /// HTTP/2 connections to the upstream for watches and other streams. Further ones are opened when each has 256 streams.
    #[arg(long, env = "ETCD_PROXY_UPSTREAM_STREAM_CONNECTIONS", default_value = "1")]
    pub upstream_stream_connections: NonZeroUsize,
}

/// What is logged, and how.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    /// Configures log level. Only supports debug, info, warn, error, panic, or fatal.
    #[arg(long, env = "ETCD_PROXY_LOG_LEVEL", default_value = "info")]
    pub log_level: LogLevel,
    /// Configures log format. Only supports json, console.
    #[arg(long, env = "ETCD_PROXY_LOG_FORMAT", default_value = "json")]
    pub log_format: LogFormat,
    /// The same as --log-level=debug.
    #[arg(long, env = "ETCD_PROXY_DEBUG", value_parser = values::boolean,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub debug: bool,
}

/// etcd's names of log levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// What an operator may want to know.
    Info,
    /// What may need attention.
    Warn,
    /// What needs attention.
    Error,
    /// As `error`: nothing here is worse.
    Panic,
    /// As `error`: nothing here is worse.
    Fatal,
}

/// etcd's names of log formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Console,
}
