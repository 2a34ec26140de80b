//! etcd's own integration tests, with an etcd-proxy before every member.
//!
//! What passes on etcd itself passes through the proxy, but for the tests in `tools/etcd-integration/exclusions.txt`.
//! Those are run as well, and one that passes has to leave the list.

mod exclusions;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use anyhow::Result;

use self::exclusions::Exclusions;
use super::{
    Runner,
    foreign::{self, Ground, Outcome, Test, Verdict},
    harness::Programs,
    output::Counts,
};
use crate::{
    progress::Progress,
    site::{self, Site},
    tools::{Tool, Tools, packages},
};

/// The services that tests administer members with; they call them at the members themselves. Any other call that
/// reaches a member past the proxies fails the test that made it.
const ADMINISTRATION: [&str; 2] = ["/etcdserverpb.Cluster/", "/etcdserverpb.Auth/"];

/// What is told of one package.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    through: usize,
    excluded: usize,
    failed: usize,
    neither: usize,
    skipped: usize,
}

/// How a test is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    /// It passes through the proxy.
    Through,
    /// It does not apply.
    Skipped,
    /// It is excluded, fails through the proxy and passes without.
    Excluded,
    /// It fails without a proxy too.
    Neither,
    /// It is counted against the proxy, or against the list.
    Failed(String),
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
    let exclusions = Exclusions::read()?;
    let packages = packages(&tools.path(Tool::EtcdIntegration)?)?;
    let site = Site::create(&site::of_tests().join(suite))?;
    let mut tests = Vec::new();
    for package in &packages {
        tests.extend(foreign::tests(package, filter)?);
    }
    if filter.is_none() {
        for gone in exclusions.tests().filter(|test| !tests.contains(*test)) {
            counts.fail(suite, &format!("{gone} is excluded and does not exist"));
        }
    }

    // The members of these tests are their own, so that no etcd is ever asked for.
    let programs = Programs { etcd_proxy, etcd: PathBuf::new(), progress_notify_flag: "" };
    let step = Progress::start(format!("{} tests through etcd-proxy", tests.len()));
    let ground = Ground { site: &site, programs: Some(&programs), label: "proxy", at_once: super::cores() };
    let (excluded, expected) = tests.into_iter().partition(|test| exclusions.contains(test));
    let mut outcomes = foreign::run_with_second_try(&ground, &packages, expected, runner, limit)?;
    // One that fails as it should is not tried a second time.
    outcomes.extend(foreign::run(&ground, &packages, excluded, runner, limit)?);
    step.done();

    let failed: Vec<Test> =
        outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Failed).map(|o| o.test.clone()).collect();
    let step = Progress::start(format!("{} tests that failed, without a proxy", failed.len()));
    let bare = Ground { programs: None, label: "direct", ..ground };
    let bare = foreign::run_with_second_try(&bare, &packages, failed, runner, limit)?;
    let passing: BTreeSet<Test> =
        bare.into_iter().filter(|outcome| outcome.verdict == Verdict::Passed).map(|o| o.test).collect();
    step.done();

    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for outcome in &outcomes {
        let row = rows.entry(&outcome.test.package).or_default();
        match find(outcome, exclusions.contains(&outcome.test), passing.contains(&outcome.test)) {
            Finding::Through => {
                row.through += 1;
                counts.pass();
                if outcome.again {
                    println!("passed when it ran again by itself: {}", outcome.test);
                }
            }
            Finding::Skipped => {
                row.skipped += 1;
                counts.skipped.insert(format!("{suite} {}", outcome.test));
            }
            Finding::Excluded => {
                row.excluded += 1;
                counts.pass();
            }
            Finding::Neither => {
                row.neither += 1;
                println!("fails without a proxy, too: {}", outcome.test);
            }
            Finding::Failed(why) => {
                row.failed += 1;
                eprintln!("{}: {why}", outcome.test);
                counts.fail(suite, &outcome.test.to_string());
            }
        }
    }
    println!("{}", table(&rows, &direct_calls(&outcomes)));
    if counts.failed == 0 { site.remove() } else { Ok(()) }
}

