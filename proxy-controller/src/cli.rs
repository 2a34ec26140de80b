//! The command line. Every flag is also an environment variable, `PROXY_CONTROLLER_*`.
//!
//! [`parse`] reads it, [`Config::try_from`] says whether it makes sense. Nothing is bound or connected here.

mod config;
mod logging;

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    net::SocketAddr,
    num::NonZeroUsize,
    path::PathBuf,
    time::Duration,
};

use clap::{
    Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand,
    builder::{BoolishValueParser, StyledStr},
};
use jiff::SignedDuration;

pub use self::{
    config::{Config, ConfigError, WebhookConfig},
    logging::{LogArgs, LogFormat, LogLevel, init_logging},
};

/// What environment variables of this program begin with.
const ENVIRONMENT: &str = "PROXY_CONTROLLER_";

/// The default command.
const RUN: &str = "run";

/// What the process is asked to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Invocation {
    /// Run the controller (the default command).
    Run(Box<RunArgs>),
    /// Print the CustomResourceDefinitions as YAML.
    Crds,
}

/// The proxy-controller gives tenants virtual etcds: it turns EtcdProxy objects into claimed prefixes, proxies before a shared
/// etcd, and certificates.
#[derive(Clone, Debug, Parser)]
#[command(name = "proxy-controller", version)]
#[command(after_help = "Without a command, the flags are those of `run`: see `proxy-controller run --help`.")]
struct Cli {
    #[command(subcommand)]
    invocation: Invocation,
}

/// Flags of `run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// The namespace that the controller and the proxies live in. By default, the one of the pod's ServiceAccount.
    #[arg(long, env = "PROXY_CONTROLLER_NAMESPACE")]
    pub namespace: Option<String>,
    /// Path to a kubeconfig. By default, the pod's ServiceAccount is used; outside of a cluster, what kubectl would use.
    #[arg(long, env = "PROXY_CONTROLLER_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Image of proxies whose EtcdUpstream does not name one in spec.defaults.image.
    #[arg(long, env = "PROXY_CONTROLLER_PROXY_IMAGE", default_value = concat!("etcd-proxy:", env!("CARGO_PKG_VERSION")))]
    pub proxy_image: String,
    /// The cluster's DNS domain.
    #[arg(long, env = "PROXY_CONTROLLER_CLUSTER_DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,
    /// How many objects are worked on at the same time.
    #[arg(long, env = "PROXY_CONTROLLER_CONCURRENCY", default_value = "4")]
    pub concurrency: NonZeroUsize,
    #[expect(missing_docs, reason = "documented by their type")]
    #[command(flatten)]
    pub election: ElectionArgs,
    #[expect(missing_docs, reason = "documented by their type")]
    #[command(flatten)]
    pub serving: ServingArgs,
    #[expect(missing_docs, reason = "documented by their type")]
    #[command(flatten)]
    pub log: LogArgs,
}

/// Leader election. The names are those of Kubernetes' own components.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Leader election")]
pub struct ElectionArgs {
    /// Act only while this replica holds the Lease proxy-controller. Without it, there must never be a second replica.
    #[arg(long, env = "PROXY_CONTROLLER_LEADER_ELECT", value_parser = BoolishValueParser::new(),
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true")]
    pub leader_elect: bool,
    /// How long the other replicas wait after the last renewal that they have seen, in whole seconds.
    #[arg(long, env = "PROXY_CONTROLLER_LEADER_ELECT_LEASE_DURATION", value_parser = duration, default_value = "15s")]
    pub leader_elect_lease_duration: Duration,
    /// After how long without a renewal the leader stops and exits. It must be less than the lease duration.
    #[arg(long, env = "PROXY_CONTROLLER_LEADER_ELECT_RENEW_DEADLINE", value_parser = duration, default_value = "10s")]
    pub leader_elect_renew_deadline: Duration,
    /// How long to wait between two renewals, or two attempts.
    #[arg(long, env = "PROXY_CONTROLLER_LEADER_ELECT_RETRY_PERIOD", value_parser = duration, default_value = "2s")]
    pub leader_elect_retry_period: Duration,
}

