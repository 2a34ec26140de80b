//! Kubernetes' tests of its storage layer, with an etcd-proxy before every etcd, on each version of etcd.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use anyhow::{Result, bail};

use super::{
    Runner,
    foreign::{self, Ground, Test, Verdict},
    harness::Programs,
    output::Counts,
};
use crate::{
    progress::Progress,
    site::{self, Site},
    tools::{Tool, Tools, packages},
};

/// The versions of etcd, with the name that the interval of progress notifications has there. The newest comes first:
/// what never asks for an etcd there is not run on the others.
const VERSIONS: [(Tool, &str); 3] = [
    (Tool::Etcd, "watch-progress-notify-interval"),
    (Tool::Etcd36, "watch-progress-notify-interval"),
    (Tool::Etcd35, "experimental-watch-progress-notify-interval"),
];

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
    let packages = packages(&tools.path(Tool::StorageSuite)?)?;
    let site = Site::create(&site::of_tests().join(suite))?;
    let mut tests = Vec::new();
    for package in &packages {
        tests.extend(foreign::tests(package, filter)?);
    }
    let mut table = format!("\n{:<12} {:>8} {:>7} {:>8} {:>9}\n", "ETCD", "THROUGH", "FAILED", "SKIPPED", "NO ETCD");
    for (etcd, progress_notify_flag) in VERSIONS {
        let programs = Programs { etcd_proxy: etcd_proxy.clone(), etcd: tools.path(etcd)?, progress_notify_flag };
        let version = etcd.version()?;
        let step = Progress::start(format!("{} tests of the storage layer on etcd {version}", tests.len()));
        let ground = Ground { site: &site, programs: Some(&programs), label: etcd.name(), at_once: super::cores() };
        let outcomes = foreign::run_with_second_try(&ground, &packages, tests, runner, limit)?;
        let (mut through, mut failed, mut skipped, mut without) = (0, 0, 0, 0);
        let mut asked = BTreeSet::new();
        for outcome in &outcomes {
            if !outcome.account.calls.is_empty() || !outcome.is_well() {
                asked.insert(outcome.test.clone());
            }
            if !outcome.is_well() {
                failed += 1;
                eprintln!("{} on etcd {version}: {}", outcome.test, outcome.complaint());
                counts.fail(suite, &format!("{} on etcd {version}", outcome.test));
            } else if outcome.verdict == Verdict::Skipped {
                skipped += 1;
                counts.skipped.insert(format!("{suite} {} {}", etcd.name(), outcome.test));
            } else if outcome.account.calls.is_empty() {
                without += 1;
                counts.pass();
            } else {
                through += 1;
                counts.pass();
            }
        }
        step.done();
        table.push_str(&format!("{version:<12} {through:>8} {failed:>7} {skipped:>8} {without:>9}\n"));
        if through == 0 && filter.is_none() {
            bail!("no test asked for an etcd, so that nothing was shown");
        }
        tests = Vec::from_iter::<BTreeSet<Test>>(asked);
    }
    println!("{table}");
    if counts.failed == 0 { site.remove() } else { Ok(()) }
}
