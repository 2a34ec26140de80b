//! The documents beside those of the original, and in the hands of its readers.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::{JsonSchema, schema_for};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    super::{Info, Values},
    object,
    types::{GROUP, resource},
    values,
};
use crate::{discovery::ServedGroup, meta::Scope};

const WARDLE_V2: &str = include_str!("../testdata/wardle.v2.json");
const WARDLE_V3: &str = include_str!("../testdata/wardle.v3.json");

/// Runs the program of `tools/openapi-meta`, which is made of the original packages.
fn openapi_meta(arguments: &[&str], input: &Value) -> Value {
    let program = std::env::var_os("TEST_OPENAPI_META")
        .expect("TEST_OPENAPI_META is not set: run `cargo xtask test`, which builds tools/openapi-meta and sets it");
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("openapi-meta starts");
    child.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "openapi-meta {arguments:?}: {}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn shared_definitions_are_those_of_the_original() {
    for (version, ours) in
        [("v2", include_str!("../meta-definitions.v2.json")), ("v3", include_str!("../meta-definitions.v3.json"))]
    {
        let ours: Value = serde_json::from_str(ours).unwrap();
        let theirs = openapi_meta(&["dump", version], &Value::Null);
        assert!(
            ours == theirs,
            "meta-definitions.{version}.json is out of date: write the output of `openapi-meta dump {version}` to it"
        );
    }
}

#[test]
fn kube_apiserver_and_kubectl_read_the_documents() {
    let values = values();
    let kind = |version: &str, kind: &str| json!({ "Group": GROUP, "Version": version, "Kind": kind });
    let explain = |fields: &[&str]| {
        let resource = json!({ "Group": GROUP, "Version": "v1beta1", "Resource": "gadgets" });
        json!({ "resource": resource, "fields": fields })
    };
    let wardle: Value = serde_json::from_str(WARDLE_V2).unwrap();
    let answers = openapi_meta(
        &["check"],
        &json!({
            "v2": values.v2,
            "v3": values.v3,
            "mergedTo": wardle,
            "kinds": [kind("v1beta1", "Gadget"), kind("v1alpha1", "Gadget"), kind("v1alpha1", "Shelf")],
            "explain": [explain(&[]), explain(&["spec"]), explain(&["spec", "parts"]), explain(&["spec", "mode"]),
                explain(&["status", "conditions", "reason"])],
        }),
    );

    assert_eq!(answers["renamed"], Value::Null, "definitions differ from those that other servers publish");
    let merged: Vec<_> = answers["paths"].as_array().unwrap().iter().map(|p| p.as_str().unwrap()).collect();
    assert!(merged.contains(&"/apis/gadgets.example.com/v1beta1/namespaces/{namespace}/gadgets/{name}"), "{merged:?}");
    for answer in answers["kinds"].as_array().unwrap() {
        assert_eq!(answer["found"], true, "{answer}");
        // kubectl apply: a merge patch. kubectl create: the server validates.
        assert_eq!(
            answer["patches"],
            json!(["application/json-patch+json", "application/merge-patch+json"]),
            "{answer}"
        );
        assert_eq!(answer["fieldValidation"], "", "{answer}");
    }
    let explained: Vec<_> = answers["explained"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    insta::assert_snapshot!(explained.join("\n----\n"));
}

/// What the check finds in a document with a fault.
#[test]
fn a_definition_that_differs_is_renamed() {
    let mut values = values();
    let meta = &mut values.v2["definitions"]["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"];
    meta["description"] = json!("Metadata.");
    let wardle: Value = serde_json::from_str(WARDLE_V2).unwrap();
    let answers = openapi_meta(&["check"], &json!({ "v2": values.v2, "v3": values.v3, "mergedTo": wardle }));
    assert_eq!(answers["renamed"], json!(["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta_v2"]));
}

/// Flunder is an example type with a spec and a status.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct Flunder {
    metadata: ObjectMeta,
    spec: FlunderSpec,
    status: FlunderStatus,
}

/// FlunderSpec is the specification of a Flunder.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct FlunderSpec {
    /// A name of another flunder, mutually exclusive to the FischerReference.
    flunder_reference: Option<String>,
    /// A name of a fischer, mutually exclusive to the FlunderReference.
    fischer_reference: Option<String>,
    /// The reference type.
    reference_type: Option<String>,
}

/// FlunderStatus is the status of a Flunder.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
struct FlunderStatus {}

/// Our documents of the original's example.
fn wardle() -> Values {
    let mut flunders =
        resource("flunders", "flunder", "Flunder", Scope::Namespaced, &[("v1beta1", schema_for!(Flunder))]);
    flunders.group = "wardle.example.com".to_owned();
    let versions = ["v1beta1".to_owned()];
    let served = ServedGroup::new("wardle.example.com", &versions, vec![&flunders]).unwrap();
    Values::build(&Info { title: "Wardle".to_owned(), version: "0.1".to_owned() }, &[served]).unwrap()
}

