//! Values with a type: what structured merge is made of.

use std::{fmt, sync::Arc};

use crate::{
    fieldpath::{Filter, PathElement, Set},
    schema::{DEDUCED, NoType, Schema, Target, TypeRef},
    value::Value,
};

mod compare;
mod fieldset;
mod items;
mod merge;
mod reconcile;
mod remove;
mod validate;

/// A type: one of a schema's.
#[derive(Clone, Debug)]
pub struct Type {
    schema: Arc<Schema>,
    reference: TypeRef,
}

/// A value that was found to be of a type.
#[derive(Clone, Debug)]
pub struct TypedValue {
    value: Value,
    of: Type,
}

/// Whether items of a list may bear the same key, and those of a set be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    /// Not in what is applied.
    Refused,
    /// In what is stored: it may be older than the schema.
    Allowed,
}

/// What is taken out of a value besides what a set names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFields {
    /// Nothing.
    Left,
    /// The key fields of the items on the way.
    Added,
}

/// What distinguishes two values, as the paths of three sets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Only the new value has these.
    pub added: Set,
    /// Both have these, with other values.
    pub modified: Set,
    /// Only the old value has these.
    pub removed: Set,
}

/// One thing that is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidationError {
    /// Where, as text; empty for the value itself.
    pub path: String,
    /// What.
    pub message: String,
}

/// Everything that is wrong with a value, at least one thing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ValidationErrors(pub Vec<ValidationError>);

// === impl Type ===

impl Type {
    /// A type of a schema.
    pub fn new(schema: Arc<Schema>, reference: TypeRef) -> Self {
        Self { schema, reference }
    }

    /// The type of objects without a schema: maps are merged, everything else is replaced.
    pub fn deduced() -> Self {
        Self::new(Schema::deduced(), TypeRef::named(DEDUCED))
    }

    /// The schema.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Which of its types.
    pub fn reference(&self) -> &TypeRef {
        &self.reference
    }

    /// Whether it is the same type of the same schema.
    fn is(&self, other: &Self) -> bool {
        let named = |reference: &TypeRef| match &reference.target {
            Target::Named(name) => Some((name.clone(), reference.relation)),
            Target::Inline(_) => None,
        };
        let (own, others) = (named(&self.reference), named(&other.reference));
        Arc::ptr_eq(&self.schema, &other.schema) && own.is_some() && own == others
    }

    /// Checks that a value is of the type.
    ///
    /// # Errors
    /// When it is not, or is nested too deeply.
    pub fn check(&self, value: Value, duplicates: Duplicates) -> Result<TypedValue, ValidationErrors> {
        validate::validate(self, &value, duplicates)?;
        Ok(TypedValue { value, of: self.clone() })
    }
}

// === impl TypedValue ===

impl TypedValue {
    /// The value.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The value, without its type.
    pub fn into_value(self) -> Value {
        self.value
    }

    /// The type.
    pub fn of(&self) -> &Type {
        &self.of
    }

    /// Everything that whoever applies the value owns: leaves, items, entries of maps, but not the objects on the way.
    ///
    /// # Errors
    /// When the schema lacks a type.
    pub fn to_field_set(&self) -> Result<Set, ValidationErrors> {
        fieldset::field_set(self)
    }

    /// What `new` has that this value has not, and the other way round.
    ///
    /// # Errors
    /// When the types differ, or an item of a list bears no key, which a checked value's items do.
    pub fn compare(&self, new: &Self) -> Result<Comparison, ValidationErrors> {
        self.expect_type_of(new)?;
        compare::compare(self, new)
    }

    /// The value with what `config` says in it. Nothing is taken away; see [`crate::updater`] for that.
    ///
    /// Go loses errors of lists within items of lists and goes on without these lists. Here they are errors like all others; an
    /// apply checks its configuration before, and meets none.
    ///
    /// # Errors
    /// When the types differ, an item of a list bears no key, or two of `config`'s the same.
    pub fn merge(&self, config: &Self) -> Result<Self, ValidationErrors> {
        self.expect_type_of(config)?;
        Ok(self.with(merge::merge(self, config)?))
    }

    /// The value without the items and entries of a set.
    #[must_use]
    pub fn remove(&self, paths: &Set) -> Self {
        self.with(remove::remove(self, paths))
    }

    /// Only the items and entries of a set, and what is on the way to them.
    #[must_use]
    pub fn extract(&self, paths: &Set, keys: KeyFields) -> Self {
        self.with(remove::extract(self, paths, keys))
    }

    /// A set as it would be if the lists and maps that are atomic today had been so when it was made.
    ///
    /// # Errors
    /// When the schema lacks a type.
    pub fn reconcile(&self, owned: &Set) -> Result<Set, ValidationErrors> {
        reconcile::reconcile(&self.of, owned)
    }

    /// The set with the declared fields on the way to its paths, see [`Set::with_named_parents`].
    pub(crate) fn named(&self, set: &Set) -> Set {
        set.with_named_parents(&self.of.schema, &self.of.reference)
    }

    fn expect_type_of(&self, other: &Self) -> Result<(), ValidationErrors> {
        if self.of.is(&other.of) { Ok(()) } else { Err(ValidationErrors::of("expected objects of the same type")) }
    }

    fn with(&self, value: Value) -> Self {
        Self { value, of: self.of.clone() }
    }
}

// === impl Comparison ===

impl Comparison {
    /// The part of it that counts.
    #[must_use]
    pub fn filtered(self, filter: Option<&Filter>) -> Self {
        let Some(filter) = filter else { return self };
        Self {
            added: filter.apply(&self.added),
            modified: filter.apply(&self.modified),
            removed: filter.apply(&self.removed),
        }
    }

    /// Whether the values are the same.
    pub fn is_same(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }
}

// === impl ValidationErrors ===

impl ValidationErrors {
    fn of(message: impl fmt::Display) -> Self {
        Self(vec![ValidationError { path: String::new(), message: message.to_string() }])
    }

    /// The errors of what stands at an element.
    fn below(mut self, element: &PathElement) -> Self {
        let prefix = element.to_string();
        for error in &mut self.0 {
            error.path.insert_str(0, &prefix);
        }
        self
    }
}

impl From<NoType> for ValidationErrors {
    fn from(error: NoType) -> Self {
        Self::of(error)
    }
}

impl fmt::Display for ValidationError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => out.write_str(&self.message),
            path => write!(out, "{path}: {}", self.message),
        }
    }
}

impl fmt::Display for ValidationErrors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [only] => only.fmt(out),
            errors => {
                out.write_str("errors:")?;
                errors.iter().try_for_each(|error| write!(out, "\n  {error}"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
