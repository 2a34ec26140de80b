//! Schemas from OpenAPI v3 definitions (kube-openapi, `pkg/schemaconv`).

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value as Json;

use super::{Atom, DEDUCED, Field, List, Map, Relation, Scalar, Schema, Target, TypeRef, UNTYPED};
use crate::{Kind, MAX_DEPTH, typed::Type, value::Value};

/// Types that are written as anything: what they hold is up to whoever reads them.
const SCALARS: [&str; 2] =
    ["io.k8s.apimachinery.pkg.api.resource.Quantity", "io.k8s.apimachinery.pkg.runtime.RawExtension"];

/// The types of OpenAPI definitions, and which kinds they are.
#[derive(Clone, Debug)]
pub struct Models {
    schema: Arc<Schema>,
    kinds: BTreeMap<Kind, Arc<str>>,
}

/// Why definitions make no schema: everything that is wrong with them, one line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct SchemaErrors(pub Vec<String>);

/// Whether fields without a schema are kept where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownFields {
    /// They are refused.
    Refused,
    /// They are kept, and their types deduced (`x-kubernetes-preserve-unknown-fields`).
    Kept,
}

impl Models {
    /// Reads definitions: the `components.schemas` of a document, by name.
    ///
    /// # Errors
    /// When one uses an extension that makes no sense, an array has no items, or one is nested too deeply.
    pub fn new<'a>(
        definitions: impl IntoIterator<Item = (&'a str, &'a Json)>,
        unknown: UnknownFields,
    ) -> Result<Self, SchemaErrors> {
        let (mut types, mut kinds, mut errors) = (Vec::new(), BTreeMap::new(), Vec::new());
        for (name, definition) in definitions {
            let name: Arc<str> = name.into();
            for kind in kinds_of(definition) {
                kinds.insert(kind, name.clone());
            }
            // A definition that only refers to another is no type.
            if text(definition, "$ref").is_some() {
                continue;
            }
            let atom = if SCALARS.contains(&&*name) {
                Atom { scalar: Some(Scalar::Untyped), ..Atom::default() }
            } else {
                let mut reader = Reader { name: &name, errors: &mut errors };
                reader.atom(definition, unknown, 0)
            };
            types.push((name, atom));
        }
        if errors.is_empty() {
            Ok(Self { schema: Arc::new(Schema::new(types)), kinds })
        } else {
            errors.sort();
            Err(SchemaErrors(errors))
        }
    }

    /// The type of a kind, which its definition names as `x-kubernetes-group-version-kind`.
    pub fn kind(&self, kind: &Kind) -> Option<Type> {
        self.named(self.kinds.get(kind)?)
    }

    /// The type of a definition.
    pub fn named(&self, name: &str) -> Option<Type> {
        self.schema.types.contains_key(name).then(|| Type::new(self.schema.clone(), TypeRef::named(name)))
    }
}

fn kinds_of(definition: &Json) -> Vec<Kind> {
    let entries = definition.get("x-kubernetes-group-version-kind").and_then(Json::as_array);
    let kind = |entry: &Json| {
        let part = |name| text(entry, name).unwrap_or_default().to_owned();
        Kind { group: part("group"), version: part("version"), kind: part("kind") }
    };
    entries.into_iter().flatten().map(kind).filter(|kind| !kind.kind.is_empty()).collect()
}

fn text<'a>(definition: &'a Json, name: &str) -> Option<&'a str> {
    definition.get(name)?.as_str().filter(|text| !text.is_empty())
}

/// The `type`, of several the first.
fn kind(definition: &Json) -> Option<&str> {
    let kind = definition.get("type")?;
    kind.as_str().or_else(|| kind.as_array()?.first()?.as_str()).filter(|kind| !kind.is_empty())
}

/// Reads one definition.
struct Reader<'a> {
    name: &'a str,
    errors: &'a mut Vec<String>,
}

