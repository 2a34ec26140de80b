mod properties;
mod vectors;
mod wire;

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};

use crate::{
    meta::{ListMeta, ObjectMeta},
    protobuf,
};

/// A kind with data, as an author writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ConfigMap {
    metadata: ObjectMeta,
    data: BTreeMap<String, String>,
    binary_data: BTreeMap<String, ByteString>,
    immutable: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct ConfigMapList {
    metadata: ListMeta,
    items: Vec<ConfigMap>,
}

/// The options of a request, of which the originals have vectors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CreateOptions {
    dry_run: Vec<String>,
    field_manager: String,
    field_validation: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct UpdateOptions {
    dry_run: Vec<String>,
    field_manager: String,
    field_validation: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PatchOptions {
    dry_run: Vec<String>,
    force: Option<bool>,
    field_manager: String,
    field_validation: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct GetOptions {
    resource_version: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListOptions {
    label_selector: String,
    field_selector: String,
    watch: bool,
    allow_watch_bookmarks: bool,
    resource_version: String,
    resource_version_match: Match,
    timeout_seconds: Option<i64>,
    limit: i64,
    #[serde(rename = "continue")]
    continue_: String,
    send_initial_events: Option<bool>,
    shard_selector: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
enum Match {
    #[default]
    #[serde(rename = "")]
    Unset,
    Exact,
}

/// Every way in which a field can be there, and a message within itself.
#[derive(Clone, Debug, Default, PartialEq)]
struct Tree {
    children: Vec<Tree>,
    numbers: Vec<i64>,
    small: i32,
    float: f64,
    floats: Vec<f32>,
    by_number: BTreeMap<u32, Tree>,
    maybe: Option<f64>,
    flag: bool,
    large: u64,
    names: Vec<String>,
    ratio: Option<f32>,
    not_sent: String,
}

protobuf! {
    ConfigMap {
        metadata = 1,
        data = 2,
        binary_data = 3,
        immutable = 4,
    }
    ConfigMapList {
        metadata = 1,
        items = 2,
    }
    CreateOptions {
        dry_run = 1,
        field_manager = 3,
        field_validation = 4,
    }
    UpdateOptions {
        dry_run = 1,
        field_manager = 2,
        field_validation = 3,
    }
    PatchOptions {
        dry_run = 1,
        force = 2,
        field_manager = 3,
        field_validation = 4,
    }
    GetOptions {
        resource_version = 1,
    }
    ListOptions {
        label_selector = 1,
        field_selector = 2,
        watch = 3,
        resource_version = 4,
        timeout_seconds = 5,
        limit = 7,
        continue_ = 8,
        allow_watch_bookmarks = 9,
        resource_version_match = 10,
        send_initial_events = 11,
        shard_selector = 15 always,
    }
    Tree {
        children = 1,
        numbers = 2,
        small = 3,
        float = 4,
        floats = 5,
        by_number = 6,
        maybe = 7 always,
        flag = 8,
        large = 9,
        names = 10 wrapped,
        ratio = 16 always;
        skip not_sent
    }
}

protobuf! { text Match }
