//! `etcd-proxy backup`: one tenant at one revision, in a file.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions, Permissions, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use prometheus_client::registry::Registry;
use proto::mvccpb::KeyValue;
use ring::rand::{SecureRandom as _, SystemRandom};
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    ToolError,
    progress::{Progress, say},
};
use crate::{
    backup::{FORMAT, FormatError, Header, Resumed, Writer},
    cli::BackupArgs,
    config::{Tenancy, UpstreamSettings},
    meta::{MetaLayout, read_claim},
    metrics::Metrics,
    snapshot::{self, Keys, Moment},
    tenant::{Tenant, TenantConfig},
    upstream::{Upstream, UpstreamConfig},
    words::counted,
};

/// How often a backup starts over because the upstream compacted its revision away.
const ATTEMPTS: usize = 5;

/// Why no backup was made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BackupError {
    /// Something is there already.
    #[error("{} exists: name another file, or give --overwrite", .0.display())]
    Exists(PathBuf),
    /// Somebody else is at it.
    #[error("another process is writing {}", .0.display())]
    Busy(PathBuf),
    /// What is there was begun for something else.
    #[error("{} is the beginning of a backup of {prefix} on the etcd cluster {cluster}: remove it, or name another file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The other prefix.
        prefix: String,
        /// The other cluster's id.
        cluster: String,
    },
    /// What is there is no backup.
    #[error("{} cannot be gone on with: {source}", path.display())]
    Begun {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: FormatError,
    },
    /// The file cannot be written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// The upstream's history is shorter than the time that a backup takes.
    #[error(
        "the upstream compacted the revision away {ATTEMPTS} times before it was read whole; have it keep more history"
    )]
    Compacted,
    /// The upstream stopped answering.
    #[error(
        "the upstream answers {:?}: {}; what was read is kept in {}, and the same command goes on from there",
        status.code(),
        status.message(),
        partial.display()
    )]
    BrokenOff {
        /// The answer.
        status: Status,
        /// What is there so far.
        partial: PathBuf,
    },
    /// The system has no random numbers.
    #[error("the system gives no random numbers")]
    Random,
}

/// What is in a backup.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) revision: i64,
    pub(super) keys: u64,
    /// `None` if they were written by an earlier process.
    pub(super) leases: Option<usize>,
}

/// `etcd-proxy backup`.
///
/// # Errors
/// When the file cannot be written or the upstream cannot be read.
pub async fn backup(args: BackupArgs) -> Result<(), ToolError> {
    let tenancy = Tenancy::try_from(args.tenant)?;
    let upstream = UpstreamSettings::try_from(args.upstream)?.load()?;
    let tenant = tenant(&tenancy, upstream);
    let file = &args.backup.file;
    let written = write(&tenant, file, args.backup.overwrite).await?;
    warn(&tenant, &written).await;
    let leases = written.leases.map_or_else(String::new, |leases| format!(" and {}", counted(leases, "lease")));
    writeln!(
        io::stdout().lock(),
        "{} holds {}{leases} of {} as of revision {}",
        file.display(),
        counted(written.keys, "key"),
        tenancy.prefix,
        written.revision
    )?;
    Ok(())
}

/// Says what is so with a prefix that is misspelt, too: it is not claimed, or nothing is there.
async fn warn(tenant: &Tenant, written: &Written) {
    let TenantConfig { prefix, meta, .. } = tenant.config();
    // A user who may not read the claim learns nothing of it.
    if let Ok(None) = read_claim(&mut tenant.upstream().kv(), meta, prefix).await {
        say(format_args!(
            "WARNING: {prefix} is not claimed: nothing keeps another tenant from choosing a prefix that overlaps; run `etcd-proxy claim`"
        ));
    }
    if written.keys == 0 {
        say(format_args!("WARNING: nothing is stored under {prefix}: look whether --prefix is right"));
    }
}

/// A tenant that no proxy serves here.
pub(super) fn tenant(tenancy: &Tenancy, upstream: UpstreamConfig) -> Tenant {
    let config = TenantConfig::new(tenancy.prefix.clone(), MetaLayout::new(tenancy.meta_prefix.clone()));
    let metrics = Metrics::new(&mut Registry::default());
    Tenant::new(config, Upstream::new(upstream), metrics, CancellationToken::new())
}

