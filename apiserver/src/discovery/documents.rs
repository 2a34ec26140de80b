//! The documents themselves, with their fields in the order in which the original writes them
//! (k8s.io/apimachinery `pkg/apis/meta/v1/types.go`, k8s.io/api `apidiscovery/v2/types.go`).

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::{ServedGroup, ServedVersion};
use crate::{
    endpoint::{ResourceDescription, Verb},
    meta::Scope,
};

/// A document with its kind.
#[derive(Serialize)]
pub(super) struct Document<T> {
    kind: &'static str,
    #[serde(rename = "apiVersion", skip_serializing_if = "str::is_empty")]
    api_version: &'static str,
    #[serde(flatten)]
    content: T,
}

#[derive(Serialize)]
pub(super) struct GroupList<'a> {
    groups: Vec<Group<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Group<'a> {
    name: &'a str,
    versions: Vec<GroupVersion<'a>>,
    preferred_version: GroupVersion<'a>,
    #[serde(rename = "serverAddressByClientCIDRs", skip_serializing_if = "Vec::is_empty")]
    server_addresses: Vec<ServerAddress<'a>>,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupVersion<'a> {
    group_version: String,
    version: &'a str,
}

#[derive(Serialize)]
struct ServerAddress<'a> {
    #[serde(rename = "clientCIDR")]
    client_cidr: &'static str,
    #[serde(rename = "serverAddress")]
    server_address: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceList<'a> {
    group_version: String,
    resources: Vec<Resource<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Resource<'a> {
    name: String,
    singular_name: &'a str,
    namespaced: bool,
    kind: &'a str,
    verbs: Vec<&'static str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    short_names: &'a [&'a str],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    categories: &'a [&'a str],
    #[serde(skip_serializing_if = "Option::is_none")]
    storage_version_hash: Option<String>,
}

#[derive(Serialize)]
pub(super) struct AggregatedList<'a> {
    metadata: Empty,
    items: Vec<AggregatedGroup<'a>>,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
struct AggregatedGroup<'a> {
    metadata: Named<'a>,
    versions: Vec<AggregatedVersion<'a>>,
}

#[derive(Serialize)]
struct Named<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct AggregatedVersion<'a> {
    version: &'a str,
    resources: Vec<AggregatedResource<'a>>,
    freshness: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AggregatedResource<'a> {
    resource: &'a str,
    response_kind: ResponseKind<'a>,
    scope: &'static str,
    singular_resource: &'a str,
    verbs: Vec<&'static str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    short_names: &'a [&'a str],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    categories: &'a [&'a str],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subresources: Vec<AggregatedSubresource<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AggregatedSubresource<'a> {
    subresource: &'a str,
    response_kind: ResponseKind<'a>,
    verbs: Vec<&'static str>,
}

/// Group and version are empty unless they are other than those of the list.
#[derive(Serialize)]
struct ResponseKind<'a> {
    group: &'static str,
    version: &'static str,
    kind: &'a str,
}

/// `/apis`. It has no `apiVersion`, as in Kubernetes 1.1 (k8s.io/apiserver `pkg/endpoints/discovery/root.go`).
pub(super) fn group_list<'a>(served: &'a [ServedGroup<'a>], server_address: &'a str) -> Document<GroupList<'a>> {
    let groups = groups(served).map(|group| Group {
        server_addresses: vec![ServerAddress { client_cidr: "0.0.0.0/0", server_address }],
        ..group
    });
    Document::new("APIGroupList", "", GroupList { groups: groups.collect() })
}

