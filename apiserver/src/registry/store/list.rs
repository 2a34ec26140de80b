//! Reading collections: resource versions, pages, selectors (k8s.io/apiserver `pkg/storage/etcd3/store.go`, `GetList`).

use super::{Store, parse_resource_version};
use crate::{
    continue_token,
    list_options::{ListOptions, ResourceVersionMatch},
    meta::{ListMeta, Object, Scope},
    registry::{errors::Operation, strategy::Strategy},
    selector::{FieldSelector, LabelSelector},
    status::Status,
    storage::{Freshness, KeyValue, ListRange, Page, Revision, StorageError},
};

/// The most keys that are read at once.
const MAX_PAGE: usize = 10_000;
/// After how many objects other tasks get their turn.
const YIELD_AFTER: usize = 256;

const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can \
    start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder \
    of the results. Continuing with the provided token results in an inconsistent list - objects that were created, \
    modified, or deleted between the time the first chunk was returned and now may show up in the list.";

/// The fields by which objects can be selected.
const KNOWN_FIELDS: [&str; 2] = ["metadata.name", "metadata.namespace"];

/// Objects, and of when they are.
#[derive(Clone, Debug)]
pub struct List<H> {
    /// The objects, in the order of namespace and name.
    pub items: Vec<H>,
    /// The revision that the list shows.
    pub revision: Revision,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
    /// How many objects come after this page, where it is known.
    pub remaining: Option<u64>,
}

/// Which objects are wanted.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    pub(super) labels: LabelSelector,
    pub(super) fields: FieldSelector,
}

/// Which keys are to be read.
#[derive(Clone, Debug)]
pub(super) enum Range {
    Key(String),
    Prefix(String),
}

/// A part of a range's keys.
pub(super) struct Part {
    pub(super) items: Vec<KeyValue>,
    pub(super) revision: Revision,
    /// Where the rest begins, if there is any.
    pub(super) next: Option<String>,
}

// === impl List ===

impl<H> List<H> {
    /// The list's metadata, as the wire has it.
    pub fn metadata(&self) -> ListMeta {
        ListMeta {
            continue_: self.next.clone(),
            remaining_item_count: self.remaining.and_then(|count| i64::try_from(count).ok()),
            resource_version: Some(self.revision.0.to_string()),
            ..ListMeta::default()
        }
    }
}

// === impl Selection ===

impl Selection {
    /// # Errors
    /// 400 when a field is named by which nothing can be selected.
    pub(super) fn new(options: &ListOptions) -> Result<Self, Status> {
        if let Some(field) = options.field_selector.fields().find(|field| !KNOWN_FIELDS.contains(field)) {
            return Err(Status::bad_request(format!(
                "{} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
                crate::quote::quote(field)
            )));
        }
        Ok(Self { labels: options.label_selector.clone(), fields: options.field_selector.clone() })
    }

    pub(super) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(super) fn matches(&self, object: &impl Object) -> bool {
        let meta = object.metadata();
        (self.labels.is_empty() || self.labels.matches(meta.labels.as_ref()))
            && (self.fields.is_empty()
                || self.fields.matches(|field| match field {
                    "metadata.name" => meta.name.as_deref().unwrap_or_default(),
                    "metadata.namespace" => meta.namespace.as_deref().unwrap_or_default(),
                    _ => "",
                }))
    }
}

// === impl Store ===

impl<S: Strategy> Store<S> {
    /// Reads a collection: a namespace's, or the whole one when `namespace` is empty.
    ///
    /// # Errors
    /// 400 for options that make no sense, 410 when what is asked for is no longer kept, with a token to go on from; 504
    /// when the storage does not reach the resource version in time.
    pub async fn list(&self, namespace: &str, options: &ListOptions) -> Result<List<S::Object>, Status> {
        let selection = Selection::new(options)?;
        let wanted = parse_resource_version(&options.resource_version)?;
        let any = !options.resource_version.is_empty() && wanted == Revision(0);
        match self.range(namespace, &selection, !options.continue_token.is_empty())? {
            Range::Key(key) => {
                let at = match (options.resource_version_match, any) {
                    _ if options.resource_version.is_empty() => Freshness::Latest,
                    (_, true) => Freshness::Any,
                    (Some(ResourceVersionMatch::Exact), _) => Freshness::Exact(wanted),
                    _ => Freshness::NotOlderThan(wanted),
                };
                self.list_one(&key, at, &selection).await
            }
            Range::Prefix(prefix) => {
                // A list of any age comes whole; what continues one that does not is no such list.
                let whole = any && options.continue_token.is_empty();
                let limit = if whole { 0 } else { usize::try_from(options.limit).unwrap_or(0) };
                let (at, start) = if options.continue_token.is_empty() {
                    let at = match options.resource_version_match {
                        _ if options.resource_version.is_empty() => Freshness::Latest,
                        _ if any => Freshness::Any,
                        Some(ResourceVersionMatch::Exact) => Freshness::Exact(wanted),
                        None if limit > 0 => Freshness::Exact(wanted),
                        _ => Freshness::NotOlderThan(wanted),
                    };
                    (at, None)
                } else {
                    let (start, revision) = continue_token::decode(&options.continue_token, &prefix)
                        .map_err(|e| Status::bad_request(format!("invalid continue token: {e}")))?;
                    if !options.resource_version.is_empty() && !any {
                        return Err(Status::bad_request(
                            "specifying resource version is not allowed when using continue",
                        ));
                    }
                    (revision.map_or(Freshness::Latest, Freshness::Exact), Some(start))
                };
                self.list_range(&prefix, start, at, limit, &selection).await
            }
        }
    }

