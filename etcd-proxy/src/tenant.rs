//! One tenant: its prefix, its mapping of lease ids, its watermark, and how to reach the upstream for it.

mod ages;
mod compactions;
mod joined;
mod leases;
mod versions;
mod watermark;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::{OnceCell, OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::Status;

pub(crate) use self::leases::load_or_make as lease_cipher;
use self::{ages::Ages, compactions::Compactions, leases::Mapping, versions::Versions, watermark::Watermark};
use crate::{
    error::EtcdError,
    grpc::{Budget, Patience},
    lease_id::LeaseCipher,
    limits::{LimitSettings, Limits, Usage},
    meta::{MetaLayout, TenantKeys},
    metrics::Metrics,
    prefix::Prefix,
    rewrite::{Interrupt, View},
    upstream::{self, Position, Upstream},
};

/// etcd's default for `--max-txn-ops` (`server/embed/config.go`).
pub const DEFAULT_MAX_TXN_OPS: usize = 128;
/// etcd's default for `--max-request-bytes`.
pub const DEFAULT_MAX_REQUEST_BYTES: usize = 1536 * 1024;
/// What a gRPC message may have beyond that (`server/config`, `grpcOverheadBytes`).
const GRPC_OVERHEAD: usize = 512 * 1024;

/// Bytes that long answers may take while they are passed on, unless the configuration says otherwise.
pub const DEFAULT_MAX_BUFFERED_BYTES: usize = 128 << 20;
/// How long the reader of a long answer may take nothing of it, unless the configuration says otherwise.
pub const DEFAULT_STALLED_READER_TIMEOUT: Duration = Duration::from_secs(60);

/// Most RangeStreams of a tenant at a time, unless its configuration says otherwise. A reader that stalls holds one part of
/// its range here, which etcd makes about as long as the longest request, and at most ten times as long.
pub const DEFAULT_MAX_RANGE_STREAMS: usize = 32;
/// The most that a configuration may say: beyond it, stalled readers could fill the connection that all share.
pub const MAX_RANGE_STREAMS: usize = 512;
/// Most watches and other streams without an end whose clients take nothing for the time being. Each keeps a window of its
/// upstream stream filled (`upstream`), with small messages more than a megabyte of memory.
const MAX_STALLED_STREAMS: usize = 32;
/// Most snapshots of a tenant at a time: each has a temporary file as large as the tenant.
const MAX_SNAPSHOTS: usize = 2;
/// Most grants of leases at a time. They go on without their clients, so that nothing else bounds them.
const MAX_GRANTS: usize = 256;
/// Most grants of which nobody knows whether they were carried out.
const MAX_DOUBTFUL_GRANTS: usize = 1024;
/// The least memory for answers that are not long: several of them fit.
const MIN_SHORT_BYTES: usize = 1 << 20;
/// How long a RangeStream waits for one of them to end, and a snapshot and a grant likewise.
const PLACE_PATIENCE: Duration = Duration::from_secs(10);

/// What a tenant is.
#[derive(Clone, Debug)]
pub struct TenantConfig {
    /// Where its keys lie on the upstream.
    pub prefix: Prefix,
    /// Where the meta keys lie.
    pub meta: MetaLayout,
    /// The name that MemberList gives the one member.
    pub member_name: String,
    /// The URLs that MemberList gives it.
    pub advertise_client_urls: Vec<String>,
    /// What Compact does.
    pub compaction: CompactionPolicy,
    /// The upstream's `--max-txn-ops`.
    pub max_txn_ops: usize,
    /// The upstream's `--max-request-bytes`.
    pub max_request_bytes: usize,
    /// Bytes that long answers may take while they are passed on, 0 for no bound.
    pub max_buffered_bytes: usize,
    /// How long the reader of a long answer may take nothing of it; `None` for ever.
    pub stalled_reader_timeout: Option<Duration>,
    /// RangeStreams at a time, at most [`MAX_RANGE_STREAMS`].
    pub max_range_streams: usize,
    /// What else is limited.
    pub limits: LimitSettings,
}

/// What a tenant's Compact does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompactionPolicy {
    /// Moves the tenant's watermark; the shared history stays.
    #[default]
    Virtual,
    /// Moves the tenant's watermark, and compacts the shared history as far as it is older than this. Where this is 0, the
    /// upstream is asked the same, and the watermark stays.
    Passthrough {
        /// How old a revision must be for sure.
        min_age: Duration,
    },
    /// Is refused.
    Deny,
}

