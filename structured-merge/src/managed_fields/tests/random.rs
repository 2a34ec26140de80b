//! Objects of all kinds, most of them wrong: nothing panics, and what succeeds can be repeated.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
};
use serde_json::{Value as Json, json};

use super::kinds::{Kinds, schemas};
use crate::{
    Kind,
    managed_fields::{FieldManager, Request, State, Types, keep_times, object::managed_fields},
    updater::Force,
    value::Value,
};

fn anything() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        (-2_i64..3).prop_map(Json::from),
        Just(json!(1.5)),
        "[a-c]{0,2}".prop_map(Json::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Json::from),
            btree_map("[a-c]|name|port", inner, 0..4).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

fn text() -> impl Strategy<Value = Json> {
    "[a-c]".prop_map(Json::from)
}

fn or_null(value: impl Strategy<Value = Json> + 'static) -> impl Strategy<Value = Option<Json>> {
    option::of(prop_oneof![6 => value, 1 => Just(Json::Null)])
}

fn texts() -> impl Strategy<Value = Json> {
    prop::collection::btree_set("[a-d]", 0..4).prop_map(|set| set.into_iter().collect())
}

fn entries() -> impl Strategy<Value = Json> {
    btree_map("[a-c]", text(), 0..3).prop_map(|map| map.into_iter().collect())
}

/// Items with names of their own, in any order.
fn items() -> impl Strategy<Value = Json> {
    let item = (or_null(text()), or_null(texts())).prop_map(|(value, tags)| {
        let mut item = serde_json::Map::new();
        item.extend(value.map(|value| ("value".to_owned(), value)));
        item.extend(tags.map(|tags| ("tags".to_owned(), tags)));
        item
    });
    let named = |(name, mut item): (String, serde_json::Map<String, Json>)| {
        item.insert("name".to_owned(), name.into());
        Json::Object(item)
    };
    btree_map("[a-d]", item, 0..4)
        .prop_map(move |items| items.into_iter().map(named).collect::<Vec<_>>())
        .prop_shuffle()
        .prop_map(Json::from)
}

fn kitchen() -> impl Strategy<Value = Json> {
    let fields = (
        or_null(text()),
        or_null(entries()),
        or_null(entries()),
        or_null(texts()),
        or_null(texts()),
        or_null(items()),
        option::of(anything()),
        option::weighted(0.1, ("name|count|setList|assoc|ports|nested|granular|bogus", anything())),
    );
    fields.prop_map(|(name, granular, atomic_map, set, atomic_list, assoc, any, wrong)| {
        let names = ["name", "granular", "atomicMap", "setList", "atomicList", "assoc", "anything"];
        let values = [name, granular, atomic_map, set, atomic_list, assoc, any];
        let mut spec = serde_json::Map::new();
        spec.extend(names.into_iter().zip(values).filter_map(|(name, value)| Some((name.to_owned(), value?))));
        spec.extend(wrong);
        json!({"apiVersion": "kitchen.example.com/v1", "kind": "Kitchen", "metadata": {"name": "x"}, "spec": spec})
    })
}

fn managed() -> impl Strategy<Value = Json> {
    let set = prop_oneof![
        anything(),
        Just(json!({"f:spec": {"f:name": {}, "f:assoc": {"k:{\"name\":\"a\"}": {".": {}, "f:value": {}}}}})),
        Just(json!({"f:spec": {"f:setList": {"v:\"a\"": {}}, "f:granular": {"f:a": {}}, "f:atomicMap": {"f:a": {}}}})),
    ];
    let entry = (
        "[a-b]",
        "Apply|Update",
        prop_oneof![4 => Just("kitchen.example.com/v1"), 1 => Just("gone/v1"), 1 => Just("a/b/c")],
        set,
    );
    let entry = entry.prop_map(|(manager, operation, version, set)| {
        json!({
            "manager": manager, "operation": operation, "apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": set,
        })
    });
    prop_oneof![4 => vec(entry, 0..4).prop_map(Json::from), 1 => anything()]
}

fn with_manager<T>(types: &dyn Types, test: impl FnOnce(FieldManager<'_>) -> T) -> T {
    let reset_fields = BTreeMap::new();
    let kind = Kind::new("kitchen.example.com/v1", "Kitchen");
    test(FieldManager {
        types,
        objects: &Kinds,
        kind: &kind,
        hub: "kitchen.example.com/v1",
        subresource: "",
        reset_fields: &reset_fields,
    })
}

fn value(json: &Json) -> Value {
    Value::try_from(json).unwrap()
}

fn request(manager: &str, seconds: i64) -> Request<'_> {
    let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds);
    Request { manager, force: Force::Yes, now }
}

/// What was written can be read and written again.
fn is_well_formed(object: &Value) -> bool {
    let state = State::decode(managed_fields(object)).unwrap();
    state.encode().as_ref() == managed_fields(object)
}

proptest! {
    #[test]
    fn nothing_panics(live in anything(), new in anything(), config in anything(), managed in managed()) {
        for types in schemas().values() {
            with_manager(types.as_ref(), |manager| {
                let (mut live, new) = (value(&live), value(&new));
                super::super::object::set_managed_fields(&mut live, Some(value(&managed)));
                let (updated, _) = manager.update_no_errors(&live, &new, request("a", 1));
                let mut config = value(&config);
                if let Some(config) = config.map_mut() {
                    config.insert("apiVersion", "kitchen.example.com/v1".into());
                    config.insert("kind", "Kitchen".into());
                }
                let _ = manager.apply(&live, &config, request("a", 2));
                let _ = manager.apply(&updated, &config, request("kubectl", 3));
            });
        }
    }

    #[test]
    fn an_apply_that_is_repeated_changes_nothing_more(
        live in kitchen(), managed in managed(), first in kitchen(), second in kitchen(),
    ) {
        let schemas = schemas();
        with_manager(schemas["a"].as_ref(), |manager| {
            let mut live = value(&live);
            super::super::object::set_managed_fields(&mut live, Some(value(&managed)));
            let (live, _) = manager.update_no_errors(&live, &live, request("b", 1));
            let Ok(before) = manager.apply(&live, &value(&first), request("a", 2)) else { return Ok(()) };
            prop_assert!(is_well_formed(&before));
            let Ok(applied) = manager.apply(&before, &value(&second), request("a", 3)) else { return Ok(()) };
            prop_assert!(is_well_formed(&applied));
            // It may take a second time: a map that pruning emptied is null, and an empty one that is applied takes its
            // place; and where an apply leaves nobody who owns anything, the next one gives what is there to somebody.
            let mut last = applied;
            for time in 4.. {
                prop_assert!(time < 7, "it does not settle: {}", serde_json::to_string(&last).unwrap());
                let mut again = manager.apply(&last, &value(&second), request("a", time)).unwrap();
                keep_times(&mut again, &last);
                if serde_json::to_string(&again).unwrap() == serde_json::to_string(&last).unwrap() {
                    break;
                }
                last = again;
            }
            Ok(())
        })?;
    }
}
