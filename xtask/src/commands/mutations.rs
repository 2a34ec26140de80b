//! `cargo xtask mutations`: the proxy with a hole in it, one after the other, and whether its tests notice.
//!
//! `cargo xtask test mutations` counts the same as tests.
//!
//! A copy of the tree below `target/mutations` is changed, built and run, so that no build of the tree itself ever holds a
//! mutant. The tests are this tree's; only the program that they start is another.

mod list;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command as Process,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;

use self::list::{MUTATIONS, Mutation};
use super::test::Runner;
use crate::{
    cargo,
    progress::{Progress, seconds},
    tools::{Tool, Tools},
};

/// Build the proxy with one named fault at a time, and see the model test fail.
#[derive(Debug, Args)]
pub struct Command {
    /// Only these mutations, by name; --list tells what there is
    names: Vec<String>,
    /// List the mutations and run none
    #[arg(long)]
    list: bool,
    /// Take a tool from this path, as NAME=PATH
    #[arg(long = "tool", value_name = "NAME=PATH")]
    tools: Vec<String>,
}

/// No build and no run takes as long.
const LIMIT: Duration = Duration::from_secs(1800);

/// What a run of the tests said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Passed,
    /// With what was wrong.
    Failed(String),
}

/// The copy of the tree and what is needed to judge it.
struct Bench {
    tree: PathBuf,
    build: PathBuf,
    test: PathBuf,
    etcd: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// When a mutation is not noticed or no longer applies, or the tests fail without one.
pub fn run(command: &Command) -> Result<()> {
    if command.list {
        for mutation in &MUTATIONS {
            println!("{:<32} {}", mutation.name, mutation.what);
        }
        return Ok(());
    }
    if let Some(name) = command.names.iter().find(|name| !MUTATIONS.iter().any(|mutation| mutation.name == **name)) {
        bail!("no mutation is called {name:?}; --list tells what there is");
    }
    let mut lines = Vec::new();
    let mut missed = 0;
    let chosen = |name: &str| command.names.is_empty() || command.names.iter().any(|chosen| chosen == name);
    each(&Tools::with(&command.tools)?, &mut Runner::new()?, chosen, |name, time, verdict| {
        missed += u32::from(verdict == Verdict::Passed);
        let verdict = match verdict {
            Verdict::Passed => "NOT NOTICED".to_owned(),
            Verdict::Failed(wrong) => wrong,
        };
        lines.push(format!("{name:<32} {:>12}  {verdict}", seconds(time)));
        eprintln!("{}", lines.last().map_or("", String::as_str));
    })?;
    println!("\n{:<32} {:>12}  NOTICED BY", "MUTATION", "TIME");
    lines.iter().for_each(|line| println!("{line}"));
    if missed > 0 {
        bail!("{missed} of {} mutations were not noticed", lines.len());
    }
    println!("all {} noticed", lines.len());
    Ok(())
}

/// Judges each mutation whose name is chosen, and tells what came of it.
///
/// # Errors
/// When one no longer applies, or the tests fail without any.
pub(super) fn each(
    tools: &Tools,
    runner: &mut Runner,
    chosen: impl Fn(&str) -> bool,
    mut told: impl FnMut(&'static str, Duration, Verdict),
) -> Result<()> {
    let bench = Bench::prepare(tools)?;
    if let Verdict::Failed(wrong) = bench.judge(runner)? {
        bail!("the tests fail without a mutation, so they show nothing: {wrong}");
    }
    for mutation in MUTATIONS.iter().filter(|mutation| chosen(mutation.name)) {
        let start = Instant::now();
        let verdict = bench.mutate(mutation, runner)?;
        told(mutation.name, start.elapsed(), verdict);
    }
    Ok(())
}

// === impl Bench ===

impl Bench {
    fn prepare(tools: &Tools) -> Result<Self> {
        let folder = crate::root().join("target").join("mutations");
        let (tree, build) = (folder.join("tree"), folder.join("build"));
        copy(&crate::root(), &tree)?;
        let etcd = tools.path(Tool::Etcd)?;
        let test = executable(
            cargo::command()?.args(["test", "--no-run", "--package", "etcd-proxy", "--test", "model"]),
            "model",
            "building the tests",
        )?;
        Ok(Self { tree, build, test, etcd })
    }

    /// Judges the proxy with a mutation, and takes that back.
    fn mutate(&self, mutation: &Mutation, runner: &mut Runner) -> Result<Verdict> {
        let file = self.tree.join("etcd-proxy").join("src").join(mutation.file);
        let whole = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        if whole.matches(mutation.from).count() != 1 {
            bail!("the mutation {} applies no longer: {} has changed", mutation.name, mutation.file);
        }
        fs::write(&file, whole.replace(mutation.from, mutation.to))?;
        let verdict = self.judge(runner).with_context(|| format!("the mutation {}", mutation.name));
        fs::write(&file, whole)?;
        verdict
    }

    /// Builds the copy's proxy and runs the tests on it.
    fn judge(&self, runner: &mut Runner) -> Result<Verdict> {
        let mut build = cargo::command()?;
        build.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.build);
        build.args(["build", "--package", "etcd-proxy", "--bin", "etcd-proxy"]);
        let mutant = executable(&mut build, "etcd-proxy", "building the proxy")?;
        let mut test = Process::new(&self.test);
        test.current_dir(crate::root().join("etcd-proxy"))
            .env("TEST_MUTANT", &mutant)
            .env("TEST_BRIEF", "1")
            .env("RUST_BACKTRACE", "0")
            .env(Tool::Etcd.variable(), &self.etcd);
        let mut wrong = String::new();
        let status = runner.run(&mut test, LIMIT, |line| {
            if line.starts_with("--test model") {
                wrong = line.chars().take(100).collect();
            }
        })?;
        Ok(match status.code() {
            Some(0) => Verdict::Passed,
            // The harness' code for a failed test; anything else is no verdict.
            Some(101) if !wrong.is_empty() => Verdict::Failed(wrong),
            _ => bail!("the tests ended with {status} and named no case"),
        })
    }
}

/// Runs a build and returns the path of what it made.
fn executable(build: &mut Process, name: &str, what: &str) -> Result<PathBuf> {
    let step = Progress::start(what);
    let output = build
        .args(["--quiet", "--message-format", "json-render-diagnostics"])
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("starting {build:?}"))?;
    if !output.status.success() {
        bail!("{what}: cargo ended with {}", output.status);
    }
    step.done();
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message.pointer("/target/name").is_some_and(|target| target == name))
        .find_map(|message| message.get("executable")?.as_str().map(PathBuf::from))
        .with_context(|| format!("{what}: no program {name}"))
}

/// Copies the files that git knows of. What is the same already stays as it is, so that little is built anew.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let output = Process::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(from)
        .output()
        .context("starting git")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    for name in String::from_utf8_lossy(&output.stdout).split('\0').filter(|name| !name.is_empty()) {
        let (source, target) = (from.join(name), to.join(name));
        // Links and files that are deleted but not yet committed so are no part of a build.
        if !source.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
            continue;
        }
        let bytes = fs::read(&source).with_context(|| format!("reading {}", source.display()))?;
        if fs::read(&target).is_ok_and(|there| there == bytes) {
            continue;
        }
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&target, bytes).with_context(|| format!("writing {}", target.display()))?;
    }
    Ok(())
}
