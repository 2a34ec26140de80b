//! The generic store: what create, get, list, watch, update and delete mean for a resource, whatever its type and
//! wherever it is kept (k8s.io/apiserver `pkg/registry/generic/registry/store.go`).
//!
//! Its methods speak of objects of the hub type. The HTTP side uses them, and so do controllers and admission plugins
//! inside the server. A read object carries the revision of its last write as `metadata.resourceVersion`; stored bytes
//! never do.

mod create;
mod delete;
mod informer;
mod list;
mod update;
mod watch;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;

pub use self::{
    delete::Deleted,
    informer::{Change, Informer},
    list::List,
    update::{Preconditions, Updated},
    watch::{Events, WatchEvent},
};
pub(super) use self::{list::take_turns, update::parse_resource_version};
use super::{
    errors::{self, Operation},
    keys::Keys,
    strategy::Strategy,
};
use crate::{
    admission::{self, Attributes, Chain},
    authorization::Authorizer,
    meta::{GroupKind, GroupResource, GroupVersionKind, Object as _, ObjectMeta, Scope},
    request::RequestContext,
    scheme::Kind,
    status::Status,
    storage::{Freshness, KeyValue, Revision, Storage, StorageError},
};

/// How long a read waits for the storage to reach the revision that it asks for
/// (k8s.io/apiserver `pkg/storage/cacher/watch_cache.go`, `blockTimeout`).
const FRESHNESS_TIMEOUT: Duration = Duration::from_secs(3);
/// The pauses between its looks in that time: the first, and the longest that they grow to.
const FRESHNESS_PAUSE: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(500));

/// The longest that a write may take (k8s.io/apiserver `pkg/endpoints/handlers/rest.go`, `requestTimeoutUpperBound`).
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(34);

/// What a server's resources share.
#[derive(Clone)]
pub struct Environment {
    /// Where objects live.
    pub storage: Arc<dyn Storage>,
    /// Who is asked before a write.
    pub admission: Arc<Chain>,
    /// Who is asked when an update turns out to be a creation.
    pub authorizer: Arc<dyn Authorizer>,
    /// What does not run within its request: writes, which come to their end when their client is gone, and watches, which
    /// end when their client stays and does not read. Whoever stops the server waits for them, as a
    /// [`server`](crate::server) does for those in its [`Config::tasks`](crate::server::Config::tasks).
    pub tasks: TaskTracker,
    /// Watches that name no timeout last between this long and twice that.
    pub min_request_timeout: Duration,
}

/// The generic store of one resource. Clones share everything.
pub struct Store<S: Strategy> {
    inner: Arc<Inner<S>>,
}

struct Inner<S: Strategy> {
    kind: Kind<S::Object>,
    strategy: S,
    keys: Keys,
    scope: Scope,
    resource: GroupResource,
    environment: Environment,
}

/// Who writes, where, and how.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The request.
    pub context: &'a RequestContext,
    /// The version that the client speaks, for admission.
    pub version: &'a str,
    /// The namespace, empty for resources of the cluster.
    pub namespace: &'a str,
    /// Which part of the object is written.
    pub part: Part,
    /// Whether everything is done but the writing.
    pub dry_run: bool,
}

/// Which part of an object a write is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All but `status`, if there is a `/status` subresource.
    #[default]
    Main,
    /// `status` alone.
    Status,
}

/// An object with the bytes that it was read from.
struct Stored<H> {
    object: H,
    bytes: Bytes,
    revision: Revision,
}

/// What one attempt at a write came to.
enum Attempt<T, H> {
    Done(T),
    /// Somebody else wrote first. This is the object now.
    Again(Option<Stored<H>>),
}

// === impl Part ===

impl Part {
    /// The subresource's name, empty for the main resource.
    pub fn subresource(self) -> &'static str {
        match self {
            Part::Main => "",
            Part::Status => "status",
        }
    }
}

// === impl Write ===

impl<'a> Write<'a> {
    /// When the write gives up.
    fn deadline(&self) -> Instant {
        let bound = Instant::now() + WRITE_TIMEOUT;
        self.context.deadline.map_or(bound, |deadline| deadline.min(bound))
    }
}

// === impl Store ===

impl<S: Strategy> Clone for Store<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<S: Strategy> Store<S> {
    /// The store of one resource.
    pub fn new(kind: Kind<S::Object>, strategy: S, environment: Environment) -> Self {
        let names = strategy.names();
        let resource = GroupResource { group: kind.group().to_owned(), resource: names.plural.to_owned() };
        let keys = Keys::new(&resource, names.scope);
        Self { inner: Arc::new(Inner { kind, strategy, keys, scope: names.scope, resource, environment }) }
    }

    /// The kind of the objects, in all its versions.
    pub fn kind(&self) -> &Kind<S::Object> {
        &self.inner.kind
    }

    /// The author's part.
    pub fn strategy(&self) -> &S {
        &self.inner.strategy
    }

    /// The resource.
    pub fn resource(&self) -> &GroupResource {
        &self.inner.resource
    }

    /// What the server's resources share.
    pub fn environment(&self) -> &Environment {
        &self.inner.environment
    }

