//! `metadata.managedFields` (`internal/managedfields.go`).

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use serde::Deserialize;

use crate::{
    fieldpath::{ParseError, Set},
    text,
    updater::{Managed, Managers},
    value::{
        Map, Value,
        json::{self, Encoder, Html},
    },
};

/// Who owns what, and since when.
///
/// Managers go by their identifiers: an entry as JSON without its fields and time, and of an applier without its version. So
/// an applier has one entry for each subresource, an updater one for each version and subresource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// What each manager owns.
    pub fields: Managers,
    /// When it last wrote, if that is known.
    pub times: BTreeMap<Arc<str>, Timestamp>,
}

/// How a manager writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// By apply.
    Apply,
    /// By anything else.
    Update,
}

/// One entry of `managedFields`.
#[derive(Clone, Debug, PartialEq)]
pub struct ManagedFieldsEntry {
    /// The manager's name.
    pub manager: String,
    /// How it writes.
    pub operation: Operation,
    /// In which version, as `group/version`.
    pub api_version: String,
    /// When it last did.
    pub time: Option<Timestamp>,
    /// Which subresource it writes, empty for the object itself.
    pub subresource: String,
    /// What it owns.
    pub fields: Set,
}

/// Why `managedFields` cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Neither of the two.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// An entry without version.
    #[error("apiVersion must not be empty")]
    ApiVersion,
    /// An entry that does not say how its fields are written.
    #[error("missing fieldsType in managed fields entry {0}")]
    NoFieldsType(usize),
    /// An entry whose fields are written in another way.
    #[error("invalid fieldsType {} in managed fields entry {at}", text::quote(.found))]
    FieldsType {
        /// Which entry.
        at: usize,
        /// How they are written.
        found: String,
    },
    /// Fields that are no set.
    #[error("error decoding versioned set from entry {at}: error decoding set: {error}")]
    Fields {
        /// Which entry.
        at: usize,
        /// Why.
        error: ParseError,
    },
    /// Not a list of entries at all.
    #[error("managed fields entry {0} is malformed")]
    Malformed(usize),
}

/// What an identifier says.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Id {
    pub(super) manager: String,
    pub(super) operation: String,
    pub(super) api_version: String,
    pub(super) subresource: String,
}

// === impl Operation ===

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// The identifier of a manager (`BuildManagerIdentifier`).
pub(super) fn identifier(manager: &str, operation: Operation, api_version: &str, subresource: &str) -> Arc<str> {
    let api_version = match operation {
        Operation::Apply => "",
        Operation::Update => api_version,
    };
    let fields = [
        ("manager", manager),
        ("operation", operation.name()),
        ("apiVersion", api_version),
        ("subresource", subresource),
    ];
    let mut out = String::from("{");
    for (name, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
        if out.len() > 1 {
            out.push(',');
        }
        json::string(name, Encoder::Standard, Html::Escaped, &mut out);
        out.push(':');
        json::string(value, Encoder::Standard, Html::Escaped, &mut out);
    }
    out.push('}');
    out.into()
}

/// What an identifier says; nothing if it is none.
pub(super) fn parse_identifier(id: &str) -> Option<Id> {
    serde_json::from_str(id).ok()
}

// === impl State ===

impl State {
    /// Reads `managedFields`.
    ///
    /// # Errors
    /// When an entry makes no sense.
    pub fn decode(entries: Option<&Value>) -> Result<Self, DecodeError> {
        let mut state = Self::default();
        let entries = match entries {
            None | Some(Value::Null) => &[],
            Some(Value::List(entries)) => entries.as_slice(),
            Some(_) => return Err(DecodeError::Malformed(0)),
        };
        for (at, entry) in entries.iter().enumerate() {
            let ManagedFieldsEntry { manager, operation, api_version, time, subresource, fields } =
                ManagedFieldsEntry::decode(at, entry)?;
            let id = identifier(&manager, operation, &api_version, &subresource);
            state.set_time(&id, time);
            let applied = operation == Operation::Apply;
            state.fields.insert(id, Managed { set: fields, version: api_version.into(), applied });
        }
        Ok(state)
    }

