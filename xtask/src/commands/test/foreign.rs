//! Running the tests of other projects: one process for each test, so that one which hangs costs only itself.

use std::{
    collections::VecDeque,
    fs::File,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};

use super::{
    Runner,
    harness::{Account, Harness, Programs},
};
use crate::{
    process::{self, tail},
    progress::seconds,
    site::{MARK, Site},
    tools::TestPackage,
};

/// How long one test may take on a machine that does much else; the longest of them takes a minute alone.
const LIMIT: Duration = Duration::from_secs(180);

/// How often a test is run that fails.
const TRIES: usize = 2;
/// The same of tests whose outcome is left to chance as soon as a client holds a stream to a member, as a proxy does: package,
/// name, and how often.
const LEFT_TO_CHANCE: [(&str, &str, usize); 1] = [
    // Stops a leader and then a follower, and expects the other follower to have no leader. Each waits 2 s for open streams before
    // it is gone, in which the one that stays may be elected.
    ("integration", "TestV3LeaseKeepAliveForwardingCatchError", 4),
];
/// How long after that Go's own limit may take to show where a test hangs.
const GRACE: Duration = Duration::from_secs(15);

/// One test.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Test {
    /// The package's path inside its module.
    pub(super) package: String,
    /// The function's name.
    pub(super) name: String,
}

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Well.
    Passed,
    /// It said that it does not apply.
    Skipped,
    /// Otherwise, or not in time.
    Failed,
}

/// What became of a test.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The test.
    pub(super) test: Test,
    /// How it ended.
    pub(super) verdict: Verdict,
    /// How long it took.
    pub(super) time: Duration,
    /// What it asked of its harness; nothing where it ran without proxies.
    pub(super) account: Account,
    /// Whether it failed at first, among others, and is told of as it ended when it ran again by itself.
    pub(super) again: bool,
    /// The parts of it that failed, all the way down: `TestA/b/c`, but then neither `TestA/b` nor `TestA`.
    pub(super) failed: Vec<String>,
    /// What it wrote.
    log: PathBuf,
}

/// Where and how tests are run.
#[derive(Clone, Copy)]
pub(super) struct Ground<'a> {
    /// Logs and data.
    pub(super) site: &'a Site,
    /// What is started for the tests; none has them reach members directly.
    pub(super) programs: Option<&'a Programs>,
    /// Distinguishes the logs of one run of the same tests from another's.
    pub(super) label: &'a str,
    /// How many run at a time.
    pub(super) at_once: usize,
}

/// The tests of a package whose names contain `filter`.
pub(super) fn tests(package: &TestPackage, filter: Option<&str>) -> Result<Vec<Test>> {
    let mut command = Command::new(&package.binary);
    command.args(["-test.list", "^(Test|Example)"]).current_dir(&package.folder);
    let listed = process::run(&mut command, b"", Duration::from_secs(60))?.success();
    let listed = listed.with_context(|| format!("listing the tests of {}", package.name))?;
    let names = listed.lines().filter(|line| line.starts_with("Test") || line.starts_with("Example"));
    Ok(names
        .filter(|name| filter.is_none_or(|filter| name.contains(filter)))
        .map(|name| Test { package: package.name.clone(), name: name.to_owned() })
        .collect())
}

/// Runs tests, several at a time, and answers what became of each.
///
/// # Errors
/// When a test cannot be started, the time is up, or a signal ended this program.
pub(super) fn run(
    ground: &Ground<'_>,
    packages: &[TestPackage],
    tests: Vec<Test>,
    runner: &mut Runner,
    limit: Duration,
) -> Result<Vec<Outcome>> {
    let total = tests.len();
    let queue = Mutex::new(VecDeque::from(tests));
    let outcomes = Mutex::new(Vec::with_capacity(total));
    let failure = Mutex::new(None);
    let (stop, working) = (AtomicBool::new(false), AtomicUsize::new(ground.at_once));
    let deadline = Instant::now() + limit;
    std::thread::scope(|scope| {
        for _ in 0..ground.at_once {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    let Some(test) = queue.lock().pop_front() else { break };
                    match run_one(ground, packages, test, &stop) {
                        Ok(outcome) => {
                            let mut outcomes = outcomes.lock();
                            outcomes.push(outcome);
                            if let Some(outcome) = outcomes.last() {
                                println!("{}", line(outcome, outcomes.len(), total));
                            }
                        }
                        Err(error) => {
                            failure.lock().get_or_insert(error);
                            stop.store(true, Ordering::Release);
                        }
                    }
                }
                working.fetch_sub(1, Ordering::AcqRel);
            });
        }
        while working.load(Ordering::Acquire) > 0 {
            let ended = runner.told_to_end().map(|signal| format!("ended by signal {signal}"));
            let late = (Instant::now() > deadline).then(|| format!("took longer than {} min", limit.as_secs() / 60));
            if let Some(why) = ended.or(late) {
                failure.lock().get_or_insert(anyhow::anyhow!(why));
                stop.store(true, Ordering::Release);
            }
            crate::poll::rest(Duration::from_millis(100));
        }
    });
    match failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(outcomes.into_inner()),
    }
}