/// Where to listen.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Serving")]
pub struct ServingArgs {
    /// Address of the webhook's HTTPS listener.
    #[arg(long, env = "PROXY_CONTROLLER_WEBHOOK_LISTEN", default_value = "0.0.0.0:9443")]
    pub webhook_listen: SocketAddr,
    /// Name of the Service, in the controller's namespace, by which API servers reach the webhook. The controller makes the
    /// certificate for it.
    #[arg(long, env = "PROXY_CONTROLLER_WEBHOOK_SERVICE", default_value = "proxy-controller-webhook")]
    pub webhook_service: String,
    /// Name of the ValidatingWebhookConfiguration whose caBundle the controller keeps right. Empty: no webhook is served.
    #[arg(long, env = "PROXY_CONTROLLER_WEBHOOK_CONFIGURATION", default_value = "proxy-controller")]
    pub webhook_configuration: String,
    /// Address of the HTTP listener for /metrics, /livez and /readyz.
    #[arg(long, env = "PROXY_CONTROLLER_METRICS_LISTEN", default_value = "0.0.0.0:8080")]
    pub metrics_listen: SocketAddr,
    /// How long a replica that is told to end goes on serving the webhook, so that nobody sends to it any more. Its /readyz
    /// fails from the beginning.
    #[arg(long, env = "PROXY_CONTROLLER_SHUTDOWN_DELAY", value_parser = duration, default_value = "5s")]
    pub shutdown_delay: Duration,
}

/// Reads the command line; `args` begins with the program's name.
///
/// # Errors
/// clap's errors, requests for help and for the version among them: [`clap::Error::exit`] treats each as it should be.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, clap::Error> {
    let matches = command().try_get_matches_from(with_command(args))?;
    Ok(Cli::from_arg_matches(&matches)?.invocation)
}

/// The whole command line as clap knows it.
pub fn command() -> clap::Command {
    Cli::command().mut_subcommands(|command| {
        let about = command.get_about().map(sentence);
        let command = command.mut_args(|flag| match flag.get_help().map(sentence) {
            Some(help) => flag.help(help),
            None => flag,
        });
        match about {
            Some(about) => command.about(about),
            None => command,
        }
    })
}

/// clap takes the full stop away from a text of one paragraph.
fn sentence(text: &StyledStr) -> String {
    let text = text.to_string();
    if text.ends_with('.') { text } else { text + "." }
}

/// Names of environment variables that look like this program's flags and are none: misspelt, most likely.
pub fn unknown_variables(environment: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<String> {
    let command = command();
    let known: BTreeSet<&OsStr> =
        command.get_subcommands().flat_map(clap::Command::get_arguments).filter_map(|flag| flag.get_env()).collect();
    environment
        .into_iter()
        .filter(|(name, _)| !known.contains(name.as_os_str()))
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.strip_prefix(ENVIRONMENT).is_some_and(|rest| !is_service_link(rest)))
        .collect()
}

/// Kubernetes sets such variables for each Service of the namespace, and those of this program may have its name.
fn is_service_link(rest: &str) -> bool {
    let after =
        |word: &str| rest == word || rest.starts_with(&format!("{word}_")) || rest.contains(&format!("_{word}_"));
    rest.ends_with("_PORT") || rest.ends_with("_SERVICE_HOST") || after("SERVICE") || after("PORT")
}

/// Puts the default command in.
fn with_command(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    if args.is_empty() {
        args.push("proxy-controller".into());
    }
    let first = args.get(1).and_then(|first| first.to_str());
    let is_flag = first.is_none_or(|first| first.starts_with('-'));
    if is_flag && !matches!(first, Some("-h" | "--help" | "-V" | "--version")) {
        args.insert(1, RUN.into());
    }
    args
}

/// A duration in Go's notation, such as `1m30s`.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed: SignedDuration = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    Duration::try_from(parsed).map_err(|_| "a duration cannot be negative".to_owned())
}

#[cfg(test)]
mod tests;
