//! What clients asked and what they were told, by the clock of the test.

use std::{fmt, time::Duration};

/// A revision of the etcd.
pub(crate) type Revision = i64;

/// A register: one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Register(pub(crate) u8);

/// A key that is there. Every write has a value of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kv {
    pub(crate) value: u64,
    pub(crate) version: i64,
    pub(crate) created: Revision,
    pub(crate) modified: Revision,
}

/// What is asked of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Get,
    Put(u64),
    Delete,
    /// A put on condition that nothing was written since.
    Swap {
        expected: Option<Kv>,
        value: u64,
    },
}

/// An answer: each says what it found in the register, whatever it did to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// That of its header: of the write, or of the state that was read.
    pub(crate) revision: Revision,
    pub(crate) before: Option<Kv>,
    /// Whether something was written.
    pub(crate) wrote: bool,
}

/// One call of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) client: usize,
    pub(crate) register: Register,
    pub(crate) request: Request,
    pub(crate) called: Duration,
    /// When it was answered, and what. Without an answer it may have happened, may yet happen, or never does.
    pub(crate) answered: Option<(Duration, Answer)>,
}

// === impl Register ===

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "register/{}", self.0)
    }
}

// === impl Kv ===

impl Kv {
    /// What a put at `revision` makes of a register.
    pub(crate) fn put(before: Option<Self>, value: u64, revision: Revision) -> Self {
        let (version, created) = before.map_or((1, revision), |before| (before.version + 1, before.created));
        Self { value, version, created, modified: revision }
    }
}

// === impl Request ===

impl Request {
    /// The value that it writes, if it does.
    pub(crate) fn value(&self) -> Option<u64> {
        match self {
            Self::Put(value) | Self::Swap { value, .. } => Some(*value),
            Self::Get | Self::Delete => None,
        }
    }
}

// === impl Answer ===

impl Answer {
    /// What is in the register after `request`.
    pub(crate) fn after(&self, request: &Request) -> Option<Kv> {
        match request {
            _ if !self.wrote => self.before,
            Request::Delete => None,
            _ => request.value().map(|value| Kv::put(self.before, value, self.revision)),
        }
    }
}
