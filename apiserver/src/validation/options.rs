//! Rules for the options of requests (k8s.io/apimachinery `pkg/apis/meta/v1/validation`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, DeleteOptions};
use serde_json::Value;

use super::{ErrorList, FieldError, Path, metadata, names};
use crate::quote;

/// The longest name of a field manager, in bytes.
const MAX_FIELD_MANAGER: usize = 128;

/// Checks the name of a field manager: printable, and not too long.
pub fn field_manager(name: &str, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if name.len() > MAX_FIELD_MANAGER {
        errors.push(FieldError::too_long(path, MAX_FIELD_MANAGER));
    }
    for (at, c) in name.char_indices().filter(|(_, c)| !quote::printable(*c)) {
        let detail = format!("invalid character U+{:04X} (at position {at})", c as u32);
        errors.push(FieldError::invalid(path, name, detail));
    }
    errors
}

/// Checks `dryRun`: the only value is `All`.
pub fn dry_run(values: &[String], path: &Path) -> ErrorList {
    if values.iter().all(|v| v == "All") {
        ErrorList::new()
    } else {
        FieldError::not_supported(path, values.to_vec(), &["All"]).into()
    }
}

/// Checks `fieldValidation`.
pub fn field_validation(value: &str, path: &Path) -> ErrorList {
    match value {
        "" | "Ignore" | "Strict" | "Warn" => ErrorList::new(),
        other => FieldError::not_supported(path, other, &["", "Ignore", "Strict", "Warn"]).into(),
    }
}

/// Checks the options of a deletion.
pub fn delete_options(options: &DeleteOptions) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("propagationPolicy");
    if let Some(policy) = options.propagation_policy.as_deref() {
        if options.orphan_dependents.is_some() {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid(&path, policy, detail));
        }
        if !matches!(policy, "Foreground" | "Background" | "Orphan") {
            let supported = ["Foreground", "Background", "Orphan", "nil"];
            errors.push(FieldError::not_supported(&path, policy, &supported));
        }
    }
    errors.extend(dry_run(options.dry_run.as_deref().unwrap_or_default(), &Path::new("dryRun")));
    errors.extend(ignore_store_read_error(options));
    errors
}

fn ignore_store_read_error(options: &DeleteOptions) -> ErrorList {
    if options.ignore_store_read_error_with_cluster_breaking_potential != Some(true) {
        return ErrorList::new();
    }
    let path = Path::new("ignoreStoreReadErrorWithClusterBreakingPotential");
    [
        ("propagationPolicy", options.propagation_policy.is_some()),
        ("orphanDependents", options.orphan_dependents.is_some()),
        ("gracePeriodSeconds", options.grace_period_seconds.is_some()),
        ("preconditions", options.preconditions.is_some()),
    ]
    .into_iter()
    .filter(|(_, set)| *set)
    .map(|(name, _)| FieldError::invalid(&path, true, format!("cannot be set together with .{name}")))
    .collect()
}

/// Checks a condition of an object's status.
pub fn condition(condition: &Condition, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if condition.type_.is_empty() {
        errors.push(FieldError::required(&path.child("type"), "is required"));
    } else {
        errors.extend(metadata::label_name(&condition.type_, &path.child("type")));
    }
    match condition.status.as_str() {
        "" => errors.push(FieldError::required(&path.child("status"), "")),
        "True" | "False" | "Unknown" => {}
        other => {
            errors.push(FieldError::not_supported(&path.child("status"), other, &["False", "True", "Unknown"]));
        }
    }
    if let Some(generation) = condition.observed_generation.filter(|g| *g < 0) {
        let path = path.child("observedGeneration");
        errors.push(FieldError::invalid(&path, Value::from(generation), "must be greater than or equal to zero"));
    }
    if condition.reason.is_empty() {
        errors.push(FieldError::required(&path.child("reason"), ""));
    } else {
        let path = path.child("reason");
        let rules = names::condition_reason(&condition.reason);
        errors.extend(rules.into_iter().map(|rule| FieldError::invalid(&path, condition.reason.as_str(), rule)));
        if condition.reason.len() > 1024 {
            errors.push(FieldError::too_long(&path, 1024));
        }
    }
    if condition.message.len() > 32 * 1024 {
        errors.push(FieldError::too_long(&path.child("message"), 32 * 1024));
    }
    errors
}
