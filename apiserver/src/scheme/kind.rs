//! A kind with all its versions.

use std::marker::PhantomData;

use schemars::{Schema, SchemaGenerator};

use super::{DecodeError, Decoded, Strictness, Version, decode::strict_message};
use crate::{
    codec::{
        self,
        json::{Node, NodeKind},
        typed, yaml,
    },
    meta::{GroupKind, GroupVersion, GroupVersionKind, Object},
    negotiate::InputFormat,
    quote::quote,
};

/// A kind: its group and name, the versions in which it is served, and the one in which it is stored.
pub struct Kind<H: Object> {
    group: String,
    name: &'static str,
    /// In the order of priority.
    versions: Vec<Box<dyn ErasedVersion<H>>>,
    /// An index into `versions`.
    storage: usize,
}

/// A kind in the making. `S` says whether the storage version is chosen: only then there is a [`build`](Self::build).
pub struct KindBuilder<H: Object, S> {
    group: String,
    name: &'static str,
    versions: Vec<Box<dyn ErasedVersion<H>>>,
    storage: usize,
    state: PhantomData<S>,
}

/// The storage version is not chosen yet.
#[derive(Debug)]
pub struct NoStorageVersion;

/// The storage version is chosen.
#[derive(Debug)]
pub struct WithStorageVersion;

/// A version of `H` whose type is forgotten.
trait ErasedVersion<H>: Send + Sync {
    fn name(&self) -> &'static str;
    fn api_version(&self) -> &str;
    fn decode(&self, node: &Node, problems: &mut typed::Problems) -> Result<H, typed::Error>;
    fn decode_trusted(&self, json: &[u8]) -> Result<H, serde_json::Error>;
    fn encode(&self, kind: &str, hub: &H, buffer: &mut Vec<u8>) -> Result<(), serde_json::Error>;
    fn encode_bare(&self, hub: &H, buffer: &mut Vec<u8>) -> Result<(), serde_json::Error>;
    fn schema(&self, generator: &mut SchemaGenerator) -> Schema;
}

struct Erased<V> {
    api_version: String,
    version: PhantomData<fn() -> V>,
}

/// What tells an object's kind, wherever it stands in the object.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
}

/// Why stored bytes are no object. It is the server's trouble, not the client's.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    /// The bytes are not JSON, or fields have wrong types.
    #[error("the stored {kind} cannot be read: {message}")]
    Corrupt {
        /// The kind that was expected.
        kind: &'static str,
        /// What is wrong.
        message: String,
    },
    /// The bytes are of another kind, or of a version that this server does not know.
    #[error(
        "the stored object is a {found_kind} of {found_version}, which is no version of {kind} that this server knows"
    )]
    Unknown {
        /// The kind that was expected.
        kind: &'static str,
        /// The kind found.
        found_kind: String,
        /// The `apiVersion` found.
        found_version: String,
    },
}

// === impl KindBuilder ===

impl<H: Object, S> KindBuilder<H, S> {
    /// Adds a version; earlier ones have priority, the first is the preferred one. A version counts once.
    #[must_use]
    pub fn version<V: Version<H>>(mut self) -> Self {
        self.add::<V>();
        self
    }

    /// Chooses the version in which objects are stored, and adds it if it is not there yet.
    #[must_use]
    pub fn storage_version<V: Version<H>>(mut self) -> KindBuilder<H, WithStorageVersion> {
        let storage = self.add::<V>();
        let Self { group, name, versions, .. } = self;
        KindBuilder { group, name, versions, storage, state: PhantomData }
    }

    fn add<V: Version<H>>(&mut self) -> usize {
        if let Some(index) = self.versions.iter().position(|v| v.name() == V::VERSION) {
            return index;
        }
        let api_version = api_version(&self.group, V::VERSION);
        self.versions.push(Box::new(Erased::<V> { api_version, version: PhantomData }));
        self.versions.len() - 1
    }
}

impl<H: Object> KindBuilder<H, WithStorageVersion> {
    /// Makes the kind.
    pub fn build(self) -> Kind<H> {
        let Self { group, name, versions, storage, .. } = self;
        Kind { group, name, versions, storage }
    }
}

// === impl Kind ===

