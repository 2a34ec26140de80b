use std::io::Read as _;

use apiserver::storage::{Expected, Revision};
use serde_json::{Value, json};

use crate::api::{Api, FLUNDERS, WATCH_LIST, Watching, flunder, text, version};

fn pair(event_type: &str, name: &str) -> (String, String) {
    (event_type.to_owned(), name.to_owned())
}

/// The next event's object, which must be of this type and name.
async fn next_is(watch: &mut Watching, event_type: &str, name: &str) -> Value {
    let event = watch.next().await.expect("the watch ended early");
    assert_eq!((text(&event["type"]), text(&event["object"]["metadata"]["name"])), pair(event_type, name), "{event}");
    event["object"].clone()
}

#[tokio::test]
async fn every_change_is_told_once_and_in_order() {
    let api = Api::new().await;
    let a = api.make("a").await;
    let mut watch = api.watch(&format!("{FLUNDERS}?watch=true&resourceVersion={}", version(&a))).await;
    assert_eq!(watch.headers["content-type"], "application/json");
    let b = api.make("b").await;
    let changed = api.merge(&format!("{FLUNDERS}/a"), &json!({ "spec": { "size": 5 } })).await.is(200);
    api.delete(&format!("{FLUNDERS}/b"), None).await.is(200);
    api.post(&FLUNDERS.replace("default", "other"), &flunder("elsewhere")).await.is(201);
    api.make("c").await;

    assert_eq!(next_is(&mut watch, "ADDED", "b").await, b);
    assert_eq!(next_is(&mut watch, "MODIFIED", "a").await, changed);
    let deleted = next_is(&mut watch, "DELETED", "b").await;
    assert_eq!(deleted["spec"], b["spec"]);
    assert_eq!(version(&deleted), version(&changed) + 1, "it carries the revision of the deletion");
    next_is(&mut watch, "ADDED", "c").await;
}

#[tokio::test]
async fn a_watch_of_old_begins_with_what_is_there() {
    let api = Api::new().await;
    api.make("b").await;
    api.make("a").await;
    for query in ["watch=1", "watch=1&resourceVersion=0", "watch=1&resourceVersion="] {
        let mut watch = api.watch(&format!("{FLUNDERS}?{query}")).await;
        assert_eq!(watch.take(2).await, [pair("ADDED", "a"), pair("ADDED", "b")], "{query}");
        api.merge(
            &format!("{FLUNDERS}/a"),
            &json!({ "metadata": { "labels": { "q": query.replace(['&', '='], "-") + "z" } } }),
        )
        .await
        .is(200);
        assert_eq!(watch.take(1).await, [pair("MODIFIED", "a")], "{query}");
    }
}

#[tokio::test]
async fn a_watch_list_ends_its_beginning_with_a_bookmark() {
    let api = Api::new().await;
    for count in [0, 2] {
        if count > 0 {
            api.make("a").await;
            api.make("b").await;
        }
        let revision = api.storage.current_revision().await.unwrap();
        for version in [String::new(), "&resourceVersion=0".to_owned(), format!("&resourceVersion={}", revision.0)] {
            let mut watch = api.watch(&format!("{WATCH_LIST}{version}")).await;
            watch.take(count).await;
            let end = watch.next().await.unwrap();
            assert_eq!(
                end,
                json!({ "type": "BOOKMARK", "object": {
                    "kind": "Flunder", "apiVersion": "wardle.example.com/v1beta1",
                    "metadata": {
                        "resourceVersion": revision.0.to_string(),
                        "annotations": { "k8s.io/initial-events-end": "true" },
                    },
                } }),
                "{count} {version}"
            );
        }
    }
    let mut watch = api.watch(WATCH_LIST).await;
    watch.take(3).await;
    api.delete(&format!("{FLUNDERS}/a"), None).await.is(200);
    next_is(&mut watch, "DELETED", "a").await;
}

#[tokio::test]
async fn without_initial_events_a_watch_begins_now() {
    let api = Api::new().await;
    api.make("a").await;
    for version in ["", "&resourceVersion=0"] {
        let uri = format!("{FLUNDERS}?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan{version}");
        let mut watch = api.watch(&uri).await;
        api.make("b").await;
        assert_eq!(watch.take(1).await, [pair("ADDED", "b")]);
        api.delete(&format!("{FLUNDERS}/b"), None).await.is(200);
    }
}

