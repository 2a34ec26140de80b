//! Where a request goes. Resources are found by what [`RequestInfo`] says, which is also what was authorised.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use http::{Method, Response, request::Parts};

use super::{
    health::HealthChecks,
    metrics::{self, Target},
};
use crate::{
    endpoint::{ApiGroup, Endpoint, ResponseBody, Verb},
    meta::Scope,
    request::RequestInfo,
};

/// Answers a path that names no resource: discovery, OpenAPI, or something of the author's own.
#[async_trait]
pub trait PathHandler: Send + Sync + 'static {
    /// Answers one request of any method, which has been authorised. Bodies are not read here. `None` is 404.
    async fn serve(&self, request: &Parts) -> Option<Response<ResponseBody>>;
}

/// All paths of a server.
#[derive(Default)]
pub struct Router {
    groups: HashMap<String, Group>,
    exact: BTreeMap<String, Arc<dyn PathHandler>>,
    prefixes: BTreeMap<String, Arc<dyn PathHandler>>,
    pub(super) health: Vec<(&'static str, HealthChecks)>,
    paths: BTreeSet<String>,
    none: Interned,
}

struct Group {
    versions: Vec<Arc<str>>,
    resources: HashMap<&'static str, Resource>,
    name: Arc<str>,
}

struct Resource {
    endpoint: Arc<dyn Endpoint>,
    name: Arc<str>,
    subresources: Vec<Arc<str>>,
}

struct Interned(Arc<str>);

/// A way to answer.
pub(super) enum Route<'a> {
    Endpoint(&'a Arc<dyn Endpoint>),
    Path(&'a Arc<dyn PathHandler>),
    Health(&'a HealthChecks, Option<String>),
    Version,
    Metrics,
    Index,
    /// A 404 that is a status: below a group that exists.
    NoSuchResource,
    /// A 405.
    NotAllowed,
    /// A 404 that lists what there is.
    NoSuchPath,
}

/// Two groups of the same name, or two resources.
#[derive(Debug, thiserror::Error)]
#[error("{0} is installed twice")]
pub struct InstalledTwice(String);

// === impl Router ===

impl Router {
    /// Adds a group.
    ///
    /// # Errors
    /// When it, or one of its resources, is there already.
    pub(super) fn install(&mut self, group: &ApiGroup) -> Result<(), InstalledTwice> {
        if self.groups.contains_key(&group.name) {
            return Err(InstalledTwice(format!("the group {}", group.name)));
        }
        let mut resources = HashMap::new();
        for endpoint in &group.endpoints {
            let description = endpoint.description();
            let name = description.names.plural;
            let subresources = description.subresources.iter().map(|s| Arc::from(s.name.as_str())).collect();
            let resource = Resource { endpoint: endpoint.clone(), name: name.into(), subresources };
            if resources.insert(name, resource).is_some() {
                return Err(InstalledTwice(format!("the resource {name}.{}", group.name)));
            }
        }
        let versions = group.versions.iter().map(|version| Arc::from(version.as_str())).collect();
        self.groups.insert(group.name.clone(), Group { versions, resources, name: group.name.as_str().into() });
        Ok(())
    }

    /// Answers this path; one that ends in `/` stands for everything below too.
    pub(super) fn handle(&mut self, path: &str, handler: Arc<dyn PathHandler>) {
        self.paths.insert(path.to_owned());
        let map = if path.ends_with('/') { &mut self.prefixes } else { &mut self.exact };
        map.insert(path.to_owned(), handler);
    }

    /// Adds `/<name>` and the checks below it.
    pub(super) fn health(&mut self, name: &'static str, checks: HealthChecks) {
        self.paths.extend(checks.paths());
        self.health.push((name, checks));
    }

    /// The paths that the index lists.
    pub(super) fn paths(&self) -> Vec<&str> {
        let own = ["/metrics", "/version"];
        let mut paths: Vec<&str> = self.paths.iter().map(String::as_str).chain(own).collect();
        paths.sort_unstable();
        paths.dedup();
        paths
    }

    /// Finds the way to answer, and what metrics call it.
    pub(super) fn route(&self, method: &Method, info: &RequestInfo) -> (Route<'_>, Target) {
        if info.is_resource { self.resource(method, info) } else { self.path(method, info) }
    }

    fn path(&self, method: &Method, info: &RequestInfo) -> (Route<'_>, Target) {
        let path = info.path.as_str();
        let named = |name: &str| Target::other(info, &Arc::from(name));
        match path {
            "/" | "/index.html" => return (Route::Index, named("/")),
            "/metrics" => return (Route::Metrics, named("/metrics")),
            "/version" | "/version/" => {
                let route = if *method == Method::GET { Route::Version } else { Route::NotAllowed };
                return (route, named("/version"));
            }
            _ => {}
        }
        for (name, checks) in &self.health {
            match path.strip_prefix('/').and_then(|rest| rest.strip_prefix(name)) {
                Some("") => return (Route::Health(checks, None), named(&format!("/{name}"))),
                Some(rest) if rest.starts_with('/') => {
                    let check = rest.trim_start_matches('/').to_owned();
                    return (Route::Health(checks, Some(check)), named(&format!("/{name}/*")));
                }
                _ => {}
            }
        }
        let trimmed = path.strip_suffix('/').unwrap_or(path);
        if let Some((name, handler)) = self.exact.get_key_value(path).or_else(|| self.exact.get_key_value(trimmed)) {
            return (Route::Path(handler), named(name));
        }
        // The longest prefix is the last that is not greater than the path and fits.
        let below = self.prefixes.range(..=path.to_owned()).rev().find(|(prefix, _)| path.starts_with(prefix.as_str()));
        if let Some((prefix, handler)) = below {
            return (Route::Path(handler), named(prefix));
        }
        let of_group = path.strip_prefix("/apis/").and_then(|rest| rest.split('/').next());
        if of_group.is_some_and(|group| self.groups.contains_key(group)) {
            return (Route::NoSuchResource, Target::other(info, &self.none.0));
        }
        (Route::NoSuchPath, Target::other(info, &self.none.0))
    }

    fn resource(&self, method: &Method, info: &RequestInfo) -> (Route<'_>, Target) {
        let nothing = |route| (route, Target::other(info, &self.none.0));
        // One slash before, none twice inside: what looks odd has no place, whatever it would mean.
        let regular = info.path.starts_with("/apis/") && !info.path.trim_end_matches('/').contains("//");
        let Some(group) = self.groups.get(&info.group).filter(|_| regular) else { return nothing(Route::NoSuchPath) };
        let Some(version) = group.versions.iter().find(|v| ***v == *info.version) else {
            return nothing(Route::NoSuchResource);
        };
        let Some(resource) = group.resources.get(info.resource.as_str()) else {
            return nothing(Route::NoSuchResource);
        };
        let subresource = match info.subresource.as_str() {
            "" => Some(&self.none.0),
            name => resource.subresources.iter().find(|s| &***s == name),
        };
        let target = Target {
            verb: metrics::verb(info),
            group: group.name.clone(),
            version: version.clone(),
            resource: resource.name.clone(),
            subresource: subresource.unwrap_or(&self.none.0).clone(),
            scope: metrics::scope(info),
        };
        (resource.route(method, info), target)
    }
}

// === impl Resource ===

impl Resource {
    fn route(&self, method: &Method, info: &RequestInfo) -> Route<'_> {
        let description = self.endpoint.description();
        if !description.serves(&info.version) || !info.below_subresource.is_empty() || info.verb == "proxy" {
            return Route::NoSuchResource;
        }
        let collection = matches!(info.verb.as_str(), "list" | "watch" if !info.verb_in_path);
        let names_object = !info.name.is_empty() && !collection;
        match (description.names.scope, info.namespace.is_empty()) {
            (Scope::Cluster, false) => return Route::NoSuchResource,
            (Scope::Namespaced, true) if names_object => return Route::NoSuchResource,
            // Across all namespaces there is only reading.
            (Scope::Namespaced, true) if !matches!(info.verb.as_str(), "list" | "watch") => return Route::NotAllowed,
            _ => {}
        }
        let verbs: &[Verb] = if info.subresource.is_empty() {
            &description.verbs
        } else {
            match description.subresources.iter().find(|s| s.name == info.subresource) {
                Some(subresource) if names_object => &subresource.verbs,
                _ => return Route::NoSuchResource,
            }
        };
        let expected = match info.verb.as_str() {
            "get" | "list" | "watch" => Method::GET,
            "create" => Method::POST,
            "update" => Method::PUT,
            "patch" => Method::PATCH,
            "delete" | "deletecollection" => Method::DELETE,
            _ => return Route::NotAllowed,
        };
        // HEAD counts as a read for authorisation, but is not served.
        let known = *method == expected && verbs.iter().any(|verb| verb.as_str() == info.verb);
        let placed = match info.verb.as_str() {
            "create" => names_object != info.subresource.is_empty(),
            "update" | "patch" => names_object,
            _ => true,
        };
        if known && placed { Route::Endpoint(&self.endpoint) } else { Route::NotAllowed }
    }
}

// === impl Interned ===

impl Default for Interned {
    fn default() -> Self {
        Self(Arc::from(""))
    }
}
