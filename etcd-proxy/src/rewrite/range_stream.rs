//! A RangeStream, part by part.
//!
//! etcd reads a part when the one before has been sent, all at the revision of the first, and ends the stream with an error when
//! that is compacted meanwhile (`server/etcdserver/v3_server.go`, `rangeStream`). To the shared etcd a tenant's compaction is
//! none, so the parts are held against the watermark here.

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use proto::etcdserverpb::{RangeRequest, RangeResponse, RangeStreamResponse};

use super::{
    Interrupt, RangeStream, Rewriter, Rpc, View,
    typed::{decode_response, decode_streamed, encode},
};
use crate::{
    error::EtcdError,
    unknown::{MessageId, Schema, SchemaError},
};

/// The [`Rewriter`] of one RangeStream.
#[derive(Debug)]
pub struct RangeParts {
    schema: &'static Schema,
    request: MessageId,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// The revision that was asked for, 0 for the current one.
    revision: i64,
    /// Whether a part has been passed on.
    begun: bool,
}

// === impl RangeParts ===

impl RangeParts {
    /// The rewriter of a new stream.
    ///
    /// # Errors
    /// When the schema lacks the request.
    pub fn new(schema: &'static Schema) -> Result<Self, SchemaError> {
        Ok(Self { schema, request: schema.message(RangeStream::REQUEST)?, progress: Mutex::default() })
    }
}

impl Progress {
    /// The revision that a part after the first was read at, if it is known: of a stream at the then current revision only the
    /// last part tells.
    fn read_at(&self, part: &RangeResponse) -> Option<i64> {
        let told = part.header.as_ref().map(|header| header.revision);
        if self.revision > 0 { Some(self.revision) } else { told }.filter(|_| self.begun)
    }
}

impl Rewriter for RangeParts {
    fn request(&self, view: &View<'_>, message: &Bytes, out: &mut BytesMut) -> Result<(), Interrupt> {
        let mut request: RangeRequest = decode_streamed(self.schema, self.request, message)?;
        RangeStream::check(view, &request)?;
        self.progress.lock().revision = request.revision;
        RangeStream::request(view, &mut request)?;
        encode(&request, out)
    }

    fn response(&self, view: &View<'_>, message: &Bytes, out: &mut BytesMut) -> Result<(), Interrupt> {
        let mut response: RangeStreamResponse = decode_response(message)?;
        let mut progress = self.progress.lock();
        let read_at = response.range_response.as_ref().and_then(|part| progress.read_at(part));
        if read_at.zip(view.watermark).is_some_and(|(revision, watermark)| revision < watermark) {
            return Err(EtcdError::Compacted.into());
        }
        RangeStream::response(view, &mut response)?;
        encode(&response, out)?;
        progress.begun = true;
        Ok(())
    }
}