impl<H: Object> Kind<H> {
    /// Begins a kind, for example `Kind::<Pizza>::builder("restaurant.programming-kubernetes.info", "Pizza")`.
    pub fn builder(group: impl Into<String>, name: &'static str) -> KindBuilder<H, NoStorageVersion> {
        KindBuilder { group: group.into(), name, versions: Vec::new(), storage: 0, state: PhantomData }
    }

    /// The API group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The kind's name, for example `Pizza`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The kind of its lists, for example `PizzaList`.
    pub fn list_kind(&self) -> String {
        format!("{}List", self.name)
    }

    /// Group and name.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind { group: self.group.clone(), kind: self.name.to_owned() }
    }

    /// The kind in this version.
    pub fn in_version(&self, version: &str) -> GroupVersionKind {
        GroupVersionKind { group: self.group.clone(), version: version.to_owned(), kind: self.name.to_owned() }
    }

    /// The names of the versions, the preferred one first.
    pub fn versions(&self) -> impl Iterator<Item = &'static str> {
        self.versions.iter().map(|v| v.name())
    }

    /// Whether there is this version.
    pub fn serves(&self, version: &str) -> bool {
        self.find(version).is_some()
    }

    /// The version in which objects are stored.
    pub fn storage_version(&self) -> &'static str {
        self.stored().name()
    }

    /// The JSON schema of the kind in this version, without `apiVersion` and `kind`. `None` when there is no such version.
    pub fn json_schema(&self, version: &str, generator: &mut SchemaGenerator) -> Option<Schema> {
        Some(self.find(version)?.schema(generator))
    }

    /// Reads the body of a create or an update that came to the path of `version`.
    ///
    /// The body's `apiVersion` and `kind` may be left out, else they must be the path's. Defaults are filled in.
    /// `metadata.managedFields` are dropped, whatever they say: the server does not track field ownership, and to store
    /// what a client claims of it would make later servers believe it.
    ///
    /// # Errors
    /// When the body is no object of this kind and version, or, if `strictness` wants it, has unknown or repeated fields.
    pub fn decode(
        &self,
        version: &str,
        body: &[u8],
        format: InputFormat,
        strictness: Strictness,
    ) -> Result<Decoded<H>, DecodeError> {
        let unrecognized =
            |message: String| DecodeError::Unrecognized { message, wanted: self.name, summary: summary(body) };
        let (node, repeated) = match format {
            InputFormat::Json => {
                let node = codec::json::parse(body)
                    .map_err(|e| unrecognized(format!("couldn't get version/kind; json parse error: {e}")))?;
                (node, None)
            }
            InputFormat::Yaml => {
                let document = yaml::parse(body).map_err(unrecognized)?;
                (document.node, document.repeated)
            }
        };
        let repeats_count = format == InputFormat::Json;
        let decoded = self.decode_node(version, &node, strictness, repeats_count, repeated.into_iter().collect());
        let (decoded, found) = decoded.map_err(|error| match error {
            // Only who has the body can tell how it begins.
            DecodeError::Unrecognized { message, .. } => unrecognized(message),
            error => error,
        })?;
        if found == version {
            Ok(decoded)
        } else {
            Err(DecodeError::OtherVersion {
                found: api_version(&self.group, found),
                expected: api_version(&self.group, version),
            })
        }
    }

    /// Reads the outcome of a patch. It may be in any version of the kind: a patch can change `apiVersion`.
    /// `problems` are those of the patch itself, which come before the object's own.
    pub(crate) fn decode_patched(
        &self,
        version: &str,
        object: &Node,
        strictness: Strictness,
        problems: Vec<String>,
    ) -> Result<Decoded<H>, DecodeError> {
        self.decode_node(version, object, strictness, true, problems).map(|(decoded, _)| decoded)
    }

    /// Decodes in the version that the object names, and gives that version.
    fn decode_node(
        &self,
        version: &str,
        node: &Node,
        strictness: Strictness,
        repeats_count: bool,
        mut problems: Vec<String>,
    ) -> Result<(Decoded<H>, &'static str), DecodeError> {
        let unrecognized =
            |message: String| DecodeError::Unrecognized { message, wanted: self.name, summary: String::new() };
        let (found_kind, found_version) = self.type_of(node, version).map_err(unrecognized)?;
        let unsuitable = |message: String| DecodeError::Unsuitable {
            message,
            wanted: self.name,
            kind: found_kind.clone(),
            version: found_version.rsplit('/').next().unwrap_or_default().to_owned(),
        };
        let codec =
            self.versions.iter().find(|v| found_kind == self.name && v.api_version() == found_version).ok_or_else(
                || {
                    unsuitable(format!(
                        "no kind {} is registered for version {}",
                        quote(&found_kind),
                        quote(&found_version)
                    ))
                },
            )?;
        let mut found = typed::Problems::new(repeats_count);
        let mut object = codec.decode(node, &mut found).map_err(|e| unsuitable(e.to_string()))?;
        object.metadata_mut().managed_fields = None;
        problems.extend(found.into_texts());
        let warnings = match strictness {
            Strictness::Ignore => Vec::new(),
            Strictness::Warn => problems,
            Strictness::Strict if problems.is_empty() => problems,
            Strictness::Strict => return Err(unsuitable(strict_message(&problems))),
        };
        Ok((Decoded { object, warnings }, codec.name()))
    }

    /// The kind and `apiVersion` that a body names, else the defaults (k8s.io/apimachinery
    /// `pkg/runtime/serializer/json/meta.go`, which reads them whatever the case of their names).
    fn type_of(&self, node: &Node, version: &str) -> Result<(String, String), String> {
        let entries = match &node.kind {
            NodeKind::Object(entries) => entries.as_slice(),
            NodeKind::Null => &[],
            _ => {
                let message = format!("json: cannot unmarshal {} into an object", node.type_name());
                return Err(format!("couldn't get version/kind; json parse error: {message}"));
            }
        };
        let find = |name: &str| {
            entries.iter().rev().filter(|e| e.key.eq_ignore_ascii_case(name)).find_map(|e| match &e.value.kind {
                NodeKind::Null => None,
                NodeKind::String(text) => Some(Ok(text.as_str())),
                _ => Some(Err(format!(
                    "couldn't get version/kind; json parse error: json: cannot unmarshal {} into field {name} of type string",
                    e.value.type_name()
                ))),
            })
        };
        let given = find("apiVersion").transpose()?.unwrap_or_default();
        let kind = find("kind").transpose()?.unwrap_or_default();
        if given.matches('/').count() > 1 {
            return Err(format!("unexpected GroupVersion string: {given}"));
        }
        let found = match given.strip_suffix('/').unwrap_or(given) {
            "" => api_version(&self.group, version),
            group if given.ends_with('/') && group == self.group => api_version(group, version),
            _ => given.to_owned(),
        };
        Ok((if kind.is_empty() { self.name } else { kind }.to_owned(), found))
    }

    /// Writes an object in this version, as compact JSON.
    ///
    /// # Errors
    /// When there is no such version, or the object cannot be serialised.
    pub fn encode(&self, version: &str, object: &H) -> Result<Vec<u8>, serde_json::Error> {
        let mut buffer = Vec::with_capacity(1024);
        self.encode_to(version, object, &mut buffer)?;
        Ok(buffer)
    }

    /// The same to the end of `buffer`.
    ///
    /// # Errors
    /// As [`encode`](Self::encode). `buffer` may have grown by a piece of the object then.
    pub fn encode_to(&self, version: &str, object: &H, buffer: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        self.require(version)?.encode(self.name, object, buffer)
    }

    /// Writes an object as an item of a list of this version, to the end of `buffer`: such items have neither `kind` nor
    /// `apiVersion`, for the list says it.
    ///
    /// # Errors
    /// As [`encode`](Self::encode). `buffer` may have grown by a piece of the object then.
    pub fn encode_item_to(&self, version: &str, object: &H, buffer: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        self.require(version)?.encode_bare(object, buffer)
    }

    /// Writes an object as it is stored: in the storage version, without `resourceVersion` and `selfLink`, which the
    /// storage knows better.
    ///
    /// # Errors
    /// When the object cannot be serialised.
    pub fn encode_stored(&self, object: &H) -> Result<Vec<u8>, serde_json::Error> {
        let mut buffer = Vec::with_capacity(1024);
        let metadata = object.metadata();
        if metadata.resource_version.is_none() && metadata.self_link.is_none() {
            self.stored().encode(self.name, object, &mut buffer)?;
        } else {
            let mut object = object.clone();
            object.metadata_mut().resource_version = None;
            object.metadata_mut().self_link = None;
            self.stored().encode(self.name, &object, &mut buffer)?;
        }
        Ok(buffer)
    }

    /// Reads an object as it is stored, in whatever version it was written. Defaults are filled in.
    ///
    /// # Errors
    /// When the bytes are no object of this kind.
    pub fn decode_stored(&self, json: &[u8]) -> Result<H, StoredError> {
        let corrupt = |message: String| StoredError::Corrupt { kind: self.name, message };
        let found: TypeMeta = serde_json::from_slice(json).map_err(|e| corrupt(e.to_string()))?;
        let codec =
            self.versions.iter().find(|v| found.kind == self.name && v.api_version() == found.api_version).ok_or(
                StoredError::Unknown { kind: self.name, found_kind: found.kind, found_version: found.api_version },
            )?;
        // What this server wrote has no nulls and no repetitions, and is read straight away.
        if let Ok(object) = codec.decode_trusted(json) {
            return Ok(object);
        }
        let node = codec::json::parse(json).map_err(|e| corrupt(e.to_string()))?;
        codec.decode(&node, &mut typed::Problems::new(false)).map_err(|e| corrupt(e.to_string()))
    }

    fn require(&self, version: &str) -> Result<&dyn ErasedVersion<H>, serde_json::Error> {
        self.find(version)
            .ok_or_else(|| serde::ser::Error::custom(format_args!("{} has no version {}", self.name, quote(version))))
    }

    fn find(&self, version: &str) -> Option<&dyn ErasedVersion<H>> {
        self.versions.iter().find(|v| v.name() == version).map(AsRef::as_ref)
    }

    #[allow(clippy::indexing_slicing)] // The builder takes the index from the list.
    fn stored(&self) -> &dyn ErasedVersion<H> {
        self.versions[self.storage].as_ref()
    }
}

