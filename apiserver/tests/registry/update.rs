use apiserver::authorization::{AuthorizationError, Decision};
use serde_json::{Value, json};

use crate::{
    api::{Api, FLUNDERS, flunder, version},
    flunder::Flunders,
};

fn uri() -> String {
    format!("{FLUNDERS}/a")
}

#[tokio::test]
async fn an_update_needs_the_version_that_it_changes() {
    let api = Api::new().await;
    let mut object = api.make("a").await;
    object["spec"]["size"] = json!(5);
    let updated = api.put(&uri(), &object).await.is(200);
    assert!(version(&updated) > version(&object));
    assert_eq!((&updated["metadata"]["generation"], &updated["spec"]["size"]), (&json!(2), &json!(5)));

    object["spec"]["size"] = json!(6);
    let (reason, message) = api.put(&uri(), &object).await.fails(409);
    assert_eq!(reason, "Conflict");
    assert_eq!(
        message,
        r#"Operation cannot be fulfilled on flunders.wardle.example.com "a": the object has been modified; please apply your changes to the latest version and try again"#
    );

    object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let (_, message) = api.put(&uri(), &object).await.fails(422);
    assert_eq!(
        message,
        r#"flunders.wardle.example.com "a" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update"#
    );
    object["metadata"]["resourceVersion"] = json!("abc");
    api.put(&uri(), &object).await.fails(400);
    assert_eq!(api.get(&uri()).await.is(200), updated);

    let lenient = Api::with(Flunders { unconditional_update: true, ..Flunders::default() }, Vec::new()).await;
    lenient.make("a").await;
    lenient.put(&uri(), &flunder("a")).await.is(200);
}

