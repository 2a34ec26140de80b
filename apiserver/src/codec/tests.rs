use proptest::prelude::*;
use serde_json::{Value, json};

use super::{ListWriter, json, render, to_vec, typed, watch_event, yaml};
use crate::{
    meta::{ListMeta, ObjectMeta},
    negotiate::{MediaType, MetaVersion, OutputFormat},
    partial::{self, PartialListWriter},
    table::{Column, RowObject, TableWriter},
};

fn metadata() -> ObjectMeta {
    ObjectMeta { name: Some("x".to_owned()), ..ObjectMeta::default() }
}

fn list() -> ListMeta {
    ListMeta { resource_version: Some("7".to_owned()), ..ListMeta::default() }
}

fn text(json: Vec<u8>) -> String {
    String::from_utf8(json).unwrap()
}

#[test]
fn lists_are_joined_from_encoded_items() {
    let mut writer = ListWriter::new("PizzaList", "g/v1", &list());
    writer.item(b"{\"a\":1}");
    writer.with_item(|buffer| buffer.extend_from_slice(b"{}"));
    let head = r#"{"kind":"PizzaList","apiVersion":"g/v1","metadata":{"resourceVersion":"7"},"items":["#;
    assert_eq!(text(writer.finish()), format!("{head}{{\"a\":1}},{{}}]}}"));
    assert_eq!(text(ListWriter::new("PizzaList", "g/v1", &list()).finish()), format!("{head}]}}"));
}

#[test]
fn tables_hold_what_include_object_asks_for() {
    let columns = [Column::name()];
    let mut table = TableWriter::new(MetaVersion::V1, &list(), Some(&columns));
    table.row(&[json!("x"), json!(1.0)], RowObject::None);
    table.row(&[json!("x")], RowObject::Metadata(&metadata()));
    table.row(&[json!("x")], RowObject::Object(b"{\"kind\":\"Pizza\"}"));
    let table: Value = serde_json::from_slice(&table.finish()).unwrap();
    assert_eq!(
        table,
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "7"},
            "columnDefinitions": [{
                "name": "Name", "type": "string", "format": "name",
                "description": "Name of the object, unique within its namespace.", "priority": 0,
            }],
            "rows": [
                {"cells": ["x", 1], "object": null},
                {"cells": ["x"], "object": {
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "x"},
                }},
                {"cells": ["x"], "object": {"kind": "Pizza"}},
            ],
        })
    );
}

#[test]
fn what_is_empty_is_null_where_go_writes_null() {
    let table = TableWriter::new(MetaVersion::V1Beta1, &ListMeta::default(), None).finish();
    assert_eq!(
        text(table),
        r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1beta1","metadata":{},"columnDefinitions":null,"rows":null}"#
    );
    assert_eq!(
        text(PartialListWriter::new(MetaVersion::V1, &list()).finish()),
        r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"},"items":null}"#
    );
}

#[test]
fn partial_objects_hold_metadata_alone() {
    let object = r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"x"}}"#;
    assert_eq!(text(partial::object(MetaVersion::V1, &metadata())), object);
    let mut items = PartialListWriter::new(MetaVersion::V1, &list());
    items.item(&metadata());
    items.item(&metadata());
    assert!(text(items.finish()).ends_with(&format!(r#""items":[{object},{object}]}}"#)));
}

#[test]
fn answers_are_rendered_as_asked() {
    let json = br#"{"kind":"Status","metadata":{}}"#.to_vec();
    let with = |media, pretty| OutputFormat { media, pretty, ..OutputFormat::default() };
    let render = |format: OutputFormat| text(render(&format, json.clone()).unwrap());
    assert_eq!(render(with(MediaType::Json, false)), "{\"kind\":\"Status\",\"metadata\":{}}\n");
    assert_eq!(render(with(MediaType::Json, true)), "{\n  \"kind\": \"Status\",\n  \"metadata\": {}\n}");
    assert_eq!(render(with(MediaType::Yaml, false)), "kind: Status\nmetadata: {}\n");
}

#[test]
fn a_watch_event_is_a_line() {
    assert_eq!(text(watch_event("ADDED", b"{}")), "{\"type\":\"ADDED\",\"object\":{}}\n");
}

#[test]
fn yaml_does_not_grow_without_bound() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let before = level - 1;
        let items = vec![format!("*a{before}"); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{items}]\n"));
    }
    assert_eq!(yaml::parse(bomb.as_bytes()).unwrap_err(), "yaml: document contains excessive aliasing");
    let deep = "[".repeat(100_000);
    assert!(yaml::parse(deep.as_bytes()).is_err());
}

