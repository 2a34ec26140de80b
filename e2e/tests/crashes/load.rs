//! The load, and the record of what was acknowledged.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use kube::{
    Api, Client,
    api::{
        ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams, WatchEvent,
        WatchParams,
    },
};
use serde_json::json;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, MissedTickBehavior},
};

/// How many writes one object gets before the writer goes on to the next.
const WRITES_PER_OBJECT: u64 = 5;

/// The annotation that counts an object's writes.
const COUNT: &str = "example.com/count";

/// A writer tries again this often at most.
const PACE: Duration = Duration::from_millis(10);

/// A watch that tells nothing for this long is asked whether it is done.
const QUIET: Duration = Duration::from_millis(500);

/// A request that waits for a dead server is given up after this long.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was acknowledged, kept outside of everything that is killed.
#[derive(Default)]
pub(crate) struct Journal {
    acknowledged: parking_lot::Mutex<BTreeMap<u64, String>>,
    changed: Notify,
}

/// What is known of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// The last acknowledged write: its count and its revision.
    acknowledged: Option<(u64, u64)>,
    /// A write after that whose answer never came: its count. It may have happened.
    cut_off: Option<u64>,
}

/// Writes objects one after the other, each several times.
pub(crate) struct Writer {
    name: &'static str,
    pizzas: Api<DynamicObject>,
    journal: Arc<Journal>,
}

/// Watches all objects, and after each break resumes from the last revision seen: it never lists.
pub(crate) struct Observer {
    pizzas: Api<DynamicObject>,
    version: String,
}

/// What a watch told.
#[derive(Default)]
pub(crate) struct Seen {
    /// The objects of its events, by revision.
    pub(crate) events: BTreeMap<u64, String>,
    /// Everything in its order, to tell how a gap came about.
    trail: Vec<(&'static str, u64)>,
}

fn pizzas(client: &Client) -> (Api<DynamicObject>, ApiResource) {
    let kind = GroupVersionKind::gvk("restaurant.programming-kubernetes.info", "v1beta1", "Pizza");
    let resource = ApiResource::from_gvk_with_plural(&kind, "pizzas");
    (Api::namespaced_with(client.clone(), "default", &resource), resource)
}

/// The store's current resource version.
pub(crate) async fn version(client: &Client) -> Result<String> {
    let list = pizzas(client).0.list(&ListParams::default()).await?;
    list.metadata.resource_version.context("a list without a resource version")
}

/// All objects with count and revision.
pub(crate) async fn list(client: &Client) -> Result<BTreeMap<String, (u64, u64)>> {
    let list = pizzas(client).0.list(&ListParams::default()).await?;
    list.items
        .iter()
        .map(|object| {
            Ok((object.metadata.name.clone().context("an object without a name")?, (count(object)?, revision(object)?)))
        })
        .collect()
}

fn revision(object: &DynamicObject) -> Result<u64> {
    let version = object.metadata.resource_version.as_deref().context("an object without a resource version")?;
    version.parse().with_context(|| format!("resource version {version:?}"))
}

fn count(object: &DynamicObject) -> Result<u64> {
    let annotations = object.metadata.annotations.as_ref().context("an object without annotations")?;
    Ok(annotations.get(COUNT).context("an object without a count")?.parse()?)
}

// === impl Journal ===

impl Journal {
    fn acknowledge(&self, revision: u64, name: &str) -> Result<()> {
        let before = self.acknowledged.lock().insert(revision, name.to_owned());
        ensure!(before.is_none(), "{name} and {before:?} were both written at {revision}");
        self.changed.notify_one();
        Ok(())
    }

    /// What was acknowledged until now, by revision.
    pub(crate) fn acknowledged(&self) -> BTreeMap<u64, String> {
        self.acknowledged.lock().clone()
    }

    fn len(&self) -> usize {
        self.acknowledged.lock().len()
    }

    fn last(&self) -> Option<u64> {
        self.acknowledged.lock().last_key_value().map(|(revision, _)| *revision)
    }

    /// Waits for this many more writes.
    pub(crate) async fn progress(&self, count: usize, deadline: Instant) -> Result<()> {
        let goal = self.len() + count;
        while self.len() < goal {
            let waited = tokio::time::timeout_at(deadline, self.changed.notified()).await;
            ensure!(waited.is_ok(), "only {} of {goal} writes were acknowledged in time", self.len());
        }
        Ok(())
    }
}

// === impl State ===

impl State {
    /// Whether an object may be found so.
    pub(crate) fn allows(&self, found: Option<&(u64, u64)>) -> bool {
        match found {
            Some((count, revision)) => self.acknowledged == Some((*count, *revision)) || self.cut_off == Some(*count),
            None => self.acknowledged.is_none(),
        }
    }
}

// === impl Writer ===

impl Writer {
    pub(crate) fn new(name: &'static str, client: Client, journal: Arc<Journal>) -> Self {
        Self { name, pizzas: pizzas(&client).0, journal }
    }

