//! From the JSON schemas that Rust types describe themselves with to those that Kubernetes publishes.
//!
//! JSON Schema (draft 2020-12, as schemars writes it) says more than OpenAPI 3.0 can, and says some things differently.
//! What OpenAPI cannot say is left out, so that documents promise too little rather than too much. Swagger 2 in turn says
//! less than OpenAPI 3.0.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    OpenApiError, names,
    shared::{self, GROUP_VERSION_KIND, META_V1},
};

/// Where references of OpenAPI 3 point to.
pub(super) const V3_PREFIX: &str = "#/components/schemas/";
/// Where references of Swagger 2 point to.
pub(super) const V2_PREFIX: &str = "#/definitions/";

/// What stands for a value of which nothing is known.
const ANYTHING: &str = "x-kubernetes-preserve-unknown-fields";

/// Extensions about strategic merge patches, which are not served.
const STRATEGIC: [&str; 3] = ["x-kubernetes-patch-strategy", "x-kubernetes-patch-merge-key", "x-kubernetes-unions"];

/// Keywords whose meaning and form are the same on both sides.
const SAME: [&str; 12] = [
    "description",
    "enum",
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "minItems",
    "minLength",
    "minProperties",
    "multipleOf",
    "pattern",
    "uniqueItems",
];

/// Definitions by name, in the form of OpenAPI 3.
pub(super) type Definitions = BTreeMap<String, Value>;

/// The definitions of a kind, its list kind and the types of their fields.
pub(super) fn definitions(
    group: &str,
    version: &str,
    kind: &str,
    list_kind: Option<&str>,
    schema: &schemars::Schema,
) -> Result<Definitions, OpenApiError> {
    let mut root = match schema.as_value() {
        Value::Object(root) => root.clone(),
        _ => Map::new(),
    };
    let types = match root.remove("$defs") {
        Some(Value::Object(types)) => types,
        _ => Map::new(),
    };
    let rewriter = Rewriter { group, version, kind, types: &types };
    // A type that refers to itself is in its own `$defs`, and the root refers there.
    if let Some(own) = root.get("$ref").and_then(Value::as_str).map(local_name) {
        root = types.get(&own).and_then(Value::as_object).cloned().unwrap_or_default();
    }

    let mut definitions = Definitions::new();
    let mut add = |name: String, definition: Value| match definitions.insert(name.clone(), definition.clone()) {
        Some(other) if other != definition => Err(rewriter.name_taken(name)),
        _ => Ok(()),
    };
    let name = names::definition(group, version, kind);
    let root = rewriter.rewrite(&Value::Object(root))?;
    for (local, definition) in types.iter().filter(|(local, _)| !shared::v3().contains_key(*local)) {
        let (published, definition) = (rewriter.published(local)?, rewriter.rewrite(definition)?);
        // A type that contains itself stands both at the root and here.
        if published != name || definition != root {
            add(published, definition)?;
        }
    }
    add(name.clone(), object(root, group, version, kind))?;
    if let Some(list_kind) = list_kind {
        add(names::definition(group, version, list_kind), list(group, version, kind, list_kind, &name))?;
    }
    Ok(definitions)
}

/// Makes a kind of an object's schema.
fn object(mut schema: Value, group: &str, version: &str, kind: &str) -> Value {
    if let Value::Object(schema) = &mut schema {
        schema.insert("type".to_owned(), json!("object"));
        if let Value::Object(properties) = schema.entry("properties").or_insert_with(|| json!({})) {
            properties.extend(shared::type_meta().map(|(name, property)| (name.to_owned(), property)));
        }
        let kinds = json!([shared::group_version_kind(group, version, kind)]);
        schema.insert(GROUP_VERSION_KIND.to_owned(), kinds);
    }
    schema
}

fn list(group: &str, version: &str, kind: &str, list_kind: &str, item: &str) -> Value {
    let schema = json!({
        "description": format!("{list_kind} is a list of {kind} objects."),
        "required": ["items"],
        "properties": {
            "items": { "type": "array", "items": { "$ref": format!("{V3_PREFIX}{item}") } },
            "metadata": { "default": {}, "allOf": [{ "$ref": format!("{V3_PREFIX}{META_V1}ListMeta") }] },
        },
    });
    object(schema, group, version, list_kind)
}

