//! Objects and lists in the form that the client asked for: as they are, as a table, or their metadata alone
//! (k8s.io/apiserver `pkg/endpoints/handlers/response.go`).

use http::StatusCode;
use serde_json::Value;

use super::{Reply, Request, ResourceHandler};
use crate::{
    codec::{self, ListWriter},
    endpoint::response,
    meta::{ListMeta, Object as _, ObjectMeta},
    negotiate::{OutputFormat, Transform},
    partial::{self, PartialListWriter},
    query,
    registry::{
        store::{List, Store, take_turns},
        strategy::Strategy,
    },
    status::Status,
    table::{Column, IncludeObject, RowObject, TableWriter},
    validation::{FieldError, Path},
};

/// Lists longer than this are laid out and compressed where they keep no other task waiting, in bytes.
const LARGE: usize = 1024 * 1024;

/// Writes objects of one resource and version in one form.
pub(super) struct Encoder<S: Strategy> {
    store: Store<S>,
    version: String,
    transform: Transform,
    include: IncludeObject,
    columns: Option<Vec<Column>>,
    /// How many columns a table has.
    width: usize,
}

// === impl ResourceHandler ===

impl<S: Strategy> ResourceHandler<S> {
    /// Answers with one object.
    pub(super) fn object_reply(
        &self,
        request: &Request,
        code: StatusCode,
        format: &OutputFormat,
        object: &S::Object,
    ) -> Reply {
        let json = Encoder::new(self, request, format.transform)?.object(object)?;
        Ok(response::json(code, format, &request.headers, json))
    }

    /// Answers with a list.
    pub(super) async fn list_reply(&self, request: &Request, format: &OutputFormat, list: &List<S::Object>) -> Reply {
        let json = Encoder::new(self, request, format.transform)?.list(list).await?;
        if json.len() <= LARGE {
            return Ok(response::json(StatusCode::OK, format, &request.headers, json));
        }
        let (format, headers) = (*format, request.headers.clone());
        let rendering = tokio::task::spawn_blocking(move || response::json(StatusCode::OK, &format, &headers, json));
        rendering.await.map_err(|error| {
            tracing::error!(%error, "the rendering of a list ended abnormally");
            Status::internal_error("the answer could not be rendered")
        })
    }
}

// === impl Encoder ===

impl<S: Strategy> Encoder<S> {
    /// Writes as `transform` says.
    ///
    /// # Errors
    /// 400 when the query's `includeObject` is none that there is.
    pub(super) fn new(handler: &ResourceHandler<S>, request: &Request, transform: Transform) -> Result<Self, Status> {
        let (columns, include) = match transform {
            Transform::Table { .. } => (Some(handler.store.strategy().columns()), include_object(&request.query)?),
            _ => (None, IncludeObject::default()),
        };
        let version = request.context.info.version.clone();
        let width = columns.as_ref().map_or(0, Vec::len);
        Ok(Self { store: handler.store.clone(), version, transform, include, columns, width })
    }

    /// One object, as compact JSON.
    ///
    /// # Errors
    /// 406 when the form is one of lists; 500 when the object cannot be encoded.
    pub(super) fn object(&self, object: &S::Object) -> Result<Vec<u8>, Status> {
        let metadata = object.metadata();
        match self.transform {
            Transform::None => self.plain(object),
            Transform::PartialObjectMetadata { version } => Ok(partial::object(version, metadata)),
            Transform::PartialObjectMetadataList { .. } => Err(Status::not_acceptable_because(format!(
                "you requested PartialObjectMetadataList, but the requested object is not a list (*{}.{})",
                self.version,
                self.store.kind().name()
            ))),
            Transform::Table { version } => {
                let list = ListMeta { resource_version: metadata.resource_version.clone(), ..ListMeta::default() };
                let mut table = TableWriter::new(version, &list, self.columns.as_deref());
                self.row(&mut table, object)?;
                Ok(table.finish())
            }
        }
    }

    /// One object of a watch: as it is when it does not exist in the form asked for.
    ///
    /// # Errors
    /// 500 when the object cannot be encoded.
    pub(super) fn object_or_plain(&self, object: &S::Object) -> Result<Vec<u8>, Status> {
        match self.transform {
            Transform::PartialObjectMetadataList { .. } => self.plain(object),
            _ => self.object(object),
        }
    }

