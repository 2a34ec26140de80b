//! Counting what a tenant stores only when it has changed.
//!
//! etcd has no cheap question for "has anything under this prefix changed": filters by revision read every value, and the
//! header's revision moves with every tenant. But a watch that has caught up costs it nothing until something happens.
//! So each count leaves a watch behind that begins where the count ended, and ends with the first event.

use std::{future::pending, sync::Arc};

use etcd_proxy::{prefix::Prefix, upstream::UpstreamChannel};
use futures::stream;
use proto::etcdserverpb::{WatchCreateRequest, WatchRequest, watch_client::WatchClient, watch_request::RequestUnion};
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

use super::{Shared, SharedConfig, SharedError, Usage};

/// Knows what a tenant stores, and counts again only if something under the prefix has changed.
#[derive(Debug)]
pub struct UsageTracker {
    prefix: Prefix,
    counted: Option<Counted>,
}

#[derive(Debug)]
struct Counted {
    usage: Usage,
    /// Where it was counted.
    config: Arc<SharedConfig>,
    /// Ends with the first change.
    quiet: AbortOnDropHandle<()>,
}

// === impl UsageTracker ===

impl UsageTracker {
    /// Nothing is asked before the first count.
    pub fn new(prefix: Prefix) -> Self {
        Self { prefix, counted: None }
    }

    /// The tenant's usage. While nothing under the prefix changes, that is the last count, and nothing is asked; a change
    /// shows as soon as etcd has told of it, normally within milliseconds. Whoever calls this seldom therefore also
    /// counts seldom.
    ///
    /// # Errors
    /// As [`Shared::usage`].
    pub async fn usage(&mut self, shared: &Shared) -> Result<Usage, SharedError> {
        if let Some(counted) = &self.counted
            && !counted.quiet.is_finished()
            && counted.config == shared.config
        {
            return Ok(counted.usage);
        }
        self.counted = None;
        let usage = shared.usage(&self.prefix).await?;
        let quiet = watch(shared.upstream.streams(), self.prefix.clone(), usage.revision);
        let quiet = AbortOnDropHandle::new(tokio::spawn(quiet));
        self.counted = Some(Counted { usage, config: shared.config.clone(), quiet });
        Ok(usage)
    }
}

/// Ends when something under `prefix` changed after `revision`, or that cannot be known.
async fn watch(channel: UpstreamChannel, prefix: Prefix, revision: i64) {
    if let Err(status) = first_event(channel, &prefix, revision).await {
        tracing::debug!(%prefix, error = &status as &dyn std::error::Error, "the usage is counted again");
    }
}

async fn first_event(channel: UpstreamChannel, prefix: &Prefix, revision: i64) -> Result<(), Status> {
    let (key, range_end) = prefix.all();
    let create = WatchCreateRequest { key, range_end, start_revision: revision + 1, ..Default::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    // The stream of requests stays open: its end would end the watch.
    let requests = stream::unfold(Some(create), |next| async move {
        match next {
            Some(request) => Some((request, None)),
            None => pending().await,
        }
    });
    let mut answers = WatchClient::new(channel).watch(requests).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        if answer.canceled || !answer.events.is_empty() {
            return Ok(());
        }
    }
    Ok(())
}
