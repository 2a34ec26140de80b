use std::str;

use http::{Request, header::CONTENT_TYPE};
use http_body_util::BodyExt as _;

use super::*;
use crate::{
    endpoint::{SubresourceDescription, Verb, VersionDescription},
    meta::{ResourceNames, Scope},
};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

fn resource(names: ResourceNames, group: &str, versions: &[&str], storage_version: &str) -> ResourceDescription {
    ResourceDescription {
        group: group.to_owned(),
        list_kind: format!("{}List", names.kind),
        names,
        verbs: Verb::STORED.to_vec(),
        versions: versions
            .iter()
            .map(|name| VersionDescription { name: (*name).to_owned(), schema: schemars::Schema::default() })
            .collect(),
        storage_version: storage_version.to_owned(),
        subresources: Vec::new(),
    }
}

fn names(plural: &'static str, singular: &'static str, kind: &'static str, scope: Scope) -> ResourceNames {
    ResourceNames { plural, singular, kind, short_names: &[], categories: &[], scope }
}

/// The resources of k8s.io/sample-apiserver.
fn wardle() -> Discovery {
    let group = "wardle.example.com";
    let flunders = names("flunders", "flunder", "Flunder", Scope::Namespaced);
    let flunders = resource(flunders, group, &["v1beta1", "v1alpha1"], "v1alpha1");
    let fischers = resource(names("fischers", "fischer", "Fischer", Scope::Cluster), group, &["v1alpha1"], "v1alpha1");
    let versions = ["v1beta1", "v1alpha1", "v1"].map(str::to_owned);
    let served = ServedGroup::new(group, &versions, vec![&flunders, &fischers]).unwrap();
    Discovery::of(&[served], ":33444").unwrap()
}

