//! The suites: what each is, and how it is run.

use std::{fmt::Write, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};

use super::{etcd_integration, output::Counts, run::Runner, storage_suite};
use crate::{
    cargo::{self, Profile},
    commands::{
        mutations::{self, Verdict},
        tidy,
    },
    progress::{Progress, seconds},
    site,
    tools::{Tool, Tools},
};

/// A named set of tests.
#[derive(Debug)]
pub(super) struct Suite {
    /// What it is called on the command line.
    pub(super) name: &'static str,
    /// What it shows, in a few words.
    pub(super) what: &'static str,
    /// Whether it runs when no suite is named.
    default: bool,
    /// How long it may take at most, on a busy two-core machine and built from nothing.
    limit: Duration,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Formatting, lints, the project's own rules, licences.
    Lint,
    /// Tests of all crates but one.
    Crates { without: &'static str, tools: &'static [Tool] },
    /// The proxy's tests against a real etcd, on another version of it.
    Version(Tool),
    /// Kubernetes' tests of its storage layer.
    Storage,
    /// etcd's own integration tests.
    EtcdIntegration,
    /// The proxy with a fault, one after the other: a fault that is noticed is a test that passes.
    Mutations,
    /// The tests of one crate, against the project's own programs as well.
    EndToEnd { package: &'static str, tools: &'static [Tool] },
}

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

/// The project's own programs, which end-to-end tests start.
const PROGRAMS: [&str; 4] = ["etcd-proxy", "pizza-apiserver", "proxy-controller", "bench"];

const SUITES: [Suite; 8] = [
    Suite {
        name: "lint",
        what: "formatting, clippy, the project's own rules, licences",
        default: true,
        limit: minutes(30),
        kind: Kind::Lint,
    },
    Suite {
        name: "unit",
        what: "every crate's own tests, those on a real etcd or API server included",
        default: true,
        limit: minutes(40),
        kind: Kind::Crates {
            without: "e2e",
            tools: &[
                Tool::Etcd,
                Tool::Etcd35,
                Tool::Etcd36,
                Tool::Etcdctl,
                Tool::Etcdutl,
                Tool::KubeApiserver,
                Tool::Kubectl,
                Tool::Descriptors,
                Tool::OpenapiMeta,
            ],
        },
    },
    Suite {
        name: "e2e",
        what: "the whole path: kubectl, kube-apiserver, our servers, etcd; Go's programs as clients and neighbours",
        default: true,
        limit: minutes(40),
        kind: Kind::EndToEnd {
            package: "e2e",
            tools: &[
                Tool::Etcd,
                Tool::Etcdctl,
                Tool::EtcdBenchmark,
                Tool::KubeApiserver,
                Tool::KubeControllerManager,
                Tool::Kubectl,
                Tool::SampleApiserver,
                Tool::Informer,
                Tool::Writers,
            ],
        },
    },
    Suite {
        name: "etcd-3.5",
        what: "the proxy's conformance before an etcd 3.5",
        default: false,
        limit: minutes(30),
        kind: Kind::Version(Tool::Etcd35),
    },
    Suite {
        name: "etcd-3.6",
        what: "the proxy's conformance before an etcd 3.6",
        default: false,
        limit: minutes(30),
        kind: Kind::Version(Tool::Etcd36),
    },
    Suite {
        name: "storage-suite",
        what: "Kubernetes' tests of its storage layer through the proxy, on etcd 3.5, 3.6 and 3.7",
        default: false,
        limit: minutes(40),
        kind: Kind::Storage,
    },
    Suite {
        name: "etcd-integration",
        what: "etcd's own integration tests through the proxy",
        default: false,
        limit: minutes(60),
        kind: Kind::EtcdIntegration,
    },
    Suite {
        name: "mutations",
        what: "the proxy with one fault at a time, which its model test notices",
        default: false,
        limit: minutes(90),
        kind: Kind::Mutations,
    },
];

/// The suites as a table.
pub(super) fn table() -> String {
    let mut table = format!("{:<16} {:<8} WHAT\n", "SUITE", "DEFAULT");
    for suite in &SUITES {
        // Writing to a string cannot fail.
        let _ = writeln!(table, "{:<16} {:<8} {}", suite.name, if suite.default { "yes" } else { "no" }, suite.what);
    }
    table
}

/// The suites of these names, in their own order; those of the default tier for none.
///
/// # Errors
/// When there is no suite of a name.
pub(super) fn choose(names: &[String]) -> Result<Vec<&'static Suite>> {
    for name in names {
        if !SUITES.iter().any(|suite| suite.name == name) {
            bail!("no suite is called {name:?}; there are:\n{}", table());
        }
    }
    Ok(SUITES
        .iter()
        .filter(|suite| if names.is_empty() { suite.default } else { names.iter().any(|name| name == suite.name) })
        .collect())
}

