//! The proxy's user on an upstream with authentication on.

use std::{fs, io::Write as _, process::Command};

use tempfile::TempDir;
use tokio::time::timeout;

use crate::{
    child::{Etcd, Proxy, SOON, etcd_proxy, etcdctl, eventually, fails, free_address, ok},
    http::get,
};

const PASSWORD: &str = "geheim-7f3a";
const META: &str = "/etcd-proxy.meta/tenants/2f612f/";
const CLAIM: &str = "/etcd-proxy.meta/claims/2f612f";

/// An etcd whose user `a` may do what the documentation says the proxy of `/a/` needs.
async fn secured() -> Etcd {
    let etcd = Etcd::start_with(format!("http://{}", free_address()), &["--bcrypt-cost=4".to_owned()]).await;
    for command in [
        &["user", "add", "root:root"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "a"],
        &["role", "grant-permission", "a", "readwrite", "/a/", "--prefix"],
        &["role", "grant-permission", "a", "read", CLAIM],
        &["role", "grant-permission", "a", "readwrite", META, "--prefix"],
        &["user", "add", &format!("a:{PASSWORD}")],
        &["user", "grant-role", "a", "a"],
        &["auth", "enable"],
    ] {
        etcd.ctl(command);
    }
    etcd
}

fn password_file(dir: &TempDir, password: &str) -> String {
    let path = dir.path().join("password");
    fs::write(&path, format!("{password}\n")).unwrap();
    format!("--password-file={}", path.display())
}

fn claim(etcd: &Etcd, prefix: &str) {
    ok(etcd_proxy(&["claim", "--prefix", prefix, "--owner=one", "--endpoints", &etcd.url, "--user=root:root"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn its_own_claim_is_all_that_a_user_needs_to_read_and_must_be_there() {
    let etcd = secured().await;
    let dir = TempDir::new().unwrap();
    let file = password_file(&dir, PASSWORD);
    let mut proxy = Proxy::spawn("/a/", &etcd.url, &["--user=a", &file]);
    assert_eq!(proxy.program.exit().await.code(), Some(1));
    assert!(proxy.program.log().contains("/a/ is not claimed"), "{}", proxy.program.log());

    claim(&etcd, "/b/");
    claim(&etcd, "/a/");
    let proxy = Proxy::start("/a/", &etcd, &["--user=a", &file, "--log-level=debug"]).await;
    proxy.ctl(&["put", "k", "v"]);
    assert_eq!(proxy.ctl(&["get", "k", "--print-value-only"]).trim(), "v");
    let log = proxy.program.logged("\"others_seen\":false").await;
    // A password in a file is in that file alone; in the environment it is at least not where everybody may look.
    let cmdline = |proxy: &Proxy| fs::read_to_string(format!("/proc/{}/cmdline", proxy.program.child.id())).unwrap();
    assert!(!log.contains(PASSWORD) && !cmdline(&proxy).contains(PASSWORD), "{log}");
    let token = log.lines().find(|line| line.contains("token"));
    assert_eq!(token, None);

    let proxy = Proxy::spawn_with_environment("/a/", &etcd.url, &[("ETCD_PROXY_USER", &format!("a:{PASSWORD}"))]);
    proxy.ready().await;
    proxy.ctl(&["put", "k", "v"]);
    assert!(!proxy.program.log().contains(PASSWORD) && !cmdline(&proxy).contains(PASSWORD));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_the_operators_business() {
    let etcd = secured().await;
    claim(&etcd, "/a/");
    let dir = TempDir::new().unwrap();
    let file = password_file(&dir, "wrong");
    let proxy = Proxy::spawn("/a/", &etcd.url, &["--user=a", &file]);
    eventually("the log says so", async || {
        proxy.program.log().contains("authentication failed, invalid user ID or password").then_some(())
    })
    .await;
    let ready = eventually("it listens", async || get(&format!("{}/readyz", proxy.metrics)).await).await;
    assert_eq!(ready.status, 503);
    let message = fails(etcdctl(&proxy.url, &[], &["put", "k", "v"]));
    assert!(!message.contains("password"), "{message}");
    assert!(!proxy.program.log().contains("wrong"), "{}", proxy.program.log());
    password_file(&dir, PASSWORD);
    proxy.ready().await;
    proxy.ctl(&["put", "k", "v"]);
}

/// A password on a disk that does not answer keeps those waiting who need it, and nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_file_that_cannot_be_read_to_its_end_holds_up_nothing() {
    let etcd = secured().await;
    claim(&etcd, "/a/");
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("password");
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    let flag = format!("--password-file={}", file.display());
    let mut proxy = Proxy::spawn("/a/", &etcd.url, &["--user=a", &flag]);

    // A pipe to which nobody writes, and which stays open.
    let opened = tokio::task::spawn_blocking(move || fs::OpenOptions::new().write(true).open(file));
    let mut read = timeout(SOON, opened).await.expect("the proxy reads it").unwrap().unwrap();
    let livez = format!("{}/livez", proxy.metrics);
    let live = timeout(SOON, eventually("it listens", async || get(&livez).await)).await.expect("an answer in time");
    assert_eq!(live.status, 200);
    proxy.program.logged("password: not read within").await;

    // What was begun is what is read in the end.
    writeln!(read, "{PASSWORD}").unwrap();
    drop(read);
    proxy.ready().await;
    proxy.ctl(&["put", "k", "v"]);
    proxy.program.signal("TERM");
    assert!(proxy.program.exit().await.success());
}

#[test]
fn half_a_user_is_none() {
    let refused = |flags: &[&str]| fails(etcd_proxy(&[&["serve", "--prefix=/a/"], flags].concat()));
    assert!(refused(&["--user=a"]).contains("--password-file"));
    assert!(refused(&["--password=x"]).contains("--user"));
    assert!(refused(&["--password-file=x"]).contains("--user"));
    assert!(refused(&["--user=a", "--password=x", "--password-file=x"]).contains("exclude each other"));
}