/// Judges a test by how it ended through the proxy, and whether it passes without.
fn find(outcome: &Outcome, excluded: bool, passes_directly: bool) -> Finding {
    let strays: Vec<&str> = outcome
        .account
        .direct
        .keys()
        .map(String::as_str)
        .filter(|method| !ADMINISTRATION.iter().any(|service| method.starts_with(service)))
        .collect();
    match outcome.verdict {
        _ if !strays.is_empty() => {
            Finding::Failed(format!("it went past its proxies with {}; {}", strays.join(", "), outcome.complaint()))
        }
        Verdict::Failed if !passes_directly && outcome.account.faults.is_empty() => Finding::Neither,
        Verdict::Failed if excluded => Finding::Excluded,
        _ if excluded => Finding::Failed("it is excluded, and does not fail; take it off the list".to_owned()),
        _ if !outcome.is_well() => Finding::Failed(outcome.complaint()),
        Verdict::Skipped => Finding::Skipped,
        _ if outcome.account.calls.is_empty() => {
            Finding::Failed("it passed without ever asking for a proxy, so that it shows nothing".to_owned())
        }
        _ => Finding::Through,
    }
}

fn direct_calls(outcomes: &[Outcome]) -> BTreeMap<&str, u64> {
    let mut sums = BTreeMap::new();
    for (method, times) in outcomes.iter().flat_map(|outcome| &outcome.account.direct) {
        *sums.entry(method.as_str()).or_default() += times;
    }
    sums
}

fn table(rows: &BTreeMap<&str, Row>, direct: &BTreeMap<&str, u64>) -> String {
    let head = ["PACKAGE", "THROUGH", "EXCLUDED", "FAILED", "NEITHER", "SKIPPED"];
    let [package, numbers @ ..] = head;
    let mut text = format!("\n{package:<42}");
    for name in numbers {
        text.push_str(&format!(" {name:>8}"));
    }
    let mut total = Row::default();
    for (package, row) in rows {
        text.push_str(&row.line(package));
        total.through += row.through;
        total.excluded += row.excluded;
        total.failed += row.failed;
        total.neither += row.neither;
        total.skipped += row.skipped;
    }
    text.push_str(&total.line("all"));
    text.push_str("\n\nTHROUGH passes through the proxy, EXCLUDED only without it, NEITHER in no way\n");
    text.push_str("\nCALLS AT MEMBERS, PAST THE PROXIES\n");
    for (method, times) in direct {
        text.push_str(&format!("{times:>8} {method}\n"));
    }
    text
}

impl Row {
    fn line(&self, name: &str) -> String {
        let Self { through, excluded, failed, neither, skipped } = self;
        format!("\n{name:<42} {through:>8} {excluded:>8} {failed:>8} {neither:>8} {skipped:>8}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::harness::Account;

    fn outcome(verdict: Verdict, calls: &[u64]) -> Outcome {
        let account = Account { calls: calls.to_vec(), ..Account::default() };
        Outcome::of_test(verdict, account)
    }

    #[test]
    fn what_passes_directly_must_pass_through_the_proxy() {
        assert_eq!(find(&outcome(Verdict::Passed, &[3]), false, false), Finding::Through);
        assert!(matches!(find(&outcome(Verdict::Failed, &[3]), false, true), Finding::Failed(_)));
        assert_eq!(find(&outcome(Verdict::Failed, &[3]), false, false), Finding::Neither);
    }

    #[test]
    fn an_excluded_test_must_fail_through_the_proxy_alone() {
        assert_eq!(find(&outcome(Verdict::Failed, &[3]), true, true), Finding::Excluded);
        assert!(matches!(find(&outcome(Verdict::Passed, &[3]), true, true), Finding::Failed(_)));
    }

    #[test]
    fn a_proxy_that_serves_nothing_or_is_passed_by_shows_nothing() {
        assert!(matches!(find(&outcome(Verdict::Passed, &[3, 0]), false, false), Finding::Failed(_)));
        assert!(matches!(find(&outcome(Verdict::Passed, &[]), false, false), Finding::Failed(_)));
        let mut strayed = outcome(Verdict::Passed, &[3]);
        strayed.account.direct.insert("/etcdserverpb.Cluster/MemberList".to_owned(), 9);
        assert_eq!(find(&strayed, false, false), Finding::Through);
        strayed.account.direct.insert("/etcdserverpb.KV/Put".to_owned(), 1);
        assert!(matches!(find(&strayed, false, false), Finding::Failed(_)));
    }

    #[test]
    fn a_proxy_that_does_not_come_up_is_a_failure_whatever_the_test_says() {
        let mut broken = outcome(Verdict::Passed, &[3]);
        broken.account.faults.push("etcd-proxy ended".to_owned());
        assert!(matches!(find(&broken, false, false), Finding::Failed(_)));
        broken.verdict = Verdict::Failed;
        assert!(matches!(find(&broken, false, false), Finding::Failed(_)));
    }
}
