//! The innermost layers: structured merge, whose metadata nobody owns, and when it was (`internal/structuredmerge.go`,
//! `internal/versionconverter.go`, `internal/stripmeta.go`, `internal/managedfieldsupdater.go`).

use std::sync::{Arc, LazyLock};

use super::{
    ConflictError, FieldManager, FieldManagerError, Request, State, TypeError,
    object::{managed_fields, name, without_managed_fields},
};
use crate::{
    Kind,
    fieldpath::{Path, Set},
    typed::{Duplicates, TypedValue},
    updater::{ConvertError, Converter, Managed, UpdateError, Updater},
    value::Value,
};

/// The manager as which an update runs, until it is clear whether it changes anything.
const CURRENT: &str = "current-operation";

/// What nobody owns: what identifies an object and what the server sets.
static STRIPPED: LazyLock<Set> = LazyLock::new(|| {
    let top = ["apiVersion", "kind", "metadata"].map(|name| Path::fields(&[name]));
    let metadata = [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ]
    .map(|name| Path::fields(&["metadata", name]));
    top.iter().chain(&metadata).collect()
});

impl FieldManager<'_> {
    /// The time of a manager moves when it takes a field. It runs as somebody else first, so that what it owned already is
    /// treated like everybody's: it keeps that, and the version of the entry is the new one.
    pub(super) fn timed_update(
        &self,
        live: &Value,
        new: &Value,
        state: State,
        manager: &Arc<str>,
        request: Request<'_>,
    ) -> Result<State, FieldManagerError> {
        let current: Arc<str> = CURRENT.into();
        let mut state = self.stripped_update(live, new, state, &current)?;
        if let Some(taken) = state.fields.remove(&current) {
            let set = match state.fields.get(manager) {
                Some(before) => taken.set.union(&before.set),
                None => taken.set,
            };
            state.fields.insert(manager.clone(), Managed { set, ..taken });
            state.set_time(manager, Some(request.now));
        }
        Ok(state)
    }

    /// The time of a manager moves when the object changes.
    pub(super) fn timed_apply(
        &self,
        live: &Value,
        config: &Value,
        state: State,
        manager: &Arc<str>,
        request: Request<'_>,
    ) -> Result<(Value, State), FieldManagerError> {
        let (object, mut state) = self.stripped_apply(live, config, state, manager, request)?;
        Ok(match object {
            Some(object) => {
                state.set_time(manager, Some(request.now));
                (object, state)
            }
            None => (without_managed_fields(live), state),
        })
    }

    fn stripped_update(
        &self,
        live: &Value,
        new: &Value,
        state: State,
        manager: &Arc<str>,
    ) -> Result<State, FieldManagerError> {
        let mut state = self.structured_update(live, new, state, manager)?;
        strip(&mut state, manager);
        Ok(state)
    }

    fn stripped_apply(
        &self,
        live: &Value,
        config: &Value,
        state: State,
        manager: &Arc<str>,
        request: Request<'_>,
    ) -> Result<(Option<Value>, State), FieldManagerError> {
        let (object, mut state) = self.structured_apply(live, config, state, manager, request)?;
        strip(&mut state, manager);
        Ok((object, state))
    }

    fn structured_update(
        &self,
        live: &Value,
        new: &Value,
        state: State,
        manager: &Arc<str>,
    ) -> Result<State, FieldManagerError> {
        let version: Arc<str> = self.kind.api_version().into();
        let new = self.convert(new, &version, || {
            format!("new object ({}) to proper version ({}/{})", name(new), self.kind.group, self.kind.version)
        })?;
        let live = self.convert(live, &version, || format!("live object ({}) to proper version", name(live)))?;
        let typed = |object: &Value, which| {
            self.typed(object, Duplicates::Allowed, || {
                format!("convert {which} object ({}) to smd typed", name(object))
            })
        };
        let (typed_new, typed_live) = (typed(&new, "new")?, typed(&live, "live")?);
        let updater = Updater { converter: self, filters: self.reset_fields };
        let fields = updater
            .update(&typed_live, &typed_new, &version, &state.fields, manager)
            .map_err(|error| FieldManagerError::Update { object: name(&new), error })?;
        Ok(State { fields, times: state.times })
    }

    /// The object that an apply makes, in the hub version, or nothing if it changes nothing but managers.
    fn structured_apply(
        &self,
        live: &Value,
        config: &Value,
        state: State,
        manager: &Arc<str>,
        request: Request<'_>,
    ) -> Result<(Option<Value>, State), FieldManagerError> {
        let version: Arc<str> = self.kind.api_version().into();
        let found = Kind::of(config).api_version();
        if found != *version {
            return Err(FieldManagerError::Version { found, expected: version.to_string() });
        }
        if managed_fields(config).is_some() {
            return Err(FieldManagerError::ManagedFields);
        }
        let live = self.convert(live, &version, || format!("live object ({}) to proper version", name(live)))?;
        let typed_config =
            self.typed(config, Duplicates::Refused, || format!("create typed patch object ({})", name(config)))?;
        let typed_live =
            self.typed(&live, Duplicates::Allowed, || format!("create typed live object ({})", name(&live)))?;
        let updater = Updater { converter: self, filters: self.reset_fields };
        let (object, fields) = updater
            .apply(&typed_live, &typed_config, &version, &state.fields, manager, request.force)
            .map_err(|error| match error {
                UpdateError::Conflicts(conflicts) => ConflictError(conflicts).into(),
                error => FieldManagerError::Apply(error),
            })?;
        let state = State { fields, times: state.times };
        let Some(object) = object else { return Ok((None, state)) };
        let mut object =
            self.convert(object.value(), &version, || format!("new object ({}) to proper version", name(config)))?;
        self.objects.default(&mut object);
        let object = self.convert(&object, self.hub, || format!("to unversioned ({})", name(config)))?;
        Ok((Some(object), state))
    }

    /// An object in another version.
    pub(super) fn convert(
        &self,
        object: &Value,
        version: &str,
        what: impl FnOnce() -> String,
    ) -> Result<Value, FieldManagerError> {
        self.objects.convert(object, version).map_err(|error| FieldManagerError::Convert { what: what(), error })
    }

    fn typed(
        &self,
        object: &Value,
        duplicates: Duplicates,
        doing: impl FnOnce() -> String,
    ) -> Result<TypedValue, FieldManagerError> {
        self.check(object, duplicates).map_err(|error| FieldManagerError::Type { doing: doing(), error })
    }

    /// An object with the type of its kind.
    pub(super) fn check(&self, object: &Value, duplicates: Duplicates) -> Result<TypedValue, TypeError> {
        let kind = Kind::of(object);
        let of = self.types.type_of(&kind).ok_or(TypeError::NoType(kind))?;
        Ok(of.check(object.clone(), duplicates)?)
    }
}

/// Conversions of typed objects go through the hub version and are checked strictly: duplicates that the live object may
/// have fail here.
impl Converter for FieldManager<'_> {
    fn convert(&self, object: &TypedValue, version: &str) -> Result<TypedValue, ConvertError> {
        let value = object.value();
        let from = Kind::of(value);
        if from.api_version() == version {
            return Ok(object.clone());
        }
        let (_, hub) = self.hub.rsplit_once('/').unwrap_or(("", self.hub));
        let hub = Kind { version: hub.to_owned(), ..from }.api_version();
        let converted = self.objects.convert(&self.objects.convert(value, &hub)?, version)?;
        self.check(&converted, Duplicates::Refused).map_err(|error| match error {
            TypeError::NoType(_) => ConvertError::MissingVersion(error.to_string()),
            TypeError::Invalid(errors) => ConvertError::Failed(errors.to_string()),
        })
    }
}

fn strip(state: &mut State, manager: &Arc<str>) {
    let Some(managed) = state.fields.get_mut(manager) else { return };
    managed.set = managed.set.difference(&STRIPPED);
    if managed.set.is_empty() {
        state.fields.remove(manager);
    }
}
