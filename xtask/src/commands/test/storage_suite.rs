//! Kubernetes' tests of its storage layer, with an etcd-proxy before every etcd, on each version of etcd.
//!
//! What passes on that etcd itself passes through the proxy, but for the tests in `tools/storage-suite/exclusions.txt`. What does
//! not is listed in `failing.txt` beside it.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use anyhow::{Result, bail};

use super::{
    Runner,
    exclusions::{Exclusions, Judgement},
    failing::Failing,
    foreign::{self, Ground, Test, Verdict},
    harness::Programs,
    output::Counts,
};
use crate::{
    progress::Progress,
    site::{self, Site},
    tools::{Tool, Tools, packages},
};

const LIST: &str = include_str!("../../../../tools/storage-suite/exclusions.txt");
const FAILING: &str = include_str!("../../../../tools/storage-suite/failing.txt");

/// The versions of etcd, with the name that the interval of progress notifications has there. The newest comes first:
/// what never asks for an etcd there is not run on the others.
const VERSIONS: [(Tool, &str); 3] = [
    (Tool::Etcd, "watch-progress-notify-interval"),
    (Tool::Etcd36, "watch-progress-notify-interval"),
    (Tool::Etcd35, "experimental-watch-progress-notify-interval"),
];

/// What is told of one version of etcd.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    through: usize,
    excluded: usize,
    failed: usize,
    neither: usize,
    skipped: usize,
    /// Passed without ever asking for an etcd.
    without: usize,
}

/// Runs them.
///
/// # Errors
/// When they cannot be run. A failed test is counted, not an error.
pub(super) fn run(
    suite: &str,
    tools: &Tools,
    etcd_proxy: PathBuf,
    runner: &mut Runner,
    filter: Option<&str>,
    limit: Duration,
    counts: &mut Counts,
) -> Result<()> {
    let exclusions = exclusions()?;
    let failing = failing()?;
    let packages = packages(&tools.path(Tool::StorageSuite)?)?;
    let site = Site::create(&site::of_tests().join(suite))?;
    let mut tests = Vec::new();
    for package in &packages {
        tests.extend(foreign::tests(package, filter)?);
    }
    if filter.is_none() {
        for test in failing.tests().filter(|test| !tests.contains(test)) {
            counts.fail(suite, &format!("{test} is in failing.txt and does not exist"));
        }
    }
    let mut table = format!(
        "\n{:<10} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n",
        "ETCD", "THROUGH", "EXCLUDED", "FAILED", "NEITHER", "SKIPPED", "NO ETCD"
    );
    for (etcd, progress_notify_flag) in VERSIONS {
        let programs = Programs { etcd_proxy: Some(etcd_proxy.clone()), etcd: tools.path(etcd)?, progress_notify_flag };
        let version = etcd.version()?;
        let step = Progress::start(format!("{} tests of the storage layer on etcd {version}", tests.len()));
        let ground = Ground { site: &site, programs: Some(&programs), label: etcd.name(), at_once: super::cores() };
        let outcomes = foreign::run_with_more_tries(&ground, &packages, tests, runner, limit)?;
        step.done();

        let failed: Vec<Test> =
            outcomes.iter().filter(|o| o.verdict == Verdict::Failed).map(|o| o.test.clone()).collect();
        let step = Progress::start(format!("{} tests that failed, on etcd {version} itself", failed.len()));
        let bare = Programs { etcd_proxy: None, ..programs.clone() };
        let label = format!("{etcd}-direct");
        let bare = Ground { programs: Some(&bare), label: &label, ..ground };
        let bare = foreign::run_with_more_tries(&bare, &packages, failed, runner, limit)?;
        let passing: BTreeSet<Test> =
            bare.into_iter().filter(|o| o.verdict == Verdict::Passed).map(|o| o.test).collect();
        step.done();

        let mut row = Row::default();
        let mut asked = BTreeSet::new();
        for outcome in &outcomes {
            let excluded = exclusions.names(&outcome.test);
            if !outcome.account.calls.is_empty() || outcome.verdict == Verdict::Failed {
                asked.insert(outcome.test.clone());
            }
            if outcome.verdict == Verdict::Failed
                && outcome.account.faults.is_empty()
                && !passing.contains(&outcome.test)
            {
                if failing.names(&outcome.test, &version) {
                    row.neither += 1;
                } else {
                    row.failed += 1;
                    eprintln!("{} fails on etcd {version} itself, too; failing.txt does not say why", outcome.test);
                    counts.fail(suite, &format!("{} on etcd {version}", outcome.test));
                }
            } else if failing.names(&outcome.test, &version) {
                row.failed += 1;
                eprintln!("{} passes on etcd {version}; take that off failing.txt", outcome.test);
                counts.fail(suite, &format!("{} on etcd {version}", outcome.test));
            } else if outcome.verdict == Verdict::Failed
                && exclusions.judge(&outcome.test, &outcome.failed) == Judgement::Listed
            {
                row.excluded += 1;
                counts.pass();
            } else if excluded || !outcome.is_well() {
                row.failed += 1;
                let note = if excluded { "(what is listed of it in exclusions.txt did not fail so) " } else { "" };
                eprintln!("{} on etcd {version}: {note}{}", outcome.test, outcome.complaint());
                counts.fail(suite, &format!("{} on etcd {version}", outcome.test));
            } else if outcome.verdict == Verdict::Skipped {
                row.skipped += 1;
                counts.skipped.insert(format!("{suite} {etcd} {}", outcome.test));
            } else {
                *if outcome.account.calls.is_empty() { &mut row.without } else { &mut row.through } += 1;
                counts.pass();
                if outcome.again {
                    println!("passed when it ran again by itself: {}", outcome.test);
                }
            }
        }
        let Row { through, excluded, failed, neither, skipped, without } = row;
        table.push_str(&format!(
            "{version:<10} {through:>8} {excluded:>8} {failed:>8} {neither:>8} {skipped:>8} {without:>8}\n"
        ));
        if through == 0 && filter.is_none() {
            bail!("no test asked for an etcd, so that nothing was shown");
        }
        tests = asked.into_iter().collect();
    }
    println!("{table}");
    if counts.failed == 0 { site.remove() } else { Ok(()) }
}

fn exclusions() -> Result<Exclusions> {
    Exclusions::parse("tools/storage-suite/exclusions.txt", LIST)
}

fn failing() -> Result<Failing> {
    Failing::parse("tools/storage-suite/failing.txt", FAILING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_lists_are_well_formed() {
        exclusions().unwrap();
        failing().unwrap();
    }
}