impl CompactionPolicy {
    /// Whether the upstream is asked what the tenant asks, whatever the age.
    pub(crate) const fn hands_on(self) -> bool {
        matches!(self, Self::Passthrough { min_age: Duration::ZERO })
    }
}

/// A tenant that is being served. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tenant(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: TenantConfig,
    keys: TenantKeys,
    upstream: Upstream,
    metrics: Metrics,
    leases: Mapping,
    stand_in: OnceCell<LeaseCipher>,
    watermark: Watermark,
    ages: Ages,
    compactions: Compactions,
    versions: Versions,
    range_streams: Arc<Semaphore>,
    stalled_streams: Arc<Semaphore>,
    snapshots: Arc<Semaphore>,
    grants: Arc<Semaphore>,
    doubtful_grants: Arc<Semaphore>,
    budget: Budget,
    short: Budget,
    requests: Arc<Budget>,
    limits: Arc<Limits>,
    stop: CancellationToken,
    outliving: TaskTracker,
}

// === impl TenantConfig ===

impl TenantConfig {
    /// A tenant with etcd's limits and without advertised URLs.
    pub fn new(prefix: Prefix, meta: MetaLayout) -> Self {
        Self {
            prefix,
            meta,
            member_name: "etcd-proxy".to_owned(),
            advertise_client_urls: Vec::new(),
            compaction: CompactionPolicy::default(),
            max_txn_ops: DEFAULT_MAX_TXN_OPS,
            max_request_bytes: DEFAULT_MAX_REQUEST_BYTES,
            max_buffered_bytes: DEFAULT_MAX_BUFFERED_BYTES,
            stalled_reader_timeout: Some(DEFAULT_STALLED_READER_TIMEOUT),
            max_range_streams: DEFAULT_MAX_RANGE_STREAMS,
            limits: LimitSettings::default(),
        }
    }
}

// === impl Tenant ===

impl Tenant {
    /// A tenant on `upstream`. Reads and writes nothing there. When `stop` is cancelled, its streams end with the status that
    /// clients of a stopping etcd get.
    pub fn new(config: TenantConfig, upstream: Upstream, metrics: Metrics, stop: CancellationToken) -> Self {
        let keys = config.meta.tenant(&config.prefix);
        let watermark = Watermark::new(&metrics);
        let range_streams = Arc::new(Semaphore::new(config.max_range_streams.min(MAX_RANGE_STREAMS)));
        let budget =
            Budget::new(config.max_buffered_bytes, metrics.buffered_bytes.clone(), metrics.answers_waiting.clone());
        let short = match config.max_buffered_bytes {
            0 => 0,
            bytes => (bytes / 4).max(MIN_SHORT_BYTES),
        };
        let short = Budget::new(short, metrics.buffered_bytes.clone(), metrics.answers_waiting.clone());
        let requests =
            Budget::new(request_bytes(&config), metrics.arriving_bytes.clone(), metrics.requests_waiting.clone());
        let limits = Arc::new(Limits::new(config.limits, &config.prefix, &keys));
        Self(Arc::new(Inner {
            config,
            keys,
            upstream,
            metrics,
            leases: Mapping::default(),
            stand_in: OnceCell::new(),
            watermark,
            ages: Ages::default(),
            compactions: Compactions::default(),
            versions: Versions::default(),
            range_streams,
            stalled_streams: Arc::new(Semaphore::new(MAX_STALLED_STREAMS)),
            snapshots: Arc::new(Semaphore::new(MAX_SNAPSHOTS)),
            grants: Arc::new(Semaphore::new(MAX_GRANTS)),
            doubtful_grants: Arc::new(Semaphore::new(MAX_DOUBTFUL_GRANTS)),
            budget,
            short,
            requests: Arc::new(requests),
            limits,
            stop,
            outliving: TaskTracker::new(),
        }))
    }

