//! The paths of a server and what can be done there, before they are written in either version of OpenAPI
//! (k8s.io/apiserver `pkg/endpoints/installer.go`).
//!
//! Only what is served is told: JSON and YAML, JSON patch and merge patch. From the patch types `kubectl apply` learns to
//! send merge patches. The deprecated paths below `watch/` are not told, and neither are parameters that belong to apply
//! patches, sharding and unsafe deletion.

use std::collections::BTreeMap;

use super::{
    names::{self, Place},
    shared::{self, META_V1, SharedParameter},
};
use crate::{
    discovery::{ServedGroup, ServedVersion},
    endpoint::{ResourceDescription, Verb},
    meta::Scope,
    negotiate::PatchType,
};

/// What is read and written.
const MEDIA_TYPES: &[&str] = &["application/json", "application/yaml"];
/// What a list that can be watched is written as.
const WATCH_MEDIA_TYPES: &[&str] = &["application/json", "application/yaml", "application/json;stream=watch"];
/// Of an operation without a body.
const ANY: &[&str] = &["*/*"];

/// The methods of paths, in the order of the original.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Method {
    Get,
    Put,
    Post,
    Delete,
    Patch,
}

/// The operations of a path.
pub(super) type PathOperations = BTreeMap<Method, Operation>;

/// The paths, each with its operations.
pub(super) type Paths = BTreeMap<String, PathOperations>;

/// What can be done at a path with a method.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) id: String,
    pub(super) tag: String,
    pub(super) description: String,
    /// What RBAC and metrics call it, and the kind it is about. `None` for discovery and the like.
    pub(super) about: Option<About>,
    pub(super) consumes: Vec<&'static str>,
    pub(super) produces: &'static [&'static str],
    /// Without the body, sorted by name.
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Option<Body>,
    pub(super) responses: Vec<(u16, &'static str)>,
    /// What is answered.
    pub(super) answer: Type,
}

#[derive(Clone, Debug)]
pub(super) struct About {
    pub(super) action: &'static str,
    pub(super) group: String,
    pub(super) version: String,
    pub(super) kind: String,
}

/// A parameter in the path or the query.
#[derive(Clone, Debug)]
pub(super) enum Parameter {
    Shared(SharedParameter),
    /// The name of an object of this kind.
    Name {
        kind: String,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Body {
    pub(super) of: Type,
    pub(super) required: bool,
}

/// The type of a body or an answer.
#[derive(Clone, Debug)]
pub(super) enum Type {
    /// A definition, by its full name.
    Definition(String),
    /// An object of which nothing more is known.
    Object,
}

/// The paths that every server has.
pub(super) fn root() -> BTreeMap<String, Paths> {
    let root = |path: &str, id: &str, description: &str, media: &'static [&'static str], answer: &str| {
        let operation = plain(Place::Root(path), id, description, media, answer);
        Paths::from([(format!("/{path}/"), PathOperations::from([(Method::Get, operation)]))])
    };
    BTreeMap::from([
        (
            "apis".to_owned(),
            root("apis", "APIVersions", "get available API versions", MEDIA_TYPES, &meta("APIGroupList")),
        ),
        ("version".to_owned(), {
            let info = "io.k8s.apimachinery.pkg.version.Info";
            root("version", "CodeVersion", "get the version information for this server", &["application/json"], info)
        }),
    ])
}

/// The path of a group.
pub(super) fn group(group: &ServedGroup<'_>) -> Paths {
    let answer = meta("APIGroup");
    let operation = plain(Place::Group(group.name), "APIGroup", "get information of a group", MEDIA_TYPES, &answer);
    Paths::from([(format!("/apis/{}/", group.name), PathOperations::from([(Method::Get, operation)]))])
}

/// The paths of a version of a group. `defined` says whether there is a definition of a kind.
pub(super) fn version(group: &str, version: &ServedVersion<'_>, defined: &dyn Fn(&str) -> bool) -> Paths {
    let place = Place::GroupVersion(group, version.name);
    let answer = meta("APIResourceList");
    let list = plain(place, "APIResources", "get available resources", MEDIA_TYPES, &answer);
    let root = format!("/apis/{group}/{}/", version.name);
    let mut paths = Paths::from([(root.clone(), PathOperations::from([(Method::Get, list)]))]);
    for resource in &version.resources {
        let resource = Resource { group, version: version.name, resource, defined };
        resource.add_paths(&root, &mut paths);
    }
    paths.retain(|_, operations| !operations.is_empty());
    paths
}

fn meta(kind: &str) -> String {
    format!("{META_V1}{kind}")
}

/// A GET that is about no resource.
fn plain(place: Place<'_>, id: &str, description: &str, media: &'static [&'static str], answer: &str) -> Operation {
    Operation {
        id: place.operation_id("get", id),
        tag: place.tag(),
        description: description.to_owned(),
        about: None,
        consumes: media.to_vec(),
        produces: media,
        parameters: Vec::new(),
        body: None,
        responses: vec![(200, "OK")],
        answer: Type::Definition(answer.to_owned()),
    }
}

/// A resource in one of its versions.
struct Resource<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a ResourceDescription,
    defined: &'a dyn Fn(&str) -> bool,
}

/// What a path is about.
#[derive(Clone, Copy)]
struct Target<'a> {
    /// The kind that is read and written.
    kind: &'a str,
    subresource: Option<&'a str>,
    verbs: &'a [Verb],
    /// The names of the path's parameters.
    path: &'a [&'a str],
}

