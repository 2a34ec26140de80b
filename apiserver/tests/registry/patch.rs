use serde_json::json;

use crate::api::{Api, FLUNDERS, version};

fn uri() -> String {
    format!("{FLUNDERS}/a")
}

const JSON_PATCH: [(&str, &str); 1] = [("content-type", "application/json-patch+json")];

#[tokio::test]
async fn both_patch_types_change_what_they_name() {
    let api = Api::new().await;
    let made = api.make("a").await;
    let patch = json!({ "spec": { "size": 4, "reference": "r" }, "metadata": { "labels": { "a": "b" } } });
    let merged = api.merge(&uri(), &patch).await.is(200);
    assert!(version(&merged) > version(&made));
    assert_eq!(merged["spec"], json!({ "size": 4, "reference": "r" }));
    let patch = br#"[{"op":"test","path":"/spec/size","value":4},{"op":"replace","path":"/spec/size","value":5},{"op":"remove","path":"/metadata/labels"}]"#;
    let patched = api.send("PATCH", &uri(), &JSON_PATCH, patch).await.is(200);
    assert_eq!((&patched["spec"]["size"], patched["metadata"].get("labels")), (&json!(5), None));
    assert_eq!(patched["metadata"]["generation"], 3);

    let old = FLUNDERS.replace("v1beta1", "v1alpha1") + "/a";
    let patched = api.merge(&old, &json!({ "spec": { "width": "xx" } })).await.is(200);
    assert_eq!(patched["spec"]["width"], "xx");
    assert_eq!(api.get(&uri()).await.is(200)["spec"]["size"], 2);
}

#[tokio::test]
async fn a_patch_that_cannot_be_says_why() {
    let api = Api::new().await;
    api.make("a").await;
    let merge = [("content-type", "application/merge-patch+json")];
    for (headers, patch, code) in [
        (merge, "feafeczea", 400),
        (merge, "[1]", 400),
        (merge, r#"{"spec":{"size":"large"}}"#, 422),
        (JSON_PATCH, "feafeczea", 400),
        (JSON_PATCH, r#"{"op":"add"}"#, 400),
        (JSON_PATCH, r#"[{"op":"test","path":"/spec/size","value":99}]"#, 422),
        (JSON_PATCH, r#"[{"op":"remove","path":"/spec/nothing"}]"#, 422),
        (merge, r#"{"metadata":{"name":"b"}}"#, 400),
        (merge, r#"{"spec":{"size":-1}}"#, 422),
        (merge, r#"{"metadata":{"resourceVersion":"1"}}"#, 409),
        (merge, r#"{"metadata":{"uid":"other"}}"#, 422),
    ] {
        let answer = api.send("PATCH", &uri(), &headers, patch.as_bytes()).await;
        assert_eq!(answer.code.as_u16(), code, "{patch}: {}", String::from_utf8_lossy(&answer.body));
    }
    let operations = vec![r#"{"op":"test","path":"/spec/size","value":3}"#; 10_001].join(",");
    api.send("PATCH", &uri(), &JSON_PATCH, format!("[{operations}]").as_bytes()).await.fails(413);
    api.merge(&format!("{FLUNDERS}/nothing"), &json!({})).await.fails(404);
}

#[tokio::test]
async fn patch_types_that_are_not_there_make_clients_fall_back() {
    let api = Api::new().await;
    api.make("a").await;
    for content_type in ["application/strategic-merge-patch+json", "application/apply-patch+yaml", "application/json"] {
        let answer = api.send("PATCH", &uri(), &[("content-type", content_type)], b"{}").await;
        let (reason, message) = answer.fails(415);
        assert_eq!((reason.as_str(), message.as_str()), ("UnsupportedMediaType", "415: Unsupported Media Type"));
    }
    let charset = [("content-type", "application/merge-patch+json; charset=UTF-8")];
    api.send("PATCH", &uri(), &charset, b"{}").await.is(200);
}

#[tokio::test]
async fn unknown_fields_in_patches_warn_or_fail() {
    let api = Api::new().await;
    api.make("a").await;
    let patch = json!({ "spec": { "extra": 1 } });
    let answer = api.merge(&uri(), &patch).await;
    assert_eq!(answer.warnings(), [r#"299 - "unknown field \"spec.extra\"""#]);
    answer.is(200);
    let status = api.merge(&format!("{}?fieldValidation=Strict", uri()), &patch).await.is(422);
    assert_eq!(status["details"]["causes"][0]["field"], "patch");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn patches_that_race_all_happen() {
    let api = std::sync::Arc::new(Api::new().await);
    api.make("a").await;
    let tasks: Vec<_> = (0..20)
        .map(|i| {
            let api = std::sync::Arc::clone(&api);
            tokio::spawn(async move {
                api.merge(&uri(), &json!({ "metadata": { "labels": { format!("l{i}"): "x" } } })).await.is(200);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let object = api.get(&uri()).await.is(200);
    assert_eq!(object["metadata"]["labels"].as_object().unwrap().len(), 20);
}

#[tokio::test]
async fn a_dry_run_of_a_patch_leaves_the_object() {
    let api = Api::new().await;
    let made = api.make("a").await;
    let shown = api.merge(&format!("{}?dryRun=All", uri()), &json!({ "spec": { "size": 8 } })).await.is(200);
    assert_eq!(shown["spec"]["size"], 8);
    assert_eq!(api.get(&uri()).await.is(200), made);
}