    /// Starts what goes on in the background: following the watermark that other replicas move, what is stored where that is
    /// limited, and how old revisions are where that counts. It ends when the tenant stops.
    pub fn start(&self, tasks: &TaskTracker) {
        let tenant = self.clone();
        tasks.spawn(async move {
            let stop = tenant.0.stop.clone();
            // An error means that the tenant stopped first.
            let following = async {
                let limits = tenant.0.limits.follow(&tenant.0.upstream);
                tokio::join!(watermark::follow(&tenant), limits, ages::take_notes(&tenant))
            };
            let _stopped = stop.run_until_cancelled(following).await;
        });
    }

    /// What it is.
    pub fn config(&self) -> &TenantConfig {
        &self.0.config
    }

    /// Its meta keys.
    pub fn keys(&self) -> &TenantKeys {
        &self.0.keys
    }

    /// The way to the shared etcd.
    pub fn upstream(&self) -> &Upstream {
        &self.0.upstream
    }

    /// What it counts.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// What it may use, and what it uses of that.
    pub fn limits(&self) -> &Arc<Limits> {
        &self.0.limits
    }

    /// What it uses, counted on the upstream where nothing here follows it.
    pub async fn usage(&self) -> Usage {
        self.0.limits.usage(&self.0.upstream, &self.0.config.prefix, &self.0.keys).await
    }

    /// Cancelled when its streams are to end.
    pub fn stop(&self) -> &CancellationToken {
        &self.0.stop
    }

    /// Where work goes on that outlives the request that it is for.
    pub fn outliving(&self) -> &TaskTracker {
        &self.0.outliving
    }

    /// The longest message that a client may send.
    pub fn max_message_bytes(&self) -> usize {
        self.0.config.max_request_bytes.saturating_add(GRPC_OVERHEAD)
    }

