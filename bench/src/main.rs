//! Measurements beside the originals. `cargo xtask bench` builds what is compared, runs this program, and clears up
//! after it, also when it is cut short.
//!
//! Every figure stands beside that of a peer taken in the same run: the two take turns, several rounds long.

// A command-line program: standard output is its result, standard error its progress.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod apiserver;
mod controller;
mod etcd;
mod https;
mod plan;
mod proxy;
mod report;
mod stats;
mod usage;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use xtask::{
    process::Spec,
    site::Site,
    tools::{Tool, Tools},
};

use self::{
    plan::{Plan, Size},
    report::{Machine, Part},
};

/// Measures this project's programs beside the originals. Run it by `cargo xtask bench`.
#[derive(Debug, Parser)]
struct Arguments {
    /// How much is measured
    #[arg(long, value_enum, default_value = "full")]
    size: Size,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Product>,
    /// Where processes have their data and logs; cleared first
    #[arg(long, value_name = "FOLDER")]
    site: PathBuf,
    /// Where documents and plots are written; nowhere without
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// The command that documents tell readers to repeat
    #[arg(long, default_value = "cargo xtask bench")]
    shown_as: String,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Product {
    /// etcd-proxy beside etcd and its grpc-proxy.
    EtcdProxy,
    /// The library beside Go's sample-apiserver.
    Apiserver,
    /// proxy-controller with many EtcdProxy objects.
    ProxyController,
}

impl Product {
    const ALL: [Self; 3] = [Self::EtcdProxy, Self::Apiserver, Self::ProxyController];

    fn run(self, bench: &Bench) -> Result<Part> {
        match self {
            Self::EtcdProxy => proxy::run(bench).context("measuring etcd-proxy"),
            Self::Apiserver => apiserver::run(bench).context("measuring the library"),
            Self::ProxyController => controller::run(bench).context("measuring proxy-controller"),
        }
    }
}

/// What every measurement needs.
struct Bench {
    plan: Plan,
    tools: Tools,
    site: Site,
    /// One thread: the load must be cheap beside what it loads.
    runtime: tokio::runtime::Runtime,
}

impl Bench {
    /// Lets time pass in which nothing is asked.
    fn rest(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }
}

/// A command line without folders, which differ from machine to machine and from run to run.
fn shown(spec: &Spec) -> String {
    let words = std::iter::once(spec.program.as_os_str()).chain(spec.args.iter().map(std::ffi::OsString::as_os_str));
    let short = words.map(|word| {
        let word = word.to_string_lossy();
        match word.split_once("=/") {
            Some((flag, path)) if std::path::Path::new("/").join(path).exists() => {
                format!("{flag}=…/{}", path.rsplit('/').next().unwrap_or_default())
            }
            _ if word.starts_with('/') => word.rsplit('/').next().unwrap_or_default().to_owned(),
            _ => word.into_owned(),
        }
    });
    short.collect::<Vec<_>>().join(" ")
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let versions = [Tool::Etcd, Tool::EtcdBenchmark, Tool::KubeApiserver, Tool::SampleApiserver]
        .into_iter()
        .map(|tool| Ok((tool.name().to_owned(), tool.version()?)))
        .collect::<Result<Vec<_>>>()?;
    let machine = Machine::of(&versions, &arguments.shown_as);
    if let Some(warning) = machine.busy() {
        eprintln!("warning: {warning}");
    }
    let mut parts = Vec::new();
    let mut outcome = Ok(());
    for product in Product::ALL {
        if !arguments.only.is_empty() && !arguments.only.contains(&product) {
            continue;
        }
        let bench = Bench {
            plan: Plan::of(arguments.size),
            tools: Tools::of_test(),
            site: Site::create(&arguments.site)?,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
        };
        match product.run(&bench) {
            Ok(part) => {
                println!("{}", part.text());
                parts.push(part);
                bench.site.remove()?;
            }
            // What was measured before is told all the same. The logs stay.
            Err(error) => {
                outcome = Err(error);
                break;
            }
        }
    }
    let (all, met) = parts.iter().map(Part::goals).fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
    println!("{met} of {all} goals met.");
    if let Some(warning) = machine.busy() {
        println!("Warning: {warning}.");
    }
    if let Some(folder) = &arguments.out
        && !parts.is_empty()
    {
        for path in report::write(folder, &parts, &machine)? {
            println!("wrote {}", path.strip_prefix(xtask::root()).unwrap_or(&path).display());
        }
    }
    outcome
}
