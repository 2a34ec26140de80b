//! One step of a path.

use std::{cmp::Ordering, fmt, sync::Arc};

use crate::value::{Numbers, Value, lexical};

/// One step of a path: into a field, an item of a list, or a place in one.
#[derive(Clone, Debug, PartialEq)]
pub enum PathElement {
    /// A field of an object or an entry of a map.
    Field(Arc<str>),
    /// An item of a list by the values of its key fields, sorted by name.
    Key(Arc<[(Arc<str>, Value)]>),
    /// An item of a set: the value itself.
    Value(Value),
    /// An item of a list by its place. Sets that are made of objects have none.
    Index(i64),
}

impl PathElement {
    /// A field.
    pub fn field(name: &str) -> Self {
        Self::Field(name.into())
    }

    /// The item with these key fields.
    pub fn key(fields: impl IntoIterator<Item = (Arc<str>, Value)>) -> Self {
        let mut fields: Vec<_> = fields.into_iter().collect();
        fields.sort_by(|(a, _), (b, _)| a.cmp(b));
        Self::Key(fields.into())
    }

    /// The order of elements (`fieldpath/element.go`): fields, keys, values, places. It is [`Value::compare`]'s within.
    pub fn compare(&self, other: &Self) -> Ordering {
        self.order(other, Numbers::AsFloats)
    }

    pub(crate) fn order(&self, other: &Self, numbers: Numbers) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => {
                lexical(a, b, |(an, av), (bn, bv)| an.cmp(bn).then_with(|| av.order(bv, numbers)))
            }
            (Self::Value(a), Self::Value(b)) => a.order(b, numbers),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

/// As messages show it: `.name`, `[port=80,protocol="TCP"]`, `[="item"]`, `[3]`.
impl fmt::Display for PathElement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(out, ".{name}"),
            Self::Key(fields) => {
                out.write_str("[")?;
                for (i, (name, value)) in fields.iter().enumerate() {
                    write!(out, "{}{name}={value}", if i > 0 { "," } else { "" })?;
                }
                out.write_str("]")
            }
            Self::Value(value) => write!(out, "[={value}]"),
            Self::Index(at) => write!(out, "[{at}]"),
        }
    }
}

/// The steps from an object's root to a field.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Path(Vec<PathElement>);

impl Path {
    /// The path of fields.
    pub fn fields(names: &[&str]) -> Self {
        names.iter().map(|name| PathElement::field(name)).collect()
    }

    /// The steps.
    pub fn elements(&self) -> &[PathElement] {
        &self.0
    }
}

impl From<&[PathElement]> for Path {
    fn from(elements: &[PathElement]) -> Self {
        Self(elements.to_vec())
    }
}

impl FromIterator<PathElement> for Path {
    fn from_iter<I: IntoIterator<Item = PathElement>>(elements: I) -> Self {
        Self(elements.into_iter().collect())
    }
}

impl fmt::Display for Path {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|element| element.fmt(out))
    }
}
