use std::io::Read as _;

use apiserver::storage::Revision;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use crate::api::{Api, FLUNDERS, flunder, names, text, version};

async fn with_many(count: usize) -> Api {
    let api = Api::new().await;
    for i in 0..count {
        let mut sent = flunder(&format!("f{i:03}"));
        sent["metadata"]["labels"] = json!({ "even": (i % 2 == 0).to_string(), "rare": (i % 50 == 49).to_string() });
        api.post(FLUNDERS, &sent).await.is(201);
    }
    api
}

fn token(list: &Value) -> String {
    text(&list["metadata"]["continue"])
}

fn decoded(token: &str) -> Value {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token).unwrap()).unwrap()
}

#[tokio::test]
async fn an_empty_collection_has_a_version_and_no_items() {
    let api = Api::new().await;
    let list = api.get(FLUNDERS).await;
    let body = String::from_utf8(list.body.to_vec()).unwrap();
    let revision = api.storage.current_revision().await.unwrap().0;
    assert_eq!(
        body,
        format!(
            "{{\"kind\":\"FlunderList\",\"apiVersion\":\"wardle.example.com/v1beta1\",\"metadata\":{{\"resourceVersion\":\"{revision}\"}},\"items\":[]}}\n"
        )
    );
    let table = [("accept", "application/json;as=Table;g=meta.k8s.io;v=v1")];
    let table = api.send("GET", FLUNDERS, &table, b"").await.is(200);
    assert_eq!((&table["rows"], &table["columnDefinitions"][0]["name"]), (&json!(null), &json!("Name")));
    let partial = [("accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")];
    let partial = api.send("GET", FLUNDERS, &partial, b"").await.is(200);
    assert_eq!((&partial["items"], &partial["kind"]), (&json!(null), &json!("PartialObjectMetadataList")));
    let one = [("accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")];
    api.send("GET", FLUNDERS, &one, b"").await.fails(406);
}

#[tokio::test]
async fn lists_show_a_namespace_or_all() {
    let api = Api::new().await;
    let made = api.make("b").await;
    api.make("a").await;
    api.post(&FLUNDERS.replace("default", "other"), &flunder("c")).await.is(201);
    let list = api.get(FLUNDERS).await.is(200);
    assert_eq!(names(&list), ["a", "b"]);
    let item = &list["items"][1];
    assert!(item.get("kind").is_none() && item.get("apiVersion").is_none(), "items of typed lists do not repeat it");
    assert_eq!((&item["metadata"], &item["spec"]), (&made["metadata"], &made["spec"]));
    assert_eq!(names(&api.get("/apis/wardle.example.com/v1beta1/flunders").await.is(200)), ["a", "b", "c"]);
    // A namespace that starts alike is another one.
    assert_eq!(names(&api.get(&FLUNDERS.replace("default", "defaul")).await.is(200)), [""; 0]);
}

