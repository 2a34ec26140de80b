use serde_json::Value;

use super::{document::Document, json, merge};
use crate::{codec, test_vectors};

fn document(text: &str) -> Result<Document, String> {
    codec::json::parse_untyped(text.as_bytes()).map(Document::from_node).map_err(|e| e.to_string())
}

/// JSON as a value, if it is any.
fn value(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok()
}

#[test]
fn json_patches_agree_with_go() {
    for case in test_vectors::lines(include_str!("../../tests/vectors/patch/json.jsonl")) {
        let id = case["id"].as_str().unwrap();
        // Objects of a server are neither absent, nor broken, nor null: those documents end before a patch does.
        let Ok(mut document) = document(case["original"].as_str().unwrap()) else { continue };
        if matches!(document, Document::Null) {
            continue;
        }
        let patch = codec::json::parse_untyped(case["patch"].as_str().unwrap().as_bytes());
        let operations = patch.map_err(|e| e.to_string()).and_then(json::Operation::list);
        let operations = match operations {
            Ok(operations) => operations,
            Err(error) => {
                let expected = case["decodeError"].as_str().unwrap_or_else(|| panic!("{id}: {error}"));
                assert_eq!(error.split(" into ").next(), expected.split(" into ").next(), "{id}");
                continue;
            }
        };
        assert_eq!(case["decodeError"], Value::Null, "{id}");
        let limit = case["copyLimit"].as_u64().unwrap_or(0) as usize;
        match json::apply(&mut document, operations, limit) {
            Ok(()) => {
                assert_eq!(case["error"], Value::Null, "{id}");
                assert_eq!(document.to_text(), case["result"], "{id}");
            }
            // Go says of a scalar that it cannot be decoded; here nothing can be found in it.
            Err(_) if case["error"].as_str().is_some_and(|e| e.starts_with("json: cannot unmarshal")) => {}
            Err(error) => assert_eq!(error.to_string(), case["error"], "{id}"),
        }
    }
}

#[test]
fn merge_patches_agree_with_go() {
    for case in test_vectors::lines(include_str!("../../tests/vectors/patch/merge.jsonl")) {
        let id = case["id"].as_str().unwrap();
        let Ok(mut document) = document(case["original"].as_str().unwrap()) else {
            assert_eq!(case["error"], "Invalid JSON Document", "{id}");
            continue;
        };
        let patch = self::document(case["patch"].as_str().unwrap());
        match patch.map_err(|_| merge::BAD_PATCH).and_then(|patch| merge::apply(&mut document, patch)) {
            Ok(()) => {
                assert_eq!(case["error"], Value::Null, "{id}");
                assert_eq!(value(&document.to_text()), value(case["result"].as_str().unwrap()), "{id}");
            }
            Err(error) => assert_eq!(error, case["error"], "{id}"),
        }
    }
}

#[test]
fn no_patch_makes_a_document_too_deep_to_walk() {
    // Each pair of moves puts the whole document one level deeper.
    let pair = r#"{"op":"add","path":"/b","value":{}},{"op":"move","from":"/a","path":"/b/a"},{"op":"move","from":"/b","path":"/a"}"#;
    let operations = vec![pair; 2000];
    let patch = format!("[{}]", operations.join(","));
    let operations = json::Operation::list(codec::json::parse_untyped(patch.as_bytes()).unwrap()).unwrap();
    let mut document = document(r#"{"a":{}}"#).unwrap();
    let error = json::apply(&mut document, operations, 0).unwrap_err();
    assert_eq!(error.to_string(), "the patched document is nested deeper than 120 levels");
}

#[test]
fn a_patch_does_not_keep_a_processor_busy() {
    let large = || document(&format!(r#"{{"a":[{}0],"b":{{}}}}"#, "0,".repeat(1_200_000))).unwrap();
    let there = r#"{"op":"move","from":"/a","path":"/b/a"},{"op":"move","from":"/b/a","path":"/a"}"#;
    for (operation, refused) in [
        (r#"{"op":"add","path":"/a/0","value":0}"#, true),
        (r#"{"op":"remove","path":"/a/0"}"#, true),
        (r#"{"op":"move","from":"/a/0","path":"/a/-"}"#, true),
        (r#"{"op":"copy","from":"/b","path":"/a/1"}"#, true),
        (there, true),
        (r#"{"op":"add","path":"/a/-","value":0}"#, false),
        (r#"{"op":"remove","path":"/a/-1"}"#, false),
        (r#"{"op":"replace","path":"/a/0","value":1}"#, false),
        (r#"{"op":"move","from":"/b","path":"/b"}"#, false),
        (r#"{"op":"test","path":"/a/0","value":0}"#, false),
    ] {
        let patch = format!("[{}]", vec![operation; 4_000].join(","));
        let operations = json::Operation::list(codec::json::parse_untyped(patch.as_bytes()).unwrap()).unwrap();
        let mut document = large();
        let error = json::apply(&mut document, operations, 0).err().map(|e| e.to_string());
        let expected = "the operations of the JSON patch move more than 10000000 values; split it into several patches";
        assert_eq!(error.as_deref(), refused.then_some(expected), "{operation}");
    }
}
