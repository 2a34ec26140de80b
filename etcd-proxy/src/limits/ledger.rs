//! What a tenant has stored, and what may be added to it: the arithmetic, without clock, lock and upstream.
//!
//! What is stored was counted once and then followed, change by change. A write is judged by that *and* by what is on the way
//! to be stored: it takes its place before it is sent and gives it back when the change that it makes has been seen, not when
//! it is acknowledged. So however far the view of the store lags behind, the writes of this process alone never go beyond
//! the quota.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::{Add, AddAssign, Neg, Sub, SubAssign},
};

/// Acknowledged writes that are told apart. Beyond, older ones wait together for the newer ones' sake.
const MAX_UNSEEN: usize = 4096;
/// Seconds for which a write that was broken off may still be carried out: an etcd gives up after 5 s and twice the time of
/// an election (`server/config`, `ReqTimeout`), which is 7 s unless it was configured for slower networks.
const DOUBT: u64 = 10;

/// An amount of keys and of bytes, or a change of it. A key has the bytes of its name and of its value, as the tenant sees
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Live keys.
    pub keys: i64,
    /// Their bytes.
    pub bytes: i64,
}

/// The most that may be stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Quota {
    pub(super) keys: Option<i64>,
    pub(super) bytes: Option<i64>,
}

/// May something be added?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Yes.
    Fits,
    /// It would fit if not for what is on its way to be stored.
    Crowded,
    /// No.
    Beyond(Exceeded),
    /// Nobody has counted yet.
    Unknown,
}

/// Which quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exceeded {
    Keys,
    Bytes,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It made this revision.
    Written(i64),
    /// It changed nothing.
    Nothing,
    /// Nobody knows. Broken off in this second.
    Doubtful(u64),
}

/// The account of one tenant.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    quota: Quota,
    /// What is stored, and as of which revision.
    counted: Option<(Amount, i64)>,
    /// Written at a revision that has not been seen yet.
    unseen: BTreeMap<i64, Amount>,
    /// Broken off in that second.
    doubtful: VecDeque<(u64, Amount)>,
    /// All that took a place: these, and what was sent and not answered.
    reserved: Amount,
    /// What was last refused.
    refused: Option<Amount>,
}

// === impl Amount ===

impl Amount {
    pub(crate) const NOTHING: Self = Self { keys: 0, bytes: 0 };

    /// One key with so many bytes.
    pub(crate) fn key(bytes: usize) -> Self {
        Self { keys: 1, bytes: i64::try_from(bytes).unwrap_or(i64::MAX) }
    }

    /// The greater of both, in keys and in bytes.
    pub(crate) fn most(self, other: Self) -> Self {
        Self { keys: self.keys.max(other.keys), bytes: self.bytes.max(other.bytes) }
    }
}

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { keys: self.keys.saturating_add(other.keys), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl Neg for Amount {
    type Output = Self;

    fn neg(self) -> Self {
        Self { keys: self.keys.saturating_neg(), bytes: self.bytes.saturating_neg() }
    }
}

impl Sub for Amount {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Amount {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl std::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::NOTHING, Add::add)
    }
}

// === impl Quota ===

impl Quota {
    /// Which quota does not hold this, if it is to grow by that.
    fn exceeded(self, stored: Amount, growth: Amount) -> Option<Exceeded> {
        let beyond = |quota: Option<i64>, stored: i64, growth: i64| {
            growth > 0 && quota.is_some_and(|quota| stored.saturating_add(growth) > quota)
        };
        if beyond(self.bytes, stored.bytes, growth.bytes) {
            Some(Exceeded::Bytes)
        } else if beyond(self.keys, stored.keys, growth.keys) {
            Some(Exceeded::Keys)
        } else {
            None
        }
    }

    fn reached(self, stored: Amount) -> bool {
        self.bytes.is_some_and(|quota| stored.bytes >= quota) || self.keys.is_some_and(|quota| stored.keys >= quota)
    }
}

// === impl Ledger ===

