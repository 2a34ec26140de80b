//! What must be true of claims and keys, whatever happened.

use std::collections::BTreeSet;

use anyhow::Result;

use super::{
    claims::{Change, History},
    world::World,
};

/// Everything about who held what when that must not have been, and keys that are not where they belong.
pub(super) async fn problems(world: &World, history: &History) -> Result<Vec<String>> {
    let mut problems = history.violations.clone();
    problems.extend(history.changes.iter().filter_map(|change| forbidden(world, change)));
    for (uid, life) in world.lives.iter().filter(|(_, life)| life.deleted) {
        let holds: Vec<_> = history.held.iter().filter(|(_, holder)| holder.uid == *uid).map(|held| held.0).collect();
        let of = |holder: &Option<super::claims::Holder>| holder.as_ref().is_some_and(|holder| holder.uid == *uid);
        let claimed =
            history.changes.iter().filter(|change| of(&change.after) && !allocated(&change.prefix, uid)).count();
        let inherited = history.changes.iter().filter(|change| of(&change.before) && change.after.is_some()).count();
        match life.policy.as_str() {
            "Delete" if !holds.is_empty() => problems.push(format!("{life:?} is deleted, and holds {holds:?}")),
            "Retain" if claimed > inherited && holds.is_empty() => {
                problems.push(format!("{life:?} was to keep its claim"));
            }
            _ => {}
        }
    }
    let mut etcd = world.etcd.clone();
    let mut there = BTreeSet::new();
    for written in &world.keys {
        if etcd.get(written.key.as_str(), None).await?.count() > 0 {
            there.insert(written.key.as_str());
        }
    }
    for written in &world.keys {
        let released = history.released_since(&written.prefix, written.revision);
        if released == there.contains(written.key.as_str()) {
            let what = if released { "was to go" } else { "was to stay" };
            problems.push(format!("{written:?} {what}"));
        }
    }
    Ok(problems)
}

/// Whether the prefix is one that was made for the object, and not wished for.
fn allocated(prefix: &str, uid: &str) -> bool {
    prefix.contains(uid)
}

/// Why a change of a claim should not have been.
fn forbidden(world: &World, change: &Change) -> Option<String> {
    let life = |holder: &super::claims::Holder| world.lives.get(&holder.uid);
    match (&change.before, &change.after) {
        (Some(before), Some(after)) if before.uid != after.uid => {
            let dead = life(before).is_some_and(|life| life.deleted);
            let named = life(after).is_some_and(|life| {
                world.adoptions.iter().any(|adoption| {
                    adoption.prefix == change.prefix
                        && adoption.namespace == life.namespace
                        && adoption.name == life.name
                })
            });
            (!dead || !named).then(|| format!("given to another: {change:?}"))
        }
        (Some(before), None) => {
            // Whether there was data under it is seen by the keys.
            let empty_handed = allocated(&change.prefix, &before.uid);
            let wanted = life(before).is_some_and(|life| life.deleted && (life.policy == "Delete" || empty_handed));
            (!wanted).then(|| format!("given back by one that had not to: {change:?}"))
        }
        (_, Some(after)) => {
            let owner = life(after).is_some_and(|life| format!("{}/{}", life.namespace, life.name) == after.owner);
            (!owner).then(|| format!("given to nobody: {change:?}"))
        }
        (None, None) => Some(format!("given back twice: {change:?}")),
    }
}
