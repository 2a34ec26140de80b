//! What whoever applies a value owns (`typed/tofieldset.go`).

use super::{TypedValue, ValidationErrors, items::Items};
use crate::{
    fieldpath::{Entry, PathElement, Set},
    schema::{Part, Relation, Schema, TypeRef},
    value::Value,
};

pub(super) fn field_set(value: &TypedValue) -> Result<Set, ValidationErrors> {
    // Nobody owns the whole object.
    let (_, set) = walk(value.of.schema(), &value.of.reference, &value.value)?;
    Ok(set)
}

/// Whether the path of the value belongs to the set, and which paths below it do.
fn walk(schema: &Schema, reference: &TypeRef, value: &Value) -> Result<(bool, Set), ValidationErrors> {
    let mut entries = Vec::new();
    match (schema.resolve(reference)?.fit(Some(value)).part()?, value) {
        (Part::Scalar(_) | Part::Map(_, Relation::Atomic) | Part::List(_, Relation::Atomic), _) => {
            return Ok((true, Set::new()));
        }
        (Part::Map(map, Relation::Granular), Value::Map(found)) => {
            for (name, value) in found.entries() {
                let element = PathElement::Field(name.clone());
                let (below, children) = match map.entry(name) {
                    Some(reference) => walk(schema, reference, value).map_err(|error| error.below(&element))?,
                    None => (false, Set::new()),
                };
                // Entries of maps come and go, declared fields do not; one that is there without anything in it is owned.
                let empty = value.is_null() || value.as_map().is_some_and(crate::value::Map::is_empty);
                let member = below || empty || !map.fields.contains_key(name);
                entries.push(Entry { element, member, children });
            }
        }
        (Part::List(list, Relation::Granular), Value::List(found)) => {
            // Items without an element are in values that something was taken out of: nobody can own them.
            let items = Items::new(schema, list, found, |_, _| ());
            for (element, values) in items.groups() {
                let children = match values {
                    [only] => walk(schema, &list.element, only).map_err(|error| error.below(element))?.1,
                    // Of duplicates, nobody can say which one is meant.
                    _ => Set::new(),
                };
                entries.push(Entry { element: element.clone(), member: true, children });
            }
        }
        _ => {}
    }
    Ok((false, entries.into_iter().collect()))
}