#[tokio::test]
async fn selectors_turn_changes_into_coming_and_going() {
    let api = Api::new().await;
    let first = api.make("a").await;
    let label = |value: Value| json!({ "metadata": { "labels": { "l": value } } });
    let mut watch =
        api.watch(&format!("{FLUNDERS}?watch=1&labelSelector=l%3Dx&resourceVersion={}", version(&first))).await;
    let uri = format!("{FLUNDERS}/a");
    api.merge(&uri, &label(json!("y"))).await.is(200);
    let matching = api.merge(&uri, &label(json!("x"))).await.is(200);
    let changed = api.merge(&uri, &json!({ "spec": { "size": 8 } })).await.is(200);
    let left = api.merge(&uri, &label(json!("y"))).await.is(200);
    api.merge(&uri, &label(json!("x"))).await.is(200);
    api.delete(&uri, None).await.is(200);

    assert_eq!(next_is(&mut watch, "ADDED", "a").await, matching);
    assert_eq!(next_is(&mut watch, "MODIFIED", "a").await, changed);
    let mut gone = changed.clone();
    gone["metadata"]["resourceVersion"] = left["metadata"]["resourceVersion"].clone();
    assert_eq!(next_is(&mut watch, "DELETED", "a").await, gone, "its last matching state, with the new version");
    next_is(&mut watch, "ADDED", "a").await;
    next_is(&mut watch, "DELETED", "a").await;
}

#[tokio::test]
async fn one_object_can_be_watched() {
    let api = Api::new().await;
    api.make("a").await;
    api.make("b").await;
    for uri in [
        format!("{FLUNDERS}?watch=1&fieldSelector=metadata.name%3Db"),
        FLUNDERS.replace("/v1beta1/", "/v1beta1/watch/") + "/b",
    ] {
        let mut watch = api.watch(&uri).await;
        next_is(&mut watch, "ADDED", "b").await;
        api.merge(&format!("{FLUNDERS}/a"), &json!({ "metadata": { "labels": { "u": uri.len().to_string() } } })).await;
        api.merge(&format!("{FLUNDERS}/b"), &json!({ "metadata": { "labels": { "u": uri.len().to_string() } } })).await;
        next_is(&mut watch, "MODIFIED", "b").await;
    }
    let (_, message) = api
        .get(&(FLUNDERS.replace("/v1beta1/", "/v1beta1/watch/") + "/b?fieldSelector=metadata.name%3Da"))
        .await
        .fails(400);
    assert_eq!(message, "fieldSelector metadata.name doesn't match requested name");
}

