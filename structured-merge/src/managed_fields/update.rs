//! Updates: every write that is no apply (`internal/fieldmanager.go`, `internal/skipnonapplied.go`).

use super::{
    FieldManager, FieldManagerError, Request, State, cap,
    object::{managed_fields, metadata, set_managed_fields, without_managed_fields},
    wire::{self, Operation},
};
use crate::value::Value;

/// The name of managers that have none.
const UNKNOWN: &str = "unknown";

impl FieldManager<'_> {
    /// The new object with the managed fields that it has after it replaced the live one. Both are in the hub version. For
    /// a create the live object is an empty one of the kind.
    ///
    /// # Errors
    /// When the objects do not fit their types or versions. A server goes on without, see [`FieldManager::update_no_errors`].
    pub fn update(&self, live: &Value, new: &Value, request: Request<'_>) -> Result<Value, FieldManagerError> {
        let state = self.live_or_new(live, new);
        let mut new = without_managed_fields(new);
        let state = self.skipping_update(live, &new, state, request)?;
        set_managed_fields(&mut new, state.encode());
        Ok(new)
    }

    /// As [`FieldManager::update`], but what fails leaves the live object's managed fields as they are, and is handed back
    /// beside the object.
    pub fn update_no_errors(
        &self,
        live: &Value,
        new: &Value,
        request: Request<'_>,
    ) -> (Value, Option<FieldManagerError>) {
        match self.update(live, new, request) {
            Ok(object) => (object, None),
            Err(error) => {
                let mut new = without_managed_fields(new);
                set_managed_fields(&mut new, managed_fields(live).cloned());
                (new, Some(error))
            }
        }
    }

    /// The managers to start from: those that the client sends back, unless it resets them or knows nothing of them.
    fn live_or_new(&self, live: &Value, new: &Value) -> State {
        let of_live = || State::decode(managed_fields(live)).unwrap_or_default();
        if !self.subresource.is_empty() {
            return of_live();
        }
        let sent = managed_fields(new);
        if is_reset(sent) {
            return State::default();
        }
        match State::decode(sent) {
            Ok(state) if !state.fields.is_empty() => state,
            _ => of_live(),
        }
    }

    /// What exists and was never tracked is not tracked from now on either; what is created is.
    fn skipping_update(
        &self,
        live: &Value,
        new: &Value,
        state: State,
        request: Request<'_>,
    ) -> Result<State, FieldManagerError> {
        if state.fields.is_empty() && !metadata(live, "uid").is_empty() {
            return Ok(state);
        }
        self.capped_update(live, new, state, request)
    }

    /// Keeps the number of updaters within bounds.
    pub(super) fn capped_update(
        &self,
        live: &Value,
        new: &Value,
        state: State,
        request: Request<'_>,
    ) -> Result<State, FieldManagerError> {
        let manager = self.identifier(request.manager, Operation::Update);
        self.timed_update(live, new, state, &manager, request).map(cap::capped)
    }

    /// The identifier of a request's manager.
    pub(super) fn identifier(&self, manager: &str, operation: Operation) -> std::sync::Arc<str> {
        let manager = if manager.is_empty() { UNKNOWN } else { manager };
        wire::identifier(manager, operation, &self.kind.api_version(), self.subresource)
    }
}

/// Whether a client asks to forget all managers: by an empty list, or one with an empty entry.
fn is_reset(sent: Option<&Value>) -> bool {
    const FIELDS: [&str; 7] = ["manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1", "subresource"];
    match sent.and_then(Value::as_list) {
        Some([]) => true,
        Some([Value::Map(only)]) => FIELDS.iter().all(|name| match only.get(name) {
            None | Some(Value::Null) => true,
            Some(value) => value.as_str() == Some(""),
        }),
        _ => false,
    }
}
