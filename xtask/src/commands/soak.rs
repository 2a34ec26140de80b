//! `cargo xtask soak`: the random tests for as long as asked, from seeds of the clock.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;

use super::test::Runner;
use crate::{
    cargo,
    progress::seconds,
    tools::{Tool, Tools},
};

/// Run the long form of the random tests.
#[derive(Debug, Args)]
pub struct Command {
    /// How long each part runs, in minutes
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// Only these parts
    #[arg(long, value_name = "PARTS", value_delimiter = ',', value_parser = parts())]
    only: Vec<String>,
    /// Take a tool from this path, as NAME=PATH
    #[arg(long = "tool", value_name = "NAME=PATH")]
    tools: Vec<String>,
}

/// A test that runs for as long as `TEST_MINUTES` says.
struct Part {
    name: &'static str,
    /// What finds it, for `cargo test`.
    test: &'static [&'static str],
    /// What it is run with.
    tools: &'static [Tool],
}

/// The parts. Another one is another line.
const PARTS: [Part; 4] = [
    Part {
        name: "model",
        test: &["--test", "model", "two_tenants_and_the_bare_etcd_are_as_their_models"],
        tools: &[Tool::Etcd],
    },
    Part {
        name: "differential",
        test: &["--test", "conformance", "random_sequences_are_answered_alike"],
        tools: &[Tool::Etcd],
    },
    Part {
        name: "members",
        test: &["--test", "members", "writes_survive_and_reads_are_linearizable_under_faults"],
        tools: &[Tool::Etcd],
    },
    Part { name: "frames", test: &["--test", "frames"], tools: &[Tool::Etcd] },
];

/// What a part may take besides its minutes: building it, and making small what has failed.
const BESIDES: Duration = Duration::from_secs(1800);

fn parts() -> Vec<&'static str> {
    PARTS.iter().map(|part| part.name).collect()
}

/// Runs the command.
///
/// # Errors
/// When a part finds something; it has printed the seed then.
pub fn run(command: &Command) -> Result<()> {
    let tools = Tools::with(&command.tools)?;
    let mut runner = Runner::new()?;
    let chosen = |part: &&Part| command.only.is_empty() || command.only.iter().any(|name| name == part.name);
    let mut lines = Vec::new();
    let mut failed = 0;
    for part in PARTS.iter().filter(chosen) {
        eprintln!("\n── {} for {} min", part.name, command.minutes);
        let start = Instant::now();
        let mut test = cargo::command()?;
        test.args(["test", "--package", "etcd-proxy"]).args(part.test).args(["--", "--nocapture"]);
        test.env("TEST_MINUTES", command.minutes.to_string());
        for tool in part.tools {
            test.env(tool.variable(), tools.path(*tool)?);
        }
        let limit = Duration::from_secs(command.minutes * 60) + BESIDES;
        let passed = runner.run(&mut test, limit, |_| ())?.success();
        failed += u32::from(!passed);
        let found = if passed { "nothing found" } else { "FAILED: the seed stands above" };
        lines.push(format!("{:<16} {:>12}  {found}", part.name, seconds(start.elapsed())));
    }
    println!();
    lines.iter().for_each(|line| println!("{line}"));
    if failed > 0 {
        bail!("{failed} of {} parts found something", lines.len());
    }
    Ok(())
}
