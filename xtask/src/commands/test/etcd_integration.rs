//! etcd's own integration tests, with an etcd-proxy before every member.
//!
//! What passes on etcd itself passes through the proxy, but for the tests in `tools/etcd-integration/exclusions.txt`.
//! Those are run as well, and one that passes has to leave the list.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Result, bail};

use super::{
    Runner,
    exclusions::{Exclusions, Judgement, Reason},
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

const LIST: &str = include_str!("../../../../tools/etcd-integration/exclusions.txt");

/// The package of the server's own tests; the others are the client library's.
const SERVER: &str = "integration";

/// How many tests of the client library's packages may be excluded.
const OF_CLIENTS: usize = 12;

/// How many tests of the server may be excluded since they count revisions.
const COUNTING: usize = 8;

/// What a tenant is promised to find as at an etcd of its own. No test of the server that names one of these may be
/// excluded, except that it counts revisions, or that it is one of users and roles: what these may do is asked by all calls.
const PROMISED: [&str; 9] = ["kv", "txn", "put", "range", "watch", "lease", "lock", "election", "compact"];

/// What is told of one package.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    through: usize,
    excluded: usize,
    failed: usize,
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
    let exclusions = exclusions()?;
    let packages = packages(&tools.path(Tool::EtcdIntegration)?)?;
    let site = Site::create(&site::of_tests().join(suite))?;
    let mut tests = Vec::new();
    for package in &packages {
        tests.extend(foreign::tests(package, filter)?);
    }
    if filter.is_none() {
        let gone = |part: &Test| !tests.iter().any(|test| exclusions.names(test) && part.name.starts_with(&test.name));
        for (part, _) in exclusions.iter().filter(|(part, _)| gone(part)) {
            counts.fail(suite, &format!("{part} is excluded and does not exist"));
        }
    }

    // The members of these tests are their own, so that no etcd is ever asked for.
    let programs = Programs { etcd_proxy: Some(etcd_proxy), etcd: PathBuf::new(), progress_notify_flag: "" };
    let step = Progress::start(format!("{} tests through etcd-proxy", tests.len()));
    let ground = Ground { site: &site, programs: Some(&programs), label: "proxy", at_once: super::cores() };
    let (excluded, expected) = tests.into_iter().partition(|test| exclusions.names(test));
    let mut outcomes = foreign::run_with_more_tries(&ground, &packages, expected, runner, limit)?;
    // One that fails as it should is not tried a second time.
    outcomes.extend(foreign::run(&ground, &packages, excluded, runner, limit)?);
    step.done();

    let failed: Vec<Test> =
        outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Failed).map(|o| o.test.clone()).collect();
    let step = Progress::start(format!("{} tests that failed, without a proxy", failed.len()));
    let bare = Ground { programs: None, label: "direct", ..ground };
    let bare = foreign::run_with_more_tries(&bare, &packages, failed, runner, limit)?;
    let passing: BTreeSet<Test> =
        bare.into_iter().filter(|outcome| outcome.verdict == Verdict::Passed).map(|o| o.test).collect();
    step.done();

    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for outcome in &outcomes {
        let row = rows.entry(&outcome.test.package).or_default();
        match find(outcome, &exclusions, passing.contains(&outcome.test)) {
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

/// The committed list, which is never long.
fn exclusions() -> Result<Exclusions> {
    let list = Exclusions::parse("tools/etcd-integration/exclusions.txt", LIST)?;
    within_bounds(&list)?;
    Ok(list)
}

fn within_bounds(list: &Exclusions) -> Result<()> {
    let of_clients = list.iter().filter(|(test, _)| test.package != SERVER).count();
    if of_clients > OF_CLIENTS {
        bail!("{of_clients} tests of the client library are excluded; no more than {OF_CLIENTS} may be");
    }
    let server = || list.iter().filter(|(test, _)| test.package == SERVER);
    let counting = server().filter(|(_, reason)| *reason == Reason::CountsRevisions).count();
    if counting > COUNTING {
        bail!("{counting} tests of the server are excluded for counting revisions; no more than {COUNTING} may be");
    }
    for (test, reason) in server() {
        // What becomes of a store that was corrupted on purpose is no promise, whatever lies in it.
        let name = test.name.to_lowercase();
        let promised = PROMISED.iter().find(|word| name.contains(**word) && !name.contains("corrupt"));
        if let (Some(word), Reason::Administers | Reason::LooksInside) = (promised, reason) {
            bail!("{} is excluded, and tests of {word} are promised to pass", test.name);
        }
    }
    Ok(())
}

/// Judges a test by how it ended through the proxy, and whether it passes without.
fn find(outcome: &Outcome, exclusions: &Exclusions, passes_directly: bool) -> Finding {
    let excluded = exclusions.names(&outcome.test);
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
        Verdict::Failed if !passes_directly && outcome.account.faults.is_empty() => {
            Finding::Failed("it fails without a proxy, too, so that it shows nothing".to_owned())
        }
        Verdict::Failed if excluded && outcome.account.faults.is_empty() => {
            match exclusions.judge(&outcome.test, &outcome.failed) {
                Judgement::Listed => Finding::Excluded,
                Judgement::NotListed(part) => {
                    Finding::Failed(format!("{part} is not excluded; {}", outcome.complaint()))
                }
                Judgement::Stale(part) => Finding::Failed(format!("{part} does not fail; take it off the list")),
            }
        }
        // It passes, and shows nothing of a proxy that nobody calls, such as that of a learner.
        Verdict::Passed if excluded && outcome.account.faults.is_empty() && outcome.account.calls.contains(&0) => {
            Finding::Excluded
        }
        _ if !outcome.is_well() => Finding::Failed(outcome.complaint()),
        _ if excluded => Finding::Failed("it is excluded, and does not fail; take it off the list".to_owned()),
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
    let head = ["PACKAGE", "THROUGH", "EXCLUDED", "FAILED", "SKIPPED"];
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
        total.skipped += row.skipped;
    }
    text.push_str(&total.line("all"));
    text.push_str("\n\nTHROUGH passes through the proxy, EXCLUDED only without it\n");
    text.push_str("\nCALLS AT MEMBERS, PAST THE PROXIES\n");
    for (method, times) in direct {
        text.push_str(&format!("{times:>8} {method}\n"));
    }
    text
}

impl Row {
    fn line(&self, name: &str) -> String {
        let Self { through, excluded, failed, skipped } = self;
        format!("\n{name:<42} {through:>8} {excluded:>8} {failed:>8} {skipped:>8}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::harness::Account;

    #[test]
    fn the_committed_list_is_well_formed_and_short() {
        exclusions().unwrap();
    }

    #[test]
    fn what_is_promised_is_not_excluded_and_nothing_often() {
        let check = |text: &str| within_bounds(&Exclusions::parse("list", text).unwrap());
        assert!(check("integration TestV3WatchFuture # looks inside a member: no\n").is_err());
        assert!(check("integration TestPutInTXN # administers the cluster: no\n").is_err());
        check("integration TestV3WatchFuture # counts revisions: it does\n").unwrap();
        let lines = |package: &str, count: usize| -> String {
            (0..count).map(|n| format!("{package} Test{n} # counts revisions: it does\n")).collect()
        };
        check(&lines("integration/clientv3", OF_CLIENTS)).unwrap();
        assert!(check(&lines("integration/clientv3", OF_CLIENTS + 1)).is_err());
        assert!(check(&lines("integration", COUNTING + 1)).is_err());
    }

    fn none() -> Exclusions {
        Exclusions::parse("list", "").unwrap()
    }

    fn listed() -> Exclusions {
        Exclusions::parse("list", "package Test # looks inside a member: it does\n").unwrap()
    }

    fn outcome(verdict: Verdict, calls: &[u64]) -> Outcome {
        let account = Account { calls: calls.to_vec(), ..Account::default() };
        Outcome::of_test(verdict, account)
    }

    #[test]
    fn what_passes_directly_must_pass_through_the_proxy() {
        assert_eq!(find(&outcome(Verdict::Passed, &[3]), &none(), false), Finding::Through);
        assert!(matches!(find(&outcome(Verdict::Failed, &[3]), &none(), true), Finding::Failed(_)));
        assert!(matches!(find(&outcome(Verdict::Failed, &[3]), &none(), false), Finding::Failed(_)));
    }

    #[test]
    fn an_excluded_test_must_fail_through_the_proxy_alone() {
        assert_eq!(find(&outcome(Verdict::Failed, &[3]), &listed(), true), Finding::Excluded);
        assert!(matches!(find(&outcome(Verdict::Passed, &[3]), &listed(), true), Finding::Failed(_)));
    }

    #[test]
    fn a_proxy_that_serves_nothing_or_is_passed_by_shows_nothing() {
        assert!(matches!(find(&outcome(Verdict::Passed, &[3, 0]), &none(), false), Finding::Failed(_)));
        assert!(matches!(find(&outcome(Verdict::Passed, &[]), &none(), false), Finding::Failed(_)));
        let mut strayed = outcome(Verdict::Passed, &[3]);
        strayed.account.direct.insert("/etcdserverpb.Cluster/MemberList".to_owned(), 9);
        assert_eq!(find(&strayed, &none(), false), Finding::Through);
        strayed.account.direct.insert("/etcdserverpb.KV/Put".to_owned(), 1);
        assert!(matches!(find(&strayed, &none(), false), Finding::Failed(_)));
    }

    #[test]
    fn a_proxy_that_does_not_come_up_is_a_failure_whatever_the_test_says() {
        let mut broken = outcome(Verdict::Passed, &[3]);
        broken.account.faults.push("etcd-proxy ended".to_owned());
        assert!(matches!(find(&broken, &none(), false), Finding::Failed(_)));
        broken.verdict = Verdict::Failed;
        assert!(matches!(find(&broken, &none(), false), Finding::Failed(_)));
    }
}
