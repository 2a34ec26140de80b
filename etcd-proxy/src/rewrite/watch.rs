//! The Watch service, one stream at a time.
//!
//! A client's stream is one upstream stream, so ids, order and progress are the upstream's. One thing has to be acted:
//! a watch below the tenant's watermark, of which the upstream knows nothing. It is created there with a start revision
//! that never comes, and cancelled towards the client with the watermark as compact revision. To the client the stream then
//! behaves as etcd's after such a cancel: the id stays taken until the client cancels it, and the stream answers no
//! progress request any more (`server/storage/mvcc/watchable_store.go`, `progressIfSync`: a watcher ahead of the store
//! is not in sync).

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use proto::etcdserverpb::{
    ResponseHeader, WatchCreateRequest, WatchRequest, WatchResponse, watch_request::RequestUnion,
};

use super::{
    Interrupt, Rewriter, View,
    typed::{decode_request, decode_response, encode},
};
use crate::{
    error::EtcdError,
    unknown::{MessageId, Schema, SchemaError},
};

/// A start revision that no store reaches.
const NEVER: i64 = i64::MAX;
/// Watches below the watermark whose creation the upstream has not confirmed yet.
const MAX_ACTED: usize = 4096;

/// The [`Rewriter`] of one watch stream.
#[derive(Debug)]
pub struct WatchStream {
    schema: &'static Schema,
    request: MessageId,
    creates: Mutex<Creates>,
}

/// etcd answers create requests in their order, which tells which answer belongs to which.
#[derive(Debug, Default)]
struct Creates {
    sent: u64,
    answered: u64,
    /// Which of the sent ones lie below the watermark, with the watermark.
    acted: VecDeque<(u64, i64)>,
}

// === impl WatchStream ===

impl WatchStream {
    /// The rewriter of a new stream.
    ///
    /// # Errors
    /// When the schema lacks the request.
    pub fn new(schema: &'static Schema) -> Result<Self, SchemaError> {
        let request = schema.message("etcdserverpb.WatchRequest")?;
        Ok(Self { schema, request, creates: Mutex::default() })
    }

    fn create(&self, view: &View<'_>, create: &mut WatchCreateRequest) -> Result<(), Interrupt> {
        // An empty key means the smallest key there is.
        let key: &[u8] = if create.key.is_empty() { b"\0" } else { &create.key };
        create.key = view.prefix.key(key);
        create.range_end = view.prefix.range_end(&create.range_end);
        let below = if create.start_revision > 0 {
            let watermark = view.watermark()?;
            (create.start_revision < watermark).then_some(watermark)
        } else {
            None
        };
        let mut creates = self.creates.lock();
        creates.sent += 1;
        if let Some(watermark) = below {
            if creates.acted.len() >= MAX_ACTED {
                return Err(EtcdError::TooManyRequests.into());
            }
            create.start_revision = NEVER;
            let number = creates.sent;
            creates.acted.push_back((number, watermark));
        }
        Ok(())
    }

    /// Notes an answer to a create request. Returns the watermark if the request lay below it.
    fn answered(&self) -> Option<i64> {
        let mut creates = self.creates.lock();
        creates.answered += 1;
        let answered = creates.answered;
        let (_, watermark) = creates.acted.pop_front_if(|(number, _)| *number == answered)?;
        Some(watermark)
    }
}

impl Rewriter for WatchStream {
    fn request(&self, view: &View<'_>, message: &Bytes, out: &mut BytesMut) -> Result<(), Interrupt> {
        let mut request: WatchRequest = decode_request(self.schema, self.request, message)?;
        if let Some(RequestUnion::CreateRequest(create)) = &mut request.request_union {
            self.create(view, create)?;
        }
        encode(&request, out)
    }

    fn response(&self, view: &View<'_>, message: &Bytes, out: &mut BytesMut) -> Result<(), Interrupt> {
        let mut response: WatchResponse = decode_response(message)?;
        for event in &mut response.events {
            event.kv.iter_mut().chain(&mut event.prev_kv).try_for_each(|kv| view.key_value(kv))?;
        }
        encode(&response, out)?;
        if response.created
            && let Some(watermark) = self.answered()
            // A refused create needs no cancel.
            && !response.canceled
        {
            encode(&compacted(response, watermark), out)?;
        }
        Ok(())
    }
}

/// The cancel that etcd sends for a watch below its last compaction: with `compact_revision`, without a reason, and with a
/// header that has no revision.
fn compacted(created: WatchResponse, watermark: i64) -> WatchResponse {
    WatchResponse {
        header: created.header.map(|header| ResponseHeader { revision: 0, ..header }),
        watch_id: created.watch_id,
        canceled: true,
        compact_revision: watermark,
        ..Default::default()
    }
}
