//! Metadata of objects.

use std::sync::Arc;

use crate::{
    Kind,
    value::{Map, Value},
};

/// The managed fields. Absent and null ones are the same, an empty list is another thing.
pub(super) fn managed_fields(object: &Value) -> Option<&Value> {
    object.at(&["metadata", "managedFields"]).filter(|value| !value.is_null())
}

/// Sets the managed fields, or takes them away.
pub(super) fn set_managed_fields(object: &mut Value, entries: Option<Value>) {
    let Some(object) = object.map_mut() else { return };
    match (object.get_mut("metadata").and_then(Value::map_mut), entries) {
        (Some(metadata), Some(entries)) => {
            metadata.insert("managedFields", entries);
        }
        (Some(metadata), None) => {
            metadata.remove("managedFields");
        }
        (None, Some(entries)) => {
            object.insert("metadata", Map::from_iter([(Arc::from("managedFields"), entries)]).into());
        }
        (None, None) => {}
    }
}

/// The object without its managed fields.
pub(super) fn without_managed_fields(object: &Value) -> Value {
    let mut object = object.clone();
    if object.at(&["metadata", "managedFields"]).is_some() {
        set_managed_fields(&mut object, None);
    }
    object
}

/// A text of the metadata, empty if it is not there.
pub(super) fn metadata<'a>(object: &'a Value, name: &str) -> &'a str {
    object.at(&["metadata", name]).and_then(Value::as_str).unwrap_or_default()
}

/// The annotations, unless one of them is no text.
pub(super) fn annotations(object: &Value) -> Option<&Map> {
    let annotations = object.at(&["metadata", "annotations"])?.as_map()?;
    annotations.entries().iter().all(|(_, value)| value.as_str().is_some()).then_some(annotations)
}

/// Sets the annotations, or takes them away.
pub(super) fn set_annotations(object: &mut Value, annotations: Option<Map>) {
    let metadata = object.map_mut().and_then(|object| object.get_mut("metadata")).and_then(Value::map_mut);
    match (metadata, annotations) {
        (Some(metadata), Some(annotations)) => {
            metadata.insert("annotations", annotations.into());
        }
        (Some(metadata), None) => {
            metadata.remove("annotations");
        }
        (None, _) => {}
    }
}

/// How messages name an object: `namespace/name; group/version, Kind=kind`.
pub(super) fn name(object: &Value) -> String {
    format!("{}/{}; {}", metadata(object, "namespace"), metadata(object, "name"), Kind::of(object))
}