impl Ledger {
    pub(super) fn new(quota: Quota) -> Self {
        Self { quota, ..Self::default() }
    }

    /// What is stored, once that is known, and as of which revision.
    pub(super) fn counted(&self) -> Option<(Amount, i64)> {
        self.counted
    }

    /// Takes a place for a write that adds so much, in keys or in bytes, if it fits. What adds nothing always fits.
    pub(super) fn reserve(&mut self, growth: Amount, now: u64) -> Verdict {
        self.forget_doubts(now);
        let growth = growth.most(Amount::NOTHING);
        if growth == Amount::NOTHING {
            return Verdict::Fits;
        }
        let Some((stored, _)) = self.counted else { return Verdict::Unknown };
        if let Some(exceeded) = self.quota.exceeded(stored, growth) {
            return Verdict::Beyond(exceeded);
        }
        if self.quota.exceeded(stored + self.reserved, growth).is_some() {
            return Verdict::Crowded;
        }
        self.reserved += growth;
        Verdict::Fits
    }

    /// A write that took a place for this growth has ended.
    pub(super) fn settle(&mut self, growth: Amount, outcome: Outcome) {
        let growth = growth.most(Amount::NOTHING);
        match outcome {
            Outcome::Nothing => self.reserved -= growth,
            Outcome::Written(revision) if self.counted.is_some_and(|(_, seen)| seen >= revision) => {
                self.reserved -= growth;
            }
            Outcome::Written(revision) => {
                *self.unseen.entry(revision).or_default() += growth;
                if self.unseen.len() > MAX_UNSEEN
                    && let Some((_, oldest)) = self.unseen.pop_first()
                    && let Some(mut next) = self.unseen.first_entry()
                {
                    *next.get_mut() += oldest;
                }
            }
            Outcome::Doubtful(now) => match self.doubtful.back_mut() {
                Some((second, amount)) if *second == now => *amount += growth,
                _ => self.doubtful.push_back((now, growth)),
            },
        }
    }

    /// That was refused.
    pub(super) fn refused(&mut self, growth: Amount) {
        self.refused = Some(growth);
    }

    /// Everything was counted as of a revision.
    pub(super) fn recounted(&mut self, stored: Amount, revision: i64) {
        self.counted = Some((stored, revision));
        self.seen(revision);
    }

    /// What was counted and written was of a store that is no more. What is under way keeps its place.
    pub(super) fn forget(&mut self) {
        self.counted = None;
        for (_, amount) in std::mem::take(&mut self.unseen) {
            self.reserved -= amount;
        }
    }

    /// What is stored has changed by so much up to a revision. Changes that are counted already do not count again.
    pub(super) fn changed(&mut self, change: Amount, revision: i64) {
        let Some((stored, seen)) = &mut self.counted else { return };
        if revision > *seen {
            *stored += change;
            *seen = revision;
            self.seen(revision);
        }
    }

    /// Whether writes are being refused: the quota is reached, or what was last refused would be refused again.
    pub(super) fn exhausted(&self) -> bool {
        let Some((stored, _)) = self.counted else { return false };
        self.quota.reached(stored) || self.refused.is_some_and(|refused| self.quota.exceeded(stored, refused).is_some())
    }

    fn seen(&mut self, revision: i64) {
        let later = self.unseen.split_off(&revision.saturating_add(1));
        for (_, amount) in std::mem::replace(&mut self.unseen, later) {
            self.reserved -= amount;
        }
    }

