//! What an update and an apply do to an object and to its managers (`merge/update.go`).

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::{
    fieldpath::{Filter, Path, Set},
    typed::{Comparison, TypedValue, ValidationErrors},
};

mod prune;

/// Converts objects between the versions of their API.
pub trait Converter {
    /// Converts an object to a version. One that has the version already is to be returned as it is.
    ///
    /// Objects may be incomplete: fields that the API requires may have been pruned.
    ///
    /// # Errors
    /// When the version is not known (any more), or the object cannot be converted.
    fn convert(&self, object: &TypedValue, version: &str) -> Result<TypedValue, ConvertError>;
}

/// Why an object was not converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// There is no such version, or no type for it. Managers of such versions are given up.
    #[error("{0}")]
    MissingVersion(String),
    /// Anything else, which fails the request.
    #[error("{0}")]
    Failed(String),
}

/// What a manager owns.
#[derive(Clone, Debug, PartialEq)]
pub struct Managed {
    /// The paths, in the version of the API in which it wrote.
    pub set: Set,
    /// That version, with its group.
    pub version: Arc<str>,
    /// Whether it applied, rather than updated.
    pub applied: bool,
}

/// Who owns what, by the managers' identifiers.
pub type Managers = BTreeMap<Arc<str>, Managed>;

/// A path that another manager owns.
#[derive(Clone, Debug, PartialEq)]
pub struct Conflict {
    /// Whose it is.
    pub manager: Arc<str>,
    /// The path.
    pub path: Path,
}

/// Every path of an apply that other managers own with another value: by manager, then in the order of paths.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{} conflicts", .0.len())]
pub struct Conflicts(pub Vec<Conflict>);

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum UpdateError {
    /// Others own what an apply would change.
    #[error(transparent)]
    Conflicts(#[from] Conflicts),
    /// A version of the object could not be made.
    #[error("{doing}: {error}")]
    Convert {
        /// What for.
        doing: &'static str,
        /// Why.
        error: ConvertError,
    },
    /// The values do not fit their types, or these the schema.
    #[error("{doing}: {errors}")]
    Invalid {
        /// What for.
        doing: &'static str,
        /// Why.
        errors: ValidationErrors,
    },
}

/// Whether an apply takes what others own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// It fails.
    No,
    /// It takes it.
    Yes,
}

/// Updates and applies.
#[derive(Clone, Copy)]
pub struct Updater<'a> {
    /// Converts to the versions of the managers.
    pub converter: &'a dyn Converter,
    /// What does not count, by version: the fields that the server resets.
    pub filters: &'a BTreeMap<Arc<str>, Filter>,
}

impl fmt::Debug for Updater<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Updater").field("filters", self.filters).finish_non_exhaustive()
    }
}

/// A conversion, of which a missing version is not an error.
enum Converted {
    Done(TypedValue),
    Missing,
}

