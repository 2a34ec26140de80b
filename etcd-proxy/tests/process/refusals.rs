//! What the program refuses to start with.

use std::{ffi::OsString, os::unix::ffi::OsStringExt};

use crate::child::{Etcd, Program, Proxy, etcd_proxy, eventually, fails, ok};

#[tokio::test(flavor = "multi_thread")]
async fn unsafe_settings_are_refused_with_a_way_out() {
    for (flags, words) in [
        (&["--prefix=/a"][..], "add the '/'"),
        (&["--prefix=/registry/"], "--force"),
        (&["--prefix=/registry/pods/"], "kube-apiserver"),
        (&["--prefix=/etcd-proxy.meta/x/", "--force"], "--meta-prefix"),
        (&["--prefix=/a/", "--listen-client-urls=http://0.0.0.0:1"], "--allow-plaintext"),
        (&["--prefix=/a/", "--auto-tls"], "--auto-tls is refused"),
        (&["--prefix=/a/"], "leads to this proxy itself"),
        (
            &["--prefix=/a/", "--endpoints=127.0.0.1:1", "--cert-file=/nowhere/c.pem", "--key-file=/nowhere/k.pem"],
            "/nowhere/c.pem",
        ),
    ] {
        let message = fails(etcd_proxy(flags));
        assert!(message.contains(words), "{flags:?}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_without_successor_is_refused() {
    let mut prefix = b"--prefix=".to_vec();
    prefix.extend([0xff, 0xff]);
    let message = fails(etcd_proxy(&[OsString::from_vec(prefix), "--allow-unterminated-prefix".into()]));
    assert!(message.contains("no key follows"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overlap_with_a_claim_is_refused_both_ways() {
    let etcd = Etcd::start().await;
    ok(etcd_proxy(&["claim", "--prefix=/a/b/", "--owner=team-b", "--endpoints", &etcd.url]));
    for prefix in ["/a/", "/a/b/c/"] {
        let mut proxy = Proxy::spawn(prefix, &etcd.url, &[]);
        assert_eq!(proxy.program.exit().await.code(), Some(1));
        let log = proxy.program.log();
        assert!(log.contains("/a/b/") && log.contains("team-b"), "{log}");
    }
    let proxy = Proxy::start("/a/b/", &etcd, &[]).await;
    assert!(!proxy.program.log().contains("not claimed"), "{}", proxy.program.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unclaimed_prefix_is_served_with_a_warning_and_nothing_is_written() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    proxy.program.logged("not claimed").await;
    assert!(etcd.ctl(&["get", "x", "-w", "json"]).contains(r#""revision":1,"#));
    assert_eq!(etcd.ctl(&["get", "", "--prefix"]), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overlap_that_shows_late_ends_the_process() {
    let mut etcd = Etcd::start().await;
    ok(etcd_proxy(&["claim", "--prefix=/a/", "--owner=team-a", "--endpoints", &etcd.url]));
    etcd.kill();
    let mut proxy = Proxy::spawn("/a/b/", &etcd.url, &[]);
    eventually("it listens", async || crate::http::get(&format!("{}/livez", proxy.metrics)).await).await;
    etcd.run().await;
    assert_eq!(proxy.program.exit().await.code(), Some(1));
    assert!(proxy.program.log().contains("team-a"), "{}", proxy.program.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_authentication_on_the_own_claim_suffices_and_a_missing_one_is_refused() {
    let etcd = crate::tls::etcd_with_authentication().await;
    etcd.claim("/a/", "team-a");
    let run = |prefix: &str| -> (Program, String) { etcd.proxy(prefix) };
    let (allowed, metrics) = run("/a/");
    eventually("ready", async || {
        let answer = crate::http::get(&format!("{metrics}/readyz")).await;
        answer.is_some_and(|answer| answer.status == 200).then_some(())
    })
    .await;
    allowed.logged(r#""others_seen":false"#).await;
    // Its meta keys are needed as well, and missing rights on them are said, once.
    etcd.as_root(&["role", "revoke-permission", "tenant", "/etcd-proxy.meta/tenants/2f612f/", "--prefix"]);
    let (denied, metrics) = run("/a/");
    let answer = eventually("unready for want of rights", async || {
        let answer = crate::http::get(&format!("{metrics}/readyz")).await?;
        answer.body.contains("[+]upstream ok").then_some(answer)
    })
    .await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("[-]meta failed: etcdserver: permission denied"), "{}", answer.body);
    let tellings = || denied.log().matches("may not read this tenant's meta keys").count();
    let looks = || denied.log().matches("lost sight of the compaction watermark").count();
    eventually("it has looked three times", async || (looks() >= 3).then_some(())).await;
    assert_eq!(tellings(), 1, "{}", denied.log());
    let (mut refused, _) = run("/c/");
    assert_eq!(refused.exit().await.code(), Some(1));
    assert!(refused.log().contains("/c/"), "{}", refused.log());
}
