//! A parsed document into a type, as Go's decoder does it: `null` leaves the zero value, numbers fit or are refused,
//! and fields that the type does not know, or that are given twice, are reported in the order of the document.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    fmt,
};

use serde::de::{
    self, Deserialize, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
    value::{MapAccessDeserializer, StrDeserializer, StringDeserializer},
};

use super::{
    json::{Entry, Node, NodeKind},
    time,
};
use crate::quote::quote;

/// How many problems are kept of one document (`sigs.k8s.io/json`).
const MAX_PROBLEMS: usize = 100;

/// Unknown and repeated fields, as they are found.
#[derive(Debug)]
pub(crate) struct Problems {
    texts: Vec<(usize, String)>,
    seen: HashSet<String>,
    /// Whether repeated fields count.
    repeats: bool,
}

/// Why a document does not fit a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Error {
    message: String,
    located: bool,
}

/// Decodes an object into a type that has neither `apiVersion` nor `kind`.
pub(crate) fn decode_object<T: for<'de> Deserialize<'de>>(node: &Node, problems: &mut Problems) -> Result<T, Error> {
    decode_at_root(node, problems, true)
}

/// Decodes any value.
pub(crate) fn decode<T: for<'de> Deserialize<'de>>(node: &Node, problems: &mut Problems) -> Result<T, Error> {
    decode_at_root(node, problems, false)
}

fn decode_at_root<T: for<'de> Deserialize<'de>>(node: &Node, problems: &mut Problems, root: bool) -> Result<T, Error> {
    let context =
        Context { problems: RefCell::new(std::mem::replace(problems, Problems::new(false))), muted: Cell::new(0) };
    let result = T::deserialize(Decoder { node, path: Path::Root, context: &context, root, offset: 0 });
    *problems = context.problems.into_inner();
    result
}

struct Context {
    problems: RefCell<Problems>,
    /// Above zero inside of values whose problems do not count.
    muted: Cell<usize>,
}

/// Where in the document a value is.
#[derive(Clone, Copy)]
enum Path<'p> {
    Root,
    Field(&'p Path<'p>, &'p str),
    Item(&'p Path<'p>, usize),
}

#[derive(Clone, Copy)]
struct Decoder<'n, 'p> {
    node: &'n Node,
    path: Path<'p>,
    context: &'p Context,
    /// Whether this is the object itself, whose `apiVersion` and `kind` are read already.
    root: bool,
    /// Where the field that holds the value stands.
    offset: usize,
}

struct Fields<'n, 'p> {
    entries: std::slice::Iter<'n, Entry>,
    current: Option<&'n Entry>,
    path: Path<'p>,
    context: &'p Context,
    root: bool,
    /// The fields that there are. `None` in maps, where there are all.
    known: Option<&'static [&'static str]>,
}

struct Items<'n, 'p> {
    items: std::iter::Enumerate<std::slice::Iter<'n, Node>>,
    path: Path<'p>,
    context: &'p Context,
    offset: usize,
}

// === impl Problems ===

impl Problems {
    /// No problems yet. `repeats` says whether repeated fields will count.
    pub(crate) fn new(repeats: bool) -> Self {
        Self { texts: Vec::new(), seen: HashSet::new(), repeats }
    }

    fn push(&mut self, offset: usize, text: String) {
        if self.texts.len() < MAX_PROBLEMS && self.seen.insert(text.clone()) {
            self.texts.push((offset, text));
        }
    }

    /// The problems in the order of the document.
    pub(crate) fn into_texts(mut self) -> Vec<String> {
        self.texts.sort_by_key(|(offset, _)| *offset);
        self.texts.into_iter().map(|(_, text)| text).collect()
    }
}

// === impl Path ===

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Field(Path::Root, name) => f.write_str(name),
            Path::Field(parent, name) => write!(f, "{parent}.{name}"),
            Path::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

// === impl Error ===

impl Error {
    /// A whole document is of another type than it must be.
    pub(crate) fn root_mismatch(node: &Node, wanted: &str) -> Self {
        let message = format!("json: cannot unmarshal {} into a value of type {wanted}", node.type_name());
        Self { message, located: true }
    }

