use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ServiceSpec, ServiceStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Kind, Strictness, Version};
use crate::{
    codec::{self, typed},
    meta::{Object, ObjectMeta},
    negotiate::{InputFormat, PatchType},
    patch,
    status::Status,
    test_vectors,
};

/// A version that is its own hub.
macro_rules! object {
    ($name:ident, $version:literal { $($(#[$attribute:meta])* $field:ident: $type:ty,)* }) => {
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase")]
        struct $name {
            #[serde(default)]
            metadata: ObjectMeta,
            $($(#[$attribute])* #[serde(default)] $field: $type,)*
        }

        impl Object for $name {
            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }

        impl Version<$name> for $name {
            const VERSION: &'static str = $version;
            fn into_hub(self) -> $name {
                self
            }
            fn from_hub(hub: &$name) -> Self {
                hub.clone()
            }
        }
    };
}

object!(Flunder, "v1alpha1" { spec: FlunderSpec, status: Empty, });
object!(ConfigMap, "v1" {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    data: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, String>")]
    binary_data: BTreeMap<String, k8s_openapi::ByteString>,
});
object!(Service, "v1" { spec: ServiceSpec, status: ServiceStatus, });

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct FlunderSpec {
    #[serde(skip_serializing_if = "String::is_empty")]
    reference: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reference_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Empty {}

/// Another version, with another shape and a default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
struct FlunderBeta {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    references: Vec<String>,
}

impl Version<Flunder> for FlunderBeta {
    const VERSION: &'static str = "v1beta1";

    fn set_defaults(&mut self) {
        if self.references.is_empty() {
            self.references.push("default".to_owned());
        }
    }

    fn into_hub(self) -> Flunder {
        let reference = self.references.join("+");
        Flunder { metadata: self.metadata, spec: FlunderSpec { reference, ..FlunderSpec::default() }, status: Empty {} }
    }

    fn from_hub(hub: &Flunder) -> Self {
        let references = hub.spec.reference.split('+').map(str::to_owned).collect();
        Self { metadata: hub.metadata.clone(), references }
    }
}

fn flunders() -> Kind<Flunder> {
    Kind::builder("wardle.example.com", "Flunder").version::<FlunderBeta>().storage_version::<Flunder>().build()
}

fn decode<H: Object>(kind: &Kind<H>, case: &Value) -> Result<(Value, Vec<String>), (String, Status)> {
    use base64::Engine as _;
    let body = match case["in"].as_str() {
        Some(text) => text.as_bytes().to_vec(),
        None => base64::engine::general_purpose::STANDARD.decode(case["inBase64"].as_str().unwrap()).unwrap(),
    };
    let format = if case["format"] == "yaml" { InputFormat::Yaml } else { InputFormat::Json };
    let strictness = if case["strict"] == true { Strictness::Strict } else { Strictness::Ignore };
    let version = kind.storage_version();
    let decoded = kind.decode(version, &body, format, strictness).map_err(|e| (e.to_string(), Status::from(e)))?;
    // What strict reading refuses is there all the same, with warnings.
    let warned = kind.decode(version, &body, format, Strictness::Warn).unwrap();
    assert_eq!(warned.object, decoded.object);
    let json = kind.encode(version, &decoded.object).unwrap();
    Ok((serde_json::from_slice(&json).unwrap(), warned.warnings))
}

#[test]
fn decoding_agrees_with_go() {
    let (mut compared, mut left_out) = (0, Vec::new());
    for case in test_vectors::lines(include_str!("../../tests/vectors/strict/decode.jsonl")) {
        let id = case["id"].as_str().unwrap();
        if id.starts_with("map-") {
            continue;
        }
        // Here the path says which kind is wanted; Go's bare serialiser is not told.
        if case["missingKind"] == true || case["missingVersion"] == true {
            left_out.push(id.to_owned());
            continue;
        }
        // YAML 1.2 lets a tab stand before a key.
        if id.starts_with("yaml-13") {
            continue;
        }
        let found = match (case["gvk"]["group"].as_str(), case["gvk"]["kind"].as_str()) {
            (Some(""), Some("ConfigMap")) => {
                decode(&Kind::<ConfigMap>::builder("", "ConfigMap").storage_version::<ConfigMap>().build(), &case)
            }
            (Some(""), Some("Service")) => {
                decode(&Kind::<Service>::builder("", "Service").storage_version::<Service>().build(), &case)
            }
            _ => decode(&flunders(), &case),
        };
        let error = case["error"].as_str();
        match (found, error) {
            (Ok((object, _)), None) => {
                let mut expected = case["object"].clone();
                // The server tracks no ownership, and says so by dropping these.
                expected["metadata"].as_object_mut().unwrap().remove("managedFields");
                if case["gvk"]["kind"] == "Service" {
                    // Go writes the zero values of a service; the types used here leave them out.
                    expected["status"] = json!({});
                    if let Some(port) = expected["spec"].get_mut("ports").and_then(|p| p[1].as_object_mut()) {
                        port.remove("targetPort");
                    }
                }
                for field in ["apiVersion", "kind"] {
                    expected[field] = object[field].clone();
                }
                assert_eq!(object, expected, "{id}");
            }
            (Err((message, status)), Some(expected)) => {
                assert_eq!(status.code(), 400, "{id}");
                if case["format"] == "yaml" && case["isStrict"] == false && expected.starts_with("yaml:") {
                    assert!(message.starts_with("yaml:"), "{id}: {message}");
                } else if id.starts_with("json-51") || id.starts_with("json-54") {
                    // A type that reads itself has words of its own.
                } else {
                    let comparable = |text: &str| {
                        text.split(" into ").next().unwrap().split(" in scheme").next().unwrap().to_owned()
                    };
                    assert_eq!(comparable(&message), comparable(expected), "{id}");
                }
            }
            (found, expected) => panic!("{id}: {found:?} instead of {expected:?}"),
        }
        compared += 1;
    }
    assert!(compared > 150, "only {compared} cases were compared, without {left_out:?}");
}

#[test]
fn merge_patches_are_read_as_go_does() {
    for case in test_vectors::lines(include_str!("../../tests/vectors/strict/decode.jsonl")) {
        let id = case["id"].as_str().unwrap();
        if !id.starts_with("map-") {
            continue;
        }
        let found = codec::json::parse_untyped(case["in"].as_str().unwrap().as_bytes())
            .map_err(|e| e.to_string())
            .and_then(|node| {
                let mut problems = typed::Problems::new(true);
                patch::check_merge_fields(&node, &mut problems).map_err(|e| e.to_string())?;
                Ok(problems.into_texts())
            });
        match found {
            Ok(texts) => {
                assert_eq!(case["error"], Value::Null, "{id}");
                assert_eq!(Value::from(texts), case["strictErrors"], "{id}");
            }
            Err(error) => {
                let expected = case["error"].as_str().unwrap();
                assert_eq!(error.split(" into ").next(), expected.split(" into ").next(), "{id}");
            }
        }
    }
}

#[test]
fn errors_are_worded_as_the_handlers_word_them() {
    let message = |body: &str| {
        let error = flunders().decode("v1alpha1", body.as_bytes(), InputFormat::Json, Strictness::Strict).unwrap_err();
        Status::from(error).message().to_owned()
    };
    assert_eq!(
        message(r#"{"apiVersion":"wardle.example.com/v1alpha1","kind":"Flunder","spec":{"bogus":1}}"#),
        r#"Flunder in version "v1alpha1" cannot be handled as a Flunder: strict decoding error: unknown field "spec.bogus""#
    );
    assert_eq!(
        message("{"),
        "the object provided is unrecognized (must be of type Flunder): couldn't get version/kind; json parse error: unexpected end of JSON input ({)"
    );
    assert_eq!(
        message("spec"),
        "the object provided is unrecognized (must be of type Flunder): couldn't get version/kind; json parse error: invalid character 's' looking for beginning of value (73706563)"
    );
    assert_eq!(
        message(r#"{"apiVersion":"wardle.example.com/v1beta1","kind":"Flunder"}"#),
        "the API version in the data (wardle.example.com/v1beta1) does not match the expected API version (wardle.example.com/v1alpha1)"
    );
    assert_eq!(
        message(r#"{"kind":"Fischer"}"#),
        r#"Fischer in version "v1alpha1" cannot be handled as a Flunder: no kind "Fischer" is registered for version "wardle.example.com/v1alpha1""#
    );
}

#[test]
fn versions_are_converted_through_the_hub_and_defaulted() {
    let kind = flunders();
    assert_eq!(kind.versions().collect::<Vec<_>>(), ["v1beta1", "v1alpha1"]);
    assert_eq!((kind.storage_version(), kind.list_kind().as_str()), ("v1alpha1", "FlunderList"));
    let beta = kind.decode("v1beta1", b"{}", InputFormat::Json, Strictness::Strict).unwrap().object;
    assert_eq!(beta.spec.reference, "default");
    let alpha: Value = serde_json::from_slice(&kind.encode("v1alpha1", &beta).unwrap()).unwrap();
    assert_eq!(alpha["spec"], json!({"reference": "default"}));
    assert!(kind.encode("v2", &beta).is_err());
    assert!(kind.decode("v2", b"{}", InputFormat::Json, Strictness::Ignore).is_err());
}

#[test]
fn what_is_stored_is_read_back_and_has_no_resource_version() {
    let kind = flunders();
    let mut object = Flunder::default();
    object.metadata.name = Some("x".to_owned());
    object.metadata.resource_version = Some("7".to_owned());
    object.spec.cost = Some(1.0);
    let stored = kind.encode_stored(&object).unwrap();
    let text = r#"{"kind":"Flunder","apiVersion":"wardle.example.com/v1alpha1","metadata":{"name":"x"},"spec":{"cost":1},"status":{}}"#;
    assert_eq!(String::from_utf8(stored.clone()).unwrap(), text);
    object.metadata.resource_version = None;
    assert_eq!(kind.decode_stored(&stored).unwrap(), object);

    // Older data may be in another version, and hold nulls.
    let older =
        br#"{"apiVersion":"wardle.example.com/v1beta1","kind":"Flunder","metadata":null,"references":["a","b"]}"#;
    assert_eq!(kind.decode_stored(older).unwrap().spec.reference, "a+b");
    for bad in [&b"{"[..], b"{}", br#"{"apiVersion":"wardle.example.com/v9","kind":"Flunder"}"#] {
        assert!(kind.decode_stored(bad).is_err());
    }
}

fn patched(patch_type: PatchType, patch: &str, strictness: Strictness) -> Result<(Value, Vec<String>), Status> {
    let kind = flunders();
    let current = br#"{"kind":"Flunder","apiVersion":"wardle.example.com/v1alpha1","metadata":{"name":"x","labels":{"a":"b"}},"spec":{"reference":"r"},"status":{}}"#;
    patch::check(patch.as_bytes())?;
    let decoded = patch::apply(&kind, "v1alpha1", patch_type, current, patch.as_bytes(), strictness)?;
    let json = kind.encode("v1alpha1", &decoded.object).unwrap();
    Ok((serde_json::from_slice(&json).unwrap(), decoded.warnings))
}

#[test]
fn patches_change_objects() {
    let (object, warnings) =
        patched(PatchType::Merge, r#"{"spec":{"reference":"s"},"metadata":{"labels":{"a":null}}}"#, Strictness::Strict)
            .unwrap();
    assert_eq!(object["spec"]["reference"], "s");
    assert_eq!(object["metadata"], json!({"name": "x", "labels": {}}));
    assert_eq!(warnings, [""; 0]);

    let replace = r#"[{"op":"replace","path":"/spec/reference","value":"t"}]"#;
    assert_eq!(patched(PatchType::Json, replace, Strictness::Strict).unwrap().0["spec"]["reference"], "t");
}

#[test]
fn patches_fail_as_the_handlers_say() {
    let code = |patch_type, patch: &str| patched(patch_type, patch, Strictness::Warn).unwrap_err().code().as_u16();
    assert_eq!(code(PatchType::Json, "{"), 400);
    assert_eq!(code(PatchType::Json, "{}"), 400);
    assert_eq!(code(PatchType::Json, r#"[{"op":1}]"#), 400);
    assert_eq!(code(PatchType::Json, r#"[{"op":"test","path":"/spec/reference","value":"x"}]"#), 422);
    assert_eq!(code(PatchType::Json, r#"[{"op":"remove","path":"/nope"}]"#), 422);
    assert_eq!(code(PatchType::Merge, "[]"), 400);
    assert_eq!(code(PatchType::Merge, "null"), 400);
    let many = format!("[{}]", vec![r#"{"op":"test","path":"/kind","value":"Flunder"}"#; 10_001].join(","));
    assert_eq!(code(PatchType::Json, &many), 413);

    let status = patched(PatchType::Merge, r#"{"spec":{"reference":5}}"#, Strictness::Ignore).unwrap_err();
    assert_eq!(status.code(), 422);
    let cause = status.as_v1().details.clone().unwrap().causes.unwrap().remove(0);
    assert_eq!((cause.field.as_deref(), cause.reason.as_deref()), (Some("patch"), Some("FieldValueInvalid")));

    let status = patched(PatchType::Merge, r#"{"spec":{"bogus":1},"a":1,"a":2}"#, Strictness::Strict).unwrap_err();
    assert_eq!(status.code(), 422);
    assert!(
        status
            .message()
            .ends_with(r#"strict decoding error: duplicate field "a", unknown field "a", unknown field "spec.bogus""#),
        "{status}"
    );
}

#[test]
fn patches_warn_of_what_they_drop() {
    let merge = r#"{"spec":{"bogus":1}}"#;
    assert_eq!(patched(PatchType::Merge, merge, Strictness::Warn).unwrap().1, [r#"unknown field "spec.bogus""#]);
    assert_eq!(patched(PatchType::Merge, merge, Strictness::Ignore).unwrap().1, [""; 0]);
    let json = r#"[{"op":"add","path":"/spec/reference","value":"s","extra":1}]"#;
    let (object, warnings) = patched(PatchType::Json, json, Strictness::Warn).unwrap();
    assert_eq!(object["spec"]["reference"], "s");
    assert_eq!(warnings, [r#"json patch unknown field "[0].extra""#]);
}

#[test]
fn ownership_that_a_client_claims_is_not_kept() {
    let body =
        br#"{"metadata":{"name":"x","managedFields":[{"manager":"m","operation":"Apply","fieldsV1":{"f:spec":{}}}]}}"#;
    let decoded = flunders().decode("v1alpha1", body, InputFormat::Json, Strictness::Strict).unwrap();
    assert_eq!(decoded.object.metadata.managed_fields, None);
}
