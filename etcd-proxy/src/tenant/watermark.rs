//! The revision up to which a tenant has compacted, as known to this replica.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use futures::StreamExt as _;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use proto::{
    etcdserverpb::{
        RangeRequest, WatchCreateRequest, WatchRequest, watch_client::WatchClient, watch_request::RequestUnion,
    },
    mvccpb::event::EventType,
};
use tokio::sync::OnceCell;
use tonic::{Code, Request, Status, metadata::MetadataValue};

use super::Tenant;
use crate::{
    meta::{self, TenantKeys},
    upstream::Upstream,
};

/// The watermark of a tenant that never compacted, as etcd's own (`storage/mvcc/kvstore.go`, `compactMainRev`).
const NONE: i64 = -1;
/// How long the follower waits before it looks again after the upstream was lost.
const PAUSE: Duration = Duration::from_secs(1);

/// The watermark, loaded once and then moved by Compact and by the follower.
#[derive(Debug)]
pub(super) struct Watermark {
    current: AtomicI64,
    /// The revision that wrote what is in `current`, so that news never overtakes newer news.
    written_at: Mutex<i64>,
    loaded: OnceCell<()>,
    gauge: Gauge,
}

// === impl Watermark ===

impl Watermark {
    pub(super) fn new(gauge: Gauge) -> Self {
        Self { current: AtomicI64::new(NONE), written_at: Mutex::new(0), loaded: OnceCell::new(), gauge }
    }

    /// The watermark, if it has been loaded.
    pub(super) fn get(&self) -> Option<i64> {
        self.loaded.get().map(|()| self.current.load(Ordering::Acquire))
    }

    /// The watermark, read from the meta keys if that has not happened yet.
    pub(super) async fn load(&self, upstream: &Upstream, keys: &TenantKeys) -> Result<i64, Status> {
        self.loaded.get_or_try_init(|| async { self.read(upstream, keys).await.map(drop) }).await?;
        Ok(self.current.load(Ordering::Acquire))
    }

    /// Notes what stands in the meta keys since `mod_revision`.
    pub(super) fn moved(&self, revision: i64, mod_revision: i64) {
        let mut written_at = self.written_at.lock();
        if mod_revision > *written_at {
            *written_at = mod_revision;
            self.current.store(revision, Ordering::Release);
            self.gauge.set(revision);
        }
    }

    /// Reads the meta key. Returns the revision of the upstream at that moment.
    pub(super) async fn read(&self, upstream: &Upstream, keys: &TenantKeys) -> Result<i64, Status> {
        let request = RangeRequest { key: keys.watermark(), ..Default::default() };
        let answer = upstream.kv().range(request).await?.into_inner();
        let now =
            answer.header.ok_or_else(|| Status::internal("etcd-proxy: the upstream's answer has no header"))?.revision;
        match answer.kvs.first() {
            Some(kv) => self.moved(decode(&kv.value)?, kv.mod_revision),
            // Only after the tenant's meta keys were removed can there have been one before.
            None => self.moved(NONE, now),
        }
        Ok(now)
    }
}

/// Follows the meta key for as long as it is polled, whatever happens to the upstream.
pub(super) async fn follow(tenant: &Tenant) {
    let (upstream, keys) = (&tenant.0.upstream, &tenant.0.keys);
    let mut told = false;
    loop {
        if let Err(status) = follow_once(&tenant.0.watermark, upstream, keys).await {
            // Nobody's absence but somebody's oversight, and it does not go away by itself.
            if status.code() == Code::PermissionDenied && !std::mem::replace(&mut told, true) {
                let key = keys.watermark();
                tracing::warn!(key = %key.escape_ascii(), message = status.message(), "the upstream's user may not read this tenant's meta keys: compactions, leases and reads of revisions fail; grant it readwrite on them");
            }
            tracing::debug!(code = ?status.code(), message = status.message(), "lost sight of the compaction watermark; looking again");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Follows the meta key until the upstream is lost.
async fn follow_once(watermark: &Watermark, upstream: &Upstream, keys: &TenantKeys) -> Result<(), Status> {
    watermark.load(upstream, keys).await?;
    let now = watermark.read(upstream, keys).await?;
    let create = WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest {
            key: keys.watermark(),
            start_revision: now + 1,
            ..Default::default()
        })),
    };
    // The stream of requests stays open: its end would be a half-closed watch, which is fine with etcd but not with every
    // proxy that may stand between.
    let requests = futures::stream::iter([create]).chain(futures::stream::pending());
    let mut request = Request::new(requests);
    // A member that lost its leader ends the stream instead of keeping silent.
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    let mut client = WatchClient::new(upstream.streams()).max_decoding_message_size(usize::MAX);
    let mut responses = client.watch(request).await?.into_inner();
    while let Some(response) = responses.message().await? {
        for event in &response.events {
            let Some(kv) = &event.kv else { continue };
            match event.r#type() {
                EventType::Put => watermark.moved(decode(&kv.value)?, kv.mod_revision),
                EventType::Delete => watermark.moved(NONE, kv.mod_revision),
            }
        }
        if response.canceled {
            // etcd refuses a watch by a cancel (`v3rpc/watch.go`).
            let code = match response.cancel_reason.contains("permission denied") {
                true => Code::PermissionDenied,
                false => Code::Aborted,
            };
            return Err(Status::new(code, response.cancel_reason));
        }
    }
    Ok(())
}

fn decode(value: &[u8]) -> Result<i64, Status> {
    meta::decode_watermark(value).map_err(|error| {
        tracing::error!(%error, "the compaction watermark of the tenant cannot be read");
        Status::internal(format!("etcd-proxy: {error}"))
    })
}
