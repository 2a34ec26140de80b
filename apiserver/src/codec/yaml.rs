//! YAML as the field reads it: the first document, turned into what the same JSON would be
//! (`sigs.k8s.io/yaml` over go-yaml v2, which follows YAML 1.1: `yes` is a truth value, `010` is eight).

mod emit;
mod resolve;

use std::{borrow::Cow, collections::HashMap};

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

pub(super) use self::emit::from_json;
use self::resolve::{Scalar, resolve};
use super::json::{Entry, MAX_DEPTH, Node, NodeKind};
use crate::{endpoint::MAX_REQUEST_BYTES, number, quote::quote};

/// How many bytes anchors and aliases may add: a document of a few lines could stand for billions.
const MAX_COPIED: usize = 4 * MAX_REQUEST_BYTES;

/// A document.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) node: Node,
    /// What strict reading says of keys that are given twice, as one text with a line for each.
    pub(crate) repeated: Option<String>,
}

/// A mapping or sequence whose end has not come yet.
enum Open {
    Sequence(Vec<Node>),
    Mapping(Box<Mapping>),
}

#[derive(Default)]
struct Mapping {
    entries: Vec<Entry>,
    /// Where in `entries` a key is.
    places: HashMap<String, usize>,
    /// The key whose value is due.
    key: Option<Key>,
    /// The values of `<<`.
    merged: Vec<Node>,
}

enum Key {
    Name(String),
    /// `<<`, whose value's entries count where the mapping has none of its own.
    Merge,
}

/// What aliases stand for.
struct Anchor {
    node: Node,
    weight: Weight,
}

/// What a copy of a value comes to.
#[derive(Clone, Copy, Default)]
struct Weight {
    /// Texts and nodes, in bytes.
    bytes: usize,
    /// How many sequences and mappings lie in each other at most.
    depth: usize,
}

#[derive(Default)]
struct Builder {
    open: Vec<(Open, usize)>,
    anchors: HashMap<usize, Anchor>,
    /// How many bytes were copied for anchors and aliases.
    copied: usize,
    repeated: Vec<String>,
}

/// Reads the first document.
pub(crate) fn parse(text: &[u8]) -> Result<Document, String> {
    let text = std::str::from_utf8(text).map_err(|_| "yaml: invalid UTF-8".to_owned())?;
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|e| scan_error(&e))?;
        if let Some(node) = builder.take(event, span)? {
            let repeated = (!builder.repeated.is_empty())
                .then(|| format!("yaml: unmarshal errors:\n  {}", builder.repeated.join("\n  ")));
            return Ok(Document { node, repeated });
        }
    }
    Ok(Document { node: Node { kind: NodeKind::Null }, repeated: None })
}

fn scan_error(error: &ScanError) -> String {
    format!("yaml: line {}: {}", error.marker().line(), error.info())
}

// === impl Builder ===

impl Builder {
    /// Takes the next event. Gives the document's value once it is complete.
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<Option<Node>, String> {
        let line = span.start.line();
        let (node, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let scalar = typed(text, style, tag.as_deref())?;
                if self.expects_key() {
                    let key = key(&scalar, style)?;
                    self.begin_entry(key);
                    return Ok(None);
                }
                (Node { kind: scalar.into_kind()? }, anchor)
            }
            Event::Alias(id) => {
                let anchor = self.anchors.get(&id).ok_or("yaml: an alias is inside of what it stands for")?;
                if self.open.len() + anchor.weight.depth > MAX_DEPTH {
                    return Err(too_deep());
                }
                charge(&mut self.copied, anchor.weight)?;
                let node = anchor.node.clone();
                if self.expects_key() {
                    let NodeKind::String(name) = node.kind else { return Err(bad_key()) };
                    self.begin_entry(Key::Name(name));
                    return Ok(None);
                }
                (node, 0)
            }
            Event::UnresolvedAlias(name) => return Err(format!("yaml: unknown anchor {} referenced", quote(&name))),
            Event::SequenceStart(_, anchor, _) => {
                self.begin(Open::Sequence(Vec::new()), anchor)?;
                return Ok(None);
            }
            Event::MappingStart(_, anchor, _) => {
                self.begin(Open::Mapping(Box::default()), anchor)?;
                return Ok(None);
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some((Open::Sequence(items), anchor)) => (Node { kind: NodeKind::Array(items) }, anchor),
                Some((Open::Mapping(mapping), anchor)) => {
                    (Node { kind: NodeKind::Object(mapping.into_entries()?) }, anchor)
                }
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        if anchor != 0 {
            let weight = weigh(&node);
            charge(&mut self.copied, weight)?;
            self.anchors.insert(anchor, Anchor { node: node.clone(), weight });
        }
        self.place(node, line)
    }

    fn expects_key(&self) -> bool {
        matches!(self.open.last(), Some((Open::Mapping(mapping), _)) if mapping.key.is_none())
    }

    fn begin_entry(&mut self, name: Key) {
        if let Some((Open::Mapping(mapping), _)) = self.open.last_mut() {
            mapping.key = Some(name);
        }
    }

    fn begin(&mut self, open: Open, anchor: usize) -> Result<(), String> {
        if self.expects_key() {
            return Err(bad_key());
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(too_deep());
        }
        self.open.push((open, anchor));
        Ok(())
    }

    /// Puts a complete value where it belongs.
    fn place(&mut self, node: Node, line: usize) -> Result<Option<Node>, String> {
        match self.open.last_mut() {
            None => return Ok(Some(node)),
            Some((Open::Sequence(items), _)) => items.push(node),
            Some((Open::Mapping(mapping), _)) => match mapping.key.take() {
                Some(Key::Merge) => mapping.merged.push(node),
                Some(Key::Name(key)) => {
                    let entry = Entry { key, value: node, offset: line, repeats: Vec::new() };
                    self.repeated.extend(mapping.insert(entry));
                }
                None => return Err(bad_key()),
            },
        }
        Ok(None)
    }
}

// === impl Mapping ===

impl Mapping {
    /// Adds an entry, or replaces the one with the same key. Then it gives the text that strict reading has for it.
    fn insert(&mut self, entry: Entry) -> Option<String> {
        match self.places.get(&entry.key).and_then(|place| self.entries.get_mut(*place)) {
            Some(earlier) => {
                let text = format!("line {}: key {} already set in map", entry.offset, quote(&entry.key));
                *earlier = entry;
                Some(text)
            }
            None => {
                self.places.insert(entry.key.clone(), self.entries.len());
                self.entries.push(entry);
                None
            }
        }
    }

