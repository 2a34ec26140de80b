//! `cargo xtask bench`: builds our programs as they are shipped, and measures them beside the originals by the program
//! of the crate `bench`.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::test::Runner;
use crate::{
    cargo::{self, Profile},
    site,
    tools::{Tool, Tools},
};

/// Measure our programs beside the originals; all of it writes docs/performance.
#[derive(Debug, Args)]
pub struct Command {
    /// Measure less, in minutes, and print the tables only
    #[arg(long)]
    quick: bool,
    /// Measure only these
    #[arg(long, value_name = "PARTS", value_delimiter = ',', value_parser = PARTS)]
    only: Vec<String>,
    /// Write documents and plots into this folder; by default docs/performance, and with --quick nowhere
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Take a tool from this path, as NAME=PATH
    #[arg(long = "tool", value_name = "NAME=PATH")]
    tools: Vec<String>,
}

/// The project's own programs that are measured, or measure.
const PROGRAMS: [&str; 3] = ["etcd-proxy", "proxy-controller", "bench"];

/// The originals, and what loads them.
const TOOLS: [Tool; 6] =
    [Tool::Etcd, Tool::Etcdctl, Tool::EtcdBenchmark, Tool::KubeApiserver, Tool::Kubectl, Tool::SampleApiserver];

/// What can be measured by itself.
const PARTS: [&str; 3] = ["etcd-proxy", "apiserver", "proxy-controller"];

/// No run takes as long, whatever hangs in it.
const LIMIT: Duration = Duration::from_secs(3 * 3600);

/// The folder of sites, of which there is one at a time.
fn folder() -> PathBuf {
    crate::root().join("target").join("bench")
}

/// Runs the command.
///
/// # Errors
/// When something cannot be built, does not come up, or fails a request. Nothing is left running then, nor after
/// Ctrl-C; the logs stay.
pub fn run(command: &Command) -> Result<()> {
    let site = folder().join("site");
    if site::is_running(&site) {
        bail!("a measurement is running already, and two would disturb each other");
    }
    let mut runner = Runner::new()?;
    let tools = Tools::with(&command.tools)?;
    let found = TOOLS.iter().map(|tool| Ok((tool.variable(), tools.path(*tool)?))).collect::<Result<Vec<_>>>()?;
    let programs = cargo::build(&PROGRAMS, Profile::Release)?;
    let [etcd_proxy, proxy_controller, bench] =
        <[PathBuf; 3]>::try_from(programs).map_err(|_| anyhow::anyhow!("cargo built other programs than asked for"))?;

    let mut program = std::process::Command::new(&bench);
    program.args(["--size", if command.quick { "quick" } else { "full" }, "--site"]).arg(&site);
    program.args(["--shown-as", &shown(command)]);
    if !command.only.is_empty() {
        program.args(["--only", &command.only.join(",")]);
    }
    let documents = match &command.out {
        Some(folder) => Some(std::path::absolute(folder)?),
        None => (!command.quick).then(|| crate::root().join("docs").join("performance")),
    };
    if let Some(folder) = documents {
        program.arg("--out").arg(folder);
    }
    program.current_dir(crate::root()).envs(found);
    program.env("TEST_ETCD_PROXY", etcd_proxy).env("TEST_PROXY_CONTROLLER", proxy_controller);

    let outcome = runner.run(&mut program, LIMIT, |_| ());
    // Whatever happened to the program, what it started ends.
    let ended = site::end_abandoned(&folder());
    if !outcome.context("measuring")?.success() {
        bail!("the measurement failed; the logs are in {}", site.join("logs").display());
    }
    ended
}

/// The command for a reader to repeat.
fn shown(command: &Command) -> String {
    let mut text = String::from("cargo xtask bench");
    if command.quick {
        text.push_str(" --quick");
    }
    if !command.only.is_empty() {
        text.push_str(" --only ");
        text.push_str(&command.only.join(","));
    }
    text
}
