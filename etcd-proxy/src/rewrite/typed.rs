//! Rewriting of requests by way of typed messages, and of answers by their [`Shape`].
//!
//! Decoding drops fields that are unknown here; in requests they are looked for first and refused.

use std::marker::PhantomData;

use bytes::{Bytes, BytesMut};
use prost::Message;
use proto::etcdserverpb::PutRequest;

use super::{Call, Interrupt, LongAnswer, Rewriter, Shape, View, wire};
use crate::{
    error::EtcdError,
    grpc::framing,
    limits::Amount,
    unknown::{Bounds, MessageId, Refusal, Schema, SchemaError},
};

/// Levels of messages below a request: 128 Txns nest by way of as many operations, and their leaves have one level more.
pub(super) const MAX_DEPTH: usize = 2 * 128 + 2;
/// Messages in a request, on all levels, for each operation that a Txn may have on one: five are a comparison and an operation in
/// either branch. etcd has no such bound, since it counts when all is decoded.
const MESSAGES_PER_OP: usize = 64;
/// Of a message of a stream, in which few messages are.
const STREAMED: Bounds = Bounds { depth: MAX_DEPTH, messages: 1000 };

/// How the messages of one RPC are checked and changed.
pub trait Rpc: Send + Sync + 'static {
    /// Full name of the request message.
    const REQUEST: &'static str;
    /// The request.
    type Request: Message + Default;
    /// The response, or one message of a stream of responses.
    type Response: Message + Default;

    /// Checks a request as etcd does before it executes it.
    ///
    /// # Errors
    /// What etcd answers.
    fn check(_view: &View<'_>, _request: &Self::Request) -> Result<(), EtcdError> {
        Ok(())
    }

    /// Whether requests are messages of a stream.
    const STREAMED: bool = false;

    /// Changes a tenant's request into the upstream's.
    ///
    /// # Errors
    /// Whatever keeps it from being passed on.
    fn request(view: &View<'_>, request: &mut Self::Request) -> Result<(), Interrupt>;

    /// What is rewritten in a response.
    const ANSWER: Shape;

    /// Whether a request can change something.
    const WRITES: bool = false;

    /// Whether a request can put keys.
    const PUTS: bool = false;

    /// The most that a request can add to what is stored, if a Put that it holds adds what `added` says.
    fn adds(_request: &Self::Request, _added: &mut dyn FnMut(&PutRequest) -> Amount) -> Amount {
        Amount::NOTHING
    }

    /// Whether the request put a key, by its encoded answer.
    ///
    /// # Errors
    /// When that cannot be decoded.
    fn has_put(_answer: &[u8]) -> Result<bool, Interrupt> {
        Ok(false)
    }
}

/// The [`Rewriter`] of an [`Rpc`].
#[derive(Debug)]
pub struct Typed<R> {
    schema: &'static Schema,
    request: MessageId,
    rpc: PhantomData<fn() -> R>,
}

// === impl Typed ===

impl<R: Rpc> Typed<R> {
    /// The rewriter of `R`, whose requests are looked through by `schema`.
    ///
    /// # Errors
    /// When the schema lacks the request.
    pub fn new(schema: &'static Schema) -> Result<Self, SchemaError> {
        Ok(Self { schema, request: schema.message(R::REQUEST)?, rpc: PhantomData })
    }
}

impl<R: Rpc> Rewriter for Typed<R> {
    fn request(&self, view: &View<'_>, message: &Bytes, out: &mut BytesMut) -> Result<(), Interrupt> {
        let mut request: R::Request = if R::STREAMED {
            decode_streamed(self.schema, self.request, message)?
        } else {
            let bounds = Bounds { depth: MAX_DEPTH, messages: view.max_txn_ops.saturating_mul(MESSAGES_PER_OP) };
            decode_request(self.schema, self.request, message, bounds)?
        };
        R::check(view, &request)?;
        R::request(view, &mut request)?;
        encode(&request, out)
    }

    fn response(&self, view: &View<'_>, message: &Bytes, out: &mut BytesMut) -> Result<(), Interrupt> {
        R::ANSWER.rewrite(view, message, out)
    }
}

impl<R: Rpc> Call for Typed<R> {
    fn long_response(&self, view: &View<'_>, message: &Bytes) -> Result<LongAnswer, Interrupt> {
        LongAnswer::new(view, R::ANSWER, message)
    }

    fn writes(&self) -> bool {
        R::WRITES
    }

    fn adds(&self, message: &Bytes, added: &mut dyn FnMut(&PutRequest) -> Amount) -> Amount {
        match R::PUTS {
            true => R::Request::decode(message.clone()).map_or(Amount::NOTHING, |request| R::adds(&request, added)),
            false => Amount::NOTHING,
        }
    }

    fn written(&self, message: &Bytes) -> Option<i64> {
        // ResponseHeader
        const HEADER: u64 = 1;
        const REVISION: u64 = 3;
        if !R::PUTS || !R::has_put(message).ok()? {
            return None;
        }
        let header = wire::bytes(message, HEADER).ok()??;
        Some(wire::number(header, REVISION).ok()?.cast_signed())
    }
}

/// The message of a unary request.
fn decode_request<M: Message + Default>(
    schema: &Schema,
    id: MessageId,
    message: &Bytes,
    bounds: Bounds,
) -> Result<M, Interrupt> {
    decode(schema, id, message, bounds).map_err(|refusal| match refusal {
        // Only Txns nest, and only they hold many messages. Every level below the first takes at least one operation, of which
        // there are too few.
        Refusal::TooDeep | Refusal::TooMany => EtcdError::TooManyOps.into(),
        refusal => Interrupt::Refused(refusal.in_unary()),
    })
}

/// A message of a stream, or of a request whose answer is one.
pub(super) fn decode_streamed<M: Message + Default>(
    schema: &Schema,
    id: MessageId,
    message: &Bytes,
) -> Result<M, Interrupt> {
    decode(schema, id, message, STREAMED).map_err(|refusal| Interrupt::Refused(refusal.in_stream()))
}

/// Looks for unknown fields, then decodes.
fn decode<M: Message + Default>(schema: &Schema, id: MessageId, message: &Bytes, bounds: Bounds) -> Result<M, Refusal> {
    schema.scan(id, message, bounds)?;
    // What the scan has passed fails here for invalid UTF-8 only.
    M::decode(message.clone()).map_err(|_| Refusal::Malformed)
}

/// Appends `message` as one gRPC frame.
pub(super) fn encode<M: Message>(message: &M, out: &mut BytesMut) -> Result<(), Interrupt> {
    framing::put_message(message, out).map_err(Interrupt::Refused)
}
