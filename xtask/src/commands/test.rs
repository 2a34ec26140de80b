//! `cargo xtask test`: suites by name, with their real components, counted and timed.

mod etcd_integration;
mod exclusions;
mod failing;
mod foreign;
mod harness;
mod output;
mod run;
mod skips;
mod storage_suite;
mod suites;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;

pub(super) use self::run::Runner;
use self::{output::Counts, suites::Suite};
use crate::{progress::seconds, tools::Tools};

/// Run test suites; without names, those of the default tier.
#[derive(Debug, Args)]
pub struct Command {
    /// The suites, by name; --list tells what there is
    suites: Vec<String>,
    /// List the suites and run none
    #[arg(long)]
    list: bool,
    /// Only tests whose name contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Take a tool from this path, as NAME=PATH
    #[arg(long = "tool", value_name = "NAME=PATH")]
    tools: Vec<String>,
}

/// How many tests of a suite run at a time, where each is a process of its own.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What became of one suite.
struct Report {
    suite: &'static Suite,
    counts: Counts,
    time: Duration,
}

/// Runs the command.
///
/// # Errors
/// When a test fails or is skipped without being listed for that, or a suite cannot be run.
pub fn run(command: &Command) -> Result<()> {
    if command.list {
        print!("{}", suites::table());
        return Ok(());
    }
    let chosen = suites::choose(&command.suites)?;
    let tools = Tools::with(&command.tools)?;
    let mut runner = Runner::new()?;
    let mut reports = Vec::new();
    for suite in chosen {
        eprintln!("\n── suite {}: {}", suite.name, suite.what);
        let start = Instant::now();
        let mut counts = Counts::default();
        if let Err(error) = suites::run(suite, &tools, &mut runner, command.filter.as_deref(), &mut counts) {
            if runner.interrupted() {
                return Err(error);
            }
            counts.fail(suite.name, &format!("{error:#}"));
        }
        reports.push(Report { suite, counts, time: start.elapsed() });
    }
    // A part of the tests says nothing about skips that are listed and did not happen.
    let whole = command.filter.is_none();
    summarize(&reports, whole)
}

fn summarize(reports: &[Report], whole: bool) -> Result<()> {
    println!("\n{:<16} {:>7} {:>7} {:>7}  TIME", "SUITE", "PASSED", "FAILED", "SKIPPED");
    let mut total = Counts::default();
    for Report { suite, counts, time } in reports {
        println!(
            "{:<16} {:>7} {:>7} {:>7}  {}",
            suite.name,
            counts.passed,
            counts.failed,
            counts.skipped.len(),
            seconds(*time)
        );
        total.add(counts);
    }
    let ran: Vec<&str> = reports.iter().map(|report| report.suite.name).collect();
    let listed = skips::listed()?;
    for skip in &total.skipped {
        let mark = if listed.contains(skip) { "listed" } else { "NOT LISTED" };
        println!("skipped ({mark}): {skip}");
    }
    for failure in &total.failures {
        println!("failed: {failure}");
    }
    let problems = skips::problems(&listed, &total.skipped, &ran, whole);
    for problem in &problems {
        println!("{problem}");
    }
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped.len());
    if total.failed > 0 || !problems.is_empty() {
        bail!("the tests did not pass");
    }
    if total.passed == 0 {
        bail!("no test was run");
    }
    Ok(())
}
