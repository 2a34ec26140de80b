//! The tests that do not pass through a proxy, each for one of four reasons.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use super::Test;

const LIST: &str = include_str!("../../../../../tools/etcd-integration/exclusions.txt");

/// The package of the server's own tests; the others are the client library's.
const SERVER: &str = "integration";

/// How many tests of the client library's packages may be excluded.
const OF_CLIENTS: usize = 12;

/// How many tests of what a tenant is promised may be excluded since they count revisions.
const COUNTING: usize = 8;

/// What a tenant is promised to find as at an etcd of its own. No test of the server that names one of these may be
/// excluded, except that it counts revisions, or is one of users and roles.
const PROMISED: [&str; 8] = ["KV", "Txn", "Put", "Range", "Watch", "Lease", "Election", "Compact"];

/// Why a test cannot pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    /// It adds, removes, moves or upgrades members, which is not the tenant's to do.
    Administers,
    /// It has users and roles on the etcd itself, which a tenant does not.
    Users,
    /// It looks at what only a member has: its files, its logs, the requests that reached it.
    LooksInside,
    /// It counts revisions, and keeping books on leases and compactions takes some.
    CountsRevisions,
}

/// The list.
#[derive(Debug)]
pub(super) struct Exclusions(BTreeMap<Test, Reason>);

impl Exclusions {
    /// The committed list.
    pub(super) fn read() -> Result<Self> {
        Self::parse(LIST)
    }

    pub(super) fn contains(&self, test: &Test) -> bool {
        self.0.contains_key(test)
    }

    pub(super) fn tests(&self) -> impl Iterator<Item = &Test> {
        self.0.keys()
    }

    fn parse(text: &str) -> Result<Self> {
        let mut list = BTreeMap::new();
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let (test, reason) =
                entry(line).with_context(|| format!("tools/etcd-integration/exclusions.txt: {line:?}"))?;
            if list.insert(test, reason).is_some() {
                bail!("tools/etcd-integration/exclusions.txt: {line:?} stands there twice");
            }
        }
        let of_clients = list.keys().filter(|test| test.package != SERVER).count();
        if of_clients > OF_CLIENTS {
            bail!("{of_clients} tests of the client library are excluded; no more than {OF_CLIENTS} may be");
        }
        let counting =
            list.iter().filter(|(test, reason)| test.package == SERVER && **reason == Reason::CountsRevisions);
        let counting = counting.count();
        if counting > COUNTING {
            bail!("{counting} tests of the server are excluded for counting revisions; no more than {COUNTING} may be");
        }
        Ok(Self(list))
    }
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
    let promised = PROMISED.iter().find(|word| name.contains(**word));
    if let Some(word) = promised
        && package == SERVER
        && matches!(reason, Reason::Administers | Reason::LooksInside)
    {
        bail!("tests of {word} are promised to pass");
    }
    Ok((Test { package: package.to_owned(), name: name.trim().to_owned() }, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_list_is_well_formed() {
        Exclusions::read().unwrap();
    }

    #[test]
    fn each_entry_has_one_of_the_reasons() {
        assert!(Exclusions::parse("integration TestA # it is hard: really\n").is_err());
        assert!(Exclusions::parse("integration TestA # administers the cluster\n").is_err());
        let list = Exclusions::parse("# head\n\nintegration TestA # administers the cluster: adds a member\n").unwrap();
        assert!(list.contains(&Test { package: "integration".into(), name: "TestA".into() }));
    }

    #[test]
    fn what_is_promised_is_not_excluded() {
        assert!(Exclusions::parse("integration TestV3WatchFuture # looks inside a member: no\n").is_err());
        Exclusions::parse("integration TestV3WatchFuture # counts revisions: it does\n").unwrap();
    }

    #[test]
    fn there_are_never_many() {
        let lines = |package: &str, count: usize| -> String {
            (0..count).map(|n| format!("{package} Test{n} # counts revisions: it does\n")).collect()
        };
        Exclusions::parse(&lines("integration/clientv3", OF_CLIENTS)).unwrap();
        assert!(Exclusions::parse(&lines("integration/clientv3", OF_CLIENTS + 1)).is_err());
        assert!(Exclusions::parse(&lines("integration", COUNTING + 1)).is_err());
    }
}
