//! What fields can hold, and how they stand in a message.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use serde::{
    Serialize,
    de::{DeserializeOwned, IntoDeserializer, value::StrDeserializer},
};

use super::{
    Error, FieldName, Key, Message, Reader, WireType,
    wire::{write_delimited, write_key, write_nested, write_varint},
};

/// A single value: a number, a text, a message.
pub trait Value: Sized {
    /// How it is encoded.
    const WIRE_TYPE: WireType;

    /// The message's name, for errors, when the value is one.
    const MESSAGE: Option<&'static str> = None;

    /// What is meant when the field is not there.
    fn zero() -> Self;

    /// Writes the value without a key, but with its length where it has one.
    fn write(&self, out: &mut Vec<u8>);

    /// Writes what Go writes for its zero value.
    fn write_zero(out: &mut Vec<u8>) {
        match Self::WIRE_TYPE {
            WireType::Varint | WireType::Delimited => out.push(0),
            WireType::Fixed32 => out.extend_from_slice(&[0; 4]),
            WireType::Fixed64 => out.extend_from_slice(&[0; 8]),
        }
    }

    /// Reads the value. A scalar replaces what was there before, a message adds to it.
    ///
    /// # Errors
    /// When the bytes are no such value.
    fn merge(&mut self, reader: &mut Reader<'_>, field: FieldName) -> Result<(), Error>;
}

/// What the type of a message's field can be: a [`Value`], which is always written; an `Option` of one, which is a
/// pointer in Go and is written when it is there; a list, and a map.
pub trait Field: Sized {
    /// What is meant when the field is not there.
    fn absent() -> Self;

    /// Writes the field with its keys.
    fn write_field(&self, number: u32, out: &mut Vec<u8>);

    /// Reads the field, or one item of it, behind its key.
    ///
    /// # Errors
    /// When the bytes are no such field.
    fn merge_field(&mut self, key: Key, reader: &mut Reader<'_>, field: FieldName) -> Result<(), Error>;
}

/// Fields marked `always` in a [`protobuf!`](crate::protobuf!) table: optional in Rust, but no pointer in Go. Absent, they
/// are written as zero or empty, and zero is read as absent.
pub trait AlwaysField: Field {
    /// Writes the field with its key.
    fn write_always(&self, number: u32, out: &mut Vec<u8>);

    /// Reads the field behind its key.
    ///
    /// # Errors
    /// When the bytes are no such field.
    fn merge_always(&mut self, key: Key, reader: &mut Reader<'_>, field: FieldName) -> Result<(), Error>;
}

/// Fields marked `wrapped` in a [`protobuf!`](crate::protobuf!) table: a list whose type has a name of its own in Go, which
/// makes it a message with the field `items`.
pub trait WrappedField: Field {
    /// Writes the field with its keys.
    fn write_wrapped(&self, number: u32, out: &mut Vec<u8>);

    /// Reads the field behind its key.
    ///
    /// # Errors
    /// When the bytes are no such field.
    fn merge_wrapped(&mut self, key: Key, reader: &mut Reader<'_>, field: FieldName) -> Result<(), Error>;
}

// === impl Value ===

/// Integers and truth values. Go cuts what is too long for the type.
macro_rules! varints {
    ($($type:ty, $value:ident => $to:expr, $from:expr;)*) => {$(
        impl Value for $type {
            const WIRE_TYPE: WireType = WireType::Varint;

            fn zero() -> Self {
                Self::default()
            }

            fn write(&self, out: &mut Vec<u8>) {
                let $value = *self;
                write_varint(out, $to);
            }

            fn merge(&mut self, reader: &mut Reader<'_>, _field: FieldName) -> Result<(), Error> {
                let $value = reader.varint()?;
                *self = $from;
                Ok(())
            }
        }
    )*};
}

varints! {
    bool, value => u64::from(value), value != 0;
    i32, value => i64::from(value) as u64, value as i32;
    i64, value => value as u64, value as i64;
    u32, value => u64::from(value), value as u32;
    u64, value => value, value;
}

macro_rules! floats {
    ($($type:ty, $wire_type:ident, $read:ident;)*) => {$(
        impl Value for $type {
            const WIRE_TYPE: WireType = WireType::$wire_type;

            fn zero() -> Self {
                0.0
            }

            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn merge(&mut self, reader: &mut Reader<'_>, _field: FieldName) -> Result<(), Error> {
                *self = Self::from_le_bytes(reader.$read()?);
                Ok(())
            }
        }
    )*};
}

floats! {
    f32, Fixed32, fixed32;
    f64, Fixed64, fixed64;
}

impl Value for String {
    const WIRE_TYPE: WireType = WireType::Delimited;

