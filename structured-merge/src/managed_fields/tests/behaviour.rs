//! What the vectors do not show.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::{
    Kind,
    managed_fields::{DecodeError, FieldManager, FieldManagerError, Request, State, Untyped, keep_times, manager_name},
    updater::Force,
    value::Value,
};

use super::kinds::{Kinds, schemas};

fn json(value: serde_json::Value) -> Value {
    Value::try_from(&value).unwrap()
}

fn entry(manager: &str, time: &str) -> serde_json::Value {
    serde_json::json!({
        "manager": manager, "operation": "Update", "apiVersion": "v1", "time": time,
        "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:a": {}}},
    })
}

#[test]
fn a_manager_is_called_as_it_says_or_as_its_agent() {
    assert_eq!(manager_name("me", "kubectl/v1.37"), "me");
    assert_eq!(manager_name("", "kubectl/v1.37 (linux)"), "kubectl");
    assert_eq!(manager_name("", "a\u{7}b c/d"), "ab c");
    assert_eq!(manager_name("", &"é".repeat(100)), "é".repeat(64));
    assert_eq!(manager_name("", ""), "");
}

#[test]
fn times_stay_where_nothing_else_changes() {
    let object = |time, data| {
        json(serde_json::json!({"metadata": {"name": "x", "managedFields": [entry("m", time)]}, "data": data}))
    };
    let (old, later) = ("2000-01-01T00:00:00Z", "2000-01-01T00:00:09Z");
    let mut same = object(later, 1);
    keep_times(&mut same, &object(old, 1));
    assert_eq!(same, object(old, 1));
    let mut other = object(later, 2);
    keep_times(&mut other, &object(old, 1));
    assert_eq!(other, object(later, 2));
    let mut owned = json(serde_json::json!({"metadata": {"managedFields": [entry("n", later)]}}));
    let before = owned.clone();
    keep_times(&mut owned, &json(serde_json::json!({"metadata": {"managedFields": [entry("m", old)]}})));
    assert_eq!(owned, before);
}

#[test]
fn entries_are_read_and_written() {
    let entries = json(serde_json::json!([entry("m", "2000-01-01T02:00:00.5+02:00")]));
    let state = State::decode(Some(&entries)).unwrap();
    assert_eq!(state.encode().unwrap(), json(serde_json::json!([entry("m", "2000-01-01T00:00:00Z")])));
    assert_eq!(State::decode(None).unwrap().encode(), None);
    for (wrong, error) in [
        (serde_json::json!({"operation": "Delete"}), DecodeError::Operation),
        (serde_json::json!({"operation": "Apply"}), DecodeError::ApiVersion),
        (serde_json::json!({"operation": "Apply", "apiVersion": "v1"}), DecodeError::NoFieldsType(0)),
        (serde_json::json!({"operation": "Apply", "apiVersion": "v1", "manager": 1}), DecodeError::NoFieldsType(0)),
        (serde_json::json!(1), DecodeError::Malformed(0)),
    ] {
        assert_eq!(State::decode(Some(&json(serde_json::json!([wrong])))), Err(error));
    }
}

