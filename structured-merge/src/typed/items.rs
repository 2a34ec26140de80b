//! What items of associative lists are told apart by.

use std::ops::Range;

use super::{ValidationErrors, Value};
use crate::{
    fieldpath::PathElement,
    schema::{List, Schema},
    text,
    value::Numbers,
};

/// The element of an item of an associative list (`listItemToPathElement` in `typed/helpers.go`).
///
/// A key field that is missing counts with its default. Without one it is left out, and the item is another than any that
/// has the field.
pub(super) fn element(schema: &Schema, list: &List, item: &Value) -> Result<PathElement, String> {
    if list.keys.is_empty() {
        return match item {
            Value::Map(_) => Err("associative list without keys has an element that's a map type".to_owned()),
            Value::List(_) => Err("not supported: associative list with lists as elements".to_owned()),
            Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
            scalar => Ok(PathElement::Value(scalar.clone())),
        };
    }
    let map = match item {
        Value::Map(map) => map,
        Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
        _ => return Err("associative list with keys may not have non-map elements".to_owned()),
    };
    let mut fields = Vec::with_capacity(list.keys.len());
    for key in &list.keys {
        let value = match map.get(key) {
            Some(value) => Some(value.clone()),
            None => {
                default(schema, list, key).map_err(|error| format!("couldn't find default value for {key}: {error}"))?
            }
        };
        fields.extend(value.map(|value| (key.clone(), value)));
    }
    if fields.is_empty() {
        let keys: Vec<_> = list.keys.iter().map(|key| text::quote(key)).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values \
             for any key fields)",
            keys.join(" ")
        ));
    }
    Ok(PathElement::key(fields))
}

fn default(schema: &Schema, list: &List, key: &str) -> Result<Option<Value>, &'static str> {
    let shape = schema.resolve(&list.element).map_err(|_| "invalid elementType for list")?;
    let (map, _) = shape.map.ok_or("associative list may not have non-map types")?;
    Ok(map.fields.get(key).and_then(|field| field.default.clone()))
}

/// The items of a list, sorted by their elements and grouped: more than one in a group are duplicates.
pub(super) struct Items<'a> {
    groups: Vec<(PathElement, Range<usize>)>,
    values: Vec<&'a Value>,
}

impl<'a> Items<'a> {
    /// Sorts items by their elements; those without one are handed to `unknown`, with their place and why.
    pub(super) fn new(
        schema: &Schema,
        list: &List,
        items: &'a [Value],
        mut unknown: impl FnMut(usize, String),
    ) -> Self {
        let mut sorted = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            match element(schema, list, item) {
                Ok(element) => sorted.push((element, item)),
                Err(error) => unknown(at, error),
            }
        }
        // A stable sort: duplicates stay in the order of the list.
        sorted.sort_by(|(a, _), (b, _)| a.order(b, Numbers::Exactly));
        let mut groups: Vec<(PathElement, Range<usize>)> = Vec::with_capacity(sorted.len());
        let mut values = Vec::with_capacity(sorted.len());
        for (at, (element, item)) in sorted.into_iter().enumerate() {
            values.push(item);
            match groups.last_mut() {
                Some((last, range)) if last.compare(&element).is_eq() => range.end = at + 1,
                _ => groups.push((element, at..at + 1)),
            }
        }
        Self { groups, values }
    }

    /// The groups, sorted by element.
    pub(super) fn groups(&self) -> impl Iterator<Item = (&PathElement, &[&'a Value])> {
        self.groups.iter().map(|(element, range)| (element, self.values.get(range.clone()).unwrap_or_default()))
    }
}

/// Adds an error of an item without an element.
pub(super) fn unknown(errors: &mut Vec<super::ValidationError>) -> impl FnMut(usize, String) {
    |at, error| errors.extend(ValidationErrors::of(format_args!("element {at}: {error}")).0)
}