    /// Which keys a request is about: selectors can narrow it to one namespace or one object.
    pub(super) fn range(&self, namespace: &str, selection: &Selection, continued: bool) -> Result<Range, Status> {
        let exactly = |field| (!continued).then(|| selection.fields.requires_exact(field)).flatten();
        let namespace = match exactly("metadata.namespace") {
            Some(selected)
                if namespace.is_empty()
                    && self.inner.scope == Scope::Namespaced
                    && self.inner.keys.collection(selected).is_ok() =>
            {
                selected
            }
            _ => namespace,
        };
        match exactly("metadata.name").map(|name| self.inner.keys.object(namespace, name)) {
            Some(Ok(key)) => Ok(Range::Key(key)),
            _ => self.inner.keys.collection(namespace).map(Range::Prefix),
        }
    }

    async fn list_one(&self, key: &str, at: Freshness, selection: &Selection) -> Result<List<S::Object>, Status> {
        let got = self.when_fresh(at, |at| self.storage().get(key, at)).await;
        let got = got.map_err(|e| self.storage_error(e, Operation::List))?;
        let object = got.kv.map(|kv| self.decode(&kv)).transpose()?;
        let items = object.into_iter().filter(|object| selection.matches(object)).collect();
        Ok(List { items, revision: got.revision, next: None, remaining: None })
    }

    async fn list_range(
        &self,
        prefix: &str,
        mut start: Option<String>,
        mut at: Freshness,
        limit: usize,
        selection: &Selection,
    ) -> Result<List<S::Object>, Status> {
        let continued = start.is_some();
        let mut items = Vec::new();
        let mut size = if limit == 0 { MAX_PAGE } else { limit.min(MAX_PAGE) };
        loop {
            let page = self.page(prefix, start.as_deref(), size, at).await.map_err(|error| match error {
                StorageError::Compacted { .. } if continued => expired_token(start.as_deref(), prefix),
                error => self.storage_error(error, Operation::List),
            })?;
            let revision = page.revision;
            let mut last = None;
            let mut rest = page.remaining;
            let mut keys = page.items.into_iter();
            for (seen, kv) in keys.by_ref().enumerate() {
                if let Some(object) = self.select(&kv, selection)? {
                    items.push(object);
                }
                last = Some(kv.key);
                if limit > 0 && items.len() >= limit {
                    break;
                }
                take_turns(seen).await;
            }
            rest += keys.len() as u64;
            let Some(last) = last.filter(|_| rest > 0) else {
                return Ok(List { items, revision, next: None, remaining: None });
            };
            // The key right behind the last one.
            let next = last + "\0";
            if limit > 0 && items.len() >= limit {
                let token = continue_token::encode(&next, prefix, Some(revision))
                    .map_err(|e| Status::internal_error(format_args!("no continue token can be made: {e}")))?;
                let remaining = selection.is_everything().then_some(rest);
                return Ok(List { items, revision, next: Some(token), remaining });
            }
            // Selectors left the page short: larger and larger steps keep the number of reads low.
            start = Some(next);
            at = Freshness::Exact(revision);
            size = (size * 2).min(MAX_PAGE);
        }
    }

    /// One page, as soon as the storage is as fresh as asked for.
    async fn page(&self, prefix: &str, start: Option<&str>, limit: usize, at: Freshness) -> Result<Page, StorageError> {
        let range = |at| ListRange { prefix, start, limit, at };
        match at {
            Freshness::NotOlderThan(_) => self.when_fresh(at, |at| self.storage().list(range(at))).await,
            _ => self.storage().list(range(at)).await,
        }
    }

    /// Everything in a range, undecoded.
    pub(super) async fn snapshot(
        &self,
        range: &Range,
        at: Freshness,
    ) -> Result<(Vec<KeyValue>, Revision), StorageError> {
        let mut part = self.part(range, None, MAX_PAGE, at).await?;
        let (mut items, revision) = (part.items, part.revision);
        while let Some(start) = part.next {
            part = self.part(range, Some(&start), MAX_PAGE, Freshness::Exact(revision)).await?;
            items.append(&mut part.items);
        }
        Ok((items, revision))
    }

    /// At most `size` keys of a range from `start` on, undecoded.
    pub(super) async fn part(
        &self,
        range: &Range,
        start: Option<&str>,
        size: usize,
        at: Freshness,
    ) -> Result<Part, StorageError> {
        match range {
            Range::Key(key) => {
                let got = self.when_fresh(at, |at| self.storage().get(key, at)).await?;
                Ok(Part { items: got.kv.into_iter().collect(), revision: got.revision, next: None })
            }
            Range::Prefix(prefix) => {
                let page = self.page(prefix, start, size, at).await?;
                let last = page.items.last().filter(|_| page.remaining > 0);
                let next = last.map(|kv| format!("{}\0", kv.key));
                Ok(Part { items: page.items, revision: page.revision, next })
            }
        }
    }

    fn select(&self, kv: &KeyValue, selection: &Selection) -> Result<Option<S::Object>, Status> {
        let object = self.decode(kv)?;
        Ok(selection.matches(&object).then_some(object))
    }
}

/// Between objects of which there may be many: lets other tasks have their turn now and then. `seen` is this one's index.
pub(in crate::registry) async fn take_turns(seen: usize) {
    if seen % YIELD_AFTER == YIELD_AFTER - 1 {
        tokio::task::yield_now().await;
    }
}

/// 410 with a token that goes on at the latest state.
fn expired_token(start: Option<&str>, prefix: &str) -> Status {
    let status = Status::expired(CONTINUE_EXPIRED);
    match start.map(|start| continue_token::encode(start, prefix, None)) {
        Some(Ok(token)) => status.with_continue(token),
        _ => status,
    }
}
