use serde_json::{Value, json};

use crate::api::{Api, FLUNDERS, flunder, names, text, version};

fn uri() -> String {
    format!("{FLUNDERS}/a")
}

fn finalizers(object: &Value) -> Vec<String> {
    object["metadata"]["finalizers"].as_array().map(|list| list.iter().map(text).collect()).unwrap_or_default()
}

async fn with_finalizer(api: &Api) -> Value {
    let mut sent = flunder("a");
    sent["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.post(FLUNDERS, &sent).await.is(201)
}

#[tokio::test]
async fn a_deletion_tells_what_is_gone() {
    let api = Api::new().await;
    let made = api.make("a").await;
    let status = api.delete(&uri(), None).await.is(200);
    assert_eq!(
        status,
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {
                "name": "a", "group": "wardle.example.com", "kind": "flunders", "uid": made["metadata"]["uid"],
            },
        })
    );
    api.get(&uri()).await.fails(404);
    api.delete(&uri(), None).await.fails(404);
}

#[tokio::test]
async fn preconditions_protect_another_object_of_that_name() {
    let api = Api::new().await;
    let made = api.make("a").await;
    let uid = text(&made["metadata"]["uid"]);
    let (reason, message) = api.delete(&uri(), Some(&json!({ "preconditions": { "uid": "0" } }))).await.fails(409);
    assert_eq!(reason, "Conflict");
    assert_eq!(
        message,
        format!(
            r#"Operation cannot be fulfilled on Flunder.wardle.example.com "a": the UID in the precondition (0) does not match the UID in record ({uid}). The object might have been deleted and then recreated"#
        )
    );
    let (_, message) =
        api.delete(&uri(), Some(&json!({ "preconditions": { "resourceVersion": "1" } }))).await.fails(409);
    assert!(message.contains("the ResourceVersion in the precondition (1) does not match"), "{message}");
    assert_eq!(api.get(&uri()).await.is(200), made);

    let right = json!({ "preconditions": { "uid": uid, "resourceVersion": made["metadata"]["resourceVersion"] } });
    api.delete(&uri(), Some(&right)).await.is(200);
    api.get(&uri()).await.fails(404);
}

