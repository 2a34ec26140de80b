//! Whether there is an order of all operations, each at some instant of its call, in which every answer is right: the search
//! of Wing and Gong with Lowe's memory, as porcupine has it, for each register by itself.
//!
//! An operation without an answer may be put anywhere after its call, or nowhere. Revisions make the search short: they
//! must grow, and what a write without an answer wrote is known in full as soon as anybody has seen it. What nobody ever saw of such
//! writes explains nothing and is left out.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Instant,
};

use crate::history::{Kv, Operation, Register, Request, Revision};

/// The longest that a search may go on between two looks at the clock.
const STEPS: u64 = 1 << 10;
/// How many operations a complaint shows.
const SHOWN: usize = 12;

/// A register at some instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    kv: Option<Kv>,
    /// No later write has this revision or a smaller one.
    floor: Revision,
}

/// What stands in the list of calls and answers.
#[derive(Clone, Copy, Debug)]
struct Entry {
    operation: usize,
    is_call: bool,
    before: usize,
    after: usize,
}

/// Calls and answers in the order of time, as a list that entries are taken from and put back into. Entry 0 is its head.
struct List {
    entries: Vec<Entry>,
    /// The entries of each operation's call and answer; 0 for no answer.
    places: Vec<(usize, usize)>,
}

/// One register's search.
struct Search<'a> {
    operations: &'a [Operation],
    /// What anybody saw of a value.
    seen: &'a HashMap<u64, Kv>,
    /// The number of each delete without an answer, by the time of their calls. Once called, one does what any other does,
    /// so they are placed in this order only.
    deletes: HashMap<usize, usize>,
}

/// Checks all registers.
///
/// # Errors
/// With a register for which there is no such order, or for which none was found before `deadline`.
pub(crate) fn check(operations: &[Operation], deadline: Instant) -> Result<(), String> {
    let mut registers: BTreeMap<Register, Vec<Operation>> = BTreeMap::new();
    for operation in operations {
        registers.entry(operation.register).or_default().push(*operation);
    }
    registers.into_iter().try_for_each(|(register, operations)| {
        one(&operations, deadline).map_err(|wrong| format!("linearizable: {register}: {wrong}"))
    })
}

/// Checks one register.
fn one(operations: &[Operation], deadline: Instant) -> Result<(), String> {
    let seen = seen(operations)?;
    let explains = |operation: &&Operation| {
        let unknown = operation.answered.is_none();
        let nothing =
            operation.request == Request::Get || operation.request.value().is_some_and(|v| !seen.contains_key(&v));
        !(unknown && nothing)
    };
    let operations: Vec<Operation> = operations.iter().filter(explains).copied().collect();
    Search { operations: &operations, seen: &seen, deletes: deletes(&operations) }.run(deadline)
}

/// What was seen of each value, by whoever found it or wrote it.
///
/// # Errors
/// When two saw different things of one value: it was written twice.
fn seen(operations: &[Operation]) -> Result<HashMap<u64, Kv>, String> {
    let mut seen: HashMap<u64, Kv> = HashMap::new();
    for operation in operations {
        let Some((_, answer)) = operation.answered else { continue };
        for kv in [answer.before, answer.after(&operation.request)].into_iter().flatten() {
            let known = *seen.entry(kv.value).or_insert(kv);
            if known != kv {
                return Err(format!("value {} was written twice: {known:?} and {kv:?}", kv.value));
            }
        }
    }
    Ok(seen)
}

/// Numbers the deletes without an answer by the time of their call.
fn deletes(operations: &[Operation]) -> HashMap<usize, usize> {
    let unanswered =
        |number: &usize| operations[*number].request == Request::Delete && operations[*number].answered.is_none();
    let mut deletes: Vec<usize> = (0..operations.len()).filter(unanswered).collect();
    deletes.sort_by_key(|number| (operations[*number].called, *number));
    deletes.into_iter().enumerate().map(|(place, number)| (number, place)).collect()
}

// === impl Search ===