#[tokio::test]
async fn pages_fit_together_and_show_one_moment() {
    let api = with_many(7).await;
    let first = api.get(&format!("{FLUNDERS}?limit=3")).await.is(200);
    assert_eq!(names(&first), ["f000", "f001", "f002"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 4);
    let start = decoded(&token(&first));
    let revision: u64 = text(&first["metadata"]["resourceVersion"]).parse().unwrap();
    assert_eq!(start, json!({ "v": "meta.k8s.io/v1", "rv": revision, "start": "/f002\u{0}" }));

    api.delete(&format!("{FLUNDERS}/f004"), None).await.is(200);
    api.make("f9").await;
    let second = api.get(&format!("{FLUNDERS}?limit=3&continue={}", token(&first))).await.is(200);
    assert_eq!(names(&second), ["f003", "f004", "f005"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let last = api.get(&format!("{FLUNDERS}?limit=3&continue={}", token(&second))).await.is(200);
    assert_eq!((names(&last), last["metadata"].get("continue")), (vec!["f006".to_owned()], None));
    assert!(last["metadata"].get("remainingItemCount").is_none());

    // Any state will do for a list's beginning only: what goes on goes on in pages.
    let next = format!("{FLUNDERS}?limit=2&resourceVersion=0&continue={}", token(&first));
    let next = api.get(&next).await.is(200);
    assert_eq!(
        (names(&next), next["metadata"]["remainingItemCount"].as_u64()),
        (vec!["f003".into(), "f004".into()], Some(2))
    );

    // Old clients' tokens have no slash.
    let old = URL_SAFE_NO_PAD.encode(json!({ "v": "meta.k8s.io/v1", "rv": revision, "start": "f004" }).to_string());
    assert_eq!(names(&api.get(&format!("{FLUNDERS}?continue={old}")).await.is(200)), ["f004", "f005", "f006"]);
    let exact = api.get(&format!("{FLUNDERS}?limit=7")).await.is(200);
    assert_eq!(exact["metadata"].get("continue"), None, "{}", exact["metadata"]);
}

#[tokio::test]
async fn pages_with_selectors_are_filled() {
    let api = with_many(200).await;
    let page = api.get(&format!("{FLUNDERS}?limit=3&labelSelector=rare%3Dtrue")).await.is(200);
    assert_eq!(names(&page), ["f049", "f099", "f149"]);
    assert!(page["metadata"].get("remainingItemCount").is_none(), "it is not known");
    let page =
        api.get(&format!("{FLUNDERS}?limit=3&labelSelector=rare%3Dtrue&continue={}", token(&page))).await.is(200);
    assert_eq!((names(&page), token(&page)), (vec!["f199".to_owned()], String::new()));
}

#[tokio::test]
async fn selectors_choose() {
    let api = with_many(6).await;
    for (selector, expected) in [
        ("labelSelector=even%3Dtrue", vec!["f000", "f002", "f004"]),
        ("labelSelector=even+in+(false),!missing", vec!["f001", "f003", "f005"]),
        ("fieldSelector=metadata.name%3Df003", vec!["f003"]),
        ("fieldSelector=metadata.name%3Df003&labelSelector=even%3Dtrue", vec![]),
        ("fieldSelector=metadata.name!%3Df003&labelSelector=even%3Dfalse", vec!["f001", "f005"]),
        ("fieldSelector=metadata.namespace%3Ddefault,metadata.name%3Df001", vec!["f001"]),
        ("fieldSelector=metadata.namespace%3Dother", vec![]),
        ("fieldSelector=metadata.name%3Dnothing", vec![]),
    ] {
        let list = api.get(&format!("{FLUNDERS}?{selector}")).await.is(200);
        assert_eq!(names(&list), expected, "{selector}");
        assert!(text(&list["metadata"]["resourceVersion"]).parse::<u64>().unwrap() > 0);
    }
    let all = "/apis/wardle.example.com/v1beta1/flunders?fieldSelector=metadata.namespace%3Ddefault";
    assert_eq!(names(&api.get(all).await.is(200)).len(), 6);
    let (reason, message) = api.get(&format!("{FLUNDERS}?fieldSelector=spec.foo%3D1")).await.fails(400);
    assert_eq!(reason, "BadRequest");
    assert_eq!(message, r#""spec.foo" is not a known field selector: only "metadata.name", "metadata.namespace""#);
    api.get(&format!("{FLUNDERS}?labelSelector=a%3D%3D%3Db")).await.fails(400);
}

#[tokio::test]
async fn resource_versions_are_honoured() {
    let api = Api::new().await;
    let a = version(&api.make("a").await);
    let b = version(&api.make("b").await);
    for (query, expected) in [
        (String::new(), vec!["a", "b"]),
        ("resourceVersion=0".to_owned(), vec!["a", "b"]),
        // A list of any age is not paged.
        ("resourceVersion=0&limit=1".to_owned(), vec!["a", "b"]),
        (format!("resourceVersion={a}"), vec!["a", "b"]),
        (format!("resourceVersion={a}&limit=5"), vec!["a"]),
        (format!("resourceVersion={a}&resourceVersionMatch=Exact"), vec!["a"]),
        (format!("resourceVersion={a}&resourceVersionMatch=NotOlderThan"), vec!["a", "b"]),
        (format!("resourceVersion={a}&resourceVersionMatch=NotOlderThan&limit=1"), vec!["a"]),
        (format!("resourceVersion={a}&resourceVersionMatch=Exact&fieldSelector=metadata.name%3Db"), vec![]),
        (format!("resourceVersion={b}&resourceVersionMatch=Exact&fieldSelector=metadata.name%3Db"), vec!["b"]),
    ] {
        let list = api.get(&format!("{FLUNDERS}?{query}")).await.is(200);
        assert_eq!(names(&list), expected, "{query}");
    }
    let exact = api.get(&format!("{FLUNDERS}?resourceVersion={a}&resourceVersionMatch=Exact")).await.is(200);
    assert_eq!(text(&exact["metadata"]["resourceVersion"]), a.to_string());

    let page = api.get(&format!("{FLUNDERS}?limit=1")).await.is(200);
    for (query, code) in [
        ("resourceVersion=abc".to_owned(), 400),
        ("resourceVersion=0&resourceVersionMatch=Exact".to_owned(), 422),
        ("resourceVersionMatch=Exact".to_owned(), 422),
        ("resourceVersion=1&resourceVersionMatch=Sometimes".to_owned(), 422),
        (format!("continue={}&resourceVersion={a}", token(&page)), 400),
        (format!("continue={}&resourceVersion={a}&resourceVersionMatch=Exact", token(&page)), 422),
        ("continue=nonsense".to_owned(), 400),
        ("limit=many".to_owned(), 400),
        ("sendInitialEvents=true".to_owned(), 422),
    ] {
        let answer = api.get(&format!("{FLUNDERS}?{query}")).await;
        assert_eq!(answer.code.as_u16(), code, "{query}: {}", String::from_utf8_lossy(&answer.body));
    }
    api.get(&format!("{FLUNDERS}?continue={}&resourceVersion=0", token(&page))).await.is(200);
}

#[tokio::test]
async fn what_is_no_longer_kept_is_410_and_goes_on_inconsistently() {
    let api = with_many(4).await;
    let page = api.get(&format!("{FLUNDERS}?limit=2")).await.is(200);
    let revision: u64 = text(&page["metadata"]["resourceVersion"]).parse().unwrap();
    api.make("f9").await;
    let now = api.storage.current_revision().await.unwrap();
    api.storage.compact(now).await.unwrap();

    let (reason, message) =
        api.get(&format!("{FLUNDERS}?resourceVersion={revision}&resourceVersionMatch=Exact")).await.fails(410);
    assert_eq!(
        (reason.as_str(), message.as_str()),
        ("Expired", "The resourceVersion for the provided list is too old.")
    );
    let status = api.get(&format!("{FLUNDERS}?limit=2&continue={}", token(&page))).await.is(410);
    assert_eq!(status["reason"], "Expired");
    let next = text(&status["metadata"]["continue"]);
    assert_eq!(decoded(&next), json!({ "v": "meta.k8s.io/v1", "rv": -1, "start": "/f001\u{0}" }));
    let rest = api.get(&format!("{FLUNDERS}?limit=2&continue={next}")).await.is(200);
    assert_eq!(names(&rest), ["f002", "f003"]);
    assert_eq!(text(&rest["metadata"]["resourceVersion"]), now.0.to_string());
}

#[tokio::test]
async fn long_lists_are_compressed() {
    let api = Api::new().await;
    let mut sent = flunder("");
    sent["metadata"] = json!({ "generateName": "f-", "annotations": { "long": "x".repeat(20_000) } });
    for _ in 0..8 {
        api.post(FLUNDERS, &sent).await.is(201);
    }
    let plain = api.get(FLUNDERS).await;
    assert!(!plain.headers.contains_key("content-encoding"));
    let answer = api.send("GET", FLUNDERS, &[("accept-encoding", "gzip")], b"").await;
    assert_eq!(answer.headers["content-encoding"], "gzip");
    let mut read = Vec::new();
    flate2::read::GzDecoder::new(&answer.body[..]).read_to_end(&mut read).unwrap();
    assert_eq!(read, plain.body);
}

#[tokio::test]
async fn bytes_that_cannot_be_read_fail_the_list_and_the_get() {
    let api = Api::new().await;
    api.make("a").await;
    let key = "/wardle.example.com/flunders/default/b";
    let put = api.storage.put(key, apiserver::storage::Expected::Absent, "nonsense".into(), None);
    put.await.unwrap();
    for uri in [FLUNDERS.to_owned(), format!("{FLUNDERS}/b")] {
        let (reason, message) = api.get(&uri).await.fails(500);
        assert_eq!(reason, "InternalError");
        assert!(message.contains(key), "{message}");
    }
    api.get(&format!("{FLUNDERS}/a")).await.is(200);
    assert_ne!(api.storage.current_revision().await.unwrap(), Revision(0));
}