    fn locate(self, path: Path<'_>) -> Self {
        if self.located || matches!(path, Path::Root) {
            return self;
        }
        Self { message: format!("json: cannot unmarshal field {path}: {}", self.message), located: true }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { message: message.to_string(), located: false }
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::custom(format_args!("found {unexpected}, expected {expected}"))
    }
}

// === impl Decoder ===

impl<'n, 'p> Decoder<'n, 'p> {
    /// The value is of another type than the field.
    fn mismatch(&self, wanted: &str) -> Error {
        let found = match &self.node.kind {
            NodeKind::Number(text) if wanted.contains("int") || wanted.contains("float") => format!("number {text}"),
            _ => self.node.type_name().to_owned(),
        };
        let message = match self.path {
            Path::Root => format!("json: cannot unmarshal {found} into a value of type {wanted}"),
            path => format!("json: cannot unmarshal {found} into field {path} of type {wanted}"),
        };
        Error { message, located: true }
    }

    fn integer<T: std::str::FromStr + Default>(&self, wanted: &str) -> Result<T, Error> {
        match &self.node.kind {
            NodeKind::Null => Ok(T::default()),
            NodeKind::Number(text) => text.parse().map_err(|_| self.mismatch(wanted)),
            _ => Err(self.mismatch(wanted)),
        }
    }

    fn float(&self, wanted: &str) -> Result<f64, Error> {
        match &self.node.kind {
            NodeKind::Null => Ok(0.0),
            NodeKind::Number(text) => {
                text.parse().ok().filter(|f: &f64| f.is_finite()).ok_or_else(|| self.mismatch(wanted))
            }
            _ => Err(self.mismatch(wanted)),
        }
    }

    fn text(&self) -> Result<&'n str, Error> {
        match &self.node.kind {
            NodeKind::Null => Ok(""),
            NodeKind::String(text) => Ok(text),
            _ => Err(self.mismatch("string")),
        }
    }

    fn fields(&self, known: Option<&'static [&'static str]>) -> Result<Fields<'n, 'p>, Error> {
        let entries = match &self.node.kind {
            NodeKind::Null => &[],
            NodeKind::Object(entries) => entries.as_slice(),
            _ => return Err(self.mismatch("object")),
        };
        Ok(Fields {
            entries: entries.iter(),
            current: None,
            path: self.path,
            context: self.context,
            root: self.root,
            known,
        })
    }

    fn items(&self) -> Result<Items<'n, 'p>, Error> {
        let items = match &self.node.kind {
            NodeKind::Null => &[],
            NodeKind::Array(items) => items.as_slice(),
            _ => return Err(self.mismatch("array")),
        };
        Ok(Items { items: items.iter().enumerate(), path: self.path, context: self.context, offset: self.offset })
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ty, $name:literal;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit(self.integer::<$type>($name)?)
        })*
    };
}

impl<'de> de::Deserializer<'de> for Decoder<'_, '_> {
    type Error = Error;

