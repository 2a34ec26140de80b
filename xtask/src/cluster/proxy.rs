//! An etcd-proxy for one tenant, its prefix claimed by hand.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context, Result};

use super::etcd::{Endpoint, Etcd, Etcdctl, READY};
use crate::{
    pki::{Ca, Request},
    process::{self, Process, Spec},
    site::{Site, free_port},
    tools::Tools,
};

/// A virtual etcd, TLS with client certificates on both sides.
pub struct EtcdProxy {
    /// The running program.
    pub process: Process,
    ca: Ca,
    url: String,
    metrics: String,
    prefix: String,
    etcdctl: Etcdctl,
}

impl EtcdProxy {
    /// Claims the prefix `/<tenant>/`, starts a proxy for it and waits until it answers.
    ///
    /// # Errors
    /// When the claim is refused or the proxy does not come up.
    pub fn start(site: &Site, tools: &Tools, program: &Path, etcd: &Etcd, tenant: &str) -> Result<Self> {
        let prefix = format!("/{tenant}/");
        let name = format!("etcd-proxy-{tenant}");
        let upstream = etcd.endpoint(&name)?;
        let claim = upstream
            .client_flags(Spec::new("claim", program).arg("claim"))
            .flag("prefix", &prefix)
            .flag("owner", tenant);
        let outcome = process::run(Command::new(&claim.program).args(&claim.args), b"", Duration::from_secs(30))?;
        outcome.success().with_context(|| format!("etcd-proxy claim --prefix {prefix}"))?;

        let ca = Ca::create(&site.pki(&format!("{name}-ca"))?, &format!("{name}-ca"))?;
        let server = ca.issue(&Request {
            file: "server",
            common_name: &name,
            organization: None,
            server_names: &["localhost"],
            client: false,
        })?;
        let url = format!("https://127.0.0.1:{}", free_port()?);
        let metrics = format!("http://127.0.0.1:{}", free_port()?);
        let spec = upstream
            .client_flags(Spec::new(&name, program).arg("serve"))
            .flag("prefix", &prefix)
            .flag("listen-client-urls", &url)
            .flag("advertise-client-urls", &url)
            .flag("listen-metrics-urls", &metrics)
            .flag("cert-file", &server.cert)
            .flag("key-file", &server.key)
            .arg("--client-cert-auth")
            .flag("trusted-ca-file", ca.cert());
        let process = Process::spawn(site, spec)?;
        let endpoint = Endpoint {
            url: url.clone(),
            ca: ca.cert().to_path_buf(),
            client: ca.client("etcdctl", None)?,
            proxy: None,
        };
        let proxy = Self { process, ca, url, metrics, prefix, etcdctl: Etcdctl::new(tools, endpoint)? };
        proxy.wait_ready()?;
        Ok(proxy)
    }

    /// Waits until it answers a consistent read.
    ///
    /// # Errors
    /// When it does not within a minute.
    pub fn wait_ready(&self) -> Result<()> {
        self.process.wait_until("an answer of the proxy", READY, || self.etcdctl.probe())
    }

    /// The virtual etcd as the client `name` sees it, with a certificate of that name.
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

    /// `etcdctl` as the tenant.
    pub fn etcdctl(&self) -> &Etcdctl {
        &self.etcdctl
    }

    /// The tenant's prefix on the shared etcd.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The address of health and metrics, `http://…`.
    pub fn metrics(&self) -> &str {
        &self.metrics
    }
}