/// The name at the end of a reference into `$defs`.
fn local_name(reference: &str) -> String {
    let name = reference.rsplit('/').next().unwrap_or_default();
    let name = percent_encoding::percent_decode_str(name).decode_utf8_lossy();
    name.replace("~1", "/").replace("~0", "~")
}

/// Rewrites the schema of one kind.
struct Rewriter<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    types: &'a Map<String, Value>,
}

// === impl Rewriter ===

impl Rewriter<'_> {
    /// The name under which a type is published. Shared types keep theirs.
    fn published(&self, name: &str) -> Result<String, OpenApiError> {
        if shared::v3().contains_key(name) {
            return Ok(name.to_owned());
        }
        if !self.types.contains_key(name) {
            return Err(OpenApiError::UnknownType {
                group_version: format!("{}/{}", self.group, self.version),
                kind: self.kind.to_owned(),
                name: name.to_owned(),
            });
        }
        // Types of other groups are copied: what the original publishes of them is not known here.
        let own = name.strip_prefix("io.k8s.api.").unwrap_or(name);
        Ok(names::definition(self.group, self.version, own))
    }

    fn name_taken(&self, name: String) -> OpenApiError {
        let group_version = format!("{}/{}", self.group, self.version);
        OpenApiError::NameTaken { group_version, kind: self.kind.to_owned(), name }
    }

    fn rewrite(&self, schema: &Value) -> Result<Value, OpenApiError> {
        let Value::Object(schema) = schema else {
            return Ok(json!({ ANYTHING: true }));
        };
        let mut out = Map::new();
        for (keyword, value) in schema {
            let extension = keyword.starts_with("x-") && !STRATEGIC.contains(&keyword.as_str());
            if extension || SAME.contains(&keyword.as_str()) {
                out.insert(keyword.clone(), value.clone());
            }
        }
        self.rewrite_reference(schema, &mut out)?;
        rewrite_type(schema, &mut out);
        rewrite_bounds(schema, &mut out);
        self.rewrite_object(schema, &mut out)?;
        self.rewrite_array(schema, &mut out)?;
        self.rewrite_alternatives(schema, &mut out)?;
        rewrite_default(schema, &mut out);
        if out.keys().all(|keyword| matches!(keyword.as_str(), "description" | "default")) {
            out.insert(ANYTHING.to_owned(), json!(true));
        }
        match array(&out, "allOf") {
            [one] if out.len() == 1 => Ok(one.clone()),
            _ => Ok(Value::Object(out)),
        }
    }

    /// OpenAPI 3.0 ignores what stands beside a reference, so the reference goes into an `allOf`.
    fn rewrite_reference(&self, schema: &Map<String, Value>, out: &mut Map<String, Value>) -> Result<(), OpenApiError> {
        let mut all = Vec::new();
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let name = self.published(&local_name(reference))?;
            all.push(json!({ "$ref": format!("{V3_PREFIX}{name}") }));
        }
        for part in array(schema, "allOf") {
            all.push(self.rewrite(part)?);
        }
        if !all.is_empty() {
            out.insert("allOf".to_owned(), Value::Array(all));
        }
        Ok(())
    }

    fn rewrite_object(&self, schema: &Map<String, Value>, out: &mut Map<String, Value>) -> Result<(), OpenApiError> {
        if let Some(Value::Object(properties)) = schema.get("properties") {
            let mut rewritten = Map::new();
            for (name, property) in properties {
                rewritten.insert(name.clone(), self.rewrite(property)?);
            }
            out.insert("properties".to_owned(), Value::Object(rewritten));
        }
        if let Some(Value::Array(required)) =
            schema.get("required").filter(|r| r.as_array().is_some_and(|r| !r.is_empty()))
        {
            out.insert("required".to_owned(), Value::Array(required.clone()));
        }
        match schema.get("additionalProperties") {
            Some(values @ Value::Object(_)) => {
                out.insert("additionalProperties".to_owned(), self.rewrite(values)?);
            }
            Some(Value::Bool(true)) => {
                out.insert(ANYTHING.to_owned(), json!(true));
            }
            // Unknown fields are refused or dropped in any case, as `fieldValidation` says.
            _ => {}
        }
        Ok(())
    }

    fn rewrite_array(&self, schema: &Map<String, Value>, out: &mut Map<String, Value>) -> Result<(), OpenApiError> {
        if out.get("type").is_none_or(|t| t != "array") {
            return Ok(());
        }
        let items = match schema.get("items").filter(|_| !schema.contains_key("prefixItems")) {
            Some(items) => self.rewrite(items)?,
            // The items of a tuple differ, and OpenAPI 3.0 knows one schema for all.
            None => json!({ ANYTHING: true }),
        };
        out.insert("items".to_owned(), items);
        Ok(())
    }

    /// `anyOf` and `oneOf`: an optional value, an enumeration, or real alternatives.
    fn rewrite_alternatives(
        &self,
        schema: &Map<String, Value>,
        out: &mut Map<String, Value>,
    ) -> Result<(), OpenApiError> {
        for keyword in ["anyOf", "oneOf"] {
            let mut alternatives = Vec::new();
            // That a value may be null goes without saying: null means absent.
            for alternative in array(schema, keyword).iter().filter(|a| a.get("type") != Some(&json!("null"))) {
                alternatives.push(self.rewrite(alternative)?);
            }
            if alternatives.is_empty() {
                continue;
            }
            if alternatives.len() == 1 {
                for (keyword, value) in alternatives.into_iter().filter_map(into_object).flatten() {
                    if keyword == "$ref" {
                        out.insert("allOf".to_owned(), json!([{ "$ref": value }]));
                    } else {
                        out.entry(keyword).or_insert(value);
                    }
                }
            } else if let Some(values) = enumeration(&alternatives) {
                out.insert("type".to_owned(), json!("string"));
                describe_values(out, &alternatives);
                out.insert("enum".to_owned(), Value::Array(values));
            } else {
                hoist_properties(out, &mut alternatives);
                out.insert(keyword.to_owned(), Value::Array(alternatives));
            }
        }
        if let Some(not) = schema.get("not") {
            out.insert("not".to_owned(), self.rewrite(not)?);
        }
        Ok(())
    }
}

