use super::*;

/// Method, URL, then verb, group, version, namespace, resource, subresource, name.
fn check(method: Method, url: &str, expected: [&str; 7]) {
    let info = RequestInfo::parse(&method, &url.parse().unwrap()).unwrap();
    let RequestInfo { verb, group, version, namespace, resource, subresource, name, .. } = &info;
    let found = [verb, group, version, namespace, resource, subresource, name].map(String::as_str);
    assert_eq!(found, expected, "{method} {url}");
    assert!(info.is_resource, "{method} {url}");
}

#[test]
fn resources_are_found_as_go_finds_them() {
    // The rows of TestGetAPIRequestInfo in requestinfo_test.go that name groups, and some of the core group's.
    let g = ["create", "g", "v", "other", "pods", "", ""];
    check(Method::POST, "/apis/g/v/namespaces/other/pods", g);
    check(Method::GET, "/api/v1/namespaces", ["list", "", "v1", "", "namespaces", "", ""]);
    check(Method::GET, "/api/v1/namespaces/other", ["get", "", "v1", "other", "namespaces", "", "other"]);
    check(
        Method::PUT,
        "/api/v1/namespaces/other/finalize",
        ["update", "", "v1", "other", "namespaces", "finalize", "other"],
    );
    check(
        Method::GET,
        "/api/v1/namespaces/other/status/x",
        ["get", "", "v1", "other", "namespaces", "status", "other"],
    );
    check(Method::GET, "/apis/g/v/pods", ["list", "g", "v", "", "pods", "", ""]);
    check(Method::HEAD, "/apis/g/v/pods", ["list", "g", "v", "", "pods", "", ""]);
    check(Method::GET, "/apis/g/v/namespaces/other/pods/foo", ["get", "g", "v", "other", "pods", "", "foo"]);
    check(
        Method::PATCH,
        "/apis/g/v/namespaces/other/pods/foo/status",
        ["patch", "g", "v", "other", "pods", "status", "foo"],
    );
    check(Method::DELETE, "/apis/g/v/pods/foo", ["delete", "g", "v", "", "pods", "", "foo"]);
    check(Method::DELETE, "/apis/g/v/pods", ["deletecollection", "g", "v", "", "pods", "", ""]);
    check(Method::GET, "/apis/g/v/watch/pods", ["watch", "g", "v", "", "pods", "", ""]);
    check(Method::GET, "/apis/g/v/watch/namespaces/other/pods/x", ["watch", "g", "v", "other", "pods", "", "x"]);
    check(Method::GET, "/apis/g/v/proxy/namespaces/other/pods/x/y", ["proxy", "g", "v", "other", "pods", "", "x"]);
    check(Method::OPTIONS, "/apis/g/v/pods", ["", "g", "v", "", "pods", "", ""]);
}

#[test]
fn watch_is_a_matter_of_the_query() {
    for (query, verb) in [
        ("", "list"),
        ("?watch", "watch"),
        ("?watch=1", "watch"),
        ("?watch=False", "list"),
        ("?watch=0", "list"),
        ("?watch=true&watch=0", "watch"),
        ("?w%61tch=yes", "watch"),
    ] {
        check(Method::GET, &format!("/apis/g/v/pods{query}"), [verb, "g", "v", "", "pods", "", ""]);
    }
    check(Method::GET, "/apis/g/v/pods/x?watch=1", ["get", "g", "v", "", "pods", "", "x"]);
}

#[test]
fn a_field_selector_for_one_name_names_it() {
    let name = |selector: &str| {
        let url = format!("/apis/g/v/pods?fieldSelector={selector}&labelSelector=a%3Db");
        let info = RequestInfo::parse(&Method::GET, &url.parse().unwrap()).unwrap();
        assert_eq!((info.verb.as_str(), info.label_selector.as_str()), ("list", "a=b"));
        info.name
    };
    assert_eq!(name("metadata.name%3Dfoo"), "foo");
    assert_eq!(name("metadata.namespace%3D%3Dx,metadata.name%3D%3Dfoo"), "foo");
    assert_eq!(name("metadata.name!%3Dfoo"), "");
    assert_eq!(name("metadata.name%3Dfoo%2Fbar"), "");
    assert_eq!(name("metadata.name%3D.."), "");
}

#[test]
fn other_paths_name_no_resource() {
    for path in [
        "/",
        "/apis",
        "/apis/g",
        "/apis/g/v",
        "/apis/g/v/",
        "/api/v1",
        "/healthz",
        "/openapi/v3/apis/g/v",
        "/apisx/g/v/pods",
    ] {
        let info = RequestInfo::parse(&Method::GET, &path.parse().unwrap()).unwrap();
        assert_eq!((info.is_resource, info.verb.as_str(), info.path.as_str()), (false, "get", path));
    }
}

#[test]
fn tricks_with_the_path_show_in_what_is_authorised() {
    // An encoded slash counts as a slash, as in Go: what is authorised is the resource that is served.
    check(Method::GET, "/apis/g/v/namespaces/a%2Fpods", ["list", "g", "v", "a", "pods", "", ""]);
    check(Method::GET, "/apis/g/v/namespaces/%2e%2e/pods", ["list", "g", "v", "..", "pods", "", ""]);
    check(Method::GET, "//apis/g/v/pods/", ["list", "g", "v", "", "pods", "", ""]);
    check(Method::GET, "/apis/g/v/namespaces//pods", ["list", "g", "v", "", "pods", "", ""]);
    // Decoded once, not twice.
    check(Method::GET, "/apis/g/v/pods/a%252Fb", ["get", "g", "v", "", "pods", "", "a%2Fb"]);
    let parse = |path: &str| RequestInfo::parse(&Method::GET, &path.parse().unwrap());
    assert_eq!(parse("/apis/g/v/pods/%zz"), Err(InfoError::Escape));
    assert_eq!(parse("/apis/g/v/pods/%a"), Err(InfoError::Escape));
    assert_eq!(parse("/apis/g/v/pods/%ff"), Err(InfoError::Utf8));
    assert!(matches!(parse("/apis/g/v/watch"), Err(InfoError::NothingAfterVerb(_))));
}

#[test]
fn what_lies_below_a_subresource_is_kept() {
    let info = RequestInfo::parse(&Method::GET, &"/apis/g/v/pods/x/log/a/b".parse().unwrap()).unwrap();
    assert_eq!((info.subresource.as_str(), info.below_subresource.as_str()), ("log", "a/b"));
    assert!(info.is_long_running());
}