/// Runs a test with the manager of a kind without a schema.
fn with_manager(test: impl FnOnce(FieldManager<'_>)) {
    let reset_fields = BTreeMap::new();
    let kind = Kind::new("v1", "Thing");
    test(FieldManager {
        types: &Untyped,
        objects: &Kinds,
        kind: &kind,
        hub: "v1",
        subresource: "",
        reset_fields: &reset_fields,
    });
}

#[test]
fn what_is_no_object_is_refused() {
    with_manager(refuses_what_is_no_object);
}

fn refuses_what_is_no_object(manager: FieldManager<'_>) {
    let request = Request { manager: "m", force: Force::No, now: "2000-01-01T00:00:00Z".parse().unwrap() };
    let live = json(serde_json::json!({"apiVersion": "v1", "kind": "Thing"}));
    for config in [Value::Null, Value::Int(1), Value::list([]), "text".into()] {
        let error = manager.apply(&live, &config, request).unwrap_err();
        assert_eq!(error, FieldManagerError::Kind(Kind::default()));
        let (object, _) = manager.update_no_errors(&live, &config, request);
        assert_eq!(object, config);
    }
    // Metadata may be anything in an object without a schema.
    let strange = json(serde_json::json!({"apiVersion": "v1", "kind": "Thing", "metadata": [1], "data": {"a": 1}}));
    let applied = manager.apply(&live, &strange, request).unwrap();
    let fields = applied.at(&["metadata", "managedFields"]).unwrap().as_list().unwrap();
    assert_eq!(fields[0].at(&["fieldsV1", "f:data", "f:a"]).unwrap(), &crate::value::Map::new().into());
}

/// The vectors' managers have names in the order of their times.
#[test]
fn the_oldest_updaters_are_folded_whatever_their_names() {
    with_manager(folds_the_oldest);
}

fn folds_the_oldest(manager: FieldManager<'_>) {
    let entries = (0..11).map(|i| {
        json(serde_json::json!({
            "manager": format!("m{}", 20 - i), "operation": "Update", "apiVersion": "v1",
            "time": format!("2000-01-01T00:00:{i:02}Z"), "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {format!("f:k{i}"): {}}},
        }))
    });
    let data: serde_json::Map<_, _> = (0..11).map(|i| (format!("k{i}"), serde_json::json!(i))).collect();
    let mut live = json(serde_json::json!({
        "apiVersion": "v1", "kind": "Thing", "metadata": {"uid": "u", "managedFields": []}, "data": data,
    }));
    let mut new = live.clone();
    let metadata = |object: &mut Value, name: &str, value| {
        object.map_mut().unwrap().get_mut(name).and_then(Value::map_mut).unwrap().insert("managedFields", value);
    };
    metadata(&mut live, "metadata", Value::list(entries.clone()));
    metadata(&mut new, "metadata", Value::list(entries));
    let request = Request { manager: "z", force: Force::No, now: "2000-01-01T00:01:00Z".parse().unwrap() };
    let updated = manager.update(&live, &new, request).unwrap();
    let names: Vec<_> = State::decode(updated.at(&["metadata", "managedFields"]))
        .unwrap()
        .entries()
        .into_iter()
        .map(|entry| format!("{} {} {}", entry.manager, entry.time.unwrap().as_second() % 60, entry.fields.to_json()))
        .collect();
    let mut expected = vec![r#"ancient-changes 1 {"f:data":{"f:k0":{},"f:k1":{}}}"#.to_owned()];
    expected.extend((2..11).map(|i| format!(r#"m{} {i} {{"f:data":{{"f:k{i}":{{}}}}}}"#, 20 - i)));
    assert_eq!(names, expected);
}

#[test]
fn an_annotation_that_grows_too_large_goes() {
    with_manager(|manager| {
        let name = "kubectl.kubernetes.io/last-applied-configuration";
        let live = json(serde_json::json!({
            "apiVersion": "v1", "kind": "Thing", "metadata": {"annotations": {name: "{}", "other": "x"}},
        }));
        let applied = |size: usize| {
            let config = serde_json::json!({
                "apiVersion": "v1", "kind": "Thing", "metadata": {"annotations": {name: "old"}}, "data": "<".repeat(size),
            });
            let request = Request { manager: "kubectl", force: Force::Yes, now: Timestamp::UNIX_EPOCH };
            manager.apply(&live, &json(config), request).unwrap()
        };
        let small = applied(1);
        let annotations = small.at(&["metadata", "annotations"]).unwrap();
        let expected = r#"{"apiVersion":"v1","data":"\u003c","kind":"Thing","metadata":{"annotations":{}}}"#;
        assert_eq!(annotations.get(name).unwrap().as_str().unwrap(), format!("{expected}\n"));
        let large = applied(50_000);
        let annotations = large.at(&["metadata", "annotations"]).unwrap();
        assert_eq!(*annotations, json(serde_json::json!({"other": "x"})));
    });
}

/// Duplicates may be in what is stored, but not in what is converted for another manager.
#[test]
fn duplicates_are_not_converted() {
    let schemas = schemas();
    let reset_fields = BTreeMap::new();
    let group = "restaurant.programming-kubernetes.info";
    let update_in = |version: &str| {
        let manager = FieldManager {
            types: schemas["a"].as_ref(),
            objects: &Kinds,
            kind: &Kind::new(&format!("{group}/{version}"), "Pizza"),
            hub: &format!("{group}/v1beta1"),
            subresource: "",
            reset_fields: &reset_fields,
        };
        let owner = serde_json::json!({
            "manager": "m", "operation": "Apply", "apiVersion": format!("{group}/v1beta1"), "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}},
        });
        let live = json(serde_json::json!({
            "apiVersion": format!("{group}/v1beta1"), "kind": "Pizza",
            "metadata": {"finalizers": ["x", "x"], "labels": {"a": "b"}, "managedFields": [owner]},
        }));
        let request = Request { manager: "u", force: Force::No, now: Timestamp::UNIX_EPOCH };
        manager.update(&live, &live, request).map_err(|error| error.to_string())
    };
    assert!(update_in("v1beta1").is_ok());
    let error = update_in("v1alpha1").unwrap_err();
    assert!(
        error.ends_with(r#"failed to convert live object: .metadata.finalizers: duplicate entries for key [="x"]"#),
        "{error}"
    );
}

#[test]
fn only_an_annotation_of_the_same_version_forgives_conflicts() {
    with_manager(|manager| {
        let apply_after = |version: &str| {
            let annotation = serde_json::json!({"apiVersion": version, "kind": "Thing", "data": 1}).to_string();
            let live = json(serde_json::json!({
                "apiVersion": "v1", "kind": "Thing", "data": 1,
                "metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": annotation}},
            }));
            let config = json(serde_json::json!({"apiVersion": "v1", "kind": "Thing", "data": 2}));
            let request = Request { manager: "kubectl", force: Force::No, now: Timestamp::UNIX_EPOCH };
            manager.apply(&live, &config, request)
        };
        assert_eq!(apply_after("v1").unwrap().get("data"), Some(&Value::Int(2)));
        assert!(matches!(apply_after("v2"), Err(FieldManagerError::Conflict(_))));
    });
}
