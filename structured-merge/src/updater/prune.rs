//! What an applier no longer sends goes, unless somebody else owns it (`prune` in `merge/update.go`).

use std::{collections::BTreeMap, sync::Arc};

use super::{Converted, Managed, Managers, UpdateError, Updater, invalid};
use crate::{fieldpath::Set, typed::TypedValue};

impl Updater<'_> {
    /// Takes out of a merged object what its manager applied `last` and nobody owns now.
    pub(super) fn prune(
        &self,
        merged: TypedValue,
        managers: &Managers,
        version: &str,
        last: &Managed,
    ) -> Result<TypedValue, UpdateError> {
        const DOING: &str = "failed to prune fields: failed to convert merged object to last applied version";
        let Converted::Done(converted) = self.convert(&merged, &last.version, DOING)? else { return Ok(merged) };
        let pruned = converted.remove(&converted.named(&last.set));
        let pruned = self.add_back_owned(&converted, pruned, &last.version, managers)?;
        let pruned = self.add_back_dangling(&converted, &pruned, last)?;
        match self.converter.convert(&pruned, version) {
            Ok(pruned) => Ok(pruned),
            Err(error) => Err(UpdateError::Convert { doing: "failed to prune fields", error }),
        }
    }

    /// Adds back what a manager owns, the applier itself included, version by version.
    fn add_back_owned(
        &self,
        merged: &TypedValue,
        pruned: TypedValue,
        first: &Arc<str>,
        managers: &Managers,
    ) -> Result<TypedValue, UpdateError> {
        const MERGED: &str = "failed to prune fields: failed add back owned items: failed to convert merged object";
        const PRUNED: &str = "failed to prune fields: failed add back owned items: failed to convert pruned object";
        let mut owned: BTreeMap<&Arc<str>, Set> = BTreeMap::new();
        for managed in managers.values() {
            let set = owned.entry(&managed.version).or_default();
            *set = set.union(&managed.set);
        }
        // The version at hand comes first: a field that another version needs may be back by then.
        let at_hand = owned.remove_entry(first);
        let (mut merged, mut pruned) = (merged.clone(), pruned);
        for (version, owned) in at_hand.into_iter().chain(owned) {
            let Converted::Done(merged_there) = self.convert(&merged, version, MERGED)? else { continue };
            merged = merged_there;
            let Converted::Done(pruned_there) = self.convert(&pruned, version, PRUNED)? else { continue };
            let (all, kept) = (fields(&merged)?, fields(&pruned_there)?);
            pruned = merged.remove(&all.difference(&kept.union(&merged.named(&owned))));
        }
        Ok(pruned)
    }

    /// Adds back what never was the applier's, such as what stands below something that it owned.
    fn add_back_dangling(
        &self,
        merged: &TypedValue,
        pruned: &TypedValue,
        last: &Managed,
    ) -> Result<TypedValue, UpdateError> {
        const DOING: &str = "failed to prune fields: failed add back dangling items: failed to convert pruned object";
        let Converted::Done(pruned) = self.convert(pruned, &last.version, DOING)? else { return Ok(merged.clone()) };
        let gone = fields(merged)?.difference(&fields(&pruned)?);
        Ok(merged.remove(&gone.intersection(&merged.named(&last.set))))
    }
}

/// The paths of an object, with the declared fields on the way.
fn fields(object: &TypedValue) -> Result<Set, UpdateError> {
    let set = object.to_field_set().map_err(invalid("failed to prune fields: failed to create field set"))?;
    Ok(object.named(&set))
}
