//! What the vectors do not show.

use std::collections::BTreeMap;

use crate::{
    Kind,
    managed_fields::{DecodeError, FieldManager, FieldManagerError, Request, State, Untyped, keep_times, manager_name},
    updater::Force,
    value::Value,
};

use super::kinds::Kinds;

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

#[test]
fn what_is_no_object_is_refused() {
    let filters = BTreeMap::new();
    let kind = Kind::new("v1", "Thing");
    let manager = FieldManager {
        types: &Untyped,
        objects: &Kinds,
        kind: &kind,
        hub: "v1",
        subresource: "",
        reset_fields: &filters,
    };
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
