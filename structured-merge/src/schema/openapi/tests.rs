use serde_json::{Value as Json, json};

use super::{Models, UnknownFields};
use crate::{MAX_DEPTH, typed::Duplicates, value::Value};

fn models(definitions: &Json, unknown: UnknownFields) -> Result<Models, super::SchemaErrors> {
    let definitions = definitions.as_object().unwrap();
    Models::new(definitions.iter().map(|(name, definition)| (name.as_str(), definition)), unknown)
}

/// What a value of a single definition's field owns, or why it is none.
fn owned(field: &Json, value: &Json, unknown: UnknownFields) -> String {
    let models = models(
        &json!({
            "T": {"type": "object", "properties": {"x": field}},
            "Granular": {"type": "object", "additionalProperties": {"type": "string"}},
            "Set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "Alias": {"$ref": "#/components/schemas/Granular"},
        }),
        unknown,
    )
    .unwrap();
    let value = Value::try_from(&json!({"x": value})).unwrap();
    match models.named("T").unwrap().check(value, Duplicates::Refused) {
        Ok(typed) => typed.to_field_set().unwrap().to_json(),
        Err(errors) => errors.to_string(),
    }
}

#[test]
fn extensions_say_what_is_merged() {
    let strings = |more: Json| {
        let mut list = json!({"type": "array", "items": {"type": "string"}});
        list.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        list
    };
    let items = json!(["a"]);
    let (atomic, set) = (r#"{"f:x":{}}"#, r#"{"f:x":{"v:\"a\"":{}}}"#);
    for (list, expected) in [
        (strings(json!({})), atomic),
        (strings(json!({"x-kubernetes-list-type": "atomic", "x-kubernetes-patch-strategy": "merge"})), atomic),
        (strings(json!({"x-kubernetes-list-type": "set"})), set),
        (strings(json!({"x-kubernetes-patch-strategy": "merge"})), set),
        (strings(json!({"x-kubernetes-patch-strategy": "merge,retainKeys"})), set),
        (strings(json!({"x-kubernetes-patch-strategy": "retainKeys"})), atomic),
        (json!({"$ref": "#/components/schemas/Set"}), set),
        (json!({"$ref": "#/components/schemas/Set", "x-kubernetes-list-type": "atomic"}), set),
        // A map's extension counts for a list that is referred to, too.
        (json!({"$ref": "#/components/schemas/Set", "x-kubernetes-map-type": "atomic"}), atomic),
        (json!({}), atomic),
    ] {
        assert_eq!(owned(&list, &items, UnknownFields::Refused), expected, "{list}");
    }
    let entries = json!({"a": "b"});
    let granular = r#"{"f:x":{"f:a":{}}}"#;
    for (map, expected) in [
        (json!({"$ref": "#/components/schemas/Granular"}), granular),
        (json!({"allOf": [{"$ref": "#/components/schemas/Granular"}], "x-kubernetes-map-type": "atomic"}), atomic),
        (json!({"type": "object"}), granular),
        (json!({"type": "object", "x-kubernetes-map-type": "atomic"}), atomic),
        (json!({"type": "object", "additionalProperties": true}), granular),
        (json!({"type": "object", "additionalProperties": false}), ".x.a: field not declared in schema"),
        (json!({"type": "object", "properties": {"b": {}}}), ".x.a: field not declared in schema"),
        (json!({"type": "object", "properties": {"b": {}}, "x-kubernetes-preserve-unknown-fields": true}), granular),
        (json!({"$ref": "#/components/schemas/Alias"}), ".x: schema error: no type found matching: Alias"),
    ] {
        assert_eq!(owned(&map, &entries, UnknownFields::Refused), expected, "{map}");
    }
    assert_eq!(owned(&json!({"type": "object", "properties": {"b": {}}}), &entries, UnknownFields::Kept), granular);
}

#[test]
fn what_makes_no_sense_is_told() {
    let errors = |definition: Json| models(&json!({"T": definition}), UnknownFields::Refused).unwrap_err().to_string();
    for (definition, expected) in [
        (json!({"type": "array"}), "T: `items` must be specified on arrays"),
        (json!({"type": "strange"}), "T: unrecognized type: 'strange'"),
        (json!({"type": "array", "items": {}, "x-kubernetes-list-type": "map"}), "T: missing map keys"),
        (json!({"type": "array", "items": {}, "x-kubernetes-list-type": "bag"}), "T: unknown list type \"bag\""),
        (json!({"type": "array", "items": {}, "x-kubernetes-patch-strategy": "x"}), "T: unknown patch strategy x"),
        (json!({"type": "object", "x-kubernetes-map-type": "bag"}), "T: unknown map type \"bag\""),
    ] {
        assert_eq!(errors(definition), expected);
    }
    let deep = (0..=MAX_DEPTH).fold(json!({"type": "string"}), |schema, _| json!({"properties": {"a": schema}}));
    assert_eq!(errors(deep), "T: nested deeper than 200 levels");
}

#[test]
fn some_types_are_written_as_anything() {
    let quantity = "io.k8s.apimachinery.pkg.api.resource.Quantity";
    let models = models(&json!({quantity: {"type": "string"}}), UnknownFields::Refused).unwrap();
    let check = |value| models.named(quantity).unwrap().check(value, Duplicates::Refused);
    assert!(check(Value::Int(1)).is_ok());
    assert!(check("1Gi".into()).is_ok());
    assert!(check(Value::list([])).is_err());
}