impl Updater<'_> {
    /// Who owns what after an object was replaced by another one: the updater everything that it changed.
    ///
    /// # Errors
    /// When the objects cannot be converted to the managers' versions or compared there.
    pub fn update(
        &self,
        live: &TypedValue,
        new: &TypedValue,
        version: &Arc<str>,
        managers: &Managers,
        manager: &Arc<str>,
    ) -> Result<Managers, UpdateError> {
        let mut managers = self.reconcile(live, managers)?;
        let changed = self.hand_over(live, new, version, &mut managers, manager, Force::Yes)?;
        let before = managers.remove(manager).map(|managed| managed.set).unwrap_or_default();
        let owned = before.difference(&changed.removed).union(&changed.modified).union(&changed.added);
        let set = self.filtered(owned, version);
        if !set.is_empty() {
            managers.insert(manager.clone(), Managed { set, version: version.clone(), applied: false });
        }
        Ok(managers)
    }

    /// What becomes of an object by an apply, which is nothing if the object stays as it is, and who owns what.
    ///
    /// # Errors
    /// When others own what would change and `force` does not take it, or the objects cannot be converted or merged.
    pub fn apply(
        &self,
        live: &TypedValue,
        config: &TypedValue,
        version: &Arc<str>,
        managers: &Managers,
        manager: &Arc<str>,
        force: Force,
    ) -> Result<(Option<TypedValue>, Managers), UpdateError> {
        let mut managers = self.reconcile(live, managers)?;
        let merged = live.merge(config).map_err(invalid("failed to merge config"))?;
        let owned = config.to_field_set().map_err(invalid("failed to get field set"))?;
        let set = self.filtered(owned, version);
        let last = managers.insert(manager.clone(), Managed { set, version: version.clone(), applied: true });
        let new = match last {
            Some(last) if !last.set.is_empty() => self.prune(merged, &managers, version, &last)?,
            _ => merged,
        };
        self.hand_over(live, &new, version, &mut managers, manager, force)?;
        let changed = live.value() != new.value();
        Ok((changed.then_some(new), managers))
    }

    /// Takes from all managers but one what changes between two objects, and tells what changes in the version at hand.
    fn hand_over(
        &self,
        old: &TypedValue,
        new: &TypedValue,
        version: &Arc<str>,
        managers: &mut Managers,
        manager: &Arc<str>,
        force: Force,
    ) -> Result<Comparison, UpdateError> {
        let changed = self.compare(old, new, version)?;
        // Each version is compared once: what is there now and was not, and what is no more; `None` if it is missing.
        let parts = |changed: &Comparison| (changed.modified.union(&changed.added), changed.removed.clone());
        let mut versions = BTreeMap::from([(version.clone(), Some(parts(&changed)))]);
        let (mut conflicts, mut left) = (Vec::new(), Managers::new());
        for (id, managed) in managers.iter() {
            if id == manager {
                left.insert(id.clone(), managed.clone());
                continue;
            }
            if !versions.contains_key(&managed.version) {
                let compared = match self.both(old, new, &managed.version)? {
                    Some((old, new)) => Some(parts(&self.compare(&old, &new, &managed.version)?)),
                    None => None,
                };
                versions.insert(managed.version.clone(), compared);
            }
            let Some(Some((written, removed))) = versions.get(&managed.version) else { continue };
            let taken = managed.set.intersection(written);
            if force == Force::No {
                taken.for_each(|path| conflicts.push(Conflict { manager: id.clone(), path: path.into() }));
            }
            let set = managed.set.difference(&taken).difference(removed);
            left.insert(id.clone(), Managed { set, ..managed.clone() });
        }
        if !conflicts.is_empty() {
            return Err(Conflicts(conflicts).into());
        }
        left.retain(|_, managed| !managed.set.is_empty());
        *managers = left;
        Ok(changed)
    }

    /// Both objects in a version, if it is not missing.
    fn both(
        &self,
        old: &TypedValue,
        new: &TypedValue,
        version: &str,
    ) -> Result<Option<(TypedValue, TypedValue)>, UpdateError> {
        let Converted::Done(old) = self.convert(old, version, "failed to convert old object")? else {
            return Ok(None);
        };
        Ok(match self.convert(new, version, "failed to convert new object")? {
            Converted::Done(new) => Some((old, new)),
            Converted::Missing => None,
        })
    }

    fn compare(&self, old: &TypedValue, new: &TypedValue, version: &str) -> Result<Comparison, UpdateError> {
        let comparison = old.compare(new).map_err(invalid("failed to compare objects"))?;
        Ok(comparison.filtered(self.filters.get(version)))
    }

    /// Brings what managers own in line with the schema of today and drops those whose version is missing.
    fn reconcile(&self, live: &TypedValue, managers: &Managers) -> Result<Managers, UpdateError> {
        let mut versions = BTreeMap::new();
        let mut reconciled = Managers::new();
        for (id, managed) in managers {
            if !versions.contains_key(&managed.version) {
                let live = self.convert(live, &managed.version, "failed to convert live object")?;
                versions.insert(managed.version.clone(), live);
            }
            let Some(Converted::Done(live)) = versions.get(&managed.version) else { continue };
            let set = live.reconcile(&managed.set).map_err(invalid("errors reconciling field set with schema"))?;
            reconciled.insert(id.clone(), Managed { set, ..managed.clone() });
        }
        Ok(reconciled)
    }

    fn filtered(&self, set: Set, version: &str) -> Set {
        self.filters.get(version).map_or(set.clone(), |filter| filter.apply(&set))
    }

    fn convert(&self, object: &TypedValue, version: &str, doing: &'static str) -> Result<Converted, UpdateError> {
        match self.converter.convert(object, version) {
            Ok(object) => Ok(Converted::Done(object)),
            Err(ConvertError::MissingVersion(_)) => Ok(Converted::Missing),
            Err(error) => Err(UpdateError::Convert { doing, error }),
        }
    }
}

fn invalid(doing: &'static str) -> impl Fn(ValidationErrors) -> UpdateError {
    move |errors| UpdateError::Invalid { doing, errors }
}
