//! The two kinds of the vectors, `Pizza` and `Kitchen`: how they are converted and defaulted.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    managed_fields::{Objects, Types, Untyped},
    schema::openapi::{Models, UnknownFields},
    updater::ConvertError,
    value::{Map, Value},
};
use serde_json::Value as Json;

const PIZZA: &str = "restaurant.programming-kubernetes.info";
const KNOWN: [&str; 3] = [
    "restaurant.programming-kubernetes.info/v1alpha1",
    "restaurant.programming-kubernetes.info/v1beta1",
    "kitchen.example.com/v1",
];

/// The group and the hub version of a kind.
pub(super) fn hub_of(kind: &str) -> (&'static str, &'static str) {
    match kind {
        "Pizza" => (PIZZA, "v1beta1"),
        "Kitchen" => ("kitchen.example.com", "v1"),
        other => panic!("no kind {other}"),
    }
}

/// The schemas by the name that a step gives.
pub(super) fn schemas() -> BTreeMap<&'static str, Box<dyn Types>> {
    let models = |text: &str| -> Box<dyn Types> {
        let definitions: serde_json::Map<String, Json> = serde_json::from_str(text).unwrap();
        let definitions = definitions.iter().map(|(name, definition)| (name.as_str(), definition));
        Box::new(Models::new(definitions, UnknownFields::Refused).unwrap())
    };
    BTreeMap::from([
        ("a", models(include_str!("../../../tests/vectors/ssa/schemas.json"))),
        ("b", models(include_str!("../../../tests/vectors/ssa/schemas-b.json"))),
        ("deduced", Box::new(Untyped)),
    ])
}

pub(super) struct Kinds;

impl Objects for Kinds {
    fn convert(&self, object: &Value, version: &str) -> Result<Value, ConvertError> {
        let from = text(object, "apiVersion");
        if from == version {
            return Ok(object.clone());
        }
        if !KNOWN.contains(&version) || !KNOWN.contains(&from) {
            return Err(ConvertError::MissingVersion(format!("no kind is registered for {version} or {from}")));
        }
        let mut object = object.clone();
        let root = object.map_mut().unwrap();
        root.insert("apiVersion", version.into());
        let alpha = version.ends_with("v1alpha1");
        if let Some(spec) = root.get_mut("spec").and_then(Value::map_mut)
            && let Some(toppings) = spec.get("toppings").and_then(Value::as_list)
        {
            let converted = if alpha { repeated(toppings) } else { counted(toppings) };
            spec.insert("toppings", converted);
        }
        if alpha && let Some(status) = root.get_mut("status").and_then(Value::map_mut) {
            status.remove("conditions");
        }
        Ok(object)
    }

    fn default(&self, object: &mut Value) {
        let version = text(object, "apiVersion").to_owned();
        let Some(root) = object.map_mut() else { return };
        if version.starts_with(PIZZA) {
            if root.get("spec").and_then(Value::as_map).is_none() {
                root.insert("spec", Map::new().into());
            }
            let spec = root.get_mut("spec").and_then(Value::map_mut).unwrap();
            default_toppings(spec, version.ends_with("v1alpha1"));
        } else if let Some(ports) = root
            .get_mut("spec")
            .and_then(Value::map_mut)
            .and_then(|spec| spec.get_mut("ports"))
            .and_then(Value::list_mut)
        {
            for port in ports.iter_mut().filter_map(Value::map_mut) {
                if port.get("protocol").is_none() {
                    port.insert("protocol", "TCP".into());
                }
            }
        }
    }
}

fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn topping(name: Value, quantity: i64) -> Value {
    Map::from_iter([(Arc::from("name"), name), (Arc::from("quantity"), Value::Int(quantity))]).into()
}

fn default_toppings(spec: &mut Map, alpha: bool) {
    match spec.get_mut("toppings").and_then(Value::list_mut) {
        Some(toppings) if !toppings.is_empty() => {
            for topping in toppings.iter_mut().filter(|_| !alpha).filter_map(Value::map_mut) {
                if matches!(topping.get("quantity"), None | Some(Value::Null | Value::Int(0))) {
                    topping.insert("quantity", Value::Int(1));
                }
            }
        }
        _ => {
            let names = ["salami", "mozzarella", "tomato"].map(Value::from);
            let toppings = names.map(|name| if alpha { name } else { topping(name, 1) });
            spec.insert("toppings", Value::list(toppings));
        }
    }
}

/// Each name as often as its quantity says, at most a thousand times.
fn repeated(toppings: &[Value]) -> Value {
    let of = |topping: &Map| {
        let quantity = match topping.get("quantity") {
            Some(Value::Int(quantity)) => *quantity,
            Some(Value::Float(quantity)) => *quantity as i64,
            _ => 1,
        };
        let name = topping.get("name").cloned().unwrap_or_default();
        std::iter::repeat_n(name, quantity.clamp(0, 1000) as usize)
    };
    Value::list(toppings.iter().filter_map(Value::as_map).flat_map(of))
}

/// Each name once, with how often it was there.
fn counted(toppings: &[Value]) -> Value {
    let mut counts: Vec<(Value, i64)> = Vec::new();
    for name in toppings {
        match counts.iter_mut().find(|(other, _)| other == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name.clone(), 1)),
        }
    }
    Value::list(counts.into_iter().map(|(name, count)| topping(name, count)))
}
