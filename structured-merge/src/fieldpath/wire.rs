//! `fieldsV1`: sets as JSON (`fieldpath/serialize.go`, `fieldpath/serialize-pe.go`).
//!
//! An object whose names are elements, `f:<field>`, `k:<key fields as JSON>`, `v:<value as JSON>`, `i:<place>`, and whose
//! values are the sets below them. `"."` says that the element itself is in the set too, and `{}` that nothing else is.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor},
    ser::SerializeMap,
};

use super::{Entry, PathElement, Set};
use crate::{
    MAX_DEPTH,
    value::{
        Map, Value,
        json::{self, Encoder, Html},
    },
};

/// Why a text is no set, or no element.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// No prefix.
    #[error("key must be 2 characters long:")]
    Short,
    /// A prefix without its colon.
    #[error("missing colon: {0}")]
    Colon(String),
    /// A prefix that a later version may know.
    #[error("unknown path element type")]
    Unknown,
    /// A place that is no number.
    #[error("parsing {0:?}: invalid index")]
    Index(String),
    /// What should be JSON.
    #[error("{0}")]
    Json(String),
}

// === impl PathElement ===

impl FromStr for PathElement {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (Some(kind), Some(colon)) = (text.as_bytes().first(), text.as_bytes().get(1)) else {
            return Err(ParseError::Short);
        };
        if *colon != b':' {
            return Err(ParseError::Colon(text.to_owned()));
        }
        let rest = text.get(2..).unwrap_or_default();
        let malformed = |error: serde_json::Error| ParseError::Json(error.to_string());
        match kind {
            b'f' => Ok(Self::field(rest)),
            b'v' => Ok(Self::Value(floats(serde_json::from_str(rest).map_err(malformed)?))),
            b'k' => {
                let Fields(fields) = serde_json::from_str(rest).map_err(malformed)?;
                Ok(Self::key(fields.into_iter().map(|(name, value)| (name, floats(value)))))
            }
            b'i' => rest.parse().map(Self::Index).map_err(|_| ParseError::Index(rest.to_owned())),
            _ => Err(ParseError::Unknown),
        }
    }
}

/// Numbers within elements are read as floats, as json-iterator reads them.
fn floats(value: Value) -> Value {
    match value {
        #[expect(clippy::cast_precision_loss, reason = "as Go reads them")]
        Value::Int(value) => Value::Float(value as f64),
        Value::List(items) => Value::list(items.iter().cloned().map(floats)),
        Value::Map(map) => {
            map.entries().iter().map(|(name, value)| (name.clone(), floats(value.clone()))).collect::<Map>().into()
        }
        other => other,
    }
}

impl PathElement {
    /// The element as a name in `fieldsV1`.
    pub fn to_wire(&self) -> String {
        let mut out = String::new();
        match self {
            Self::Field(name) => {
                out.push_str("f:");
                out.push_str(name);
            }
            Self::Key(fields) => {
                out.push_str("k:{");
                for (i, (name, value)) in fields.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    json::string(name, Encoder::Iterator, Html::Plain, &mut out);
                    out.push(':');
                    json::write(value, Encoder::Iterator, &mut out);
                }
                out.push('}');
            }
            Self::Value(value) => {
                out.push_str("v:");
                json::write(value, Encoder::Iterator, &mut out);
            }
            Self::Index(at) => {
                out.push_str("i:");
                out.push_str(&at.to_string());
            }
        }
        out
    }
}

// === impl Set ===

impl Set {
    /// Reads `fieldsV1`.
    ///
    /// # Errors
    /// When it is no JSON object of elements. Elements of unknown kinds are passed over.
    pub fn from_json(text: &str) -> Result<Self, ParseError> {
        serde_json::from_str(text).map_err(|error| ParseError::Json(error.to_string()))
    }

    /// Writes `fieldsV1`, byte by byte as Go writes it.
    pub fn to_json(&self) -> String {
        let mut out = String::from("{");
        self.write(false, &mut out);
        out.push('}');
        out
    }

    fn write(&self, member: bool, out: &mut String) {
        let mut more = false;
        // Only an element that has more below it needs to be named itself.
        if member && !self.is_empty() {
            out.push_str("\".\":{}");
            more = true;
        }
        for entry in self.entries() {
            if more {
                out.push(',');
            }
            more = true;
            json::string(&entry.element.to_wire(), Encoder::Iterator, Html::Plain, out);
            out.push_str(":{");
            entry.children.write(entry.member, out);
            out.push('}');
        }
    }

