//! Following a collection of objects as controllers do: its state, then every change, and the state anew whenever the
//! stream broke. The stream is one kubectl that stays connected, so that waiting costs nothing.

use std::{
    fs::OpenOptions,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use serde_json::Value;

use super::Kubectl;
use crate::{
    poll,
    site::{MARK, Site},
};

/// How long to wait before the next attempt while the server is away; doubled each time up to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// What became of a collection.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    /// These are all objects that there are: at the start, and after each broken stream.
    All(Vec<Value>),
    /// One is new or has changed.
    Put(Value),
    /// One is gone; its last state.
    Gone(Value),
}

/// A collection that is being followed. Dropping it ends that.
pub(super) struct Follower {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    ended: AtomicBool,
    stream: Mutex<Option<Child>>,
}

/// Reads the events of one watch in the order in which they come.
enum Reader {
    /// The objects that were there at the start are still being told.
    Initial(Vec<Value>),
    /// All that comes is a change.
    Following,
}

// === impl Follower ===

impl Follower {
    /// Follows the collection at `path`, such as `/api/v1/secrets`, as the user of `kubectl`. What goes wrong on the way
    /// stands in the site's log `name`.
    pub(super) fn start(
        site: &Site,
        kubectl: &Kubectl,
        name: &str,
        path: &str,
        sink: impl FnMut(Change) + Send + 'static,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let (site, kubectl, name, path) = (site.clone(), kubectl.clone(), name.to_owned(), path.to_owned());
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.follow(&site, &kubectl, &name, &path, sink))
        };
        Self { shared, thread: Some(thread) }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.end_stream();
        // A thread that panicked has said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

// === impl Shared ===

impl Shared {
    fn follow(&self, site: &Site, kubectl: &Kubectl, name: &str, path: &str, mut sink: impl FnMut(Change)) {
        let (first, last) = PAUSES;
        let mut pause = first;
        while !self.ended.load(Ordering::SeqCst) {
            let mut heard = false;
            let outcome = self.stream(site, kubectl, name, path, |change| {
                heard = true;
                sink(change);
            });
            self.end_stream();
            if let Err(error) = outcome
                && let Ok(mut log) = OpenOptions::new().create(true).append(true).open(site.log(name))
            {
                // The log is for a look at what went wrong; without it, following still goes on.
                let _ = std::io::Write::write_fmt(&mut log, format_args!("following {path}: {error:#}\n"));
            }
            pause = if heard { first } else { (pause * 2).min(last) };
            if !self.ended.load(Ordering::SeqCst) {
                poll::rest(pause);
            }
        }
    }

    /// One watch, to its end.
    fn stream(
        &self,
        site: &Site,
        kubectl: &Kubectl,
        name: &str,
        path: &str,
        mut sink: impl FnMut(Change),
    ) -> Result<()> {
        // The state as a stream of its own, closed by a bookmark (KEP-3157), so that nothing falls between a list and a
        // watch.
        let uri = format!(
            "{path}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        );
        let log = OpenOptions::new().create(true).append(true).open(site.log(name))?;
        let mut command = kubectl.command(&["get", "--raw", &uri]);
        command.env(MARK, site.dir()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        // Ctrl-C in the terminal is for its keeper.
        command.process_group(0);
        let mut child = command.spawn().context("starting kubectl")?;
        let stdout = child.stdout.take().context("kubectl's output is not piped")?;
        *self.stream.lock() = Some(child);
        // The end may have come before there was anything to end.
        if self.ended.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut reader = Reader::Initial(Vec::new());
        for line in BufReader::new(stdout).lines() {
            let event = serde_json::from_str(&line?).context("a line that is no event")?;
            if let Some(change) = reader.read(event)? {
                sink(change);
            }
        }
        Ok(())
    }

    fn end_stream(&self) {
        if let Some(mut child) = self.stream.lock().take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

// === impl Reader ===

impl Reader {
    fn read(&mut self, mut event: Value) -> Result<Option<Change>> {
        let object = event.get_mut("object").map(Value::take).context("an event without an object")?;
        let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
        match (kind, &mut *self) {
            ("ADDED", Self::Initial(objects)) => {
                objects.push(object);
                Ok(None)
            }
            ("BOOKMARK", Self::Initial(objects)) => {
                let end = object.pointer("/metadata/annotations/k8s.io~1initial-events-end");
                if end.and_then(Value::as_str) != Some("true") {
                    return Ok(None);
                }
                let objects = std::mem::take(objects);
                *self = Self::Following;
                Ok(Some(Change::All(objects)))
            }
            ("BOOKMARK", Self::Following) => Ok(None),
            ("ADDED" | "MODIFIED", Self::Following) => Ok(Some(Change::Put(object))),
            ("DELETED", Self::Following) => Ok(Some(Change::Gone(object))),
            ("ERROR", _) => bail!("the server ended the watch: {object}"),
            (_, Self::Initial(_)) => bail!("an event {kind:?} among those of the initial state"),
            (_, Self::Following) => bail!("an event of unknown type {kind:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, name: &str) -> Value {
        json!({"type": kind, "object": {"metadata": {"name": name}}})
    }

    fn end() -> Value {
        json!({"type": "BOOKMARK", "object": {"metadata": {"annotations": {"k8s.io/initial-events-end": "true"}}}})
    }

    #[test]
    fn the_state_is_told_as_one() {
        let mut reader = Reader::Initial(Vec::new());
        assert_eq!(reader.read(event("ADDED", "a")).unwrap(), None);
        assert_eq!(reader.read(event("BOOKMARK", "")).unwrap(), None, "a bookmark that is not the end");
        assert_eq!(reader.read(event("ADDED", "b")).unwrap(), None);
        let Some(Change::All(objects)) = reader.read(end()).unwrap() else { panic!("the state is complete") };
        assert_eq!(objects.len(), 2);
        assert!(matches!(reader.read(event("ADDED", "c")).unwrap(), Some(Change::Put(_))));
        assert!(matches!(reader.read(event("MODIFIED", "c")).unwrap(), Some(Change::Put(_))));
        assert!(matches!(reader.read(event("DELETED", "c")).unwrap(), Some(Change::Gone(_))));
        assert_eq!(reader.read(event("BOOKMARK", "")).unwrap(), None);
    }

    #[test]
    fn an_error_ends_the_stream() {
        for mut reader in [Reader::Initial(Vec::new()), Reader::Following] {
            assert!(reader.read(json!({"type": "ERROR", "object": {"code": 410}})).is_err());
            assert!(reader.read(json!({"type": "SURPRISE", "object": {}})).is_err());
        }
    }
}
