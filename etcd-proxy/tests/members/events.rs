//! What watchers asked and were told, and what really happened.

use std::time::Duration;

use crate::history::{Kv, Revision};

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) revision: Revision,
    pub(crate) key: String,
    /// What was put; `None` for a deletion.
    pub(crate) put: Option<Kv>,
    /// What was there before, where that was asked for.
    pub(crate) before: Option<Kv>,
}

/// One answer of a watch, after the one that says it was created.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    /// When it came, by the clock of the test.
    pub(crate) at: Duration,
    /// That of its header.
    pub(crate) revision: Revision,
    /// Empty: it tells of progress up to its revision.
    pub(crate) events: Vec<Event>,
}

/// What is filtered out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Without {
    Puts,
    Deletes,
}

/// What a watch is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// Every key that begins so.
    pub(crate) prefix: &'static str,
    /// The first revision; 0 for what comes after now.
    pub(crate) start: Revision,
    pub(crate) without: Option<Without>,
    pub(crate) before: bool,
}

/// One watch, from its creation until it ended.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) asked: Asked,
    pub(crate) responses: Vec<Response>,
}

/// Every event there was, from the first revision on.
#[derive(Debug)]
pub(crate) struct Truth(Vec<Event>);

// === impl Event ===

impl Event {
    /// What it says of its key, whatever it was asked to say of the state before.
    pub(crate) fn change(&self) -> (Revision, &str, Option<Kv>) {
        (self.revision, &self.key, self.put)
    }
}

// === impl Response ===

impl Response {
    /// Everything up to this has been told.
    pub(crate) fn told(&self) -> Revision {
        self.events.last().map_or(self.revision, |event| event.revision)
    }
}

// === impl Asked ===

impl Asked {
    /// Whether an event is one of those that were asked for.
    pub(crate) fn matches(&self, event: &Event) -> bool {
        let filtered = match self.without {
            Some(Without::Puts) => event.put.is_some(),
            Some(Without::Deletes) => event.put.is_none(),
            None => false,
        };
        event.key.starts_with(self.prefix) && !filtered
    }
}

// === impl Watch ===

impl Watch {
    /// All its events.
    pub(crate) fn events(&self) -> impl Iterator<Item = &Event> {
        self.responses.iter().flat_map(|response| &response.events)
    }

    /// Everything up to this has been told; 0 when nothing was.
    pub(crate) fn told(&self) -> Revision {
        self.responses.last().map_or(0, Response::told)
    }
}

// === impl Truth ===

impl Truth {
    /// # Errors
    /// When the events are no history: revisions run backwards, or one does not say what the events before it left.
    pub(crate) fn new(events: Vec<Event>) -> Result<Self, String> {
        let mut state = std::collections::HashMap::new();
        let mut last = 0;
        for event in &events {
            let before = match event.put {
                Some(kv) => state.insert(event.key.clone(), kv),
                None => state.remove(&event.key),
            };
            if before != event.before || event.revision < last {
                return Err(format!("the members' own history is none: {before:?} at {last}, then {event:?}"));
            }
            last = event.revision;
        }
        Ok(Self(events))
    }

    /// All events.
    pub(crate) fn events(&self) -> &[Event] {
        &self.0
    }

    /// The events from a revision on that a watch asks for.
    pub(crate) fn from<'a>(&'a self, start: Revision, asked: &'a Asked) -> impl Iterator<Item = &'a Event> {
        let first = self.0.partition_point(|event| event.revision < start);
        self.0[first..].iter().filter(|event| asked.matches(event))
    }

    /// The event of a revision and key.
    pub(crate) fn at(&self, revision: Revision, key: &str) -> Option<&Event> {
        let first = self.0.partition_point(|event| event.revision < revision);
        self.0[first..].iter().take_while(|event| event.revision == revision).find(|event| event.key == key)
    }
}