    integers! {
        deserialize_i8 visit_i8 i8, "int8";
        deserialize_i16 visit_i16 i16, "int16";
        deserialize_i32 visit_i32 i32, "int32";
        deserialize_i64 visit_i64 i64, "int64";
        deserialize_u8 visit_u8 u8, "uint8";
        deserialize_u16 visit_u16 u16, "uint16";
        deserialize_u32 visit_u32 u32, "uint32";
        deserialize_u64 visit_u64 u64, "uint64";
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.kind {
            NodeKind::Null => visitor.visit_unit(),
            NodeKind::Bool(value) => visitor.visit_bool(*value),
            NodeKind::Number(text) => match text.parse::<i64>() {
                Ok(integer) => visitor.visit_i64(integer),
                Err(_) => visitor.visit_f64(self.float("float64")?),
            },
            NodeKind::String(text) => visitor.visit_str(text),
            NodeKind::Array(_) => visitor.visit_seq(self.items()?),
            NodeKind::Object(_) => visitor.visit_map(self.fields(None)?),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.node.kind {
            NodeKind::Null => visitor.visit_bool(false),
            NodeKind::Bool(value) => visitor.visit_bool(value),
            _ => Err(self.mismatch("bool")),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_f64(self.float("float32")?)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_f64(self.float("float64")?)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(self.text()?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(self.text()?)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(self.text()?)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(self.text()?)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.node.kind {
            NodeKind::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.node.kind {
            NodeKind::Null => visitor.visit_unit(),
            _ => Err(self.mismatch("null")),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Error> {
        match name {
            // Kubernetes' timestamps, read by Go's rules whatever else the time library would accept.
            "Time" => {
                let time = time::parse(self.text()?).map_err(|message| Error { message, located: true })?;
                let text: StringDeserializer<Error> = time.to_string().into_deserializer();
                visitor.visit_newtype_struct(text)
            }
            // Kept as it is: Go does not look into it.
            "FieldsV1" => {
                self.context.muted.update(|m| m + 1);
                let result = visitor.visit_newtype_struct(self);
                self.context.muted.update(|m| m - 1);
                result
            }
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(self.items()?)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _length: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(self.fields(None)?)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(self.fields(Some(fields))?)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match &self.node.kind {
            NodeKind::Object(_) => visitor.visit_enum(MapAccessDeserializer::new(self.fields(None)?)),
            _ => {
                let text: StrDeserializer<'_, Error> = self.text()?.into_deserializer();
                visitor.visit_enum(text)
            }
        }
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(self.text()?)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.context.report(self.offset, || format!("unknown field {}", quote(&self.path.to_string())));
        visitor.visit_unit()
    }
}

// === impl Fields ===

impl<'de> MapAccess<'de> for Fields<'_, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        while let Some(entry) = self.entries.next() {
            let known = self.root && matches!(entry.key.as_str(), "apiVersion" | "kind");
            if known {
                self.report_repeats(entry);
                continue;
            }
            if let Some(fields) = self.known {
                if !fields.contains(&entry.key.as_str()) {
                    self.context.report(entry.offset, || format!("unknown field {}", self.quoted(entry)));
                    continue;
                }
                if matches!(entry.value.kind, NodeKind::Null) {
                    self.report_repeats(entry);
                    continue;
                }
            }
            self.current = Some(entry);
            let key: StrDeserializer<'_, Error> = entry.key.as_str().into_deserializer();
            return seed.deserialize(key).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let Some(entry) = self.current.take() else {
            return Err(de::Error::custom("a value was asked for before its key"));
        };
        let parent = self.path;
        let path = Path::Field(&parent, &entry.key);
        let decoder = Decoder { node: &entry.value, path, context: self.context, root: false, offset: entry.offset };
        let value = seed.deserialize(decoder).map_err(|e| e.locate(path))?;
        self.report_repeats(entry);
        Ok(value)
    }
}

impl Fields<'_, '_> {
    fn report_repeats(&self, entry: &Entry) {
        if let Some(&offset) = entry.repeats.first()
            && self.context.problems.borrow().repeats
        {
            self.context.report(offset, || format!("duplicate field {}", self.quoted(entry)));
        }
    }

    fn quoted(&self, entry: &Entry) -> String {
        quote(&Path::Field(&self.path, &entry.key).to_string())
    }
}

// === impl Context ===

impl Context {
    fn report(&self, offset: usize, text: impl FnOnce() -> String) {
        if self.muted.get() == 0 {
            self.problems.borrow_mut().push(offset, text());
        }
    }
}

// === impl Items ===

impl<'de> SeqAccess<'de> for Items<'_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some((index, node)) = self.items.next() else { return Ok(None) };
        let parent = self.path;
        let path = Path::Item(&parent, index);
        let decoder = Decoder { node, path, context: self.context, root: false, offset: self.offset };
        let value = seed.deserialize(decoder).map_err(|e| e.locate(path))?;
        Ok(Some(value))
    }

    fn size_hint(&self) -> Option<usize> {
        // What a client says of lengths is no reason to reserve memory: the items are here already.
        Some(self.items.len())
    }
}
