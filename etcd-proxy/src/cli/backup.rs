//! The flags of `backup`, `restore` and `copy`.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, ValueEnum};

use super::{LogArgs, TenantArgs, UpstreamArgs, values};
use crate::upstream::Secret;

/// Flags of `backup`.
#[derive(Args, Clone, Debug)]
pub struct BackupArgs {
    /// Which tenant.
    #[command(flatten)]
    pub tenant: TenantArgs,
    /// Into which file.
    #[command(flatten)]
    pub backup: BackupFileArgs,
    /// The shared etcd.
    #[command(flatten)]
    pub upstream: UpstreamArgs,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// The file of a backup.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Backup")]
pub struct BackupFileArgs {
    /// Path to the file. It grows as FILE.partial; what an earlier process left there is gone on with.
    #[arg(long, env = "ETCD_PROXY_FILE", required = true)]
    pub file: PathBuf,
    /// Replace a file that is there.
    #[arg(long, env = "ETCD_PROXY_OVERWRITE", value_parser = values::boolean,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub overwrite: bool,
}

/// Flags of `restore`.
#[derive(Args, Clone, Debug)]
pub struct RestoreArgs {
    /// Into which tenant.
    #[command(flatten)]
    pub tenant: TenantArgs,
    /// From which file.
    #[command(flatten)]
    pub restore: RestoreFileArgs,
    /// The shared etcd.
    #[command(flatten)]
    pub upstream: UpstreamArgs,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// The backup that is restored, and how.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Restore")]
pub struct RestoreFileArgs {
    /// Path to the backup.
    #[arg(long, env = "ETCD_PROXY_FILE", required = true)]
    pub file: PathBuf,
    /// Delete the keys and revoke the leases that the tenant has, first.
    #[arg(long, env = "ETCD_PROXY_OVERWRITE", value_parser = values::boolean,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub overwrite: bool,
    /// What becomes of leases: "grant" grants them anew with the same ids and their whole time to live, "detach" keeps their
    /// keys without a lease, "skip" leaves their keys out.
    #[arg(long, env = "ETCD_PROXY_LEASES", default_value = "grant")]
    pub leases: LeasesArg,
}

/// What becomes of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LeasesArg {
    /// Granted anew.
    Grant,
    /// Their keys stay without them.
    Detach,
    /// Their keys are left out.
    Skip,
}

/// Flags of `copy`.
#[derive(Args, Clone, Debug)]
pub struct CopyArgs {
    /// Which tenant.
    #[command(flatten)]
    pub tenant: TenantArgs,
    /// Where it is copied to.
    #[command(flatten)]
    pub target: TargetArgs,
    /// The shared etcd of the tenant.
    #[command(flatten)]
    pub upstream: UpstreamArgs,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Where a tenant is copied to.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Target")]
pub struct TargetArgs {
    /// Key prefix of the copy.
    #[arg(long, env = "ETCD_PROXY_TO_PREFIX", required = true)]
    pub to_prefix: OsString,
    /// Key prefix of the proxies' own bookkeeping there, if it is another than --meta-prefix.
    #[arg(long, env = "ETCD_PROXY_TO_META_PREFIX")]
    pub to_meta_prefix: Option<OsString>,
    /// Comma-separated addresses of another etcd, as --endpoints. The flags --cacert, --cert, --key and --user are not used for it;
    /// those that follow are.
    #[arg(long, env = "ETCD_PROXY_TO_ENDPOINTS", value_delimiter = ',')]
    pub to_endpoints: Option<Vec<String>>,
    /// Path to the CA bundle that verifies its certificates.
    #[arg(long, env = "ETCD_PROXY_TO_CACERT", requires = "to_endpoints")]
    pub to_cacert: Option<PathBuf>,
    /// Path to the client certificate shown to it.
    #[arg(long, env = "ETCD_PROXY_TO_CERT", requires = "to_endpoints")]
    pub to_cert: Option<PathBuf>,
    /// Path to the private key of --to-cert.
    #[arg(long, env = "ETCD_PROXY_TO_KEY", requires = "to_endpoints")]
    pub to_key: Option<PathBuf>,
    /// User of it where it has authentication on: NAME, with the password by --to-password-file, or NAME:PASSWORD.
    #[arg(long, env = "ETCD_PROXY_TO_USER", value_parser = values::secret, requires = "to_endpoints")]
    pub to_user: Option<Secret>,
    /// Path to a file with the password of --to-user.
    #[arg(long, env = "ETCD_PROXY_TO_PASSWORD_FILE", requires = "to_endpoints")]
    pub to_password_file: Option<PathBuf>,
    /// Delete the keys and revoke the leases that are there, first.
    #[arg(long, env = "ETCD_PROXY_OVERWRITE", value_parser = values::boolean,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub overwrite: bool,
    /// What becomes of leases: "grant" grants them anew with the same ids and their whole time to live, "detach" keeps their
    /// keys without a lease, "skip" leaves their keys out.
    #[arg(long, env = "ETCD_PROXY_LEASES", default_value = "grant")]
    pub leases: LeasesArg,
    /// Path to the file that holds the copy meanwhile, by default one in $TMPDIR named after what is copied. It is left there
    /// if the copy breaks off, so that the same command can go on, and removed at the end.
    #[arg(long, env = "ETCD_PROXY_WORK_FILE")]
    pub work_file: Option<PathBuf>,
}