#[test]
fn what_yaml_copies_is_counted_in_bytes() {
    let aliases = |length: usize, times: usize| {
        let text = "x".repeat(length);
        format!("a: &a {text}\nb:\n{}", "- *a\n".repeat(times))
    };
    let refused = Some("yaml: document contains excessive aliasing");
    assert_eq!(yaml::parse(aliases(100_000, 2_000).as_bytes()).err().as_deref(), refused);
    assert!(yaml::parse(aliases(1_000_000, 10).as_bytes()).is_ok());
    // So are the copies that anchors keep of what is in each other.
    let text = "x".repeat(200_000);
    let nested = format!("{}\"{text}\"{}", (0..100).map(|i| format!("&a{i} [")).collect::<String>(), "]".repeat(100));
    assert_eq!(yaml::parse(nested.as_bytes()).err().as_deref(), refused);
}

#[test]
fn yaml_is_no_deeper_than_json_with_aliases_too() {
    let brackets = |count: usize, inner: &str| format!("{}{inner}{}", "[".repeat(count), "]".repeat(count));
    let document =
        |first: usize, second: usize| format!("a: &a {}\nb: {}\n", brackets(first, "1"), brackets(second, "*a"));
    assert!(yaml::parse(document(60, 59).as_bytes()).is_ok());
    for (first, second) in [(60, 60), (120, 1)] {
        let error = yaml::parse(document(first, second).as_bytes()).unwrap_err();
        assert_eq!(error, "yaml: exceeded max depth of 120", "{first} {second}");
    }
}

#[test]
fn yaml_merges_and_names_repeated_keys() {
    let document = yaml::parse(b"base: &b {c: 1, d: 2}\nuse:\n  <<: *b\n  d: 3\n").unwrap();
    let value: Value = typed::decode(&document.node, &mut typed::Problems::new(true)).unwrap();
    assert_eq!(value["use"], json!({"c": 1, "d": 3}));
    assert_eq!(document.repeated, None);
    let document = yaml::parse(b"a: 1\nb: 2\na: 3\n").unwrap();
    assert_eq!(document.repeated.as_deref(), Some("yaml: unmarshal errors:\n  line 3: key \"a\" already set in map"));
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e300..1e300_f64).prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(".*", inner, 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    /// What is written is JSON to others, and is read back.
    #[test]
    fn json_round_trips(value in value()) {
        let written = to_vec(&value).unwrap();
        let theirs: Value = serde_json::from_slice(&written).unwrap();
        let ours: Value = typed::decode(&json::parse(&written).unwrap(), &mut typed::Problems::new(true)).unwrap();
        // A whole float is written without a fraction, and is an integer from then on.
        prop_assert_eq!(to_vec(&ours).unwrap(), written.clone());
        prop_assert_eq!(to_vec(&theirs).unwrap(), written);
    }

    /// What is written as YAML means the same.
    #[test]
    fn yaml_round_trips(value in value()) {
        let json = to_vec(&value).unwrap();
        let document = yaml::parse(&yaml::from_json(&json).unwrap()).map_err(TestCaseError::fail)?;
        let back: Value = typed::decode(&document.node, &mut typed::Problems::new(true)).unwrap();
        prop_assert_eq!(text(to_vec(&back).unwrap()), text(json));
    }

    /// Whatever comes in, nothing panics, and what others take for JSON is JSON.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), json in r#"[\[\]{}",:0-9a-z.\\ eE+-]{0,60}"#) {
        for input in [bytes.as_slice(), json.as_bytes()] {
            let ours = json::parse(input);
            if serde_json::from_slice::<Value>(input).is_ok() {
                prop_assert!(ours.is_ok());
            }
            let _ = yaml::parse(input);
            let _ = super::format::indent(input);
        }
    }
}
