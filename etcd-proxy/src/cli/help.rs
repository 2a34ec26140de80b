//! Help texts in the form of `etcd --help`, made from clap's own knowledge of the flags so that none is missing.

use std::fmt::Write;

use clap::{Arg, Command};

use crate::config::GRPC_PROXY_ADDRESS;

/// Where lines are broken.
const WIDTH: usize = 100;

pub(super) const VALUES: &str = "Values:

  Lists are separated by commas; a flag for one may also come several times. A flag that is true or false is true
  when it stands alone: --debug is --debug=true. Durations are written as in Go: 300ms, 10s, 1m30s, 2h. Sizes are
  in bytes unless it says otherwise, and whole numbers.

  Every flag can be given by environment, too, under the name that stands below it, and in the YAML file of
  --config-file. The command line wins over the environment, the environment over the file.
";

pub(super) const EXAMPLES: &str = "Examples:

  Claim a prefix on an etcd on this host, and serve it on a port and on a unix socket:

    etcd-proxy claim --prefix=/tenant-a/ --owner=team-a
    etcd-proxy --prefix=/tenant-a/ --listen-client-urls=http://127.0.0.1:12379,unix:///run/tenant-a.sock

  TLS on both sides; clients need a certificate of the CA in clients.crt:

    etcd-proxy --prefix=/tenant-a/ --endpoints=https://etcd-0:2379,https://etcd-1:2379 \\
      --cacert=etcd-ca.crt --cert=proxy.crt --key=proxy.key \\
      --listen-client-urls=https://0.0.0.0:2379 --advertise-client-urls=https://tenant-a.example.com:2379 \\
      --cert-file=server.crt --key-file=server.key --trusted-ca-file=clients.crt \\
      --listen-metrics-urls=http://0.0.0.0:2381

  The same from a file:

    etcd-proxy --config-file=/etc/etcd-proxy/tenant-a.yml

  In the place of etcd's own proxy:

    etcd-proxy grpc-proxy start --endpoints=127.0.0.1:2379 --namespace=/tenant-a/ --listen-addr=127.0.0.1:23790

Signals:

  SIGTERM and SIGINT end the process in order: --shutdown-delay, then --drain-timeout. A second one ends it at once.

Exit status:

  0 when the process was told to end, 1 when it cannot serve (the reason is on standard error), 2 when the command line
  is wrong.
";

const ABOUT_GRPC_PROXY: &str = "Serve with the defaults of `etcd grpc-proxy start`, whose flags are understood.";

/// `etcd-proxy --help`: the commands, and the flags of the default one.
pub(super) fn root(serve: &Command, others: &[Command]) -> String {
    let mut text = String::from(
        "Usage:

  etcd-proxy [serve] [flags]
    Serve a virtual etcd for one tenant: the etcd v3 API confined to a key prefix of a shared etcd.

  etcd-proxy grpc-proxy start [flags]
    The same with the defaults of `etcd grpc-proxy start`, whose flags are understood.

",
    );
    for command in others.iter().filter(|command| !command.is_hide_set()) {
        _ = write!(text, "  {}\n    {}\n\n", usage(command), about(command));
    }
    _ = write!(
        text,
        "  etcd-proxy version | --version
    Show the version of etcd-proxy.

  etcd-proxy help [COMMAND]
  etcd-proxy [COMMAND] -h | --help
    Show the help information about etcd-proxy or one of its commands.
{}
{VALUES}
{EXAMPLES}",
        flags(serve)
    );
    text
}

/// `etcd-proxy COMMAND --help`.
pub(super) fn command(command: &Command) -> String {
    let flags = flags(command);
    let values = if flags.is_empty() { "" } else { VALUES };
    format!("Usage:\n\n  {}\n    {}\n{flags}\n{values}", usage(command), about(command))
}

/// `etcd-proxy grpc-proxy`.
pub(super) fn grpc_proxy() -> String {
    format!(
        "Usage:\n\n  etcd-proxy grpc-proxy start [flags]\n    {ABOUT_GRPC_PROXY}\n\n  \
         etcd-proxy grpc-proxy start --help\n    List the flags.\n\n\
         Without --listen-addr it listens on {GRPC_PROXY_ADDRESS}.\n"
    )
}

/// `etcd-proxy grpc-proxy start --help`.
pub(super) fn grpc_proxy_start(serve: &Command) -> String {
    let flags = flags(serve).replace("'http://localhost:2379'", &format!("'http://{GRPC_PROXY_ADDRESS}'"));
    format!("Usage:\n\n  etcd-proxy grpc-proxy start [flags]\n    {ABOUT_GRPC_PROXY}\n{flags}\n{VALUES}")
}

fn usage(command: &Command) -> String {
    let mut usage = format!("etcd-proxy {}", command.get_name());
    for arg in command.get_positionals() {
        let name = arg.get_id().as_str().to_ascii_uppercase();
        _ = match arg.is_required_set() {
            true => write!(usage, " {name}"),
            false => write!(usage, " [{name}]"),
        };
    }
    if command.get_arguments().any(|arg| arg.get_long().is_some()) {
        usage.push_str(" [flags]");
    }
    usage
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn flags(command: &Command) -> String {
    let mut text = String::new();
    let mut heading = None;
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
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
    let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    // clap takes the last one away.
    if !help.ends_with(['.', ':']) {
        help.push('.');
    }
    for alias in arg.get_visible_aliases().unwrap_or_default() {
        _ = write!(help, " Also spelled --{alias}.");
    }
    wrap(text, &help);
    if let Some(variable) = arg.get_env() {
        _ = writeln!(text, "    {}", variable.to_string_lossy());
    }
}

/// Appends `words` in lines of at most [`WIDTH`], set in by four.
fn wrap(text: &mut String, words: &str) {
    let mut column = 0;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH {
            text.push('\n');
            column = 0;
        }
        let before = if column == 0 { "    " } else { " " };
        text.push_str(before);
        text.push_str(word);
        column += before.len() + length;
    }
    if column > 0 {
        text.push('\n');
    }
}
