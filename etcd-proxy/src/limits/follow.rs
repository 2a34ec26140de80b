//! Counting what a tenant has stored, once, and following it from there.
//!
//! Nothing is remembered of single keys: every change brings what was there before (`prev_kv`), so the sums are all there is
//! to keep, however many keys there are. Where a change comes without (the upstream compacted it away meanwhile), and where
//! changes were missed, everything is counted again; until that is done the old sums are used, to which this process' own
//! writes are added as they are made.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use proto::{
    etcdserverpb::{
        RangeRequest, RangeResponse, WatchCreateRequest, WatchRequest, kv_client::KvClient, watch_client::WatchClient,
        watch_request::RequestUnion,
    },
    mvccpb::{Event, KeyValue, event::EventType},
};
use tonic::{Code, Request, Status, metadata::MetadataValue};

use super::{account::Account, ledger::Amount};
use crate::{prefix::Prefix, upstream::Upstream};

/// How long the follower waits before it looks again after the upstream was lost.
const PAUSE: Duration = Duration::from_secs(1);
/// Bytes that a page of an upstream without RangeStream is to have.
const PAGE: i64 = 1 << 20;
/// Keys of a page at most: keys that follow small ones may be large.
const PAGE_KEYS: i64 = 64;

/// How often a count starts over because its revision was compacted meanwhile.
const COUNTS: usize = 3;

/// What is counted.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// For the log.
    pub(super) what: &'static str,
    pub(super) key: Bytes,
    pub(super) range_end: Bytes,
    /// Whether bytes are counted; then the length of the part of a key's name that is not the tenant's.
    pub(super) strip: Option<usize>,
}

