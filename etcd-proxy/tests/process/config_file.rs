//! Configuration by YAML file and environment.

use std::{fs, process::Command};

use tempfile::TempDir;

use crate::child::{Etcd, Program, etcd_proxy, etcdctl, eventually, fails, free_address, ok};

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_runs_from_a_file_alone() {
    let etcd = Etcd::start().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("proxy.yml");
    let url = format!("http://{}", free_address());
    let contents = format!(
        "# Everything that is needed.\nprefix: /tenant-a/\nowner: team-a\nendpoints:\n  - {}\nlisten-client-urls: {url}\nquota-keys: 3\nlog-format: console\n",
        etcd.url
    );
    fs::write(&file, contents).unwrap();
    let flag = format!("--config-file={}", file.display());
    // The same file serves the tools.
    assert!(ok(etcd_proxy(&["claim", &flag])).contains("/tenant-a/ is claimed by team-a"));

    let mut command = Command::new(env!("CARGO_BIN_EXE_etcd-proxy"));
    command.arg(&flag);
    let program = Program::spawn(command, dir.path().join("log"));
    eventually("the proxy serves", async || program.log().contains("serving").then_some(())).await;
    assert!(!program.log().contains('{'), "not for the console: {}", program.log());
    ok(etcdctl(&url, &[], &["put", "greeting", "hello"]));
    assert_eq!(etcd.ctl(&["get", "/tenant-a/greeting", "--print-value-only"]), "hello\n");
    for key in ["a", "b"] {
        ok(etcdctl(&url, &[], &["put", key, "x"]));
    }
    assert!(fails(etcdctl(&url, &[], &["put", "c", "x"])).contains("database space exceeded"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
    let etcd = Etcd::start().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("proxy.yml");
    fs::write(&file, format!("namespace: /file/\nendpoints: {}\n", etcd.url)).unwrap();
    for (index, (flag, variable, prefix)) in [
        (None, None, "/file/"),
        (None, Some("/variable/"), "/variable/"),
        (Some("--prefix=/flag/"), Some("/variable/"), "/flag/"),
        (Some("--namespace=/flag/"), None, "/flag/"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_etcd-proxy"));
        command.args(["--listen-client-urls", &format!("http://{}", free_address())]).args(flag);
        command.env("ETCD_PROXY_CONFIG_FILE", &file);
        if let Some(variable) = variable {
            command.env("ETCD_PROXY_PREFIX", variable);
        }
        let program = Program::spawn(command, dir.path().join(format!("log-{index}")));
        let words = format!("\"prefix\":\"{prefix}\"");
        eventually(&format!("{prefix} is served"), async || {
            let log = program.log();
            log.lines().any(|line| line.contains("\"message\":\"serving\"") && line.contains(&words)).then_some(())
        })
        .await;
    }
}

#[test]
fn a_file_that_cannot_be_meant_so_is_refused_with_its_lines() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("proxy.yml");
    for (contents, words) in [
        ("prefix: /a/\nprefx: /b/\n", "proxy.yml: line 2: prefx is not a flag"),
        ("prefix: /a/\nauto-tls: true\n", "line 2: auto-tls is refused: generated certificates cannot be verified"),
        ("prefix: /a/\n\nmax-watches: many\n", "line 3: invalid value 'many'"),
        ("prefix: /a/\n  name: x\n", "line 2: not YAML"),
    ] {
        fs::write(&file, contents).unwrap();
        let message = fails(etcd_proxy(&[format!("--config-file={}", file.display())]));
        assert!(message.contains(words), "{contents:?}: {message}");
    }
    assert!(fails(etcd_proxy(&["--config-file=/nowhere/proxy.yml"])).contains("/nowhere/proxy.yml"));
}
