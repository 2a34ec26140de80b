use apiserver::storage::Freshness;
use serde_json::json;

use crate::api::{Api, FLUNDERS, flunder, text, version};

#[tokio::test]
async fn a_new_object_gets_what_only_the_server_sets() {
    let api = Api::new().await;
    let mut sent = flunder("a");
    sent["metadata"]["uid"] = json!("mine");
    sent["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    sent["metadata"]["deletionTimestamp"] = json!("2001-01-01T00:00:00Z");
    sent["metadata"]["generation"] = json!(7);
    sent["status"] = json!({ "phase": "Mine" });
    let made = api.post(FLUNDERS, &sent).await.is(201);
    let meta = &made["metadata"];
    assert_eq!(meta["namespace"], "default");
    assert_eq!(meta["generation"], 1);
    assert_eq!(text(&meta["uid"]).len(), 36);
    assert!(meta.get("deletionTimestamp").is_none());
    assert!(text(&meta["creationTimestamp"]).as_str() > "2020");
    assert_eq!(made["status"]["phase"], "New", "what the client says of the status is dropped");

    let stored =
        api.storage.get("/wardle.example.com/flunders/default/a", Freshness::Latest).await.unwrap().kv.unwrap();
    assert_eq!(version(&made), stored.mod_revision.0);
    let stored = String::from_utf8(stored.value.to_vec()).unwrap();
    assert!(!stored.contains("resourceVersion"), "{stored}");
    assert_eq!(api.get(&format!("{FLUNDERS}/a")).await.is(200), made);
}

#[tokio::test]
async fn what_is_not_valid_is_refused_in_the_fields_words() {
    let api = Api::new().await;
    let mut sent = flunder("a");
    sent["spec"]["size"] = json!(-1);
    let (reason, message) = api.post(FLUNDERS, &sent).await.fails(422);
    assert_eq!(reason, "Invalid");
    assert_eq!(
        message,
        r#"Flunder.wardle.example.com "a" is invalid: spec.size: Invalid value: -1: must not be negative"#
    );

    for (change, code, expected) in [
        (
            json!({ "namespace": "other" }),
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (json!({ "resourceVersion": "5" }), 400, "resourceVersion should not be set on objects to be created"),
        (json!({ "name": "Upper" }), 422, "a lowercase RFC 1123 subdomain"),
        (json!({ "name": "" }), 422, "metadata.name: Required value: name or generateName is required"),
    ] {
        let mut sent = flunder("a");
        for (key, value) in change.as_object().unwrap() {
            sent["metadata"][key] = value.clone();
        }
        let (_, message) = api.post(FLUNDERS, &sent).await.fails(code);
        assert!(message.contains(expected), "{message}");
    }
    api.get(&format!("{FLUNDERS}/a")).await.fails(404);
}

#[tokio::test]
async fn bodies_are_checked_before_objects() {
    let api = Api::new().await;
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [u8], u16, &'a str);
    let cases: [Case<'_>; 6] = [
        (&[("content-type", "text/plain")], b"{}", 415, "the body of the request was in an unknown format"),
        (&[], b"nonsense", 400, "must be of type Flunder"),
        (&[], b"{\"kind\":\"Other\"}", 400, "cannot be handled as a Flunder"),
        (
            &[],
            br#"{"apiVersion":"wardle.example.com/v1alpha1","kind":"Flunder","metadata":{"name":"a"}}"#,
            400,
            "the API version in the data (wardle.example.com/v1alpha1) does not match the expected API version",
        ),
        (
            &[("accept", "application/vnd.kubernetes.protobuf")],
            b"{}",
            406,
            "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml",
        ),
        (&[], &vec![b' '; 3 * 1024 * 1024 + 1], 413, "Request entity too large: limit is 3145728"),
    ];
    for (headers, body, code, expected) in cases {
        let (_, message) = api.send("POST", FLUNDERS, headers, body).await.fails(code);
        assert!(message.contains(expected), "{message}");
    }
}

#[tokio::test]
async fn a_name_is_made_when_asked_for_and_never_taken_twice() {
    let api = Api::new().await;
    let mut sent = flunder("");
    sent["metadata"] = json!({ "generateName": "pizza-" });
    let made = api.post(FLUNDERS, &sent).await.is(201);
    let name = text(&made["metadata"]["name"]);
    assert!(name.starts_with("pizza-") && name.len() == "pizza-".len() + 5, "{name}");

    sent["metadata"] = json!({ "generateName": "pizza-", "name": name });
    let (reason, message) = api.post(FLUNDERS, &sent).await.fails(409);
    assert_eq!(reason, "AlreadyExists");
    assert!(message.ends_with("the server was not able to generate a unique name for the object"), "{message}");
}

#[tokio::test]
async fn what_exists_is_not_created_again() {
    let api = Api::new().await;
    api.make("a").await;
    let (reason, message) = api.post(FLUNDERS, &flunder("a")).await.fails(409);
    assert_eq!(
        (reason.as_str(), message.as_str()),
        ("AlreadyExists", r#"flunders.wardle.example.com "a" already exists"#)
    );
    let (_, message) = api.post(&format!("{FLUNDERS}?dryRun=All"), &flunder("a")).await.fails(409);
    assert_eq!(message, r#"flunders.wardle.example.com "a" already exists"#);

    api.merge(&format!("{FLUNDERS}/a"), &json!({ "metadata": { "finalizers": ["x.example.com/y"] } })).await.is(200);
    api.delete(&format!("{FLUNDERS}/a"), None).await.is(200);
    let (_, message) = api.post(FLUNDERS, &flunder("a")).await.fails(409);
    assert_eq!(message, r#"object is being deleted: flunders.wardle.example.com "a" already exists"#);
}

#[tokio::test]
async fn a_dry_run_does_everything_but_the_writing() {
    let api = Api::new().await;
    let made = api.post(&format!("{FLUNDERS}?dryRun=All"), &flunder("a")).await.is(201);
    assert_eq!(made["status"]["phase"], "New");
    assert!(made["metadata"].get("resourceVersion").is_none(), "{made}");
    assert_eq!(text(&made["metadata"]["uid"]).len(), 36);
    api.get(&format!("{FLUNDERS}/a")).await.fails(404);
    let (_, message) = api.post(&format!("{FLUNDERS}?dryRun=Some"), &flunder("a")).await.fails(422);
    assert!(message.contains("dryRun"), "{message}");
}

#[tokio::test]
async fn unknown_fields_warn_fail_or_pass() {
    let api = Api::new().await;
    let mut sent = flunder("a");
    sent["spec"]["extra"] = json!(1);
    let answer = api.post(&format!("{FLUNDERS}?dryRun=All"), &sent).await;
    assert_eq!(answer.warnings(), [r#"299 - "unknown field \"spec.extra\"""#]);
    answer.is(201);
    let answer = api.post(&format!("{FLUNDERS}?dryRun=All&fieldValidation=Ignore"), &sent).await;
    assert!(answer.warnings().is_empty());
    let (_, message) = api.post(&format!("{FLUNDERS}?fieldValidation=Strict"), &sent).await.fails(400);
    assert!(message.contains(r#"strict decoding error: unknown field "spec.extra""#), "{message}");
}

#[tokio::test]
async fn warnings_of_the_strategy_and_of_metadata_reach_the_client() {
    let api = Api::new().await;
    let mut sent = flunder("a");
    sent["spec"]["reference"] = json!("deprecated");
    let owner = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "1" });
    sent["metadata"]["ownerReferences"] = json!([owner, owner]);
    let answer = api.post(FLUNDERS, &sent).await;
    let warnings = answer.warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains(".metadata.ownerReferences contains duplicate entries; API server"));
    assert_eq!(warnings[1], r#"299 - "spec.reference: deprecated""#);
    assert_eq!(answer.is(201)["metadata"]["ownerReferences"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn objects_are_made_in_every_version() {
    let api = Api::new().await;
    let collection = FLUNDERS.replace("v1beta1", "v1alpha1");
    let sent = json!({
        "apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder",
        "metadata": { "name": "a" }, "spec": { "width": "xxxxx" },
    });
    let made = api.post(&collection, &sent).await.is(201);
    assert_eq!(made["apiVersion"], "wardle.example.com/v1alpha1");
    let read = api.get(&format!("{FLUNDERS}/a")).await.is(200);
    assert_eq!((&read["apiVersion"], &read["spec"]["size"]), (&json!("wardle.example.com/v1beta1"), &json!(5)));
    api.get("/apis/wardle.example.com/v2/namespaces/default/flunders/a").await.fails(404);
}

#[tokio::test]
async fn what_is_too_large_for_the_storage_is_413() {
    let api = Api::new().await;
    let mut sent = flunder("a");
    sent["spec"]["reference"] = json!("x".repeat(2 * 1024 * 1024));
    let (reason, _) = api.post(FLUNDERS, &sent).await.fails(413);
    assert_eq!(reason, "RequestEntityTooLarge");
    api.make("a").await;
    api.merge(&format!("{FLUNDERS}/a"), &json!({ "spec": { "reference": sent["spec"]["reference"] } }))
        .await
        .fails(413);
}
