//! One tenant at one revision: read from the upstream, and laid out as the database of an etcd of its own.
//!
//! Entries of an etcd's database lie in the order of revisions and the meta pages of its file come first, while the upstream
//! gives keys in the order of keys. So the tenant is read whole, once, into a [`spool`] before anything is sent. From then on
//! neither a compaction of the upstream nor a slow client matters: a compaction before that starts the reading over. In memory
//! are 24 bytes for each key and where the nodes of the file lie; the rest is in a temporary file if it is more than
//! [`spool::IN_MEMORY`].

pub mod bbolt;
mod crc32c;
mod hash;
mod layout;
mod source;
mod spool;

use std::{collections::BTreeSet, io};

use tonic::Status;

pub use self::{
    hash::{KvHash, hash},
    source::{Keys, Moment, TenantLease, is_compacted, leases, moment},
};
use self::{layout::Database, spool::Spool};
use crate::tenant::Tenant;

/// How often the reading starts over because the upstream compacted the revision away.
const ATTEMPTS: usize = 5;

/// A tenant as the database of an etcd.
pub struct Snapshot {
    /// The file.
    pub file: bbolt::File,
    /// The revision whose state it holds.
    pub revision: i64,
    /// The version of etcd's storage, as the upstream gives it: empty before etcd 3.6.
    pub version: String,
}

/// Takes a snapshot of the tenant as it is now.
///
/// # Errors
/// When the upstream cannot be reached or compacts away each revision before it is read, or when there is no room for the
/// temporary file.
pub async fn take(tenant: &Tenant) -> Result<Snapshot, Status> {
    let mut attempt = 1;
    loop {
        match read(tenant).await {
            Err(status) if is_compacted(&status) && attempt < ATTEMPTS => {
                tracing::info!(attempt, "the upstream compacted the revision of a snapshot; reading a new one");
                attempt += 1;
            }
            Err(status) if is_compacted(&status) => {
                return Err(Status::aborted(format!(
                    "etcd-proxy: the shared etcd compacted the revision away {ATTEMPTS} times before the snapshot was read; try again"
                )));
            }
            taken => return taken,
        }
    }
}

async fn read(tenant: &Tenant) -> Result<Snapshot, Status> {
    let version = source::storage_version(tenant).await?;
    let moment = moment(tenant).await?;
    let revision = moment.revision;
    let mut spool = Spool::new();
    let mut held = BTreeSet::new();
    let mut keys = Keys::all(tenant, &moment);
    while let Some(page) = keys.next_page().await? {
        held.extend(page.iter().map(|kv| kv.lease).filter(|&lease| lease != 0));
        spool = blocking(move || spool.append(&page)).await?;
    }
    let leases = leases(tenant, revision, held).await?;
    let file = blocking(move || {
        let keys = spool.into_keys(revision);
        bbolt::File::plan(layout::buckets(Database { revision, version: &version, leases: &leases, keys }))
            .map(|file| (file, version))
    });
    let (file, version) = file.await?;
    Ok(Snapshot { file, revision, version })
}

/// Does something with files, beside the runtime's thread.
///
/// # Errors
/// One that tells the client that it is not its fault; the operator's log says more.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Status> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => {
            let directory = std::env::temp_dir();
            tracing::error!(%error, directory = %directory.display(), "no snapshot: its temporary file fails; TMPDIR says where it is made");
            Err(Status::resource_exhausted(
                "etcd-proxy: the temporary file of the snapshot cannot be written or read; the log of this proxy says why",
            ))
        }
        Err(_) => Err(Status::internal("etcd-proxy: the snapshot broke off")),
    }
}
