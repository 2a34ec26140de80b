//! A group with all that schemas have to cope with.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::LocalObjectReference,
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{Condition, LabelSelector, ObjectMeta, Time},
        util::intstr::IntOrString,
    },
};
use schemars::{JsonSchema, Schema, schema_for};
use serde::{Deserialize, Serialize};

use crate::{
    endpoint::{ResourceDescription, SubresourceDescription, Verb, VersionDescription},
    meta::{ResourceNames, Scope},
};

pub(super) const GROUP: &str = "gadgets.example.com";

/// Gadget is a thing made of parts.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct Gadget {
    /// Standard object's metadata.
    metadata: ObjectMeta,
    /// What is wanted.
    spec: GadgetSpec,
    status: GadgetStatus,
}

/// GadgetSpec is what is wanted.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
struct GadgetSpec {
    /// The parts, each named once.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    parts: Vec<Part>,
    /// Absent means as many as fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_parts: Option<u32>,
    mode: Mode,
    on_failure: Option<OnFailure>,
    spare: Option<Part>,
    labels: BTreeMap<String, String>,
    drawers: BTreeMap<String, Part>,
    anything: serde_json::Value,
    selector: Option<LabelSelector>,
    port: Option<IntOrString>,
    weight: Option<Quantity>,
    secret: Option<LocalObjectReference>,
    colour: (u8, u8, u8),
    /// The field's name is a keyword of schemas.
    default: String,
    #[schemars(range(min = 0.5), extend("exclusiveMaximum" = 2.5))]
    ratio: f64,
}

/// Part is one part.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct Part {
    /// Its name.
    #[schemars(required)]
    name: String,
    /// How many.
    quantity: i64,
    /// What it is made of.
    parts: Vec<Part>,
}

/// Mode is how a gadget runs.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
enum Mode {
    /// runs at once
    #[default]
    Fast,
    /// takes its time
    Slow,
}

/// OnFailure is what happens when it breaks.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum OnFailure {
    /// Tries again.
    Retry { times: i32 },
    /// Calls somebody.
    Call { name: String },
}

/// GadgetStatus is what is.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct GadgetStatus {
    /// The latest observations.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    conditions: Vec<Condition>,
    /// Since when it runs.
    since: Option<Time>,
}

mod v1alpha1 {
    use super::{Deserialize, GadgetStatus, JsonSchema, ObjectMeta, Serialize};

    /// Gadget is a thing made of parts.
    #[derive(Default, Serialize, Deserialize, JsonSchema)]
    #[serde(default)]
    pub(super) struct Gadget {
        metadata: ObjectMeta,
        spec: GadgetSpec,
        status: GadgetStatus,
    }

    /// GadgetSpec is what is wanted.
    #[derive(Default, Serialize, Deserialize, JsonSchema)]
    #[serde(default)]
    pub(super) struct GadgetSpec {
        /// The names of the parts.
        #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
        parts: Vec<String>,
    }
}

/// Shelf is where gadgets are.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct Shelf {
    metadata: ObjectMeta,
    width: i32,
}

/// The two resources of the group.
pub(super) fn gadgets() -> [ResourceDescription; 2] {
    let status = SubresourceDescription {
        name: "status".into(),
        kind: "Gadget".into(),
        verbs: vec![Verb::Get, Verb::Patch, Verb::Update],
    };
    let order = SubresourceDescription { name: "order".into(), kind: "GadgetOrder".into(), verbs: vec![Verb::Create] };
    let gadgets = ResourceDescription {
        subresources: vec![status, order],
        ..resource(
            "gadgets",
            "gadget",
            "Gadget",
            Scope::Namespaced,
            &[("v1beta1", schema_for!(Gadget)), ("v1alpha1", schema_for!(v1alpha1::Gadget))],
        )
    };
    [gadgets, resource("shelves", "shelf", "Shelf", Scope::Cluster, &[("v1alpha1", schema_for!(Shelf))])]
}

pub(super) fn resource(
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    scope: Scope,
    versions: &[(&str, Schema)],
) -> ResourceDescription {
    ResourceDescription {
        group: GROUP.to_owned(),
        names: ResourceNames { plural, singular, kind, short_names: &[], categories: &[], scope },
        list_kind: format!("{kind}List"),
        verbs: Verb::STORED.to_vec(),
        versions: versions
            .iter()
            .map(|(name, schema)| VersionDescription { name: (*name).to_owned(), schema: schema.clone() })
            .collect(),
        storage_version: "v1beta1".to_owned(),
        subresources: Vec::new(),
    }
}