/// As [`run`], but what failed is run again, one test at a time: many of these tests wait by the clock, and fail on a machine that
/// does too much at once.
///
/// # Errors
/// As [`run`].
pub(super) fn run_with_more_tries(
    ground: &Ground<'_>,
    packages: &[TestPackage],
    tests: Vec<Test>,
    runner: &mut Runner,
    limit: Duration,
) -> Result<Vec<Outcome>> {
    let mut outcomes = run(ground, packages, tests, runner, limit)?;
    let label = format!("{}-again", ground.label);
    let alone = Ground { at_once: 1, label: &label, ..*ground };
    let most = LEFT_TO_CHANCE.iter().map(|(.., tries)| *tries).fold(TRIES, usize::max);
    for tried in 1..most {
        let again = |outcome: &&Outcome| !outcome.is_well() && tried < tries(&outcome.test);
        let failed = outcomes.iter().filter(again).map(|outcome| outcome.test.clone()).collect();
        for next in run(&alone, packages, failed, runner, limit)? {
            if let Some(last) = outcomes.iter_mut().find(|outcome| outcome.test == next.test) {
                *last = Outcome { again: true, ..next };
            }
        }
    }
    Ok(outcomes)
}

/// How often a test is run until it passes.
fn tries(test: &Test) -> usize {
    let listed = LEFT_TO_CHANCE.iter().find(|(package, name, _)| test.package == *package && test.name == *name);
    listed.map_or(TRIES, |(.., tries)| *tries)
}

fn run_one(ground: &Ground<'_>, packages: &[TestPackage], test: Test, stop: &AtomicBool) -> Result<Outcome> {
    let package = packages.iter().find(|package| package.name == test.package);
    let package = package.with_context(|| format!("no package is called {}", test.package))?;
    let name = format!("{}-{}-{}", ground.label, test.package.replace('/', "-"), test.name);
    let harness = ground.programs.map(|programs| Harness::open(ground.site, programs, &name)).transpose()?;
    let log = ground.site.log(&name);
    let output = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
    // What a test that is killed leaves behind goes with the site.
    let scratch = ground.site.data(&name)?;
    let mut command = Command::new(&package.binary);
    command
        .arg(format!("-test.run=^{}$", test.name))
        .args(["-test.v", &format!("-test.timeout={}s", LIMIT.as_secs())])
        .current_dir(&package.folder)
        .env(MARK, ground.site.dir())
        .env("TMPDIR", &scratch)
        .env("HARNESS_ADDRESS", harness.as_ref().map_or_else(|| "none".to_owned(), |h| h.address().to_string()))
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0);
    process::without_etcd_settings(&mut command);
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("starting {}", package.binary.display()))?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no such process number")?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if stop.load(Ordering::Acquire) || start.elapsed() > LIMIT + GRACE {
            // The group may have ended by itself just now.
            let _ = kill_process_group(group, Signal::KILL);
            child.wait()?;
            break None;
        }
        crate::poll::rest(Duration::from_millis(20));
    };
    let time = start.elapsed();
    let account = harness.map(Harness::close).unwrap_or_default();
    std::fs::remove_dir_all(&scratch).with_context(|| format!("removing {}", scratch.display()))?;
    let text = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
    let verdict = match status {
        Some(status) if status.success() => match verdict(&text, &test.name)? {
            Verdict::Passed if account.calls.is_empty() && only_skips(&text, &test.name) => Verdict::Skipped,
            verdict => verdict,
        },
        _ => Verdict::Failed,
    };
    let failed = match verdict {
        Verdict::Failed => failed_parts(&text, &test.name),
        Verdict::Passed | Verdict::Skipped => Vec::new(),
    };
    Ok(Outcome { test, verdict, time, account, again: false, failed, log })
}

