//! Long answers in their encoded form: they are gone through twice, once for what they will be in the tenant's view, and once
//! piece by piece as the client takes them. Besides the answer as it came there is never more than a piece.
//!
//! What is unknown here is left out, as it is from short answers, which are decoded: it might hold a key.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::encoding::{decode_varint, encode_varint, encoded_len_varint};
use tonic::Status;

use super::{Interrupt, View};

/// Bytes of a piece, about.
const PIECE: usize = 64 * 1024;
/// Levels of messages: 128 Txns nest by way of as many operations, with what stands in the last.
const MAX_DEPTH: usize = 2 * 128 + 4;

/// A message that is, or stands in, an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `ResponseHeader`.
    Header,
    /// `RangeResponse`.
    Range,
    /// `PutResponse`.
    Put,
    /// `DeleteRangeResponse`.
    DeleteRange,
    /// `TxnResponse`.
    Txn,
    /// `ResponseOp`.
    Op,
    /// `LeaseTimeToLiveResponse`.
    TimeToLive,
    /// `KeyValue`.
    KeyValue,
}

/// The tenant's frame of an answer, piece by piece.
#[derive(Debug)]
pub struct LongAnswer {
    /// The upstream's answer.
    message: Bytes,
    /// The meta key of the lease that it is about.
    mark: Option<Bytes>,
    /// How far it has been gone through.
    at: usize,
    /// The messages that it stands in there, with their ends.
    open: Vec<(Shape, usize)>,
    /// What the messages in it will be long, other than keys with their values, as they come.
    lengths: std::vec::IntoIter<usize>,
    /// What is ready of the frame.
    ready: BytesMut,
}

/// A field of an encoded message.
struct Field<'a> {
    number: u64,
    /// Tag and all.
    raw: &'a [u8],
    value: Value<'a>,
}

enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed,
}

