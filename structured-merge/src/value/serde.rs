//! To and from serde, and `serde_json`'s values.

use std::{fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor},
    ser::{SerializeMap, SerializeSeq},
};

use super::{Map, Value};
use crate::MAX_DEPTH;

/// Up to here every whole float is the only one that prints as that integer.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// A value from outside is nested deeper than [`MAX_DEPTH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nested deeper than {MAX_DEPTH} levels")]
pub struct TooDeep;

impl Serialize for Value {
    /// A whole float is written as an integer, as Go writes it.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Int(value) => serializer.serialize_i64(*value),
            Value::Float(value) => match whole(*value) {
                Some(value) => serializer.serialize_i64(value),
                None => serializer.serialize_f64(*value),
            },
            Value::String(value) => serializer.serialize_str(value),
            Value::List(items) => {
                let mut out = serializer.serialize_seq(Some(items.len()))?;
                items.iter().try_for_each(|item| out.serialize_element(item))?;
                out.end()
            }
            Value::Map(map) => {
                let mut out = serializer.serialize_map(Some(map.len()))?;
                map.entries().iter().try_for_each(|(name, value)| out.serialize_entry(&**name, value))?;
                out.end()
            }
        }
    }
}

fn whole(value: f64) -> Option<i64> {
    let whole = value.fract() == 0.0 && value.abs() <= MAX_EXACT && !(value == 0.0 && value.is_sign_negative());
    #[expect(clippy::cast_possible_truncation, reason = "it is whole and small enough")]
    whole.then_some(value as i64)
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Read { depth: 0 }.deserialize(deserializer)
    }
}

/// Reads a value that stands at some depth.
struct Read {
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Read {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.depth > MAX_DEPTH {
            return Err(D::Error::custom(TooDeep));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Read {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(unsigned(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Read { depth: self.depth + 1 })? {
            list.push(item);
        }
        Ok(Value::List(Arc::new(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some(name) = entries.next_key::<String>()? {
            map.push((Arc::from(name), entries.next_value_seed(Read { depth: self.depth + 1 })?));
        }
        Ok(Map::from_iter(map).into())
    }
}

#[expect(clippy::cast_precision_loss, reason = "as Kubernetes reads what does not fit an int64")]
fn unsigned(value: u64) -> Value {
    i64::try_from(value).map_or(Value::Float(value as f64), Value::Int)
}

impl TryFrom<&serde_json::Value> for Value {
    type Error = TooDeep;

    fn try_from(value: &serde_json::Value) -> Result<Self, TooDeep> {
        from_json(value, 0)
    }
}

fn from_json(value: &serde_json::Value, depth: usize) -> Result<Value, TooDeep> {
    if depth > MAX_DEPTH {
        return Err(TooDeep);
    }
    Ok(match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(value) => Value::Bool(*value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(value), _, _) => Value::Int(value),
            (_, Some(value), _) => unsigned(value),
            (_, _, Some(value)) => Value::Float(value),
            _ => Value::Null,
        },
        serde_json::Value::String(text) => text.as_str().into(),
        serde_json::Value::Array(items) => {
            Value::List(Arc::new(items.iter().map(|item| from_json(item, depth + 1)).collect::<Result<_, _>>()?))
        }
        serde_json::Value::Object(entries) => entries
            .iter()
            .map(|(name, value)| Ok((Arc::from(name.as_str()), from_json(value, depth + 1)?)))
            .collect::<Result<Map, _>>()?
            .into(),
    })
}

impl From<&Value> for serde_json::Value {
    /// A whole float becomes an integer, one that is not finite becomes `null`: JSON knows no other.
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Int(value) => (*value).into(),
            Value::Float(value) => whole(*value).map_or_else(|| (*value).into(), Into::into),
            Value::String(text) => Self::String((**text).to_owned()),
            Value::List(items) => items.iter().map(Self::from).collect(),
            Value::Map(map) => {
                map.entries().iter().map(|(name, value)| ((**name).to_owned(), Self::from(value))).collect()
            }
        }
    }
}