#[tokio::test]
async fn what_is_too_old_is_one_error_event() {
    let api = Api::new().await;
    let a = api.make("a").await;
    api.make("b").await;
    let now = api.storage.current_revision().await.unwrap();
    api.storage.compact(now).await.unwrap();
    let mut watch = api.watch(&format!("{FLUNDERS}?watch=1&resourceVersion={}", version(&a) - 1)).await;
    let error = watch.next().await.unwrap();
    assert_eq!(error["type"], "ERROR");
    assert_eq!((&error["object"]["code"], &error["object"]["reason"]), (&json!(410), &json!("Expired")));
    assert_eq!(error["object"]["message"], "The resourceVersion for the provided watch is too old.");
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn bytes_that_cannot_be_read_are_an_error_event() {
    let api = Api::new().await;
    let a = api.make("a").await;
    let mut watch = api.watch(&format!("{FLUNDERS}?watch=1&resourceVersion={}", version(&a))).await;
    let key = "/wardle.example.com/flunders/default/b";
    api.storage.put(key, Expected::Absent, "nonsense".into(), None).await.unwrap();
    let error = watch.next().await.unwrap();
    assert_eq!((&error["type"], &error["object"]["code"]), (&json!("ERROR"), &json!(500)));
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn tables_and_metadata_can_be_watched() {
    let api = Api::new().await;
    let table = [("accept", "application/json;as=Table;g=meta.k8s.io;v=v1,application/json")];
    let mut watch = api.watch_with(&format!("{FLUNDERS}?watch=1"), &table).await;
    api.make("a").await;
    api.make("b").await;
    let first = watch.next().await.unwrap();
    assert_eq!((&first["type"], &first["object"]["kind"]), (&json!("ADDED"), &json!("Table")));
    assert_eq!(first["object"]["columnDefinitions"].as_array().unwrap().len(), 2);
    assert_eq!(first["object"]["rows"][0]["cells"], json!(["a", "3"]));
    let second = watch.next().await.unwrap();
    assert_eq!(
        (&second["object"]["columnDefinitions"], &second["object"]["rows"][0]["cells"]),
        (&json!(null), &json!(["b", "3"]))
    );

    let mut watch = api.watch_with(WATCH_LIST, &table).await;
    let bookmark = [watch.next().await, watch.next().await, watch.next().await][2].clone().unwrap();
    assert_eq!((&bookmark["type"], &bookmark["object"]["kind"]), (&json!("BOOKMARK"), &json!("Table")));
    assert_eq!(bookmark["object"]["rows"][0]["cells"], json!(["", null]));
    let meta = &bookmark["object"]["rows"][0]["object"]["metadata"];
    assert_eq!(meta["annotations"]["k8s.io/initial-events-end"], "true");

    let partial = [("accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")];
    let mut watch = api.watch_with(WATCH_LIST, &partial).await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["object"]["kind"], "PartialObjectMetadata");
    assert!(event["object"].get("spec").is_none());
    watch.next().await;
    assert_eq!(watch.next().await.unwrap()["object"]["kind"], "PartialObjectMetadata");
    let yaml = api.send("GET", &format!("{FLUNDERS}?watch=1"), &[("accept", "application/yaml")], b"").await;
    assert_eq!(yaml.code, 406);
}

#[tokio::test]
async fn a_watch_list_is_compressed_member_by_member() {
    let api = Api::new().await;
    api.make("a").await;
    let gzip = [("accept-encoding", "gzip")];
    let mut watch = api.watch_with(WATCH_LIST, &gzip).await;
    assert_eq!(watch.headers["content-encoding"], "gzip");
    let read = |chunk: bytes::Bytes| {
        let mut text = String::new();
        flate2::read::GzDecoder::new(&chunk[..]).read_to_string(&mut text).unwrap();
        text
    };
    let first = read(watch.chunk().await.unwrap());
    assert_eq!(first.lines().count(), 2, "{first}");
    api.make("b").await;
    let second = read(watch.chunk().await.unwrap());
    assert!(second.starts_with(r#"{"type":"ADDED""#) && second.ends_with('\n'), "{second}");

    let plain = api.watch_with(&format!("{FLUNDERS}?watch=1&resourceVersion=0"), &gzip).await;
    assert!(!plain.headers.contains_key("content-encoding"));
}

#[tokio::test]
async fn options_that_make_no_sense_are_refused_before_the_watch_begins() {
    let api = Api::new().await;
    for (query, code) in [
        ("sendInitialEvents=true", 422),
        ("resourceVersionMatch=NotOlderThan", 422),
        ("sendInitialEvents=true&resourceVersionMatch=Exact", 422),
        ("resourceVersion=abc", 400),
        ("fieldSelector=spec.x%3D1", 400),
    ] {
        let answer = api.get(&format!("{FLUNDERS}?watch=1&{query}")).await;
        assert_eq!(answer.code.as_u16(), code, "{query}");
    }
}

/// What a watcher has heard always is what a reader would have read, and no change is missed between the two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_there_and_what_changes_fit_together_without_a_gap() {
    let api = std::sync::Arc::new(Api::new().await);
    let writer = {
        let api = std::sync::Arc::clone(&api);
        tokio::spawn(async move {
            for i in 0..300 {
                api.make(&format!("f{i:03}")).await;
            }
        })
    };
    let mut watchers = Vec::new();
    for _ in 0..10 {
        tokio::task::yield_now().await;
        let api = std::sync::Arc::clone(&api);
        watchers.push(tokio::spawn(async move {
            let mut watch = api.watch(WATCH_LIST).await;
            let (mut seen, mut last) = (Vec::new(), Revision(0));
            let mut live = false;
            while seen.len() < 300 {
                let event = watch.next().await.unwrap();
                if event["type"] == "BOOKMARK" {
                    live = true;
                    last = Revision(version(&event["object"]));
                    continue;
                }
                assert_eq!(event["type"], "ADDED");
                let at = Revision(version(&event["object"]));
                assert!(!live || at > last, "{at:?} after {last:?}");
                last = last.max(at);
                seen.push(text(&event["object"]["metadata"]["name"]));
            }
            let expected: Vec<_> = (0..300).map(|i| format!("f{i:03}")).collect();
            assert_eq!(seen, expected);
        }));
    }
    writer.await.unwrap();
    for watcher in watchers {
        watcher.await.unwrap();
    }
}
