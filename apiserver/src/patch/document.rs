//! A JSON document under change. Numbers keep their text, for `1.0` is not `1` to a patch's `test`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::codec::{
    self,
    json::{Entry, Node, NodeKind},
};

/// A JSON value. It is never deeper than [`codec::json::MAX_DEPTH`], so that walking it cannot run out of stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Document {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    Array(Vec<Document>),
    Object(BTreeMap<String, Document>),
}

/// How large a document is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// How many values there are, it and what is in it.
    pub(super) values: usize,
    /// How many arrays and objects lie in each other at most.
    pub(super) depth: usize,
}

impl Document {
    pub(super) fn from_node(node: Node) -> Self {
        match node.kind {
            NodeKind::Null => Document::Null,
            NodeKind::Bool(value) => Document::Bool(value),
            NodeKind::Number(text) => Document::Number(text),
            NodeKind::String(text) => Document::Text(text),
            NodeKind::Array(items) => Document::Array(items.into_iter().map(Self::from_node).collect()),
            NodeKind::Object(entries) => {
                Document::Object(entries.into_iter().map(|e| (e.key, Self::from_node(e.value))).collect())
            }
        }
    }

    /// The document for decoding.
    pub(super) fn to_node(&self) -> Node {
        let kind = match self {
            Document::Null => NodeKind::Null,
            Document::Bool(value) => NodeKind::Bool(*value),
            Document::Number(text) => NodeKind::Number(text.clone()),
            Document::Text(text) => NodeKind::String(text.clone()),
            Document::Array(items) => NodeKind::Array(items.iter().map(Self::to_node).collect()),
            Document::Object(fields) => NodeKind::Object(
                fields
                    .iter()
                    .enumerate()
                    .map(|(offset, (key, value))| Entry {
                        key: key.clone(),
                        value: value.to_node(),
                        offset,
                        repeats: Vec::new(),
                    })
                    .collect(),
            ),
        };
        Node { kind }
    }

    /// The document as compact JSON.
    pub(super) fn to_text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            Document::Null => out.push_str("null"),
            Document::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Document::Number(text) => out.push_str(text),
            Document::Text(text) => write_text(text, out),
            Document::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Document::Object(fields) => {
                out.push('{');
                for (index, (key, value)) in fields.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write_text(key, out);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }

    /// How large it is.
    pub(super) fn extent(&self) -> Extent {
        let inside = |values: &mut dyn Iterator<Item = &Document>| {
            let none = Extent { values: 1, depth: 0 };
            let inside = values.map(Self::extent).fold(none, |sum, extent| Extent {
                values: sum.values + extent.values,
                depth: sum.depth.max(extent.depth),
            });
            Extent { depth: inside.depth + 1, ..inside }
        };
        match self {
            Document::Array(items) => inside(&mut items.iter()),
            Document::Object(fields) => inside(&mut fields.values()),
            _ => Extent { values: 1, depth: 0 },
        }
    }
}

fn write_text(text: &str, out: &mut String) {
    out.push_str(&codec::to_text(&Value::String(text.to_owned())));
}