    /// Reads `fieldsV1` of an object that was read already.
    ///
    /// # Errors
    /// When it is no object of elements.
    pub fn from_value(value: &Value) -> Result<Self, ParseError> {
        read(value, 0).map(|(set, _)| set)
    }

    /// `fieldsV1` as a value. Its names are sorted as texts: the order of [`Set::to_json`] is lost.
    pub fn to_value(&self) -> Value {
        value(self, false)
    }
}

fn value(set: &Set, member: bool) -> Value {
    let empty = || Value::from(Map::new());
    let dot = (member && !set.is_empty()).then(|| (Arc::from("."), empty()));
    let below =
        set.entries().iter().map(|entry| (Arc::from(entry.element.to_wire()), value(&entry.children, entry.member)));
    dot.into_iter().chain(below).collect::<Map>().into()
}

/// The set, and whether the element that leads here is a member itself.
fn read(value: &Value, depth: usize) -> Result<(Set, bool), ParseError> {
    if depth > MAX_DEPTH {
        return Err(ParseError::Json(crate::value::TooDeep.to_string()));
    }
    let entries = match value {
        Value::Null => &[],
        Value::Map(map) => map.entries(),
        other => return Err(ParseError::Json(format!("expected an object, found {}", other.kind()))),
    };
    let (mut member, mut found) = (false, Vec::new());
    for (name, below) in entries {
        if &**name == "." {
            member = true;
            continue;
        }
        match name.parse() {
            Ok(element) => {
                let (children, member) = read(below, depth + 1)?;
                found.push(Entry { element, member, children });
            }
            Err(ParseError::Unknown) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(alone((Set::from_entries(found), member)))
}

/// An element with nothing below it is in the set, said or not.
fn alone((children, member): (Set, bool)) -> (Set, bool) {
    let member = member || children.is_empty();
    (children, member)
}

/// Serialised in the order of elements.
impl Serialize for Set {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Below { set: self, member: false }.serialize(serializer)
    }
}

struct Below<'a> {
    set: &'a Set,
    member: bool,
}

impl Serialize for Below<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_map(None)?;
        if self.member && !self.set.is_empty() {
            out.serialize_entry(".", &Below { set: &Set::new(), member: false })?;
        }
        for entry in self.set.entries() {
            out.serialize_entry(&entry.element.to_wire(), &Below { set: &entry.children, member: entry.member })?;
        }
        out.end()
    }
}

impl<'de> Deserialize<'de> for Set {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Read { depth: 0 }.deserialize(deserializer).map(|(set, _)| set)
    }
}

struct Read {
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Read {
    type Value = (Set, bool);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        if self.depth > MAX_DEPTH {
            return Err(D::Error::custom(crate::value::TooDeep));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Read {
    type Value = (Set, bool);

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object of path elements")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok((Set::new(), true))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let (mut member, mut found) = (false, Vec::new());
        while let Some(name) = entries.next_key::<String>()? {
            if name == "." {
                member = true;
                entries.next_value::<IgnoredAny>()?;
                continue;
            }
            match name.parse() {
                Ok(element) => {
                    let (children, member) = entries.next_value_seed(Read { depth: self.depth + 1 })?;
                    found.push(Entry { element, member, children });
                }
                Err(ParseError::Unknown) => {
                    entries.next_value::<IgnoredAny>()?;
                }
                Err(error) => {
                    return Err(A::Error::custom(format_args!("parsing key as path element: {error}")));
                }
            }
        }
        Ok(alone((Set::from_entries(found), member)))
    }
}

/// The fields of a key, with all that bear the same name.
struct Fields(Vec<(Arc<str>, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadFields)
    }
}

struct ReadFields;

impl<'de> Visitor<'de> for ReadFields {
    type Value = Fields;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object of key fields")
    }

    fn visit_unit<E>(self) -> Result<Fields, E> {
        Ok(Fields(Vec::new()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Fields, A::Error> {
        let mut fields = Vec::new();
        while let Some((name, value)) = entries.next_entry::<String, Value>()? {
            fields.push((name.into(), value));
        }
        Ok(Fields(fields))
    }
}
