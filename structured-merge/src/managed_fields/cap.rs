//! A bound on the number of updaters (`internal/capmanagers.go`).

use std::{collections::HashMap, sync::Arc};

use super::{
    State,
    wire::{self, Operation},
};
use crate::updater::Managed;

/// As many entries of updaters are kept apart.
const MAX_UPDATERS: usize = 10;

/// Where the others go, one entry for each version.
const OLD_UPDATES: &str = "ancient-changes";

/// Folds the oldest entries of updaters, of which there is more than one of a version, until there are few enough.
pub(super) fn capped(mut state: State) -> State {
    let mut updaters: Vec<_> =
        state.fields.iter().filter(|(_, managed)| !managed.applied).map(|(id, _)| id.clone()).collect();
    let mut count = updaters.len();
    if count <= MAX_UPDATERS {
        return state;
    }
    updaters.sort_by(|a, b| (state.seconds(a), a).cmp(&(state.seconds(b), b)));
    let mut first_of_version: HashMap<Arc<str>, Arc<str>> = HashMap::new();
    for id in updaters {
        if count <= MAX_UPDATERS {
            break;
        }
        let Some(managed) = state.fields.get(&id).cloned() else { continue };
        let version = managed.version.clone();
        let Some(first) = first_of_version.get(&version) else {
            first_of_version.insert(version, id);
            continue;
        };
        let bucket = wire::identifier(OLD_UPDATES, Operation::Update, &version, "");
        if !state.fields.contains_key(&bucket)
            && let Some(first) = state.fields.remove(first)
        {
            state.fields.insert(bucket.clone(), first);
        }
        let folded = state.fields.get(&bucket).map(|bucket| bucket.set.clone()).unwrap_or_default();
        // The bucket itself may be the entry at hand: then it goes as any other would.
        let set = managed.set.union(&folded);
        state.fields.insert(bucket.clone(), Managed { set, ..managed });
        state.fields.remove(&id);
        count -= 1;
        let time = state.times.get(&id).copied();
        state.set_time(&bucket, time);
    }
    state
}
