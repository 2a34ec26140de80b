//! The history of all claims, as the bare etcd tells it: every change, in order, none left out.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use etcd_client::{Client, EventType, GetOptions, WatchOptions, WatchStream};
use parking_lot::Mutex;
use serde_json::Value;

/// Where claims lie, by the proxy's documentation.
const CLAIMS: &str = "/etcd-proxy.meta/claims/";

/// Who holds a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) owner: String,
    pub(super) uid: String,
    /// The claim's version.
    pub(super) revision: i64,
}

/// One change of one claim.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) revision: i64,
    pub(super) prefix: String,
    pub(super) before: Option<Holder>,
    pub(super) after: Option<Holder>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub(super) changes: Vec<Change>,
    pub(super) held: BTreeMap<String, Holder>,
    /// What must never have been.
    pub(super) violations: Vec<String>,
    seen: i64,
}

#[derive(Clone)]
pub(super) struct Claims {
    client: Client,
    history: Arc<Mutex<History>>,
}

/// The key of a prefix' claim.
pub(super) fn key(prefix: &str) -> String {
    format!("{CLAIMS}{}", hex::encode(prefix))
}

impl Claims {
    /// Follows from now on: there is to be no claim yet.
    pub(super) async fn follow(mut client: Client) -> Result<Self> {
        let options = WatchOptions::new().with_prefix().with_progress_notify();
        let stream = client.watch(CLAIMS, Some(options)).await?;
        let this = Self { client, history: Arc::default() };
        let (mut client, history) = (this.client.clone(), this.history.clone());
        tokio::spawn(async move {
            if let Err(error) = record(&mut client, stream, &history).await {
                history.lock().violations.push(format!("the history is not whole: {error:#}"));
            }
        });
        Ok(this)
    }

    /// The history up to now.
    pub(super) async fn history(&self) -> Result<History> {
        let mut client = self.client.clone();
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        let waiting = async {
            loop {
                ticks.tick().await;
                // Asked anew each time: it may change before the watch tells.
                let now = client.get(CLAIMS, Some(GetOptions::new().with_prefix())).await?;
                let newest = now.kvs().iter().map(etcd_client::KeyValue::mod_revision).max().unwrap_or(0);
                let history = self.history.lock();
                if history.seen >= newest && history.held.len() == now.kvs().len() {
                    return Ok(history.clone());
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(5), waiting).await.context("the watch of claims is behind")?
    }
}

async fn record(client: &mut Client, mut stream: WatchStream, history: &Mutex<History>) -> Result<()> {
    while let Some(answer) = stream.message().await? {
        if answer.canceled() {
            bail!("the watch was cancelled: {}", answer.cancel_reason());
        }
        for event in answer.events() {
            let kv = event.kv().context("an event without a key")?;
            let hex = kv.key_str()?.strip_prefix(CLAIMS).context("a key elsewhere")?;
            let prefix = String::from_utf8(hex::decode(hex)?)?;
            let revision = kv.mod_revision();
            let after = match event.event_type() {
                EventType::Put => Some(holder(kv.value(), revision)?),
                EventType::Delete => None,
            };
            if after.is_none() {
                // A prefix is let go empty: asked of the very moment at which it was.
                let options = GetOptions::new().with_prefix().with_count_only().with_revision(revision);
                let left = client.get(prefix.as_str(), Some(options)).await?.count();
                if left > 0 {
                    history.lock().violations.push(format!("{prefix} was released with {left} keys"));
                }
            }
            history.lock().add(prefix, after, revision);
        }
        // Events of one revision come together.
        history.lock().verify();
    }
    bail!("the watch ended")
}

fn holder(claim: &[u8], revision: i64) -> Result<Holder> {
    let claim: Value = serde_json::from_slice(claim)?;
    let text = |field: &str| {
        let text = claim.get(field).and_then(Value::as_str);
        text.map(str::to_owned).with_context(|| format!("a claim without {field}: {claim}"))
    };
    Ok(Holder { owner: text("owner")?, uid: text("uid")?, revision })
}

// === impl History ===

impl History {
    fn add(&mut self, prefix: String, after: Option<Holder>, revision: i64) {
        let before = match after.clone() {
            Some(holder) => self.held.insert(prefix.clone(), holder),
            None => self.held.remove(&prefix),
        };
        self.seen = revision;
        self.changes.push(Change { revision, prefix, before, after });
    }

    /// No two prefixes held overlap.
    fn verify(&mut self) {
        let mut before: Option<(&String, &Holder)> = None;
        let mut found = Vec::new();
        // In order, a prefix comes right before what it contains, or before something else that it contains.
        for (prefix, holder) in &self.held {
            if let Some((outer, other)) = before.filter(|(outer, _)| prefix.starts_with(outer.as_str())) {
                found.push(format!("at {}: {outer} of {other:?} contains {prefix} of {holder:?}", self.seen));
            }
            before = Some((prefix, holder));
        }
        self.violations.extend(found);
    }

    /// Whether the prefix was given back after a revision.
    pub(super) fn released_since(&self, prefix: &str, revision: i64) -> bool {
        self.changes
            .iter()
            .any(|change| change.prefix == prefix && change.revision > revision && change.after.is_none())
    }
}

/// What it would take to go unnoticed.
#[cfg(test)]
mod tests {
    use super::*;

    fn held_by(uid: &str) -> Option<Holder> {
        Some(Holder { owner: format!("red/{uid}"), uid: uid.to_owned(), revision: 1 })
    }

    #[test]
    fn prefixes_that_overlap_are_noticed() {
        let mut history = History::default();
        for (revision, prefix) in ["/a/b/", "/a!/", "/b/", "/bb/"].into_iter().enumerate() {
            history.add(prefix.to_owned(), held_by(prefix), revision as i64);
            history.verify();
        }
        assert!(history.violations.is_empty(), "{:?}", history.violations);
        history.add("/a/".to_owned(), held_by("outer"), 9);
        history.verify();
        assert_eq!(history.violations.len(), 1, "{:?}", history.violations);
    }

    #[test]
    fn a_release_is_remembered() {
        let mut history = History::default();
        history.add("/a/".to_owned(), held_by("one"), 1);
        history.add("/a/".to_owned(), None, 5);
        history.add("/a/".to_owned(), held_by("two"), 6);
        assert!(history.released_since("/a/", 4) && !history.released_since("/a/", 5));
        assert_eq!(history.held.len(), 1);
    }
}
