//! Unix sockets on both sides.

use std::{fs, os::unix::fs::PermissionsExt};

use tempfile::TempDir;
use tokio::net::{UnixSocket, UnixStream};

use crate::{
    child::{Etcd, Proxy, etcd_proxy, etcdctl, eventually, fails, ok},
    pki::{Ca, text},
};

#[tokio::test(flavor = "multi_thread")]
async fn clients_and_upstream_over_unix_sockets() {
    let dir = TempDir::new().unwrap();
    let upstream = format!("unix://{}", dir.path().join("etcd.sock").display());
    let etcd = Etcd::start_with(upstream, &[]).await;
    let socket = dir.path().join("proxy.sock");
    let url = format!("unix://{}", socket.display());
    let mut proxy = Proxy::spawn_at(url.clone(), "/a/", &etcd.url, &["--unix-socket-mode=0640"]);
    proxy.ready().await;
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(ok(etcdctl(&url, &[], &["put", "k", "v"])), "OK\n");
    assert_eq!(ok(etcdctl(&etcd.url, &[], &["get", "/a/k"])), "/a/k\nv\n");

    // Taken as long as somebody listens.
    let second = fails(etcd_proxy(&["--prefix=/a/", "--endpoints", &etcd.url, "--listen-client-urls", &url]));
    assert!(second.contains("another process is listening"), "{second}");

    // Killed, it leaves the socket; the next one takes its place; in order, it is removed.
    proxy.program.child.kill().unwrap();
    proxy.program.child.wait().unwrap();
    assert!(socket.exists());
    let mut proxy = Proxy::spawn_at(url.clone(), "/a/", &etcd.url, &[]);
    proxy.ready().await;
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(ok(etcdctl(&url, &[], &["get", "k"])), "k\nv\n");
    proxy.program.signal("TERM");
    assert_eq!(proxy.program.exit().await.code(), Some(0));
    eventually("the socket is gone", async || (!socket.exists()).then_some(())).await;
}

/// The certificate is that of the socket's name, as for etcdctl.
#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_speaks_tls_over_a_unix_socket() {
    let dir = TempDir::new().unwrap();
    let ca = Ca::new(dir.path(), "ca");
    let identity = ca.issue(dir.path(), "member");
    let flags = ["--cert-file", text(&identity.cert), "--key-file", text(&identity.key)].map(str::to_owned);
    let socket = |name: &str| format!("unixs://{}", dir.path().join(name).display());
    let etcd = Etcd::start_with(socket("member:1"), &flags).await;
    let trust = ["--cacert", text(&ca.file)];
    assert_eq!(ok(etcdctl(&etcd.url, &trust, &["put", "/a/k", "v"])), "OK\n");
    let proxy = Proxy::start("/a/", &etcd, &trust).await;
    assert_eq!(proxy.ctl(&["get", "k"]), "k\nv\n");

    let stranger = Etcd::start_with(socket("stranger"), &flags).await;
    fails(etcdctl(&stranger.url, &trust, &["get", "/a/k"]));
    let proxy = Proxy::spawn("/a/", &stranger.url, &trust);
    eventually("it is refused", async || proxy.program.log().contains("not valid for name").then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_socket_stays() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("precious");
    fs::write(&file, "data").unwrap();
    let url = format!("unix://{}", file.display());
    let message = fails(etcd_proxy(&["--prefix=/a/", "--listen-client-urls", &url]));
    assert!(message.contains("not a socket"), "{message}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "data");
}

/// Who is busy is there: a socket is taken over only from a process that has gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_socket_with_a_full_queue_stays() {
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("busy");
    let busy = UnixSocket::new_stream().unwrap();
    busy.bind(&socket).unwrap();
    let busy = busy.listen(1).unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = UnixStream::connect(&socket).await {
        waiting.push(stream);
    }
    let url = format!("unix://{}", socket.display());
    let message = fails(etcd_proxy(&["--prefix=/a/", "--listen-client-urls", &url]));
    assert!(message.contains(&url) && message.contains("cannot be told whether somebody listens"), "{message}");
    // It is still the same one.
    assert!(busy.accept().await.is_ok());
    assert!(UnixStream::connect(&socket).await.is_ok());
}