/// Why the follower has to begin anew.
enum Lost {
    /// The stream ended; what was missed can still be had.
    Sight(Status),
    /// Changes were missed.
    Count(&'static str),
}

/// Counts and follows for as long as it is polled, whatever happens to the upstream.
pub(super) async fn follow(upstream: &Upstream, account: &Account, subject: &Subject) {
    let mut count = true;
    let mut told = false;
    loop {
        match follow_once(upstream, account, subject, count).await {
            Lost::Count(reason) => {
                tracing::debug!(what = subject.what, reason, "counting again");
                // Were it to happen over and over, it should not do so as fast as it can.
                if std::mem::replace(&mut count, true) {
                    tokio::time::sleep(PAUSE).await;
                }
            }
            Lost::Sight(status) => {
                // It does not go away by itself.
                if status.code() == Code::PermissionDenied && !std::mem::replace(&mut told, true) {
                    let message = status.message();
                    tracing::warn!(
                        what = subject.what,
                        message,
                        "the upstream's user may not read what a limit is about, so writes that it applies to are refused"
                    );
                }
                tracing::debug!(what = subject.what, code = ?status.code(), message = status.message(), "lost sight of what the tenant has stored; looking again");
                count = account.counted().is_none();
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// What lies under `prefix` at one revision, and that revision: keys, and on demand the bytes of keys (without the prefix)
/// and values, for which everything is read, part by part. `seen` hears what has been counted so far.
///
/// # Errors
/// When the upstream cannot be asked, or compacts faster than it can be read.
pub(crate) async fn measure(
    upstream: &Upstream,
    prefix: &Prefix,
    bytes: bool,
    seen: &mut (dyn FnMut(Amount) + Send),
) -> Result<(Amount, i64), Status> {
    let strip = bytes.then(|| prefix.as_bytes().len());
    let (key, range_end) = prefix.keys();
    let subject = Subject { what: "everything", key, range_end, strip };
    for _ in 1..COUNTS {
        match subject.count(upstream, seen).await {
            Err(status) if status.code() == Code::OutOfRange => {}
            counted => return counted,
        }
    }
    subject.count(upstream, seen).await
}

async fn follow_once(upstream: &Upstream, account: &Account, subject: &Subject, count: bool) -> Lost {
    if count {
        match subject.count(upstream, &mut |_| {}).await {
            Ok((stored, revision)) => account.recounted(stored, revision),
            Err(status) if status.code() == Code::OutOfRange => return Lost::Count("compacted while counting"),
            Err(status) => return Lost::Sight(status),
        }
    }
    let Some((_, revision)) = account.counted() else { return Lost::Count("not counted yet") };
    match subject.watch(upstream, account, revision).await {
        Ok(lost) => lost,
        Err(status) => Lost::Sight(status),
    }
}

// === impl Subject ===

impl Subject {
    /// Everything as it is at one revision; `seen` hears what has been counted so far.
    async fn count(&self, upstream: &Upstream, seen: &mut (dyn FnMut(Amount) + Send)) -> Result<(Amount, i64), Status> {
        let counted = upstream.kv().range(RangeRequest { count_only: true, ..self.range(0) }).await?.into_inner();
        let revision = counted.header.ok_or_else(no_header)?.revision;
        let Some(strip) = self.strip else { return Ok((Amount { keys: counted.count, bytes: 0 }, revision)) };
        let stored = match self.stream(upstream, revision, strip, seen).await {
            Err(status) if status.code() == Code::Unimplemented => self.pages(upstream, revision, strip, seen).await?,
            stored => stored?,
        };
        Ok((stored, revision))
    }

    async fn stream(
        &self,
        upstream: &Upstream,
        revision: i64,
        strip: usize,
        seen: &mut (dyn FnMut(Amount) + Send),
    ) -> Result<Amount, Status> {
        let mut kv = KvClient::new(upstream.ranges()).max_decoding_message_size(usize::MAX);
        let mut parts = kv.range_stream(self.range(revision)).await?.into_inner();
        let mut stored = Amount::NOTHING;
        while let Some(part) = parts.message().await? {
            stored += part.range_response.iter().map(|part| sum(part, strip)).sum();
            seen(stored);
        }
        Ok(stored)
    }

    async fn pages(
        &self,
        upstream: &Upstream,
        revision: i64,
        strip: usize,
        seen: &mut (dyn FnMut(Amount) + Send),
    ) -> Result<Amount, Status> {
        let mut kv = upstream.kv();
        let mut page = RangeRequest { limit: 1, ..self.range(revision) };
        let mut stored = Amount::NOTHING;
        loop {
            let answer = kv.range(page.clone()).await?.into_inner();
            let found = sum(&answer, strip);
            stored += found;
            seen(stored);
            let (true, Some(last)) = (answer.more, answer.kvs.last()) else { return Ok(stored) };
            // The smallest key after that one.
            page.key = [&last.key[..], b"\0"].concat().into();
            page.limit = next_limit(page.limit, found);
        }
    }

    /// Follows from `revision` on, until that cannot be done any longer.
    async fn watch(&self, upstream: &Upstream, account: &Account, revision: i64) -> Result<Lost, Status> {
        let create = WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest {
                key: self.key.clone(),
                range_end: self.range_end.clone(),
                start_revision: revision + 1,
                prev_kv: self.strip.is_some(),
                fragment: true,
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
        // Fragments of one answer count together: a resumed watch begins after whole revisions.
        let (mut change, mut seen) = (Amount::NOTHING, revision);
        while let Some(response) = responses.message().await? {
            for event in &response.events {
                let Some(difference) = self.difference(event) else {
                    return Ok(Lost::Count("a change came without what was there before"));
                };
                change += difference;
                seen = seen.max(event.kv.as_ref().map_or(0, |kv| kv.mod_revision));
            }
            if response.compact_revision > 0 {
                return Ok(Lost::Count("changes were compacted before they were seen"));
            }
            if response.canceled {
                // etcd refuses a watch by a cancel (`v3rpc/watch.go`).
                let code = match response.cancel_reason.contains("permission denied") {
                    true => Code::PermissionDenied,
                    false => Code::Aborted,
                };
                return Err(Status::new(code, response.cancel_reason));
            }
            if !response.fragment && !response.events.is_empty() {
                account.changed(std::mem::take(&mut change), seen);
            }
        }
        Err(Status::unavailable("the watch has ended"))
    }

    /// By how much an event changes what is stored. `None` if it does not say.
    fn difference(&self, event: &Event) -> Option<Amount> {
        let Some(kv) = &event.kv else { return Some(Amount::NOTHING) };
        let deleted = event.r#type() == EventType::Delete;
        let Some(strip) = self.strip else {
            let keys = match (deleted, kv.version) {
                (true, _) => -1,
                (false, 1) => 1,
                (false, _) => 0,
            };
            return Some(Amount { keys, bytes: 0 });
        };
        let before = || event.prev_kv.as_ref().map(|before| size(before, strip));
        match (deleted, kv.version) {
            (true, _) => Some(-before()?),
            (false, 1) => Some(size(kv, strip)),
            (false, _) => Some(size(kv, strip) - before()?),
        }
    }

    fn range(&self, revision: i64) -> RangeRequest {
        RangeRequest { key: self.key.clone(), range_end: self.range_end.clone(), revision, ..Default::default() }
    }
}

fn sum(part: &RangeResponse, strip: usize) -> Amount {
    part.kvs.iter().map(|kv| size(kv, strip)).sum()
}

fn size(kv: &KeyValue, strip: usize) -> Amount {
    Amount::key(kv.key.len().saturating_sub(strip).saturating_add(kv.value.len()))
}

/// How many keys the next page is to have: as many as make a page if they are like those before, but not many more at once.
fn next_limit(limit: i64, found: Amount) -> i64 {
    let average = (found.bytes / found.keys.max(1)).max(1);
    (PAGE / average).clamp(1, PAGE_KEYS).min(limit.saturating_mul(2))
}

fn no_header() -> Status {
    Status::internal("etcd-proxy: the upstream's answer has no header")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(strip: Option<usize>) -> Subject {
        Subject { what: "test", key: "/a/\0".into(), range_end: "/a0".into(), strip }
    }

    fn kv(value: &'static str, version: i64) -> KeyValue {
        KeyValue { key: "/a/key".into(), value: value.into(), version, ..Default::default() }
    }

    fn event(r#type: EventType, kv: KeyValue, prev_kv: Option<KeyValue>) -> Event {
        Event { r#type: r#type as i32, kv: Some(kv), prev_kv }
    }

    #[test]
    fn events_say_what_they_change() {
        let amount = |keys, bytes| Some(Amount { keys, bytes });
        let sizes = subject(Some(3));
        assert_eq!(sizes.difference(&event(EventType::Put, kv("12345", 1), None)), amount(1, 8));
        assert_eq!(sizes.difference(&event(EventType::Put, kv("12", 2), Some(kv("12345", 1)))), amount(0, -3));
        assert_eq!(sizes.difference(&event(EventType::Delete, kv("", 0), Some(kv("12", 2)))), amount(-1, -5));
        // Compacted away before it could be read.
        assert_eq!(sizes.difference(&event(EventType::Put, kv("12", 2), None)), None);
        assert_eq!(sizes.difference(&event(EventType::Delete, kv("", 0), None)), None);
        let keys = subject(None);
        assert_eq!(keys.difference(&event(EventType::Put, kv("12345", 1), None)), amount(1, 0));
        assert_eq!(keys.difference(&event(EventType::Put, kv("12", 2), None)), amount(0, 0));
        assert_eq!(keys.difference(&event(EventType::Delete, kv("", 0), None)), amount(-1, 0));
    }

    #[test]
    fn pages_grow_slowly_and_shrink_at_once() {
        let found = |keys, bytes| Amount { keys, bytes };
        assert_eq!(next_limit(1, found(1, 10)), 2);
        assert_eq!(next_limit(40, found(40, 400)), PAGE_KEYS);
        assert_eq!(next_limit(PAGE_KEYS, found(64, 64 * PAGE)), 1);
        assert_eq!(next_limit(1, found(0, 0)), 2);
    }
}
