mod against_original;
mod documents;
mod http;
mod types;

use serde_json::{Map, Value};

use self::types::gadgets;
use super::{Info, Values};
use crate::discovery::ServedGroup;

/// The documents of the test group, which has two versions of one resource and one version of another.
fn values() -> Values {
    let gadgets = gadgets();
    let versions = ["v1beta1", "v1alpha1"].map(str::to_owned);
    let served = ServedGroup::new(types::GROUP, &versions, gadgets.iter().collect()).unwrap();
    let info = Info { title: "Gadgets".to_owned(), version: "1.2.3".to_owned() };
    Values::build(&info, &[served]).unwrap()
}

fn object<'a>(value: &'a Value, pointer: &str) -> &'a Map<String, Value> {
    value.pointer(pointer).and_then(Value::as_object).unwrap_or_else(|| panic!("no object at {pointer}"))
}
