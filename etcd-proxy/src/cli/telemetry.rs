//! Flags about what the proxy tells of single calls.

use clap::Args;

use super::values;

/// etcd's heading.
const TRACING: &str = "Distributed tracing";

/// What the proxy tells of single calls.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub struct TelemetryArgs {
    /// Log a line for each RPC when it has ended, streams included: method, code, duration, peer and bytes each way, at any log
    /// level. Never keys, values or tokens.
    #[arg(long, env = "ETCD_PROXY_ACCESS_LOG", visible_alias = "experimental-enable-grpc-logging", value_parser = values::boolean,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub access_log: bool,
    /// Enable distributed tracing: a span for each RPC, which continues the client's trace, and one for each upstream call.
    #[arg(long, help_heading = TRACING, env = "ETCD_PROXY_ENABLE_DISTRIBUTED_TRACING", value_parser = values::boolean,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub enable_distributed_tracing: bool,
    /// HOST:PORT of the distributed tracing collector, which takes OTLP over gRPC, in plaintext as from etcd.
    #[arg(long, help_heading = TRACING, env = "ETCD_PROXY_DISTRIBUTED_TRACING_ADDRESS", default_value = "localhost:4317")]
    pub distributed_tracing_address: String,
    /// Distributed tracing service name, the same for all replicas of a proxy.
    #[arg(long, help_heading = TRACING, env = "ETCD_PROXY_DISTRIBUTED_TRACING_SERVICE_NAME", default_value = "etcd-proxy")]
    pub distributed_tracing_service_name: String,
    /// Distributed tracing instance ID, unique for each replica.
    #[arg(long, help_heading = TRACING, env = "ETCD_PROXY_DISTRIBUTED_TRACING_INSTANCE_ID", default_value = "")]
    pub distributed_tracing_instance_id: String,
    /// Number of calls to trace in a million among those whose client does not say whether to trace. Those that it says so of
    /// are traced at any rate.
    #[arg(long, help_heading = TRACING, env = "ETCD_PROXY_DISTRIBUTED_TRACING_SAMPLING_RATE", default_value = "0",
        value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub distributed_tracing_sampling_rate: u32,
}
