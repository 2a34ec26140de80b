//! What waits to be looked at, in an order that is fair to tenants. Pure: time comes in as a value.
//!
//! **Invariants:** an object waits at most once, and is under way at most once; what changes while it is under way is looked at
//! afterwards. Namespaces take turns, however much one of them has waiting, and none of them has more than its share of the
//! places: what one tenant asks for keeps no other from its turn.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    hash::Hash,
    time::Duration,
};

use tokio::time::Instant;

/// Objects that wait, of groups that take turns.
#[derive(Debug)]
pub(super) struct Queue<K> {
    /// Most objects under way.
    places: usize,
    /// Most of one group.
    share: usize,
    /// Groups that have something waiting or under way.
    groups: HashMap<String, Group<K>>,
    /// Groups that have something waiting, whose turn it is first at the front; each once.
    turns: VecDeque<String>,
    /// What waits for its time. The number tells those of the same time apart.
    later: BTreeMap<(Instant, u64), K>,
    due: HashMap<K, (Instant, u64)>,
    number: u64,
    /// What is under way; `true` if it is to be looked at again afterwards.
    running: HashMap<K, bool>,
}

#[derive(Debug)]
struct Group<K> {
    waiting: VecDeque<K>,
    members: HashSet<K>,
    running: usize,
}

/// Objects come in groups.
pub(super) trait Grouped {
    /// The group's name.
    fn group(&self) -> &str;
}

// === impl Queue ===

impl<K: Grouped + Clone + Eq + Hash> Queue<K> {
    /// With room for `places` objects under way. One group has at most half of them, so that another's wait for a place is no
    /// longer than what is under way already.
    pub(super) fn new(places: usize) -> Self {
        let places = places.max(1);
        Self {
            places,
            share: places.div_ceil(2),
            groups: HashMap::new(),
            turns: VecDeque::new(),
            later: BTreeMap::new(),
            due: HashMap::new(),
            number: 0,
            running: HashMap::new(),
        }
    }

    /// Has an object looked at as soon as it is its turn.
    pub(super) fn push(&mut self, object: K) {
        self.forget_time(&object);
        if let Some(again) = self.running.get_mut(&object) {
            *again = true;
            return;
        }
        let name = object.group();
        if !self.groups.contains_key(name) {
            self.groups.insert(name.to_owned(), Group::default());
        }
        let Some(group) = self.groups.get_mut(name) else { return };
        if !group.members.insert(object.clone()) {
            return;
        }
        if group.waiting.is_empty() {
            self.turns.push_back(name.to_owned());
        }
        group.waiting.push_back(object);
    }

    /// Has an object looked at after a time, or before if something else wants that.
    fn push_at(&mut self, object: K, time: Instant) {
        let waits = self.groups.get(object.group()).is_some_and(|group| group.members.contains(&object));
        if waits || self.due.get(&object).is_some_and(|(due, _)| *due <= time) {
            return;
        }
        self.forget_time(&object);
        self.number += 1;
        self.later.insert((time, self.number), object.clone());
        self.due.insert(object, (time, self.number));
    }

    fn forget_time(&mut self, object: &K) {
        if let Some(due) = self.due.remove(object) {
            self.later.remove(&due);
        }
    }

    /// The next that is to be looked at, if there is one and a place for it. It is under way then, until [`Queue::done`].
    pub(super) fn take(&mut self, now: Instant) -> Option<K> {
        while let Some(first) = self.later.first_entry().filter(|first| first.key().0 <= now) {
            let object = first.remove();
            self.due.remove(&object);
            self.push(object);
        }
        if self.running.len() >= self.places {
            return None;
        }
        for _ in 0..self.turns.len() {
            let name = self.turns.pop_front()?;
            let Some(group) = self.groups.get_mut(&name) else { continue };
            if group.running >= self.share {
                self.turns.push_back(name);
                continue;
            }
            let Some(object) = group.waiting.pop_front() else { continue };
            group.members.remove(&object);
            group.running += 1;
            if !group.waiting.is_empty() {
                self.turns.push_back(name);
            }
            self.running.insert(object.clone(), false);
            return Some(object);
        }
        None
    }

    /// An object has been looked at, and is to be again after `again`; at its next turn if it changed meanwhile.
    pub(super) fn done(&mut self, object: K, now: Instant, again: Option<Duration>) {
        let Some(changed) = self.running.remove(&object) else { return };
        let name = object.group();
        if let Some(group) = self.groups.get_mut(name) {
            group.running = group.running.saturating_sub(1);
            if group.running == 0 && group.waiting.is_empty() {
                self.groups.remove(name);
            }
        }
        match again.map(|again| now.checked_add(again)) {
            _ if changed => self.push(object),
            Some(Some(time)) => self.push_at(object, time),
            Some(None) | None => {}
        }
    }

    /// When the next waits for nothing but time.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.later.first_key_value().map(|((time, _), _)| *time)
    }
}

