//! Managed fields end to end: every scenario of the vectors, step by step.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    Kind,
    fieldpath::{Filter, Path},
    managed_fields::{FieldManager, FieldManagerError, Request, Types, keep_times},
    updater::Force,
    value::{Map, Value},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value as Json;

use self::kinds::{Kinds, hub_of, schemas};

mod behaviour;
mod kinds;
mod random;

/// When the first step would be if it took no time.
const EPOCH: &str = "2000-01-01T00:00:00Z";

const UID: &str = "00000000-0000-4000-8000-000000000001";

#[test]
fn scenarios_by_hand() {
    assert_eq!(run(include_str!("../../tests/vectors/ssa/hand.jsonl")), (150, 588));
}

#[test]
fn scenarios_for_each_kind_of_field() {
    assert_eq!(run(include_str!("../../tests/vectors/ssa/systematic.jsonl")), (200, 1125));
}

#[test]
fn random_scenarios() {
    let files = [
        include_str!("../../tests/vectors/ssa/random-1.jsonl"),
        include_str!("../../tests/vectors/ssa/random-2.jsonl"),
        include_str!("../../tests/vectors/ssa/random-3.jsonl"),
        include_str!("../../tests/vectors/ssa/random-4.jsonl"),
        include_str!("../../tests/vectors/ssa/random-5.jsonl"),
    ];
    let counts = files.map(run);
    assert_eq!(counts.iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1)), (900, 4809));
}

/// Runs the scenarios of a file and tells how many there were, with how many steps.
fn run(file: &str) -> (usize, usize) {
    let schemas = schemas();
    let (mut scenarios, mut steps) = (0, 0);
    for line in file.lines() {
        let case: Json = serde_json::from_str(line).unwrap();
        scenarios += 1;
        steps += scenario(&case, &schemas);
    }
    (scenarios, steps)
}

fn scenario(case: &Json, schemas: &BTreeMap<&str, Box<dyn Types>>) -> usize {
    let mut live: Option<Value> = None;
    let mut now: Timestamp = EPOCH.parse().unwrap();
    let steps = case["steps"].as_array().unwrap();
    for (i, step) in steps.iter().enumerate() {
        let at = format!("{} step {i}", case["id"].as_str().unwrap());
        now += SignedDuration::from_secs(step["dt"].as_i64().unwrap());
        let (after, error) = Step { case, step, now }.run(live.as_ref(), schemas);
        check_error(&at, error.as_ref(), &step["error"], step["error"]["messageUnstable"] == true);
        let expected = match step.get("after") {
            Some(Json::Null) => None,
            Some(after) => Some(Value::try_from(after).unwrap()),
            None => live.clone(),
        };
        assert_eq!(text(after.as_ref()), text(expected.as_ref()), "{at}");
        assert_eq!(after, expected, "{at}");
        live = after;
    }
    steps.len()
}

fn text(object: Option<&Value>) -> String {
    serde_json::to_string_pretty(&object).unwrap()
}

struct Step<'a> {
    case: &'a Json,
    step: &'a Json,
    now: Timestamp,
}