/// A field in the tenant's view.
enum Mapped<'a> {
    Nothing,
    Same(&'a [u8]),
    Number(u64, u64),
    Bytes(u64, &'a [u8]),
    Message(u64, Shape, &'a [u8]),
}

// === impl Shape ===

impl Shape {
    /// A field of such a message as the tenant sees it.
    fn map<'a>(self, view: &View<'_>, mark: Option<&Bytes>, field: &Field<'a>) -> Result<Mapped<'a>, Interrupt> {
        let number = field.number;
        Ok(match (self, number, &field.value) {
            (Self::Range, 2, Value::Bytes(kv))
            | (Self::Put, 2, Value::Bytes(kv))
            | (Self::DeleteRange, 3, Value::Bytes(kv)) => Mapped::Message(number, Self::KeyValue, kv),
            (Self::Txn, 3, Value::Bytes(op)) => Mapped::Message(number, Self::Op, op),
            (Self::Op, 1, Value::Bytes(range)) => Mapped::Message(number, Self::Range, range),
            (Self::Op, 2, Value::Bytes(put)) => Mapped::Message(number, Self::Put, put),
            (Self::Op, 3, Value::Bytes(delete)) => Mapped::Message(number, Self::DeleteRange, delete),
            (Self::Op, 4, Value::Bytes(txn)) => Mapped::Message(number, Self::Txn, txn),
            (Self::KeyValue, 1, Value::Bytes(key)) => Mapped::Bytes(number, strip(view, key)?),
            (Self::KeyValue, 6, Value::Varint(lease)) => {
                Mapped::Number(number, view.lease_to_tenant(lease.cast_signed())?.cast_unsigned())
            }
            (Self::TimeToLive, 2, Value::Varint(id)) => {
                Mapped::Number(number, view.repeated_lease(id.cast_signed())?.cast_unsigned())
            }
            (Self::TimeToLive, 5, Value::Bytes(key)) if mark.is_some_and(|mark| mark == key) => Mapped::Nothing,
            (Self::TimeToLive, 5, Value::Bytes(key)) => Mapped::Bytes(number, strip(view, key)?),
            (Self::Range | Self::Put | Self::DeleteRange | Self::Txn | Self::TimeToLive, 1, Value::Bytes(header)) => {
                Mapped::Message(number, Self::Header, header)
            }
            // Values, and numbers that mean the same to everybody.
            (Self::KeyValue, 2..=4, Value::Varint(_))
            | (Self::Header, 1..=4, Value::Varint(_))
            | (Self::KeyValue, 5, Value::Bytes(_))
            | (Self::Range | Self::TimeToLive, 3 | 4, Value::Varint(_))
            | (Self::DeleteRange | Self::Txn, 2, Value::Varint(_)) => Mapped::Same(field.raw),
            _ if number <= self.last() => return Err(malformed()),
            _ => Mapped::Nothing,
        })
    }

    /// The number of its last field; all before are known, too.
    fn last(self) -> u64 {
        match self {
            Self::Put => 2,
            Self::DeleteRange | Self::Txn => 3,
            Self::Header | Self::Range | Self::Op => 4,
            Self::TimeToLive => 5,
            Self::KeyValue => 6,
        }
    }
}

/// Looks through a message. Returns how long it will be, and adds that to `lengths` for those in it.
fn measure(
    view: &View<'_>,
    mark: Option<&Bytes>,
    (shape, mut message): (Shape, &[u8]),
    lengths: &mut Vec<usize>,
    depth: usize,
) -> Result<usize, Interrupt> {
    if depth == MAX_DEPTH {
        return Err(malformed());
    }
    let place = lengths.len();
    if shape != Shape::KeyValue {
        lengths.push(0);
    }
    let (mut length, mut keyed) = (0, shape != Shape::KeyValue);
    while let Some(field) = field(&mut message)? {
        keyed |= field.number == 1;
        length += match shape.map(view, mark, &field)? {
            Mapped::Message(_, shape, message) => {
                let inner = measure(view, mark, (shape, message), lengths, depth + 1)?;
                1 + encoded_len_varint(inner as u64) + inner
            }
            mapped => mapped.len(),
        };
    }
    // An empty key is nobody's of this tenant.
    if !keyed {
        return Err(Interrupt::Foreign);
    }
    if let Some(place) = lengths.get_mut(place).filter(|_| shape != Shape::KeyValue) {
        *place = length;
    }
    Ok(length)
}

fn strip<'a>(view: &View<'_>, key: &'a [u8]) -> Result<&'a [u8], Interrupt> {
    key.strip_prefix(view.prefix.as_bytes()).filter(|key| !key.is_empty()).ok_or(Interrupt::Foreign)
}

// === impl LongAnswer ===

impl LongAnswer {
    /// Looks through an upstream's answer of this shape. Nothing of it gets out if it holds a key of somebody else.
    ///
    /// # Errors
    /// Whatever keeps the answer from being passed on.
    pub fn new(view: &View<'_>, shape: Shape, message: &Bytes) -> Result<Self, Interrupt> {
        let mark = match shape {
            // It bears the upstream's id.
            Shape::TimeToLive => Some(view.meta.lease_mark(lease_id(message)?)),
            _ => None,
        };
        let mut lengths = Vec::new();
        let length = measure(view, mark.as_ref(), (shape, message), &mut lengths, 0)?;
        let announced = u32::try_from(length)
            .map_err(|_| Interrupt::Refused(Status::resource_exhausted("etcd-proxy: message longer than 4 GiB")))?;
        let mut ready = BytesMut::with_capacity(PIECE);
        ready.put_u8(0);
        ready.put_u32(announced);
        let mut lengths = lengths.into_iter();
        // That of the whole.
        lengths.next();
        Ok(Self { message: message.clone(), mark, at: 0, open: vec![(shape, message.len())], lengths, ready })
    }

    /// The next piece of the frame.
    ///
    /// # Errors
    /// As [`LongAnswer::new`], which has seen to it that there are none.
    pub fn next(&mut self, view: &View<'_>) -> Result<Option<Bytes>, Interrupt> {
        while self.ready.len() < PIECE
            && let Some(&(shape, end)) = self.open.last()
        {
            let mut rest = self.message.get(self.at..end).unwrap_or_default();
            let Some(field) = field(&mut rest)? else {
                self.open.pop();
                continue;
            };
            self.at += field.raw.len();
            match shape.map(view, self.mark.as_ref(), &field)? {
                Mapped::Message(number, Shape::KeyValue, mut kv) => {
                    let length = measure(view, None, (Shape::KeyValue, kv), &mut Vec::new(), 0)?;
                    begin(number, length, &mut self.ready);
                    while let Some(field) = self::field(&mut kv)? {
                        Shape::KeyValue.map(view, None, &field)?.encode(&mut self.ready);
                    }
                }
                Mapped::Message(number, shape, message) => {
                    begin(number, self.lengths.next().unwrap_or_default(), &mut self.ready);
                    self.open.push((shape, self.at));
                    self.at -= message.len();
                }
                mapped => mapped.encode(&mut self.ready),
            }
        }
        if self.ready.is_empty() {
            return Ok(None);
        }
        let ready = std::mem::replace(&mut self.ready, BytesMut::with_capacity(PIECE));
        Ok(Some(ready.freeze()))
    }
}

/// The id in a `LeaseTimeToLiveResponse`.
fn lease_id(mut message: &[u8]) -> Result<i64, Interrupt> {
    let mut id = 0;
    while let Some(field) = field(&mut message)? {
        if let (2, Value::Varint(value)) = (field.number, field.value) {
            id = value.cast_signed();
        }
    }
    Ok(id)
}

/// Puts the tag and the length of a field of bytes. No field that is known has a number that takes more than a byte.
fn begin(number: u64, length: usize, out: &mut BytesMut) {
    encode_varint(number << 3 | 2, out);
    encode_varint(length as u64, out);
}

/// Takes the next field off an encoded message.
fn field<'a>(rest: &mut &'a [u8]) -> Result<Option<Field<'a>>, Interrupt> {
    let whole = *rest;
    if whole.is_empty() {
        return Ok(None);
    }
    let tag = varint(rest)?;
    let value = match tag & 7 {
        0 => Value::Varint(varint(rest)?),
        1 => skip(rest, 8).map(|_| Value::Fixed)?,
        2 => {
            let length = usize::try_from(varint(rest)?).map_err(|_| malformed())?;
            Value::Bytes(skip(rest, length)?)
        }
        5 => skip(rest, 4).map(|_| Value::Fixed)?,
        _ => return Err(malformed()),
    };
    let raw = whole.get(..whole.len() - rest.len()).unwrap_or_default();
    Ok(Some(Field { number: tag >> 3, raw, value }))
}

