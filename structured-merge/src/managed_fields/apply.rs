//! Applies (`internal/fieldmanager.go`, `internal/versioncheck.go`, `internal/skipnonapplied.go`).

use std::sync::Arc;

use super::{
    FieldManager, FieldManagerError, Request, State,
    object::{managed_fields, set_managed_fields},
    wire::Operation,
};
use crate::{
    Kind,
    value::{Map, Value},
};

/// Whoever owned what was there before the first apply.
const BEFORE: &str = "before-first-apply";

impl FieldManager<'_> {
    /// What becomes of the live object, in the hub version, by a configuration, in the request's. To create an object the
    /// live one is an empty one of the kind.
    ///
    /// # Errors
    /// When the configuration is not of the request's kind or does not fit its type, when others own what would change,
    /// when the live object's managed fields cannot be read, or an object cannot be converted.
    pub fn apply(&self, live: &Value, config: &Value, request: Request<'_>) -> Result<Value, FieldManagerError> {
        let state = State::decode(managed_fields(live))?;
        let (mut object, state) = self.checked_apply(live, config, state, request)?;
        set_managed_fields(&mut object, state.encode());
        Ok(object)
    }

    fn checked_apply(
        &self,
        live: &Value,
        config: &Value,
        state: State,
        request: Request<'_>,
    ) -> Result<(Value, State), FieldManagerError> {
        let kind = Kind::of(config);
        if kind != *self.kind {
            return Err(FieldManagerError::Kind(kind));
        }
        self.annotated_apply(live, config, state, request)
    }

    /// Gives what nobody owns yet to somebody, so that an apply does not take it without asking.
    pub(super) fn skipping_apply(
        &self,
        live: &Value,
        config: &Value,
        mut state: State,
        request: Request<'_>,
    ) -> Result<(Value, State), FieldManagerError> {
        if state.fields.is_empty() {
            let named = |name: &str| (Arc::from(name), config.get(name).cloned().unwrap_or_default());
            let empty = Map::from_iter([named("apiVersion"), named("kind")]).into();
            let before = Request { manager: BEFORE, ..request };
            state = self
                .capped_update(&empty, live, state, before)
                .map_err(|error| FieldManagerError::Existing(Box::new(error)))?;
        }
        let manager = self.identifier(request.manager, Operation::Apply);
        self.timed_apply(live, config, state, &manager, request)
    }
}
