//! Sets that were made when another schema held (`typed/reconcile_schema.go`).

use super::{Type, ValidationErrors};
use crate::{
    fieldpath::{Entry, PathElement, Set},
    schema::{Map, Part, Relation, Schema, TypeRef},
};

/// Where the set goes below a list or map that is atomic today, its owner gets the whole of it. What was atomic and is no
/// more is left alone: it is owned as it was.
pub(super) fn reconcile(of: &Type, owned: &Set) -> Result<Set, ValidationErrors> {
    match below(of.schema(), &of.reference, owned)? {
        Below::Same => Ok(owned.clone()),
        Below::Changed(set) => Ok(set),
        // Nobody can own the whole object.
        Below::Whole => Ok(owned.clone()),
    }
}

/// What becomes of the paths below a place.
enum Below {
    /// They stay.
    Same,
    /// They are these now.
    Changed(Set),
    /// The place itself is owned instead.
    Whole,
}

fn below(schema: &Schema, reference: &TypeRef, owned: &Set) -> Result<Below, ValidationErrors> {
    let (map, element) = match schema.resolve(reference)?.part()? {
        Part::Scalar(_) => return Ok(Below::Same),
        // Without a schema nothing can have changed.
        Part::Map(map, _) if map.fields.is_empty() && map.element.as_ref().is_some_and(TypeRef::is_deduced) => {
            return Ok(Below::Same);
        }
        Part::Map(_, Relation::Atomic) | Part::List(_, Relation::Atomic) => return Ok(Below::Whole),
        Part::Map(map, Relation::Granular) => (Some(map), None),
        Part::List(list, Relation::Granular) => (None, Some(&list.element)),
    };
    let (mut entries, mut changed) = (Vec::with_capacity(owned.entries().len()), false);
    for entry in owned.entries() {
        // What the schema does not know is passed over, and what has nothing below it is right.
        let reference = element.or_else(|| map.and_then(|map| of_entry(map, &entry.element)));
        let result = match reference {
            Some(reference) if !entry.children.is_empty() => {
                below(schema, reference, &entry.children).map_err(|error| error.below(&entry.element))?
            }
            _ => Below::Same,
        };
        let element = entry.element.clone();
        entries.push(match result {
            Below::Same => entry.clone(),
            Below::Changed(children) => Entry { element, member: entry.member, children },
            Below::Whole => Entry { element, member: true, children: Set::new() },
        });
        changed |= entries.last() != Some(entry);
    }
    Ok(if changed { Below::Changed(entries.into_iter().collect()) } else { Below::Same })
}

fn of_entry<'a>(map: &'a Map, element: &PathElement) -> Option<&'a TypeRef> {
    match element {
        PathElement::Field(name) => map.entry(name),
        _ => map.element.as_ref(),
    }
}
