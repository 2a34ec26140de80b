//! `etcd-proxy restore`: a backup into a tenant's prefix.
//!
//! First the keys without a lease are written, in their order, each batch in one Txn with the journal ([`Journal`]); then the
//! leases are granted and the keys that have them written. A restore that was broken off goes on after the last batch of the
//! first part, or does the second part again: its leases may be over by then, and the keys with them.

mod leases;
mod target;

use std::{
    fs::File,
    io::{self, BufReader, Seek as _, Write as _},
    path::{Path, PathBuf},
};

use proto::mvccpb::KeyValue;
use thiserror::Error;
use tonic::Status;

pub(super) use self::target::{check_empty, journal};
use self::{leases::Granted, target::Target};
use super::{
    ToolError,
    backup::shown_prefix,
    progress::{Progress, say},
};
use crate::{
    backup::{self, Block, Checked, FormatError, Reader},
    cli::{LeasesArg, RestoreArgs},
    config::{Tenancy, UpstreamSettings},
    meta::MetaError,
    prefix::Prefix,
    startup::{self, StartupError, Verdict},
    tenant::Tenant,
    words::counted,
};

/// Why a backup was not restored.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The file is not whole.
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: FormatError,
    },
    /// The prefix is not to be used.
    #[error(transparent)]
    Standing(#[from] Box<StartupError>),
    /// The upstream does not answer.
    #[error("the upstream does not answer; look whether that of --endpoints is up")]
    Unreachable,
    /// There is something already.
    #[error(
        "{prefix} holds {} and {}: restore into an empty prefix, or give --overwrite to delete them first",
        counted(*keys, "key"),
        counted(*leases, "lease")
    )]
    NotEmpty {
        /// The prefix.
        prefix: Prefix,
        /// Its keys.
        keys: i64,
        /// Its leases.
        leases: i64,
    },
    /// Another backup is half restored there.
    #[error(
        "the restore of another backup ({backup}) into {prefix} was broken off: finish that one, or give --overwrite to delete what it wrote"
    )]
    Other {
        /// The prefix.
        prefix: Prefix,
        /// The other backup's id.
        backup: String,
    },
    /// Somebody else is at it.
    #[error(
        "something else writes to {prefix} in the way of this restore: another restore, most likely; nothing of this one is lost, the same command goes on with it"
    )]
    Disturbed {
        /// The prefix.
        prefix: Prefix,
    },
    /// A key that the upstream does not take.
    #[error("the upstream does not take the key {key}, which has {bytes} bytes with its value: {}; it may need a greater --max-request-bytes", status.message())]
    Key {
        /// The key.
        key: String,
        /// Its length.
        bytes: usize,
        /// What the upstream says.
        status: Status,
    },
    /// A lease ran out while it was given its keys.
    #[error("a lease was over before its keys were written, or was revoked; the same command grants it again")]
    LeaseOver,
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] MetaError),
    /// The upstream refused.
    #[error("the upstream answers {:?}: {}; the same command goes on from there", .0.code(), .0.message())]
    Upstream(#[from] Status),
}

/// What was restored.
pub(super) struct Restored {
    pub(super) checked: Checked,
    /// Keys that were written.
    pub(super) keys: u64,
    pub(super) leases: usize,
}

/// `etcd-proxy restore`.
///
/// # Errors
/// When the file is not whole, the prefix is not empty, or the upstream cannot be written.
pub async fn restore(args: RestoreArgs) -> Result<(), ToolError> {
    let tenancy = Tenancy::try_from(args.tenant)?;
    let upstream = UpstreamSettings::try_from(args.upstream)?.load()?;
    let tenant = super::backup::tenant(&tenancy, upstream);
    check_standing(&tenancy, &tenant).await?;
    let path = &args.restore.file;
    let restored = read(&tenant, path, args.restore.overwrite, args.restore.leases).await?;
    let header = &restored.checked.header;
    writeln!(
        io::stdout().lock(),
        "{} holds {} and {} from {}, a backup of {} as of revision {}",
        tenancy.prefix,
        counted(restored.keys, "key"),
        counted(restored.leases, "lease"),
        path.display(),
        shown_prefix(&header.prefix),
        header.revision
    )?;
    Ok(())
}

/// Refuses a prefix that overlaps somebody else's, as a proxy does before it serves it.
pub(super) async fn check_standing(tenancy: &Tenancy, tenant: &Tenant) -> Result<(), RestoreError> {
    match startup::check(tenancy, tenant.upstream()).await {
        Verdict::Serve => Ok(()),
        Verdict::Refuse(error) => Err(Box::new(error).into()),
        Verdict::Later => Err(RestoreError::Unreachable),
    }
}

