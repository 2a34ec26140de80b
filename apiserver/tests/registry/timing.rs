//! What takes its time, on a clock that the test drives, and what is much: on the storage in memory only.

use std::{sync::Arc, time::Duration};

use apiserver::storage::{
    Expected,
    memory::{Memory, MemoryOptions},
};
use serde_json::json;

use crate::{
    api::{Api, FLUNDERS, WATCH_LIST, flunder, names, text, version},
    flunder::Flunders,
};

#[tokio::test(start_paused = true)]
async fn a_read_of_the_future_waits_and_then_says_so() {
    let api = Api::new().await;
    api.make("a").await;
    let begin = tokio::time::Instant::now();
    let status = api.get(&format!("{FLUNDERS}/a?resourceVersion=1000000")).await.is(504);
    assert!(begin.elapsed() >= Duration::from_secs(3));
    assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert!(text(&status["message"]).starts_with("Timeout: Too large resource version: 1000000, current: "));
}

#[tokio::test(start_paused = true)]
async fn a_list_of_the_future_waits_and_then_says_so() {
    let api = Api::new().await;
    api.make("a").await;
    let future = api.storage.current_revision().await.unwrap().0 + 1;
    let uri = format!("{FLUNDERS}?resourceVersion={future}&resourceVersionMatch=NotOlderThan");
    let begin = tokio::time::Instant::now();
    let status = api.get(&uri).await.is(504);
    assert!(begin.elapsed() >= Duration::from_secs(3));
    assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");

    let (list, ()) = tokio::join!(api.get(&uri), async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        api.make("b").await;
    });
    assert_eq!(names(&list.is(200)), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_beginning_in_the_future_is_an_error_event() {
    let api = Api::new().await;
    let mut watch = api.watch(&format!("{WATCH_LIST}&resourceVersion=1000000")).await;
    let error = watch.next().await.unwrap();
    assert_eq!((&error["type"], &error["object"]["code"]), (&json!("ERROR"), &json!(504)));
    assert!(watch.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_each_minute_and_before_the_end() {
    let api = Api::new().await;
    api.make("a").await;
    let begin = tokio::time::Instant::now();
    let uri = format!("{FLUNDERS}?watch=1&resourceVersion=1&allowWatchBookmarks=true&timeoutSeconds=150");
    let now = api.storage.current_revision().await.unwrap();
    let mut watch = api.watch(&uri.replace("resourceVersion=1", &format!("resourceVersion={}", now.0))).await;
    api.post(&FLUNDERS.replace("default", "other"), &flunder("elsewhere")).await.is(201);
    let mut times = Vec::new();
    while let Some(event) = watch.next().await {
        assert_eq!(event["type"], "BOOKMARK");
        assert!(event["object"]["metadata"].get("annotations").is_none());
        assert_eq!(text(&event["object"]["metadata"]["resourceVersion"]), (now.0 + 1).to_string());
        times.push(begin.elapsed().as_secs());
    }
    assert_eq!(times, [60, 120, 148]);
    assert_eq!(begin.elapsed().as_secs(), 150);
}

#[tokio::test(start_paused = true)]
async fn watches_end_in_time_and_at_shutdown() {
    let api = Api::new().await;
    let begin = tokio::time::Instant::now();
    let mut watch = api.watch(&format!("{FLUNDERS}?watch=1&timeoutSeconds=7")).await;
    assert!(watch.next().await.is_none());
    assert_eq!(begin.elapsed().as_secs(), 7);

    let mut watch = api.watch(&format!("{FLUNDERS}?watch=1")).await;
    let (end, ()) = tokio::join!(watch.next(), async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        api.shutdown.cancel();
    });
    assert!(end.is_none());
    assert_eq!(begin.elapsed().as_secs(), 107);
}

/// Flunders that fill what lies between a watch and a client that does not read.
async fn make_much(api: &Api) {
    for i in 0..8 {
        let mut object = flunder(&format!("much{i}"));
        object["metadata"]["annotations"] = json!({ "text": "x".repeat(40_000) });
        api.post(FLUNDERS, &object).await.is(201);
    }
}

async fn given_up(api: &Api) {
    tokio::time::timeout(Duration::from_secs(60), api.delivery.ended()).await.expect("the answer is not given up");
}

#[tokio::test(start_paused = true)]
async fn watches_that_nobody_reads_end_in_time_and_at_shutdown() {
    for shutdown in [false, true] {
        let api = Api::new().await;
        make_much(&api).await;
        let mut watch = api.watch(&format!("{FLUNDERS}?watch=1&timeoutSeconds=2")).await;
        let (begin, seconds) = (tokio::time::Instant::now(), if shutdown { 1 } else { 2 });
        tokio::time::sleep(Duration::from_millis(seconds * 1000 - 500)).await;
        assert_eq!(api.tasks.len(), 1, "it runs");
        if shutdown {
            api.shutdown.cancel();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(api.tasks.len(), 0, "nothing is left of it");
        // A client that wakes up gets what was ready, and the end; one that does not is given up.
        assert_eq!(watch.take(1).await[0].1, "much0");
        while watch.next().await.is_some() {}
        given_up(&api).await;
        assert!((seconds..=seconds + 6).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stands_still_loses_its_watch() {
    let api = Api::new().await;
    make_much(&api).await;
    let (mut slow, idle) =
        (api.watch(WATCH_LIST).await, api.watch(&format!("{FLUNDERS}?watch=1&resourceVersion=100")).await);
    // As long as it goes on, it may take its time.
    for i in 0..4 {
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(slow.take(1).await[0].1, format!("much{i}"));
    }
    let begin = tokio::time::Instant::now();
    given_up(&api).await;
    assert!((4..=6).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(api.tasks.len(), 1, "the other has nothing to say");
    let mut rest = 0;
    while slow.next().await.is_some() {
        rest += 1;
    }
    assert!(rest < 4, "{rest}");
    drop(idle);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(api.tasks.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_watch_may_be_wanted_for_ever() {
    let api = Api::new().await;
    let mut watch = api.watch(&format!("{FLUNDERS}?watch=1&timeoutSeconds={}", i64::MAX)).await;
    api.make("a").await;
    assert_eq!(watch.take(1).await[0].1, "a");
}

#[tokio::test]
async fn what_is_much_is_read_in_parts_and_told_once() {
    let api = Api::new().await;
    for i in 0..2100 {
        api.make(&format!("f{i:04}")).await;
    }
    let revision = api.storage.current_revision().await.unwrap().0;
    let mut watch = api.watch(WATCH_LIST).await;
    for i in 0..2100 {
        if i == 1000 {
            // What happens in the meantime is told afterwards.
            api.delete(&format!("{FLUNDERS}/f2050"), None).await.is(200);
        }
        assert_eq!(watch.take(1).await, [("ADDED".to_owned(), format!("f{i:04}"))]);
    }
    let end = watch.next().await.unwrap();
    assert_eq!(end["object"]["metadata"]["resourceVersion"], revision.to_string());
    assert_eq!(watch.take(1).await, [("DELETED".to_owned(), "f2050".to_owned())]);
}

#[tokio::test]
async fn a_watcher_that_does_not_keep_up_is_left_behind() {
    let options = MemoryOptions { watch_queue: 10, ..MemoryOptions::default() };
    let api = Api::over(Arc::new(Memory::new(options)), Flunders::default(), Vec::new()).await;
    let made = api.make("a").await;
    let uri = format!("{FLUNDERS}?watch=1&resourceVersion={}", version(&made));
    let (mut slow, mut quick) = (api.watch(&uri).await, api.watch(&uri).await);
    api.make("b").await;
    assert_eq!(slow.take(1).await, quick.take(1).await);
    for i in 0..50 {
        api.make(&format!("c{i}")).await;
        quick.take(1).await;
    }
    let mut events = 0;
    while let Some(event) = slow.next().await {
        assert_eq!(event["type"], "ADDED", "the client comes back with the version that it has: {event}");
        events += 1;
    }
    assert!(events < 50, "{events}");
}

#[tokio::test]
async fn a_collection_is_deleted_page_by_page() {
    let api = Api::new().await;
    for i in 0..10_050 {
        let object = json!({
            "apiVersion": "wardle.example.com/v1beta1", "kind": "Flunder",
            "metadata": { "name": format!("f{i}"), "namespace": "default" },
        });
        let key = format!("/wardle.example.com/flunders/default/f{i}");
        api.storage.put(&key, Expected::Absent, object.to_string().into(), None).await.unwrap();
    }
    let gone = api.delete(FLUNDERS, None).await.is(200);
    assert_eq!(names(&gone).len(), 10_050);
    assert_eq!(names(&api.get(FLUNDERS).await.is(200)).len(), 0);
}
