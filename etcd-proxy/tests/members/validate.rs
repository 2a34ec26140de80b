//! Whether what watches told is what they promise: etcd's guarantees as its robustness tests check them
//! (`tests/robustness/validate/watch.go`), each a function of one watch.
//!
//! The history that they are held against is a member's own, so that what is there before each event is known. Nothing is compacted.

use std::collections::HashSet;

use crate::{
    events::{Event, Truth, Watch},
    history::Operation,
};

/// How many events a complaint shows.
const SHOWN: usize = 5;

/// A guarantee that a watch shows by itself, and one that only what happened shows.
type Alone = fn(&Watch) -> Result<(), String>;
type Compared = fn(&Watch, &Truth) -> Result<(), String>;

/// Checks all guarantees of one watch.
///
/// # Errors
/// With the first that is broken.
pub(crate) fn watch(watch: &Watch, truth: &Truth) -> Result<(), String> {
    let alone: [(&str, Alone); 5] = [
        ("filter", filtered),
        ("ordered", ordered),
        ("unique", unique),
        ("atomic", atomic),
        ("bookmarkable", bookmarkable),
    ];
    let compared: [(&str, Compared); 4] =
        [("resumable", resumable), ("isCreate", is_create), ("reliable", reliable), ("prevKV", previous)];
    let named = |name: &str, wrong: String| format!("watch, {name}: {:?}: {wrong}", watch.asked);
    alone.iter().try_for_each(|(name, check)| check(watch).map_err(|wrong| named(name, wrong)))?;
    compared.iter().try_for_each(|(name, check)| check(watch, truth).map_err(|wrong| named(name, wrong)))
}

/// Every event is one of those that were asked for.
fn filtered(watch: &Watch) -> Result<(), String> {
    match watch.events().find(|event| !watch.asked.matches(event)) {
        Some(event) => Err(format!("not asked for: {event:?}")),
        None => Ok(()),
    }
}

/// No event comes after a later one.
fn ordered(watch: &Watch) -> Result<(), String> {
    let mut last = 0;
    for event in watch.events() {
        if event.revision < last {
            return Err(format!("after revision {last}: {event:?}"));
        }
        last = event.revision;
    }
    Ok(())
}

/// No event comes twice.
fn unique(watch: &Watch) -> Result<(), String> {
    let mut known = HashSet::new();
    match watch.events().find(|event| !known.insert((event.revision, &event.key))) {
        Some(event) => Err(format!("a second time: {event:?}")),
        None => Ok(()),
    }
}

/// The events of a revision come in one response.
fn atomic(watch: &Watch) -> Result<(), String> {
    let mut last = 0;
    for response in &watch.responses {
        let Some(event) = response.events.first() else { continue };
        if event.revision == last {
            return Err(format!("a part of its revision came in the response before: {event:?}"));
        }
        last = response.told();
    }
    Ok(())
}

/// Word of progress up to a revision comes after its events, never before, and never runs backwards.
fn bookmarkable(watch: &Watch) -> Result<(), String> {
    let (mut progress, mut last) = (0, 0);
    for response in &watch.responses {
        if let Some(event) = response.events.iter().find(|event| event.revision <= progress) {
            return Err(format!("after word of progress up to {progress}: {event:?}"));
        }
        last = response.events.last().map_or(last, |event| event.revision);
        if response.events.is_empty() {
            if response.revision < progress || response.revision < last {
                return Err(format!(
                    "word of progress up to {}, after that of {progress} and events up to {last}",
                    response.revision
                ));
            }
            progress = response.revision;
        }
    }
    Ok(())
}

/// What begins at a revision begins with the first event from there on.
fn resumable(watch: &Watch, truth: &Truth) -> Result<(), String> {
    let Some(first) = watch.events().next().filter(|_| watch.asked.start > 0) else { return Ok(()) };
    let right = truth.from(watch.asked.start, &watch.asked).next();
    if right.is_some_and(|right| right.change() == first.change()) {
        return Ok(());
    }
    Err(format!("begins with {first:?} instead of {right:?}"))
}

/// An event is said to create its key if nothing was there, and only then.
fn is_create(watch: &Watch, truth: &Truth) -> Result<(), String> {
    for event in watch.events() {
        let Some(kv) = event.put else { continue };
        let there = truth.at(event.revision, &event.key).is_some_and(|event| event.before.is_some());
        if (kv.created == kv.modified) == there || (kv.version == 1) == there {
            return Err(format!("the key was there before: {there}: {event:?}"));
        }
    }
    Ok(())
}

/// Between the first revision and the last that was told of, nothing is missing and nothing is invented.
fn reliable(watch: &Watch, truth: &Truth) -> Result<(), String> {
    let Some(first) = watch.responses.first() else { return Ok(()) };
    let start = match (watch.asked.start, first.events.first()) {
        (0, Some(event)) => event.revision,
        (0, None) => first.revision + 1,
        (start, _) => start,
    };
    let mut right = truth.from(start, &watch.asked).take_while(|event| event.revision <= watch.told());
    let mut told = watch.events();
    loop {
        let (right_one, told_one) = (right.next(), told.next());
        if right_one.map(|event| event.change()) != told_one.map(|event| event.change()) {
            let right: Vec<_> = right_one.into_iter().chain(right).take(SHOWN).collect();
            let told: Vec<_> = told_one.into_iter().chain(told).take(SHOWN).collect();
            return Err(format!("from {start} to {}: told {told:#?} instead of {right:#?}", watch.told()));
        }
        if right_one.is_none() {
            return Ok(());
        }
    }
}

/// What was there before comes with each event, if that was asked for, and else with none.
fn previous(watch: &Watch, truth: &Truth) -> Result<(), String> {
    for event in watch.events() {
        let right = truth.at(event.revision, &event.key).and_then(|event| event.before).filter(|_| watch.asked.before);
        if event.before != right {
            return Err(format!("{right:?} was there before: {event:?}"));
        }
    }
    Ok(())
}

/// Every write that was acknowledged is in the history with the revision that its client was told, and no value is there twice.
///
/// # Errors
/// With the write that is not, or the value.
pub(crate) fn writes(operations: &[Operation], truth: &Truth) -> Result<(), String> {
    for operation in operations {
        let Some((_, answer)) = operation.answered.filter(|(_, answer)| answer.wrote) else { continue };
        let event = truth.at(answer.revision, &operation.register.to_string());
        let right = event.is_some_and(|event| event.put == answer.after(&operation.request));
        if !right {
            return Err(format!("acknowledged and not in the history, which has {event:?}: {operation:?}"));
        }
    }
    let mut known = HashSet::new();
    let mut twice = |event: &Event| event.put.is_some_and(|kv| !known.insert((event.key.clone(), kv.value)));
    match truth.events().iter().find(|event| twice(event)) {
        Some(event) => Err(format!("carried out twice: {event:?}")),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "validate/tests.rs"]
mod tests;
