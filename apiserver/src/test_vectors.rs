//! Reads the golden results of the Go originals in `tests/vectors`.

use serde_json::Value;

/// The cases of a file, one a line.
pub(crate) fn lines(file: &str) -> impl Iterator<Item = Value> {
    file.lines().map(|line| serde_json::from_str(line).expect("a case is JSON"))
}

/// A text, which may be given as parts to repeat.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        parts => format!(
            "{}{}{}",
            parts["prefix"].as_str().unwrap_or_default(),
            parts["repeat"].as_str().unwrap().repeat(parts["times"].as_u64().unwrap() as usize),
            parts["suffix"].as_str().unwrap_or_default(),
        ),
    }
}