    fn forget_doubts(&mut self, now: u64) {
        while let Some((_, amount)) = self.doubtful.pop_front_if(|(second, _)| second.saturating_add(DOUBT) < now) {
            self.reserved -= amount;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn amount(keys: i64, bytes: i64) -> Amount {
        Amount { keys, bytes }
    }

    fn ledger(keys: Option<i64>, bytes: Option<i64>, stored: Amount) -> Ledger {
        let mut ledger = Ledger::new(Quota { keys, bytes });
        ledger.recounted(stored, 10);
        ledger
    }

    #[test]
    fn nothing_may_grow_before_it_was_counted() {
        let mut ledger = Ledger::new(Quota { keys: None, bytes: Some(100) });
        assert_eq!(ledger.reserve(amount(1, 1), 0), Verdict::Unknown);
        assert_eq!(ledger.reserve(amount(0, -5), 0), Verdict::Fits);
        ledger.recounted(amount(1, 99), 10);
        assert_eq!(ledger.reserve(amount(1, 1), 0), Verdict::Fits);
    }

    #[test]
    fn either_quota_refuses_and_shrinking_passes_both() {
        let mut bytes = ledger(None, Some(100), amount(5, 90));
        assert_eq!(bytes.reserve(amount(1, 11), 0), Verdict::Beyond(Exceeded::Bytes));
        assert_eq!(bytes.reserve(amount(1000, 10), 0), Verdict::Fits);
        let mut keys = ledger(Some(5), None, amount(5, 90));
        assert_eq!(keys.reserve(amount(1, 0), 0), Verdict::Beyond(Exceeded::Keys));
        assert_eq!(keys.reserve(amount(0, 1 << 40), 0), Verdict::Fits);
        // A quota may be lowered below what is there.
        let mut over = ledger(Some(5), Some(100), amount(9, 500));
        assert_eq!(over.reserve(amount(-1, -1), 0), Verdict::Fits);
        assert_eq!(over.reserve(amount(0, 0), 0), Verdict::Fits);
        assert_eq!(over.reserve(amount(0, 1), 0), Verdict::Beyond(Exceeded::Bytes));
        // Beyond one quota, what adds nothing there is judged by the other one.
        let mut keys_over = ledger(Some(5), Some(1000), amount(9, 500));
        assert_eq!(keys_over.reserve(amount(0, 500), 0), Verdict::Fits);
    }

    #[test]
    fn a_place_is_given_back_when_the_change_is_seen_and_not_before() {
        let mut ledger = ledger(None, Some(100), amount(1, 50));
        assert_eq!(ledger.reserve(amount(1, 50), 0), Verdict::Fits);
        assert_eq!(ledger.reserve(amount(1, 1), 0), Verdict::Crowded);
        // Acknowledged, and still nobody has seen it in the store.
        ledger.settle(amount(1, 50), Outcome::Written(12));
        assert_eq!(ledger.reserve(amount(1, 1), 0), Verdict::Crowded);
        ledger.changed(amount(0, 0), 11);
        assert_eq!(ledger.reserve(amount(1, 1), 0), Verdict::Crowded);
        // It replaced a value of 40 bytes.
        ledger.changed(amount(0, 10), 12);
        assert_eq!(ledger.counted(), Some((amount(1, 60), 12)));
        assert_eq!(ledger.reserve(amount(1, 40), 0), Verdict::Fits);
        // The change may be seen before the acknowledgement.
        ledger.changed(amount(1, 40), 13);
        ledger.settle(amount(1, 40), Outcome::Written(13));
        assert_eq!(ledger.reserved, Amount::NOTHING);
        assert_eq!(ledger.reserve(amount(1, 1), 0), Verdict::Beyond(Exceeded::Bytes));
    }

    #[test]
    fn a_write_that_was_broken_off_keeps_its_place_for_a_while() {
        let mut ledger = ledger(None, Some(100), amount(1, 50));
        assert_eq!(ledger.reserve(amount(1, 50), 100), Verdict::Fits);
        ledger.settle(amount(1, 50), Outcome::Doubtful(100));
        assert_eq!(ledger.reserve(amount(1, 50), 100 + DOUBT), Verdict::Crowded);
        assert_eq!(ledger.reserve(amount(1, 50), 101 + DOUBT), Verdict::Fits);
        ledger.settle(amount(1, 50), Outcome::Nothing);
        assert_eq!(ledger.reserved, Amount::NOTHING);
    }

    #[test]
    fn nothing_of_a_store_that_went_back_takes_a_place() {
        let mut ledger = ledger(None, Some(100), amount(1, 50));
        assert_eq!(ledger.reserve(amount(1, 40), 0), Verdict::Fits);
        ledger.settle(amount(1, 40), Outcome::Written(1000));
        assert_eq!(ledger.reserve(amount(1, 5), 0), Verdict::Fits);
        ledger.forget();
        assert_eq!((ledger.counted(), ledger.reserved), (None, amount(1, 5)));
        assert_eq!(ledger.reserve(amount(1, 1), 0), Verdict::Unknown);
        ledger.recounted(amount(1, 20), 12);
        assert_eq!(ledger.reserve(amount(1, 75), 0), Verdict::Fits);
    }

    #[test]
    fn changes_count_once() {
        let mut ledger = ledger(None, None, amount(1, 50));
        ledger.changed(amount(1, 1), 10);
        ledger.changed(amount(1, 1), 11);
        ledger.changed(amount(1, 1), 11);
        assert_eq!(ledger.counted(), Some((amount(2, 51), 11)));
    }

    #[test]
    fn exhausted_until_what_was_refused_would_fit() {
        let mut ledger = ledger(Some(10), Some(100), amount(1, 95));
        assert!(!ledger.exhausted());
        assert_eq!(ledger.reserve(amount(1, 10), 0), Verdict::Beyond(Exceeded::Bytes));
        ledger.refused(amount(1, 10));
        assert!(ledger.exhausted());
        ledger.changed(amount(0, -5), 11);
        assert!(!ledger.exhausted());
        ledger.changed(amount(9, 1), 12);
        assert!(ledger.exhausted(), "the keys are used up");
    }

    #[test]
    fn the_unseen_are_bounded() {
        let mut ledger = ledger(None, Some(i64::MAX), amount(0, 0));
        for revision in 11..11 + 3 * MAX_UNSEEN as i64 {
            assert_eq!(ledger.reserve(amount(1, 1), 0), Verdict::Fits);
            ledger.settle(amount(1, 1), Outcome::Written(revision));
        }
        assert_eq!(ledger.unseen.len(), MAX_UNSEEN);
        assert_eq!(ledger.reserved, amount(3 * MAX_UNSEEN as i64, 3 * MAX_UNSEEN as i64));
        ledger.changed(amount(0, 0), i64::MAX);
        assert_eq!(ledger.reserved, Amount::NOTHING);
    }

    proptest! {
        /// Whatever the order of acknowledgements and sightings, one process does not go beyond its quota, and nothing is
        /// reserved in the end.
        #[test]
        fn never_beyond(
            steps in proptest::collection::vec((1i64..30, 0u8..4, 0usize..8), 1..200),
        ) {
            const QUOTA: i64 = 200;
            let mut ledger = ledger(None, Some(QUOTA), Amount::NOTHING);
            let (mut store, mut revision) = (0, 10);
            let mut unseen: VecDeque<(i64, i64)> = VecDeque::new();
            for (bytes, outcome, sightings) in steps {
                if ledger.reserve(amount(1, bytes), 0) == Verdict::Fits {
                    match outcome {
                        0 => ledger.settle(amount(1, bytes), Outcome::Nothing),
                        _ => {
                            revision += 1;
                            store += bytes;
                            unseen.push_back((revision, bytes));
                            ledger.settle(amount(1, bytes), Outcome::Written(revision));
                        }
                    }
                }
                prop_assert!(store <= QUOTA);
                for _ in 0..sightings.min(unseen.len()) {
                    let (revision, bytes) = unseen.pop_front().unwrap();
                    ledger.changed(amount(1, bytes), revision);
                }
            }
            for (revision, bytes) in unseen {
                ledger.changed(amount(1, bytes), revision);
            }
            prop_assert_eq!(ledger.reserved, Amount::NOTHING);
            prop_assert_eq!(ledger.counted().unwrap().0.bytes, store);
        }
    }
}
