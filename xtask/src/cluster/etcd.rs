//! The shared etcd, and speaking to an etcd with `etcdctl`.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};

use super::network;
use crate::{
    pki::{Ca, Identity, Request},
    process::{self, Outcome, Process, Spec},
    site::{Site, free_port},
    tools::{Tool, Tools},
};

/// How long an etcd, or a proxy before one, may take to answer its first request.
pub(super) const READY: Duration = Duration::from_secs(60);

/// What a client needs to speak to an etcd, or to something that passes for one.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The address, `https://…`.
    pub url: String,
    /// The certificate of the authority that vouches for the server.
    pub ca: PathBuf,
    /// The client's certificate.
    pub client: Identity,
    /// The HTTP proxy through which the address is reached, if it is one that only a cluster knows
    /// ([`Network`](super::Network)).
    pub proxy: Option<SocketAddr>,
}

/// `etcdctl` for one endpoint.
#[derive(Clone, Debug)]
pub struct Etcdctl {
    program: PathBuf,
    endpoint: Endpoint,
}

/// A single etcd, TLS with client certificates towards clients and peers.
pub struct Etcd {
    /// The running program.
    pub process: Process,
    ca: Ca,
    url: String,
    etcdctl: Etcdctl,
}

impl Etcd {
    /// Starts an etcd of the version that `tool` stands for and waits until it answers.
    ///
    /// # Errors
    /// When a tool is missing or etcd does not come up.
    pub fn start(site: &Site, tools: &Tools, tool: Tool) -> Result<Self> {
        let ca = Ca::create(&site.pki("etcd-ca")?, "etcd-ca")?;
        let server = ca.issue(&Request {
            file: "server",
            common_name: "etcd",
            organization: None,
            server_names: &["localhost"],
            client: true,
        })?;
        let url = format!("https://127.0.0.1:{}", free_port()?);
        let peer = format!("https://127.0.0.1:{}", free_port()?);
        let spec = Spec::new("etcd", tools.path(tool)?)
            .flag("name", "etcd")
            .flag("data-dir", site.data("etcd")?)
            .flag("listen-client-urls", &url)
            .flag("advertise-client-urls", &url)
            .flag("listen-peer-urls", &peer)
            .flag("initial-advertise-peer-urls", &peer)
            .flag("initial-cluster", format!("etcd={peer}"))
            .flag("client-cert-auth", "true")
            .flag("trusted-ca-file", ca.cert())
            .flag("cert-file", &server.cert)
            .flag("key-file", &server.key)
            .flag("peer-client-cert-auth", "true")
            .flag("peer-trusted-ca-file", ca.cert())
            .flag("peer-cert-file", &server.cert)
            .flag("peer-key-file", &server.key);
        let process = Process::spawn(site, spec)?;
        let endpoint =
            Endpoint { url: url.clone(), ca: ca.cert().to_path_buf(), client: ca.client("root", None)?, proxy: None };
        let etcd = Self { process, ca, url, etcdctl: Etcdctl::new(tools, endpoint)? };
        etcd.wait_ready()?;
        Ok(etcd)
    }

    /// Waits until it answers a consistent read.
    ///
    /// # Errors
    /// When it does not within a minute.
    pub fn wait_ready(&self) -> Result<()> {
        self.process.wait_until("an answer of etcd", READY, || self.etcdctl.probe())
    }

    /// The endpoint as the user `name` sees it, with a certificate of that name.
    ///
    /// # Errors
    /// When the certificate cannot be written.
    pub fn endpoint(&self, name: &str) -> Result<Endpoint> {
        Ok(Endpoint {
            url: self.url.clone(),
            ca: self.ca.cert().to_path_buf(),
            client: self.ca.client(name, None)?,
            proxy: None,
        })
    }

    /// `etcdctl` on the whole of the store.
    pub fn etcdctl(&self) -> &Etcdctl {
        &self.etcdctl
    }
}

impl Endpoint {
    /// Adds the flags by which Kubernetes' API servers find their etcd.
    #[must_use]
    pub(super) fn storage_flags(&self, spec: Spec) -> Spec {
        self.variables(spec)
            .flag("etcd-servers", &self.url)
            .flag("etcd-cafile", &self.ca)
            .flag("etcd-certfile", &self.client.cert)
            .flag("etcd-keyfile", &self.client.key)
    }

    /// Adds the flags by which etcd's own clients, and the proxy, find theirs.
    #[must_use]
    pub(super) fn client_flags(&self, spec: Spec) -> Spec {
        self.variables(spec)
            .flag("endpoints", &self.url)
            .flag("cacert", &self.ca)
            .flag("cert", &self.client.cert)
            .flag("key", &self.client.key)
    }

    /// What a program needs in its environment to reach it.
    pub(super) fn variables(&self, spec: Spec) -> Spec {
        match self.proxy {
            None => spec,
            Some(proxy) => {
                network::variables(proxy).into_iter().fold(spec, |spec, (name, value)| spec.env(name, value))
            }
        }
    }
}

impl Etcdctl {
    /// `etcdctl` for an endpoint.
    ///
    /// # Errors
    /// When the tool is missing.
    pub fn new(tools: &Tools, endpoint: Endpoint) -> Result<Self> {
        Ok(Self { program: tools.path(Tool::Etcdctl)?, endpoint })
    }

    /// Where the tool is.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The flags by which it finds the endpoint, in a form that a shell takes: paths with blanks are quoted.
    pub fn flags(&self) -> Vec<String> {
        let flags = self.endpoint.client_flags(Spec::new("etcdctl", &self.program)).args;
        let quoted = |flag: String| if flag.contains(char::is_whitespace) { format!("'{flag}'") } else { flag };
        flags.into_iter().map(|flag| quoted(flag.to_string_lossy().into_owned())).collect()
    }

    /// The command as a person would type it, with everything it needs.
    pub fn command(&self, args: &[&str]) -> Command {
        let spec = self.endpoint.client_flags(Spec::new("etcdctl", &self.program));
        let mut command = Command::new(&spec.program);
        command.args(spec.args).args(args).envs(spec.env);
        command
    }

    /// Runs it.
    ///
    /// # Errors
    /// When it cannot be started or hangs.
    pub fn run(&self, args: &[&str]) -> Result<Outcome> {
        self.run_with_input(args, "")
    }

    /// Runs it with a standard input, as `txn` wants.
    ///
    /// # Errors
    /// As [`Etcdctl::run`].
    pub fn run_with_input(&self, args: &[&str], stdin: &str) -> Result<Outcome> {
        process::run(&mut self.command(args), stdin.as_bytes(), Duration::from_secs(60))
    }

    /// Runs it and answers its standard output.
    ///
    /// # Errors
    /// As [`Etcdctl::run`], and when it fails.
    pub fn ok(&self, args: &[&str]) -> Result<String> {
        self.run(args)?.success().with_context(|| format!("etcdctl {}", args.join(" ")))
    }

    /// All keys that begin with `prefix`; all there are for an empty one.
    ///
    /// # Errors
    /// As [`Etcdctl::ok`].
    pub fn keys(&self, prefix: &str) -> Result<Vec<String>> {
        let output = self.ok(&["get", prefix, "--prefix", "--keys-only"])?;
        Ok(output.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }

    /// One consistent read. (`etcdctl endpoint health` asks for alarms too, which not every virtual etcd tells.)
    pub(super) fn probe(&self) -> Result<()> {
        self.ok(&["--command-timeout=5s", "--dial-timeout=5s", "get", "health"]).map(drop)
    }
}
