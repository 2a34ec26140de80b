//! The fields of a type, from the schema that kube-apiserver holds.

use anyhow::{Context, Result};
use serde_json::Value;
use xtask::cluster::Kubectl;

/// The paths of all fields of a type's `spec` that hold a value, such as `spec.clients[].name`; `{}` stands for the keys of a
/// map.
pub(crate) fn fields(kubectl: &Kubectl, definition: &str) -> Result<Vec<String>> {
    let object = kubectl.json(&["get", "crd", definition])?;
    let schema =
        object.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").context("there is no spec")?;
    let mut fields = Vec::new();
    walk(schema, "spec".to_owned(), &mut fields);
    Ok(fields)
}

fn walk(schema: &Value, path: String, fields: &mut Vec<String>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    let items = schema.get("items");
    let values = schema.get("additionalProperties").filter(|values| values.is_object());
    if properties.is_none() && items.is_none() && values.is_none() {
        fields.push(path.clone());
    }
    // Whatever the schema does not name is a field, too.
    if schema.get("x-kubernetes-preserve-unknown-fields").is_some_and(|any| any == true)
        || schema.get("additionalProperties").is_some_and(|any| any == true)
    {
        fields.push(format!("{path}.*"));
    }
    for (name, property) in properties.into_iter().flatten() {
        walk(property, format!("{path}.{name}"), fields);
    }
    if let Some(items) = items {
        walk(items, format!("{path}[]"), fields);
    }
    if let Some(values) = values {
        walk(values, format!("{path}{{}}"), fields);
    }
}
