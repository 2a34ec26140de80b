//! What the documents say.

use std::collections::BTreeMap;

use schemars::{JsonSchema, schema_for};
use serde_json::{Value, json};

use super::{
    super::{Info, OpenApiError, operations, schema, v3, version_definitions},
    object,
    types::{GROUP, gadgets, resource},
    values,
};
use crate::{discovery::ServedVersion, endpoint::Verb, meta::Scope};

const ROOT: &str = "/apis/gadgets.example.com/v1beta1";

#[test]
fn own_types_are_published_as_kubernetes_does() {
    let values = values();
    let own = |value: &Value, pointer: &str| -> BTreeMap<String, Value> {
        let all = object(value, pointer).clone().into_iter();
        all.filter(|(name, _)| !name.starts_with("io.k8s.apimachinery.")).collect()
    };
    insta::assert_json_snapshot!(
        "v3_v1beta1_schemas",
        own(&values.v3["apis/gadgets.example.com/v1beta1"], "/components/schemas")
    );
    insta::assert_json_snapshot!(
        "v3_v1alpha1_schemas",
        own(&values.v3["apis/gadgets.example.com/v1alpha1"], "/components/schemas")
    );
    insta::assert_json_snapshot!("v2_definitions", own(&values.v2, "/definitions"));
}

#[test]
fn operations_are_those_that_are_served() {
    let values = values();
    let mut operations = Vec::new();
    for (path, item) in object(&values.v2, "/paths") {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters") {
            let text = |name: &str| operation[name].as_str().unwrap_or("-").to_owned();
            operations.push(format!("{method} {path} {} {}", text("x-kubernetes-action"), text("operationId")));
        }
    }
    insta::assert_yaml_snapshot!(operations);
    let mut v3: Vec<_> = values.v3.values().flat_map(|document| object(document, "/paths").keys()).collect();
    v3.sort();
    assert_eq!(v3, object(&values.v2, "/paths").keys().collect::<Vec<_>>());
    insta::assert_json_snapshot!(
        "v3_status",
        values.v3["apis/gadgets.example.com/v1beta1"]["paths"]
            [format!("{ROOT}/namespaces/{{namespace}}/gadgets/{{name}}/status")]
    );
}

#[test]
fn only_served_patches_are_told() {
    let values = values();
    let item = format!("{ROOT}/namespaces/{{namespace}}/gadgets/{{name}}");
    for path in [item.clone(), format!("{item}/status")] {
        let patch = &values.v2["paths"][&path]["patch"];
        assert_eq!(patch["consumes"], json!(["application/json-patch+json", "application/merge-patch+json"]));
        let patch = &values.v3["apis/gadgets.example.com/v1beta1"]["paths"][&path]["patch"];
        let consumed: Vec<_> = object(patch, "/requestBody/content").keys().collect();
        assert_eq!(consumed, ["application/json-patch+json", "application/merge-patch+json"]);
    }
    for document in values.v3.values().chain([&values.v2]) {
        let text = document.to_string();
        assert!(!text.contains("application/strategic") && !text.contains("apply-patch+"), "{text}");
        assert!(!text.contains("kubernetes.protobuf"));
    }
}

/// kubectl looks in the operation, not at the path.
#[test]
fn each_patch_has_its_own_parameters() {
    let mut gadgets = gadgets();
    for gadget in &mut gadgets {
        gadget.subresources.iter_mut().for_each(|s| s.verbs = vec![Verb::Patch]);
    }
    let version = ServedVersion { name: "v1beta1", resources: vec![&gadgets[0]] };
    let paths = operations::version(GROUP, &version, &|_| true);
    let info = Info { title: String::new(), version: String::new() };
    let document = v3::document(&info, &paths, &BTreeMap::new(), None);
    let mut patches = 0;
    for (path, item) in object(&document, "/paths") {
        let Some(patch) = item.get("patch") else { continue };
        let parameters = patch["parameters"].as_array().unwrap();
        assert!(parameters.iter().any(|p| p["name"] == "fieldValidation"), "{path}");
        patches += 1;
    }
    assert_eq!(patches, 3);
}