/// What a test binary that ended well says of its one test.
fn verdict(text: &str, name: &str) -> Result<Verdict> {
    let told = |word: &str| text.lines().any(|line| line.starts_with(&format!("--- {word}: {name} ")));
    match (told("PASS"), told("SKIP")) {
        (true, _) => Ok(Verdict::Passed),
        (_, true) => Ok(Verdict::Skipped),
        // A name that is no longer there would pass for ever.
        _ => bail!("{name} did not run, by what the program that holds it says"),
    }
}

/// Whether the test has parts and skipped them all.
fn only_skips(text: &str, name: &str) -> bool {
    let part = |line: &str, word| line.trim_start().starts_with(&format!("--- {word}: {name}/"));
    text.lines().any(|line| part(line, "SKIP")) && !text.lines().any(|line| part(line, "PASS"))
}

/// What failed, all the way down; the test itself where it did not come so far as to tell.
fn failed_parts(text: &str, name: &str) -> Vec<String> {
    let told = text.lines().filter_map(|line| line.trim_start().strip_prefix("--- FAIL: "));
    let all: Vec<&str> = told.filter_map(|rest| rest.split(' ').next()).collect();
    let is_leaf =
        |part: &&str| !all.iter().any(|other| other.strip_prefix(*part).is_some_and(|rest| rest.starts_with('/')));
    let mut leaves: Vec<String> = all.iter().filter(|part| is_leaf(part)).map(|part| (*part).to_owned()).collect();
    if leaves.is_empty() {
        leaves.push(name.to_owned());
    }
    leaves
}

fn line(outcome: &Outcome, number: usize, total: usize) -> String {
    let word = match outcome.verdict {
        Verdict::Passed => "ok",
        Verdict::Skipped => "skipped",
        Verdict::Failed => "FAILED",
    };
    let Outcome { test, time, account, .. } = outcome;
    let calls: u64 = account.calls.iter().sum();
    format!("[{number}/{total}] {word:<7} {test} ({}, {} proxies, {calls} calls)", seconds(*time), account.calls.len())
}

impl Outcome {
    /// Whether it passed or did not apply, and its proxies did what proxies are there for.
    pub(super) fn is_well(&self) -> bool {
        self.verdict != Verdict::Failed && self.account.faults.is_empty() && !self.account.calls.contains(&0)
    }

    /// Why it is not well, with the end of what it wrote.
    pub(super) fn complaint(&self) -> String {
        let mut text = String::new();
        if self.verdict == Verdict::Failed {
            text.push_str(&format!("{} failed; ", self.failed.join(", ")));
        }
        if self.account.calls.contains(&0) {
            text.push_str("a proxy of it was never called; ");
        }
        for fault in &self.account.faults {
            text.push_str(&format!("{fault}; "));
        }
        format!("{text}all of it is in {}\n{}", self.log.display(), self.tail())
    }

    fn tail(&self) -> String {
        tail(&self.log).unwrap_or_else(|error| format!("(the log cannot be read: {error:#})"))
    }
}

#[cfg(test)]
impl Outcome {
    /// One that never ran.
    pub(super) fn of_test(verdict: Verdict, account: Account) -> Self {
        let test = Test { package: "package".to_owned(), name: "Test".to_owned() };
        let failed = if verdict == Verdict::Failed { vec!["Test".to_owned()] } else { Vec::new() };
        Self { test, verdict, time: Duration::ZERO, account, again: false, failed, log: "/nowhere".into() }
    }
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.package, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_come_from_the_tests_own_line() {
        let text = "=== RUN   TestA\n    --- SKIP: TestA/inner (0.00s)\n--- PASS: TestA (0.10s)\nPASS\n";
        assert_eq!(verdict(text, "TestA").unwrap(), Verdict::Passed);
        assert!(only_skips(text, "TestA"));
        assert!(!only_skips(
            "    --- SKIP: TestA/b (0.00s)\n    --- PASS: TestA/c (0.00s)\n--- PASS: TestA (1s)\n",
            "TestA"
        ));
        assert!(!only_skips("--- PASS: TestA (0.10s)\nPASS\n", "TestA"));
        assert_eq!(verdict("--- SKIP: TestB (0.00s)\nPASS\n", "TestB").unwrap(), Verdict::Skipped);
        let text = "--- FAIL: TestA (1s)\n    --- FAIL: TestA/b (1s)\n        --- FAIL: TestA/b/c (1s)\n";
        assert_eq!(failed_parts(text, "TestA"), ["TestA/b/c"]);
        assert_eq!(failed_parts("panic: test timed out\n", "TestA"), ["TestA"]);
        assert!(verdict("testing: warning: no tests to run\nPASS\n", "TestC").is_err());
    }
}
