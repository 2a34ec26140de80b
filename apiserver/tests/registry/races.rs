//! Somebody else writes between a request's read and its write: an admission plugin that meddles makes it happen.

use std::sync::{Arc, OnceLock};

use apiserver::{
    admission::{Attributes, Operation, Plugin},
    status::Status,
    storage::{Expected, Freshness, Storage},
};
use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    api::{Api, FLUNDERS, flunder, text},
    flunder::{Flunder, Flunders},
};

const KEY: &str = "/wardle.example.com/flunders/default/a";

/// What is done to the object behind the request's back, once.
#[derive(Clone, Copy, Debug)]
enum Meddling {
    Set(&'static str, &'static str),
    Remove,
}

#[derive(Clone, Default)]
struct Meddler {
    storage: Arc<OnceLock<Arc<dyn Storage>>>,
    next: Arc<Mutex<Option<Meddling>>>,
}

#[async_trait]
impl Plugin for Meddler {
    fn name(&self) -> &'static str {
        "Meddler"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation != Operation::Create
    }

    async fn validate(&self, _attributes: &Attributes<'_>) -> Result<(), Status> {
        let Some(meddling) = self.next.lock().take() else { return Ok(()) };
        let storage = self.storage.get().unwrap();
        let kv = storage.get(KEY, Freshness::Latest).await.unwrap().kv.unwrap();
        match meddling {
            Meddling::Remove => storage.delete(KEY, kv.mod_revision).await.unwrap(),
            Meddling::Set(path, value) => {
                let mut object: Value = serde_json::from_slice(&kv.value).unwrap();
                let (parent, field) = path.rsplit_once('/').unwrap();
                object.pointer_mut(parent).unwrap()[field] = json!(value);
                let bytes = object.to_string().into();
                storage.put(KEY, Expected::At(kv.mod_revision), bytes, None).await.unwrap()
            }
        };
        Ok(())
    }
}

/// Takes the names of objects that are about to be created, so many times.
#[derive(Clone, Default)]
struct Squatter {
    storage: Arc<OnceLock<Arc<dyn Storage>>>,
    times: Arc<Mutex<usize>>,
}

#[async_trait]
impl Plugin for Squatter {
    fn name(&self) -> &'static str {
        "Squatter"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn validate(&self, attributes: &Attributes<'_>) -> Result<(), Status> {
        {
            let mut times = self.times.lock();
            if *times == 0 {
                return Ok(());
            }
            *times -= 1;
        }
        let name = attributes.object::<Flunder>().unwrap().metadata.name.clone().unwrap();
        let key = format!("/wardle.example.com/flunders/default/{name}");
        let taken = json!({
            "apiVersion": "wardle.example.com/v1beta1", "kind": "Flunder", "metadata": { "name": name },
        });
        let put = self.storage.get().unwrap().put(&key, Expected::Absent, taken.to_string().into(), None);
        put.await.unwrap();
        Ok(())
    }
}

#[tokio::test]
async fn eight_names_are_tried() {
    let squatter = Squatter::default();
    let api = Api::with(Flunders::default(), vec![Arc::new(squatter.clone())]).await;
    squatter.storage.set(Arc::clone(&api.storage)).ok().unwrap();
    let mut sent = flunder("");
    sent["metadata"] = json!({ "generateName": "pizza-" });
    *squatter.times.lock() = 7;
    api.post(FLUNDERS, &sent).await.is(201);
    *squatter.times.lock() = 8;
    let answer = api.post(FLUNDERS, &sent).await;
    assert_eq!(answer.headers["retry-after"], "1");
    let (reason, message) = answer.fails(409);
    assert_eq!(reason, "AlreadyExists");
    assert!(message.ends_with("the server was not able to generate a unique name for the object"), "{message}");
    assert_eq!(*squatter.times.lock(), 0);
}

async fn meddled() -> (Api, Meddler) {
    let meddler = Meddler::default();
    let api = Api::with(Flunders::default(), vec![Arc::new(meddler.clone())]).await;
    meddler.storage.set(Arc::clone(&api.storage)).ok().unwrap();
    (api, meddler)
}

fn uri() -> String {
    format!("{FLUNDERS}/a")
}

#[tokio::test]
async fn a_patch_is_made_anew_and_a_put_is_refused() {
    let (api, meddler) = meddled().await;
    let mut made = api.make("a").await;
    *meddler.next.lock() = Some(Meddling::Set("/spec/reference", "theirs"));
    let patched = api.merge(&uri(), &json!({ "spec": { "size": 9 } })).await.is(200);
    assert_eq!(patched["spec"], json!({ "reference": "theirs", "size": 9 }), "nobody's change is lost");

    made["metadata"]["resourceVersion"] = patched["metadata"]["resourceVersion"].clone();
    made["spec"] = json!({ "size": 10 });
    *meddler.next.lock() = Some(Meddling::Set("/spec/reference", "again"));
    let (reason, message) = api.put(&uri(), &made).await.fails(409);
    assert_eq!(reason, "Conflict");
    assert!(message.contains("the object has been modified"), "{message}");
    assert_eq!(api.get(&uri()).await.is(200)["spec"], json!({ "reference": "again", "size": 9 }));

    // So is a patch that names the version.
    let version = api.get(&uri()).await.is(200)["metadata"]["resourceVersion"].clone();
    *meddler.next.lock() = Some(Meddling::Set("/spec/reference", "once more"));
    let patch = json!({ "metadata": { "resourceVersion": version }, "spec": { "size": 11 } });
    api.merge(&uri(), &patch).await.fails(409);
    *meddler.next.lock() = Some(Meddling::Remove);
    api.merge(&uri(), &json!({ "spec": { "size": 12 } })).await.fails(404);
}

#[tokio::test]
async fn a_deletion_looks_again_before_it_deletes() {
    let (api, meddler) = meddled().await;
    let made = api.make("a").await;
    let right = json!({ "preconditions": { "uid": made["metadata"]["uid"] } });
    *meddler.next.lock() = Some(Meddling::Set("/metadata/uid", "another"));
    let (reason, message) = api.delete(&uri(), Some(&right)).await.fails(409);
    assert_eq!(reason, "Conflict");
    assert!(message.contains("Precondition failed: UID in precondition: "), "{message}");
    assert!(message.ends_with("UID in object meta: another"), "{message}");
    assert_eq!(text(&api.get(&uri()).await.is(200)["metadata"]["uid"]), "another");

    *meddler.next.lock() = Some(Meddling::Set("/spec/reference", "theirs"));
    api.delete(&uri(), None).await.is(200);
    api.get(&uri()).await.fails(404);
    api.make("a").await;
    *meddler.next.lock() = Some(Meddling::Remove);
    api.delete(&uri(), None).await.fails(404);
    api.make("a").await;
    *meddler.next.lock() = Some(Meddling::Remove);
    assert_eq!(api.delete(FLUNDERS, None).await.is(200)["items"].as_array().unwrap().len(), 1, "gone is gone");
}

#[tokio::test]
async fn the_last_finalizer_removes_what_it_saw() {
    let (api, meddler) = meddled().await;
    let mut sent = flunder("a");
    sent["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.post(FLUNDERS, &sent).await.is(201);
    api.delete(&uri(), None).await.is(200);
    *meddler.next.lock() = Some(Meddling::Set("/spec/reference", "theirs"));
    let last = api.merge(&uri(), &json!({ "metadata": { "finalizers": null } })).await.is(200);
    assert_eq!(last["spec"]["reference"], "theirs");
    api.get(&uri()).await.fails(404);
}
