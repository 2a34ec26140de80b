//! The encoded form of the upstream's answers, field by field.

use bytes::{BufMut as _, BytesMut};
use prost::encoding::{decode_varint, encode_varint, encoded_len_varint};
use tonic::Status;

use super::Interrupt;

/// A field of an encoded message.
pub(super) struct Field<'a> {
    pub(super) number: u64,
    /// Tag and all.
    pub(super) raw: &'a [u8],
    pub(super) value: Value<'a>,
}

/// What a field holds. Groups are in no message of etcd's.
pub(super) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed,
}

/// Takes the next field off an encoded message.
#[inline(always)]
pub(super) fn next<'a>(rest: &mut &'a [u8]) -> Result<Option<Field<'a>>, Interrupt> {
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

/// The number in a field of a message; 0 if there is none.
pub(super) fn number(mut message: &[u8], number: u64) -> Result<u64, Interrupt> {
    let mut found = 0;
    while let Some(field) = next(&mut message)? {
        if let Value::Varint(value) = field.value
            && field.number == number
        {
            found = value;
        }
    }
    Ok(found)
}

/// The bytes, or the message, in a field of a message, if it is there.
pub(super) fn bytes(mut message: &[u8], number: u64) -> Result<Option<&[u8]>, Interrupt> {
    let mut found = None;
    while let Some(field) = next(&mut message)? {
        if let Value::Bytes(bytes) = field.value
            && field.number == number
        {
            found = Some(bytes);
        }
    }
    Ok(found)
}

/// Puts the tag and the length of a field of bytes, whose number takes a byte, as those do that are rewritten.
pub(super) fn begin(number: u64, length: usize, out: &mut BytesMut) {
    out.put_u8((number << 3 | 2) as u8);
    encode_varint(length as u64, out);
}

/// How long a field of so many bytes is.
pub(super) fn length(bytes: usize) -> usize {
    1 + encoded_len_varint(bytes as u64) + bytes
}

/// Puts a field that holds a number; of the field's own number, see [`begin`]. A 0 is left out, as in every message of this syntax.
pub(super) fn put_number(number: u64, value: u64, out: &mut BytesMut) {
    if value != 0 {
        out.put_u8((number << 3) as u8);
        encode_varint(value, out);
    }
}

/// That an answer cannot be passed on.
pub(super) fn malformed() -> Interrupt {
    Interrupt::Refused(undecodable())
}

/// What a client gets in the place of an answer that is none.
pub(super) fn undecodable() -> Status {
    Status::internal("etcd-proxy: the upstream's answer cannot be decoded")
}

#[inline(always)]
fn varint(rest: &mut &[u8]) -> Result<u64, Interrupt> {
    // Most tags and lengths are of one byte.
    match rest.split_first() {
        Some((byte, after)) if *byte < 0x80 => {
            *rest = after;
            Ok((*byte).into())
        }
        _ => decode_varint(rest).map_err(|_| malformed()),
    }
}

#[inline(always)]
fn skip<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Interrupt> {
    let (skipped, after) = rest.split_at_checked(length).ok_or_else(malformed)?;
    *rest = after;
    Ok(skipped)
}
