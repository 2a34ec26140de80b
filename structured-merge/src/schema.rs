//! Which types there are, and which lists and maps are merged rather than replaced (`schema/elements.go`).

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, LazyLock},
};

use crate::value::Value;

pub mod openapi;

/// The name of the type that is anything, replaced as a whole.
pub(crate) const UNTYPED: &str = "__untyped_atomic_";

/// The name of the type that is anything, of which only maps are merged.
pub(crate) const DEDUCED: &str = "__untyped_deduced_";

/// Named types.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    types: HashMap<Arc<str>, Atom>,
}

/// What a value of a type may be: any of the parts that are given.
#[derive(Clone, Debug, Default)]
pub struct Atom {
    /// A scalar.
    pub scalar: Option<Scalar>,
    /// A list.
    pub list: Option<Arc<List>>,
    /// A map or an object; there is no difference.
    pub map: Option<Arc<Map>>,
}

/// Kinds of scalars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// Any number.
    Numeric,
    /// Text.
    String,
    /// Truth values.
    Boolean,
    /// Any of them.
    Untyped,
}

/// Whether a list or a map has one owner or one for each of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// It is replaced as a whole.
    Atomic,
    /// Its parts are merged: the items of an associative list, the entries of a separable map.
    Granular,
}

/// A list.
#[derive(Clone, Debug)]
pub struct List {
    /// The type of the items.
    pub element: TypeRef,
    /// Whether items are merged.
    pub relation: Relation,
    /// The fields that tell items apart. A list without them whose items are merged is a set of scalars.
    pub keys: Vec<Arc<str>>,
}

/// A map or an object.
#[derive(Clone, Debug)]
pub struct Map {
    /// The declared fields.
    pub fields: BTreeMap<Arc<str>, Field>,
    /// The type of all other entries; without one there must be none.
    pub element: Option<TypeRef>,
    /// Whether entries are merged.
    pub relation: Relation,
}

/// A declared field.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its type.
    pub reference: TypeRef,
    /// What its absence stands for where it is a key of a list.
    pub default: Option<Value>,
}

/// A type by name or by itself.
#[derive(Clone, Debug)]
pub struct TypeRef {
    /// The type.
    pub target: Target,
    /// What counts instead of the relation of the type itself.
    pub relation: Option<Relation>,
}

/// What a [`TypeRef`] refers to.
#[derive(Clone, Debug)]
pub enum Target {
    /// A type of the schema.
    Named(Arc<str>),
    /// A type of its own.
    Inline(Atom),
}

/// No usable type has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("schema error: no type found matching: {0}")]
pub struct NoType(pub String);

/// The parts of a type with the relations that count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape<'a> {
    pub(crate) scalar: Option<Scalar>,
    pub(crate) list: Option<(&'a List, Relation)>,
    pub(crate) map: Option<(&'a Map, Relation)>,
}

/// The part of a type by which a value is walked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    Map(&'a Map, Relation),
    Scalar(Scalar),
    List(&'a List, Relation),
}

// === impl Schema ===

impl Schema {
    /// A schema of types by name, and the two that stand for what has no type.
    pub fn new(types: impl IntoIterator<Item = (Arc<str>, Atom)>) -> Self {
        let mut types: HashMap<_, _> = types.into_iter().collect();
        types.insert(UNTYPED.into(), anything(UNTYPED, Relation::Atomic));
        types.insert(DEDUCED.into(), anything(DEDUCED, Relation::Granular));
        Self { types }
    }

    /// The schema of objects without one: maps are merged, everything else is replaced.
    pub fn deduced() -> Arc<Self> {
        static DEDUCED: LazyLock<Arc<Schema>> = LazyLock::new(|| Arc::new(Schema::new([])));
        DEDUCED.clone()
    }

    /// Looks a type up and applies the reference's relation: to its map, or if it has none to its list.
    pub(crate) fn resolve<'a>(&'a self, reference: &'a TypeRef) -> Result<Shape<'a>, NoType> {
        let atom = match &reference.target {
            Target::Inline(atom) => atom,
            Target::Named(name) => self.types.get(name).ok_or_else(|| NoType(name.to_string()))?,
        };
        let mut shape = Shape {
            scalar: atom.scalar,
            list: atom.list.as_deref().map(|list| (list, list.relation)),
            map: atom.map.as_deref().map(|map| (map, map.relation)),
        };
        if let Some(relation) = reference.relation {
            match (&mut shape.map, &mut shape.list) {
                (Some((_, of_map)), _) => *of_map = relation,
                (None, Some((_, of_list))) => *of_list = relation,
                (None, None) => {
                    let name = match &reference.target {
                        Target::Named(name) => name,
                        Target::Inline(_) => "inlined type",
                    };
                    return Err(NoType(name.to_owned()));
                }
            }
        }
        Ok(shape)
    }
}

fn anything(entries: &str, relation: Relation) -> Atom {
    Atom {
        scalar: Some(Scalar::Untyped),
        list: Some(Arc::new(List { element: TypeRef::named(UNTYPED), relation: Relation::Atomic, keys: Vec::new() })),
        map: Some(Arc::new(Map { fields: BTreeMap::new(), element: Some(TypeRef::named(entries)), relation })),
    }
}

// === impl TypeRef ===

impl TypeRef {
    /// A type of the schema.
    pub fn named(name: &str) -> Self {
        Self { target: Target::Named(name.into()), relation: None }
    }

    /// A type of its own.
    pub fn inline(atom: Atom) -> Self {
        Self { target: Target::Inline(atom), relation: None }
    }

    /// Whether it is anything at all, as the type of a map's entries where there is no schema for them.
    pub(crate) fn is_deduced(&self) -> bool {
        match &self.target {
            Target::Named(name) => &**name == DEDUCED,
            Target::Inline(atom) => atom.scalar == Some(Scalar::Untyped),
        }
    }
}

// === impl Map ===

impl Map {
    /// The type of an entry.
    pub(crate) fn entry(&self, name: &str) -> Option<&TypeRef> {
        self.fields.get(name).map(|field| &field.reference).or(self.element.as_ref())
    }
}

// === impl Shape ===

impl<'a> Shape<'a> {
    /// Only the part that a value belongs to, or all of them if it fits none or is null or absent (`deduceAtom`).
    pub(crate) fn fit(self, value: Option<&Value>) -> Self {
        match value {
            Some(Value::List(_)) if self.list.is_some() => Shape { list: self.list, ..Shape::default() },
            Some(Value::Map(_)) if self.map.is_some() => Shape { map: self.map, ..Shape::default() },
            Some(value) if value.is_scalar() && self.scalar.is_some() => {
                Shape { scalar: self.scalar, ..Shape::default() }
            }
            _ => self,
        }
    }

    /// The part that is walked: of several a map before a scalar before a list (`handleAtom`).
    pub(crate) fn part(self) -> Result<Part<'a>, NoType> {
        match self {
            Shape { map: Some((map, relation)), .. } => Ok(Part::Map(map, relation)),
            Shape { scalar: Some(scalar), .. } => Ok(Part::Scalar(scalar)),
            Shape { list: Some((list, relation)), .. } => Ok(Part::List(list, relation)),
            _ => Err(NoType("inlined type".to_owned())),
        }
    }

    /// Whether two parts of one type are the same ones.
    pub(crate) fn same(self, other: Self) -> bool {
        self.scalar.is_some() == other.scalar.is_some()
            && self.list.is_some() == other.list.is_some()
            && self.map.is_some() == other.map.is_some()
    }
}
