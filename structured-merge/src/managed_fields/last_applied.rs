//! The annotation of kubectl's client-side apply (`internal/lastappliedupdater.go`, `internal/lastappliedmanager.go`).

use super::{
    ConflictError, FieldManager, FieldManagerError, Request, State,
    object::{annotations, set_annotations},
};
use crate::{
    fieldpath::Set,
    typed::Duplicates,
    updater::{Conflicts, Force},
    value::{
        Map, Value,
        json::{self, Encoder},
    },
};

/// What was applied last, as JSON.
const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Who alone moves from the client's side to the server's. Whoever does not want that takes another name.
const KUBECTL: &str = "kubectl";

/// How much all annotations of an object may hold.
const MAX_ANNOTATIONS: usize = 256 * 1024;

impl FieldManager<'_> {
    /// Keeps the annotation of an object that has one up to date.
    pub(super) fn annotated_apply(
        &self,
        live: &Value,
        config: &Value,
        state: State,
        request: Request<'_>,
    ) -> Result<(Value, State), FieldManagerError> {
        let (mut object, state) = self.forgiving_apply(live, config, state, request)?;
        if request.manager == KUBECTL && last_applied(&object).is_some() {
            let mut changed = annotations(&object).cloned().unwrap_or_default();
            changed.insert(ANNOTATION, written(config).into());
            let size: usize =
                changed.entries().iter().map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
            if size > MAX_ANNOTATIONS {
                changed.remove(ANNOTATION);
            }
            set_annotations(&mut object, Some(changed));
        }
        Ok((object, state))
    }

    /// Forgives conflicts about what kubectl applied on the client's side, and what has not changed since.
    fn forgiving_apply(
        &self,
        live: &Value,
        config: &Value,
        state: State,
        request: Request<'_>,
    ) -> Result<(Value, State), FieldManagerError> {
        let conflicts = match self.skipping_apply(live, config, state.clone(), request) {
            Err(FieldManagerError::Conflict(ConflictError(conflicts))) if request.manager == KUBECTL => conflicts,
            result => return result,
        };
        let Some(allowed) = self.unchanged_since_applied(live) else {
            return Err(ConflictError(conflicts).into());
        };
        let others: Vec<_> =
            conflicts.0.into_iter().filter(|conflict| !allowed.contains(conflict.path.elements())).collect();
        if !others.is_empty() {
            return Err(ConflictError(Conflicts(others)).into());
        }
        self.skipping_apply(live, config, state, Request { force: Force::Yes, ..request })
    }

    /// The paths of the annotation that are in the live object as they are there. Nothing if anything is wrong with it.
    fn unchanged_since_applied(&self, live: &Value) -> Option<Set> {
        let applied: Value = serde_json::from_str(last_applied(live)?).ok()?;
        let version = self.kind.api_version();
        let has_kind = applied.get("kind").and_then(Value::as_str).is_some_and(|kind| !kind.is_empty());
        if applied.get("apiVersion").and_then(Value::as_str) != Some(&version) || !has_kind {
            return None;
        }
        let live = self.objects.convert(live, &version).ok()?;
        let live = self.check(&live, Duplicates::Refused).ok()?;
        let applied = self.check(&applied, Duplicates::Refused).ok()?;
        let changed = applied.compare(&live).ok()?;
        let owned = applied.to_field_set().ok()?;
        Some(owned.difference(&changed.modified).difference(&changed.added).difference(&changed.removed))
    }
}

fn last_applied(object: &Value) -> Option<&str> {
    annotations(object)?.get(ANNOTATION)?.as_str().filter(|text| !text.is_empty())
}

/// A configuration as the annotation holds it: without the annotation, and with a line feed at the end.
fn written(config: &Value) -> String {
    let mut config = config.clone();
    let others = annotations(&config).cloned().map(|mut others: Map| {
        others.remove(ANNOTATION);
        others
    });
    set_annotations(&mut config, others);
    let mut out = String::new();
    json::write(&config, Encoder::Standard, &mut out);
    out.push('\n');
    out
}