    fn zero() -> Self {
        Self::new()
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_delimited(out, self.as_bytes());
    }

    fn merge(&mut self, reader: &mut Reader<'_>, field: FieldName) -> Result<(), Error> {
        *self = read_str(reader, field)?.to_owned();
        Ok(())
    }
}

impl Value for ByteString {
    const WIRE_TYPE: WireType = WireType::Delimited;

    fn zero() -> Self {
        Self(Vec::new())
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_delimited(out, &self.0);
    }

    fn merge(&mut self, reader: &mut Reader<'_>, _field: FieldName) -> Result<(), Error> {
        self.0 = reader.delimited()?.to_vec();
        Ok(())
    }
}

impl<M: Message> Value for M {
    const WIRE_TYPE: WireType = WireType::Delimited;
    const MESSAGE: Option<&'static str> = Some(M::NAME);

    fn zero() -> Self {
        M::empty()
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_nested(out, |out| self.write_fields(out));
    }

    fn write_zero(out: &mut Vec<u8>) {
        M::empty().write(out);
    }

    fn merge(&mut self, reader: &mut Reader<'_>, _field: FieldName) -> Result<(), Error> {
        self.merge_fields(&mut reader.nested()?)
    }
}

// === impl Field ===

impl<T: Value> Field for T {
    fn absent() -> Self {
        T::zero()
    }

    fn write_field(&self, number: u32, out: &mut Vec<u8>) {
        write_key(out, number, T::WIRE_TYPE);
        self.write(out);
    }

    fn merge_field(&mut self, key: Key, reader: &mut Reader<'_>, field: FieldName) -> Result<(), Error> {
        let field = field.of(T::MESSAGE);
        key.expect(T::WIRE_TYPE, field)?;
        self.merge(reader, field)
    }
}

impl<T: Value> Field for Option<T> {
    fn absent() -> Self {
        None
    }

    fn write_field(&self, number: u32, out: &mut Vec<u8>) {
        if let Some(value) = self {
            value.write_field(number, out);
        }
    }

    fn merge_field(&mut self, key: Key, reader: &mut Reader<'_>, field: FieldName) -> Result<(), Error> {
        self.get_or_insert_with(T::zero).merge_field(key, reader, field)
    }
}

impl<T: Value> Field for Vec<T> {
    fn absent() -> Self {
        Self::new()
    }

    fn write_field(&self, number: u32, out: &mut Vec<u8>) {
        for item in self {
            item.write_field(number, out);
        }
    }

    fn merge_field(&mut self, key: Key, reader: &mut Reader<'_>, field: FieldName) -> Result<(), Error> {
        // Numbers may be packed into one field, whichever way they are written.
        if T::WIRE_TYPE != WireType::Delimited && key.is(WireType::Delimited) {
            let mut packed = reader.packed()?;
            while !packed.is_empty() {
                let mut item = T::zero();
                item.merge(&mut packed, field)?;
                self.push(item);
            }
            return Ok(());
        }
        let mut item = T::zero();
        item.merge_field(key, reader, field)?;
        self.push(item);
        Ok(())
    }
}

impl<K: Value + Ord, V: Value> Field for BTreeMap<K, V> {
    fn absent() -> Self {
        Self::new()
    }

    fn write_field(&self, number: u32, out: &mut Vec<u8>) {
        for (key, value) in self {
            write_key(out, number, WireType::Delimited);
            write_nested(out, |out| {
                key.write_field(1, out);
                value.write_field(2, out);
            });
        }
    }