fn varint(rest: &mut &[u8]) -> Result<u64, Interrupt> {
    decode_varint(rest).map_err(|_| malformed())
}

fn skip<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Interrupt> {
    let (skipped, after) = rest.split_at_checked(length).ok_or_else(malformed)?;
    *rest = after;
    Ok(skipped)
}

fn malformed() -> Interrupt {
    Interrupt::Refused(Status::internal("etcd-proxy: the upstream's answer cannot be decoded"))
}

// === impl Mapped ===

impl Mapped<'_> {
    /// Its length when encoded, of a message that of its tag. A 0 is left out, as in every message of this syntax.
    fn len(&self) -> usize {
        match self {
            Self::Nothing | Self::Number(_, 0) => 0,
            Self::Same(raw) => raw.len(),
            Self::Number(_, number) => 1 + encoded_len_varint(*number),
            Self::Bytes(_, bytes) | Self::Message(_, _, bytes) => {
                1 + encoded_len_varint(bytes.len() as u64) + bytes.len()
            }
        }
    }

    fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Nothing | Self::Number(_, 0) => {}
            Self::Same(raw) => out.put_slice(raw),
            Self::Number(number, value) => {
                encode_varint(number << 3, out);
                encode_varint(*value, out);
            }
            Self::Bytes(number, bytes) | Self::Message(number, _, bytes) => {
                begin(*number, bytes.len(), out);
                out.put_slice(bytes);
            }
        }
    }
}
