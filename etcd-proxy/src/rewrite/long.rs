//! Long answers to Range, in their encoded form: they are gone through twice, once for what they will be in the tenant's
//! view, and once piece by piece as the client takes them. Besides the answer as it came there is never more than a piece.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::encoding::{decode_varint, encode_varint, encoded_len_varint};
use tonic::Status;

use super::{Interrupt, View};

/// Bytes of a piece, about.
const PIECE: usize = 64 * 1024;
/// `RangeResponse.kvs`.
const KVS: u64 = 2;
/// `KeyValue.key`.
const KEY: u64 = 1;
/// `KeyValue.lease`.
const LEASE: u64 = 6;

/// The tenant's frame of an answer, piece by piece.
#[derive(Debug)]
pub struct LongRange {
    /// The upstream's answer.
    message: Bytes,
    /// How far it has been gone through.
    at: usize,
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

/// A field of a `KeyValue` in the tenant's view.
enum Mapped<'a> {
    Key(&'a [u8]),
    Lease(i64),
    Same(&'a [u8]),
}

// === impl LongRange ===

impl LongRange {
    /// Looks through an upstream's answer. Nothing of it gets out if it holds a key of somebody else.
    ///
    /// # Errors
    /// Whatever keeps the answer from being passed on.
    pub fn new(view: &View<'_>, message: &Bytes) -> Result<Self, Interrupt> {
        let (mut rest, mut length) = (&message[..], 0_usize);
        while let Some(field) = field(&mut rest)? {
            length += match key_value(&field) {
                Some(kv) => {
                    let inner = mapped_len(view, kv)?;
                    1 + encoded_len_varint(inner as u64) + inner
                }
                None => field.raw.len(),
            };
        }
        let announced = u32::try_from(length)
            .map_err(|_| Interrupt::Refused(Status::resource_exhausted("etcd-proxy: message longer than 4 GiB")))?;
        let mut ready = BytesMut::with_capacity(PIECE);
        ready.put_u8(0);
        ready.put_u32(announced);
        Ok(Self { message: message.clone(), at: 0, ready })
    }

    /// The next piece of the frame.
    ///
    /// # Errors
    /// As [`LongRange::new`], which has seen to it that there are none.
    pub fn next(&mut self, view: &View<'_>) -> Result<Option<Bytes>, Interrupt> {
        while self.ready.len() < PIECE {
            let mut rest = self.message.get(self.at..).unwrap_or_default();
            let before = rest.len();
            let Some(field) = field(&mut rest)? else { break };
            self.at += before - rest.len();
            match key_value(&field) {
                Some(kv) => {
                    self.ready.put_u8(TAG_KVS);
                    encode_varint(mapped_len(view, kv)? as u64, &mut self.ready);
                    each(view, kv, |mapped| mapped.encode(&mut self.ready))?;
                }
                None => self.ready.put_slice(field.raw),
            }
        }
        if self.ready.is_empty() {
            return Ok(None);
        }
        let ready = std::mem::replace(&mut self.ready, BytesMut::with_capacity(PIECE));
        Ok(Some(ready.freeze()))
    }
}

const TAG_KVS: u8 = (KVS as u8) << 3 | 2;
const TAG_KEY: u8 = (KEY as u8) << 3 | 2;
const TAG_LEASE: u8 = (LEASE as u8) << 3;

/// The contents of a field that is one of the answer's keys.
fn key_value<'a>(field: &Field<'a>) -> Option<&'a [u8]> {
    match (field.number, &field.value) {
        (KVS, Value::Bytes(kv)) => Some(kv),
        _ => None,
    }
}

fn mapped_len(view: &View<'_>, kv: &[u8]) -> Result<usize, Interrupt> {
    let mut length = 0;
    each(view, kv, |mapped| length += mapped.len())?;
    Ok(length)
}

/// Calls `with` each field of a `KeyValue` as the tenant sees it.
fn each(view: &View<'_>, mut kv: &[u8], mut with: impl FnMut(Mapped<'_>)) -> Result<(), Interrupt> {
    let mut keyed = false;
    while let Some(field) = field(&mut kv)? {
        with(match (field.number, field.value) {
            (KEY, Value::Bytes(key)) => {
                keyed = true;
                let stripped = key.strip_prefix(view.prefix.as_bytes()).filter(|key| !key.is_empty());
                Mapped::Key(stripped.ok_or(Interrupt::Foreign)?)
            }
            (LEASE, Value::Varint(lease)) => Mapped::Lease(view.lease_to_tenant(lease.cast_signed())?),
            (KEY | LEASE, _) => return Err(malformed()),
            _ => Mapped::Same(field.raw),
        });
    }
    // An empty key is nobody's of this tenant.
    if keyed { Ok(()) } else { Err(Interrupt::Foreign) }
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
    /// Its length when encoded. A 0 is left out, as in every message of this syntax.
    fn len(&self) -> usize {
        match self {
            Self::Lease(0) => 0,
            Self::Key(key) => 1 + encoded_len_varint(key.len() as u64) + key.len(),
            Self::Lease(lease) => 1 + encoded_len_varint(lease.cast_unsigned()),
            Self::Same(raw) => raw.len(),
        }
    }

    fn encode(self, out: &mut BytesMut) {
        match self {
            Self::Lease(0) => {}
            Self::Key(key) => {
                out.put_u8(TAG_KEY);
                encode_varint(key.len() as u64, out);
                out.put_slice(key);
            }
            Self::Lease(lease) => {
                out.put_u8(TAG_LEASE);
                encode_varint(lease.cast_unsigned(), out);
            }
            Self::Same(raw) => out.put_slice(raw),
        }
    }
}
