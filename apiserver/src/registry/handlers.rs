//! The HTTP side of a stored resource: one file for each verb (k8s.io/apiserver `pkg/endpoints/handlers`).

mod create;
mod delete;
mod encode;
mod get;
mod list;
mod patch;
mod update;
mod watch;

use std::borrow::Cow;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method, Response, request::Parts};
use schemars::SchemaGenerator;
use tokio::time::{Instant, timeout_at};
use tracing::Instrument as _;

use super::{
    store::{Environment, Part, Store, WRITE_TIMEOUT, Write, timed_out},
    strategy::Strategy,
};
use crate::{
    endpoint::{
        BodyError, Endpoint, MAX_REQUEST_BYTES, RequestBody, ResourceDescription, ResponseBody, SubresourceDescription,
        Verb, VersionDescription, response,
    },
    meta::{Object, Scope},
    negotiate::{InputFormat, OutputFormat},
    request::RequestContext,
    scheme::{Kind, Strictness},
    status::Status,
};

/// A resource whose objects are stored, as the HTTP side sees it.
pub struct ResourceHandler<S: Strategy> {
    store: Store<S>,
    description: ResourceDescription,
}

/// What a handler knows of its request.
struct Request {
    context: RequestContext,
    headers: HeaderMap,
    query: String,
}

type Reply = Result<Response<ResponseBody>, Status>;

// === impl Request ===

impl Request {
    fn query(&self) -> Option<&str> {
        Some(self.query.as_str()).filter(|q| !q.is_empty())
    }

    fn output(&self) -> Result<OutputFormat, Status> {
        OutputFormat::negotiate(&self.headers, self.query())
    }
}

// === impl ResourceHandler ===

impl<S: Strategy> ResourceHandler<S> {
    /// Serves the resource of this strategy.
    pub fn new(kind: Kind<S::Object>, strategy: S, environment: Environment) -> Self {
        Self::over(Store::new(kind, strategy, environment))
    }

    /// Serves the objects of this store.
    pub fn over(store: Store<S>) -> Self {
        let description = describe(&store);
        Self { store, description }
    }

    /// The store, for controllers and admission plugins inside the server.
    pub fn store(&self) -> &Store<S> {
        &self.store
    }

    async fn answer(&self, request: &mut Request, method: &Method, body: RequestBody) -> Reply {
        let info = &request.context.info;
        let names = &self.description.names;
        let misplaced = names.scope == Scope::Cluster && !info.namespace.is_empty();
        if !self.description.serves(&info.version) || misplaced || !info.below_subresource.is_empty() {
            return Err(Status::page_not_found());
        }
        let one = !info.name.is_empty();
        // A namespaced resource can be listed across namespaces, and nothing else.
        let everywhere = names.scope == Scope::Namespaced && info.namespace.is_empty();
        match (info.subresource.as_str(), info.verb.as_str()) {
            (_, _) if *method == Method::HEAD => Err(Status::method_not_allowed()),
            ("", "list") => self.list(request).await,
            ("", "watch") => self.watch(request).await,
            (_, _) if everywhere && one => Err(Status::page_not_found()),
            (_, _) if everywhere => Err(Status::method_not_allowed()),
            ("", "create") if !one => self.create(request, body).await,
            ("", "deletecollection") => self.delete_collection(request, body).await,
            ("", "get") if one => self.get(request).await,
            ("", "update") if one => self.update(request, body).await,
            ("", "patch") if one => self.patch(request, body).await,
            ("", "delete") if one => self.delete(request, body).await,
            ("status", verb) if one && self.store.strategy().status().is_some() => match verb {
                "get" => self.get(request).await,
                "update" => self.update(request, body).await,
                "patch" => self.patch(request, body).await,
                _ => Err(Status::method_not_allowed()),
            },
            ("", _) => Err(Status::method_not_allowed()),
            _ => Err(Status::page_not_found()),
        }
    }

