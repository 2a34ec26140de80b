//! Rules for `metadata` (k8s.io/apimachinery `pkg/api/validation/objectmeta.go`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{ErrorList, FieldError, Path, names, options};
use crate::meta::{ManagedFieldsEntry, ObjectMeta, OwnerReference};

/// The most that an object's annotations may come to, keys and values, in bytes.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// The longest name of a subresource in managed fields, in bytes.
const MAX_SUBRESOURCE: usize = 256;

const IMMUTABLE: &str = "field is immutable";
const NEGATIVE: &str = "must be greater than or equal to 0";

/// Checks the metadata of an object that is to be created, its name generated already. Names are DNS subdomains.
pub fn object_meta(meta: &ObjectMeta, namespaced: bool) -> ErrorList {
    let mut errors = ErrorList::new();
    let at = Path::new("metadata");
    let base = text(&meta.generate_name);
    if !base.is_empty() {
        let rules = names::dns_subdomain(&names::mask_trailing_dash(base));
        errors.extend(rules.into_iter().map(|rule| FieldError::invalid(&at.child("generateName"), base, rule)));
    }
    let name = text(&meta.name);
    if name.is_empty() {
        errors.push(FieldError::required(&at.child("name"), "name or generateName is required"));
    } else {
        let rules = names::dns_subdomain(name);
        errors.extend(rules.into_iter().map(|rule| FieldError::invalid(&at.child("name"), name, rule)));
    }
    let namespace = text(&meta.namespace);
    match (namespaced, namespace.is_empty()) {
        (true, true) => errors.push(FieldError::required(&at.child("namespace"), "")),
        (true, false) => {
            let rules = names::dns_label(namespace);
            errors.extend(rules.into_iter().map(|rule| FieldError::invalid(&at.child("namespace"), namespace, rule)));
        }
        (false, false) => errors.push(FieldError::forbidden(&at.child("namespace"), "not allowed on this type")),
        (false, true) => {}
    }
    errors.extend(nonnegative(meta.generation.unwrap_or_default(), &at.child("generation")));
    errors.extend(labels(meta.labels.as_ref().unwrap_or(&BTreeMap::new()), &at.child("labels")));
    errors.extend(annotations(meta.annotations.as_ref().unwrap_or(&BTreeMap::new()), &at.child("annotations")));
    errors.extend(owner_references(meta.owner_references.as_deref().unwrap_or_default(), &at.child("ownerReferences")));
    errors.extend(finalizers(meta.finalizers.as_deref().unwrap_or_default(), &at.child("finalizers")));
    errors.extend(managed_fields(meta.managed_fields.as_deref().unwrap_or_default(), &at.child("managedFields")));
    errors
}

/// Checks the metadata of an object that is to replace another.
pub fn object_meta_update(new: &ObjectMeta, old: &ObjectMeta) -> ErrorList {
    let mut errors = ErrorList::new();
    let at = Path::new("metadata");
    if old.deletion_timestamp.is_some() {
        let before: BTreeSet<_> = old.finalizers.iter().flatten().collect();
        let extra: BTreeSet<_> = new.finalizers.iter().flatten().filter(|f| !before.contains(f)).collect();
        if !extra.is_empty() {
            let listed: Vec<_> = extra.into_iter().map(|f| crate::quote::quote(f)).collect();
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                listed.join(", ")
            );
            errors.push(FieldError::forbidden(&at.child("finalizers"), detail));
        }
    }
    if text(&new.resource_version).is_empty() {
        errors.push(FieldError::invalid(&at.child("resourceVersion"), "", "must be specified for an update"));
    }
    let generation = new.generation.unwrap_or_default();
    errors.extend(nonnegative(generation, &at.child("generation")));
    if generation < old.generation.unwrap_or_default() {
        errors.push(FieldError::invalid(&at.child("generation"), generation, "must not be decremented"));
    }
    for (field, new, old) in
        [("name", &new.name, &old.name), ("namespace", &new.namespace, &old.namespace), ("uid", &new.uid, &old.uid)]
    {
        if text(new) != text(old) {
            errors.push(FieldError::invalid(&at.child(field), text(new), IMMUTABLE));
        }
    }
    for (field, new, old) in [
        ("creationTimestamp", &new.creation_timestamp, &old.creation_timestamp),
        ("deletionTimestamp", &new.deletion_timestamp, &old.deletion_timestamp),
    ] {
        if new != old {
            errors.push(FieldError::invalid(&at.child(field), value(new), IMMUTABLE));
        }
    }
    if new.deletion_grace_period_seconds != old.deletion_grace_period_seconds {
        let field = at.child("deletionGracePeriodSeconds");
        errors.push(FieldError::invalid(&field, grace_period(new.deletion_grace_period_seconds), IMMUTABLE));
    }
    errors.extend(labels(new.labels.as_ref().unwrap_or(&BTreeMap::new()), &at.child("labels")));
    errors.extend(annotations(new.annotations.as_ref().unwrap_or(&BTreeMap::new()), &at.child("annotations")));
    errors.extend(owner_references(new.owner_references.as_deref().unwrap_or_default(), &at.child("ownerReferences")));
    errors.extend(managed_fields(new.managed_fields.as_deref().unwrap_or_default(), &at.child("managedFields")));
    errors
}