    /// A list, as compact JSON.
    ///
    /// # Errors
    /// 406 when the form is one of single objects; 500 when an object cannot be encoded.
    pub(super) async fn list(&self, list: &List<S::Object>) -> Result<Vec<u8>, Status> {
        let kind = self.store.kind();
        let metadata = list.metadata();
        match self.transform {
            Transform::None => {
                let api_version = kind.in_version(&self.version).api_version();
                let mut writer = ListWriter::new(&kind.list_kind(), &api_version, &metadata);
                for (seen, object) in list.items.iter().enumerate() {
                    let written = writer.with_item(|buffer| kind.encode_item_to(&self.version, object, buffer));
                    written.map_err(unencodable)?;
                    take_turns(seen).await;
                }
                Ok(writer.finish())
            }
            Transform::PartialObjectMetadataList { version } => {
                let mut writer = PartialListWriter::new(version, &metadata);
                for (seen, object) in list.items.iter().enumerate() {
                    writer.item(object.metadata());
                    take_turns(seen).await;
                }
                Ok(writer.finish())
            }
            Transform::PartialObjectMetadata { .. } => Err(Status::not_acceptable_because(format!(
                "you requested PartialObjectMetadata, but the requested object is a list (*{}.{})",
                self.version,
                kind.list_kind()
            ))),
            Transform::Table { version } => {
                let mut table = TableWriter::new(version, &metadata, self.columns.as_deref());
                for (seen, object) in list.items.iter().enumerate() {
                    self.row(&mut table, object)?;
                    take_turns(seen).await;
                }
                Ok(table.finish())
            }
        }
    }

    /// A table's headings are sent once in a watch.
    pub(super) fn without_headings(&mut self) {
        self.columns = None;
    }

    /// An object that has nothing but metadata, as bookmarks are, as compact JSON.
    pub(super) fn bare(&self, meta: &ObjectMeta) -> Vec<u8> {
        match self.transform {
            Transform::PartialObjectMetadata { version } => partial::object(version, meta),
            Transform::Table { version } => {
                let list = ListMeta { resource_version: meta.resource_version.clone(), ..ListMeta::default() };
                let mut table = TableWriter::new(version, &list, self.columns.as_deref());
                let cells: Vec<_> = (0..self.width).map(|i| if i == 0 { "".into() } else { Value::Null }).collect();
                table.row(&cells, RowObject::Metadata(meta));
                table.finish()
            }
            Transform::None | Transform::PartialObjectMetadataList { .. } => {
                let kind = self.store.kind();
                let mut json = codec::head(kind.name(), &kind.in_version(&self.version).api_version());
                codec::push_field(&mut json, "metadata", meta);
                json.push(b'}');
                json
            }
        }
    }

    fn plain(&self, object: &S::Object) -> Result<Vec<u8>, Status> {
        self.store.kind().encode(&self.version, object).map_err(unencodable)
    }

    fn row(&self, table: &mut TableWriter, object: &S::Object) -> Result<(), Status> {
        let cells = self.store.strategy().row(object);
        match self.include {
            IncludeObject::None => table.row(&cells, RowObject::None),
            IncludeObject::Metadata => table.row(&cells, RowObject::Metadata(object.metadata())),
            IncludeObject::Object => table.row(&cells, RowObject::Object(&self.plain(object)?)),
        }
        Ok(())
    }
}

fn include_object(query: &str) -> Result<IncludeObject, Status> {
    match query::first(query, "includeObject").as_deref() {
        None | Some("" | "Metadata") => Ok(IncludeObject::Metadata),
        Some("Object") => Ok(IncludeObject::Object),
        Some("None") => Ok(IncludeObject::None),
        Some(other) => {
            let path = Path::new("includeObject");
            let error = FieldError::invalid(&path, other, "must be 'Metadata', 'Object', 'None', or empty");
            Err(Status::bad_request(format!("Unable to convert to Table as requested: {error}")))
        }
    }
}

fn unencodable(error: serde_json::Error) -> Status {
    tracing::error!(%error, "an object could not be encoded");
    Status::internal_error(format_args!("the object could not be encoded: {error}"))
}
