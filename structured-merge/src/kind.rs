//! Kinds of objects.

use std::fmt;

use crate::value::Value;

/// A kind of objects in one version of its API.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// The API group, empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The kind.
    pub kind: String,
}

impl Kind {
    /// A kind by the group and version of its `apiVersion`. One that is malformed makes it nothing at all, as in Go.
    pub fn new(api_version: &str, kind: &str) -> Self {
        let (group, version) = match api_version.split_once('/') {
            Some((_, version)) if version.contains('/') => return Self::default(),
            Some((group, version)) => (group, version),
            None => ("", api_version),
        };
        Self { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
    }

    /// The kind that an object says it is.
    pub fn of(object: &Value) -> Self {
        let text = |name| object.get(name).and_then(Value::as_str).unwrap_or_default();
        Self::new(text("apiVersion"), text("kind"))
    }

    /// The group and version, as objects write them.
    pub fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }
}

/// `group/version, Kind=kind`, as Go prints it.
impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}