// === impl Method ===

impl Method {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Method::Get => "get",
            Method::Put => "put",
            Method::Post => "post",
            Method::Delete => "delete",
            Method::Patch => "patch",
        }
    }
}

// === impl Parameter ===

impl Parameter {
    pub(super) fn name(&self) -> &str {
        match self {
            Parameter::Shared(shared) => shared::text(shared.value, "name"),
            Parameter::Name { .. } => "name",
        }
    }
}

/// The parameters that all operations of a path have, which are written once for the path.
///
/// kubectl looks for `fieldValidation` in the PATCH operation itself, so a path with nothing but PATCH keeps them there.
pub(super) fn common_parameters(operations: &PathOperations) -> Vec<Parameter> {
    let mut all = operations.iter();
    let Some((method, first)) = all.next() else { return Vec::new() };
    if operations.len() == 1 && *method == Method::Patch {
        return Vec::new();
    }
    let in_all = |p: &&Parameter| all.clone().all(|(_, o)| o.parameters.iter().any(|other| other.name() == p.name()));
    first.parameters.iter().filter(in_all).cloned().collect()
}

// === impl Resource ===

impl Resource<'_> {
    fn add_paths(&self, root: &str, paths: &mut Paths) {
        let names = &self.resource.names;
        let target = Target { kind: names.kind, subresource: None, verbs: &self.resource.verbs, path: &[] };
        let (collection, scope): (String, &[&str]) = match names.scope {
            Scope::Namespaced => {
                // Across namespaces there is only the list.
                let list = self.operations(target, true, false);
                paths.insert(format!("{root}{}", names.plural), list);
                (format!("{root}namespaces/{{namespace}}/{}", names.plural), &["namespace"])
            }
            Scope::Cluster => (format!("{root}{}", names.plural), &[]),
        };
        paths.insert(collection.clone(), self.operations(Target { path: scope, ..target }, false, false));

        let in_object: Vec<_> = ["name"].into_iter().chain(scope.iter().copied()).collect();
        let item = format!("{collection}/{{name}}");
        for subresource in &self.resource.subresources {
            let target = Target {
                kind: &subresource.kind,
                subresource: Some(&subresource.name),
                verbs: &subresource.verbs,
                path: &in_object,
            };
            paths.insert(format!("{item}/{}", subresource.name), self.operations(target, false, true));
        }
        paths.insert(item, self.operations(Target { path: &in_object, ..target }, false, true));
    }

    /// The operations of one path. `in_object`: the path has the object's name.
    fn operations(&self, target: Target<'_>, across_namespaces: bool, in_object: bool) -> PathOperations {
        let mut operations = PathOperations::new();
        for verb in target.verbs {
            let here = match verb {
                Verb::List => !in_object,
                Verb::Create => in_object == target.subresource.is_some() && !across_namespaces,
                Verb::DeleteCollection => !in_object && !across_namespaces,
                Verb::Get | Verb::Update | Verb::Patch | Verb::Delete => in_object,
                Verb::Watch => false,
            };
            if here {
                let (method, operation) = self.operation(target, *verb, across_namespaces);
                operations.insert(method, operation);
            }
        }
        operations
    }

    fn operation(&self, target: Target<'_>, verb: Verb, across_namespaces: bool) -> (Method, Operation) {
        let kind = self.resource.names.kind;
        let watched = target.verbs.contains(&Verb::Watch);
        let of = |verb: &str, noun: &str| match target.subresource {
            None => format!("{verb} {noun}"),
            Some(subresource) => format!("{verb} {subresource} of {noun}"),
        };
        let specified = format!("the specified {kind}");
        let with_article = names::with_article(kind);
        let own = self.type_of(target.kind);
        let status = || Type::Definition(meta("Status"));
        let delete_options = Body { of: Type::Definition(meta("DeleteOptions")), required: false };
        let whole = Body { of: own.clone(), required: true };

        let method = match verb {
            Verb::Get | Verb::List | Verb::Watch => Method::Get,
            Verb::Update => Method::Put,
            Verb::Create => Method::Post,
            Verb::Delete | Verb::DeleteCollection => Method::Delete,
            Verb::Patch => Method::Patch,
        };
        let (id, action, description) = match verb {
            Verb::Get | Verb::Watch => ("read", "get", of("read", &specified)),
            Verb::List if watched => ("list", "list", format!("list or watch objects of kind {kind}")),
            Verb::List => ("list", "list", format!("list objects of kind {kind}")),
            Verb::Update => ("replace", "put", of("replace", &specified)),
            Verb::Create => ("create", "post", of("create", &with_article)),
            Verb::Delete => ("delete", "delete", of("delete", &with_article)),
            Verb::DeleteCollection => ("delete", "deletecollection", format!("delete collection of {kind}")),
            Verb::Patch => ("patch", "patch", of("partially update", &specified)),
        };
        let (body, answer) = match verb {
            Verb::Get | Verb::Watch => (None, own),
            Verb::List => (None, self.type_of(&self.resource.list_kind)),
            Verb::Update | Verb::Create => (Some(whole), own),
            Verb::Delete | Verb::DeleteCollection => (Some(delete_options), status()),
            Verb::Patch => (Some(Body { of: Type::Definition(meta("Patch")), required: true }), own),
        };
        let responses: &[(u16, &'static str)] = match verb {
            Verb::Create => &[(200, "OK"), (201, "Created"), (202, "Accepted")],
            Verb::Update => &[(200, "OK"), (201, "Created")],
            Verb::Delete => &[(200, "OK"), (202, "Accepted")],
            Verb::Get | Verb::List | Verb::Watch | Verb::DeleteCollection | Verb::Patch => &[(200, "OK")],
        };
        let consumes = match verb {
            Verb::Patch => PatchType::ALL.map(PatchType::as_str).to_vec(),
            _ if body.is_some() => MEDIA_TYPES.to_vec(),
            _ => ANY.to_vec(),
        };
        let namespaced = self.resource.names.scope == Scope::Namespaced && !across_namespaces;
        let rest = [
            if verb == Verb::DeleteCollection { "Collection" } else { "" },
            if namespaced { "Namespaced" } else { "" },
            kind,
            &target.subresource.map(names::title).unwrap_or_default(),
            if across_namespaces { "ForAllNamespaces" } else { "" },
        ]
        .concat();
        let place = Place::GroupVersion(self.group, self.version);
        let operation = Operation {
            id: place.operation_id(id, &rest),
            tag: place.tag(),
            description,
            about: Some(About {
                action,
                group: self.group.to_owned(),
                version: self.version.to_owned(),
                kind: target.kind.to_owned(),
            }),
            consumes,
            produces: if verb == Verb::List && watched { WATCH_MEDIA_TYPES } else { MEDIA_TYPES },
            parameters: self.parameters(target, verb, watched),
            body,
            responses: responses.to_vec(),
            answer,
        };
        (method, operation)
    }

    fn type_of(&self, kind: &str) -> Type {
        let name = names::definition(self.group, self.version, kind);
        if (self.defined)(&name) { Type::Definition(name) } else { Type::Object }
    }

    fn parameters(&self, target: Target<'_>, verb: Verb, watched: bool) -> Vec<Parameter> {
        let list = ["continue", "fieldSelector", "labelSelector", "limit", "resourceVersion", "resourceVersionMatch"];
        let delete = ["dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy"];
        let mut query = vec!["pretty"];
        match verb {
            Verb::Get | Verb::Watch => {}
            Verb::List => {
                query.extend(list);
                query.push("timeoutSeconds");
                if watched {
                    query.extend(["allowWatchBookmarks", "sendInitialEvents", "watch"]);
                }
            }
            Verb::Create | Verb::Update | Verb::Patch => query.extend(["dryRun", "fieldManager", "fieldValidation"]),
            Verb::Delete => query.extend(delete),
            Verb::DeleteCollection => {
                query.extend(list);
                query.extend(delete);
                query.extend(["sendInitialEvents", "timeoutSeconds"]);
            }
        }
        let path = target.path.iter().filter_map(|name| match *name {
            "name" => Some(Parameter::Name { kind: self.resource.names.kind.to_owned() }),
            shared => shared::parameter(shared).map(Parameter::Shared),
        });
        let query = query.into_iter().filter_map(shared::parameter).map(Parameter::Shared);
        let mut parameters: Vec<_> = path.chain(query).collect();
        parameters.sort_by(|a, b| a.name().cmp(b.name()));
        parameters
    }
}