fn rewrite_type(schema: &Map<String, Value>, out: &mut Map<String, Value>) {
    let types: Vec<&str> = match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).filter(|t| *t != "null").collect(),
        _ => Vec::new(),
    };
    match types.as_slice() {
        [] => {}
        [one] => {
            out.insert("type".to_owned(), json!(one));
        }
        several => {
            let alternatives: Vec<_> = several.iter().map(|t| json!({ "type": t })).collect();
            out.insert("anyOf".to_owned(), Value::Array(alternatives));
        }
    }
    if let Some(value) = schema.get("const") {
        out.insert("enum".to_owned(), json!([value]));
        if value.is_string() {
            out.entry("type").or_insert_with(|| json!("string"));
        }
    }
    // An enumeration of an optional type lists null.
    if let Some(Value::Array(values)) = out.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    let format = match out.get("format").and_then(Value::as_str) {
        Some("int8" | "int16" | "uint8" | "uint16") => Some("int32"),
        Some("int" | "uint" | "uint32" | "uint64") => Some("int64"),
        _ => None,
    };
    if let Some(format) = format {
        out.insert("format".to_owned(), json!(format));
    }
    if schema.contains_key("properties") || schema.get("additionalProperties").is_some_and(Value::is_object) {
        out.entry("type").or_insert_with(|| json!("object"));
    }
}

/// In OpenAPI 3.0 a bound is exclusive by a flag beside it.
fn rewrite_bounds(schema: &Map<String, Value>, out: &mut Map<String, Value>) {
    for (bound, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
        if let Some(value) = schema.get(bound) {
            out.insert(bound.to_owned(), value.clone());
        } else if let Some(value) = schema.get(exclusive) {
            out.insert(bound.to_owned(), value.clone());
            out.insert(exclusive.to_owned(), json!(true));
        }
    }
}

/// A struct's default is that of its fields; empty lists and maps go without saying.
fn rewrite_default(schema: &Map<String, Value>, out: &mut Map<String, Value>) {
    let Some(default) = schema.get("default") else { return };
    let default = match default {
        Value::Null => return,
        Value::Object(_) if out.contains_key("allOf") => json!({}),
        Value::Object(fields) if fields.is_empty() => return,
        Value::Array(items) if items.is_empty() => return,
        default => default.clone(),
    };
    out.insert("default".to_owned(), default);
}