impl<H: Object> std::fmt::Debug for Kind<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let versions: Vec<_> = self.versions().collect();
        f.debug_struct("Kind")
            .field("group", &self.group)
            .field("name", &self.name)
            .field("versions", &versions)
            .finish()
    }
}

// === impl Erased ===

impl<H: Object, V: Version<H>> ErasedVersion<H> for Erased<V> {
    fn name(&self) -> &'static str {
        V::VERSION
    }

    fn api_version(&self) -> &str {
        &self.api_version
    }

    fn decode(&self, node: &Node, problems: &mut typed::Problems) -> Result<H, typed::Error> {
        let mut version: V = typed::decode_object(node, problems)?;
        version.set_defaults();
        Ok(version.into_hub())
    }

    fn decode_trusted(&self, json: &[u8]) -> Result<H, serde_json::Error> {
        let mut version: V = serde_json::from_slice(json)?;
        version.set_defaults();
        Ok(version.into_hub())
    }

    fn encode(&self, kind: &str, hub: &H, buffer: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        codec::push_object(buffer, kind, &self.api_version, &V::from_hub(hub))
    }

    fn encode_bare(&self, hub: &H, buffer: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        codec::write(buffer, &V::from_hub(hub))
    }

    fn schema(&self, generator: &mut SchemaGenerator) -> Schema {
        V::json_schema(generator)
    }
}

/// Group and version, as `apiVersion` has them.
fn api_version(group: &str, version: &str) -> String {
    GroupVersion { group: group.to_owned(), version: version.to_owned() }.to_string()
}

/// The beginning of a body, as error messages show it (k8s.io/apiserver `pkg/endpoints/handlers/rest.go`, `summarizeData`).
fn summary(body: &[u8]) -> String {
    const LENGTH: usize = 30;
    let cut = body.get(..LENGTH).unwrap_or(body);
    let text = match body.first() {
        None => return "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(cut).into_owned(),
        Some(_) => hex::encode(cut),
    };
    if cut.len() < body.len() { format!("{text} ...") } else { text }
}