#[tokio::test]
async fn finalizers_hold_an_object_until_they_are_gone() {
    let api = Api::new().await;
    let made = with_finalizer(&api).await;
    let held = api.delete(&uri(), None).await.is(200);
    assert_eq!(held["kind"], "Flunder");
    assert_eq!(held["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(held["metadata"]["generation"], 2);
    assert!(held["metadata"].get("deletionTimestamp").is_some());
    assert!(version(&held) > version(&made));
    assert_eq!(api.delete(&uri(), None).await.is(200), held, "once is enough");

    let mut changed = held.clone();
    changed["metadata"].as_object_mut().unwrap().remove("deletionTimestamp");
    assert_eq!(api.put(&uri(), &changed).await.is(200), held, "nobody takes a deletion back");
    let last = api.merge(&uri(), &json!({ "metadata": { "finalizers": [] } })).await.is(200);
    assert_eq!(last["metadata"].get("finalizers"), None, "{last}");
    api.get(&uri()).await.fails(404);
}

#[tokio::test]
async fn propagation_asks_the_garbage_collector() {
    for (options, expected, code) in [
        (json!({ "propagationPolicy": "Foreground" }), Some("foregroundDeletion"), 200),
        (json!({ "propagationPolicy": "Orphan" }), Some("orphan"), 200),
        (json!({ "orphanDependents": true }), Some("orphan"), 200),
        (json!({ "propagationPolicy": "Background" }), None, 200),
        (json!({ "orphanDependents": false }), None, 200),
    ] {
        let api = Api::new().await;
        api.make("a").await;
        let answer = api.delete(&uri(), Some(&options)).await.is(code);
        match expected {
            Some(finalizer) => assert_eq!(finalizers(&answer), [finalizer], "{options}"),
            None => {
                assert_eq!(answer["kind"], "Status", "{options}");
                api.get(&uri()).await.fails(404);
            }
        }
    }
    let api = Api::new().await;
    api.make("a").await;
    let both = json!({ "propagationPolicy": "Foreground", "orphanDependents": true });
    let (reason, _) = api.delete(&uri(), Some(&both)).await.fails(422);
    assert_eq!(reason, "Invalid");
    let held = api.delete(&format!("{}?propagationPolicy=Foreground", uri()), None).await.is(200);
    assert_eq!(finalizers(&held), ["foregroundDeletion"]);

    let api = Api::new().await;
    with_finalizer(&api).await;
    let held = api.delete(&uri(), Some(&json!({ "orphanDependents": false }))).await.is(202);
    assert_eq!(finalizers(&held), ["example.com/hold"]);
}

#[tokio::test]
async fn a_dry_run_leaves_the_object() {
    let api = Api::new().await;
    let made = api.make("a").await;
    for options in [json!({ "dryRun": ["All"] }), json!({ "dryRun": ["All"], "propagationPolicy": "Foreground" })] {
        api.delete(&uri(), Some(&options)).await.is(200);
        assert_eq!(api.get(&uri()).await.is(200), made);
    }
    api.delete(&format!("{FLUNDERS}?dryRun=All"), None).await.is(200);
    assert_eq!(api.get(&uri()).await.is(200), made);
    api.delete(&uri(), Some(&json!({ "dryRun": ["Half"] }))).await.fails(422);
}

#[tokio::test]
async fn warnings_go_with_a_deletion() {
    let api = Api::new().await;
    let mut sent = flunder("a");
    sent["spec"]["reference"] = json!("in use");
    api.post(FLUNDERS, &sent).await.is(201);
    assert_eq!(api.delete(&uri(), None).await.warnings(), [r#"299 - "it was in use""#]);
    assert!(api.delete(&uri(), None).await.warnings().is_empty());
}

#[tokio::test]
async fn a_collection_is_deleted_as_far_as_it_is_selected() {
    let api = Api::new().await;
    for (name, label) in [("a", "x"), ("b", "y"), ("c", "x")] {
        let mut sent = flunder(name);
        sent["metadata"]["labels"] = json!({ "l": label });
        api.post(FLUNDERS, &sent).await.is(201);
    }
    let mut held = flunder("d");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.post(FLUNDERS, &held).await.is(201);
    let other = FLUNDERS.replace("default", "other");
    api.post(&other, &flunder("z")).await.is(201);

    let gone = api.delete(&format!("{FLUNDERS}?labelSelector=l%3Dx"), None).await.is(200);
    assert_eq!((&gone["kind"], names(&gone)), (&json!("FlunderList"), vec!["a".to_owned(), "c".to_owned()]));
    assert_eq!(names(&api.get(FLUNDERS).await.is(200)), ["b", "d"]);
    api.delete(FLUNDERS, None).await.is(200);
    let left = api.get(FLUNDERS).await.is(200);
    assert_eq!(names(&left), ["d"]);
    assert!(left["items"][0]["metadata"].get("deletionTimestamp").is_some());
    assert_eq!(names(&api.get(&other).await.is(200)), ["z"]);
}

#[tokio::test]
async fn options_come_in_any_version() {
    let api = Api::new().await;
    for api_version in ["v1", "wardle.example.com/v1beta1", "meta.k8s.io/v1", "foo/v1"] {
        api.make("a").await;
        let options = json!({ "kind": "DeleteOptions", "apiVersion": api_version, "propagationPolicy": "Background" });
        api.delete(&uri(), Some(&options)).await.is(200);
    }
    api.make("a").await;
    api.send("DELETE", &uri(), &[], b"nonsense").await.fails(400);
    api.get(&uri()).await.is(200);
}