#[tokio::test]
async fn an_update_that_changes_nothing_is_not_written() {
    let api = Api::new().await;
    let object = api.make("a").await;
    let revision = api.storage.current_revision().await.unwrap();
    assert_eq!(api.put(&uri(), &object).await.is(200), object);
    let mut other = object.clone();
    other["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    other["metadata"]["generation"] = json!(9);
    other["status"]["phase"] = json!("Mine");
    assert_eq!(api.put(&uri(), &other).await.is(200), object);
    assert_eq!(api.merge(&uri(), &json!({ "spec": { "size": 3 } })).await.is(200), object);
    assert_eq!(api.storage.current_revision().await.unwrap(), revision);
}

#[tokio::test]
async fn status_and_the_rest_keep_out_of_each_others_way() {
    let api = Api::new().await;
    let object = api.make("a").await;
    let status = format!("{}/status", uri());
    assert_eq!(api.get(&status).await.is(200), object);

    let mut changed = object.clone();
    changed["spec"]["size"] = json!(9);
    changed["status"]["phase"] = json!("Ready");
    changed["metadata"]["labels"] = json!({ "a": "b" });
    let updated = api.put(&status, &changed).await.is(200);
    assert_eq!((&updated["spec"]["size"], &updated["status"]["phase"]), (&json!(3), &json!("Ready")));
    assert_eq!(updated["metadata"]["generation"], 1);
    assert!(updated["metadata"].get("labels").is_none());

    changed["metadata"]["resourceVersion"] = updated["metadata"]["resourceVersion"].clone();
    changed["status"]["phase"] = json!("Lost");
    let updated = api.put(&uri(), &changed).await.is(200);
    assert_eq!((&updated["spec"]["size"], &updated["status"]["phase"]), (&json!(9), &json!("Ready")));
    assert_eq!(updated["metadata"]["generation"], 2);

    let patched = api.merge(&status, &json!({ "status": { "phase": "Gone" }, "spec": { "size": 1 } })).await.is(200);
    assert_eq!((&patched["spec"]["size"], &patched["status"]["phase"]), (&json!(9), &json!("Gone")));
    let (reason, message) = api.merge(&status, &json!({ "status": { "phase": "impossible" } })).await.fails(422);
    assert_eq!(reason, "Invalid");
    assert!(message.contains("status.phase: Forbidden: that cannot be"), "{message}");
    // A stale version is a conflict here too.
    changed["metadata"]["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
    api.put(&status, &changed).await.fails(409);
}

#[tokio::test]
async fn what_identifies_an_object_does_not_change() {
    let api = Api::new().await;
    let object = api.make("a").await;
    let with = |path: &str, value: Value| {
        let mut object = object.clone();
        *object.pointer_mut(path).unwrap() = value;
        object
    };
    let (_, message) = api.put(&uri(), &with("/metadata/name", json!("b"))).await.fails(400);
    assert_eq!(message, "the name of the object (b) does not match the name on the URL (a)");
    api.put(&uri(), &with("/metadata/namespace", json!("other"))).await.fails(400);
    let (reason, message) = api.put(&uri(), &with("/metadata/uid", json!("other"))).await.fails(409);
    assert_eq!(reason, "Conflict");
    assert!(message.contains("Precondition failed: UID in precondition: other, UID in object meta: "), "{message}");
    let mut deleting = object.clone();
    deleting["metadata"]["deletionTimestamp"] = json!("2001-01-01T00:00:00Z");
    let (_, message) = api.put(&uri(), &deleting).await.fails(422);
    assert!(message.contains("metadata.deletionTimestamp"), "{message}");
}

#[tokio::test]
async fn validation_runs_on_updates_too() {
    let api = Api::new().await;
    let mut object = api.make("a").await;
    object["spec"]["size"] = json!(-5);
    let (reason, _) = api.put(&uri(), &object).await.fails(422);
    assert_eq!(reason, "Invalid");
}

#[tokio::test]
async fn a_put_creates_where_the_resource_allows_it_and_the_user_may() {
    let strict = Api::new().await;
    let (reason, _) = strict.put(&uri(), &flunder("a")).await.fails(404);
    assert_eq!(reason, "NotFound");

    let api = Api::with(Flunders { create_on_update: true, ..Flunders::default() }, Vec::new()).await;
    *api.allowed.lock() = Decision::NoOpinion { reason: String::new() };
    let (reason, message) = api.put(&uri(), &flunder("a")).await.fails(403);
    assert_eq!(reason, "Forbidden");
    assert_eq!(
        message,
        r#"flunders.wardle.example.com "a" is forbidden: User "alice" cannot create resource "flunders" in API group "wardle.example.com" in the namespace "default""#
    );
    *api.allowed.lock() = Decision::Error(AuthorizationError { message: "cannot tell".to_owned() });
    let (reason, _) = api.put(&uri(), &flunder("a")).await.fails(500);
    assert_eq!(reason, "InternalError", "an error is not a permission");
    api.get(&uri()).await.fails(404);
    *api.allowed.lock() = Decision::Allow;
    let made = api.put(&uri(), &flunder("a")).await.is(201);
    assert_eq!((&made["metadata"]["generation"], &made["status"]["phase"]), (&json!(1), &json!("New")));
    // The status cannot bring an object about.
    api.put(&format!("{FLUNDERS}/b/status"), &flunder("b")).await.fails(404);
    *api.allowed.lock() = Decision::NoOpinion { reason: String::new() };
    let mut object = made.clone();
    object["spec"]["size"] = json!(8);
    api.put(&uri(), &object).await.is(200);
}

#[tokio::test]
async fn a_dry_run_shows_the_outcome_and_keeps_the_object() {
    let api = Api::new().await;
    let mut object = api.make("a").await;
    object["spec"]["size"] = json!(5);
    let shown = api.put(&format!("{}?dryRun=All", uri()), &object).await.is(200);
    assert_eq!(shown["spec"]["size"], 5);
    assert_eq!(shown["metadata"]["resourceVersion"], object["metadata"]["resourceVersion"]);
    assert_eq!(api.get(&uri()).await.is(200)["spec"]["size"], 3);
}

#[tokio::test]
async fn a_write_comes_to_its_end_when_its_client_goes_away() {
    let api = Api::new().await;
    let mut object = api.make("a").await;
    object["spec"]["size"] = json!(5);
    let body = object.to_string();
    {
        let uri = uri();
        let request = api.raw("PUT", &uri, &[], body.as_bytes());
        // One look at the request starts the write; then the client is gone.
        let mut request = Box::pin(request);
        assert!(futures::poll!(&mut request).is_pending());
    }
    api.tasks.close();
    api.tasks.wait().await;
    assert_eq!(api.get(&uri()).await.is(200)["spec"]["size"], 5);
}

#[tokio::test]
async fn a_resource_without_generation_takes_none_from_clients() {
    let api = Api::with(Flunders { without_generation: true, ..Flunders::default() }, Vec::new()).await;
    let mut sent = flunder("a");
    sent["metadata"]["generation"] = json!(7);
    let mut object = api.post(FLUNDERS, &sent).await.is(201);
    assert_eq!(object["metadata"].get("generation"), None);
    object["metadata"]["generation"] = json!(7);
    object["spec"]["size"] = json!(9);
    let updated = api.put(&uri(), &object).await.is(200);
    assert_eq!((&updated["spec"]["size"], updated["metadata"].get("generation")), (&json!(9), None));
}
