//! Conflicts as a client is told of them (`internal/conflict.go`).

use std::fmt;

use super::wire;
use crate::{text, updater::Conflicts};

/// An apply would change what others own: 409, reason `Conflict`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConflictError(pub Conflicts);

/// One cause of a conflict, of the type `FieldManagerConflict`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    /// With whom.
    pub message: String,
    /// The path.
    pub field: String,
}

impl ConflictError {
    /// A cause for each path. Go's order among managers is random; this one is by identifier.
    pub fn causes(&self) -> Vec<Cause> {
        let cause = |conflict: &crate::updater::Conflict| Cause {
            message: format!("conflict with {}", manager(&conflict.manager)),
            field: conflict.path.to_string(),
        };
        self.0.0.iter().map(cause).collect()
    }
}

impl std::error::Error for ConflictError {}

/// The message of the status.
impl fmt::Display for ConflictError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conflicts = &self.0.0;
        if let [only] = conflicts.as_slice() {
            return write!(
                out,
                "Apply failed with 1 conflict: conflict with {}: {}",
                manager(&only.manager),
                only.path
            );
        }
        write!(out, "Apply failed with {} conflicts: ", conflicts.len())?;
        let mut last = None;
        for conflict in conflicts {
            if last != Some(&conflict.manager) {
                let line = if last.is_some() { "\n" } else { "" };
                write!(out, "{line}conflicts with {}:", manager(&conflict.manager))?;
                last = Some(&conflict.manager);
            }
            write!(out, "\n- {}", conflict.path)?;
        }
        Ok(())
    }
}

/// A manager as messages name it. Identifiers hold no time, so none is told.
fn manager(id: &str) -> String {
    let Some(said) = wire::parse_identifier(id) else { return text::quote(id) };
    let mut name = text::quote(&said.manager);
    if !said.subresource.is_empty() {
        name.push_str(&format!(" with subresource {}", text::quote(&said.subresource)));
    }
    if said.operation == wire::Operation::Update.name() {
        name.push_str(&format!(" using {}", said.api_version));
    }
    name
}
