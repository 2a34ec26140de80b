use apiserver::meta::Scope;
use serde_json::json;

use crate::{
    api::{Api, FLUNDERS, flunder, text},
    flunder::Flunders,
};

#[tokio::test]
async fn what_is_missing_is_404_with_its_name() {
    let api = Api::new().await;
    let status = api.get(&format!("{FLUNDERS}/a")).await.is(404);
    assert_eq!(
        status,
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": r#"flunders.wardle.example.com "a" not found"#, "reason": "NotFound",
            "details": { "name": "a", "group": "wardle.example.com", "kind": "flunders" }, "code": 404,
        })
    );
}

#[tokio::test]
async fn objects_come_in_the_form_asked_for() {
    let api = Api::new().await;
    let made = api.make("a").await;
    let uri = format!("{FLUNDERS}/a");
    let accept = |value| [("accept", value)];

    let plain = api.get(&uri).await;
    assert_eq!(plain.headers["content-type"], "application/json");
    assert!(plain.body.starts_with(br#"{"kind":"Flunder","apiVersion":"wardle.example.com/v1beta1","metadata":{"#));
    assert!(plain.body.ends_with(b"}\n"));
    let pretty = api.get(&format!("{uri}?pretty=true")).await;
    assert!(pretty.body.starts_with(b"{\n  \"kind\": \"Flunder\","));
    let yaml = api.send("GET", &uri, &accept("application/yaml"), b"").await;
    assert_eq!(yaml.headers["content-type"], "application/yaml");
    assert!(yaml.body.starts_with(b"apiVersion: wardle.example.com/v1beta1\nkind: Flunder\n"));

    let meta = accept("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
    let meta = api.send("GET", &uri, &meta, b"").await.is(200);
    assert_eq!((&meta["kind"], &meta["apiVersion"]), (&json!("PartialObjectMetadata"), &json!("meta.k8s.io/v1")));
    assert_eq!(meta["metadata"], made["metadata"]);
    assert!(meta.get("spec").is_none());

    let table = accept("application/json;as=Table;g=meta.k8s.io;v=v1,application/json");
    let read = api.send("GET", &uri, &table, b"").await.is(200);
    assert_eq!((&read["kind"], &read["rows"][0]["cells"]), (&json!("Table"), &json!(["a", "3"])));
    assert_eq!(read["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(read["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    let read = api.send("GET", &format!("{uri}?includeObject=None"), &table, b"").await.is(200);
    assert_eq!(read["rows"][0]["object"], json!(null));
    let read = api.send("GET", &format!("{uri}?includeObject=Object"), &table, b"").await.is(200);
    assert_eq!(read["rows"][0]["object"]["spec"]["size"], 3);
    let (_, message) = api.send("GET", &format!("{uri}?includeObject=Half"), &table, b"").await.fails(400);
    assert!(message.starts_with("Unable to convert to Table as requested: includeObject: Invalid value"), "{message}");

    let list = accept("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
    api.send("GET", &uri, &list, b"").await.fails(406);
}

#[tokio::test]
async fn reads_can_ask_for_freshness() {
    let api = Api::new().await;
    let made = api.make("a").await;
    let uri = format!("{FLUNDERS}/a");
    let version = text(&made["metadata"]["resourceVersion"]);
    for fresh in ["0", &version] {
        api.get(&format!("{uri}?resourceVersion={fresh}")).await.is(200);
    }
    for none in ["abc", "%2B1", "-1", "1.0", "+1", "99999999999999999999"] {
        let (reason, _) = api.get(&format!("{uri}?resourceVersion={none}")).await.fails(400);
        assert_eq!(reason, "BadRequest", "{none}");
    }
}

#[tokio::test]
async fn paths_that_are_none_are_404_and_methods_that_are_none_405() {
    let api = Api::new().await;
    api.make("a").await;
    let all = "/apis/wardle.example.com/v1beta1/flunders";
    for (method, uri, code) in [
        ("GET", format!("{FLUNDERS}/a/scale"), 404),
        ("GET", format!("{FLUNDERS}/a/status/more"), 404),
        ("GET", format!("{all}/a"), 404),
        ("POST", format!("{FLUNDERS}/a"), 405),
        ("PUT", FLUNDERS.to_owned(), 405),
        ("POST", all.to_owned(), 405),
        ("DELETE", all.to_owned(), 405),
        ("DELETE", format!("{FLUNDERS}/a/status"), 405),
    ] {
        let answer = api.send(method, &uri, &[], flunder("b").to_string().as_bytes()).await;
        assert_eq!(answer.code.as_u16(), code, "{method} {uri}");
    }
    assert_eq!(api.send("HEAD", &format!("{FLUNDERS}/a"), &[], b"").await.code, 405);

    let cluster = Api::with(Flunders { scope: Scope::Cluster, ..Flunders::default() }, Vec::new()).await;
    cluster.post(all, &flunder("a")).await.is(201);
    assert!(cluster.get(&format!("{all}/a")).await.is(200)["metadata"].get("namespace").is_none());
    for (method, uri) in
        [("GET", FLUNDERS.to_owned()), ("DELETE", FLUNDERS.to_owned()), ("GET", format!("{FLUNDERS}/a"))]
    {
        cluster.send(method, &uri, &[], b"").await.fails(404);
    }
    cluster.get(&format!("{all}/a")).await.is(200);
}
