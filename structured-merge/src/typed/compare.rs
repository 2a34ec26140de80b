//! What distinguishes two values (`typed/compare.go`).

use std::cmp::Ordering;

use super::{
    Comparison, TypedValue, ValidationErrors,
    items::{Items, unknown},
};
use crate::{
    fieldpath::{Entry, PathElement, Set},
    schema::{List, Map, Part, Relation, Schema, Shape, TypeRef},
    value::{self, Value, zip},
};

pub(super) fn compare(old: &TypedValue, new: &TypedValue) -> Result<Comparison, ValidationErrors> {
    let found = walk(old.of.schema(), &old.of.reference, Some(&old.value), Some(&new.value))?;
    // The root belongs to nobody, so what was found of itself does not count.
    Ok(Comparison { added: found.added.below, modified: found.modified.below, removed: found.removed.below })
}

/// What was found of a path and below it.
#[derive(Default)]
struct Found {
    added: Node,
    modified: Node,
    removed: Node,
}

#[derive(Default)]
struct Node {
    here: bool,
    below: Set,
}

/// What was found of the parts of a list or a map.
#[derive(Default)]
struct Parts {
    added: Vec<Entry>,
    modified: Vec<Entry>,
    removed: Vec<Entry>,
}

impl Parts {
    fn push(&mut self, element: &PathElement, found: Found) {
        let push = |entries: &mut Vec<Entry>, node: Node| {
            if node.here || !node.below.is_empty() {
                entries.push(Entry { element: element.clone(), member: node.here, children: node.below });
            }
        };
        push(&mut self.added, found.added);
        push(&mut self.modified, found.modified);
        push(&mut self.removed, found.removed);
    }

    fn into_found(self) -> Found {
        let node = |entries: Vec<Entry>| Node { here: false, below: entries.into_iter().collect() };
        Found { added: node(self.added), modified: node(self.modified), removed: node(self.removed) }
    }
}

impl Found {
    fn join(self, other: Self) -> Self {
        let join = |a: Node, b: Node| Node { here: a.here || b.here, below: a.below.union(&b.below) };
        Self {
            added: join(self.added, other.added),
            modified: join(self.modified, other.modified),
            removed: join(self.removed, other.removed),
        }
    }
}

/// Compares leaves: values with one owner.
fn leaf(old: Option<&Value>, new: Option<&Value>) -> Found {
    let mut found = Found::default();
    match (old, new) {
        (None, None) => {}
        (None, Some(_)) => found.added.here = true,
        (Some(_), None) => found.removed.here = true,
        (Some(old), Some(new)) => found.modified.here = old != new,
    }
    found
}

fn walk(
    schema: &Schema,
    reference: &TypeRef,
    old: Option<&Value>,
    new: Option<&Value>,
) -> Result<Found, ValidationErrors> {
    if let (Some(old), Some(new)) = (old, new)
        && old.shares(new)
    {
        return Ok(Found::default());
    }
    let shape = schema.resolve(reference)?;
    let (left, right) = (shape.fit(old), shape.fit(new));
    // An absent side takes whatever shape the other one has. Two that differ are both walked.
    let (found, is_leaf) = match (old, new) {
        (_, None) => part(schema, left, old, new)?,
        (None, _) => part(schema, right, old, new)?,
        _ if left.same(right) => part(schema, right, old, new)?,
        _ => {
            let (before, _) = part(schema, left, old, new)?;
            let (after, is_leaf) = part(schema, right, old, new)?;
            (before.join(after), is_leaf)
        }
    };
    if is_leaf {
        return Ok(found);
    }
    // A list or map that comes or goes is itself added or removed, with all that is in it.
    Ok(found.join(if old.is_some() && new.is_some() { Found::default() } else { leaf(old, new) }))
}

/// Compares by one part of a type and tells whether the values were leaves of it.
fn part(
    schema: &Schema,
    shape: Shape<'_>,
    old: Option<&Value>,
    new: Option<&Value>,
) -> Result<(Found, bool), ValidationErrors> {
    match shape.part()? {
        Part::Map(map, Relation::Granular) => {
            let (old_map, new_map) = (old.and_then(Value::as_map), new.and_then(Value::as_map));
            if old_map.is_none_or(value::Map::is_empty) && new_map.is_none_or(value::Map::is_empty) {
                return Ok((leaf(old, new), true));
            }
            Ok((maps(schema, map, old_map, new_map)?, false))
        }
        Part::List(list, Relation::Granular) => {
            let old_items = old.and_then(Value::as_list).unwrap_or_default();
            let new_items = new.and_then(Value::as_list).unwrap_or_default();
            if old_items.is_empty() && new_items.is_empty() {
                return Ok((leaf(old, new), true));
            }
            Ok((lists(schema, list, old_items, new_items)?, false))
        }
        _ => Ok((leaf(old, new), true)),
    }
}

fn maps(
    schema: &Schema,
    map: &Map,
    old: Option<&value::Map>,
    new: Option<&value::Map>,
) -> Result<Found, ValidationErrors> {
    let mut parts = Parts::default();
    for (name, old, new) in zip(old, new) {
        let element = PathElement::Field(name.clone());
        let reference = map.entry(name).ok_or_else(|| ValidationErrors::of("field not declared in schema"));
        let found =
            reference.and_then(|reference| walk(schema, reference, old, new)).map_err(|error| error.below(&element))?;
        parts.push(&element, found);
    }
    Ok(parts.into_found())
}

fn lists(schema: &Schema, list: &List, old: &[Value], new: &[Value]) -> Result<Found, ValidationErrors> {
    let mut errors = Vec::new();
    let old = Items::new(schema, list, old, unknown(&mut errors));
    let new = Items::new(schema, list, new, unknown(&mut errors));
    let mut parts = Parts::default();
    let (mut old, mut new) = (old.groups().peekable(), new.groups().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.compare(b),
        };
        let before = if order.is_le() { old.next() } else { None };
        let after = if order.is_ge() { new.next() } else { None };
        let Some((element, _)) = before.or(after) else { break };
        let before = before.map(|(_, values)| values).unwrap_or_default();
        let after = after.map(|(_, values)| values).unwrap_or_default();
        match items(schema, list, before, after) {
            Ok(found) => parts.push(element, found),
            Err(error) => errors.extend(error.below(element).0),
        }
    }
    if errors.is_empty() { Ok(parts.into_found()) } else { Err(ValidationErrors(errors)) }
}

/// Compares the items of one element. More than one on a side are duplicates, of which only the element itself counts.
fn items(schema: &Schema, list: &List, old: &[&Value], new: &[&Value]) -> Result<Found, ValidationErrors> {
    let one = |old: Option<&&Value>, new: Option<&&Value>| match (old, new) {
        (None, None) => Ok(Found::default()),
        (old, new) => walk(schema, &list.element, old.copied(), new.copied()),
    };
    match (old, new) {
        ([] | [_], [] | [_]) => one(old.first(), new.first()),
        ([_, _, ..], [_, _, ..]) => {
            let mut found = Found::default();
            found.modified.here = old != new;
            Ok(found)
        }
        ([_, _, ..], _) => {
            let mut found = one(None, new.first())?;
            found.removed.here = true;
            Ok(found)
        }
        (_, [_, _, ..]) => {
            let mut found = one(old.first(), None)?;
            found.added.here = true;
            Ok(found)
        }
    }
}
