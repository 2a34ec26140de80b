//! Flags about what the proxy tells of single calls.

use clap::Args;

use super::values;

/// What the proxy tells of single calls.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub struct TelemetryArgs {
    /// Log a line for each RPC when it has ended, streams included: method, code, duration, peer and bytes each way, at any log
    /// level. Never keys, values or tokens.
    #[arg(long, env = "ETCD_PROXY_ACCESS_LOG", visible_alias = "experimental-enable-grpc-logging", value_parser = values::boolean,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub access_log: bool,
}
