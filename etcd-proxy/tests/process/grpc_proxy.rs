//! In the place of `etcd grpc-proxy start`: its command line is this program's, too.

use std::{ffi::OsString, os::unix::fs::symlink, process::Command};

use etcd_proxy::{cli, config::Config};
use tempfile::TempDir;

use crate::child::{Etcd, Program, binary, etcd_proxy, etcdctl, eventually, free_address, ok};

/// The flags in a help text, be it cobra's (`      --name type   words`) or etcd's own (`  --name 'default'`).
fn flags(help: &str) -> Vec<&str> {
    let names = help.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = line.split_once(", ").filter(|(short, _)| short.len() == 2).map_or(line, |(_, long)| long);
        let rest = line.strip_prefix("--")?;
        rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next()
    });
    names.filter(|name| !["help", "version", "config-file"].contains(name)).collect()
}

fn help_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    // Go's flag package writes to standard error.
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[test]
fn every_flag_of_grpc_proxy_start_is_honoured_or_refused_with_a_reason() {
    let help = help_of(Command::new(binary("TEST_ETCD")).args(["grpc-proxy", "start", "--help"]));
    let flags = flags(&help);
    assert!(flags.len() >= 38, "{help}");
    let mut refused = Vec::new();
    for flag in flags {
        // A value that is none, so that a flag that is honoured is known by what is said of it, if it takes everything by
        // the help that follows.
        let output = etcd_proxy(&["grpc-proxy", "start", &format!("--{flag}=?"), "--help"]);
        let message = String::from_utf8(output.stderr).unwrap();
        if message.contains(&format!("--{flag} is refused: ")) {
            refused.push(flag);
        } else {
            assert!(output.status.success() || message.contains("invalid value '?'"), "--{flag}: {message}");
        }
    }
    // A change of this list is a change of what a deployment may rely on.
    refused.sort_unstable();
    assert_eq!(
        refused,
        [
            "auto-tls",
            "client-crl-file",
            "discovery-srv",
            "enable-pprof",
            "endpoints-auto-sync-interval",
            "experimental-leasing-prefix",
            "experimental-serializable-ordering",
            "grpc-keepalive-min-time",
            "insecure-skip-tls-verify",
            "max-recv-bytes",
            "resolver-prefix",
            "resolver-ttl",
        ]
    );
}

#[test]
fn every_flag_of_etcd_is_honoured_or_refused_with_a_reason() {
    let help = help_of(Command::new(binary("TEST_ETCD")).arg("--help"));
    let flags = flags(&help);
    assert!(flags.len() > 90, "{help}");
    for flag in flags {
        assert!(is_known("serve", flag), "--{flag}");
    }
}

/// The flags of a help text whose defaults it tells, with these.
fn defaults(help: &str) -> Vec<(&str, &str)> {
    help.lines()
        .filter_map(|line| {
            let (name, rest) = line.trim_start().strip_prefix("--")?.split_once(' ')?;
            // etcd's own form, and cobra's.
            let quoted = rest.strip_prefix('\'').and_then(|rest| rest.split_once('\'')).map(|(value, _)| value);
            let told = || {
                let (_, value) = rest.strip_suffix(')')?.rsplit_once("(default ")?;
                Some(value.trim_matches(['"', '[', ']']))
            };
            Some((name, quoted.or_else(told)?))
        })
        .collect()
}

#[test]
fn every_default_of_etcd_and_of_grpc_proxy_may_be_spelled_out() {
    for (arguments, least) in [(&["--help"][..], 90), (&["grpc-proxy", "start", "--help"], 10)] {
        let help = help_of(Command::new(binary("TEST_ETCD")).args(arguments));
        let defaults = defaults(&help);
        assert!(defaults.len() >= least, "{defaults:?}");
        for (flag, value) in defaults {
            let value = match value {
                "${name}.etcd" => "default.etcd",
                "math.MaxUint32" => "4294967295",
                value => value,
            };
            let mut words: Vec<OsString> = vec!["etcd-proxy".into()];
            words.extend(arguments.iter().filter(|word| **word != "--help").map(OsString::from));
            words.extend(["--prefix=/a/".into(), format!("--{flag}={value}").into()]);
            // An etcd has no upstream, which by default would be the proxy itself.
            if arguments == ["--help"] {
                words.push("--endpoints=etcd:2379".into());
            }
            let Ok(cli::Invocation::Serve(args)) = cli::parse(words, []) else {
                panic!("--{flag}={value} is not understood")
            };
            Config::try_from(*args).unwrap_or_else(|error| panic!("--{flag}={value}: {error}"));
        }
    }
}

/// Whether a flag is honoured by a command, or refused with a reason.
fn is_known(command: &str, flag: &str) -> bool {
    let words = ["etcd-proxy", command, &format!("--{flag}=?"), "--help"].map(OsString::from);
    let message = cli::parse(words, []).unwrap_err().to_string();
    message.contains(&format!("--{flag} is refused: "))
        || message.contains("invalid value '?'")
        || message.starts_with("Usage:")
}

#[test]
fn every_flag_of_etcdctl_that_concerns_the_connection_is_honoured_or_refused_with_a_reason() {
    let help = help_of(Command::new(binary("TEST_ETCDCTL")).arg("options"));
    let flags = flags(&help);
    assert!(flags.len() > 15, "{help}");
    for flag in flags {
        // How answers are printed.
        if ["hex", "write-out"].contains(&flag) {
            continue;
        }
        assert!(is_known("serve", flag) || is_known("claim", flag), "--{flag}");
    }
}

/// The words of the original's container, on the original and on this program under the original's name.
#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_of_grpc_proxy_changes_only_its_image() {
    let etcd = Etcd::start().await;
    let dir = TempDir::new().unwrap();
    let ours = dir.path().join("etcd");
    symlink(env!("CARGO_BIN_EXE_etcd-proxy"), &ours).unwrap();
    let mut running = Vec::new();
    for (name, program) in [("original", binary("TEST_ETCD")), ("ours", ours)] {
        let address = free_address();
        let mut command = Command::new(program);
        command.current_dir(dir.path()).args(["grpc-proxy", "start", "--endpoints", &etcd.url, "--namespace=/tenant/"]);
        command.args(["--listen-addr", &address, "--advertise-client-url", &address]);
        command.args([
            "--metrics-addr",
            &format!("http://{}", free_address()),
            "--resolver-ttl=0",
            "--data-dir=default.proxy",
        ]);
        command.args([
            "--max-send-bytes=3145728",
            "--dial-keepalive-time=5s",
            "--grpc-keepalive-interval=1h",
            "--debug",
        ]);
        command.args(["--permit-without-stream=false", "--auto-tls=false"]);
        let program = Program::spawn(command, dir.path().join(name));
        let url = format!("http://{address}");
        eventually(&format!("{name} serves"), async || {
            etcdctl(&url, &[], &["put", name, name]).status.success().then_some(())
        })
        .await;
        running.push((program, url));
    }
    for (_, url) in &running {
        assert_eq!(ok(etcdctl(url, &[], &["get", "", "--prefix"])), "original\noriginal\nours\nours\n");
    }
    assert_eq!(etcd.ctl(&["get", "/tenant/ours", "--print-value-only"]), "ours\n");
}