/// `/apis/<group>` of each group.
pub(super) fn groups<'a>(served: &'a [ServedGroup<'a>]) -> impl Iterator<Item = Group<'a>> {
    served.iter().filter_map(|group| {
        let versions: Vec<_> = group
            .versions
            .iter()
            .map(|v| GroupVersion { group_version: format!("{}/{}", group.name, v.name), version: v.name })
            .collect();
        let preferred_version = versions.first()?.clone();
        Some(Group { name: group.name, versions, preferred_version, server_addresses: Vec::new() })
    })
}

/// `/apis/<group>/<version>`.
pub(super) fn resource_list<'a>(group: &str, version: &ServedVersion<'a>) -> ResourceList<'a> {
    let mut resources = Vec::new();
    for resource in &version.resources {
        let names = &resource.names;
        resources.push(Resource {
            name: names.plural.to_owned(),
            singular_name: names.singular,
            namespaced: names.scope == Scope::Namespaced,
            kind: names.kind,
            verbs: verbs(&resource.verbs),
            short_names: names.short_names,
            categories: names.categories,
            storage_version_hash: storage_version_hash(resource),
        });
        for subresource in &resource.subresources {
            resources.push(Resource {
                name: format!("{}/{}", names.plural, subresource.name),
                singular_name: "",
                namespaced: names.scope == Scope::Namespaced,
                kind: &subresource.kind,
                verbs: verbs(&subresource.verbs),
                short_names: &[],
                categories: &[],
                storage_version_hash: None,
            });
        }
    }
    resources.sort_by(|a, b| a.name.cmp(&b.name));
    ResourceList { group_version: format!("{group}/{}", version.name), resources }
}

/// What aggregated discovery says, without kind and version.
pub(super) fn aggregated<'a>(served: &'a [ServedGroup<'a>]) -> AggregatedList<'a> {
    let mut items: Vec<_> = served
        .iter()
        .map(|group| AggregatedGroup {
            metadata: Named { name: group.name },
            versions: group
                .versions
                .iter()
                .map(|version| AggregatedVersion {
                    version: version.name,
                    resources: version.resources.iter().map(|r| aggregated_resource(r)).collect(),
                    freshness: "Current",
                })
                .collect(),
        })
        .collect();
    // All groups of a server have one priority here, and names break ties.
    items.sort_by_key(|group| group.metadata.name);
    AggregatedList { metadata: Empty {}, items }
}

fn aggregated_resource(resource: &ResourceDescription) -> AggregatedResource<'_> {
    let names = &resource.names;
    let mut subresources: Vec<_> = resource
        .subresources
        .iter()
        .map(|s| AggregatedSubresource {
            subresource: &s.name,
            response_kind: ResponseKind::of(&s.kind),
            verbs: verbs(&s.verbs),
        })
        .collect();
    subresources.sort_by_key(|s| s.subresource);
    AggregatedResource {
        resource: names.plural,
        response_kind: ResponseKind::of(names.kind),
        scope: match names.scope {
            Scope::Namespaced => "Namespaced",
            Scope::Cluster => "Cluster",
        },
        singular_resource: names.singular,
        verbs: verbs(&resource.verbs),
        short_names: names.short_names,
        categories: names.categories,
        subresources,
    }
}

/// Sorted by their names.
fn verbs(verbs: &[Verb]) -> Vec<&'static str> {
    let mut names: Vec<_> = verbs.iter().map(|v| v.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Tells clients when the stored version has changed (k8s.io/apiserver `pkg/endpoints/discovery/storageversionhash.go`).
/// A resource that is not stored has none.
fn storage_version_hash(resource: &ResourceDescription) -> Option<String> {
    if resource.storage_version.is_empty() {
        return None;
    }
    let kind = format!("{}/{}/{}", resource.group, resource.storage_version, resource.names.kind);
    Sha256::digest(kind).first_chunk::<8>().map(|start| STANDARD.encode(start))
}

// === impl Document ===

impl<T: Serialize> Document<T> {
    pub(super) fn new(kind: &'static str, api_version: &'static str, content: T) -> Self {
        Self { kind, api_version, content }
    }

    pub(super) fn v1(kind: &'static str, content: T) -> Self {
        Self::new(kind, "v1", content)
    }
}

// === impl ResponseKind ===

impl<'a> ResponseKind<'a> {
    fn of(kind: &'a str) -> Self {
        Self { group: "", version: "", kind }
    }
}