async fn get(discovery: &Discovery, path: &str, headers: &[(&str, &str)]) -> (Response<()>, String) {
    let mut request = Request::get(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (parts, ()) = request.body(()).unwrap().into_parts();
    let (head, body) = discovery.respond(&parts).expect(path).into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (Response::from_parts(head, ()), str::from_utf8(&body).unwrap().to_owned())
}

#[tokio::test]
async fn answers_are_those_of_the_original_byte_for_byte() {
    let discovery = wardle();
    let mut lines = include_str!("testdata/wardle.txt").lines();
    let mut compared = 0;
    while let Some(line) = lines.next().and_then(|l| l.strip_prefix("GET ")) {
        let expected = lines.next().unwrap();
        let (path, accept) = match line.strip_suffix(" (aggregated)") {
            Some(path) => (path, AGGREGATED),
            None => (line, "*/*"),
        };
        let (response, body) = get(&discovery, path, &[("accept", accept)]).await;
        assert_eq!(body.strip_suffix('\n').unwrap(), expected, "{line}");
        if accept == AGGREGATED {
            assert_eq!(lines.next(), Some("ETag"));
            assert_eq!(response.headers()[ETAG], lines.next().unwrap());
            assert_eq!(response.headers()[CONTENT_TYPE], AGGREGATED);
            assert_eq!(response.headers()[VARY], "Accept");
            assert_eq!(response.headers()[CACHE_CONTROL], "public");
        }
        compared += 1;
    }
    assert_eq!(compared, 5);
}

#[tokio::test]
async fn the_aggregated_document_is_not_sent_twice() {
    let discovery = wardle();
    let (first, _) = get(&discovery, "/apis", &[("accept", AGGREGATED)]).await;
    let etag = first.headers()[ETAG].to_str().unwrap();
    let (second, body) = get(&discovery, "/apis/", &[("accept", AGGREGATED), ("if-none-match", etag)]).await;
    assert_eq!((second.status(), body.as_str()), (StatusCode::NOT_MODIFIED, ""));
    assert_eq!(second.headers()[ETAG], first.headers()[ETAG]);
    assert_eq!(second.headers()[VARY], "Accept");
    let (other, _) = get(&discovery, "/apis", &[("accept", AGGREGATED), ("if-none-match", "\"x\"")]).await;
    assert_eq!(other.status(), StatusCode::OK);
}

#[tokio::test]
async fn the_form_follows_from_accept() {
    let discovery = wardle();
    let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let yaml = "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let no_peer = format!("{AGGREGATED};profile=nopeer,{AGGREGATED},application/json");
    for (path, accept, status, content_type, start) in [
        ("/apis", no_peer.as_str(), 200, AGGREGATED, "{\"kind\":\"APIGroupDiscoveryList\""),
        ("/apis", yaml, 200, yaml, "apiVersion: apidiscovery.k8s.io/v2\n"),
        (
            "/apis",
            &format!("{beta},application/json"),
            200,
            "application/json",
            "{\"kind\":\"APIGroupList\",\"groups\"",
        ),
        ("/apis", &format!("application/json,{AGGREGATED}"), 200, "application/json", "{\"kind\":\"APIGroupList\""),
        ("/apis", beta, 406, "application/json", "\"kind\":\"Status\""),
        ("/apis", table, 406, "application/json", "\"kind\":\"Status\""),
        ("/apis", &format!("{table},application/json"), 200, "application/json", "{\"kind\":\"APIGroupList\""),
        ("/apis", "application/vnd.kubernetes.protobuf", 406, "application/json", "\"kind\":\"Status\""),
        ("/apis/wardle.example.com", AGGREGATED, 406, "application/json", "\"kind\":\"Status\""),
        ("/apis/wardle.example.com/v1beta1/", "application/yaml", 200, "application/yaml", "apiVersion: v1\n"),
    ] {
        let (response, body) = get(&discovery, path, &[("accept", accept)]).await;
        assert_eq!(response.status().as_u16(), status, "{path} as {accept}");
        assert_eq!(response.headers()[CONTENT_TYPE], content_type, "{path} as {accept}");
        assert!(body.contains(start), "{path} as {accept}: {body}");
    }
    let (_, body) = get(&discovery, "/apis", &[("user-agent", "curl/8")]).await;
    assert!(body.starts_with("{\n  \"kind\": \"APIGroupList\",\n"), "{body}");
}

#[tokio::test]
async fn nothing_but_get_is_allowed_and_other_paths_are_not_ours() {
    let discovery = wardle();
    let respond = |method: &str, path: &str| {
        let (parts, ()) = Request::builder().method(method).uri(path).body(()).unwrap().into_parts();
        discovery.respond(&parts)
    };
    let response = respond("POST", "/apis").unwrap();
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(str::from_utf8(&body).unwrap().contains("the server does not allow this method on the requested resource"));
    assert_eq!(respond("HEAD", "/apis/wardle.example.com").unwrap().status(), StatusCode::METHOD_NOT_ALLOWED);

    // A version that has no resources is not served.
    for path in ["/", "/api", "/apis/other", "/apis/wardle.example.com/v1", "/apis/wardle.example.com/v1beta1/flunders"]
    {
        assert!(respond("GET", path).is_none(), "{path}");
    }
    let paths: Vec<_> = discovery.paths().collect();
    let expected = ["", "/wardle.example.com", "/wardle.example.com/v1alpha1", "/wardle.example.com/v1beta1"];
    assert_eq!(paths, expected.map(|p| format!("/apis{p}")));
}

#[test]
fn subresources_names_and_hashes_are_told() {
    let names = ResourceNames {
        short_names: &["gd"],
        categories: &["all", "tools"],
        ..names("gadgets", "gadget", "Gadget", Scope::Namespaced)
    };
    let mut gadgets = resource(names, "example.com", &["v1"], "v1");
    gadgets.verbs = vec![Verb::Watch, Verb::Get, Verb::List];
    gadgets.subresources = vec![
        SubresourceDescription { name: "status".into(), kind: "Gadget".into(), verbs: vec![Verb::Update, Verb::Get] },
        SubresourceDescription { name: "order".into(), kind: "GadgetOrder".into(), verbs: vec![Verb::Create] },
    ];
    let mut reviews = resource(
        super::tests::names("gadget-reviews", "gadget-review", "GadgetReview", Scope::Cluster),
        "example.com",
        &["v1"],
        "",
    );
    reviews.verbs = vec![Verb::Create];
    let versions = ["v1".to_owned()];
    let served = ServedGroup::new("example.com", &versions, vec![&gadgets, &reviews]).unwrap();
    let discovery = Discovery::of(&[served], "").unwrap();
    let list: serde_json::Value = serde_json::from_slice(&discovery.documents["/apis/example.com/v1"]).unwrap();
    insta::assert_yaml_snapshot!(list);
    let aggregated: serde_json::Value = serde_json::from_slice(&discovery.aggregated.json).unwrap();
    insta::assert_yaml_snapshot!(aggregated);
}
