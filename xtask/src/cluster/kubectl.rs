//! kubectl with a kubeconfig of its own, away from the developer's.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::{
    pki::{self, Identity},
    process::{self, Outcome},
    site::Site,
    tools::{Tool, Tools},
};

/// How long one kubectl command may take; `wait` and `delete` wait for others.
const LIMIT: Duration = Duration::from_secs(120);

/// kubectl as one user of one server.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    cache: PathBuf,
    folder: PathBuf,
    namespace: Option<String>,
}

/// A server and how to trust it.
#[derive(Clone, Debug)]
pub struct Server {
    /// The address, `https://…`.
    pub url: String,
    /// The certificate of the authority that vouches for it, PEM.
    pub ca: String,
}

impl Server {
    /// Writes a kubeconfig for a user known by certificate, with everything inside it, readable by its owner alone.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn kubeconfig(&self, path: &Path, user: &str, identity: &Identity) -> Result<()> {
        let encoded = |path: &Path| {
            Ok::<_, anyhow::Error>(
                STANDARD.encode(std::fs::read(path).with_context(|| format!("reading {}", path.display()))?),
            )
        };
        let (cert, key) = (encoded(&identity.cert)?, encoded(&identity.key)?);
        let credentials = format!("\x20   client-certificate-data: {cert}\n\x20   client-key-data: {key}\n");
        self.write_kubeconfig(path, user, &credentials)
    }

    /// Writes a kubeconfig for a user known by a bearer token, likewise.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn kubeconfig_with_token(&self, path: &Path, user: &str, token: &str) -> Result<()> {
        self.write_kubeconfig(path, user, &format!("\x20   token: {token}\n"))
    }

    fn write_kubeconfig(&self, path: &Path, user: &str, credentials: &str) -> Result<()> {
        let Self { url, ca } = self;
        let ca = STANDARD.encode(ca);
        let text = format!(
            "apiVersion: v1\n\
             kind: Config\n\
             clusters:\n\
             - name: local\n\
             \x20 cluster:\n\
             \x20   server: {url}\n\
             \x20   certificate-authority-data: {ca}\n\
             users:\n\
             - name: {user}\n\
             \x20 user:\n\
             {credentials}\
             contexts:\n\
             - name: local\n\
             \x20 context:\n\
             \x20   cluster: local\n\
             \x20   user: {user}\n\
             current-context: local\n"
        );
        pki::write(path, text.as_bytes(), 0o600)
    }
}

impl Kubectl {
    /// kubectl with a kubeconfig.
    ///
    /// # Errors
    /// When the tool is missing.
    pub fn new(site: &Site, tools: &Tools, kubeconfig: PathBuf) -> Result<Self> {
        // Each user a cache of its own: what one may discover is not what another may.
        let cache = kubeconfig.with_extension("cache");
        Ok(Self {
            program: tools.path(Tool::Kubectl)?,
            kubeconfig,
            cache,
            folder: site.dir().to_path_buf(),
            namespace: None,
        })
    }

    /// The kubeconfig's path.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The same, run in another folder: file names on the command line are relative to it.
    #[must_use]
    pub fn in_folder(&self, folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), ..self.clone() }
    }

    /// The same, with another namespace where a command names none.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self.clone() }
    }

    /// The command, to be run by the caller, who wants to read a stream or to end it.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // Before the others: the last of two counts.
        command.args(self.namespace.iter().map(|namespace| format!("--namespace={namespace}")));
        command.args(args).current_dir(&self.folder);
        // Nothing of the developer's own set-up is read, and nothing is left in their home.
        command.env("KUBECONFIG", &self.kubeconfig).env("KUBECACHEDIR", &self.cache).env("KUBECTL_KUBERC", "false");
        command
    }

    /// Runs it.
    ///
    /// # Errors
    /// When it cannot be started or hangs. A failure that kubectl tells by its exit status is no error here.
    pub fn run(&self, args: &[&str]) -> Result<Outcome> {
        self.run_with_input(args, "")
    }

    /// Runs it with a standard input, as `-f -` wants.
    ///
    /// # Errors
    /// As [`Kubectl::run`].
    pub fn run_with_input(&self, args: &[&str], stdin: &str) -> Result<Outcome> {
        process::run(&mut self.command(args), stdin.as_bytes(), LIMIT)
    }

    /// Runs it and answers its standard output.
    ///
    /// # Errors
    /// As [`Kubectl::run`], and when kubectl fails: what it said.
    pub fn ok(&self, args: &[&str]) -> Result<String> {
        self.run(args)?.success().with_context(|| format!("kubectl {}", args.join(" ")))
    }

    /// Runs it and reads its standard output as JSON.
    ///
    /// # Errors
    /// As [`Kubectl::ok`], and when it is no JSON.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let args = [args, &["-o", "json"]].concat();
        let text = self.ok(&args)?;
        serde_json::from_str(&text).with_context(|| format!("kubectl {}: {text}", args.join(" ")))
    }

    /// Applies objects.
    ///
    /// # Errors
    /// As [`Kubectl::ok`].
    pub fn apply(&self, objects: &[Value]) -> Result<String> {
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let outcome = self.run_with_input(&["apply", "-f", "-"], &list.to_string())?;
        outcome.success().context("kubectl apply")
    }

    /// Asks the server whether it is ready.
    pub(super) fn probe(&self, path: &str) -> Result<()> {
        self.ok(&["get", "--raw", path, "--request-timeout=5s"]).map(drop)
    }
}