impl Reader<'_> {
    fn error(&mut self, message: impl std::fmt::Display) {
        self.errors.push(format!("{}: {message}", self.name));
    }

    fn atom(&mut self, definition: &Json, unknown: UnknownFields, depth: usize) -> Atom {
        let untyped = Atom { scalar: Some(Scalar::Untyped), ..Atom::default() };
        if depth > MAX_DEPTH {
            self.error(crate::value::TooDeep);
            return untyped;
        }
        let unknown = match definition.get("x-kubernetes-preserve-unknown-fields") {
            Some(Json::Bool(true)) => UnknownFields::Kept,
            _ => unknown,
        };
        let scalar = |scalar| Atom { scalar: Some(scalar), ..Atom::default() };
        match kind(definition) {
            // Whatever it is, it is one of these.
            None => Atom {
                scalar: Some(Scalar::Untyped),
                list: Some(Arc::new(self.list(definition, unknown, depth))),
                map: Some(Arc::new(self.map(definition, unknown, depth))),
            },
            Some("object") => Atom { map: Some(Arc::new(self.map(definition, unknown, depth))), ..Atom::default() },
            Some("array") => Atom { list: Some(Arc::new(self.list(definition, unknown, depth))), ..Atom::default() },
            Some("integer" | "number") => scalar(Scalar::Numeric),
            Some("boolean") => scalar(Scalar::Boolean),
            Some("string") => match text(definition, "format") {
                None | Some("byte") => scalar(Scalar::String),
                // A format may stand for a type that is written in more than one way.
                Some(_) => untyped,
            },
            Some(other) => {
                self.error(format_args!("unrecognized type: '{other}'"));
                untyped
            }
        }
    }

    fn reference(&mut self, definition: &Json, unknown: UnknownFields, depth: usize) -> TypeRef {
        let within = match definition.get("allOf").and_then(Json::as_array).map(Vec::as_slice) {
            Some([only]) => text(only, "$ref"),
            _ => None,
        };
        match text(definition, "$ref").or(within).and_then(|path| path.rsplit('/').next()) {
            Some(name) if !name.is_empty() => {
                TypeRef { target: Target::Named(name.into()), relation: self.map_relation(definition) }
            }
            _ => TypeRef::inline(self.atom(definition, unknown, depth + 1)),
        }
    }

    fn map(&mut self, definition: &Json, unknown: UnknownFields, depth: usize) -> Map {
        let properties = definition.get("properties").and_then(Json::as_object);
        let mut fields = BTreeMap::new();
        for (name, property) in properties.into_iter().flatten() {
            let reference = self.reference(property, unknown, depth);
            let default = property.get("default").filter(|default| !default.is_null());
            let default = match default.map(Value::try_from).transpose() {
                Ok(default) => default,
                Err(error) => {
                    self.error(error);
                    None
                }
            };
            fields.insert(Arc::from(name.as_str()), Field { reference, default });
        }
        let element = match definition.get("additionalProperties") {
            None if unknown == UnknownFields::Kept || fields.is_empty() => Some(TypeRef::named(DEDUCED)),
            None | Some(Json::Bool(false)) => None,
            Some(Json::Bool(true)) => Some(TypeRef::named(DEDUCED)),
            Some(schema) => Some(self.reference(schema, unknown, depth)),
        };
        Map { fields, element, relation: self.map_relation(definition).unwrap_or(Relation::Granular) }
    }

    fn map_relation(&mut self, definition: &Json) -> Option<Relation> {
        match definition.get("x-kubernetes-map-type")? {
            Json::String(kind) if kind == "atomic" => Some(Relation::Atomic),
            Json::String(kind) if kind == "granular" => Some(Relation::Granular),
            other => {
                self.error(format_args!("unknown map type {other}"));
                None
            }
        }
    }

    fn list(&mut self, definition: &Json, unknown: UnknownFields, depth: usize) -> List {
        let (relation, keys) = self.list_relation(definition);
        let element = match definition.get("items") {
            Some(items @ Json::Object(_)) => self.reference(items, unknown, depth),
            items => {
                if items.is_some() || kind(definition).is_some() {
                    self.error("`items` must be specified on arrays");
                }
                TypeRef::named(UNTYPED)
            }
        };
        List { element, relation, keys }
    }

    fn list_relation(&mut self, definition: &Json) -> (Relation, Vec<Arc<str>>) {
        if let Some(kind) = definition.get("x-kubernetes-list-type") {
            return match kind.as_str() {
                Some("atomic") => (Relation::Atomic, Vec::new()),
                Some("set") => (Relation::Granular, Vec::new()),
                Some("map") => match definition.get("x-kubernetes-list-map-keys") {
                    Some(Json::Array(keys)) => {
                        (Relation::Granular, keys.iter().filter_map(Json::as_str).map(Arc::from).collect())
                    }
                    Some(keys) => {
                        self.error(format_args!("uninterpreted map keys: {keys}"));
                        (Relation::Granular, Vec::new())
                    }
                    None => {
                        self.error("missing map keys");
                        (Relation::Granular, Vec::new())
                    }
                },
                _ => {
                    self.error(format_args!("unknown list type {kind}"));
                    (Relation::Atomic, Vec::new())
                }
            };
        }
        // What strategic merge patches follow, where nothing is said for structured merge.
        match definition.get("x-kubernetes-patch-strategy").map(|strategy| strategy.as_str().unwrap_or_default()) {
            None | Some("retainKeys") => (Relation::Atomic, Vec::new()),
            Some("merge" | "merge,retainKeys") => match definition.get("x-kubernetes-patch-merge-key") {
                None => (Relation::Granular, Vec::new()),
                Some(Json::String(key)) => (Relation::Granular, vec![Arc::from(key.as_str())]),
                Some(key) => {
                    self.error(format_args!("uninterpreted merge key: {key}"));
                    (Relation::Granular, Vec::new())
                }
            },
            Some(other) => {
                self.error(format_args!("unknown patch strategy {other}"));
                (Relation::Atomic, Vec::new())
            }
        }
    }
}

#[cfg(test)]
mod tests;
