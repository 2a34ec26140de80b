//! Times that say nothing (apiserver, `endpoints/handlers/fieldmanager/equality.go`).

use super::object::{managed_fields, set_managed_fields, without_managed_fields};
use crate::value::{Map, Value};

/// Gives an object the times of the managed fields that it had before, if nothing but these changed: a write that changes
/// nothing is then none. A server calls it when the strategy is done with the object.
pub fn keep_times(new: &mut Value, old: &Value) {
    let entries = |object| managed_fields(object).and_then(Value::as_list).unwrap_or_default();
    let (new_entries, old_entries) = (entries(new), entries(old));
    if new_entries.is_empty() || new_entries.len() != old_entries.len() {
        return;
    }
    let time = |entry: &Value| entry.get("time").cloned().unwrap_or_default();
    let mut pairs = new_entries.iter().zip(old_entries);
    if pairs.clone().all(|(new, old)| time(new) == time(old)) || !pairs.all(|(new, old)| same(new, old)) {
        return;
    }
    let kept = managed_fields(old).cloned();
    if without_managed_fields(new) == without_managed_fields(old) {
        set_managed_fields(new, kept);
    }
}

/// Whether two entries differ in nothing but their times.
fn same(new: &Value, old: &Value) -> bool {
    let timeless = |entry: &Value| {
        let entries = entry.as_map().map(Map::entries).unwrap_or_default();
        entries.iter().filter(|(name, _)| &**name != "time").cloned().collect::<Map>()
    };
    timeless(new) == timeless(old)
}
