//! `cargo xtask demo`: the whole path on real components, kubectl → kube-apiserver → pizza-apiserver → etcd-proxy →
//! etcd, and Go's sample-apiserver as second tenant of the same etcd. The proxies are the proxy-controller's work, which
//! runs with its shipped manifests, rights and arguments.

mod tour;

use std::{path::PathBuf, sync::mpsc, time::Duration};

use anyhow::{Context, Result, bail};
use clap::Args;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    cargo::{self, Profile},
    cluster::{ApiserverOptions, Cluster, ControllerOptions, Options, RESTAURANT, Store, TenantOptions, WARDLE},
    site,
    tools::{Tool, Tools},
};

/// Run the whole thing on this machine: a real control plane, two tenants on one etcd, and a tour of them.
#[derive(Debug, Args)]
pub struct Command {
    /// Return after the tour and leave everything running until `cargo xtask down`
    #[arg(long)]
    no_wait: bool,
    /// Build our programs as they are shipped: faster ones, but minutes to build
    #[arg(long)]
    release: bool,
    /// Take a tool from this path, as NAME=PATH
    #[arg(long = "tool", value_name = "NAME=PATH")]
    tools: Vec<String>,
}

/// How long a changed Secret takes to the files of the demo's processes. (The kubelet takes up to a minute and a half.)
pub(super) const DELIVERY: Duration = Duration::from_secs(1);

/// The demo's folder.
pub(super) fn dir() -> PathBuf {
    crate::root().join("target").join("demo")
}

/// Runs the command.
///
/// # Errors
/// When something cannot be built or does not come up, or a check of the tour fails. Nothing is left running then.
pub fn run(command: &Command) -> Result<()> {
    if site::is_running(&dir()) {
        bail!("a demo is running already; `cargo xtask down` ends it");
    }
    // From here on a signal is a message, so that nothing is left behind by it.
    let (sender, interrupts) = mpsc::channel();
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::spawn(move || signals.forever().try_for_each(|signal| sender.send(signal)));

    let tools = Tools::with(&command.tools)?;
    let sample_apiserver = tools.path(Tool::SampleApiserver)?;
    let profile = if command.release { Profile::Release } else { Profile::Dev };
    let programs = cargo::build(&["etcd-proxy", "pizza-apiserver", "proxy-controller"], profile)?;
    let [etcd_proxy, pizza_apiserver, program] =
        <[PathBuf; 3]>::try_from(programs).map_err(|_| anyhow::anyhow!("cargo built other programs than asked for"))?;
    let tenant = |server| Some(TenantOptions { server, store: Store::Managed(etcd_proxy.clone()) });
    let namespaces = [RESTAURANT, WARDLE].map(|api| api.namespace.to_owned()).to_vec();
    let options = Options {
        dir: dir(),
        tools,
        restaurant: tenant(pizza_apiserver),
        wardle: tenant(sample_apiserver),
        controller: Some(ControllerOptions { program, replicas: 1, delivery: DELIVERY, namespaces }),
        apiserver: ApiserverOptions::default(),
    };

    let cluster = start(options, &interrupts)?;
    if let Err(error) = tour::run(&cluster) {
        let error = error.context(format!("the tour failed; the logs are in {}", cluster.site.path("logs").display()));
        return Err(error);
    }
    if command.no_wait {
        cluster.detach(&std::env::current_exe().context("finding this program, which is to deliver Secrets")?)?;
        println!("\nEverything is left running. `cargo xtask down` ends it.");
        return Ok(());
    }
    println!("\nEverything is running. Ctrl-C ends it.");
    let ended = wait(&cluster, &interrupts);
    cluster.remove()?;
    ended
}

/// Starts the cluster on a thread of its own, so that Ctrl-C need not wait for a start that hangs.
fn start(options: Options, interrupts: &mpsc::Receiver<i32>) -> Result<Cluster> {
    let dir = options.dir.clone();
    let starting = std::thread::spawn(move || Cluster::start(options));
    while !starting.is_finished() {
        if let Ok(signal) = interrupts.recv_timeout(Duration::from_millis(100)) {
            site::clear(&dir)?;
            bail!("ended by signal {signal} while starting; nothing is left running");
        }
    }
    starting.join().map_err(|_| anyhow::anyhow!("starting the cluster failed unexpectedly"))?
}

/// Waits for a signal, and watches meanwhile whether everything still runs.
fn wait(cluster: &Cluster, interrupts: &mpsc::Receiver<i32>) -> Result<()> {
    loop {
        match interrupts.recv_timeout(Duration::from_secs(1)) {
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Ok(_) | Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
        }
        if !cluster.site.dir().exists() {
            println!("The demo was ended from elsewhere.");
            return Ok(());
        }
        for process in cluster.processes() {
            if let Some(status) = process.ended()? {
                let tail = crate::process::tail(&process.log()).context("reading its log")?;
                bail!("{} ended with {status}; the end of its log:\n{tail}", process.name());
            }
        }
    }
}
