use http::{HeaderMap, HeaderValue, header};

use super::{InputFormat, MediaType, MetaVersion, OutputFormat, PatchType, Transform};

fn headers(name: header::HeaderName, value: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
}

fn accept(value: &'static str) -> Option<OutputFormat> {
    OutputFormat::negotiate(&headers(header::ACCEPT, value), None).ok()
}

#[test]
fn without_a_wish_it_is_json() {
    assert_eq!(OutputFormat::negotiate(&HeaderMap::new(), None).unwrap(), OutputFormat::default());
    assert_eq!(accept("*/*").unwrap().media, MediaType::Json);
    assert_eq!(accept("*").unwrap().media, MediaType::Json);
}

#[test]
fn the_first_supported_clause_wins() {
    assert_eq!(accept("application/yaml, application/json").unwrap().media, MediaType::Yaml);
    assert_eq!(accept("application/json;q=0.5, application/yaml").unwrap().media, MediaType::Yaml);
    assert_eq!(accept("*/*, application/yaml").unwrap().media, MediaType::Yaml);
    assert_eq!(accept("application/vnd.kubernetes.protobuf,application/json").unwrap().media, MediaType::Json);
    assert_eq!(accept("application/vnd.unknown, application/json").unwrap().media, MediaType::Json);
}

#[test]
fn what_is_not_served_is_406() {
    // The texts are those of the original's router and of its negotiation.
    let unknown = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml";
    let unsuitable = "only the following media types are accepted: application/json, application/yaml";
    for (header, message) in [
        ("application/vnd.kubernetes.protobuf", unknown),
        ("text/html", unknown),
        ("application/*", unknown),
        ("application", unknown),
        ("a/b/c", unknown),
        ("text/html, application/json;as=Other;v=v1;g=meta.k8s.io", unsuitable),
        ("*/*;stream=other", unsuitable),
    ] {
        let status = OutputFormat::negotiate(&headers(header::ACCEPT, header), None).unwrap_err();
        assert_eq!((status.code().as_u16(), status.message()), (406, message), "{header}");
        assert_eq!(status.reason(), "NotAcceptable", "{header}");
    }
}

#[test]
fn kubectl_gets_a_table() {
    let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
    assert_eq!(accept(kubectl).unwrap().transform, Transform::Table { version: MetaVersion::V1 });
    assert_eq!(
        accept("application/json;as=Table;v=v1beta1;g=meta.k8s.io, application/json").unwrap().transform,
        Transform::Table { version: MetaVersion::V1Beta1 }
    );
    assert_eq!(
        accept("application/json;as=Table;v=v2;g=meta.k8s.io, application/json").unwrap().transform,
        Transform::None
    );
    assert!(accept("application/json;as=Table").is_none());
    assert!(accept("application/json;as=Other;v=v1;g=meta.k8s.io").is_none());
}

#[test]
fn the_garbage_collector_gets_metadata() {
    let collector = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
    assert_eq!(accept(collector).unwrap().transform, Transform::PartialObjectMetadataList { version: MetaVersion::V1 });
}

#[test]
fn a_watch_is_a_stream_of_json() {
    let stream = |value| OutputFormat::negotiate_stream(&headers(header::ACCEPT, value), None);
    assert!(stream("application/json;stream=watch").is_ok());
    assert!(stream("application/json").is_ok());
    let status = stream("application/yaml").unwrap_err();
    assert_eq!(status.message(), "only the following media types are accepted: application/json;stream=watch");
    assert!(stream("application/json;stream=other").is_err());
    let status = stream("text/html").unwrap_err();
    assert!(status.message().starts_with("406: Not Acceptable\n\n"), "{status}");
}

#[test]
fn people_get_it_laid_out() {
    assert!(OutputFormat::negotiate(&headers(header::USER_AGENT, "curl/8"), None).unwrap().pretty);
    assert!(!OutputFormat::negotiate(&headers(header::USER_AGENT, "curl/8"), Some("pretty=0")).unwrap().pretty);
    assert!(!OutputFormat::negotiate(&headers(header::USER_AGENT, "curl/8"), Some("pretty=x")).unwrap().pretty);
    assert!(OutputFormat::negotiate(&HeaderMap::new(), Some("a=b&pretty=true")).unwrap().pretty);
    assert!(accept("application/json;pretty=1").unwrap().pretty);
    assert!(!OutputFormat::negotiate(&HeaderMap::new(), None).unwrap().pretty);
}

#[test]
fn errors_are_not_transformed() {
    let format =
        OutputFormat::for_error(&headers(header::ACCEPT, "application/yaml;as=Table;v=v1;g=meta.k8s.io"), None);
    assert_eq!((format.media, format.transform), (MediaType::Yaml, Transform::None));
    assert_eq!(OutputFormat::for_error(&headers(header::ACCEPT, "text/html"), None).media, MediaType::Json);
}

#[test]
fn bodies_are_json_or_yaml() {
    let input = |value| InputFormat::negotiate(&headers(header::CONTENT_TYPE, value));
    assert_eq!(InputFormat::negotiate(&HeaderMap::new()).unwrap(), InputFormat::Json);
    assert_eq!(input("Application/JSON; charset=utf-8").unwrap(), InputFormat::Json);
    assert_eq!(input("application/yaml").unwrap(), InputFormat::Yaml);
    let status = input("text/plain").unwrap_err();
    assert_eq!(status.code(), 415);
    assert_eq!(
        status.message(),
        "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml"
    );
}

#[test]
fn other_patches_are_415_on_which_clients_fall_back() {
    let patch = |value| PatchType::negotiate(&headers(header::CONTENT_TYPE, value));
    assert_eq!(patch("application/json-patch+json").unwrap(), PatchType::Json);
    assert_eq!(patch("application/merge-patch+json; charset=utf-8").unwrap(), PatchType::Merge);
    for other in ["application/strategic-merge-patch+json", "application/apply-patch+yaml", "application/json", ""] {
        let status = patch(other).unwrap_err();
        assert_eq!((status.code().as_u16(), status.message()), (415, "415: Unsupported Media Type"), "{other}");
    }
    assert!(PatchType::negotiate(&HeaderMap::new()).is_err());
}