/// The values, when each alternative is one or some of them.
fn enumeration(alternatives: &[Value]) -> Option<Vec<Value>> {
    let mut all = Vec::new();
    for alternative in alternatives {
        let values = alternative.get("enum")?.as_array()?;
        if alternative.get("type") != Some(&json!("string")) || !values.iter().all(Value::is_string) {
            return None;
        }
        all.extend(values.iter().cloned());
    }
    Some(all)
}

/// Adds what is known of each value to the description of all, in the words of the original
/// (k8s.io/kube-openapi `pkg/generators/enum.go`).
fn describe_values(out: &mut Map<String, Value>, alternatives: &[Value]) {
    if alternatives.iter().all(|a| shared::text(a, "description").is_empty()) {
        return;
    }
    let mut text = out.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    if !text.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str("Possible enum values:");
    for alternative in alternatives {
        let Some(Value::Array(values)) = alternative.get("enum") else { continue };
        for value in values {
            text.push_str(&format!("\n - `{value}` {}", shared::text(alternative, "description")));
        }
    }
    out.insert("description".to_owned(), json!(text));
}

/// Shows the properties of all alternatives on the whole, where `kubectl explain` and Swagger 2 find them. The alternatives
/// then say only which of them go together.
fn hoist_properties(out: &mut Map<String, Value>, alternatives: &mut [Value]) {
    if !alternatives.iter().all(|a| a.get("type").is_some_and(|t| t == "object")) {
        return;
    }
    let mut all = match out.remove("properties") {
        Some(Value::Object(properties)) => properties,
        _ => Map::new(),
    };
    for alternative in alternatives.iter_mut().filter_map(Value::as_object_mut) {
        alternative.remove("type");
        let Some(Value::Object(properties)) = alternative.remove("properties") else { continue };
        for (name, property) in properties {
            match all.get(&name) {
                Some(other) if *other != property => {
                    all.insert(name, json!({ ANYTHING: true }));
                }
                _ => {
                    all.insert(name, property);
                }
            }
        }
    }
    out.insert("type".to_owned(), json!("object"));
    out.insert("properties".to_owned(), Value::Object(all));
}

fn into_object(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(object) => Some(object),
        _ => None,
    }
}

fn array<'a>(schema: &'a Map<String, Value>, keyword: &str) -> &'a [Value] {
    schema.get(keyword).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The same schema in the words of Swagger 2, which has no alternatives; defaults are left out as in the original
/// (k8s.io/kube-openapi `pkg/handler/default_pruning.go`).
pub(super) fn to_v2(schema: &Value) -> Value {
    let Value::Object(schema) = schema else { return schema.clone() };
    let mut out = Map::new();
    for (keyword, value) in schema {
        let value = match keyword.as_str() {
            "default" | "anyOf" | "oneOf" | "not" | "nullable" => continue,
            "$ref" => json!(shared::text(&Value::Object(schema.clone()), "$ref").replace(V3_PREFIX, V2_PREFIX)),
            "properties" => match value {
                Value::Object(properties) => {
                    Value::Object(properties.iter().map(|(name, p)| (name.clone(), to_v2(p))).collect())
                }
                _ => continue,
            },
            "items" | "additionalProperties" => to_v2(value),
            "allOf" => match array(schema, "allOf") {
                // Here what stands beside a reference counts.
                [one] if one.get("$ref").is_some() => {
                    out.extend(into_object(to_v2(one)).unwrap_or_default());
                    continue;
                }
                several => Value::Array(several.iter().map(to_v2).collect()),
            },
            _ => value.clone(),
        };
        out.insert(keyword.clone(), value);
    }
    Value::Object(out)
}

/// The names of the definitions that a value refers to.
pub(super) fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(object) => {
            for (keyword, value) in object {
                match value {
                    Value::String(reference) if keyword == "$ref" => {
                        found.extend(reference.strip_prefix(V3_PREFIX).or_else(|| reference.strip_prefix(V2_PREFIX)));
                    }
                    value => references(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}