/// Restores the backup in `path`.
pub(super) async fn read(
    tenant: &Tenant,
    path: &Path,
    overwrite: bool,
    leases: LeasesArg,
) -> Result<Restored, RestoreError> {
    let source = Source::open(path)?;
    let checked = backup::check(source.input()?).map_err(|error| source.failed(error))?;
    let mut target = Target::open(tenant, &checked.header.id, overwrite).await?;
    let mut progress = Progress::new("restore", checked.header.keys);
    let mut keys = source.write_plain(&mut target, &mut progress, leases).await?;
    let mut granted = Vec::new();
    if leases == LeasesArg::Grant && checked.leases > 0 {
        let mut leases = Granted::new(tenant);
        granted = source.leases()?;
        leases.grant(&granted).await?;
        keys += source.write_leased(&mut target, &mut progress, &mut leases).await?;
        leases.renew_all().await?;
    }
    target.close().await?;
    Ok(Restored { checked, keys, leases: granted.len() })
}

/// A backup that can be read more than once.
struct Source<'a> {
    path: &'a Path,
    file: File,
}

// === impl Source ===

impl<'a> Source<'a> {
    fn open(path: &'a Path) -> Result<Self, RestoreError> {
        let failed = |error: io::Error| RestoreError::Format { path: path.to_owned(), source: error.into() };
        Ok(Self { path, file: File::open(path).map_err(failed)? })
    }

    fn failed(&self, source: FormatError) -> RestoreError {
        RestoreError::Format { path: self.path.to_owned(), source }
    }

    /// The file from its beginning.
    fn input(&self) -> Result<BufReader<&File>, RestoreError> {
        let mut file = &self.file;
        file.rewind().map_err(|error| self.failed(error.into()))?;
        Ok(BufReader::new(file))
    }

    fn reader(&self) -> Result<Reader<BufReader<&File>>, RestoreError> {
        Reader::new(self.input()?).map_err(|error| self.failed(error))
    }

    fn leases(&self) -> Result<Vec<crate::snapshot::TenantLease>, RestoreError> {
        let mut reader = self.reader()?;
        let mut leases = Vec::new();
        loop {
            match reader.next_block().map_err(|error| self.failed(error))? {
                Block::Keys(_) => {}
                Block::Leases(more) => leases.extend(more),
                Block::End => return Ok(leases),
            }
        }
    }

    /// Writes the keys that have no lease, or are to have none. Returns how many such keys there are.
    async fn write_plain(
        &self,
        target: &mut Target<'_>,
        progress: &mut Progress,
        leases: LeasesArg,
    ) -> Result<u64, RestoreError> {
        let mut reader = self.reader()?;
        let mut written = 0;
        while let Block::Keys(kvs) = reader.next_block().map_err(|error| self.failed(error))? {
            let mut kvs = kvs;
            match leases {
                LeasesArg::Grant | LeasesArg::Skip => kvs.retain(|kv| kv.lease == 0),
                LeasesArg::Detach => kvs.iter_mut().for_each(|kv| kv.lease = 0),
            }
            written += kvs.len() as u64;
            for kv in kvs {
                target.put(kv).await?;
                progress.advance(1);
            }
        }
        target.flush().await?;
        Ok(written)
    }

    /// Writes the keys that have a lease. Returns how many there are.
    async fn write_leased(
        &self,
        target: &mut Target<'_>,
        progress: &mut Progress,
        leases: &mut Granted<'_>,
    ) -> Result<u64, RestoreError> {
        let mut reader = self.reader()?;
        let mut written = 0;
        target.leased();
        while let Block::Keys(kvs) = reader.next_block().map_err(|error| self.failed(error))? {
            for mut kv in kvs.into_iter().filter(|kv: &KeyValue| kv.lease != 0) {
                leases.renew_due().await?;
                kv.lease = leases.upstream_id(kv.lease).await?;
                target.put(kv).await?;
                progress.advance(1);
                written += 1;
            }
        }
        target.flush().await?;
        Ok(written)
    }
}

/// Says that a restore goes on.
fn say_resumed(last: &[u8]) {
    if last.is_empty() {
        say(format_args!("going on with a restore that was broken off"));
    } else {
        say(format_args!("going on with a restore that was broken off after the key {}", last.escape_ascii()));
    }
}
