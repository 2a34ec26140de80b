//! Tests that may be skipped, each for a reason. A skip that nobody agreed to is a failure.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

const LIST: &str = include_str!("../../../skips.txt");

/// The skips that are agreed to, as `suite test`.
pub(super) fn listed() -> Result<BTreeSet<String>> {
    parse(LIST)
}

fn parse(text: &str) -> Result<BTreeSet<String>> {
    let mut listed = BTreeSet::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        match line.split_once(" # ") {
            Some((test, reason)) if !reason.trim().is_empty() => listed.insert(test.trim().to_owned()),
            _ => bail!("xtask/skips.txt: {line:?} gives no reason; write `SUITE TEST # REASON`"),
        };
    }
    Ok(listed)
}

/// What is wrong with the skips of a run: unlisted ones, and listed ones that did not happen though their suite ran whole.
pub(super) fn problems(
    listed: &BTreeSet<String>,
    skipped: &BTreeSet<String>,
    ran: &[&str],
    whole: bool,
) -> Vec<String> {
    let unlisted = skipped
        .difference(listed)
        .map(|test| format!("not listed in xtask/skips.txt, so it may not be skipped: {test}"));
    let suite_ran = |test: &&String| whole && test.split(' ').next().is_some_and(|suite| ran.contains(&suite));
    let stale = listed
        .difference(skipped)
        .filter(suite_ran)
        .map(|test| format!("no longer skipped, so take it out of xtask/skips.txt: {test}"));
    unlisted.chain(stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_list_is_well_formed() {
        listed().unwrap();
    }

    #[test]
    fn a_skip_needs_a_reason() {
        assert!(parse("unit a::b\n").is_err());
        assert_eq!(parse("# head\n\nunit a::b # needs a node\n").unwrap().len(), 1);
    }

    #[test]
    fn unlisted_and_stale_skips_are_problems() {
        let listed = parse("unit a # why\nunit b # why\ne2e c # why\n").unwrap();
        let skipped = BTreeSet::from(["unit a".to_owned(), "unit d".to_owned()]);
        let found = problems(&listed, &skipped, &["unit"], true);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found.iter().any(|problem| problem.ends_with("unit d"))
                && found.iter().any(|problem| problem.ends_with("unit b"))
        );
        assert_eq!(problems(&listed, &skipped, &["unit"], false).len(), 1);
    }
}
