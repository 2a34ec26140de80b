//! The flags of the tools.

use std::time::Duration;

use clap::Args;

use super::{LogArgs, TenantArgs, UpstreamArgs, values};

/// Flags of `claim`.
#[derive(Args, Clone, Debug)]
pub struct ClaimArgs {
    /// Which prefix.
    #[command(flatten)]
    pub tenant: TenantArgs,
    /// For whom.
    #[command(flatten)]
    pub claim: OwnerArgs,
    /// The shared etcd.
    #[command(flatten)]
    pub upstream: UpstreamArgs,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// For whom a prefix is claimed.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Claim")]
pub struct OwnerArgs {
    /// Who owns the prefix: free text that later conflicts name. The same owner may claim again.
    #[arg(long, env = "ETCD_PROXY_OWNER", required = true)]
    pub owner: String,
    /// Identity of the owner that survives renaming (the uid of a Kubernetes object).
    #[arg(long, env = "ETCD_PROXY_OWNER_UID", default_value = "")]
    pub owner_uid: String,
    /// Make leases that were granted past the proxy (through a grpc-proxy, say) the tenant's, if keys under the prefix and no
    /// others hang on them. Their keys keep them; their ids change, and are printed. Stop whoever grants such leases first.
    #[arg(long, env = "ETCD_PROXY_ADOPT_LEASES", value_parser = values::boolean,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub adopt_leases: bool,
    /// Longest time for the whole command.
    #[arg(long, env = "ETCD_PROXY_COMMAND_TIMEOUT", value_parser = values::duration, default_value = "10s")]
    pub command_timeout: Duration,
}

/// Flags of `release`.
#[derive(Args, Clone, Debug)]
pub struct ReleaseArgs {
    /// Which prefix.
    #[command(flatten)]
    pub tenant: TenantArgs,
    /// What may be left behind.
    #[command(flatten)]
    pub release: LeaveArgs,
    /// The shared etcd.
    #[command(flatten)]
    pub upstream: UpstreamArgs,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// What `release` may leave behind.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Release")]
pub struct LeaveArgs {
    /// Release the prefix although keys or leases are left under it. Whoever claims it next inherits them, and the meta keys
    /// that belong to them.
    #[arg(long, env = "ETCD_PROXY_KEEP_DATA", value_parser = values::boolean,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub keep_data: bool,
    /// Release the prefix only if its claim bears this owner (and --owner-uid).
    #[arg(long, env = "ETCD_PROXY_OWNER")]
    pub owner: Option<String>,
    /// Identity of the owner, if the claim bears one.
    #[arg(long, env = "ETCD_PROXY_OWNER_UID", default_value = "", requires = "owner")]
    pub owner_uid: String,
    /// Longest time for the whole command.
    #[arg(long, env = "ETCD_PROXY_COMMAND_TIMEOUT", value_parser = values::duration, default_value = "10s")]
    pub command_timeout: Duration,
}
