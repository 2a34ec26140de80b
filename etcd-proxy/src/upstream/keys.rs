//! Reading every key of a range at one revision, however many and however long they are: by RangeStream, and page by page where
//! the upstream has none, which is so before etcd 3.7.
//!
//! An etcd bounds the parts of a stream by bytes. Of a page only the number of keys can be bounded, so that number goes by what
//! the pages before had.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use proto::{
    etcdserverpb::{RangeRequest, RangeStreamResponse, kv_client::KvClient},
    mvccpb::KeyValue,
};
use tonic::{Code, Status, Streaming};

use super::{Upstream, own::within};

/// Bytes that a page is to have.
const PAGE_BYTES: usize = 1 << 20;
/// Keys of a page at most: keys that follow small ones may be large, each up to `--max-request-bytes`.
const PAGE_KEYS: i64 = 64;
/// The same of keys without values.
const PAGE_NAMES: i64 = 10_000;
/// How long the upstream may take for an answer, or for the next part of one.
const STAGE: Duration = Duration::from_secs(30);

/// Reads the keys of a range in their order.
pub(crate) struct Reader {
    upstream: Upstream,
    /// What is left to be asked for.
    rest: RangeRequest,
    way: Way,
}

/// How keys are read.
enum Way {
    /// By RangeStream, if the upstream has it.
    Untried,
    Stream(Box<Streaming<RangeStreamResponse>>),
    Pages,
    Done,
}

/// What a read waits for at most, as the whole of it may hold a place that others wait for.
///
/// # Errors
/// When that has not come within 30 s.
pub(crate) async fn in_time<T>(asked: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    within(STAGE, asked).await
}

/// The key that comes next after `key`.
pub(crate) fn after(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}

// === impl Upstream ===

impl Upstream {
    /// The keys from `key` to before `range_end` as they were at `revision`, 0 for now, with which a range of many pages is not
    /// consistent.
    pub(crate) fn read(&self, key: Bytes, range_end: Bytes, revision: i64) -> Reader {
        let rest = RangeRequest { key, range_end, revision, ..Default::default() };
        Reader { upstream: self.clone(), rest, way: Way::Untried }
    }
}

// === impl Reader ===

impl Reader {
    /// The same without values.
    pub(crate) fn names(mut self) -> Self {
        self.rest.keys_only = true;
        self
    }

    /// The next keys, at least one; `None` when there are no more.
    ///
    /// # Errors
    /// When the upstream cannot be reached or has compacted the revision.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<KeyValue>>, Status> {
        loop {
            let kvs = match &mut self.way {
                Way::Untried => {
                    let mut ranges = KvClient::new(self.upstream.ranges()).max_decoding_message_size(usize::MAX);
                    match in_time(ranges.range_stream(self.rest.clone())).await {
                        Ok(stream) => self.way = Way::Stream(Box::new(stream.into_inner())),
                        Err(status) => self.without_stream(status)?,
                    }
                    continue;
                }
                Way::Stream(stream) => match in_time(stream.message()).await {
                    Ok(Some(part)) => part.range_response.map(|range| range.kvs).unwrap_or_default(),
                    Ok(None) => {
                        self.way = Way::Done;
                        continue;
                    }
                    Err(status) => {
                        self.without_stream(status)?;
                        continue;
                    }
                },
                Way::Pages => self.page().await?,
                Way::Done => return Ok(None),
            };
            if !kvs.is_empty() {
                return Ok(Some(kvs));
            }
        }
    }

    /// Goes over to pages where the upstream has no RangeStream, of which it tells before it sends anything.
    fn without_stream(&mut self, status: Status) -> Result<(), Status> {
        if status.code() != Code::Unimplemented {
            return Err(status);
        }
        self.rest.limit = 1;
        self.way = Way::Pages;
        Ok(())
    }

    async fn page(&mut self) -> Result<Vec<KeyValue>, Status> {
        let page = in_time(self.upstream.kv().range(self.rest.clone())).await?.into_inner();
        match page.kvs.last() {
            Some(last) if page.more => self.rest.key = after(&last.key),
            _ => self.way = Way::Done,
        }
        let bytes = page.kvs.iter().map(|kv| kv.key.len().saturating_add(kv.value.len())).sum();
        let most = if self.rest.keys_only { PAGE_NAMES } else { PAGE_KEYS };
        self.rest.limit = next_limit(self.rest.limit, page.kvs.len(), bytes).min(most);
        Ok(page.kvs)
    }
}

/// How many keys the next page is to have: as many as make a page if they are like those before, but not many more at once.
fn next_limit(limit: i64, keys: usize, bytes: usize) -> i64 {
    let average = (bytes / keys.max(1)).max(1);
    i64::try_from(PAGE_BYTES / average).unwrap_or(i64::MAX).max(1).min(limit.saturating_mul(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_grow_slowly_and_shrink_at_once() {
        assert_eq!(next_limit(1, 1, 10), 2);
        assert_eq!(next_limit(40, 40, 400), 80);
        assert_eq!(next_limit(64, 64, 64 * PAGE_BYTES), 1);
        assert_eq!(next_limit(64, 64, 64 * PAGE_BYTES / 8), 8);
        assert_eq!(next_limit(1, 0, 0), 2);
    }
}
