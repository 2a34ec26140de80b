//! Serializable reads: each is the whole state at the revision that it names, which may be an old one, and never one that is yet to come.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use proto::etcdserverpb::{RangeRequest, kv_client::KvClient};
use tokio::time::{sleep, timeout};

use crate::{
    clients::{HASTE, Shared, pair},
    cluster,
    events::Truth,
    history::{Kv, Revision},
};

/// Between two reads.
const PAUSE: Duration = Duration::from_millis(100);

/// What a serializable read of every key found.
#[derive(Debug)]
pub(crate) struct Read {
    answered: Duration,
    revision: Revision,
    state: BTreeMap<String, Kv>,
}

/// Reads every key through one proxy again and again, until it is to stop.
pub(crate) async fn reader(proxy: usize, shared: Arc<Shared>) -> Vec<Read> {
    let mut kv = KvClient::new(cluster::channel(&shared.urls[proxy]));
    let zero = || vec![0].into();
    let range = RangeRequest { key: zero(), range_end: zero(), serializable: true, ..Default::default() };
    let mut reads = Vec::new();
    while !shared.stop.load(Ordering::SeqCst) {
        sleep(PAUSE).await;
        if shared.hold.load(Ordering::SeqCst) {
            continue;
        }
        let Ok(Ok(answer)) = timeout(HASTE, kv.range(range.clone())).await else { continue };
        let answer = answer.into_inner();
        let state = answer.kvs.into_iter().map(|kv| (String::from_utf8(kv.key.to_vec()).unwrap(), pair(kv))).collect();
        reads.push(Read { answered: shared.start.elapsed(), revision: answer.header.unwrap().revision, state });
    }
    reads
}

/// Checks reads; `asked` is when each value was asked to be written, from 1 on.
///
/// # Errors
/// With a read that found what was not there at its revision, or whose revision was not there yet.
pub(crate) fn check(mut reads: Vec<Read>, truth: &Truth, asked: &[Duration]) -> Result<(), String> {
    reads.sort_by_key(|read| read.revision);
    let mut events = truth.events().iter().peekable();
    let mut state: BTreeMap<String, Kv> = BTreeMap::new();
    let mut youngest = Duration::ZERO;
    for read in reads {
        while let Some(event) = events.next_if(|event| event.revision <= read.revision) {
            match event.put {
                Some(kv) => {
                    state.insert(event.key.clone(), kv);
                    let value = usize::try_from(kv.value).unwrap();
                    let asked = value.checked_sub(1).and_then(|place| asked.get(place));
                    youngest = youngest.max(*asked.ok_or_else(|| format!("reads: a value of nobody's: {event:?}"))?);
                }
                None => _ = state.remove(&event.key),
            }
        }
        if state != read.state {
            return Err(format!("reads: {read:?}, when there was {state:?}"));
        }
        if youngest > read.answered {
            return Err(format!("reads: ahead of what was asked for at {youngest:?} only: {read:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Event;

    /// Judges a read at second 5 that found `found` (values and modification revisions of `a`) at a revision, in a history where `a` is put at 2 and 4, which
    /// was asked for at seconds 1 and 3, and deleted at 6.
    fn judge(revision: Revision, found: Option<Kv>, answered: u64) -> Result<(), String> {
        let (one, two) = (kv(1, 1, 2), kv(2, 2, 4));
        let event = |revision, put, before| Event { revision, key: "a".to_owned(), put, before };
        let events = vec![event(2, one, None), event(4, two, one), event(6, None, two)];
        let state = found.map(|kv| ("a".to_owned(), kv)).into_iter().collect();
        let read = Read { answered: Duration::from_secs(answered), revision, state };
        check(vec![read], &Truth::new(events).unwrap(), &[Duration::from_secs(1), Duration::from_secs(3)])
    }

    fn kv(value: u64, version: i64, modified: Revision) -> Option<Kv> {
        Some(Kv { value, version, created: 2, modified })
    }

    #[test]
    fn an_earlier_state_is_right() {
        judge(1, None, 0).unwrap();
        judge(3, kv(1, 1, 2), 9).unwrap();
        judge(5, kv(2, 2, 4), 9).unwrap();
        judge(7, None, 9).unwrap();
    }

    #[test]
    fn what_was_not_there_is_found() {
        assert!(judge(3, kv(2, 2, 4), 9).unwrap_err().contains("when there was"));
        assert!(judge(5, None, 9).unwrap_err().contains("when there was"));
        assert!(judge(7, kv(2, 2, 4), 9).unwrap_err().contains("when there was"));
    }

    #[test]
    fn what_is_yet_to_come_is_found() {
        assert!(judge(5, kv(2, 2, 4), 2).unwrap_err().contains("ahead"));
    }
}
