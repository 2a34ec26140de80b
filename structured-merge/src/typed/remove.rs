//! A value without some of its items and entries, or with only these (`typed/remove.go`).

use super::{KeyFields, TypedValue, items};
use crate::{
    fieldpath::{Path, PathElement, Set},
    schema::{Part, Relation, Schema, TypeRef},
    value::{Map, Value},
};

pub(super) fn remove(value: &TypedValue, paths: &Set) -> Value {
    Walk { schema: value.of.schema(), extract: false }.value(&value.of.reference, &value.value, paths)
}

pub(super) fn extract(value: &TypedValue, paths: &Set, keys: KeyFields) -> Value {
    let walk = Walk { schema: value.of.schema(), extract: true };
    match keys {
        KeyFields::Left => walk.value(&value.of.reference, &value.value, paths),
        KeyFields::Added => {
            let keys = key_fields(value, paths);
            walk.value(&value.of.reference, &value.value, &paths.union(&keys))
        }
    }
}

/// The key fields of the items on the way to paths that the value has.
fn key_fields(value: &TypedValue, paths: &Set) -> Set {
    let mut keys = Set::new();
    let Ok(owned) = value.to_field_set() else { return keys };
    paths.for_each(|path| {
        if !owned.contains(path) {
            return;
        }
        for (at, element) in path.iter().enumerate() {
            let PathElement::Key(fields) = element else { continue };
            for (name, _) in fields.iter() {
                let to_item = path.iter().take(at + 1).cloned();
                keys.insert(to_item.chain([PathElement::Field(name.clone())]).collect::<Path>().elements());
            }
        }
    });
    keys
}

struct Walk<'a> {
    schema: &'a Schema,
    extract: bool,
}

impl Walk<'_> {
    /// What is left, which is null where nothing is.
    fn value(&self, reference: &TypeRef, value: &Value, paths: &Set) -> Value {
        let shape = self.schema.resolve(reference).unwrap_or_default().fit(Some(value));
        match (shape.part(), value) {
            (Ok(Part::Scalar(_)), value) => value.clone(),
            (Ok(Part::Map(map, relation)), Value::Map(found)) => {
                if found.is_empty() || relation == Relation::Atomic {
                    return self.whole(value);
                }
                self.map(map, found, paths)
            }
            (Ok(Part::List(list, relation)), Value::List(found)) => {
                if found.is_empty() || relation == Relation::Atomic {
                    return self.whole(value);
                }
                self.list(list, found, paths)
            }
            _ => Value::Null,
        }
    }

    /// What is left of a value that is not taken apart.
    fn whole(&self, value: &Value) -> Value {
        if self.extract { value.clone() } else { Value::Null }
    }

    fn map(&self, map: &crate::schema::Map, found: &Map, paths: &Set) -> Value {
        let mut left = Vec::new();
        for (name, value) in found.entries() {
            let value = match (paths.field(name), map.entry(name)) {
                // Go looks for the same paths once more below a member that it extracts.
                (Some(entry), Some(reference)) if entry.member && self.extract => self.value(reference, value, paths),
                (Some(entry), _) if entry.member => continue,
                (Some(entry), Some(reference)) => self.value(reference, value, &entry.children),
                (None, _) if self.extract => continue,
                _ => value.clone(),
            };
            left.push((name.clone(), value));
        }
        if left.is_empty() { Value::Null } else { Map::from_iter(left).into() }
    }

    fn list(&self, list: &crate::schema::List, found: &[Value], paths: &Set) -> Value {
        let mut left = Vec::new();
        for item in found {
            // An item without an element is no member: it stays, and is never extracted.
            let element = items::element(self.schema, list, item).ok();
            let entry = element.as_ref().and_then(|element| paths.get(element));
            let item = match entry {
                Some(entry) if entry.member && !self.extract => continue,
                Some(entry) if !entry.children.is_empty() => self.value(&list.element, item, &entry.children),
                None if self.extract => continue,
                _ => item.clone(),
            };
            left.push(item);
        }
        if left.is_empty() { Value::Null } else { Value::list(left) }
    }
}
