//! What of a comparison or a set counts: reset fields.

use super::{Entry, PathElement, Set};

/// Takes paths out of sets.
///
/// A server that throws parts of a request away excludes them, so that nobody owns what was not stored.
#[derive(Clone, Debug)]
pub enum Filter {
    /// All but these paths and what is below them.
    Exclude(Set),
    /// Only what one of the patterns names.
    Include(Pattern),
}

/// Patterns of paths, as a tree: which elements are taken, and what of those below them.
#[derive(Clone, Debug, Default)]
pub struct Pattern {
    /// Everything.
    any: bool,
    /// `None` stands for every element. These come first, and count before the others.
    elements: Vec<(Option<PathElement>, Pattern)>,
}

impl Filter {
    /// The part of a set that counts.
    pub fn apply(&self, set: &Set) -> Set {
        match self {
            Self::Exclude(paths) => set.recursive_difference(paths),
            Self::Include(pattern) => pattern.matching(set),
        }
    }
}

impl Pattern {
    /// The paths that start as one of these, each element of which is given or, where it is `None`, any. Those on the way
    /// there are taken too, as `PrefixMatcher` and `FilterIncludeMatches` of Go's `fieldpath` do.
    pub fn prefixes<'a>(prefixes: impl IntoIterator<Item = &'a [Option<PathElement>]>) -> Self {
        let mut pattern = Self::default();
        for prefix in prefixes {
            pattern.add(prefix);
        }
        pattern
    }

    fn add(&mut self, prefix: &[Option<PathElement>]) {
        let Some((first, rest)) = prefix.split_first() else {
            self.any = true;
            return;
        };
        if let Some((_, below)) = self.elements.iter_mut().find(|(element, _)| element == first) {
            return below.add(rest);
        }
        let mut below = Self::default();
        below.add(rest);
        let at = if first.is_none() { 0 } else { self.elements.len() };
        self.elements.insert(at, (first.clone(), below));
    }

    fn matching(&self, set: &Set) -> Set {
        if self.any {
            return set.clone();
        }
        set.entries()
            .iter()
            .filter_map(|entry| {
                let (_, below) = self
                    .elements
                    .iter()
                    .find(|(element, _)| element.as_ref().is_none_or(|element| *element == entry.element))?;
                Some(Entry {
                    element: entry.element.clone(),
                    member: entry.member,
                    children: below.matching(&entry.children),
                })
            })
            .collect()
    }
}
