//! Tables: what `kubectl get` shows (`meta.k8s.io` Table; k8s.io/apiserver `pkg/endpoints/handlers/response.go`).

use serde::Serialize;
use serde_json::Value;

use crate::{
    codec,
    meta::{ListMeta, ObjectMeta},
    negotiate::MetaVersion,
    partial,
};

/// A column of a resource's tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Column {
    /// The heading, for example `Toppings`. kubectl prints it in upper case.
    pub name: String,
    /// The OpenAPI type of the cells: `string`, `integer`, `number`, `boolean` or `date`.
    #[serde(rename = "type")]
    pub cell_type: String,
    /// The OpenAPI format, empty for none. `name` marks the column that holds the object's name.
    pub format: String,
    /// What the column tells, in words.
    pub description: String,
    /// Zero for columns that are always shown, above zero for those of `-o wide`.
    pub priority: i32,
}

/// What a row holds besides its cells: the query's `includeObject`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObject {
    /// Nothing.
    None,
    /// The object's metadata.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

/// The object of one row.
#[derive(Clone, Copy, Debug)]
pub enum RowObject<'a> {
    /// Nothing: written as `null`.
    None,
    /// The object's metadata, as a PartialObjectMetadata.
    Metadata(&'a ObjectMeta),
    /// The whole object, as compact JSON.
    Object(&'a [u8]),
}

/// Writes a table row by row, as compact JSON.
#[derive(Debug)]
pub struct TableWriter {
    buffer: Vec<u8>,
    version: MetaVersion,
    empty: bool,
}

/// The cell of an object's age, for example `7m12s`, as of now.
pub fn age(metadata: &ObjectMeta) -> String {
    match &metadata.creation_timestamp {
        Some(created) => codec::human_duration(jiff::Timestamp::now().as_second() - created.0.as_second()),
        None => "<unknown>".to_owned(),
    }
}

// === impl Column ===

impl Column {
    /// The column of the object's name.
    pub fn name() -> Self {
        Self {
            name: "Name".to_owned(),
            cell_type: "string".to_owned(),
            format: "name".to_owned(),
            description: "Name of the object, unique within its namespace.".to_owned(),
            priority: 0,
        }
    }

    /// The column of the object's age, whose cells [`age`] makes.
    pub fn age() -> Self {
        Self::string("Age", "How long ago the object was created.")
    }

    /// A column of texts.
    pub fn string(name: &str, description: &str) -> Self {
        Self {
            name: name.to_owned(),
            cell_type: "string".to_owned(),
            format: String::new(),
            description: description.to_owned(),
            priority: 0,
        }
    }

    /// A column of whole numbers.
    pub fn integer(name: &str, description: &str) -> Self {
        Self { cell_type: "integer".to_owned(), ..Self::string(name, description) }
    }

    /// The same column, shown with `-o wide` only.
    #[must_use]
    pub fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }
}

// === impl TableWriter ===

impl TableWriter {
    /// Begins a table. Without `columns`, as in a watch after its first event, there are no headings.
    pub fn new(version: MetaVersion, metadata: &ListMeta, columns: Option<&[Column]>) -> Self {
        let mut buffer = codec::head("Table", version.api_version());
        codec::push_field(&mut buffer, "metadata", metadata);
        codec::push_field(&mut buffer, "columnDefinitions", &columns);
        buffer.extend_from_slice(br#","rows":"#);
        Self { buffer, version, empty: true }
    }

    /// Adds a row, with a cell for each column.
    pub fn row(&mut self, cells: &[Value], object: RowObject<'_>) {
        self.buffer.push(if self.empty { b'[' } else { b',' });
        self.empty = false;
        self.buffer.extend_from_slice(br#"{"cells":"#);
        codec::push_value(&mut self.buffer, &cells);
        self.buffer.extend_from_slice(br#","object":"#);
        match object {
            RowObject::None => self.buffer.extend_from_slice(b"null"),
            RowObject::Metadata(metadata) => partial::push(&mut self.buffer, self.version, metadata),
            RowObject::Object(json) => self.buffer.extend_from_slice(json),
        }
        self.buffer.push(b'}');
    }

    /// Ends the table. One without rows has `"rows":null`, as Go writes it.
    pub fn finish(mut self) -> Vec<u8> {
        self.buffer.extend_from_slice(if self.empty { b"null}" } else { b"]}" });
        self.buffer
    }
}