    /// What messages are rewritten by at this moment.
    pub fn view(&self) -> View<'_> {
        let inner = &*self.0;
        View {
            prefix: &inner.config.prefix,
            meta: &inner.keys,
            leases: inner.leases.get(),
            stand_in: inner.stand_in.get(),
            never_granted: false,
            watermark: inner.watermark.get(),
            compacted_at: inner.watermark.since(),
            max_txn_ops: inner.config.max_txn_ops,
        }
    }

    /// Does what an interrupted rewrite waits for, after which it can be tried again. Returns whether it has turned out that
    /// the tenant has never been granted a lease, which the next try has to know. `method` is the path of the call, for the log.
    ///
    /// # Errors
    /// What the client gets if it cannot go on.
    pub async fn resolve(&self, interrupt: Interrupt, method: &'static str) -> Result<bool, Status> {
        match interrupt {
            Interrupt::NeedsLeases => self.never_granted().await,
            Interrupt::MeetsLease => self.leases().await.map(|_| false),
            Interrupt::NeedsWatermark => self.watermark().await.map(|_| false),
            Interrupt::Unanswered(answered) => {
                answered.notified().await;
                Ok(false)
            }
            Interrupt::Refused(status) => Err(status),
            Interrupt::LoginEnded => Err(upstream::expired()),
            Interrupt::Foreign => {
                self.0.metrics.foreign_keys.inc();
                // Not the key: it is somebody else's.
                tracing::error!(
                    prefix = %self.0.config.prefix,
                    method,
                    "the upstream's answer held a key outside the prefix; it was held back"
                );
                Err(Status::internal(
                    "etcd-proxy: the upstream's answer was held back because it does not belong to this tenant",
                ))
            }
        }
    }

    /// Checks that a rewritten message is one that the upstream looks at. The prefix
    /// may have made it longer than that; etcd would find the original too large as well, if only later.
    ///
    /// # Errors
    /// etcd's, for a message that is too long.
    pub fn check_length(&self, frame: &[u8]) -> Result<(), EtcdError> {
        if frame.len() > self.max_message_bytes() { Err(EtcdError::RequestTooLarge) } else { Ok(()) }
    }

    /// How long the client of a long answer may take nothing of it.
    pub fn answer_patience(&self) -> Patience {
        let timeout = self.0.config.stalled_reader_timeout;
        Patience { timeout, stalled: None, given_up: self.0.metrics.readers_given_up.clone() }
    }

    /// How long the client of a stream without an end may take nothing of it.
    pub fn stream_patience(&self) -> Patience {
        Patience { stalled: Some(self.0.stalled_streams.clone()), ..self.answer_patience() }
    }

    /// What long answers share.
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// What answers share that are not long, until their clients have them.
    pub fn short_budget(&self) -> &Budget {
        &self.0.short
    }

    /// What requests share that do not come at once.
    pub fn request_budget(&self) -> &Arc<Budget> {
        &self.0.requests
    }

    /// A place for a RangeStream, held until it is dropped. Waits a while for one.
    ///
    /// # Errors
    /// etcd's for too many requests, if none gets free.
    pub async fn range_stream_place(&self) -> Result<OwnedSemaphorePermit, EtcdError> {
        place(&self.0.range_streams).await
    }

    /// A place for a snapshot, likewise.
    ///
    /// # Errors
    /// etcd's for too many requests, if none gets free.
    pub async fn snapshot_place(&self) -> Result<OwnedSemaphorePermit, EtcdError> {
        place(&self.0.snapshots).await
    }

    /// A place for the grant of a lease, likewise.
    ///
    /// # Errors
    /// etcd's for too many requests, if none gets free.
    pub async fn grant_place(&self) -> Result<OwnedSemaphorePermit, EtcdError> {
        place(&self.0.grants).await
    }

    /// A place for a grant of which nobody knows whether it was carried out, if there is one.
    pub fn doubtful_grant_place(&self) -> Option<OwnedSemaphorePermit> {
        self.0.doubtful_grants.clone().try_acquire_owned().ok()
    }

    /// Loads the mapping of lease ids if there is one, and sees to one that can stand in for it if there is none. Returns
    /// whether there is none.
    async fn never_granted(&self) -> Result<bool, Status> {
        let inner = &*self.0;
        if inner.leases.get().is_some() {
            return Ok(false);
        }
        if let Some(stored) = leases::load(&inner.upstream, &inner.keys).await? {
            inner.leases.get_or_init(stored);
            return Ok(false);
        }
        inner.stand_in.get_or_try_init(|| async { leases::stand_in() }).await?;
        Ok(true)
    }

    /// The mapping of lease ids, loaded, or made for the tenant's first lease.
    ///
    /// # Errors
    /// When the upstream cannot be reached or the stored secret cannot be read.
    pub async fn leases(&self) -> Result<&LeaseCipher, Status> {
        self.0.leases.load_or_make(&self.0.upstream, &self.0.keys).await
    }

    /// Looks whether the mapping of lease ids is still that of the stored secret, and forgets it if it is not.
    async fn check_leases(&self) -> Result<(), Status> {
        self.0.leases.check(&self.0.upstream, &self.0.keys).await
    }

    /// The lowest revision that the tenant may read, loaded at its first use; -1 when it never compacted.
    ///
    /// # Errors
    /// When the upstream cannot be reached or the stored watermark cannot be read.
    pub async fn watermark(&self) -> Result<i64, Status> {
        let tenant = self.clone();
        self.0.watermark.load(|| async move { tenant.check_meta().await }).await
    }

    /// Reads the watermark as it stands upstream, to see whether the upstream lets this process read the tenant's meta keys.
    ///
    /// # Errors
    /// When it does not, cannot be reached, or the stored watermark cannot be read.
    pub async fn check_meta(&self) -> Result<(), Status> {
        self.0.watermark.read(&self.0.upstream, &self.0.keys).await.map(drop)
    }

    /// As of when the watermark is known, for [`Tenant::watermark_moved`].
    pub fn watermark_known(&self) -> Option<Position> {
        self.0.watermark.known()
    }

    /// Notes the watermark that was written at `now`, by who asked for it when it was [known](Self::watermark_known) as of
    /// `before`.
    pub fn watermark_moved(&self, before: Option<Position>, revision: i64, now: Position) {
        self.0.watermark.answered(before, revision, now);
    }

    /// The key of the tenant's watermark.
    pub fn watermark_key(&self) -> Bytes {
        self.0.keys.watermark()
    }
}

/// Bytes that requests share: a part of what answers have, and at least what the longest request takes.
fn request_bytes(config: &TenantConfig) -> usize {
    match config.max_buffered_bytes {
        0 => 0,
        bytes => (bytes / 4).max(config.max_request_bytes.saturating_add(GRPC_OVERHEAD).saturating_mul(2)),
    }
}

async fn place(places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, EtcdError> {
    match timeout(PLACE_PATIENCE, places.clone().acquire_owned()).await {
        Ok(Ok(place)) => Ok(place),
        _ => Err(EtcdError::TooManyRequests),
    }
}
