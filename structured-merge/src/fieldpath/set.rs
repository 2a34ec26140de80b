//! Sets of paths.

use std::{cmp::Ordering, fmt, iter::Peekable, slice::Iter, sync::Arc};

use super::{Path, PathElement};
use crate::{
    MAX_DEPTH,
    schema::{Schema, TypeRef},
    value::Numbers,
};

/// A set of paths, as a sorted tree.
///
/// A path may be a member without the paths below it, and they without it: to own `.spec` is not to own `.spec.name`, nor
/// the other way round. Subtrees are shared, so that a clone costs nothing and what two sets have in common is not copied.
#[derive(Clone, Default, PartialEq)]
pub struct Set(Option<Arc<Vec<Entry>>>);

/// What a set holds of one element: the element itself, something below it, or both.
#[derive(Clone, PartialEq)]
pub struct Entry {
    /// The element.
    pub element: PathElement,
    /// Whether the path that ends here is in the set.
    pub member: bool,
    /// The paths that go on from here.
    pub children: Set,
}

// === impl Set ===

impl Set {
    /// The set without any path.
    pub fn new() -> Self {
        Self::default()
    }

    /// A set of entries in any order. Of equal elements, the last one's children count, as where `fieldsV1` is read.
    pub(crate) fn from_entries(mut entries: Vec<Entry>) -> Self {
        entries.retain(|entry| entry.member || !entry.children.is_empty());
        if !entries.is_sorted_by(|a, b| a.element.compare(&b.element).is_lt()) {
            entries.sort_by(|a, b| a.element.order(&b.element, Numbers::Exactly));
            entries.dedup_by(|later, kept| {
                let same = later.element.compare(&kept.element).is_eq();
                if same {
                    kept.member |= later.member;
                    if !later.children.is_empty() {
                        kept.children = std::mem::take(&mut later.children);
                    }
                }
                same
            });
        }
        Self((!entries.is_empty()).then(|| Arc::new(entries)))
    }

    /// The entries of the topmost elements, sorted.
    pub fn entries(&self) -> &[Entry] {
        self.0.as_deref().map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether no path is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// How many paths are in the set.
    pub fn len(&self) -> usize {
        self.entries().iter().map(|entry| usize::from(entry.member) + entry.children.len()).sum()
    }

    /// What the set holds of a topmost element.
    pub fn get(&self, element: &PathElement) -> Option<&Entry> {
        let at = find(self.entries(), element).ok()?;
        self.entries().get(at)
    }

    /// What the set holds of a topmost field.
    pub(crate) fn field(&self, name: &str) -> Option<&Entry> {
        let entries = self.entries();
        let at = entries.binary_search_by(|entry| match &entry.element {
            PathElement::Field(other) => (**other).cmp(name),
            _ => Ordering::Greater,
        });
        entries.get(at.ok()?)
    }

    /// Whether a path is in the set. The empty one never is.
    pub fn contains(&self, path: &[PathElement]) -> bool {
        let Some((first, rest)) = path.split_first() else { return false };
        self.get(first).is_some_and(|entry| if rest.is_empty() { entry.member } else { entry.children.contains(rest) })
    }

    /// Adds a path and tells whether it could be added: not the empty one, and none longer than [`MAX_DEPTH`].
    pub fn insert(&mut self, path: &[PathElement]) -> bool {
        if path.len() > MAX_DEPTH {
            return false;
        }
        let Some((first, rest)) = path.split_first() else { return false };
        let entries = Arc::make_mut(self.0.get_or_insert_default());
        let at = find(entries, first).unwrap_or_else(|at| {
            entries.insert(at, Entry { element: first.clone(), member: false, children: Set::new() });
            at
        });
        if let Some(entry) = entries.get_mut(at) {
            if rest.is_empty() {
                entry.member = true;
            } else {
                entry.children.insert(rest);
            }
        }
        true
    }

    /// The paths of either set.
    pub fn union(&self, other: &Self) -> Self {
        let (Some(a), Some(b)) = (&self.0, &other.0) else {
            return if self.is_empty() { other.clone() } else { self.clone() };
        };
        if Arc::ptr_eq(a, b) {
            return self.clone();
        }
        zip(self, other)
            .filter_map(|pair| match pair {
                (Some(a), Some(b)) => Some(Entry {
                    element: a.element.clone(),
                    member: a.member || b.member,
                    children: a.children.union(&b.children),
                }),
                (a, b) => a.or(b).cloned(),
            })
            .collect()
    }

    /// The paths of both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        let (Some(a), Some(b)) = (&self.0, &other.0) else { return Self::new() };
        if Arc::ptr_eq(a, b) {
            return self.clone();
        }
        zip(self, other)
            .filter_map(|pair| {
                let (Some(a), Some(b)) = pair else { return None };
                Some(Entry {
                    element: a.element.clone(),
                    member: a.member && b.member,
                    children: a.children.intersection(&b.children),
                })
            })
            .collect()
    }