/// The file in which a backup grows until it is whole.
pub(super) fn partial(path: &Path) -> PathBuf {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    partial.into()
}

/// Writes a backup of the tenant to `path`, going on with one that was begun there.
pub(super) async fn write(tenant: &Tenant, path: &Path, overwrite: bool) -> Result<Written, BackupError> {
    if !overwrite && path.exists() {
        return Err(BackupError::Exists(path.to_owned()));
    }
    let partial = partial(path);
    let failed = |source| BackupError::File { path: partial.clone(), source };
    let broken_off = |status| BackupError::BrokenOff { status, partial: partial.clone() };
    let file = open(&partial).map_err(failed)?;
    lock(&partial, &file)?;
    let now = snapshot::moment(tenant).await.map_err(broken_off)?;
    let mut resumed = resume(tenant, &now, &partial, &file)?;
    for _ in 0..ATTEMPTS {
        let attempt = match resumed.take() {
            Some(resumed) if resumed.complete => {
                let (revision, keys) = (resumed.header.revision, resumed.keys);
                finish(resumed.into_file(), &partial, path).map_err(failed)?;
                return Ok(Written { revision, keys, leases: None });
            }
            Some(resumed) => Attempt::resume(tenant, &now, resumed),
            None => {
                let moment = snapshot::moment(tenant).await.map_err(broken_off)?;
                Attempt::begin(tenant, &moment, &file, &partial)?
            }
        };
        match attempt.run(tenant).await {
            Ok((file, written)) => {
                finish(file, &partial, path).map_err(failed)?;
                return Ok(written);
            }
            Err(Failure::File(source)) => return Err(failed(source)),
            Err(Failure::Upstream(status)) if snapshot::is_compacted(&status) => {
                say(format_args!("the upstream compacted the revision away: starting over at the present one"));
            }
            Err(Failure::Upstream(status)) => return Err(broken_off(status)),
        }
    }
    Err(BackupError::Compacted)
}

/// Readable by its owner alone: it holds what the tenant stores. What somebody else put there, a link among it, is refused
/// before anything is written to it or believed of it: the folder may be one that everybody writes to.
fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let (opened, named) = (file.metadata()?, fs::symlink_metadata(path)?);
    // A process' entry in /proc belongs to its effective user.
    let user = fs::metadata("/proc/self")?.uid();
    if !named.is_file() || (opened.dev(), opened.ino()) != (named.dev(), named.ino()) || opened.uid() != user {
        let what = "is not a regular file of this user; remove it, or have the backup elsewhere";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Takes the file for this process, unless another one has it, or has given it its name since it was opened.
fn lock(path: &Path, file: &File) -> Result<(), BackupError> {
    use std::os::unix::fs::MetadataExt as _;
    let failed = |source| BackupError::File { path: path.to_owned(), source };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(BackupError::Busy(path.to_owned())),
        // Such as a file system without locks.
        Err(TryLockError::Error(source)) => return Err(failed(source)),
    }
    let opened = file.metadata().map_err(failed)?;
    match fs::symlink_metadata(path) {
        Ok(named) if (named.dev(), named.ino()) == (opened.dev(), opened.ino()) => Ok(()),
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(failed(source)),
        _ => Err(BackupError::Busy(path.to_owned())),
    }
}

/// What an earlier process left in the file, if it is of this tenant. A beginning of which not even the header can be read is
/// worth nothing.
fn resume(tenant: &Tenant, now: &Moment, path: &Path, file: &File) -> Result<Option<Resumed>, BackupError> {
    let copy = file.try_clone().map_err(|source| BackupError::File { path: path.to_owned(), source })?;
    let resumed = match Resumed::read(copy) {
        Ok(resumed) => resumed,
        Err(FormatError::Damaged { .. }) => {
            say(format_args!("{} is damaged from its beginning on: starting over", path.display()));
            None
        }
        Err(source) => return Err(BackupError::Begun { path: path.to_owned(), source }),
    };
    if let Some(Resumed { header, .. }) = &resumed {
        let prefix = hex::encode(tenant.config().prefix.as_bytes());
        if header.prefix != prefix || header.cluster_id != cluster(now) {
            return Err(BackupError::Foreign {
                path: path.to_owned(),
                prefix: shown_prefix(&header.prefix),
                cluster: header.cluster_id.clone(),
            });
        }
    }
    Ok(resumed)
}