/// Takes from the original's document what is deliberately not in ours: protobuf, strategic merge and apply patches with
/// their parameters, sharding, unsafe deletion, the deprecated paths for watches.
fn without_what_is_not_served(document: &mut Value) {
    let own = "io.k8s.sample-apiserver.pkg.apis.wardle.";
    *document = serde_json::from_str(&document.to_string().replace(own, "com.example.wardle.")).unwrap();
    document["paths"].as_object_mut().unwrap().retain(|path, _| !path.contains("/watch/"));
    let left_out = ["force", "shardSelector", "ignoreStoreReadErrorWithClusterBreakingPotential"];
    if let Some(parameters) = document.get_mut("parameters").and_then(Value::as_object_mut) {
        parameters.retain(|_, p| !left_out.iter().any(|name| p["name"] == *name));
        parameters.retain(|key, _| key != "fieldManager-7c6nTn1T");
    }
    for section in ["/definitions", "/components/schemas"] {
        if let Some(schemas) = document.pointer_mut(section).and_then(Value::as_object_mut) {
            schemas.remove("io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent");
            // Only the watch events refer to it.
            schemas.remove("io.k8s.apimachinery.pkg.runtime.RawExtension");
        }
    }
    let plain_manager = object(document, "/paths").values().find_map(|item| {
        let parameters = item["post"]["parameters"].as_array()?;
        parameters.iter().find(|p| p["name"] == "fieldManager").cloned()
    });
    for item in document["paths"].as_object_mut().unwrap().values_mut() {
        for (method, operation) in item.as_object_mut().unwrap() {
            let (operation_parameters, is_operation) = match operation {
                Value::Array(parameters) => (Some(parameters), false),
                _ => (operation["parameters"].as_array_mut(), true),
            };
            if let Some(parameters) = operation_parameters {
                parameters.retain(|p| {
                    let name = p["name"].as_str().or_else(|| p["$ref"].as_str()).unwrap().to_owned();
                    !left_out.iter().any(|out| name == *out || name.starts_with(&format!("#/parameters/{out}-")))
                });
                for p in parameters.iter_mut() {
                    if p["$ref"] == "#/parameters/fieldManager-7c6nTn1T" {
                        *p = json!({ "$ref": "#/parameters/fieldManager-Qy4HdaTW" });
                    } else if p["name"] == "fieldManager" {
                        *p = plain_manager.clone().unwrap();
                    }
                }
            }
            if is_operation {
                served_forms_only(method, operation);
            }
        }
    }
}

fn served_forms_only(method: &str, operation: &mut Value) {
    let written = |types: &mut Vec<Value>| types.retain(|t| !t.as_str().unwrap().contains("protobuf"));
    for name in ["consumes", "produces"] {
        if let Some(types) = operation[name].as_array_mut() {
            written(types);
        }
    }
    // Bodies are JSON or YAML, and not just anything.
    let has_body = matches!(method, "post" | "put" | "delete");
    if has_body && operation["consumes"] == json!(["*/*"]) {
        operation["consumes"] = json!(["application/json", "application/yaml"]);
    }
    if method == "patch" && operation["consumes"].is_array() {
        operation["consumes"].as_array_mut().unwrap().truncate(2);
    }
    if let Some(content) = operation.pointer_mut("/requestBody/content").and_then(Value::as_object_mut) {
        content.retain(|t, _| !t.contains("strategic") && !t.contains("apply"));
        if let Some(any) = content.remove("*/*") {
            content.insert("application/json".to_owned(), any.clone());
            content.insert("application/yaml".to_owned(), any);
        }
    }
    let responses = operation["responses"].as_object_mut().unwrap();
    if method == "patch" {
        // Only an apply patch creates.
        responses.remove("201");
    }
    for response in responses.values_mut() {
        if let Some(content) = response.get_mut("content").and_then(Value::as_object_mut) {
            content.retain(|t, _| !t.contains("protobuf"));
        }
    }
    if let Value::Object(operation) = operation {
        operation.retain(|_, value| !value.is_null());
    }
}

/// Says at which place two documents part.
fn assert_same(ours: &Value, theirs: &Value, place: &str) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys()) {
                let place = format!("{place}/{key}");
                assert_same(a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null), &place);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).enumerate().for_each(|(i, (a, b))| assert_same(a, b, &format!("{place}/{i}")));
        }
        _ => assert_eq!(ours, theirs, "at {place}"),
    }
}

#[test]
fn the_original_publishes_the_same_but_for_what_is_not_served() {
    let ours = wardle();
    let mut theirs: Value = serde_json::from_str(WARDLE_V2).unwrap();
    without_what_is_not_served(&mut theirs);
    assert_same(&ours.v2, &theirs, "v2");
    let mut theirs: Value = serde_json::from_str(WARDLE_V3).unwrap();
    without_what_is_not_served(&mut theirs);
    assert_same(&ours.v3["apis/wardle.example.com/v1beta1"], &theirs, "v3");
}