fn text(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or_default()
}

fn value<T: serde::Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

fn grace_period(seconds: Option<i64>) -> Value {
    seconds.map_or(Value::Null, Value::from)
}

fn nonnegative(value: i64, path: &Path) -> Option<FieldError> {
    (value < 0).then(|| FieldError::invalid(path, value, NEGATIVE))
}

/// Checks a label's key.
pub fn label_name(name: &str, path: &Path) -> ErrorList {
    names::qualified_name(name).into_iter().map(|rule| FieldError::invalid(path, name, rule)).collect()
}

/// Checks labels.
pub fn labels(labels: &BTreeMap<String, String>, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (key, value) in labels {
        errors.extend(label_name(key, path));
        let rules = names::label_value(value);
        errors.extend(rules.into_iter().map(|rule| FieldError::invalid(path, value.as_str(), rule)));
    }
    errors
}

/// Checks annotations: their keys, and how large they are together.
pub fn annotations(annotations: &BTreeMap<String, String>, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for key in annotations.keys() {
        let rules = names::qualified_name(&key.to_lowercase());
        errors.extend(rules.into_iter().map(|rule| FieldError::invalid(path, key.as_str(), rule)));
    }
    if annotations.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > MAX_ANNOTATIONS {
        errors.push(FieldError::too_long(path, MAX_ANNOTATIONS));
    }
    errors
}

/// Checks a finalizer.
pub fn finalizer(name: &str, path: &Path) -> ErrorList {
    names::qualified_name(name).into_iter().map(|rule| FieldError::invalid(path, name, rule)).collect()
}

fn finalizers(finalizers: &[String], path: &Path) -> ErrorList {
    let mut errors: ErrorList = finalizers.iter().flat_map(|name| finalizer(name, path)).collect();
    let has = |name: &str| finalizers.iter().any(|f| f == name);
    if has("orphan") && has("foregroundDeletion") {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(path, finalizers.to_vec(), detail));
    }
    errors
}

fn owner_references(references: &[OwnerReference], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut controller: Option<String> = None;
    for (index, reference) in references.iter().enumerate() {
        errors.extend(owner_reference(reference, &path.index(index)));
        if reference.controller == Some(true) {
            let name = format!("{}/{}", reference.kind, reference.name);
            match &controller {
                None => controller = Some(name),
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                    );
                    errors.push(FieldError::invalid(path, value(&references), detail));
                }
            }
        }
    }
    errors
}

fn owner_reference(reference: &OwnerReference, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let api_version = reference.api_version.as_str();
    if api_version.is_empty() {
        errors.push(FieldError::required(&path.child("apiVersion"), "must not be empty"));
    } else if api_version.matches('/').count() > 1 || api_version.ends_with('/') {
        let rule = "must be <group>/<version> or <version>";
        errors.push(FieldError::invalid(&path.child("apiVersion"), api_version, rule));
    }
    for (field, text) in [("kind", &reference.kind), ("name", &reference.name), ("uid", &reference.uid)] {
        if text.is_empty() {
            errors.push(FieldError::required(&path.child(field), "must not be empty"));
        }
    }
    if api_version == "v1" && reference.kind == "Event" {
        let detail = "/v1, Kind=Event is disallowed from being an owner";
        errors.push(FieldError::invalid(path, value(reference), detail));
    }
    errors
}

fn managed_fields(entries: &[ManagedFieldsEntry], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (index, entry) in entries.iter().enumerate() {
        let at = path.index(index);
        match text(&entry.operation) {
            "" => errors.push(FieldError::required(&at.child("operation"), "must not be empty")),
            "Apply" | "Update" => {}
            other => errors.push(FieldError::not_supported(&at.child("operation"), other, &["Apply", "Update"])),
        }
        let fields_type = text(&entry.fields_type);
        if !fields_type.is_empty() && fields_type != "FieldsV1" {
            errors.push(FieldError::invalid(&at.child("fieldsType"), fields_type, "must be `FieldsV1`"));
        }
        errors.extend(options::field_manager(text(&entry.manager), &at.child("manager")));
        if text(&entry.subresource).len() > MAX_SUBRESOURCE {
            errors.push(FieldError::too_long(&at.child("subresource"), MAX_SUBRESOURCE));
        }
    }
    errors
}
