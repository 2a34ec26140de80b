//! The flags of the tools that look and change nothing: `usage` and `check`.

use std::{ffi::OsString, time::Duration};

use clap::{Args, ValueEnum, value_parser};

use super::{LogArgs, TenantArgs, UpstreamArgs, values};

/// Flags of `usage`.
#[derive(Args, Clone, Debug)]
pub struct UsageArgs {
    /// What is counted.
    #[command(flatten)]
    pub count: CountArgs,
    /// How it is shown.
    #[command(flatten)]
    pub output: OutputArgs,
    /// The shared etcd.
    #[command(flatten)]
    pub upstream: UpstreamArgs,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// What `usage` counts.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Usage")]
pub struct CountArgs {
    /// Count these tenants alone, as a list of prefixes. Without it, all that are claimed or have left meta keys.
    #[arg(long, env = "ETCD_PROXY_PREFIX", value_delimiter = ',', visible_alias = "namespace")]
    pub prefix: Vec<OsString>,
    /// Key prefix of the proxies' own bookkeeping on the upstream, the same for all that share it.
    #[arg(long, env = "ETCD_PROXY_META_PREFIX", default_value = "/etcd-proxy.meta/")]
    pub meta_prefix: OsString,
    /// Count bytes, too, for which every key and value is read. Without it, keys are counted by the upstream.
    #[arg(long, env = "ETCD_PROXY_BYTES", value_parser = values::boolean,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true")]
    pub bytes: bool,
    /// Longest time for the whole command (0 for no limit).
    #[arg(long, env = "ETCD_PROXY_COMMAND_TIMEOUT", value_parser = values::duration, default_value = "0s")]
    pub command_timeout: Duration,
}

/// How a result is shown.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Form of the result. Only supports table, json.
    #[arg(long, env = "ETCD_PROXY_OUTPUT", visible_alias = "write-out", default_value = "table")]
    pub output: OutputFormat,
}

/// Forms of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people.
    Table,
    /// One JSON object.
    Json,
}

/// Flags of `check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// Whose proxy is to run; without a prefix, the upstream alone is checked.
    #[command(flatten)]
    pub tenant: TenantArgs,
    /// What is checked.
    #[command(flatten)]
    pub check: ExamineArgs,
    /// How it is shown.
    #[command(flatten)]
    pub output: OutputArgs,
    /// The shared etcd.
    #[command(flatten)]
    pub upstream: UpstreamArgs,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// What `check` looks at.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Check")]
pub struct ExamineArgs {
    /// The proxy's --max-request-bytes.
    #[arg(long, env = "ETCD_PROXY_MAX_REQUEST_BYTES", default_value = "1572864", value_parser = value_parser!(u32).range(1..))]
    pub max_request_bytes: u32,
    /// Look at the compaction twice, this long apart, to see whether anybody compacts. A kube-apiserver does every 5m.
    #[arg(long, env = "ETCD_PROXY_OBSERVE", value_parser = values::duration, default_value = "0s")]
    pub observe: Duration,
    /// Longest time for each question.
    #[arg(long, env = "ETCD_PROXY_COMMAND_TIMEOUT", value_parser = values::duration, default_value = "5s")]
    pub command_timeout: Duration,
}
