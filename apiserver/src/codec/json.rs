//! JSON as Go reads it: the same documents are accepted, and what is wrong is said in the same words
//! (Go's `encoding/json/scanner.go`, `sigs.k8s.io/json`).
//!
//! The tree keeps the order of fields, the text of numbers and the places where a field is given again, which typed
//! decoding needs to report problems as the original does. Parsing does not recurse, and depth is bounded, so that
//! nothing that walks the tree can run out of stack.

use std::collections::HashMap;

use crate::quote::quote;

/// How deep arrays and objects may lie in each other.
///
/// Go goes to 10,000, on stacks that grow. What is deeper than this no client in Rust could read back (serde_json stops at
/// 127), nor could this server from its storage; an API's types nest a dozen levels.
pub(crate) const MAX_DEPTH: usize = 120;

/// A JSON value.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: NodeKind,
}

#[derive(Clone, Debug)]
pub(crate) enum NodeKind {
    Null,
    Bool(bool),
    /// The number's text, which is a JSON number.
    Number(String),
    String(String),
    Array(Vec<Node>),
    /// Fields in the order of their first appearance.
    Object(Vec<Entry>),
}

/// A field of an object.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) value: Node,
    /// Where the key stands, in bytes from the document's start.
    pub(crate) offset: usize,
    /// Where the key stands again in the same object.
    pub(crate) repeats: Vec<usize>,
}

/// What a field that is given twice comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeated {
    /// Objects are merged, else the last one wins: Go decodes both into the same struct.
    Merge,
    /// The last one wins: Go decodes into untyped maps.
    LastWins,
}

/// Why a document is no JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SyntaxError {
    #[error("unexpected end of JSON input")]
    End,
    #[error("invalid character {} {context}", quote_byte(*byte))]
    Character { byte: u8, context: &'static str },
    #[error("exceeded max depth of {MAX_DEPTH}")]
    Depth,
}

fn quote_byte(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => r#"'"'"#.to_owned(),
        byte => {
            let quoted = quote(char::from(byte).encode_utf8(&mut [0; 4]));
            format!("'{}'", quoted.trim_matches('"'))
        }
    }
}

/// Parses a document that will be decoded into a type: objects given twice are merged.
pub(crate) fn parse(text: &[u8]) -> Result<Node, SyntaxError> {
    Parser { text, at: 0, repeated: Repeated::Merge }.document()
}

/// Parses a document that stays untyped: of what is given twice the last counts.
pub(crate) fn parse_untyped(text: &[u8]) -> Result<Node, SyntaxError> {
    Parser { text, at: 0, repeated: Repeated::LastWins }.document()
}

/// An array or object whose end has not come yet.
enum Open {
    Array(Vec<Node>),
    Object { entries: Vec<Entry>, key: String, offset: usize },
}

struct Parser<'t> {
    text: &'t [u8],
    at: usize,
    repeated: Repeated,
}

// === impl Parser ===

