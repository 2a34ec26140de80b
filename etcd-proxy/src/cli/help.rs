//! Help texts in the form of `etcd --help`, made from clap's own knowledge of the flags so that none is missing.

use std::fmt::Write;

use clap::{Arg, Command};

const ENVIRONMENT: &str =
    "Every flag can be given by environment, too: --listen-client-urls as ETCD_PROXY_LISTEN_CLIENT_URLS, and so on.
The command line wins.
";

/// `etcd-proxy --help`: the commands, and the flags of the default one.
pub(super) fn root(serve: &Command) -> String {
    format!(
        "Usage:

  etcd-proxy [serve] [flags]
    Serve a virtual etcd for one tenant: the etcd v3 API confined to a key prefix of a shared etcd.

  etcd-proxy claim [flags]
    Claim a prefix on the shared etcd, so that no other tenant's overlaps it.

  etcd-proxy release [flags]
    Give a claimed prefix back.

  etcd-proxy usage [flags]
    Show what every tenant on the shared etcd stores.

  etcd-proxy check [flags]
    Look whether the shared etcd, and a proxy on it, can be expected to work.

  etcd-proxy --version
    Show the version of etcd-proxy.

  etcd-proxy [COMMAND] -h | --help
    Show the help information about etcd-proxy or one of its commands.

{}
{ENVIRONMENT}",
        flags(serve)
    )
}

/// `etcd-proxy COMMAND --help`.
pub(super) fn command(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    format!("Usage:\n\n  etcd-proxy {} [flags]\n    {about}\n\n{}\n{ENVIRONMENT}", command.get_name(), flags(command))
}

fn flags(command: &Command) -> String {
    let mut text = String::new();
    let mut heading = None;
    for arg in command.get_arguments() {
        if arg.get_help_heading() != heading {
            heading = arg.get_help_heading();
            _ = write!(text, "\n{}:\n", heading.unwrap_or("General"));
        }
        flag(&mut text, arg);
    }
    text
}

fn flag(text: &mut String, arg: &Arg) {
    let Some(name) = arg.get_long() else { return };
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    _ = writeln!(text, "  --{name} '{}'", defaults.join(","));
    if let Some(help) = arg.get_help() {
        _ = write!(text, "    {help}");
    }
    for alias in arg.get_visible_aliases().unwrap_or_default() {
        _ = write!(text, " Also spelled --{alias}.");
    }
    text.push('\n');
}
