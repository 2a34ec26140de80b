//! JSON byte by byte as Go's encoders write it: `fieldsV1` and identifiers are compared as text.

use super::Value;
use crate::text;

/// Which of Go's encoders writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoder {
    /// `encoding/json`.
    Standard,
    /// json-iterator, which writes the values within `fieldsV1`.
    Iterator,
}

/// Whether `<`, `>`, `&` and the two line separators of Unicode are escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Html {
    Escaped,
    Plain,
}

/// Writes a value with its maps sorted by name.
pub(crate) fn write(value: &Value, encoder: Encoder, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Int(value) => out.push_str(&value.to_string()),
        Value::Float(value) => out.push_str(&number(*value, encoder)),
        Value::String(value) => string(value, encoder, Html::Escaped, out),
        Value::List(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(item, encoder, out);
            }
            out.push(']');
        }
        Value::Map(map) => {
            out.push('{');
            for (i, (name, value)) in map.entries().iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                string(name, encoder, Html::Escaped, out);
                out.push(':');
                write(value, encoder, out);
            }
            out.push('}');
        }
    }
}

/// Writes a text in quotes.
pub(crate) fn string(value: &str, encoder: Encoder, html: Html, out: &mut String) {
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' if encoder == Encoder::Standard => out.push_str("\\b"),
            '\u{c}' if encoder == Encoder::Standard => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' if html == Html::Escaped => escape(c, out),
            c if c < ' ' => escape(c, out),
            c => out.push(c),
        }
    }
    out.push('"');
}

fn escape(c: char, out: &mut String) {
    out.push_str(&format!("\\u{:04x}", c as u32));
}

fn number(value: f64, encoder: Encoder) -> String {
    let magnitude = value.abs();
    if magnitude == 0.0 || (1e-6..1e21).contains(&magnitude) {
        return format!("{value}");
    }
    let text = text::exponent(value);
    match encoder {
        // It writes e-7 where the other writes e-07.
        Encoder::Standard => text.replace("e-0", "e-"),
        Encoder::Iterator => text,
    }
}
