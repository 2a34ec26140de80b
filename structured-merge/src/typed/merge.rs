//! A stored value with what a configuration says in it (`typed/merge.go`).

use std::sync::Arc;

use super::{TypedValue, ValidationErrors, items};
use crate::{
    fieldpath::PathElement,
    schema::{List, Part, Relation, Schema, TypeRef},
    value::{Map, Numbers, Value, zip},
};

pub(super) fn merge(live: &TypedValue, config: &TypedValue) -> Result<Value, ValidationErrors> {
    let merged = walk(live.of.schema(), &live.of.reference, Some(&live.value), Some(&config.value))?;
    Ok(merged.unwrap_or_default())
}

/// What two values become together; nothing if both are absent, or nothing is left of them.
fn walk(
    schema: &Schema,
    reference: &TypeRef,
    live: Option<&Value>,
    config: Option<&Value>,
) -> Result<Option<Value>, ValidationErrors> {
    // What the configuration does not name stays as it is. What only it has is walked all the same, for its duplicates.
    let Some(config) = config else { return Ok(live.cloned()) };
    // Of two shapes the configuration's counts; what the other one makes of the values is overwritten.
    match schema.resolve(reference)?.fit(Some(config)).part()? {
        Part::Map(map, Relation::Granular) => {
            let (old, new) = (live.and_then(Value::as_map), config.as_map());
            if old.is_none_or(Map::is_empty) && new.is_none_or(Map::is_empty) {
                return Ok(Some(config.clone()));
            }
            let mut merged = Vec::new();
            for (name, old, new) in zip(old, new) {
                let element = || PathElement::Field(name.clone());
                let reference = map.entry(name).ok_or_else(|| ValidationErrors::of("field not declared in schema"));
                let value = reference
                    .and_then(|reference| walk(schema, reference, old, new))
                    .map_err(|error| error.below(&element()))?;
                merged.extend(value.map(|value| (name.clone(), value)));
            }
            Ok((!merged.is_empty()).then(|| Map::from_iter(merged).into()))
        }
        Part::List(list, Relation::Granular) => {
            let old = live.and_then(Value::as_list).unwrap_or_default();
            let new = config.as_list().unwrap_or_default();
            if old.is_empty() && new.is_empty() {
                return Ok(Some(config.clone()));
            }
            let merged = Lists::new(schema, list, old, new)?.merge()?;
            Ok((!merged.is_empty()).then(|| Value::List(Arc::new(merged))))
        }
        _ => Ok(Some(config.clone())),
    }
}

/// The items of two lists. Each is known by a number, the same for items with the same element.
struct Lists<'a> {
    schema: &'a Schema,
    list: &'a List,
    live: &'a [Value],
    config: &'a [Value],
    live_ids: Vec<usize>,
    config_ids: Vec<usize>,
    known: Vec<Known<'a>>,
}

/// What there is of an element.
struct Known<'a> {
    element: PathElement,
    live: Live<'a>,
    config: Option<&'a Value>,
    /// Whether it was merged already.
    done: bool,
}

/// The live items of an element.
#[derive(Clone, Copy)]
enum Live<'a> {
    None,
    One(&'a Value),
    /// Duplicates are not merged: the configuration's item replaces them.
    Several,
}

impl<'a> Lists<'a> {
    fn new(
        schema: &'a Schema,
        list: &'a List,
        live: &'a [Value],
        config: &'a [Value],
    ) -> Result<Self, ValidationErrors> {
        let (mut sorted, mut errors) = (Vec::with_capacity(live.len() + config.len()), Vec::new());
        for (is_config, items) in [(true, config), (false, live)] {
            for (at, item) in items.iter().enumerate() {
                match items::element(schema, list, item) {
                    Ok(element) => sorted.push((element, is_config, at, item)),
                    Err(error) => items::unknown(&mut errors)(at, error),
                }
            }
        }
        sorted.sort_by(|(a, ..), (b, ..)| a.order(b, Numbers::Exactly));
        let mut lists = Self {
            schema,
            list,
            live,
            config,
            live_ids: vec![0; live.len()],
            config_ids: vec![0; config.len()],
            known: Vec::with_capacity(sorted.len()),
        };
        for (element, is_config, at, item) in sorted {
            if lists.known.last().is_none_or(|last| last.element.compare(&element).is_ne()) {
                lists.known.push(Known { element, live: Live::None, config: None, done: false });
            }
            let id = lists.known.len() - 1;
            let Some(known) = lists.known.last_mut() else { continue };
            let ids = if is_config { &mut lists.config_ids } else { &mut lists.live_ids };
            if let Some(place) = ids.get_mut(at) {
                *place = id;
            }
            match (is_config, known.live) {
                (false, Live::None) => known.live = Live::One(item),
                (false, _) => known.live = Live::Several,
                (true, _) if known.config.is_some() => {
                    let element = &known.element;
                    errors.extend(ValidationErrors::of(format_args!("duplicate entries for key {element}")).0);
                }
                (true, _) => known.config = Some(item),
            }
        }
        if errors.is_empty() { Ok(lists) } else { Err(ValidationErrors(errors)) }
    }

    /// The order of the result: the configuration's items as it orders them, and each live one that it does not name
    /// in front of the shared one that it stood in front of.
    fn merge(mut self) -> Result<Vec<Value>, ValidationErrors> {
        let (live_ids, config_ids) = (std::mem::take(&mut self.live_ids), std::mem::take(&mut self.config_ids));
        // The items that both lists have, in the configuration's order. The first of them is the one to wait for.
        let mut shared: std::collections::VecDeque<_> = config_ids
            .iter()
            .copied()
            .filter(|id| self.known.get(*id).is_some_and(|known| !matches!(known.live, Live::None)))
            .collect();
        let mut merged = Vec::with_capacity(self.live.len().max(self.config.len()));
        let (mut l, mut c) = (0, 0);
        while l < live_ids.len() || c < config_ids.len() {
            let (live, config) = (live_ids.get(l).copied(), config_ids.get(c).copied());
            if let (Some(live), Some(config)) = (live, config) {
                if live == config {
                    merged.extend(self.both(live)?);
                    l += 1;
                    c += 1;
                    shared.pop_front();
                    continue;
                }
                if self.in_config(live) && shared.front().is_some_and(|next| *next != live) {
                    // Another shared item's turn: this one comes where the configuration has it.
                    l += 1;
                    continue;
                }
            }
            if let Some(live) = live {
                if !self.in_config(live) {
                    merged.extend(self.live.get(l).cloned());
                    l += 1;
                    continue;
                }
                if self.known.get(live).is_some_and(|known| known.done) {
                    l += 1;
                }
            }
            if let Some(config) = config {
                merged.extend(self.both(config)?);
                c += 1;
                if shared.front() == Some(&config) {
                    shared.pop_front();
                }
            }
        }
        Ok(merged)
    }

    fn in_config(&self, id: usize) -> bool {
        self.known.get(id).is_some_and(|known| known.config.is_some())
    }

    fn both(&mut self, id: usize) -> Result<Option<Value>, ValidationErrors> {
        let Some(known) = self.known.get_mut(id) else { return Ok(None) };
        known.done = true;
        let live = match known.live {
            Live::One(value) => Some(value),
            Live::None | Live::Several => None,
        };
        walk(self.schema, &self.list.element, live, known.config).map_err(|error| error.below(&known.element))
    }
}