impl Parser<'_> {
    fn document(mut self) -> Result<Node, SyntaxError> {
        let mut open: Vec<Open> = Vec::new();
        loop {
            // A value is due, or the end of an array that has none yet.
            let begun = self.value_or_begin(&mut open)?;
            let Some(mut value) = begun else { continue };
            // A value is complete: it goes where it belongs, and may complete what it is in.
            loop {
                let Some(innermost) = open.last_mut() else {
                    return match self.peek() {
                        None => Ok(value),
                        Some(byte) => Err(SyntaxError::Character { byte, context: "after top-level value" }),
                    };
                };
                match innermost {
                    Open::Array(items) => {
                        items.push(value);
                        match self.next().ok_or(SyntaxError::End)? {
                            b',' => break,
                            b']' => {}
                            byte => return Err(SyntaxError::Character { byte, context: "after array element" }),
                        }
                    }
                    Open::Object { entries, key, offset } => {
                        let key_taken = std::mem::take(key);
                        entries.push(Entry { key: key_taken, value, offset: *offset, repeats: Vec::new() });
                        match self.next().ok_or(SyntaxError::End)? {
                            b',' => {
                                (*key, *offset) = match self.next().ok_or(SyntaxError::End)? {
                                    b'"' => self.key()?,
                                    byte => {
                                        let context = "looking for beginning of object key string";
                                        return Err(SyntaxError::Character { byte, context });
                                    }
                                };
                                break;
                            }
                            b'}' => {}
                            byte => {
                                return Err(SyntaxError::Character { byte, context: "after object key:value pair" });
                            }
                        }
                    }
                }
                let kind = match open.pop() {
                    Some(Open::Array(items)) => NodeKind::Array(items),
                    Some(Open::Object { entries, .. }) => NodeKind::Object(unique(entries, self.repeated)),
                    None => return Err(SyntaxError::End),
                };
                value = Node { kind };
            }
        }
    }

    /// Reads a scalar or an empty collection, or opens a collection, whose first value is due then.
    fn value_or_begin(&mut self, open: &mut Vec<Open>) -> Result<Option<Node>, SyntaxError> {
        let byte = self.next().ok_or(SyntaxError::End)?;
        if matches!(byte, b'{' | b'[') && open.len() >= MAX_DEPTH {
            return Err(SyntaxError::Depth);
        }
        let kind = match byte {
            b'{' => match self.next().ok_or(SyntaxError::End)? {
                b'}' => NodeKind::Object(Vec::new()),
                b'"' => {
                    let (key, offset) = self.key()?;
                    open.push(Open::Object { entries: Vec::new(), key, offset });
                    return Ok(None);
                }
                byte => {
                    let context = "looking for beginning of object key string";
                    return Err(SyntaxError::Character { byte, context });
                }
            },
            b'[' => {
                if self.peek() == Some(b']') {
                    self.at += 1;
                    NodeKind::Array(Vec::new())
                } else {
                    open.push(Open::Array(Vec::new()));
                    return Ok(None);
                }
            }
            b'"' => NodeKind::String(self.string()?),
            b't' => self.literal(
                "true",
                [
                    "in literal true (expecting 'r')",
                    "in literal true (expecting 'u')",
                    "in literal true (expecting 'e')",
                ],
                NodeKind::Bool(true),
            )?,
            b'f' => self.literal(
                "false",
                [
                    "in literal false (expecting 'a')",
                    "in literal false (expecting 'l')",
                    "in literal false (expecting 's')",
                    "in literal false (expecting 'e')",
                ],
                NodeKind::Bool(false),
            )?,
            b'n' => self.literal(
                "null",
                [
                    "in literal null (expecting 'u')",
                    "in literal null (expecting 'l')",
                    "in literal null (expecting 'l')",
                ],
                NodeKind::Null,
            )?,
            b'-' | b'0'..=b'9' => NodeKind::Number(self.number(byte)?),
            byte => return Err(SyntaxError::Character { byte, context: "looking for beginning of value" }),
        };
        Ok(Some(Node { kind }))
    }

    /// Reads a key whose opening quote is read, and the colon behind it.
    fn key(&mut self) -> Result<(String, usize), SyntaxError> {
        let offset = self.at;
        let key = self.string()?;
        match self.next().ok_or(SyntaxError::End)? {
            b':' => Ok((key, offset)),
            byte => Err(SyntaxError::Character { byte, context: "after object key" }),
        }
    }

    fn literal<const N: usize>(
        &mut self,
        word: &str,
        contexts: [&'static str; N],
        kind: NodeKind,
    ) -> Result<NodeKind, SyntaxError> {
        for (expected, context) in word.bytes().skip(1).zip(contexts) {
            let byte = self.byte();
            if byte != expected {
                return Err(SyntaxError::Character { byte, context });
            }
            self.at += 1;
        }
        Ok(kind)
    }

    /// Reads a number whose first byte is read.
    fn number(&mut self, first: u8) -> Result<String, SyntaxError> {
        let start = self.at - 1;
        let mut digit = first;
        if digit == b'-' {
            digit = self.byte();
            if !digit.is_ascii_digit() {
                return Err(SyntaxError::Character { byte: digit, context: "in numeric literal" });
            }
            self.at += 1;
        }
        if digit != b'0' {
            self.digits();
        }
        if self.byte() == b'.' {
            self.at += 1;
            if self.digits() == 0 {
                return Err(SyntaxError::Character {
                    byte: self.byte(),
                    context: "after decimal point in numeric literal",
                });
            }
        }
        if matches!(self.byte(), b'e' | b'E') {
            self.at += 1;
            if matches!(self.byte(), b'+' | b'-') {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(SyntaxError::Character { byte: self.byte(), context: "in exponent of numeric literal" });
            }
        }
        Ok(self.slice(start, self.at).iter().map(|b| char::from(*b)).collect())
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.byte().is_ascii_digit() {
            self.at += 1;
        }
        self.at - start
    }

    /// Reads a string whose opening quote is read. Bytes that are no UTF-8, and halves of surrogate pairs, come out as
    /// U+FFFD.
    fn string(&mut self) -> Result<String, SyntaxError> {
        let mut out = String::new();
        loop {
            let start = self.at;
            while self.text.get(self.at).is_some_and(|b| !matches!(b, b'"' | b'\\' | 0..0x20)) {
                self.at += 1;
            }
            push_lossy(&mut out, self.slice(start, self.at));
            match self.text.get(self.at) {
                None => return Err(SyntaxError::End),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    let c = self.escape()?;
                    out.push(c);
                }
                Some(&byte) => return Err(SyntaxError::Character { byte, context: "in string literal" }),
            }
        }
    }

    /// Reads an escape whose backslash is read.
    fn escape(&mut self) -> Result<char, SyntaxError> {
        let byte = self.byte();
        let c = match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                self.at += 1;
                return self.unicode_escape();
            }
            byte => return Err(SyntaxError::Character { byte, context: "in string escape code" }),
        };
        self.at += 1;
        Ok(c)
    }

    fn unicode_escape(&mut self) -> Result<char, SyntaxError> {
        let first = self.hex4()?;
        if (0xd800..0xdc00).contains(&first) && self.slice(self.at, self.at + 2) == b"\\u" {
            let before = self.at;
            self.at += 2;
            let second = self.hex4()?;
            if (0xdc00..0xe000).contains(&second) {
                let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = before;
        }
        Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex4(&mut self) -> Result<u32, SyntaxError> {
        let mut code = 0;
        for _ in 0..4 {
            let byte = self.byte();
            let Some(digit) = char::from(byte).to_digit(16) else {
                return Err(SyntaxError::Character { byte, context: "in \\u hexadecimal character escape" });
            };
            code = code * 16 + digit;
            self.at += 1;
        }
        Ok(code)
    }

    /// The current byte. Go's scanner sees a blank at the end of the input.
    fn byte(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(b' ')
    }

    /// The next byte that is no blank, not taken.
    fn peek(&mut self) -> Option<u8> {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    /// The next byte that is no blank, taken.
    fn next(&mut self) -> Option<u8> {
        let byte = self.peek();
        self.at += usize::from(byte.is_some());
        byte
    }

    fn slice(&self, from: usize, to: usize) -> &[u8] {
        self.text.get(from..to).unwrap_or_default()
    }
}

/// Go writes U+FFFD for each byte that is no UTF-8.
fn push_lossy(out: &mut String, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
}

/// Makes one entry of those with the same key.
fn unique(entries: Vec<Entry>, repeated: Repeated) -> Vec<Entry> {
    let has_repeats = if entries.len() <= 16 {
        entries.iter().enumerate().any(|(i, e)| entries.iter().take(i).any(|earlier| earlier.key == e.key))
    } else {
        let mut seen = std::collections::HashSet::with_capacity(entries.len());
        entries.iter().any(|e| !seen.insert(e.key.as_str()))
    };
    if !has_repeats {
        return entries;
    }
    let mut places: HashMap<String, usize> = HashMap::with_capacity(entries.len());
    let mut out: Vec<Entry> = Vec::with_capacity(entries.len());
    for entry in entries {
        match places.get(&entry.key).and_then(|place| out.get_mut(*place)) {
            Some(first) => {
                first.repeats.push(entry.offset);
                merge(&mut first.value, entry.value, repeated);
            }
            None => {
                places.insert(entry.key.clone(), out.len());
                out.push(entry);
            }
        }
    }
    out
}

fn merge(first: &mut Node, later: Node, repeated: Repeated) {
    match (&mut first.kind, later.kind, repeated) {
        (_, NodeKind::Null, Repeated::Merge) => {}
        (NodeKind::Object(entries), NodeKind::Object(more), Repeated::Merge) => {
            let mut places: HashMap<String, usize> =
                entries.iter().enumerate().map(|(i, e)| (e.key.clone(), i)).collect();
            for entry in more {
                match places.get(&entry.key).and_then(|place| entries.get_mut(*place)) {
                    Some(first) => merge(&mut first.value, entry.value, repeated),
                    None => {
                        places.insert(entry.key.clone(), entries.len());
                        entries.push(entry);
                    }
                }
            }
        }
        (first, later, _) => *first = later,
    }
}

// === impl Node ===

impl Node {
    /// What JSON calls the value's type, in Go's words.
    pub(crate) fn type_name(&self) -> &'static str {
        match self.kind {
            NodeKind::Null => "null",
            NodeKind::Bool(_) => "bool",
            NodeKind::Number(_) => "number",
            NodeKind::String(_) => "string",
            NodeKind::Array(_) => "array",
            NodeKind::Object(_) => "object",
        }
    }
}

#[cfg(test)]
mod tests;
