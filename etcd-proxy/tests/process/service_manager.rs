//! As a service of systemd.

use std::{fs, os::unix::net::UnixDatagram, process::Command, time::Duration};

use tempfile::TempDir;

use crate::child::{Etcd, Program, SOON, free_address};

const UNIT: &str = include_str!("../../systemd/etcd-proxy@.service");

#[tokio::test(flavor = "multi_thread")]
async fn systemd_hears_of_the_beginning_and_the_end() {
    let mut etcd = Etcd::prepare(format!("http://{}", free_address()), &[]);
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(SOON)).unwrap();
    let heard = || {
        let mut buffer = [0; 1000];
        let length = manager.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_etcd-proxy"));
    command.env("NOTIFY_SOCKET", &socket).args(["--prefix=/a/", "--endpoints", &etcd.url]);
    command.args(["--listen-client-urls", &format!("http://{}", free_address())]);
    let mut program = Program::spawn(command, dir.path().join("log"));
    // An upstream that is down is no reason to start again.
    assert_eq!(heard(), "READY=1\nSTATUS=the upstream does not answer yet");
    etcd.run().await;
    assert_eq!(heard(), "STATUS=serving /a/");
    program.signal("TERM");
    assert_eq!(heard(), "STOPPING=1\nSTATUS=finishing requests under way");
    assert!(program.exit().await.success());
    // And nothing else.
    manager.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    assert!(manager.recv(&mut [0; 1]).is_err());
}

#[test]
fn the_unit_is_one_that_systemd_understands() {
    let command = UNIT.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/etcd-proxy ")).unwrap();
    let words = ["etcd-proxy"].into_iter().chain(command.split(' ')).chain(["--help"]).map(Into::into);
    assert_eq!(etcd_proxy::cli::parse(words, []).unwrap_err().kind(), clap::error::ErrorKind::DisplayHelp);
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        // A host without systemd can tell no more.
        return;
    }
    let dir = TempDir::new().unwrap();
    let unit = dir.path().join("etcd-proxy@tenant-a.service");
    let text = UNIT
        .replace("/usr/bin/etcd-proxy", env!("CARGO_BIN_EXE_etcd-proxy"))
        .replace("User=etcd-proxy", "User=daemon")
        .replace("Group=etcd-proxy", "Group=daemon")
        .replace("Documentation=man:etcd-proxy(1)\n", "");
    fs::write(&unit, text).unwrap();
    let analyze = |args: &[&str]| {
        let output =
            Command::new("systemd-analyze").args(args).arg(&unit).env("SYSTEMD_LOG_LEVEL", "warning").output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success(), "{args:?}: {said}");
        said
    };
    let said = analyze(&["verify", "--man=no", "--recursive-errors=no"]);
    assert!(!said.contains("tenant-a.service"), "{said}");
    // Exposure in tenths, of 100.
    analyze(&["security", "--offline=true", "--threshold=15", "--no-pager"]);
}