    /// Reads the object that a request brings. What is odd about it becomes warnings.
    fn decode(
        &self,
        request: &Request,
        body: &[u8],
        input: InputFormat,
        strictness: Strictness,
    ) -> Result<S::Object, Status> {
        let decoded = self.store.kind().decode(&request.context.info.version, body, input, strictness)?;
        for warning in decoded.warnings {
            request.context.warnings.add(warning);
        }
        Ok(decoded.object)
    }

    /// Lets a write run to its end, whether or not the client waits for it, and waits for it as long as a request may
    /// take.
    async fn to_the_end<T, F>(&self, context: &RequestContext, write: F) -> Result<T, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let bound = Instant::now() + WRITE_TIMEOUT;
        let deadline = context.deadline.map_or(bound, |deadline| deadline.min(bound));
        let task = self.store.environment().tasks.spawn(write.in_current_span());
        match timeout_at(deadline, task).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => {
                tracing::error!(%error, "a write ended abnormally");
                Err(Status::internal_error("the write ended abnormally"))
            }
            Err(_) => Err(timed_out()),
        }
    }
}

#[async_trait]
impl<S: Strategy> Endpoint for ResourceHandler<S> {
    fn description(&self) -> &ResourceDescription {
        &self.description
    }

    async fn serve(&self, context: RequestContext, parts: Parts, body: RequestBody) -> Response<ResponseBody> {
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let mut request = Request { context, headers: parts.headers, query };
        let mut answer = match self.answer(&mut request, &parts.method, body).await {
            Ok(answer) => answer,
            Err(status) => response::status(&request.headers, request.query(), &status),
        };
        response::add_warnings(answer.headers_mut(), &request.context.warnings.take());
        answer
    }
}

fn describe<S: Strategy>(store: &Store<S>) -> ResourceDescription {
    let (kind, names) = (store.kind(), store.strategy().names());
    let schema = |version: &str| {
        let mut generator = SchemaGenerator::default();
        let mut schema = kind.json_schema(version, &mut generator).unwrap_or_default();
        let definitions = generator.take_definitions(true);
        if !definitions.is_empty() {
            schema.insert("$defs".to_owned(), definitions.into());
        }
        schema
    };
    let status = store.strategy().status().map(|_| SubresourceDescription {
        name: "status".to_owned(),
        kind: kind.name().to_owned(),
        verbs: vec![Verb::Get, Verb::Patch, Verb::Update],
    });
    ResourceDescription {
        group: kind.group().to_owned(),
        list_kind: kind.list_kind(),
        verbs: Verb::STORED.to_vec(),
        versions: kind
            .versions()
            .map(|name| VersionDescription { name: name.to_owned(), schema: schema(name) })
            .collect(),
        storage_version: kind.storage_version().to_owned(),
        subresources: status.into_iter().collect(),
        names,
    }
}

/// The write that the request's path names.
fn write(context: &RequestContext, dry_run: bool) -> Write<'_> {
    let info = &context.info;
    let part = if info.subresource == "status" { Part::Status } else { Part::Main };
    Write { context, version: &info.version, namespace: &info.namespace, part, dry_run }
}

async fn read(body: RequestBody) -> Result<Bytes, Status> {
    body.read_limited(MAX_REQUEST_BYTES).await.map_err(|error| match error {
        BodyError::TooLarge { limit } => Status::request_entity_too_large(format_args!("limit is {limit}")),
        BodyError::Broken(_) => Status::bad_request(error.to_string()),
    })
}

/// # Errors
/// 400 when the object's name is not the path's (k8s.io/apiserver `pkg/endpoints/handlers/rest.go`, `checkName`).
fn check_name<H: Object>(object: &H, name: &str) -> Result<(), Status> {
    let found: Cow<'_, str> = object.metadata().name.as_deref().unwrap_or_default().into();
    if found.is_empty() {
        return Err(Status::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )));
    }
    if found != name {
        return Err(Status::bad_request(format!(
            "the name of the object ({found}) does not match the name on the URL ({name})"
        )));
    }
    Ok(())
}