    /// Adds what `<<` merges in and the mapping does not have itself, and sorts: the keys of YAML have no order.
    fn into_entries(mut self) -> Result<Vec<Entry>, String> {
        for node in std::mem::take(&mut self.merged) {
            let nodes = match node.kind {
                NodeKind::Array(items) => items,
                kind => vec![Node { kind }],
            };
            for node in nodes {
                let NodeKind::Object(entries) = node.kind else {
                    return Err("yaml: map merge requires map or sequence of maps as the value".to_owned());
                };
                for entry in entries {
                    if !self.places.contains_key(&entry.key) {
                        self.insert(entry);
                    }
                }
            }
        }
        self.entries.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(self.entries)
    }
}

/// Weighs a value. It is not deeper than [`MAX_DEPTH`]: nothing deeper is ever complete.
fn weigh(node: &Node) -> Weight {
    let own = size_of::<Node>();
    let inside = |weights: &mut dyn Iterator<Item = Weight>| {
        let Weight { bytes, depth } = weights.fold(Weight::default(), |sum, weight| Weight {
            bytes: sum.bytes + weight.bytes,
            depth: sum.depth.max(weight.depth),
        });
        Weight { bytes: own + bytes, depth: depth + 1 }
    };
    match &node.kind {
        NodeKind::Array(items) => inside(&mut items.iter().map(weigh)),
        NodeKind::Object(entries) => inside(&mut entries.iter().map(|entry| {
            let weight = weigh(&entry.value);
            Weight { bytes: size_of::<Entry>() + entry.key.len() + weight.bytes, ..weight }
        })),
        NodeKind::String(text) | NodeKind::Number(text) => Weight { bytes: own + text.len(), depth: 0 },
        NodeKind::Null | NodeKind::Bool(_) => Weight { bytes: own, depth: 0 },
    }
}

/// Adds a copy to what was copied before.
fn charge(copied: &mut usize, weight: Weight) -> Result<(), String> {
    *copied += weight.bytes;
    if *copied > MAX_COPIED { Err("yaml: document contains excessive aliasing".to_owned()) } else { Ok(()) }
}

fn too_deep() -> String {
    format!("yaml: exceeded max depth of {MAX_DEPTH}")
}

fn bad_key() -> String {
    "yaml: a key is no text, number or truth value".to_owned()
}

/// A scalar's value, by its tag and style.
fn typed(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>) -> Result<Scalar, String> {
    let name = tag.map(|t| t.to_string());
    let name = name.as_deref().map(|n| n.trim_start_matches("tag:yaml.org,2002:").trim_start_matches("!!"));
    let scalar = match name {
        Some("str" | "!") => Scalar::Text(text.into_owned()),
        None | Some("") if style != ScalarStyle::Plain => Scalar::Text(text.into_owned()),
        None | Some("") => resolve(text),
        Some("binary") => {
            use base64::Engine as _;
            let compact: String = text.split_whitespace().collect();
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(compact)
                .map_err(|_| "yaml: !!binary value contains invalid base64 data".to_owned())?;
            Scalar::Text(String::from_utf8_lossy(&bytes).into_owned())
        }
        Some(wanted) => {
            let scalar = resolve(text);
            match (wanted, scalar) {
                ("int", scalar @ Scalar::Integer(_))
                | ("bool", scalar @ Scalar::Bool(_))
                | ("null", scalar @ Scalar::Null)
                | ("float", scalar @ (Scalar::Float(_) | Scalar::Integer(_))) => scalar,
                ("int" | "bool" | "null" | "float", scalar) => {
                    return Err(format!("yaml: cannot decode {scalar:?} as a !!{wanted}"));
                }
                (_, scalar) => scalar,
            }
        }
    };
    Ok(scalar)
}

fn key(scalar: &Scalar, style: ScalarStyle) -> Result<Key, String> {
    Ok(Key::Name(match scalar {
        Scalar::Text(text) if text == "<<" && style == ScalarStyle::Plain => return Ok(Key::Merge),
        Scalar::Text(text) | Scalar::Integer(text) => text.clone(),
        Scalar::Bool(value) => value.to_string(),
        Scalar::Float(value) => number::format_json(*value),
        Scalar::Null => return Err(bad_key()),
    }))
}

impl Scalar {
    fn into_kind(self) -> Result<NodeKind, String> {
        Ok(match self {
            Scalar::Null => NodeKind::Null,
            Scalar::Bool(value) => NodeKind::Bool(value),
            Scalar::Integer(text) => NodeKind::Number(text),
            Scalar::Float(value) if value.is_finite() => NodeKind::Number(number::format_json(value)),
            Scalar::Float(value) => {
                return Err(format!("json: unsupported value: {}", number::format_verb(value)));
            }
            Scalar::Text(text) => NodeKind::String(text),
        })
    }
}
