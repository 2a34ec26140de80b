//! `etcd-proxy copy`: a tenant into another prefix, on the same etcd or another one, by way of a backup in a temporary file.

use std::{
    fs::File,
    io::{self, BufReader, Write as _},
    path::{Path, PathBuf},
};

use ring::digest::{SHA256, digest};
use thiserror::Error;

use super::{
    ToolError,
    backup::{self, BackupError, partial},
    progress::say,
    restore::{self, RestoreError, check_empty, journal},
};
use crate::{
    backup::Reader,
    cli::{CopyArgs, TargetArgs, UpstreamArgs},
    config::{ConfigError, Tenancy, UpstreamSettings},
    snapshot,
    tenant::Tenant,
    words::counted,
};

/// Why a tenant was not copied.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CopyError {
    /// Source and target are not apart.
    #[error("{from} and {to} overlap on the same etcd")]
    Overlap {
        /// The source.
        from: crate::prefix::Prefix,
        /// The target.
        to: crate::prefix::Prefix,
    },
    /// The file that was named for the copy is not one that a copy left.
    #[error("{} exists: name another file by --work-file, or remove it", .0.display())]
    Exists(PathBuf),
    /// The source cannot be read into the temporary file.
    #[error(transparent)]
    Source(BackupError),
    /// The target does not take it.
    #[error(transparent)]
    Target(RestoreError),
    /// The temporary file cannot be removed.
    #[error("{}: {source}", path.display())]
    WorkFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
}

/// `etcd-proxy copy`.
///
/// # Errors
/// When the source cannot be read, the target is not empty or overlaps the source, or the upstream cannot be written.
pub async fn copy(args: CopyArgs) -> Result<(), ToolError> {
    // Its user knows of neither half.
    carry_over(args).await.map_err(|error| match error {
        ToolError::Backup(error) => CopyError::Source(error).into(),
        ToolError::Restore(error) => CopyError::Target(error).into(),
        error => error,
    })
}

async fn carry_over(args: CopyArgs) -> Result<(), ToolError> {
    let to = target_tenancy(&args)?;
    let from = Tenancy::try_from(args.tenant)?;
    let target_upstream = target_upstream(&args.upstream, &args.target);
    let work = args.target.work_file.clone().unwrap_or_else(|| work_file(&from, &args.upstream, &to, &target_upstream));
    let source = backup::tenant(&from, UpstreamSettings::try_from(args.upstream)?.load()?);
    let target = backup::tenant(&to, UpstreamSettings::try_from(target_upstream)?.load()?);
    check_apart(&source, &target).await?;
    restore::check_standing(&to, &target).await?;
    let named = args.target.work_file.is_some();
    if !keep_work(&target, &work, named, args.target.overwrite).await? {
        backup::write(&source, &work, false).await?;
    }
    let restored = restore::read(&target, &work, args.target.overwrite, args.target.leases).await?;
    std::fs::remove_file(&work).map_err(|source| CopyError::WorkFile { path: work, source })?;
    writeln!(
        io::stdout().lock(),
        "{} holds {} and {} of {} as of revision {}",
        to.prefix,
        counted(restored.keys, "key"),
        counted(restored.leases, "lease"),
        from.prefix,
        restored.checked.header.revision
    )?;
    Ok(())
}

/// Whether the backup of an earlier process is half restored, so that it is to be finished. One that is not would be an old state of
/// the source, and is removed, unless it was `named`: then it may be anything.
async fn keep_work(target: &Tenant, work: &Path, named: bool, overwrite: bool) -> Result<bool, ToolError> {
    let under_way = journal(target).await?;
    let kept = File::open(work).ok().and_then(|file| Reader::new(BufReader::new(file)).ok());
    if let (Some(journal), Some(kept)) = (&under_way, &kept)
        && journal.backup == kept.header().id
    {
        say(format_args!("going on with the copy of revision {}", kept.header().revision));
        return Ok(true);
    }
    if !overwrite {
        if let Some(journal) = under_way {
            let prefix = target.config().prefix.clone();
            return Err(RestoreError::Other { prefix, backup: journal.backup }.into());
        }
        check_empty(target).await?;
    }
    if work.exists() {
        if named {
            return Err(CopyError::Exists(work.to_owned()).into());
        }
        std::fs::remove_file(work).map_err(|source| CopyError::WorkFile { path: work.to_owned(), source })?;
    }
    Ok(false)
}

async fn check_apart(source: &Tenant, target: &Tenant) -> Result<(), ToolError> {
    let (from, to) = (&source.config().prefix, &target.config().prefix);
    if from.overlaps(to.as_bytes())
        && snapshot::moment(source).await?.cluster_id == snapshot::moment(target).await?.cluster_id
    {
        return Err(CopyError::Overlap { from: from.clone(), to: to.clone() }.into());
    }
    Ok(())
}

fn target_tenancy(args: &CopyArgs) -> Result<Tenancy, ConfigError> {
    let mut tenant = args.tenant.clone();
    tenant.prefix = Some(args.target.to_prefix.clone());
    if let Some(meta_prefix) = &args.target.to_meta_prefix {
        tenant.meta_prefix.clone_from(meta_prefix);
    }
    Tenancy::try_from(tenant)
}

/// The source's etcd, unless another one is named; then nothing that proves who one is goes there but what is named for it.
fn target_upstream(source: &UpstreamArgs, target: &TargetArgs) -> UpstreamArgs {
    let mut upstream = source.clone();
    if let Some(endpoints) = &target.to_endpoints {
        upstream.endpoints.clone_from(endpoints);
        upstream.cacert.clone_from(&target.to_cacert);
        upstream.cert.clone_from(&target.to_cert);
        upstream.key.clone_from(&target.to_key);
        upstream.user.clone_from(&target.to_user);
        upstream.password = None;
        upstream.password_file.clone_from(&target.to_password_file);
    }
    upstream
}

/// Where the backup is kept meanwhile: the same for the same command, so that it is found again.
fn work_file(from: &Tenancy, source: &UpstreamArgs, to: &Tenancy, target: &UpstreamArgs) -> PathBuf {
    let what = format!("{} {:?} {} {:?}", from.prefix, source.endpoints, to.prefix, target.endpoints);
    let name = hex::encode(digest(&SHA256, what.as_bytes()).as_ref());
    let name = name.get(..16).unwrap_or_default();
    let path = std::env::temp_dir().join(format!("etcd-proxy-copy-{name}"));
    if partial(&path).exists() {
        say(format_args!("{} is of an earlier copy and is gone on with", partial(&path).display()));
    }
    path
}
