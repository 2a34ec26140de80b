//! Counting what a tenant has stored, once, and following it from there.
//!
//! Nothing is remembered of single keys: every change brings what was there before (`prev_kv`), so the sums are all there is
//! to keep, however many keys there are. Where a change comes without (the upstream compacted it away meanwhile), and where
//! changes were missed, everything is counted again; until that is done the old sums are used, to which this process' own
//! writes are added as they are made.

use std::time::Duration;

use bytes::Bytes;
use proto::{
    etcdserverpb::{RangeRequest, WatchCreateRequest},
    mvccpb::{Event, KeyValue, event::EventType},
};
use tonic::{Code, Status};

use super::{account::Account, ledger::Amount};
use crate::{
    prefix::Prefix,
    upstream::{self, Position, Upstream, in_time},
};

/// How long the follower waits before it looks again after the upstream was lost.
const PAUSE: Duration = Duration::from_secs(1);
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

/// Why there is no more to follow.
enum Lost {
    /// See [`upstream::Lost`].
    Followed(upstream::Lost),
    /// Changes were missed.
    Count(&'static str),
}

/// Counts and follows for as long as it is polled, whatever happens to the upstream.
pub(super) async fn follow(upstream: &Upstream, account: &Account, subject: &Subject) {
    // As of when what is stored is known; `None` to count it.
    let mut known = None;
    let mut told = false;
    loop {
        let counting = known.is_none();
        let reason = match follow_once(upstream, account, subject, &mut known).await {
            Lost::Count(reason) => reason,
            Lost::Followed(upstream::Lost::Compacted) => "changes were compacted before they were seen",
            Lost::Followed(upstream::Lost::WentBack) => {
                tracing::warn!(
                    what = subject.what,
                    "the upstream has gone back to an earlier state, as when a snapshot is restored; what the tenant has stored is counted anew"
                );
                account.forget();
                "the upstream has gone back to an earlier state"
            }
            Lost::Followed(upstream::Lost::Sight(status)) => {
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
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        tracing::debug!(what = subject.what, reason, "counting again");
        known = None;
        // Were it to happen over and over, it should not do so as fast as it can.
        if counting {
            tokio::time::sleep(PAUSE).await;
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
    let mut attempt = 1;
    loop {
        match subject.count(upstream, seen).await {
            Err(status) if status.code() == Code::OutOfRange && attempt < COUNTS => attempt += 1,
            counted => return counted.map(|(stored, now)| (stored, now.revision)),
        }
    }
}

async fn follow_once(upstream: &Upstream, account: &Account, subject: &Subject, known: &mut Option<Position>) -> Lost {
    let known = match known {
        Some(known) => known,
        None => match subject.count(upstream, &mut |_| {}).await {
            Ok((stored, now)) => {
                account.recounted(stored, now.revision);
                known.insert(now)
            }
            Err(status) if status.code() == Code::OutOfRange => return Lost::Count("compacted while counting"),
            Err(status) => return Lost::Followed(status.into()),
        },
    };
    match subject.watch(upstream, account, known).await {
        Ok(lost) => lost,
        Err(lost) => Lost::Followed(lost),
    }
}

// === impl Subject ===

impl Subject {
    /// Everything as it is at one position; `seen` hears what has been counted so far.
    async fn count(
        &self,
        upstream: &Upstream,
        seen: &mut (dyn FnMut(Amount) + Send),
    ) -> Result<(Amount, Position), Status> {
        let (key, range_end) = (self.key.clone(), self.range_end.clone());
        let request = RangeRequest { key, range_end, count_only: true, ..Default::default() };
        let counted = in_time(upstream.kv().range(request)).await?.into_inner();
        let now = Position::of(counted.header)?;
        let Some(strip) = self.strip else { return Ok((Amount { keys: counted.count, bytes: 0 }, now)) };
        let mut reader = upstream.read(self.key.clone(), self.range_end.clone(), now.revision);
        let mut stored = Amount::NOTHING;
        while let Some(kvs) = reader.next().await? {
            stored += kvs.iter().map(|kv| size(kv, strip)).sum();
            seen(stored);
        }
        Ok((stored, now))
    }

    /// Follows from where what is stored is known, until that cannot be done any longer.
    async fn watch(
        &self,
        upstream: &Upstream,
        account: &Account,
        known: &mut Position,
    ) -> Result<Lost, upstream::Lost> {
        let create = WatchCreateRequest {
            key: self.key.clone(),
            range_end: self.range_end.clone(),
            prev_kv: self.strip.is_some(),
            fragment: true,
            ..Default::default()
        };
        let mut following = upstream.follow(*known, create).await?;
        // Fragments of one answer count together: a resumed watch begins after whole revisions.
        let (mut change, mut seen) = (Amount::NOTHING, known.revision);
        loop {
            let response = following.next().await?;
            for event in &response.events {
                let Some(difference) = self.difference(event) else {
                    return Ok(Lost::Count("a change came without what was there before"));
                };
                change += difference;
                seen = seen.max(event.kv.as_ref().map_or(0, |kv| kv.mod_revision));
            }
            if !response.fragment {
                account.changed(std::mem::take(&mut change), seen);
                known.revision = seen;
            }
        }
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
}

fn size(kv: &KeyValue, strip: usize) -> Amount {
    Amount::key(kv.key.len().saturating_sub(strip).saturating_add(kv.value.len()))
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
}