/// Runs a suite and counts.
///
/// # Errors
/// When it cannot be run. A failed test is counted, not an error.
pub(super) fn run(
    suite: &Suite,
    tools: &Tools,
    runner: &mut Runner,
    filter: Option<&str>,
    counts: &mut Counts,
) -> Result<()> {
    match suite.kind {
        Kind::Lint => lint(suite, tools, runner, counts),
        Kind::Crates { without, tools: wanted } => {
            let variables = variables(tools, wanted)?;
            cargo_test(suite, runner, &["--workspace", "--exclude", without], &variables, filter, counts)
        }
        Kind::Version(etcd) => {
            let mut variables = variables(tools, &[Tool::Etcdctl, Tool::Etcdutl, Tool::Etcd35, Tool::Etcd36])?;
            variables.push((Tool::Etcd.variable(), tools.path(etcd)?));
            cargo_test(suite, runner, &["--package", "etcd-proxy", "--test", "conformance"], &variables, filter, counts)
        }
        Kind::Storage => {
            let proxy = etcd_proxy()?;
            storage_suite::run(suite.name, tools, proxy, runner, filter, suite.limit, counts)
        }
        Kind::EtcdIntegration => {
            let proxy = etcd_proxy()?;
            etcd_integration::run(suite.name, tools, proxy, runner, filter, suite.limit, counts)
        }
        Kind::Mutations => {
            let chosen = |name: &str| filter.is_none_or(|filter| name.contains(filter));
            mutations::each(tools, runner, chosen, |name, time, verdict| match verdict {
                Verdict::Failed(wrong) => {
                    println!("{name} ({}): {wrong}", seconds(time));
                    counts.pass();
                }
                Verdict::Passed => counts.fail(suite.name, &format!("{name} is not noticed")),
            })
        }
        Kind::EndToEnd { package, tools: wanted } => {
            let mut variables = variables(tools, wanted)?;
            for (program, path) in PROGRAMS.iter().zip(cargo::build(&PROGRAMS, Profile::Dev)?) {
                variables.push((format!("TEST_{}", program.replace('-', "_").to_ascii_uppercase()), path));
            }
            let outcome = cargo_test(suite, runner, &["--package", package], &variables, filter, counts);
            site::end_abandoned(&site::of_tests())?;
            outcome
        }
    }
}

fn etcd_proxy() -> Result<PathBuf> {
    cargo::build(&["etcd-proxy"], Profile::Dev)?.pop().context("cargo built nothing")
}

fn lint(suite: &Suite, tools: &Tools, runner: &mut Runner, counts: &mut Counts) -> Result<()> {
    let mut check = |what: &str, args: &[&str], counts: &mut Counts| {
        let step = Progress::start(what);
        let status = runner.run(cargo::command()?.args(args), suite.limit, |_| ())?;
        if status.success() {
            step.done();
            counts.pass();
        } else {
            counts.fail(suite.name, &format!("cargo {}", args.join(" ")));
        }
        Ok::<_, anyhow::Error>(())
    };
    check("formatting", &["fmt", "--all", "--check"], counts)?;
    check("clippy", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"], counts)?;
    let deny = tools.path(Tool::CargoDeny)?;
    let step = Progress::start("licences, bans and sources");
    let mut command = std::process::Command::new(deny);
    // The database of advisories is not part of the source, and what it says changes from day to day.
    command.current_dir(crate::root()).args([
        "--workspace",
        "check",
        "--hide-inclusion-graph",
        "bans",
        "licenses",
        "sources",
    ]);
    if runner.run(&mut command, suite.limit, |_| ())?.success() {
        step.done();
        counts.pass();
    } else {
        counts.fail(suite.name, "cargo deny check bans licenses sources");
    }
    let broken = tidy::check(&crate::root())?;
    for rule in &broken {
        eprintln!("{rule}");
        counts.fail(suite.name, &format!("tidy: {rule}"));
    }
    if broken.is_empty() {
        counts.pass();
    }
    Ok(())
}

/// Each tool's path in the variable of its name, as the tests expect it.
fn variables(tools: &Tools, wanted: &[Tool]) -> Result<Vec<(String, PathBuf)>> {
    wanted.iter().map(|tool| Ok((tool.variable(), tools.path(*tool)?))).collect()
}

fn cargo_test(
    suite: &Suite,
    runner: &mut Runner,
    what: &[&str],
    variables: &[(String, PathBuf)],
    filter: Option<&str>,
    counts: &mut Counts,
) -> Result<()> {
    let mut command = cargo::command()?;
    command
        .args(["test", "--no-fail-fast"])
        .args(what)
        .args(filter)
        .envs(variables.iter().map(|(name, path)| (name, path)));
    let before = counts.failed;
    let status = runner.run(&mut command, suite.limit, |line| counts.line(suite.name, line)).context("cargo test")?;
    if !status.success() && counts.failed == before {
        // It did not compile, or a test took the whole program down.
        counts.fail(suite.name, &format!("cargo test {} ended with {status}", what.join(" ")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_lists_every_suite() {
        let path = crate::root().join("docs").join("testing.md");
        let text = std::fs::read_to_string(path).unwrap();
        for suite in &SUITES {
            let row = format!("| `{}` | {} |", suite.name, suite.what);
            assert!(text.contains(&row), "docs/testing.md has no row that begins with {row}");
        }
    }

    #[test]
    fn suites_are_chosen_by_name() {
        assert!(choose(&["oven".into()]).is_err());
        assert_eq!(
            choose(&["e2e".into(), "lint".into()]).unwrap().iter().map(|suite| suite.name).collect::<Vec<_>>(),
            ["lint", "e2e"]
        );
        assert!(choose(&[]).unwrap().iter().all(|suite| suite.default));
    }
}
