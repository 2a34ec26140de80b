//! Following what changes on the upstream, for the proxy's own ends.
//!
//! A store can go back under those that follow it: an operator restores a snapshot. Nothing tells of that but positions that do
//! not go on from those before, neither cluster nor member ids need to change. A watch from a revision that the store has not
//! reached any more would be silent until it has, so where a watch begins is looked at once it is there.

use bytes::Bytes;
use futures::StreamExt as _;
use proto::etcdserverpb::{
    RangeRequest, ResponseHeader, WatchCreateRequest, WatchRequest, WatchResponse, watch_client::WatchClient,
    watch_request::RequestUnion,
};
use tonic::{Code, Request, Status, Streaming, metadata::MetadataValue};

use super::{
    Upstream,
    own::{PATIENCE, within},
};

/// A point in the history of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Id of the cluster.
    pub cluster_id: u64,
    /// The revision.
    pub revision: i64,
}

/// Why there is no more to follow.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The stream ended or was refused; what was missed can still be had.
    Sight(Status),
    /// Changes were compacted before they were seen.
    Compacted,
    /// The store is not where it was: it has gone back to an earlier state, or is that of another cluster.
    WentBack,
}

/// What changes from some position on.
#[derive(Debug)]
pub(crate) struct Following {
    upstream: Upstream,
    key: Bytes,
    since: Position,
    created: bool,
    responses: Streaming<WatchResponse>,
}

// === impl Position ===

impl Position {
    /// The position in an answer's header.
    ///
    /// # Errors
    /// When the upstream has sent none, as no etcd does.
    pub fn of(header: Option<ResponseHeader>) -> Result<Self, Status> {
        let header = header.ok_or_else(|| Status::internal("etcd-proxy: the upstream's answer has no header"))?;
        Ok(Self { cluster_id: header.cluster_id, revision: header.revision })
    }

    /// Whether a store that has been at `earlier` can have come here without going back.
    pub fn continues(self, earlier: Self) -> bool {
        self.cluster_id == earlier.cluster_id && self.revision >= earlier.revision
    }
}

// === impl Upstream ===

impl Upstream {
    /// Where the store is, by a linearizable read of a key that the upstream's user may read.
    ///
    /// # Errors
    /// When the upstream cannot be asked.
    pub async fn position(&self, key: Bytes) -> Result<Position, Status> {
        let request = RangeRequest { key, count_only: true, ..Default::default() };
        Position::of(self.range(request).await?.header)
    }

    /// Watches what `create` says from the revision after `since` on.
    pub(crate) async fn follow(&self, since: Position, create: WatchCreateRequest) -> Result<Following, Status> {
        let key = create.key.clone();
        let create = WatchCreateRequest { start_revision: since.revision.saturating_add(1), ..create };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // The stream of requests stays open: its end would be a half-closed watch, which is fine with etcd but not with every
        // proxy that may stand between.
        let requests = futures::stream::iter([create]).chain(futures::stream::pending());
        let mut request = Request::new(requests);
        // A member that lost its leader ends the stream instead of keeping silent.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let mut client = WatchClient::new(self.streams()).max_decoding_message_size(usize::MAX);
        let responses = within(PATIENCE, client.watch(request)).await?.into_inner();
        Ok(Following { upstream: self.clone(), key, since, created: false, responses })
    }
}

// === impl Following ===

impl Following {
    /// The next message with events.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn next(&mut self) -> Result<WatchResponse, Lost> {
        loop {
            let message = self.responses.message();
            let response = if self.created { message.await? } else { within(PATIENCE, message).await? };
            let response = response.ok_or_else(|| Status::unavailable("the watch has ended"))?;
            if response.compact_revision > 0 {
                return Err(Lost::Compacted);
            }
            if response.canceled {
                // etcd refuses a watch by a cancel (`v3rpc/watch.go`).
                let code = match response.cancel_reason.contains("permission denied") {
                    true => Code::PermissionDenied,
                    false => Code::Aborted,
                };
                return Err(Status::new(code, response.cancel_reason).into());
            }
            if response.created {
                self.created = true;
                // Not before: a store that goes back from here on takes the stream with it.
                let now = self.upstream.position(self.key.clone()).await?;
                if !now.continues(self.since) {
                    return Err(Lost::WentBack);
                }
            }
            if !response.events.is_empty() {
                return Ok(response);
            }
        }
    }
}

// === impl Lost ===

impl From<Status> for Lost {
    fn from(status: Status) -> Self {
        Self::Sight(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_goes_on_within_its_cluster() {
        let at = |cluster_id, revision| Position { cluster_id, revision };
        assert!(at(1, 5).continues(at(1, 5)) && at(1, 6).continues(at(1, 5)));
        assert!(!at(1, 4).continues(at(1, 5)));
        assert!(!at(2, 6).continues(at(1, 5)));
        assert_eq!(Position::of(None).unwrap_err().code(), Code::Internal);
    }
}
