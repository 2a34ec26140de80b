//! The wire format: keys, varints, lengths, and what is skipped (gogo's generated `skipGenerated`).

use super::{Error, FieldName};

/// How deep messages may be nested, as protocol buffers have it elsewhere. Go has no bound here: its stacks grow.
pub const MAX_DEPTH: usize = 100;

/// How many bytes a varint has at most.
const MAX_VARINT: usize = 10;

/// How a field is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WireType {
    /// A number of variable length: integers, truth values, enumerations.
    Varint = 0,
    /// Eight bytes.
    Fixed64 = 1,
    /// A length and as many bytes: texts, bytes, messages, map entries.
    Delimited = 2,
    /// Four bytes.
    Fixed32 = 5,
}

/// The beginning of a field: its number, and how it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u64);

/// Reads messages from bytes. Copies nothing.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// How many messages are open.
    depth: usize,
}

// === impl Key ===

impl Key {
    const START_GROUP: u8 = 3;
    const END_GROUP: u8 = 4;

    /// The field's number. Go cuts it to 32 bits.
    pub fn number(self) -> i32 {
        (self.0 >> 3) as i32
    }

    /// The wire type, which may be one that there is not.
    pub fn wire_type(self) -> u8 {
        (self.0 & 7) as u8
    }

    /// Whether the field is encoded in this way.
    pub fn is(self, wire_type: WireType) -> bool {
        self.wire_type() == wire_type as u8
    }

    /// Refuses another encoding than this.
    ///
    /// # Errors
    /// Names the field.
    pub fn expect(self, wire_type: WireType, field: FieldName) -> Result<(), Error> {
        if self.is(wire_type) { Ok(()) } else { Err(Error::WrongWireType { wire_type: self.wire_type(), field }) }
    }
}

// === impl Reader ===

impl<'a> Reader<'a> {
    /// Reads from the beginning.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, depth: 0 }
    }

    /// Whether everything was read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// How many bytes are left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Whether the value at hand is zero, or empty.
    ///
    /// # Errors
    /// When it is cut off.
    pub(super) fn at_zero(&self, wire_type: WireType) -> Result<bool, Error> {
        let mut ahead = self.clone();
        Ok(match wire_type {
            WireType::Varint => ahead.varint()? == 0,
            WireType::Fixed64 => ahead.fixed64()? == [0; 8],
            WireType::Delimited => ahead.delimited()?.is_empty(),
            WireType::Fixed32 => ahead.fixed32()? == [0; 4],
        })
    }

    /// The key of the next field of this message, if there is one.
    ///
    /// # Errors
    /// When the key is cut off, ends a group, or has a number that is no field's.
    pub fn key(&mut self, message: &'static str) -> Result<Option<Key>, Error> {
        let Some(key) = self.entry_key()? else { return Ok(None) };
        if key.wire_type() == Key::END_GROUP {
            return Err(Error::EndOfNoGroup { message });
        }
        if key.number() <= 0 {
            return Err(Error::IllegalTag { message, number: key.number(), key: key.0 });
        }
        Ok(Some(key))
    }

    /// The next key, whatever its number is: in the entry of a map, Go does not mind.
    pub(super) fn entry_key(&mut self) -> Result<Option<Key>, Error> {
        if self.rest.is_empty() { Ok(None) } else { Ok(Some(Key(self.varint()?))) }
    }

    /// A number of variable length. Bits beyond the 64th are lost, as in Go.
    ///
    /// # Errors
    /// When it is cut off or longer than ten bytes.
    pub fn varint(&mut self) -> Result<u64, Error> {
        let mut value = 0;
        for position in 0..MAX_VARINT {
            let (&byte, rest) = self.rest.split_first().ok_or(Error::UnexpectedEof)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << (7 * position);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Error::IntegerOverflow)
    }

    /// Bytes that follow their length.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn delimited(&mut self) -> Result<&'a [u8], Error> {
        let length = self.varint()?;
        // Go's lengths are signed.
        if i64::try_from(length).is_err() {
            return Err(Error::NegativeLength);
        }
        self.take(usize::try_from(length).map_err(|_| Error::NegativeLength)?)
    }

    /// A message inside this one.
    ///
    /// # Errors
    /// When it is cut off or nested too deep.
    pub fn nested(&mut self) -> Result<Reader<'a>, Error> {
        let rest = self.delimited()?;
        if self.depth >= MAX_DEPTH {
            return Err(Error::TooDeep);
        }
        Ok(Reader { rest, depth: self.depth + 1 })
    }

    /// Bytes to be read with this reader's depth: a packed list.
    pub(super) fn packed(&mut self) -> Result<Reader<'a>, Error> {
        Ok(Reader { rest: self.delimited()?, depth: self.depth })
    }

    /// The next four bytes.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn fixed32(&mut self) -> Result<[u8; 4], Error> {
        self.fixed()
    }

    /// The next eight bytes.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn fixed64(&mut self) -> Result<[u8; 8], Error> {
        self.fixed()
    }

    /// Passes over the field whose key was just read, with everything in it when it is a group. Groups may be nested as
    /// deep as they like: they take no stack.
    ///
    /// # Errors
    /// When it is cut off or encoded in a way that there is not.
    pub fn skip(&mut self, key: Key) -> Result<(), Error> {
        let mut key = key;
        let mut groups = 0_usize;
        loop {
            match key.wire_type() {
                0 => drop(self.varint()?),
                1 => drop(self.fixed64()?),
                2 => drop(self.delimited()?),
                Key::START_GROUP => groups += 1,
                Key::END_GROUP => groups = groups.checked_sub(1).ok_or(Error::UnexpectedEndOfGroup)?,
                5 => drop(self.fixed32()?),
                other => return Err(Error::IllegalWireType(other)),
            }
            if groups == 0 {
                return Ok(());
            }
            key = self.entry_key()?.ok_or(Error::UnexpectedEof)?;
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Error::UnexpectedEof)?;
        self.rest = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Error::UnexpectedEof)?;
        self.rest = rest;
        Ok(*taken)
    }
}

/// Writes the beginning of a field.
pub fn write_key(out: &mut Vec<u8>, number: u32, wire_type: WireType) {
    write_varint(out, u64::from(number) << 3 | wire_type as u64);
}

/// Writes a number of variable length.
pub fn write_varint(out: &mut Vec<u8>, value: u64) {
    let (bytes, length) = varint(value);
    out.extend(bytes.into_iter().take(length));
}

/// Writes bytes with their length.
pub fn write_delimited(out: &mut Vec<u8>, bytes: &[u8]) {
    write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Lets `write` add what follows its own length.
pub fn write_nested(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    // Most messages are short: the length gets one byte, and more only when it turns out to want them.
    out.push(0);
    write(out);
    let (bytes, length) = varint((out.len() - start - 1) as u64);
    out.splice(start..=start, bytes.into_iter().take(length));
}

/// A varint and how many bytes of it count.
fn varint(mut value: u64) -> ([u8; MAX_VARINT], usize) {
    let mut bytes = [0; MAX_VARINT];
    let mut length = 0;
    for byte in &mut bytes {
        length += 1;
        *byte = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            break;
        }
        *byte |= 0x80;
    }
    (bytes, length)
}
