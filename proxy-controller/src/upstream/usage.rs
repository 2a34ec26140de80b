//! How much a tenant stores.

use bytes::{BufMut as _, Bytes, BytesMut};
use etcd_proxy::prefix::Prefix;
use proto::{etcdserverpb::RangeRequest, mvccpb::KeyValue};
use tonic::{Code, Status};

use super::{PageSize, Shared, SharedError};

const DOING: &str = "count what the tenant stores";

/// Keys of the first page.
const FIRST_PAGE: i64 = 64;
/// Most keys of a page.
const LARGEST_PAGE: i64 = 4096;
/// About how many bytes of keys and values a page is to have.
const PAGE_BYTES: i64 = 2 << 20;
/// How often a count starts over because its revision was compacted meanwhile.
const ATTEMPTS: usize = 3;

/// What a tenant stores at one revision, as the tenant sees it: keys without the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// How many live keys.
    pub keys: i64,
    /// Σ (length of the key + length of the value), in bytes. What etcd needs besides, for history and for itself, is not in it.
    pub bytes: i64,
    /// The revision at which that was so.
    pub revision: i64,
}

// === impl Shared ===

impl Shared {
    /// Counts keys and bytes under `prefix`, at one revision. Everything is read, in pages that are bounded in bytes; for
    /// counting often there is [`UsageTracker`](super::UsageTracker).
    ///
    /// # Errors
    /// When the shared etcd does not answer, or compacts faster than the prefix can be read.
    pub async fn usage(&self, prefix: &Prefix) -> Result<Usage, SharedError> {
        for _ in 1..ATTEMPTS {
            if let Ok(usage) = self.usage_at_one_revision(prefix).await? {
                return Ok(usage);
            }
        }
        self.usage_at_one_revision(prefix).await?.map_err(|compacted| self.error(DOING, compacted))
    }

    /// The inner error is that of a compacted revision.
    async fn usage_at_one_revision(&self, prefix: &Prefix) -> Result<Result<Usage, Status>, SharedError> {
        let mut kv = self.pages();
        let (mut key, range_end) = prefix.all();
        let mut usage = Usage { keys: 0, bytes: 0, revision: 0 };
        let mut page = PageSize(FIRST_PAGE);
        loop {
            let request = RangeRequest {
                key: key.clone(),
                range_end: range_end.clone(),
                limit: page.0,
                revision: usage.revision,
                ..Default::default()
            };
            let answer = match self.within(DOING, kv.range(request)).await? {
                Ok(answer) => answer.into_inner(),
                Err(status) => match page.after(&status) {
                    Some(smaller) => {
                        page = smaller;
                        continue;
                    }
                    None if is_compacted(&status) => return Ok(Err(status)),
                    None => return Err(self.error(DOING, status)),
                },
            };
            if usage.revision == 0 {
                usage.revision = answer.header.as_ref().map_or(0, |header| header.revision);
            }
            let bytes = answer.kvs.iter().map(|kv| size(kv, prefix)).sum();
            usage.keys += len(answer.kvs.len());
            usage.bytes += bytes;
            match answer.kvs.last() {
                Some(last) if answer.more => key = after(&last.key),
                _ => return Ok(Ok(usage)),
            }
            page = next_page(page, bytes);
        }
    }
}

/// How many keys to ask for after a page of so many bytes. Pages grow slowly, since the next keys may be larger, and shrink
/// at once.
fn next_page(page: PageSize, bytes: i64) -> PageSize {
    let fitting = page.0.saturating_mul(PAGE_BYTES) / bytes.max(1);
    PageSize(fitting.min(page.0 * 2).clamp(1, LARGEST_PAGE))
}

fn size(kv: &KeyValue, prefix: &Prefix) -> i64 {
    len((kv.key.len() - prefix.as_bytes().len().min(kv.key.len())) + kv.value.len())
}

fn len(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// The smallest key greater than `key`.
pub(super) fn after(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}

/// etcd's `ErrGRPCCompacted` (`rpctypes/error.go`).
fn is_compacted(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains("has been compacted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_about_as_large_in_bytes() {
        assert_eq!(next_page(PageSize(64), 0).0, 128);
        assert_eq!(next_page(PageSize(64), PAGE_BYTES).0, 64);
        assert_eq!(next_page(PageSize(64), PAGE_BYTES * 32).0, 2);
        assert_eq!(next_page(PageSize(1), PAGE_BYTES * 32).0, 1);
        assert_eq!(next_page(PageSize(LARGEST_PAGE), 1).0, LARGEST_PAGE);
    }

    #[test]
    fn keys_count_without_the_prefix() {
        let prefix = Prefix::new("/a/").unwrap();
        let kv = KeyValue { key: "/a/key".into(), value: "value".into(), ..Default::default() };
        assert_eq!(size(&kv, &prefix), 8);
    }
}
