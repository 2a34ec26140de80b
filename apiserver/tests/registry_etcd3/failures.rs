use std::{sync::Arc, time::Duration};

use apiserver::storage::etcd3::{Etcd3, Etcd3Options};
use serde_json::json;

use crate::{
    api::{Api, FLUNDERS, flunder, text, version},
    etcd::Etcd,
    flunder::Flunders,
};

/// A store that gives up soon.
async fn impatient(etcd: &Etcd) -> Arc<Etcd3> {
    let options =
        Etcd3Options { request_timeout: Duration::from_secs(2), retry_for: Duration::from_secs(1), ..etcd.options() };
    Arc::new(options.connect().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storage_that_is_down_is_5xx_and_comes_back() {
    let mut etcd = Etcd::start().await;
    let api = Api::over(impatient(&etcd).await, Flunders::default(), Vec::new()).await;
    let before = version(&api.make("before").await);
    let mut watch = api.watch(&format!("{FLUNDERS}?watch=1&resourceVersion={before}")).await;
    let made = api.make("a").await;
    assert_eq!(watch.take(1).await, [("ADDED".to_owned(), "a".to_owned())], "it runs before the storage goes down");
    etcd.kill();
    for (method, uri) in [("GET", format!("{FLUNDERS}/a")), ("GET", FLUNDERS.to_owned())] {
        let answer = api.send(method, &uri, &[], b"").await;
        assert_eq!(answer.headers["retry-after"], "2");
        let (reason, _) = answer.fails(500);
        assert_eq!(reason, "ServerTimeout");
    }
    // A write may have happened: the answer does not say that it did not.
    let (reason, _) = {
        let answer = api.post(FLUNDERS, &flunder("b")).await;
        assert!(answer.code.is_server_error(), "{}", answer.code);
        answer.fails(answer.code.as_u16())
    };
    assert!(["ServerTimeout", "Timeout"].contains(&reason.as_str()), "{reason}");

    etcd.restart();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while api.get(&format!("{FLUNDERS}/a")).await.code != 200 {
        assert!(tokio::time::Instant::now() < deadline, "the storage did not come back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(api.get(&format!("{FLUNDERS}/a")).await.is(200), made);
    // The watch goes on, or has ended so that the client comes back with the version that it has; either way no event is lost.
    api.make("c").await;
    let mut last = version(&made);
    loop {
        match watch.next().await {
            Some(event) => {
                assert_eq!(event["type"], "ADDED", "{event}");
                last = version(&event["object"]);
                if text(&event["object"]["metadata"]["name"]) == "c" {
                    break;
                }
            }
            None => watch = api.watch(&format!("{FLUNDERS}?watch=1&resourceVersion={last}")).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_race_with_compaction_and_each_other_are_told_in_order() {
    let etcd = Etcd::start().await;
    let api = Arc::new(Api::over(impatient(&etcd).await, Flunders::default(), Vec::new()).await);
    let made = api.make("a").await;
    let mut watch = api.watch(&format!("{FLUNDERS}?watch=1&resourceVersion={}", version(&made))).await;
    let writer = {
        let api = Arc::clone(&api);
        tokio::spawn(async move {
            for i in 0..200 {
                let patch = json!({ "metadata": { "labels": { "i": i.to_string() } } });
                let patched = api.merge(&format!("{FLUNDERS}/a"), &patch).await.is(200);
                if i % 20 == 0 {
                    api.storage.compact(apiserver::storage::Revision(version(&patched))).await.unwrap();
                }
            }
        })
    };
    for i in 0..200 {
        let event = watch.next().await.unwrap();
        assert_eq!(text(&event["object"]["metadata"]["labels"]["i"]), i.to_string());
    }
    writer.await.unwrap();
}