/// A prefix in hexadecimal for people to read.
pub(super) fn shown_prefix(hex: &str) -> String {
    hex::decode(hex).map_or_else(|_| hex.to_owned(), |prefix| prefix.escape_ascii().to_string())
}

fn cluster(moment: &Moment) -> String {
    format!("{:x}", moment.cluster_id)
}

/// Makes the file last and gives it its name.
fn finish(file: File, partial: &Path, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    std::fs::rename(partial, path)?;
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => File::open(parent)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

/// One way through the keys.
struct Attempt {
    writer: Writer<File>,
    moment: Moment,
    keys: Keys,
    /// The leases of the keys that were read.
    held: BTreeSet<i64>,
    /// Keys that were there already.
    done: u64,
}

enum Failure {
    Upstream(Status),
    File(io::Error),
}

// === impl Attempt ===

impl Attempt {
    fn begin(tenant: &Tenant, moment: &Moment, file: &File, path: &Path) -> Result<Self, BackupError> {
        let mut id = [0; 16];
        SystemRandom::new().fill(&mut id).map_err(|_| BackupError::Random)?;
        let header = Header {
            format: FORMAT,
            id: hex::encode(id),
            created_at: jiff::Timestamp::now(),
            prefix: hex::encode(tenant.config().prefix.as_bytes()),
            cluster_id: cluster(moment),
            revision: moment.revision,
            keys: moment.keys,
        };
        let begin = || {
            let mut file = file.try_clone()?;
            file.set_len(0)?;
            io::Seek::rewind(&mut file)?;
            Writer::begin(file, &header)
        };
        let writer = begin().map_err(|source| BackupError::File { path: path.to_owned(), source })?;
        Ok(Self { writer, moment: *moment, keys: Keys::all(tenant, moment), held: BTreeSet::new(), done: 0 })
    }

    fn resume(tenant: &Tenant, now: &Moment, resumed: Resumed) -> Self {
        let Resumed { header, last, keys: done, held, writer, .. } = resumed;
        let moment = Moment { revision: header.revision, keys: header.keys, ..*now };
        say(format_args!(
            "going on with a backup of revision {}: {done} of {} keys are there",
            header.revision, header.keys
        ));
        let keys = match last {
            Some(last) => Keys::after(tenant, &moment, &last, done),
            None => Keys::all(tenant, &moment),
        };
        Self { writer, moment, keys, held, done }
    }

    async fn run(mut self, tenant: &Tenant) -> Result<(File, Written), Failure> {
        let mut progress = Progress::new("backup", self.moment.keys);
        progress.advance(self.done);
        while let Some(page) = self.keys.next_page().await? {
            self.held.extend(page.iter().map(|kv: &KeyValue| kv.lease).filter(|&lease| lease != 0));
            self.writer.keys(&page)?;
            progress.advance(page.len() as u64);
        }
        let revision = self.moment.revision;
        let leases = snapshot::leases(tenant, revision, self.held).await?;
        let file = self.writer.finish(&leases)?;
        Ok((file, Written { revision, keys: self.moment.keys, leases: Some(leases.len()) }))
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Upstream(status)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_not_followed_into_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, link) = (folder.path().join("victim"), folder.path().join("link"));
        fs::write(&victim, "of somebody else").unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        assert_eq!(open(&link).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "of somebody else");
        // What an earlier process of the same user left is gone on with.
        open(&folder.path().join("own")).unwrap();
        open(&folder.path().join("own")).unwrap();
    }

    #[test]
    fn a_file_is_one_process_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("partial");
        let (first, second) = (open(&path).unwrap(), open(&path).unwrap());
        lock(&path, &first).unwrap();
        assert!(matches!(lock(&path, &second), Err(BackupError::Busy(_))));
        // Its owner killed, it is free.
        drop(first);
        lock(&path, &second).unwrap();
        drop(second);
        // Whole and renamed since it was opened, it must not be written to.
        let late = open(&path).unwrap();
        fs::rename(&path, folder.path().join("whole")).unwrap();
        assert!(matches!(lock(&path, &late), Err(BackupError::Busy(_))));
        open(&path).unwrap();
        assert!(matches!(lock(&path, &late), Err(BackupError::Busy(_))));
    }
}
