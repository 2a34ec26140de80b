//! What JSON holds, with the order and the equality that structured merge needs.
//!
//! Numbers are kept as Kubernetes keeps them: an integer that fits is an `i64`, everything else an `f64`. Strings, lists
//! and maps are shared: to clone a value costs nothing, and [`Value::map_mut`] copies only what is shared.

use std::{cmp::Ordering, fmt, sync::Arc};

use crate::text;

pub(crate) mod json;
mod map;
mod serde;

pub(crate) use self::map::zip;
pub use self::{map::Map, serde::TooDeep};

/// A value as JSON knows it.
///
/// Equality is numeric, as in Go's structured merge: `1` and `1.0` are equal. It compares an integer with a float as
/// floats, so among whole numbers beyond 2^53 it is not transitive, and `Value` is deliberately not [`Eq`].
#[derive(Clone, Debug, Default)]
pub enum Value {
    /// `null`, which is a value: an absent field is not a null one.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Text.
    String(Arc<str>),
    /// A list.
    List(Arc<Vec<Value>>),
    /// An object, sorted by name.
    Map(Arc<Map>),
}

// === impl Value ===

impl Value {
    /// A list of values.
    pub fn list(items: impl IntoIterator<Item = Value>) -> Self {
        Value::List(Arc::new(items.into_iter().collect()))
    }

    /// Whether it is `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// Whether it is a number, a text or a truth value.
    pub fn is_scalar(&self) -> bool {
        matches!(self, Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_))
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The items, if it is a list.
    pub fn as_list(&self) -> Option<&[Value]> {
        match self {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    /// The entries, if it is a map.
    pub fn as_map(&self) -> Option<&Map> {
        match self {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The entries to change, if it is a map. They are copied if another value shares them.
    pub fn map_mut(&mut self) -> Option<&mut Map> {
        match self {
            Value::Map(map) => Some(Arc::make_mut(map)),
            _ => None,
        }
    }

    /// The items to change, if it is a list. They are copied if another value shares them.
    pub fn list_mut(&mut self) -> Option<&mut Vec<Value>> {
        match self {
            Value::List(items) => Some(Arc::make_mut(items)),
            _ => None,
        }
    }

    /// The entry of a map, `None` for everything else.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.as_map()?.get(name)
    }

    /// The value below nested maps.
    pub fn at(&self, names: &[&str]) -> Option<&Value> {
        names.iter().try_fold(self, |value, name| value.get(name))
    }

    /// What the error messages call it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int64",
            Value::Float(_) => "float64",
            Value::String(_) => "string",
            Value::List(_) => "list",
            Value::Map(_) => "map",
        }
    }

    /// The order of structured merge (`value.Compare` in `value/value.go`): numbers, texts, `false`, `true`, lists, maps,
    /// `null`. Integers and floats are compared as floats, see [`Value`].
    pub fn compare(&self, other: &Self) -> Ordering {
        self.order(other, Numbers::AsFloats)
    }

    pub(crate) fn order(&self, other: &Self, numbers: Numbers) -> Ordering {
        match (self, other) {
            (Value::Null, Value::Null) => Ordering::Equal,
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (Value::Int(a), Value::Int(b)) => a.cmp(b),
            (Value::Float(a), Value::Float(b)) => floats(*a, *b),
            (Value::Int(a), Value::Float(b)) => mixed(*a, *b, numbers),
            (Value::Float(a), Value::Int(b)) => mixed(*b, *a, numbers).reverse(),
            (Value::String(a), Value::String(b)) => a.cmp(b),
            (Value::List(a), Value::List(b)) => lexical(a, b, |a, b| a.order(b, numbers)),
            (Value::Map(a), Value::Map(b)) => {
                lexical(a.entries(), b.entries(), |(an, av), (bn, bv)| an.cmp(bn).then_with(|| av.order(bv, numbers)))
            }
            _ => self.rank().cmp(&other.rank()),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Value::Int(_) | Value::Float(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            Value::List(_) => 3,
            Value::Map(_) => 4,
            Value::Null => 5,
        }
    }

    /// Whether both are the same list or map in memory, and therefore equal.
    pub(crate) fn shares(&self, other: &Self) -> bool {
        match (self, other) {
            (Value::List(a), Value::List(b)) => Arc::ptr_eq(a, b),
            (Value::Map(a), Value::Map(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::Float(a), Value::Float(b)) => a == b,
            #[expect(clippy::cast_precision_loss, reason = "as Go compares them")]
            (Value::Int(a), Value::Float(b)) | (Value::Float(b), Value::Int(a)) => *a as f64 == *b,
            (Value::String(a), Value::String(b)) => a == b,
            (Value::List(a), Value::List(b)) => Arc::ptr_eq(a, b) || a == b,
            (Value::Map(a), Value::Map(b)) => Arc::ptr_eq(a, b) || a == b,
            _ => false,
        }
    }
}

/// The text of a value within a path, as `value.ToString` of Go's structured merge writes it.
impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => out.write_str("null"),
            Value::Bool(value) => write!(out, "{value}"),
            Value::Int(value) => write!(out, "{value}"),
            Value::Float(value) => out.write_str(&text::float(*value)),
            Value::String(value) => out.write_str(&text::quote(value)),
            Value::List(items) => {
                out.write_str("[")?;
                for (i, item) in items.iter().enumerate() {
                    write!(out, "{}{item}", if i > 0 { "," } else { "" })?;
                }
                out.write_str("]")
            }
            Value::Map(map) => map.entries().iter().try_for_each(|(name, value)| write!(out, "{name}={value}")),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::String(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::String(text.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Int(number)
    }
}

impl From<Map> for Value {
    fn from(map: Map) -> Self {
        Value::Map(Arc::new(map))
    }
}

/// How an integer is compared with a float.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// As Go does, which is no total order: two large integers may equal the same float.
    AsFloats,
    /// By their exact values: a total order, to sort by, which never contradicts the other.
    Exactly,
}

fn floats(a: f64, b: f64) -> Ordering {
    // Values that were read are never NaN; one that was made by hand must not break a sort.
    a.partial_cmp(&b).unwrap_or_else(|| a.total_cmp(&b))
}

fn mixed(int: i64, float: f64, numbers: Numbers) -> Ordering {
    #[expect(clippy::cast_precision_loss, reason = "as Go compares them")]
    let order = floats(int as f64, float);
    if order == Ordering::Equal && numbers == Numbers::Exactly {
        // Equal to a rounded integer, so the float is whole and within the range.
        #[expect(clippy::cast_possible_truncation, reason = "it is whole and within the range")]
        return i128::from(int).cmp(&(float as i128));
    }
    order
}

pub(crate) fn lexical<T>(a: &[T], b: &[T], order: impl Fn(&T, &T) -> Ordering) -> Ordering {
    a.iter().zip(b).map(|(a, b)| order(a, b)).find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
}

#[cfg(test)]
mod tests;