    /// Writes until told to stop, and answers what should be found.
    pub(crate) async fn run(self, stopped: watch::Receiver<bool>) -> Result<BTreeMap<String, State>> {
        let mut states = BTreeMap::new();
        let mut pace = tokio::time::interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for number in 0_u64.. {
            let name = format!("{}-{number}", self.name);
            let mut state = State::default();
            for count in 1..=WRITES_PER_OBJECT {
                pace.tick().await;
                match tokio::time::timeout(PATIENCE, self.write(&name, count)).await {
                    Ok(Ok(object)) => {
                        let revision = revision(&object)?;
                        ensure!(
                            state.acknowledged.is_none_or(|(_, before)| before < revision),
                            "{name} went back to {revision}"
                        );
                        self.journal.acknowledge(revision, &name)?;
                        state.acknowledged = Some((count, revision));
                    }
                    // Whether it happened is not known; the next object then.
                    Ok(Err(_)) | Err(_) => {
                        state.cut_off = Some(count);
                        break;
                    }
                }
            }
            states.insert(name, state);
            if *stopped.borrow() {
                break;
            }
        }
        Ok(states)
    }

    async fn write(&self, name: &str, count: u64) -> kube::Result<DynamicObject> {
        let annotations = json!({COUNT: count.to_string()});
        if count == 1 {
            let object = json!({
                "apiVersion": "restaurant.programming-kubernetes.info/v1beta1", "kind": "Pizza",
                "metadata": {"name": name, "annotations": annotations}, "spec": {"toppings": [{"name": "tomato"}]},
            });
            let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
            self.pizzas.create(&PostParams::default(), &object).await
        } else {
            let patch = json!({"metadata": {"annotations": annotations}});
            self.pizzas.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
        }
    }
}

// === impl Seen ===

impl Seen {
    /// What was told around a revision that was not.
    pub(crate) fn around(&self, revision: u64) -> Vec<(&'static str, u64)> {
        let near = |(_, told): &&(&str, u64)| told.abs_diff(revision) < 30;
        self.trail.iter().filter(near).copied().collect()
    }

    fn last(&self) -> Option<u64> {
        self.events.last_key_value().map(|(revision, _)| *revision)
    }
}

// === impl Observer ===

impl Observer {
    pub(crate) fn new(client: Client, version: String) -> Self {
        Self { pizzas: pizzas(&client).0, version }
    }

    /// Watches until told to stop and everything acknowledged was seen.
    pub(crate) async fn run(mut self, stopped: watch::Receiver<bool>, journal: Arc<Journal>) -> Result<Seen> {
        let mut seen = Seen::default();
        let mut pace = tokio::time::interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pace.tick().await;
            let Ok(stream) = self.pizzas.watch(&WatchParams::default().timeout(60), &self.version).await else {
                continue;
            };
            seen.trail.push(("watch from", self.version.parse()?));
            let mut stream = std::pin::pin!(stream);
            loop {
                let last = seen.last();
                if *stopped.borrow() && last >= journal.last() {
                    return Ok(seen);
                }
                let event = match tokio::time::timeout(QUIET, stream.next()).await {
                    // Nothing happened; perhaps there is nothing more to come.
                    Err(_) => continue,
                    Ok(Some(Ok(event))) => event,
                    // A break of the connection is no event; the next watch goes on from the last one.
                    Ok(Some(Err(_)) | None) => break,
                };
                match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
                        let revision = revision(&object)?;
                        ensure!(last < Some(revision), "the watch went back to {revision}, or told it twice");
                        self.version = revision.to_string();
                        seen.trail.push(("event", revision));
                        seen.events.insert(revision, object.metadata.name.unwrap_or_default());
                    }
                    WatchEvent::Bookmark(bookmark) => {
                        self.version = bookmark.metadata.resource_version;
                        seen.trail.push(("bookmark", self.version.parse()?));
                    }
                    WatchEvent::Error(status) if status.code == 410 => {
                        bail!("the watch could not go on from {}: {status:?}", self.version)
                    }
                    WatchEvent::Error(_) => break,
                }
            }
        }
    }
}
