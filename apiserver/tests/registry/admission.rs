use std::sync::Arc;

use apiserver::{
    admission::{Attributes, Operation, Plugin},
    status::Status,
};
use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::json;

use crate::{
    api::{Api, FLUNDERS, flunder},
    flunder::{Flunder, Flunders},
};

/// Writes down what it sees, makes everything larger by one, and refuses what is called `refused`.
#[derive(Clone, Default)]
struct Witness(Arc<Mutex<Vec<String>>>);

impl Witness {
    fn note(&self, what: &str, attributes: &Attributes<'_>) {
        let size = |object: Option<&Flunder>| object.map_or("-".to_owned(), |o| format!("{}/{}", o.size, o.phase));
        self.0.lock().push(format!(
            "{what} {:?} {}.{} {}{} old {} new {}{}",
            attributes.operation,
            attributes.kind.version,
            attributes.resource.resource,
            attributes.name,
            if attributes.subresource.is_empty() { String::new() } else { format!("/{}", attributes.subresource) },
            size(attributes.old_object()),
            size(attributes.object()),
            if attributes.dry_run { " dry" } else { "" },
        ));
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

#[async_trait]
impl Plugin for Witness {
    fn name(&self) -> &'static str {
        "Witness"
    }

    fn handles(&self, _operation: Operation) -> bool {
        true
    }

    async fn admit(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        self.note("admit", attributes);
        if let Some(object) = attributes.object_mut::<Flunder>() {
            object.size += 1;
        }
        Ok(())
    }

    async fn validate(&self, attributes: &Attributes<'_>) -> Result<(), Status> {
        self.note("validate", attributes);
        let refused = [attributes.object::<Flunder>(), attributes.old_object::<Flunder>()];
        if refused.into_iter().flatten().any(|o| o.reference == "refused") {
            return Err(Status::forbidden(&attributes.resource, attributes.name, "no"));
        }
        Ok(())
    }
}

#[tokio::test]
async fn plugins_see_each_write_with_its_objects() {
    let witness = Witness::default();
    let api = Api::with(Flunders::default(), vec![Arc::new(witness.clone())]).await;
    let made = api.make("a").await;
    assert_eq!(made["spec"]["size"], 4, "what a plugin changes is stored");
    assert_eq!(
        witness.take(),
        ["admit Create v1beta1.flunders a old - new 3/", "validate Create v1beta1.flunders a old - new 4/New",]
    );

    let uri = format!("{FLUNDERS}/a");
    api.merge(&format!("{uri}?dryRun=All"), &json!({ "spec": { "size": 7 } })).await.is(200);
    assert_eq!(
        witness.take(),
        [
            "admit Update v1beta1.flunders a old 4/New new 7/New dry",
            "validate Update v1beta1.flunders a old 4/New new 8/New dry",
        ]
    );
    api.merge(&format!("{uri}/status"), &json!({ "status": { "phase": "Ready" } })).await.is(200);
    assert_eq!(
        witness.take(),
        [
            "admit Update v1beta1.flunders a/status old 4/New new 4/Ready",
            "validate Update v1beta1.flunders a/status old 4/New new 4/Ready",
        ]
    );
    api.delete(&uri, None).await.is(200);
    assert_eq!(
        witness.take(),
        ["admit Delete v1beta1.flunders a old 4/Ready new -", "validate Delete v1beta1.flunders a old 4/Ready new -",]
    );
}

#[tokio::test]
async fn what_a_plugin_refuses_does_not_happen() {
    let witness = Witness::default();
    let api = Api::with(Flunders::default(), vec![Arc::new(witness.clone())]).await;
    let mut sent = flunder("a");
    sent["spec"]["reference"] = json!("refused");
    let (reason, message) = api.post(FLUNDERS, &sent).await.fails(403);
    assert_eq!(
        (reason.as_str(), message.as_str()),
        ("Forbidden", r#"flunders.wardle.example.com "a" is forbidden: no"#)
    );
    let made = api.make("a").await;
    let uri = format!("{FLUNDERS}/a");
    api.merge(&uri, &json!({ "spec": { "reference": "refused" } })).await.fails(403);
    assert_eq!(api.get(&uri).await.is(200), made);

    let plain = Api::over(Arc::clone(&api.storage), Flunders::default(), Vec::new()).await;
    plain.merge(&uri, &json!({ "spec": { "reference": "refused" } })).await.is(200);
    api.delete(&uri, None).await.fails(403);
    api.delete(FLUNDERS, None).await.fails(403);
    api.get(&uri).await.is(200);
    // What is not valid does not reach the validating plugins.
    witness.take();
    let mut sent = flunder("b");
    sent["spec"]["size"] = json!(-5);
    api.post(FLUNDERS, &sent).await.fails(422);
    assert_eq!(witness.take().len(), 1);
}

#[tokio::test]
async fn names_that_are_made_are_known_to_the_validating_plugins() {
    let witness = Witness::default();
    let api = Api::with(Flunders::default(), vec![Arc::new(witness.clone())]).await;
    let mut sent = flunder("");
    sent["metadata"] = json!({ "generateName": "pizza-" });
    api.post(FLUNDERS, &sent).await.is(201);
    let seen = witness.take();
    assert!(seen[0].starts_with("admit Create v1beta1.flunders  old"), "{seen:?}");
    assert!(seen[1].starts_with("validate Create v1beta1.flunders pizza-"), "{seen:?}");
}
