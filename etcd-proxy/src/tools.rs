//! The tools in the binary: `claim` and `release`, `usage` and `check`, `backup`, `restore` and `copy`.

mod adopt;
mod backup;
mod check;
mod copy;
mod progress;
mod restore;
mod table;
mod usage;

use std::{
    io::{self, Write},
    time::Duration,
};

use proto::etcdserverpb::RangeRequest;
use tokio::time::timeout;
use tonic::Status;

use self::adopt::{Adoption, adopt};
pub use self::{
    backup::{BackupError, backup},
    check::check,
    copy::{CopyError, copy},
    restore::{RestoreError, restore},
    usage::usage,
};
use crate::{
    cli::{ClaimArgs, ReleaseArgs},
    config::{ConfigError, Tenancy, UpstreamSettings},
    meta::{self, Claim, ClaimError, FORMAT, MetaLayout, ReleaseError},
    prefix::Prefix,
    tls::TlsError,
    upstream::{Kv, Upstream},
    words::counted,
};

/// Why a tool did not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// The flags make no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The prefix cannot be claimed.
    #[error("cannot claim: {0}")]
    Claim(#[from] ClaimError),
    /// The prefix cannot be released.
    #[error("cannot release: {0}")]
    Release(#[from] ReleaseError),
    /// No backup was made.
    #[error("cannot back up: {0}")]
    Backup(#[from] BackupError),
    /// A backup was not restored.
    #[error("cannot restore: {0}")]
    Restore(#[from] RestoreError),
    /// A tenant was not copied.
    #[error("cannot copy: {0}")]
    Copy(#[from] CopyError),
    /// The upstream refused to answer.
    #[error("the upstream answers {:?}: {}", .0.code(), .0.message())]
    Upstream(#[from] Status),
    /// Something is wrong, which has been printed.
    #[error("findings that keep a proxy from working: {0}")]
    Found(usize),
    /// No answer in time.
    #[error("not done within {0:?}; raise --command-timeout, or look whether the upstream of --endpoints is up")]
    Timeout(Duration),
    /// The result could not be printed.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

/// `etcd-proxy claim`.
///
/// # Errors
/// When the prefix is held by somebody else or overlaps a claimed one, or the upstream cannot be asked.
pub async fn claim(args: ClaimArgs) -> Result<(), ToolError> {
    let tenancy = Tenancy::try_from(args.tenant)?;
    let limit = args.claim.command_timeout;
    let claim = Claim {
        format: FORMAT,
        owner: args.claim.owner,
        uid: args.claim.owner_uid,
        created_at: jiff::Timestamp::now(),
    };
    let upstream = Upstream::new(UpstreamSettings::try_from(args.upstream)?.load()?);
    let layout = MetaLayout::new(tenancy.meta_prefix.clone());
    let work = async {
        let mut kv = upstream.kv();
        meta::claim(&mut kv, &layout, &tenancy.prefix, &claim).await?;
        let keys = keys_under(&mut kv, &tenancy.prefix).await?;
        let adoption = match args.claim.adopt_leases {
            true => Some(adopt_leases(&upstream, &layout, &tenancy.prefix).await?),
            false => None,
        };
        Ok::<_, ToolError>((keys, adoption))
    };
    let (keys, adoption) = timeout(limit, work).await.map_err(|_| ToolError::Timeout(limit))??;
    let mut out = io::stdout().lock();
    writeln!(out, "{} is claimed by {}", tenancy.prefix, claim.owner)?;
    if keys > 0 {
        writeln!(out, "it holds {} already, which its tenant will see", counted(keys, "key"))?;
    }
    match adoption {
        Some(adoption) => Ok(adoption.print(&mut out)?),
        None => Ok(()),
    }
}

/// `etcd-proxy release`.
///
/// # Errors
/// When the prefix is not claimed, is held by another owner than the one named, still has keys or leases, or the upstream
/// cannot be asked.
pub async fn release(args: ReleaseArgs) -> Result<(), ToolError> {
    let tenancy = Tenancy::try_from(args.tenant)?;
    let limit = args.release.command_timeout;
    let upstream = Upstream::new(UpstreamSettings::try_from(args.upstream)?.load()?);
    let layout = MetaLayout::new(tenancy.meta_prefix.clone());
    let work = async {
        let mut kv = upstream.kv();
        let owner = args.release.owner.as_deref().map(|owner| (owner, args.release.owner_uid.as_str()));
        meta::release(&mut kv, &layout, &tenancy.prefix, owner, args.release.keep_data).await
    };
    let released = timeout(limit, work).await.map_err(|_| ToolError::Timeout(limit))??;
    writeln!(io::stdout().lock(), "{} is released; it was claimed by {}", tenancy.prefix, released.owner)?;
    Ok(())
}

async fn adopt_leases(upstream: &Upstream, layout: &MetaLayout, prefix: &Prefix) -> Result<Adoption, ToolError> {
    let held = meta::read_claim(&mut upstream.kv(), layout, prefix).await?;
    let held = held.ok_or_else(|| ReleaseError::NotClaimed(prefix.clone()))?;
    Ok(adopt(upstream, layout, prefix, &held).await?)
}

async fn keys_under(kv: &mut Kv, prefix: &Prefix) -> Result<i64, ToolError> {
    let (key, range_end) = prefix.all();
    let request = RangeRequest { key, range_end, count_only: true, ..Default::default() };
    Ok(kv.range(request).await?.into_inner().count)
}