    /// The paths that are not in the other set. One of the other's removes nothing above and nothing below it.
    pub fn difference(&self, other: &Self) -> Self {
        self.without(other, |a, b| Entry {
            element: a.element.clone(),
            member: a.member && !b.member,
            children: a.children.difference(&b.children),
        })
    }

    /// The paths that are neither in the other set nor below one of it.
    pub fn recursive_difference(&self, other: &Self) -> Self {
        self.without(other, |a, b| {
            let children = if b.member { Set::new() } else { a.children.recursive_difference(&b.children) };
            Entry { element: a.element.clone(), member: a.member && !b.member, children }
        })
    }

    fn without(&self, other: &Self, shared: impl Fn(&Entry, &Entry) -> Entry) -> Self {
        let (Some(a), Some(b)) = (&self.0, &other.0) else { return self.clone() };
        if Arc::ptr_eq(a, b) {
            return Self::new();
        }
        zip(self, other)
            .filter_map(|pair| match pair {
                (Some(a), Some(b)) => Some(shared(a, b)),
                (a, _) => a.cloned(),
            })
            .collect()
    }

    /// The paths below which there is none.
    pub fn leaves(&self) -> Self {
        self.entries()
            .iter()
            .map(|entry| Entry {
                element: entry.element.clone(),
                member: entry.member && entry.children.is_empty(),
                children: entry.children.leaves(),
            })
            .collect()
    }

    /// The set, and the declared fields on the way to its paths (`EnsureNamedFieldsAreMembers`).
    ///
    /// Entries of maps and items of lists on the way are not added: they come and go with what is in them.
    pub fn with_named_parents(&self, schema: &Schema, reference: &TypeRef) -> Self {
        self.named(schema, Some(reference))
    }

    fn named(&self, schema: &Schema, reference: Option<&TypeRef>) -> Self {
        let shape = reference.and_then(|reference| schema.resolve(reference).ok()).unwrap_or_default();
        self.entries()
            .iter()
            .map(|entry| {
                let mut member = entry.member;
                if entry.children.is_empty() {
                    return entry.clone();
                }
                let below = match &entry.element {
                    PathElement::Field(name) => shape.map.and_then(|(map, _)| {
                        let field = map.fields.get(name);
                        member |= field.is_some();
                        field.map(|field| &field.reference).or(map.element.as_ref())
                    }),
                    PathElement::Key(_) => shape.list.map(|(list, _)| &list.element),
                    _ => None,
                };
                Entry { element: entry.element.clone(), member, children: entry.children.named(schema, below) }
            })
            .collect()
    }

    /// Hands out every path: those that end at an element before those that go on from it.
    pub fn for_each(&self, mut visit: impl FnMut(&[PathElement])) {
        self.walk(&mut Vec::new(), &mut visit);
    }

    fn walk(&self, path: &mut Vec<PathElement>, visit: &mut impl FnMut(&[PathElement])) {
        for entry in self.entries().iter().filter(|entry| entry.member) {
            path.push(entry.element.clone());
            visit(path);
            path.pop();
        }
        for entry in self.entries().iter().filter(|entry| !entry.children.is_empty()) {
            path.push(entry.element.clone());
            entry.children.walk(path, visit);
            path.pop();
        }
    }

    /// Every path, in the order of [`Set::for_each`].
    pub fn paths(&self) -> Vec<Path> {
        let mut paths = Vec::new();
        self.for_each(|path| paths.push(path.into()));
        paths
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.to_json())
    }
}

/// Sorted entries, which may hold nothing.
impl FromIterator<Entry> for Set {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        Self::from_entries(entries.into_iter().collect())
    }
}

impl<'a> FromIterator<&'a Path> for Set {
    fn from_iter<I: IntoIterator<Item = &'a Path>>(paths: I) -> Self {
        let mut set = Set::new();
        for path in paths {
            set.insert(path.elements());
        }
        set
    }
}

fn find(entries: &[Entry], element: &PathElement) -> Result<usize, usize> {
    entries.binary_search_by(|entry| entry.element.compare(element))
}

/// The entries of two sets side by side.
fn zip<'a>(a: &'a Set, b: &'a Set) -> Zip<'a> {
    Zip { a: a.entries().iter().peekable(), b: b.entries().iter().peekable() }
}

struct Zip<'a> {
    a: Peekable<Iter<'a, Entry>>,
    b: Peekable<Iter<'a, Entry>>,
}

impl<'a> Iterator for Zip<'a> {
    type Item = (Option<&'a Entry>, Option<&'a Entry>);

    fn next(&mut self) -> Option<Self::Item> {
        let order = match (self.a.peek(), self.b.peek()) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => a.element.compare(&b.element),
        };
        let a = if order.is_le() { self.a.next() } else { None };
        let b = if order.is_ge() { self.b.next() } else { None };
        Some((a, b))
    }
}
