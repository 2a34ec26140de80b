//! A RangeStream, part by part.
//!
//! etcd reads a part when the one before has been sent, all at the revision of the first, and ends the stream with an error when
//! that is compacted meanwhile (`server/etcdserver/v3_server.go`, `rangeStream`). To the shared etcd a tenant's compaction is
//! none, so the parts are held against the watermark here.

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use proto::etcdserverpb::RangeRequest;

use super::{
    Interrupt, RangeStream, Rewriter, Rpc, View,
    typed::{decode_streamed, encode},
    wire,
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
    fn read_at(&self, message: &[u8]) -> Result<Option<i64>, Interrupt> {
        // Of `RangeStreamResponse`, `RangeResponse` and `ResponseHeader`.
        const PART: u64 = 1;
        const HEADER: u64 = 1;
        const REVISION: u64 = 3;
        if !self.begun {
            return Ok(None);
        }
        if self.revision > 0 {
            return Ok(Some(self.revision));
        }
        let Some(part) = wire::bytes(message, PART)? else { return Ok(None) };
        let header = wire::bytes(part, HEADER)?;
        header.map(|header| Ok(wire::number(header, REVISION)?.cast_signed())).transpose()
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
        let mut progress = self.progress.lock();
        let read_at = progress.read_at(message)?;
        if read_at.zip(view.watermark).is_some_and(|(revision, watermark)| revision < watermark) {
            return Err(EtcdError::Compacted.into());
        }
        RangeStream::ANSWER.rewrite(view, message, out)?;
        progress.begun = true;
        Ok(())
    }
}