    /// Reads one object, as fresh as asked for.
    ///
    /// # Errors
    /// 404 when there is none; 504 when the storage does not reach the revision in time.
    pub async fn get(&self, namespace: &str, name: &str, at: Freshness) -> Result<S::Object, Status> {
        let key = self.inner.keys.object(namespace, name)?;
        let got = self.when_fresh(at, |at| self.storage().get(&key, at)).await;
        let got = got.map_err(|e| self.storage_error(e, Operation::Get))?;
        let kv = got.kv.ok_or_else(|| Status::not_found(&self.inner.resource, name))?;
        self.decode(&kv)
    }

    /// The storage's current revision.
    ///
    /// # Errors
    /// When the storage cannot be asked.
    pub async fn current_revision(&self) -> Result<Revision, Status> {
        self.storage().current_revision().await.map_err(|e| self.storage_error(e, Operation::List))
    }

    fn storage(&self) -> &dyn Storage {
        &*self.inner.environment.storage
    }

    fn storage_error(&self, error: StorageError, operation: Operation) -> Status {
        errors::status(error, &self.inner.resource, operation)
    }

    fn group_kind(&self) -> GroupKind {
        GroupKind { group: self.inner.resource.group.clone(), kind: self.inner.strategy.names().kind.to_owned() }
    }

    /// The namespace that objects of this request must have.
    fn namespace_of<'a>(&self, write: &Write<'a>) -> &'a str {
        match self.inner.scope {
            Scope::Namespaced => write.namespace,
            Scope::Cluster => "",
        }
    }

    fn decode(&self, kv: &KeyValue) -> Result<S::Object, Status> {
        self.decode_at(&kv.value, kv.mod_revision).map_err(|e| errors::corrupt(kv, e))
    }

    fn decode_at(&self, bytes: &[u8], revision: Revision) -> Result<S::Object, impl std::fmt::Display + use<S>> {
        let object = self.inner.kind.decode_stored(bytes);
        object.map(|mut object| {
            object.metadata_mut().resource_version = Some(revision.0.to_string());
            object
        })
    }

    fn decode_current(&self, kv: KeyValue) -> Result<Stored<S::Object>, Status> {
        let object = self.decode(&kv)?;
        Ok(Stored { object, bytes: kv.value, revision: kv.mod_revision })
    }

    fn encode(&self, object: &S::Object) -> Result<Bytes, Status> {
        let bytes = self.inner.kind.encode_stored(object);
        bytes.map(Bytes::from).map_err(|e| Status::internal_error(format_args!("the object cannot be encoded: {e}")))
    }

    /// Reads the object that a write is about.
    async fn current(&self, key: &str, operation: Operation) -> Result<Option<Stored<S::Object>>, Status> {
        let got = self.storage().get(key, Freshness::Latest).await.map_err(|e| self.storage_error(e, operation))?;
        got.kv.map(|kv| self.decode_current(kv)).transpose()
    }

    /// Reads again and again, more and more seldom, until the storage is as fresh as asked for, for a bounded time.
    async fn when_fresh<T, F>(&self, at: Freshness, read: impl Fn(Freshness) -> F) -> Result<T, StorageError>
    where
        F: Future<Output = Result<T, StorageError>>,
    {
        let (deadline, mut pause) = (Instant::now() + FRESHNESS_TIMEOUT, FRESHNESS_PAUSE.0);
        loop {
            match read(at).await {
                Err(StorageError::Future { .. }) if Instant::now() < deadline => {
                    sleep_until(deadline.min(Instant::now() + pause)).await;
                    pause = FRESHNESS_PAUSE.1.min(pause * 2);
                }
                result => return result,
            }
        }
    }

    /// The attributes with which admission sees a write.
    fn attributes<'a>(&'a self, write: &Write<'a>, operation: admission::Operation, name: &'a str) -> Attributes<'a> {
        Attributes {
            context: write.context,
            operation,
            kind: GroupVersionKind {
                group: self.inner.resource.group.clone(),
                version: write.version.to_owned(),
                kind: self.inner.strategy.names().kind.to_owned(),
            },
            resource: self.inner.resource.clone(),
            subresource: write.part.subresource(),
            namespace: write.namespace,
            name,
            dry_run: write.dry_run,
            object: None,
            old_object: None,
        }
    }

    /// Lets admission plugins change the new object.
    async fn admit(
        &self,
        write: &Write<'_>,
        operation: admission::Operation,
        name: &str,
        object: &mut S::Object,
        old: Option<&S::Object>,
    ) -> Result<(), Status> {
        let mut attributes = self.attributes(write, operation, name);
        attributes.object = Some(object);
        attributes.old_object = old.map(|o| o as _);
        self.inner.environment.admission.admit(&mut attributes).await
    }

    /// Shows admission plugins what is about to be stored.
    async fn validate_admission(
        &self,
        write: &Write<'_>,
        operation: admission::Operation,
        name: &str,
        object: &mut S::Object,
        old: Option<&S::Object>,
    ) -> Result<(), Status> {
        let mut attributes = self.attributes(write, operation, name);
        attributes.object = Some(object);
        attributes.old_object = old.map(|o| o as _);
        self.inner.environment.admission.validate(&attributes).await
    }
}

/// The name in metadata, empty for none.
fn name_of(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

/// What a request is told that took too long.
pub(super) fn timed_out() -> Status {
    Status::timeout("request did not complete within requested timeout - context deadline exceeded", 0)
}
