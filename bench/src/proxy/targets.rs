//! The three that are compared, running.

use std::{
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::{net::TcpStream, time::sleep};
use xtask::{
    cluster::own_program,
    process::{self, Process, Spec},
    progress::Progress,
    site::{Site, free_port},
    tools::Tool,
};

use crate::{Bench, etcd};

/// How long a program may take to answer its first request.
const READY: Duration = Duration::from_secs(60);

/// How long between two looks whether a port is open: the resolution of the time of a start.
const LOOK: Duration = Duration::from_micros(250);

/// Something that speaks etcd's protocol.
pub(super) struct Target {
    /// Its name in tables.
    pub(super) name: &'static str,
    /// Its address.
    pub(super) url: String,
    /// Where its keys lie on the etcd behind it.
    pub(super) prefix: &'static str,
    /// The program.
    pub(super) process: Process,
    /// Whether it is the etcd that the others stand in front of: what it uses is no business of a comparison.
    pub(super) direct: bool,
}

/// All of them; the etcd first, ours last.
pub(super) struct Targets {
    /// In the order of the tables' columns.
    pub(super) all: [Target; 3],
    commands: Vec<Spec>,
}

impl Targets {
    /// Starts them.
    ///
    /// # Errors
    /// When one does not answer.
    pub(super) fn start(bench: &Bench) -> Result<Self> {
        let step = Progress::start("etcd, grpc-proxy and etcd-proxy");
        let (etcd, etcd_program) = (url()?, bench.tools.path(Tool::Etcd)?);
        let direct = etcd_spec(&bench.site, &etcd_program, &etcd)?;
        let etcd_target = Target::start(bench, "etcd itself", direct.clone(), &etcd, "", true)?;

        let peer = url()?;
        let grpc_proxy = grpc_proxy_spec(&etcd_program, &etcd, &peer);
        let peer = Target::start(bench, "grpc-proxy", grpc_proxy.clone(), &peer, "/grpc-proxy/", false)?;

        let (ours, program) = (url()?, own_program("etcd-proxy")?);
        let claim = Spec::new("claim", &program).arg("claim").flag("endpoints", &etcd);
        let claim = claim.flag("prefix", "/etcd-proxy/").flag("owner", "bench");
        process::run(Command::new(&claim.program).args(&claim.args), b"", READY)?.success().context("claiming")?;
        let etcd_proxy = etcd_proxy_spec(&program, &etcd, &ours);
        let ours = Target::start(bench, "etcd-proxy", etcd_proxy.clone(), &ours, "/etcd-proxy/", false)?;
        step.done();
        Ok(Self { all: [etcd_target, peer, ours], commands: vec![direct, grpc_proxy, etcd_proxy] })
    }

    /// The etcd itself.
    pub(super) fn etcd(&self) -> &Target {
        let [etcd, _, _] = &self.all;
        etcd
    }

    /// The proxies, the peer first.
    pub(super) fn proxies(&self) -> [&Target; 2] {
        let [_, peer, ours] = &self.all;
        [peer, ours]
    }

    /// Indices of the targets in the order of a round: each is first in turn.
    pub(super) fn turn(round: usize) -> impl Iterator<Item = usize> {
        (0..3).map(move |index| (index + round) % 3)
    }

    /// The command lines, without folders.
    pub(super) fn commands(&self) -> Vec<String> {
        self.commands.iter().map(crate::shown).collect()
    }
}

impl Target {
    fn start(
        bench: &Bench,
        name: &'static str,
        spec: Spec,
        url: &str,
        prefix: &'static str,
        direct: bool,
    ) -> Result<Self> {
        let process = Process::spawn(&bench.site, spec)?;
        let target = Self { name, url: url.to_owned(), prefix, process, direct };
        target.wait(bench)?;
        Ok(target)
    }

    /// Waits until it answers a consistent read.
    ///
    /// # Errors
    /// When it does not in time.
    pub(super) fn wait(&self, bench: &Bench) -> Result<()> {
        let answer = bench.runtime.block_on(async { tokio::time::timeout(READY, self.first_answer()).await });
        answer.map_err(anyhow::Error::from).flatten().with_context(|| {
            let log = process::tail(&self.process.log()).unwrap_or_default();
            format!("{} did not answer; the end of its log:\n{log}", self.name)
        })
    }

    /// Kills it, starts it again and tells how long it took to answer.
    ///
    /// # Errors
    /// When it does not.
    pub(super) fn restart(&self, bench: &Bench) -> Result<Duration> {
        self.process.kill9()?;
        let start = Instant::now();
        self.process.start()?;
        self.wait(bench)?;
        Ok(start.elapsed())
    }

    /// The number of its process.
    ///
    /// # Errors
    /// When it does not run.
    pub(super) fn pid(&self) -> Result<u32> {
        self.process.pid().with_context(|| format!("{} does not run", self.name))
    }

    async fn first_answer(&self) -> Result<()> {
        let address = self.url.trim_start_matches("http://");
        while TcpStream::connect(address).await.is_err() {
            if let Some(status) = self.process.ended()? {
                anyhow::bail!("{} ended with {status}", self.name);
            }
            sleep(LOOK).await;
        }
        // The port may be open before there is anything behind it.
        loop {
            let channel = etcd::connect(&self.url).await?;
            if etcd::range(&channel, "/nothing/").await.is_ok() {
                return Ok(());
            }
            sleep(LOOK).await;
        }
    }
}

fn url() -> Result<String> {
    Ok(format!("http://127.0.0.1:{}", free_port()?))
}

fn etcd_spec(site: &Site, program: &PathBuf, url: &str) -> Result<Spec> {
    let peer = self::url()?;
    Ok(Spec::new("etcd", program)
        .flag("name", "etcd")
        .flag("data-dir", site.data("etcd")?)
        .flag("listen-client-urls", url)
        .flag("advertise-client-urls", url)
        .flag("listen-peer-urls", &peer)
        .flag("initial-advertise-peer-urls", &peer)
        .flag("initial-cluster", format!("etcd={peer}"))
        .flag("quota-backend-bytes", "8000000000")
        .flag("log-level", "warn"))
}

fn grpc_proxy_spec(program: &PathBuf, etcd: &str, url: &str) -> Spec {
    let address = url.trim_start_matches("http://");
    Spec::new("grpc-proxy", program)
        .arg("grpc-proxy")
        .arg("start")
        .flag("endpoints", etcd.trim_start_matches("http://"))
        .flag("listen-addr", address)
        .flag("advertise-client-url", address)
        .flag("namespace", "/grpc-proxy/")
}

fn etcd_proxy_spec(program: &PathBuf, etcd: &str, url: &str) -> Spec {
    Spec::new("etcd-proxy", program)
        .arg("serve")
        .flag("endpoints", etcd)
        .flag("prefix", "/etcd-proxy/")
        .flag("listen-client-urls", url)
        .flag("advertise-client-urls", url)
}
