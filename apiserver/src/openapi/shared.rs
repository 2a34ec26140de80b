//! The definitions and parameters that all Kubernetes API servers share.
//!
//! They are those of the original, word for word: kube-apiserver merges the documents of all servers and keeps a second copy
//! (`…ObjectMeta_v2`) of a definition that differs in anything but the kinds it stands for.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

/// The extension by which readers find the definition of a kind and the operations on it.
pub(super) const GROUP_VERSION_KIND: &str = "x-kubernetes-group-version-kind";

/// The prefix of the names of shared object metadata, status and the like.
pub(super) const META_V1: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

/// Kinds that every version of every group has too
/// (k8s.io/apimachinery `pkg/apis/meta/v1/register.go`, `AddToGroupVersion`).
const IN_EVERY_VERSION: [&str; 7] =
    ["WatchEvent", "ListOptions", "GetOptions", "DeleteOptions", "CreateOptions", "UpdateOptions", "PatchOptions"];

/// The generated files, parsed. A test holds that they are what they should be.
static SHARED: LazyLock<Shared> = LazyLock::new(|| {
    let parse = |text: &str, section: &str| -> Map<String, Value> {
        let mut file: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
        match file.remove(section) {
            Some(Value::Object(section)) => section,
            _ => Map::new(),
        }
    };
    let (v2, v3) = (include_str!("meta-definitions.v2.json"), include_str!("meta-definitions.v3.json"));
    Shared { v2: parse(v2, "definitions"), v3: parse(v3, "schemas"), parameters: parse(v2, "parameters") }
});

struct Shared {
    v2: Map<String, Value>,
    v3: Map<String, Value>,
    parameters: Map<String, Value>,
}

/// A parameter of operations on all resources.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedParameter {
    /// Its name among the document's parameters. `None`: it stands in each operation, where kubectl looks for it.
    pub(super) key: Option<&'static str>,
    /// The parameter as Swagger 2 has it.
    pub(super) value: &'static Value,
}

/// All shared definitions for OpenAPI 3.
pub(super) fn v3() -> &'static Map<String, Value> {
    &SHARED.v3
}

/// All shared definitions for Swagger 2.
pub(super) fn v2() -> &'static Map<String, Value> {
    &SHARED.v2
}

/// A query or path parameter by its name.
pub(super) fn parameter(name: &str) -> Option<SharedParameter> {
    let named = SHARED.parameters.iter().filter(|(_, value)| value.get("name").is_some_and(|n| n == name));
    // Of two `fieldManager`s, the one that does not go on about apply patches.
    named
        .min_by_key(|(_, value)| text(value, "description").len())
        .map(|(key, value)| SharedParameter { key: (key != name).then_some(key.as_str()), value })
}

/// The parameter of Swagger 2 that is a body of this shared kind.
pub(super) fn body_parameter(kind: &str) -> Option<SharedParameter> {
    let reference = json!({ "$ref": format!("#/definitions/{META_V1}{kind}") });
    SHARED
        .parameters
        .iter()
        .find(|(_, value)| value.get("schema") == Some(&reference))
        .map(|(key, value)| SharedParameter { key: Some(key), value })
}

/// The properties `apiVersion` and `kind`, which every kind has.
pub(super) fn type_meta() -> impl Iterator<Item = (&'static str, Value)> {
    let properties = SHARED.v3.get(&format!("{META_V1}Status")).and_then(|status| status.get("properties"));
    ["apiVersion", "kind"].into_iter().filter_map(move |name| Some((name, properties?.get(name)?.clone())))
}

/// Adds the kinds of these versions to a shared definition that is a kind of every version.
pub(super) fn add_kinds(name: &str, definition: &mut Value, versions: &[(&str, &str)]) {
    let Some(kind) = name.strip_prefix(META_V1).filter(|kind| IN_EVERY_VERSION.contains(kind)) else { return };
    let Some(Value::Array(kinds)) = definition.get_mut(GROUP_VERSION_KIND) else { return };
    let mut versions = versions.to_vec();
    versions.sort_unstable();
    kinds.extend(versions.iter().map(|(group, version)| group_version_kind(group, version, kind)));
}

/// A kind as the extension writes it.
pub(super) fn group_version_kind(group: &str, version: &str, kind: &str) -> Value {
    json!({ "group": group, "version": version, "kind": kind })
}

pub(super) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}