impl Search<'_> {
    fn run(&self, deadline: Instant) -> Result<(), String> {
        let mut list = List::new(self.operations);
        let mut left = self.operations.iter().filter(|operation| operation.answered.is_some()).count();
        let mut state = State { kv: None, floor: 0 };
        let mut done = Bits::new(self.operations.len());
        let mut known: HashSet<(Bits, State)> = HashSet::new();
        let mut taken: Vec<(usize, State)> = Vec::new();
        let mut furthest: Vec<usize> = Vec::new();
        let mut at = list.first();
        let mut deleted = 0;
        let mut steps = 0;
        while left > 0 {
            steps += 1;
            if steps % STEPS == 0 && Instant::now() > deadline {
                return Err(format!(
                    "no order of {} operations was found in time, nor that there is none",
                    self.operations.len()
                ));
            }
            let entry = list.entries.get(at).copied().filter(|_| at != 0);
            if let Some(Entry { operation, is_call: true, after, .. }) = entry {
                let delete = self.deletes.get(&operation);
                let in_turn = delete.is_none_or(|number| *number == deleted);
                if let Some(next) = self.step(&state, operation).filter(|_| in_turn) {
                    done.set(operation, true);
                    if known.insert((done.clone(), next)) {
                        taken.push((operation, state));
                        state = next;
                        left -= usize::from(self.operations[operation].answered.is_some());
                        list.take(operation);
                        deleted += usize::from(delete.is_some());
                        at = list.first();
                        if taken.len() > furthest.len() {
                            furthest = taken.iter().map(|(operation, _)| *operation).collect();
                        }
                        continue;
                    }
                    done.set(operation, false);
                }
                at = after;
                continue;
            }
            // An answer whose operation has no place yet, so that nothing called later can come before it.
            let Some((operation, before)) = taken.pop() else { return Err(self.stuck(&furthest)) };
            state = before;
            done.set(operation, false);
            left += usize::from(self.operations[operation].answered.is_some());
            list.put_back(operation);
            deleted -= usize::from(self.deletes.contains_key(&operation));
            at = list.entries[list.places[operation].0].after;
        }
        Ok(())
    }

    /// The register after an operation; `None` when the operation cannot come here, or when that would change nothing.
    fn step(&self, state: &State, operation: usize) -> Option<State> {
        let Operation { request, answered, .. } = &self.operations[operation];
        if let Some((_, answer)) = answered {
            let grows = if answer.wrote { answer.revision > state.floor } else { answer.revision >= state.floor };
            let right = answer.before == state.kv && grows && answer.wrote == writes(request, state.kv);
            return right.then(|| State { kv: answer.after(request), floor: answer.revision });
        }
        if !writes(request, state.kv) {
            return None;
        }
        match request.value() {
            None => Some(State { kv: None, floor: state.floor }),
            Some(value) => {
                let kv = *self.seen.get(&value)?;
                (kv.modified > state.floor).then_some(State { kv: Some(kv), floor: kv.modified })
            }
        }
    }

    /// What is told when there is no order.
    fn stuck(&self, furthest: &[usize]) -> String {
        let placed: HashSet<usize> = furthest.iter().copied().collect();
        let line = |number: &usize| format!("  {:?}\n", self.operations[*number]);
        let last: String = furthest.iter().rev().take(SHOWN).rev().map(line).collect();
        let open: Vec<usize> = (0..self.operations.len()).filter(|number| !placed.contains(number)).collect();
        let next: String = open.iter().take(SHOWN).map(line).collect();
        format!(
            "no order explains all answers; {} of {} operations have one, the last:\n{last}and none of these can follow:\n{next}",
            furthest.len(),
            self.operations.len()
        )
    }
}

/// Whether a request writes to a register that holds this.
pub(crate) fn writes(request: &Request, kv: Option<Kv>) -> bool {
    match request {
        Request::Get => false,
        Request::Put(_) => true,
        Request::Delete => kv.is_some(),
        Request::Swap { expected, .. } => *expected == kv,
    }
}

// === impl List ===

impl List {
    fn new(operations: &[Operation]) -> Self {
        let mut times = Vec::with_capacity(2 * operations.len());
        for (number, operation) in operations.iter().enumerate() {
            times.push((operation.called, true, number));
            // A call at the very instant of an answer is taken to overlap it.
            times.extend(operation.answered.map(|(answered, _)| (answered, false, number)));
        }
        times.sort_by_key(|(time, is_call, number)| (*time, !is_call, *number));
        let mut entries = vec![Entry { operation: usize::MAX, is_call: false, before: 0, after: 0 }];
        let mut places = vec![(0, 0); operations.len()];
        for (_, is_call, operation) in times {
            let place = entries.len();
            entries.push(Entry { operation, is_call, before: place - 1, after: 0 });
            entries[place - 1].after = place;
            let (call, answer) = &mut places[operation];
            *if is_call { call } else { answer } = place;
        }
        Self { entries, places }
    }

    /// The first entry; 0 when there is none.
    fn first(&self) -> usize {
        self.entries[0].after
    }

    /// Takes an operation's entries out.
    fn take(&mut self, operation: usize) {
        let (call, answer) = self.places[operation];
        for place in [call, answer].into_iter().filter(|place| *place != 0) {
            let Entry { before, after, .. } = self.entries[place];
            self.entries[before].after = after;
            if after != 0 {
                self.entries[after].before = before;
            }
        }
    }

    /// Puts back the entries that were taken last.
    fn put_back(&mut self, operation: usize) {
        let (call, answer) = self.places[operation];
        for place in [answer, call].into_iter().filter(|place| *place != 0) {
            let Entry { before, after, .. } = self.entries[place];
            self.entries[before].after = place;
            if after != 0 {
                self.entries[after].before = place;
            }
        }
    }
}

/// A set of numbers.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Bits(Vec<u64>);

// === impl Bits ===

impl Bits {
    fn new(length: usize) -> Self {
        Self(vec![0; length.div_ceil(64)])
    }

    fn set(&mut self, number: usize, value: bool) {
        let (word, bit) = (&mut self.0[number / 64], 1 << (number % 64));
        if value {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }
}

#[cfg(test)]
#[path = "linear/tests.rs"]
mod tests;
