//! JSON as YAML: block style, keys sorted, texts quoted where another reader could take them for something else.

use serde_json::Value;

use super::resolve::{Scalar, resolve};
use crate::codec;

/// Turns JSON into YAML.
pub(in crate::codec) fn from_json(json: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let value: Value = serde_json::from_slice(json)?;
    let mut out = String::with_capacity(json.len() + json.len() / 4);
    match &value {
        Value::Object(map) if !map.is_empty() => object(&mut out, map, 0, false),
        Value::Array(items) if !items.is_empty() => array(&mut out, items, 0),
        scalar => {
            inline(&mut out, scalar);
            out.push('\n');
        }
    }
    Ok(out.into_bytes())
}

fn object(out: &mut String, map: &serde_json::Map<String, Value>, indent: usize, mut begun: bool) {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_key(|(key, _)| *key);
    for (key, value) in entries {
        if !std::mem::replace(&mut begun, false) {
            pad(out, indent);
        }
        text(out, key);
        out.push(':');
        match value {
            Value::Object(map) if !map.is_empty() => {
                out.push('\n');
                object(out, map, indent + 2, false);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                array(out, items, indent);
            }
            scalar => {
                out.push(' ');
                inline(out, scalar);
                out.push('\n');
            }
        }
    }
}

fn array(out: &mut String, items: &[Value], indent: usize) {
    for item in items {
        pad(out, indent);
        out.push('-');
        match item {
            Value::Object(map) if !map.is_empty() => {
                out.push(' ');
                object(out, map, indent + 2, true);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                array(out, items, indent + 2);
            }
            scalar => {
                out.push(' ');
                inline(out, scalar);
                out.push('\n');
            }
        }
    }
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

fn inline(out: &mut String, value: &Value) {
    match value {
        Value::String(value) => text(out, value),
        // Empty collections, numbers, truth values and null look as they do in JSON.
        other => out.push_str(&codec::to_text(other)),
    }
}

fn text(out: &mut String, text: &str) {
    if is_plain(text) {
        out.push_str(text);
    } else {
        // A JSON text is a YAML text in double quotes, but for characters that YAML does not print.
        for c in codec::to_text(&Value::String(text.to_owned())).chars() {
            match c {
                '\u{7f}'..='\u{9f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                    out.push_str(&format!("\\u{:04x}", u32::from(c)));
                }
                c => out.push(c),
            }
        }
    }
}

/// Whether a text can stand without quotes and be read as the same text, by readers of YAML 1.1 and 1.2.
fn is_plain(text: &str) -> bool {
    let first = text.bytes().next().unwrap_or(b' ');
    matches!(resolve(text.into()), Scalar::Text(_))
        && !looks_like_a_date_or_time(text)
        && !b"-?:,[]{}#&*!|>'\"%@` =<~".contains(&first)
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !text.contains(" #")
        && text.chars().all(crate::quote::printable)
}

fn looks_like_a_date_or_time(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit()) && text.contains([':', '-'])
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::from_json;
    use crate::codec::{typed, yaml::parse};

    #[test]
    fn writes_what_it_reads() {
        let value = json!({
            "apiVersion": "v1", "kind": "X", "empty": {}, "none": [], "null": null,
            "list": [1, -2.5, "a", [true, ["x"]], {"b": "c", "d": {"e": []}}, {}],
            "texts": ["", " ", "yes", "010", "1e3", "2024-01-01", "a: b", "a #b", "#", "- a", "é", "\n", "a\nb", "\u{0}", "~", "null", "=", "<<", "12:30", "a:"],
            "yes": 1, "a: b": 2, "": 3,
        });
        let yaml = from_json(&serde_json::to_vec(&value).unwrap()).unwrap();
        let back: Value = typed::decode(&parse(&yaml).unwrap().node, &mut typed::Problems::new(true)).unwrap();
        assert_eq!(back, value, "{}", String::from_utf8_lossy(&yaml));
    }

    #[test]
    fn looks_as_kubectl_users_know_it() {
        let json = br#"{"spec":{"toppings":[{"quantity":2,"name":"salami"}]},"kind":"Pizza"}"#;
        let yaml = "kind: Pizza\nspec:\n  toppings:\n  - name: salami\n    quantity: 2\n";
        assert_eq!(String::from_utf8(from_json(json).unwrap()).unwrap(), yaml);
    }
}
