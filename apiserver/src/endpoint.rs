//! Resources as the HTTP side sees them: what is installed under `/apis/<group>/<version>/…`, described for discovery and
//! OpenAPI, and asked to answer requests.
//!
//! An [`Endpoint`] stands for one resource of one group in *all* its versions, subresources included. Most are made by
//! the [generic registry](crate::registry); one that stores nothing implements the trait itself.

mod delivery;
pub mod response;

use std::{error::Error, sync::Arc};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::{BodyExt as _, Empty, Full, combinators::UnsyncBoxBody};

pub use self::delivery::Delivery;
use crate::{
    meta::{GroupResource, ResourceNames},
    request::RequestContext,
};

/// The largest request body that is read, in bytes (k8s.io/apiserver `pkg/server/config.go`, `MaxRequestBodyBytes`).
pub const MAX_REQUEST_BYTES: usize = 3 * 1024 * 1024;

/// An error of any kind, as bodies carry it.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The body of an answer. Watches stream theirs, one chunk for each event.
pub type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

/// A resource that answers requests.
#[async_trait]
pub trait Endpoint: Send + Sync + 'static {
    /// What discovery and OpenAPI tell of it.
    fn description(&self) -> &ResourceDescription;

    /// Answers one request. Routing has found the group, version, resource, subresource, namespace and name, in
    /// [`RequestContext::info`]; whoever calls this has authenticated and authorised the request.
    async fn serve(
        &self,
        context: RequestContext,
        parts: http::request::Parts,
        body: RequestBody,
    ) -> http::Response<ResponseBody>;
}

/// An API group, as a server installs it.
#[derive(Clone)]
pub struct ApiGroup {
    /// The group's name, for example `restaurant.programming-kubernetes.info`.
    pub name: String,
    /// Its versions, the preferred one first.
    pub versions: Vec<String>,
    /// Its resources.
    pub endpoints: Vec<Arc<dyn Endpoint>>,
}

/// What discovery and OpenAPI tell of a resource.
#[derive(Clone, Debug)]
pub struct ResourceDescription {
    /// The API group.
    pub group: String,
    /// The resource's names, and whether it is namespaced.
    pub names: ResourceNames,
    /// The kind of its lists, for example `PizzaList`.
    pub list_kind: String,
    /// What can be done with it.
    pub verbs: Vec<Verb>,
    /// The versions in which it is served, the preferred one first.
    pub versions: Vec<VersionDescription>,
    /// The version in which it is stored: `storageVersionHash` is made of group, this version and kind.
    pub storage_version: String,
    /// Its subresources.
    pub subresources: Vec<SubresourceDescription>,
}

/// One version of a resource.
#[derive(Clone, Debug)]
pub struct VersionDescription {
    /// The version's name, for example `v1beta1`.
    pub name: String,
    /// The JSON schema of the kind in this version, without `apiVersion` and `kind`. It stands for itself: what it refers
    /// to as `#/$defs/…` is in it.
    pub schema: schemars::Schema,
}

/// A subresource, for example `status`.
#[derive(Clone, Debug)]
pub struct SubresourceDescription {
    /// The last segment of its path.
    pub name: String,
    /// The kind that is read and written there; the resource's own kind for `status`.
    pub kind: String,
    /// What can be done with it.
    pub verbs: Vec<Verb>,
}

/// What can be done with a resource, in the words of discovery and RBAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// POST to the collection.
    Create,
    /// DELETE of one object.
    Delete,
    /// DELETE of the collection.
    DeleteCollection,
    /// GET of one object.
    Get,
    /// GET of the collection.
    List,
    /// PATCH.
    Patch,
    /// PUT.
    Update,
    /// GET with `watch=true`.
    Watch,
}

/// The body of a request, not read yet.
pub struct RequestBody(UnsyncBoxBody<Bytes, BoxError>);

/// Why a request's body could not be had.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It is longer than [`MAX_REQUEST_BYTES`] or the limit given.
    #[error("the request body is longer than {limit} bytes")]
    TooLarge {
        /// How much would have been read.
        limit: usize,
    },
    /// The connection broke, or the framing is wrong.
    #[error("the request body could not be read: {0}")]
    Broken(BoxError),
}

/// A body with these bytes.
pub fn full(bytes: impl Into<Bytes>) -> ResponseBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body with nothing in it.
pub fn empty() -> ResponseBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

// === impl ResourceDescription ===

impl ResourceDescription {
    /// The resource with its group, as errors and authorisation name it.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource { group: self.group.clone(), resource: self.names.plural.to_owned() }
    }

    /// Whether it is served in this version.
    pub fn serves(&self, version: &str) -> bool {
        self.versions.iter().any(|v| v.name == version)
    }
}

// === impl Verb ===

impl Verb {
    /// The verbs of a stored resource, sorted as discovery lists them.
    pub const STORED: [Verb; 8] = [
        Verb::Create,
        Verb::Delete,
        Verb::DeleteCollection,
        Verb::Get,
        Verb::List,
        Verb::Patch,
        Verb::Update,
        Verb::Watch,
    ];

    /// The verb's name, for example `deletecollection`.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Create => "create",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Patch => "patch",
            Verb::Update => "update",
            Verb::Watch => "watch",
        }
    }
}

// === impl RequestBody ===

impl RequestBody {
    /// Takes a body of any kind.
    pub fn new<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(body.map_err(Into::into).boxed_unsync())
    }

    /// A body that is in memory already.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        Self(full(bytes))
    }

    /// Reads all of it, but no more than `limit` bytes.
    ///
    /// # Errors
    /// [`BodyError::TooLarge`] past the limit, [`BodyError::Broken`] when the connection breaks.
    pub async fn read_limited(mut self, limit: usize) -> Result<Bytes, BodyError> {
        let mut read = BytesMut::new();
        while let Some(frame) = self.0.frame().await {
            let Ok(data) = frame.map_err(BodyError::Broken)?.into_data() else { continue };
            if data.len() > limit - read.len() {
                return Err(BodyError::TooLarge { limit });
            }
            if read.is_empty() && self.0.is_end_stream() {
                return Ok(data);
            }
            read.extend_from_slice(&data);
        }
        Ok(read.freeze())
    }

    /// The body itself, for those who read it as it comes.
    pub fn into_inner(self) -> UnsyncBoxBody<Bytes, BoxError> {
        self.0
    }
}
