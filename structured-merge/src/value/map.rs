//! The entries of an object.

use std::sync::Arc;

use super::Value;

/// The entries of an object, sorted by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Map(Vec<(Arc<str>, Value)>);

impl Map {
    /// A map without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries, sorted by name.
    pub fn entries(&self) -> &[(Arc<str>, Value)] {
        &self.0
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let at = self.find(name).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    /// The value of a name, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        let at = self.find(name).ok()?;
        self.0.get_mut(at).map(|(_, value)| value)
    }

    /// Sets a value and returns the one that was there.
    pub fn insert(&mut self, name: impl Into<Arc<str>>, value: Value) -> Option<Value> {
        let name = name.into();
        match self.find(&name) {
            Ok(at) => self.0.get_mut(at).map(|(_, old)| std::mem::replace(old, value)),
            Err(at) => {
                self.0.insert(at, (name, value));
                None
            }
        }
    }

    /// Takes an entry out.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let at = self.find(name).ok()?;
        Some(self.0.remove(at).1)
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| (**other).cmp(name))
    }
}

/// Of entries with the same name the last one counts.
impl FromIterator<(Arc<str>, Value)> for Map {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Value)>>(entries: I) -> Self {
        let mut entries: Vec<_> = entries.into_iter().collect();
        if !entries.is_sorted_by(|(a, _), (b, _)| a < b) {
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            // The one that is kept is the first of its name: give it the value of the last.
            entries.dedup_by(|(name, value), (kept, kept_value)| {
                let same = name == kept;
                if same {
                    std::mem::swap(value, kept_value);
                }
                same
            });
        }
        Self(entries)
    }
}

/// Entries of two maps, sorted by name, side by side.
pub(crate) fn zip<'a>(
    left: Option<&'a Map>,
    right: Option<&'a Map>,
) -> impl Iterator<Item = (&'a Arc<str>, Option<&'a Value>, Option<&'a Value>)> {
    let mut left = left.map(Map::entries).unwrap_or_default().iter().peekable();
    let mut right = right.map(Map::entries).unwrap_or_default().iter().peekable();
    std::iter::from_fn(move || {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return None,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.cmp(b),
        };
        let l = if order.is_le() { left.next() } else { None };
        let r = if order.is_ge() { right.next() } else { None };
        let name = l.or(r).map(|(name, _)| name)?;
        Some((name, l.map(|(_, value)| value), r.map(|(_, value)| value)))
    })
}
