//! How the documents are served.

use std::io::Read as _;

use flate2::read::GzDecoder;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::Value;

use super::{super::OpenApi, values};

const V3: &str = "/openapi/v3/apis/gadgets.example.com/v1beta1";
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

fn openapi() -> OpenApi {
    OpenApi::from_values(&values()).unwrap()
}

async fn get(openapi: &OpenApi, uri: &str, headers: &[(&str, &str)]) -> (StatusCode, HeaderMap, Vec<u8>) {
    let mut request = Request::get(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (parts, ()) = request.body(()).unwrap().into_parts();
    let response: Response<_> = openapi.respond(&parts).expect(uri);
    let (head, body) = response.into_parts();
    (head.status, head.headers, body.collect().await.unwrap().to_bytes().to_vec())
}

#[tokio::test]
async fn the_root_leads_to_all_documents() {
    let openapi = openapi();
    let (status, headers, body) = get(&openapi, "/openapi/v3", &[]).await;
    assert_eq!((status, &headers[header::CONTENT_TYPE]), (StatusCode::OK, &"application/json".parse().unwrap()));
    let root: Value = serde_json::from_slice(&body).unwrap();
    let paths: Vec<_> = root["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    let group = "apis/gadgets.example.com";
    assert_eq!(paths, ["apis", group, &format!("{group}/v1alpha1"), &format!("{group}/v1beta1"), "version"]);
    for path in paths {
        let url = root["paths"][path]["serverRelativeURL"].as_str().unwrap();
        assert!(url.starts_with(&format!("/openapi/v3/{path}?hash=")), "{url}");
        let (status, headers, body) = get(&openapi, url, &[("accept", "application/json")]).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(headers[header::CACHE_CONTROL], "public, immutable");
        assert!(headers[header::EXPIRES].to_str().unwrap().ends_with(" GMT"));
        let document: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&document["openapi"], &document["info"]["title"]), (&"3.0.0".into(), &"Gadgets".into()));
        let etag = headers[header::ETAG].to_str().unwrap().trim_matches('"');
        assert!(url.ends_with(&format!("={etag}")) && etag.len() == 128, "{etag}");
    }
}

#[tokio::test]
async fn a_wrong_hash_is_led_to_the_right_one() {
    let openapi = openapi();
    let (status, headers, body) = get(&openapi, &format!("{V3}?hash=OLD"), &[]).await;
    assert_eq!((status, body.len()), (StatusCode::MOVED_PERMANENTLY, 0));
    assert!(!headers.contains_key(header::CACHE_CONTROL));
    let location = headers[header::LOCATION].to_str().unwrap();
    assert!(location.starts_with(&format!("{V3}?hash=")));
    let (status, ..) = get(&openapi, location, &[]).await;
    assert_eq!(status, StatusCode::OK);
    // Without a hash the document may change.
    let (status, headers, _) = get(&openapi, V3, &[]).await;
    assert_eq!((status, headers.contains_key(header::CACHE_CONTROL)), (StatusCode::OK, false));
}

#[tokio::test]
async fn documents_are_not_sent_twice() {
    let openapi = openapi();
    for uri in ["/openapi/v2", "/openapi/v3", V3] {
        let (status, first, _) = get(&openapi, uri, &[]).await;
        assert_eq!(status, StatusCode::OK, "{uri}");
        let etag = first[header::ETAG].to_str().unwrap();
        for known in [etag.to_owned(), format!("\"x\", W/{etag}"), "*".to_owned()] {
            let (status, headers, body) = get(&openapi, uri, &[("if-none-match", &known)]).await;
            assert_eq!((status, body.len()), (StatusCode::NOT_MODIFIED, 0), "{uri} {known}");
            assert_eq!(headers[header::ETAG], etag);
        }
        let modified = first[header::LAST_MODIFIED].to_str().unwrap();
        let (status, ..) = get(&openapi, uri, &[("if-modified-since", modified)]).await;
        assert_eq!(status, StatusCode::NOT_MODIFIED, "{uri}");
        for unknown in [("if-none-match", "\"x\""), ("if-modified-since", "Tue, 01 Dec 1970 00:00:00 GMT")] {
            let (status, ..) = get(&openapi, uri, &[unknown]).await;
            assert_eq!(status, StatusCode::OK, "{uri} {unknown:?}");
        }
        let both = [("if-none-match", "\"x\""), ("if-modified-since", modified)];
        assert_eq!(get(&openapi, uri, &both).await.0, StatusCode::OK, "the entity tag counts");
    }
}

#[tokio::test]
async fn documents_are_compressed_for_those_who_accept_it() {
    let openapi = openapi();
    for uri in ["/openapi/v2", V3] {
        let (_, _, plain) = get(&openapi, uri, &[]).await;
        let (_, headers, compressed) = get(&openapi, uri, &[("accept-encoding", "gzip")]).await;
        assert_eq!(headers[header::CONTENT_ENCODING], "gzip");
        let vary: Vec<_> = headers.get_all(header::VARY).iter().collect();
        assert_eq!(vary, ["Accept-Encoding", "Accept"]);
        let mut unpacked = Vec::new();
        GzDecoder::new(&compressed[..]).read_to_end(&mut unpacked).unwrap();
        assert!(unpacked == plain && compressed.len() < plain.len());
    }
}

#[tokio::test]
async fn only_json_is_served() {
    let openapi = openapi();
    for (accept, code) in [
        ("application/json", 200),
        ("*/*", 200),
        ("application/*", 200),
        (&format!("{PROTOBUF},application/json"), 200),
        (PROTOBUF, 406),
        ("text/html", 406),
    ] {
        for uri in ["/openapi/v2", V3] {
            let (status, headers, body) = get(&openapi, uri, &[("accept", accept)]).await;
            assert_eq!(status.as_u16(), code, "{uri} as {accept}");
            assert_eq!(body.is_empty(), code == 406);
            assert!(headers.get_all(header::VARY).iter().any(|v| v == "Accept"));
        }
    }
}

#[test]
fn other_paths_are_not_ours() {
    let openapi = openapi();
    for path in
        ["/openapi", "/openapi/", "/openapi/v2/", "/openapi/v3/", "/openapi/v3/apis/gadgets.example.com/v1", "/x"]
    {
        let (parts, ()) = Request::get(path).body(()).unwrap().into_parts();
        assert!(openapi.respond(&parts).is_none(), "{path}");
    }
}
