//! Whether anybody compacts the upstream. etcd has no call that tells up to where it is compacted, but a watch from revision 1
//! is cancelled with that revision, or goes on if there is none.

use std::time::Duration;

use bytes::Bytes;
use proto::etcdserverpb::{
    RangeRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, watch_client::WatchClient,
    watch_request::RequestUnion,
};
use tokio::{
    sync::mpsc,
    time::{interval, sleep},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::{Examination, Level, said};

const COMPACTION: &str = "compaction";
/// Where a kube-apiserver notes up to where it has compacted; it has no prefix (`k8s.io/apiserver`, `etcd3/compact.go`).
const KUBERNETES: &[u8] = b"compact_rev_key";
/// Revisions of a store so young that nobody need have compacted it.
const YOUNG: i64 = 10_000;
/// Revisions that a store which is compacted now and then hardly keeps.
const MANY: i64 = 1_000_000;
/// How often a watch is asked for its progress.
const AGAIN: Duration = Duration::from_millis(100);

/// What can be seen of an upstream's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct History {
    current: i64,
    /// 0 if there never was a compaction.
    compacted: i64,
}

impl Examination {
    pub(super) async fn compaction(&mut self, observe: Duration) {
        const SUBJECT: &str = "upstream";
        let first = match self.ask(self.history()).await {
            Ok(history) => history,
            Err(status) => {
                let level = if status.code() == Code::PermissionDenied { Level::Skipped } else { Level::Warning };
                self.report.add(COMPACTION, SUBJECT, level, said(&status));
                return;
            }
        };
        let (level, message) = if observe.is_zero() {
            first.judge(self.kubernetes().await)
        } else {
            sleep(observe).await;
            match self.ask(self.history()).await {
                Ok(second) => second.judge_since(first, observe),
                Err(status) => (Level::Warning, said(&status)),
            }
        };
        self.report.add(COMPACTION, SUBJECT, level, message);
    }

    /// A key that this user may read, of the proxies' own.
    fn watched(&self) -> Bytes {
        match &self.tenant {
            Some(prefix) => self.layout.tenant(prefix).watermark(),
            None => self.layout.claims_generation(),
        }
    }

    async fn history(&self) -> Result<History, Status> {
        let (requests, stream) = mpsc::channel(2);
        let request = |union| WatchRequest { request_union: Some(union) };
        let create = WatchCreateRequest { key: self.watched(), start_revision: 1, ..Default::default() };
        let gone = |_| Status::cancelled("the watch has ended");
        requests.send(request(RequestUnion::CreateRequest(create))).await.map_err(gone)?;
        let mut client = WatchClient::new(self.upstream.streams()).max_decoding_message_size(usize::MAX);
        let mut answers = client.watch(ReceiverStream::new(stream)).await?.into_inner();
        let (mut again, mut created, mut current) = (interval(AGAIN), false, 0);
        loop {
            let answer = tokio::select! {
                answer = answers.message() => answer?.ok_or_else(|| Status::unavailable("the watch has ended"))?,
                // Answered once the watch has caught up, and not at all before.
                _ = again.tick(), if created => {
                    requests.send(request(RequestUnion::ProgressRequest(WatchProgressRequest {}))).await.map_err(gone)?;
                    continue;
                }
            };
            current = current.max(answer.header.map_or(0, |header| header.revision));
            if answer.compact_revision > 0 {
                return Ok(History { current: current.max(self.current().await?), compacted: answer.compact_revision });
            }
            if answer.canceled {
                let denied = answer.cancel_reason.contains("permission denied");
                let code = if denied { Code::PermissionDenied } else { Code::Aborted };
                return Err(Status::new(code, answer.cancel_reason));
            }
            created |= answer.created;
            if created && !answer.created && answer.events.is_empty() {
                return Ok(History { current, compacted: 0 });
            }
        }
    }

    async fn current(&self) -> Result<i64, Status> {
        Ok(self.upstream.position(self.watched()).await?.revision)
    }

    /// At which revision a kube-apiserver noted that it compacts, if it did and this user may know.
    async fn kubernetes(&self) -> Option<i64> {
        let request = RangeRequest { key: Bytes::from_static(KUBERNETES), ..Default::default() };
        let answer = self.ask(self.upstream.kv().range(request)).await.ok()?.into_inner();
        answer.kvs.first().map(|kv| kv.mod_revision)
    }
}

impl History {
    /// What one look tells, and when a kube-apiserver last noted that it compacts.
    fn judge(self, kubernetes: Option<i64>) -> (Level, String) {
        let Self { current, compacted } = self;
        let kept = current.saturating_sub(compacted);
        let by = match kubernetes {
            Some(noted) => {
                format!("; a kube-apiserver noted a compaction {} revisions ago", current.saturating_sub(noted))
            }
            None => String::new(),
        };
        match compacted {
            0 if kept > YOUNG => {
                let message = format!(
                    "nobody has ever compacted, and history grows without end ({kept} revisions): start etcd with --auto-compaction-retention, or let a kube-apiserver or the proxy-controller do it{by}"
                );
                (Level::Warning, message)
            }
            0 => (
                Level::Ok,
                format!("nobody has compacted yet, of {current} revisions; see to it that somebody will{by}"),
            ),
            _ if kept > MANY => {
                let message = format!(
                    "compacted up to revision {compacted} once, but {kept} revisions have come since: does anybody still compact? --observe=10m finds out{by}"
                );
                (Level::Warning, message)
            }
            _ => (Level::Ok, format!("compacted up to revision {compacted}; {kept} revisions are kept{by}")),
        }
    }

    /// What a second look tells.
    fn judge_since(self, first: Self, observed: Duration) -> (Level, String) {
        let written = self.current.saturating_sub(first.current);
        if self.compacted > first.compacted {
            let message = format!(
                "somebody compacts: from revision {} to {} within {observed:?}, in which {written} were written",
                first.compacted, self.compacted
            );
            return (Level::Ok, message);
        }
        match written {
            0 => (Level::Skipped, format!("nothing was written within {observed:?}, so there was nothing to compact")),
            _ => {
                let message = format!(
                    "nobody has compacted within {observed:?}, in which {written} revisions were written: start etcd with --auto-compaction-retention, or let a kube-apiserver or the proxy-controller do it"
                );
                (Level::Warning, message)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_look_and_two() {
        let history = |current, compacted| History { current, compacted };
        assert_eq!(history(100, 0).judge(None).0, Level::Ok);
        assert_eq!(history(20_000, 0).judge(None).0, Level::Warning);
        assert_eq!(history(20_000, 19_000).judge(None).0, Level::Ok);
        assert_eq!(history(2_000_000, 9).judge(Some(1)).0, Level::Warning);
        let minute = Duration::from_secs(60);
        assert_eq!(history(200, 90).judge_since(history(100, 50), minute).0, Level::Ok);
        assert_eq!(history(200, 50).judge_since(history(100, 50), minute).0, Level::Warning);
        assert_eq!(history(100, 50).judge_since(history(100, 50), minute).0, Level::Skipped);
    }
}
