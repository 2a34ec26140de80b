//! Tests of other projects that do not pass through a proxy, each for one of four reasons.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use super::foreign::Test;

/// Why a test cannot pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    /// It adds, removes, moves or upgrades members, which is not the tenant's to do.
    Administers,
    /// It has users and roles on the etcd itself, which a tenant does not.
    Users,
    /// It looks at what only a member has: its files, its logs, the requests that reached it.
    LooksInside,
    /// It counts revisions, and keeping books on leases and compactions takes some.
    CountsRevisions,
}

/// What the list says of a test that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Everything that failed of it is listed, and what is listed of it failed.
    Listed,
    /// This failed, and is not listed.
    NotListed(String),
    /// This is listed, and did not fail.
    Stale(String),
}

/// A list of them, which is committed. They are run all the same, and one that passes has to leave the list.
#[derive(Debug)]
pub(super) struct Exclusions(BTreeMap<Test, Reason>);

impl Exclusions {
    /// Reads the list in `file`.
    ///
    /// # Errors
    /// When a line is not `PACKAGE TEST # REASON: EXPLANATION`.
    pub(super) fn parse(file: &str, text: &str) -> Result<Self> {
        let mut list = BTreeMap::new();
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let (test, reason) = entry(line).with_context(|| format!("{file}: {line:?}"))?;
            if list.insert(test, reason).is_some() {
                bail!("{file}: {line:?} stands there twice");
            }
        }
        Ok(Self(list))
    }

    /// Whether the test, or a part of it, is on it.
    pub(super) fn names(&self, test: &Test) -> bool {
        self.of(test).next().is_some()
    }

    /// Judges a failed test by the parts of it that failed, all the way down.
    pub(super) fn judge(&self, test: &Test, failed: &[String]) -> Judgement {
        let listed: Vec<&str> = self.of(test).map(|part| part.name.as_str()).collect();
        if let Some(part) = failed.iter().find(|part| !listed.iter().any(|name| within(part, name))) {
            return Judgement::NotListed(part.clone());
        }
        match listed.iter().find(|name| !failed.iter().any(|part| within(part, name))) {
            Some(stale) => Judgement::Stale((*stale).to_owned()),
            None => Judgement::Listed,
        }
    }

    fn of(&self, test: &Test) -> impl Iterator<Item = &Test> {
        self.0.keys().filter(|part| part.package == test.package && within(&part.name, &test.name))
    }

    /// Those on it.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Test, Reason)> {
        self.0.iter().map(|(test, reason)| (test, *reason))
    }
}

/// Whether one test is another, or a part of it: `TestA/b` is of `TestA`.
fn within(part: &str, whole: &str) -> bool {
    part.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// `PACKAGE TEST # REASON: EXPLANATION`
fn entry(line: &str) -> Result<(Test, Reason)> {
    let (test, why) = line.split_once(" # ").context("write PACKAGE TEST # REASON: EXPLANATION")?;
    let (package, name) = test.trim().split_once(' ').context("write PACKAGE TEST")?;
    let (reason, explanation) = why.split_once(": ").context("write REASON: EXPLANATION")?;
    if explanation.trim().is_empty() {
        bail!("the explanation is missing");
    }
    let reason = match reason {
        "administers the cluster" => Reason::Administers,
        "uses etcd's own users and roles" => Reason::Users,
        "looks inside a member" => Reason::LooksInside,
        "counts revisions" => Reason::CountsRevisions,
        _ => bail!("{reason:?} is none of the four reasons"),
    };
    Ok((Test { package: package.to_owned(), name: name.trim().to_owned() }, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_has_one_of_the_reasons() {
        let parse = |text| Exclusions::parse("list", text);
        assert!(parse("integration TestA # it is hard: really\n").is_err());
        assert!(parse("integration TestA # administers the cluster\n").is_err());
        assert!(parse("integration TestA # counts revisions: x\nintegration TestA # counts revisions: x\n").is_err());
        let list = parse("# head\n\nintegration TestA # administers the cluster: adds a member\n").unwrap();
        assert!(list.names(&Test { package: "integration".into(), name: "TestA".into() }));
    }

    #[test]
    fn parts_of_a_test_are_judged_one_by_one() {
        let list = Exclusions::parse("list", "p TestA/one # counts revisions: x\np TestA/two # counts revisions: x\n");
        let list = list.unwrap();
        let test = Test { package: "p".into(), name: "TestA".into() };
        let judge =
            |failed: &[&str]| list.judge(&test, &failed.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>());
        assert_eq!(judge(&["TestA/one/deep", "TestA/two"]), Judgement::Listed);
        assert_eq!(judge(&["TestA/one"]), Judgement::Stale("TestA/two".to_owned()));
        assert_eq!(judge(&["TestA/one", "TestA/two", "TestA/three"]), Judgement::NotListed("TestA/three".to_owned()));
        assert!(!list.names(&Test { package: "p".into(), name: "Test".into() }));
    }
}