#[test]
fn every_reference_leads_somewhere() {
    let values = values();
    let definitions = object(&values.v2, "/definitions");
    let mut found = Vec::new();
    schema::references(&values.v2, &mut found);
    assert!(found.len() > 50);
    for name in found {
        assert!(definitions.contains_key(name), "{name}");
    }
    for parameter in values.v2.to_string().split("#/parameters/").skip(1) {
        let name = parameter.split('"').next().unwrap();
        assert!(values.v2["parameters"].get(name).is_some(), "{name}");
    }
    for (path, document) in &values.v3 {
        let mut found = Vec::new();
        schema::references(document, &mut found);
        assert!(!found.is_empty(), "{path}");
        for name in found {
            assert!(document["components"]["schemas"].get(name).is_some(), "{name} in {path}");
        }
        // And nothing is there that nobody asks for.
        let mut found = Vec::new();
        schema::references(document, &mut found);
        for name in object(document, "/components/schemas").keys() {
            assert!(found.contains(&name.as_str()), "{name} in {path}");
        }
    }
}

#[test]
fn names_have_no_slashes() {
    let values = values();
    let names = object(&values.v2, "/definitions").keys();
    for name in names.chain(values.v3.values().flat_map(|d| object(d, "/components/schemas").keys())) {
        assert!(!name.contains(['/', '~', '%']), "{name}");
    }
    assert!(values.v2["definitions"].get("com.example.gadgets.v1beta1.Gadget").is_some());
}

/// Walks over schemas, not over names of properties.
fn each_schema(schema: &Value, look: &mut dyn FnMut(&serde_json::Map<String, Value>)) {
    let Some(schema) = schema.as_object() else { return };
    look(schema);
    for keyword in ["items", "additionalProperties", "not"] {
        if let Some(inner) = schema.get(keyword) {
            each_schema(inner, look);
        }
    }
    for keyword in ["allOf", "anyOf", "oneOf"] {
        schema.get(keyword).and_then(Value::as_array).into_iter().flatten().for_each(|s| each_schema(s, look));
    }
    schema.get("properties").and_then(Value::as_object).into_iter().flatten().for_each(|(_, s)| each_schema(s, look));
}

#[test]
fn swagger_2_has_only_its_own_words() {
    let values = values();
    for (name, definition) in object(&values.v2, "/definitions") {
        each_schema(definition, &mut |schema| {
            for keyword in schema.keys() {
                assert!(
                    !["anyOf", "oneOf", "not", "nullable", "default", "const", "$defs"].contains(&keyword.as_str()),
                    "{keyword} in {name}"
                );
            }
            assert!(schema.get("type").is_none_or(Value::is_string), "{name}");
        });
    }
    assert!(!values.v2.to_string().contains("#/components/"));
    // A property may be named as it likes.
    assert!(values.v2.pointer("/definitions/com.example.gadgets.v1beta1.GadgetSpec/properties/default").is_some());
}

#[test]
fn openapi_3_has_no_words_of_json_schema() {
    let known = [
        "$ref",
        "additionalProperties",
        "allOf",
        "anyOf",
        "default",
        "description",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "not",
        "oneOf",
        "pattern",
        "properties",
        "required",
        "type",
        "uniqueItems",
    ];
    for document in values().v3.values() {
        for (name, schema) in object(document, "/components/schemas") {
            each_schema(schema, &mut |schema| {
                for keyword in schema.keys().filter(|k| !k.starts_with("x-kubernetes-")) {
                    assert!(known.contains(&keyword.as_str()), "{keyword} in {name}");
                }
                assert!(schema.get("exclusiveMaximum").is_none_or(Value::is_boolean), "{name}");
                assert!(schema.get("type").is_none_or(Value::is_string), "{name}");
            });
        }
    }
}

#[test]
fn two_types_cannot_have_one_name() {
    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is wanted")]
    struct Lamp {
        part: Part,
    }
    /// Another Part than that of gadgets.
    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is wanted")]
    struct Part {
        bulb: String,
    }
    let gadgets = gadgets();
    let lamps = resource("lamps", "lamp", "Lamp", Scope::Cluster, &[("v1beta1", schema_for!(Lamp))]);
    let version = ServedVersion { name: "v1beta1", resources: vec![&gadgets[0], &lamps] };
    let error = version_definitions(GROUP, &version).unwrap_err();
    assert!(
        matches!(&error, OpenApiError::NameTaken { name, .. } if name == "com.example.gadgets.v1beta1.Part"),
        "{error}"
    );

    let alone = ServedVersion { name: "v1beta1", resources: vec![&lamps, &lamps] };
    assert!(version_definitions(GROUP, &alone).is_ok(), "one type may be used twice");
}

#[test]
fn a_reference_into_nowhere_is_an_error() {
    let broken = schemars::json_schema!({ "properties": { "a": { "$ref": "#/$defs/Gone" } } });
    let error = schema::definitions(GROUP, "v1", "Thing", None, &broken).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"the schema of Thing in gadgets.example.com/v1 refers to "Gone", which is not among its $defs"#
    );
}