    fn merge_field(&mut self, key: Key, reader: &mut Reader<'_>, field: FieldName) -> Result<(), Error> {
        key.expect(WireType::Delimited, field)?;
        let mut entry = reader.nested()?;
        let (mut name, mut value) = (K::zero(), V::zero());
        while let Some(key) = entry.entry_key()? {
            match key.number() {
                1 => name.merge_field(key, &mut entry, field)?,
                2 => value.merge_field(key, &mut entry, field)?,
                _ => entry.skip(key)?,
            }
        }
        self.insert(name, value);
        Ok(())
    }
}

/// Lists and maps of which absent and empty are the same.
macro_rules! optional_collections {
    ($([$($parameter:ident: $bound:path),*] $type:ty;)*) => {$(
        impl<$($parameter: $bound),*> Field for Option<$type>
        where
            $type: Field,
        {
            fn absent() -> Self {
                None
            }

            fn write_field(&self, number: u32, out: &mut Vec<u8>) {
                if let Some(collection) = self {
                    collection.write_field(number, out);
                }
            }

            fn merge_field(&mut self, key: Key, reader: &mut Reader<'_>, field: FieldName) -> Result<(), Error> {
                self.get_or_insert_with(<$type>::absent).merge_field(key, reader, field)
            }
        }
    )*};
}

optional_collections! {
    [T: Value] Vec<T>;
    [K: Value, V: Value] BTreeMap<K, V>;
}

// === impl AlwaysField ===

impl<T: Value> AlwaysField for Option<T> {
    fn write_always(&self, number: u32, out: &mut Vec<u8>) {
        match self {
            Some(value) => value.write_field(number, out),
            None => {
                write_key(out, number, T::WIRE_TYPE);
                T::write_zero(out);
            }
        }
    }

    fn merge_always(&mut self, key: Key, reader: &mut Reader<'_>, field: FieldName) -> Result<(), Error> {
        key.expect(T::WIRE_TYPE, field.of(T::MESSAGE))?;
        if reader.at_zero(T::WIRE_TYPE)? {
            // Nothing is added to a message, and anything else becomes zero.
            if T::MESSAGE.is_none() {
                *self = None;
            }
            return reader.skip(key);
        }
        self.merge_field(key, reader, field)
    }
}

// === impl WrappedField ===

impl<T: Value> WrappedField for Vec<T> {
    fn write_wrapped(&self, number: u32, out: &mut Vec<u8>) {
        write_key(out, number, WireType::Delimited);
        write_nested(out, |out| self.write_field(1, out));
    }

    fn merge_wrapped(&mut self, key: Key, reader: &mut Reader<'_>, field: FieldName) -> Result<(), Error> {
        key.expect(WireType::Delimited, field)?;
        let mut list = reader.nested()?;
        while let Some(key) = list.key("items")? {
            match key.number() {
                1 => self.merge_field(key, &mut list, FieldName::new("items"))?,
                _ => list.skip(key)?,
            }
        }
        Ok(())
    }
}

/// A text in the bytes at hand.
pub(super) fn read_str<'a>(reader: &mut Reader<'a>, field: FieldName) -> Result<&'a str, Error> {
    std::str::from_utf8(reader.delimited()?).map_err(|_| Error::InvalidUtf8(field))
}

/// Writes a type that is a text in JSON. For [`protobuf!`](crate::protobuf!).
#[doc(hidden)]
pub fn write_text<T: Serialize>(value: &T, out: &mut Vec<u8>) {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => write_delimited(out, text.as_bytes()),
        _ => write_delimited(out, b""),
    }
}

/// Reads a type that is a text in JSON. For [`protobuf!`](crate::protobuf!).
#[doc(hidden)]
pub fn read_text<T: DeserializeOwned>(reader: &mut Reader<'_>, field: FieldName) -> Result<T, Error> {
    let text: StrDeserializer<'_, serde_json::Error> = read_str(reader, field)?.into_deserializer();
    T::deserialize(text).map_err(|error| Error::Unsuitable { field, message: error.to_string() })
}