impl Step<'_> {
    fn text(&self, name: &str) -> &str {
        self.step[name].as_str().unwrap_or_default()
    }

    /// Does what a server does around the field manager.
    fn run(
        &self,
        live: Option<&Value>,
        schemas: &BTreeMap<&str, Box<dyn Types>>,
    ) -> (Option<Value>, Option<FieldManagerError>) {
        let sent = Value::try_from(&self.step["object"]).unwrap();
        let kind = self.case["kind"].as_str().unwrap();
        let (group, hub) = hub_of(kind);
        let hub = format!("{group}/{hub}");
        let handler = self.case["mode"] == "handler";
        let reset = if self.text("subresource") == "status" { "spec" } else { "status" };
        let reset_fields: BTreeMap<Arc<str>, Filter> = ["v1alpha1", "v1beta1", "v1"]
            .into_iter()
            .filter(|_| handler)
            .map(|version| {
                let excluded = [Path::fields(&[reset])].iter().collect();
                (Arc::from(format!("{group}/{version}")), Filter::Exclude(excluded))
            })
            .collect();
        let schema = self.step["schema"].as_str().unwrap_or("a");
        let manager = FieldManager {
            types: schemas[schema].as_ref(),
            objects: &Kinds,
            kind: &Kind::new(&format!("{group}/{}", self.text("version")), kind),
            hub: &hub,
            subresource: self.text("subresource"),
            reset_fields: &reset_fields,
        };
        let empty = || -> Value {
            Map::from_iter([(Arc::from("apiVersion"), hub.as_str().into()), (Arc::from("kind"), kind.into())]).into()
        };
        let base = live.cloned().unwrap_or_else(empty);
        let force = if self.step["force"] == true { Force::Yes } else { Force::No };
        let request = Request { manager: self.text("manager"), force, now: self.now };
        let (mut object, error) = match self.text("op") {
            "poke" => (sent, None),
            "apply" => match manager.apply(&base, &sent, request) {
                Ok(object) => (object, None),
                // What fails changes nothing, but the server goes on with what there is.
                Err(error) => match live {
                    Some(live) => (live.clone(), Some(error)),
                    None => return (None, Some(error)),
                },
            },
            "create" | "update" => {
                let mut sent = sent;
                use crate::managed_fields::Objects;
                Kinds.default(&mut sent);
                manager.update_no_errors(&base, &Kinds.convert(&sent, &hub).unwrap(), request)
            }
            other => panic!("no operation {other}"),
        };
        let root = object.map_mut().unwrap();
        if handler && self.text("op") != "poke" {
            match base.get(reset) {
                Some(value) => root.insert(reset, value.clone()),
                None => root.remove(reset),
            };
            if let Some(live) = live {
                keep_times(&mut object, live);
            }
        }
        with_uid(&mut object);
        (Some(object), error)
    }
}

fn with_uid(object: &mut Value) {
    let root = object.map_mut().unwrap();
    if root.get("metadata").and_then(Value::as_map).is_none() {
        root.insert("metadata", Map::new().into());
    }
    let metadata = root.get_mut("metadata").and_then(Value::map_mut).unwrap();
    if metadata.get("uid").and_then(Value::as_str).unwrap_or_default().is_empty() {
        metadata.insert("uid", UID.into());
    }
}

fn check_error(at: &str, found: Option<&FieldManagerError>, expected: &Json, unstable: bool) {
    let (Some(found), Some(message)) = (found, expected["message"].as_str()) else {
        assert_eq!(found.map(ToString::to_string).as_deref(), expected["message"].as_str(), "{at}");
        return;
    };
    if unstable {
        return;
    }
    let code = expected["code"].as_u64().unwrap_or(500);
    assert_eq!(u64::from(found.code()), code, "{at}: {found}");
    // Where Go prints its own values and types, what is in front of them counts.
    let comparable = |text: &str| text.split(", got").next().unwrap().to_owned();
    match message.split_once("error decoding versioned set from") {
        Some((start, _)) => assert!(found.to_string().starts_with(start), "{at}: {found}"),
        None => assert_eq!(comparable(&found.to_string()), comparable(message), "{at}"),
    }
    if let FieldManagerError::Conflict(conflict) = found {
        let mut causes: Vec<_> = conflict.causes().into_iter().map(|cause| (cause.message, cause.field)).collect();
        causes.sort_by(|(a, _), (b, _)| a.cmp(b));
        let text = |cause: &Json, name: &str| cause[name].as_str().unwrap().to_owned();
        let expected: Vec<_> = expected["causes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|cause| (text(cause, "message"), text(cause, "field")))
            .collect();
        assert_eq!(causes, expected, "{at}");
    }
}
