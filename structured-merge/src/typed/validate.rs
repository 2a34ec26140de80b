//! Whether a value is of a type (`typed/validate.go`).

use std::collections::BTreeSet;

use super::{Duplicates, Type, ValidationError, ValidationErrors, items};
use crate::{
    MAX_DEPTH,
    fieldpath::PathElement,
    schema::{List, Map, Part, Relation, Scalar, Schema, TypeRef},
    value::{TooDeep, Value},
};

pub(super) fn validate(of: &Type, value: &Value, duplicates: Duplicates) -> Result<(), ValidationErrors> {
    let mut walk = Walk { schema: &of.schema, duplicates, errors: Vec::new() };
    walk.value(&of.reference, value, 0);
    if walk.errors.is_empty() { Ok(()) } else { Err(ValidationErrors(walk.errors)) }
}

/// What does not fit a scalar type, as the message says it.
fn misfit(scalar: Scalar, value: &Value) -> Option<&'static str> {
    let (fits, expected) = match scalar {
        Scalar::Numeric => (matches!(value, Value::Int(_) | Value::Float(_)), "expected numeric (int or float)"),
        Scalar::String => (matches!(value, Value::String(_)), "expected string"),
        Scalar::Boolean => (matches!(value, Value::Bool(_)), "expected boolean"),
        Scalar::Untyped => (value.is_scalar(), "expected any scalar"),
    };
    (!fits && !value.is_null()).then_some(expected)
}

struct Walk<'a> {
    schema: &'a Schema,
    duplicates: Duplicates,
    errors: Vec<ValidationError>,
}

impl Walk<'_> {
    fn error(&mut self, message: impl std::fmt::Display) {
        self.errors.extend(ValidationErrors::of(message).0);
    }

    fn value(&mut self, reference: &TypeRef, value: &Value, depth: usize) {
        if depth > MAX_DEPTH {
            return self.error(TooDeep);
        }
        let part = self.schema.resolve(reference).and_then(|shape| shape.fit(Some(value)).part());
        match (part, value) {
            (Err(error), _) => self.error(error),
            (Ok(Part::Scalar(scalar)), value) => {
                if let Some(expected) = misfit(scalar, value) {
                    self.error(format_args!("{expected}, got {}", value.kind()));
                }
            }
            // Null is a valid list and a valid map.
            (Ok(_), Value::Null) => {}
            (Ok(Part::List(list, relation)), Value::List(found)) => self.list(list, relation, found, depth),
            (Ok(Part::Map(map, _)), Value::Map(found)) => self.map(map, found, depth),
            (Ok(Part::List(..)), other) => self.error(format_args!("expected list, got {}", other.kind())),
            (Ok(Part::Map(..)), other) => self.error(format_args!("expected map, got {}", other.kind())),
        }
    }

    /// Checks what stands at an element; its errors get the element in front.
    fn below(&mut self, element: &PathElement, reference: &TypeRef, value: &Value, depth: usize) {
        let before = self.errors.len();
        self.value(reference, value, depth + 1);
        if self.errors.len() > before {
            let errors = ValidationErrors(self.errors.split_off(before)).below(element);
            self.errors.extend(errors.0);
        }
    }

    fn list(&mut self, list: &List, relation: Relation, found: &[Value], depth: usize) {
        let repeated = match (relation, self.duplicates) {
            (Relation::Granular, Duplicates::Refused) => self.repeated(list, found),
            _ => BTreeSet::new(),
        };
        for (at, item) in found.iter().enumerate() {
            let element = match relation {
                Relation::Atomic => PathElement::Index(i64::try_from(at).unwrap_or(i64::MAX)),
                Relation::Granular => match items::element(self.schema, list, item) {
                    Ok(element) => element,
                    // Without an element the rest cannot be named.
                    Err(error) => return self.error(format_args!("element {at}: {error}")),
                },
            };
            if repeated.contains(&at) {
                self.error(format_args!("duplicate entries for key {element}"));
            }
            self.below(&element, &list.element, item, depth);
        }
    }

    /// The places of items whose element another one in front has too.
    fn repeated(&self, list: &List, found: &[Value]) -> BTreeSet<usize> {
        let mut sorted: Vec<_> = found
            .iter()
            .enumerate()
            .filter_map(|(at, item)| Some((items::element(self.schema, list, item).ok()?, at)))
            .collect();
        sorted.sort_by(|(a, _), (b, _)| a.order(b, crate::value::Numbers::Exactly));
        sorted
            .windows(2)
            .filter_map(|pair| match pair {
                [(a, _), (b, at)] if a.compare(b).is_eq() => Some(*at),
                _ => None,
            })
            .collect()
    }

    fn map(&mut self, map: &Map, found: &crate::value::Map, depth: usize) {
        for (name, value) in found.entries() {
            let element = PathElement::Field(name.clone());
            let Some(reference) = map.entry(name) else {
                // The first one says enough: the rest of the map is not looked at.
                let error = ValidationErrors::of("field not declared in schema").below(&element);
                return self.errors.extend(error.0);
            };
            self.below(&element, reference, value, depth);
        }
    }
}