    /// The entries in their order on the wire: appliers first, by time, which counts in seconds, and name.
    pub fn entries(&self) -> Vec<ManagedFieldsEntry> {
        let mut entries: Vec<_> = self
            .fields
            .iter()
            .map(|(id, managed)| {
                let said = parse_identifier(id).unwrap_or_default();
                ManagedFieldsEntry {
                    manager: said.manager,
                    operation: if managed.applied { Operation::Apply } else { Operation::Update },
                    api_version: managed.version.to_string(),
                    time: self.times.get(id).copied(),
                    subresource: said.subresource,
                    fields: managed.set.clone(),
                }
            })
            .collect();
        entries.sort_by(|a, b| a.rank().cmp(&b.rank()));
        entries
    }

    /// `managedFields`, or nothing if there are no managers.
    pub fn encode(&self) -> Option<Value> {
        let entries = self.entries();
        (!entries.is_empty()).then(|| Value::list(entries.iter().map(ManagedFieldsEntry::to_value)))
    }

    pub(super) fn set_time(&mut self, id: &Arc<str>, time: Option<Timestamp>) {
        match time {
            Some(time) => self.times.insert(id.clone(), time),
            None => self.times.remove(id),
        };
    }

    /// The time of a manager as it counts for their order.
    pub(super) fn seconds(&self, id: &str) -> i64 {
        self.times.get(id).map_or(0, |time| time.as_second())
    }
}

// === impl ManagedFieldsEntry ===

impl ManagedFieldsEntry {
    fn rank(&self) -> (Operation, i64, &str, &str, &str) {
        let seconds = self.time.map_or(0, Timestamp::as_second);
        (self.operation, seconds, &self.manager, &self.api_version, &self.subresource)
    }

    fn decode(at: usize, entry: &Value) -> Result<Self, DecodeError> {
        let entry = entry.as_map().ok_or(DecodeError::Malformed(at))?;
        let text = |name: &str| match entry.get(name) {
            None | Some(Value::Null) => Ok(""),
            Some(Value::String(text)) => Ok(&**text),
            Some(_) => Err(DecodeError::Malformed(at)),
        };
        let operation = match text("operation")? {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return Err(DecodeError::Operation),
        };
        let api_version = text("apiVersion")?.to_owned();
        if api_version.is_empty() {
            return Err(DecodeError::ApiVersion);
        }
        match text("fieldsType")? {
            "FieldsV1" => {}
            "" => return Err(DecodeError::NoFieldsType(at)),
            found => return Err(DecodeError::FieldsType { at, found: found.to_owned() }),
        }
        let time = match text("time")? {
            "" => None,
            time => Some(time.parse().map_err(|_| DecodeError::Malformed(at))?),
        };
        let fields = match entry.get("fieldsV1") {
            None => Set::new(),
            Some(fields) => Set::from_value(fields).map_err(|error| DecodeError::Fields { at, error })?,
        };
        let (manager, subresource) = (text("manager")?.to_owned(), text("subresource")?.to_owned());
        Ok(Self { manager, operation, api_version, time, subresource, fields })
    }

    /// The entry as a value. What is empty is left out.
    pub fn to_value(&self) -> Value {
        let time = self.time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        let texts = [
            ("manager", self.manager.as_str()),
            ("operation", self.operation.name()),
            ("apiVersion", &self.api_version),
            ("time", time.as_deref().unwrap_or_default()),
            ("fieldsType", "FieldsV1"),
            ("subresource", &self.subresource),
        ];
        let mut entry: Map = texts
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(name, text)| (Arc::from(name), text.into()))
            .collect();
        entry.insert("fieldsV1", self.fields.to_value());
        entry.into()
    }
}