impl<K> Default for Group<K> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), members: HashSet::new(), running: 0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Object(&'static str, usize);

    impl Grouped for Object {
        fn group(&self) -> &str {
            self.0
        }
    }

    fn now() -> Instant {
        Instant::now()
    }

    fn taken(queue: &mut Queue<Object>, now: Instant) -> Vec<Object> {
        std::iter::from_fn(|| queue.take(now)).collect()
    }

    #[test]
    fn an_object_waits_once_however_often_it_changes() {
        let (mut queue, now) = (Queue::new(4), now());
        for _ in 0..100 {
            queue.push(Object("a", 1));
        }
        assert_eq!(taken(&mut queue, now), [Object("a", 1)]);
        queue.done(Object("a", 1), now, None);
        assert_eq!(taken(&mut queue, now), []);
        assert!(queue.groups.is_empty() && queue.turns.is_empty());
    }

    #[test]
    fn what_changes_while_it_is_under_way_is_looked_at_afterwards_and_not_beside() {
        let (mut queue, now) = (Queue::new(4), now());
        queue.push(Object("a", 1));
        assert_eq!(queue.take(now), Some(Object("a", 1)));
        queue.push(Object("a", 1));
        queue.push(Object("a", 1));
        assert_eq!(queue.take(now), None);
        queue.done(Object("a", 1), now, Some(Duration::from_secs(3600)));
        assert_eq!(taken(&mut queue, now), [Object("a", 1)]);
        queue.done(Object("a", 1), now, None);
        assert_eq!((queue.take(now), queue.next_due()), (None, None));
    }

    #[test]
    fn namespaces_take_turns() {
        let (mut queue, now) = (Queue::new(1), now());
        (0..1000).for_each(|n| queue.push(Object("mallory", n)));
        queue.push(Object("alice", 0));
        queue.push(Object("bob", 0));
        queue.push(Object("alice", 1));
        let mut order = Vec::new();
        for _ in 0..6 {
            let object = queue.take(now).unwrap();
            order.push(object.clone());
            queue.done(object, now, None);
        }
        let expected = [("mallory", 0), ("alice", 0), ("bob", 0), ("mallory", 1), ("alice", 1), ("mallory", 2)];
        assert_eq!(order, expected.map(|(name, n)| Object(name, n)));
    }

    #[test]
    fn a_namespace_has_at_most_its_share_of_the_places() {
        let (mut queue, now) = (Queue::new(4), now());
        (0..10).for_each(|n| queue.push(Object("mallory", n)));
        assert_eq!(taken(&mut queue, now), [Object("mallory", 0), Object("mallory", 1)]);
        queue.push(Object("alice", 0));
        assert_eq!(taken(&mut queue, now), [Object("alice", 0)]);
        queue.done(Object("mallory", 1), now, None);
        assert_eq!(taken(&mut queue, now), [Object("mallory", 2)]);
    }

    #[test]
    fn what_waits_for_its_time_is_looked_at_then_or_before_if_it_changes() {
        let (mut queue, now) = (Queue::new(4), now());
        let after = |seconds| now + Duration::from_secs(seconds);
        for n in 1..=3 {
            queue.push(Object("a", n));
            assert_eq!(queue.take(now), Some(Object("a", n)));
            queue.done(Object("a", n), now, Some(Duration::from_secs(10 * n as u64)));
        }
        assert_eq!(queue.next_due(), Some(after(10)));
        queue.push(Object("a", 2));
        assert_eq!(taken(&mut queue, after(9)), [Object("a", 2)]);
        // Its old time counts no more.
        queue.done(Object("a", 2), after(9), None);
        assert_eq!(taken(&mut queue, after(25)), [Object("a", 1)]);
        assert_eq!(queue.next_due(), Some(after(30)));
        // What waits has no use for a later time.
        queue.done(Object("a", 1), after(25), None);
        queue.push(Object("a", 3));
        assert_eq!(queue.next_due(), None);
    }

    proptest! {
        /// A tenant that asks for one object now and then has it looked at within a bounded number of passes, whatever the others do.
        #[test]
        fn nobody_starves(
            places in 1_usize..6,
            flood in prop::collection::vec((0_usize..2, 0_usize..50, any::<bool>()), 100..400),
        ) {
            let (mut queue, now) = (Queue::new(places), now());
            let share = places.div_ceil(2);
            let mut running: VecDeque<Object> = VecDeque::new();
            (0..300).for_each(|n| queue.push(Object("mallory", n)));
            let mut since = None;
            for (tenant, n, again) in flood {
                queue.push(Object(["mallory", "eve"][tenant], n));
                if since.is_none() && running.iter().all(|one| one.0 != "alice") {
                    queue.push(Object("alice", 0));
                    since = Some(0);
                }
                while let Some(object) = queue.take(now) {
                    prop_assert!(!running.contains(&object), "under way twice");
                    if object.0 == "alice" {
                        since = None;
                    } else if let Some(since) = &mut since {
                        *since += 1;
                    }
                    running.push_back(object);
                    prop_assert!(running.len() <= places);
                    for tenant in ["mallory", "eve", "alice"] {
                        prop_assert!(running.iter().filter(|one| one.0 == tenant).count() <= share);
                    }
                }
                // Three tenants take turns.
                prop_assert!(since.is_none_or(|passes| passes <= 2), "{since:?} passes of others came before");
                if let Some(object) = running.pop_front() {
                    queue.done(object, now, again.then_some(Duration::ZERO));
                }
            }
        }

        /// Nothing is lost: what is asked for is looked at once the places are free.
        #[test]
        fn everything_has_its_turn(asked in prop::collection::btree_set((0_usize..5, 0_usize..20), 0..60)) {
            let (mut queue, now) = (Queue::new(3), now());
            for (tenant, n) in &asked {
                queue.push(Object(["a", "b", "c", "d", "e"][*tenant], *n));
            }
            let mut seen = 0;
            while let Some(object) = queue.take(now) {
                seen += 1;
                queue.done(object, now, None);
            }
            prop_assert_eq!(seen, asked.len());
            prop_assert!(queue.groups.is_empty() && queue.turns.is_empty() && queue.running.is_empty());
        }
    }
}
