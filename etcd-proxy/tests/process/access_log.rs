//! `--access-log`, and what the JSON log says of errors.

use serde_json::Value;

use crate::child::{Etcd, Proxy, etcdctl, eventually, fails, free_address};

/// The access log's lines of a method.
fn lines(proxy: &Proxy, method: &str) -> Vec<Value> {
    let log = proxy.program.log();
    // The last one may be in the making.
    let whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let lines = whole.map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("{line}")));
    lines.filter(|line| line["target"] == "etcd_proxy::access" && line["method"] == method).collect()
}

/// The access log's line of a call that has ended.
async fn line(proxy: &Proxy, method: &str) -> Value {
    eventually(&format!("the line of {method}"), async || lines(proxy, method).pop()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_for_each_rpc_without_what_is_in_it() {
    let etcd = Etcd::start().await;
    // The level is about everything else.
    let proxy = Proxy::start("/a/", &etcd, &["--access-log", "--log-level=error"]).await;
    proxy.ctl(&["put", "geheimer-schluessel", "geheimer-wert"]);
    let put = line(&proxy, "/etcdserverpb.KV/Put").await;
    assert_eq!((&put["code"], &put["level"]), (&"OK".into(), &"INFO".into()), "{put}");
    assert!(put["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{put}");
    assert!(put["duration_ms"].as_f64().unwrap() > 0.0, "{put}");
    let decimals = put["duration_ms"].to_string().split_once('.').map_or(0, |(_, decimals)| decimals.len());
    assert!(decimals <= 3, "finer than microseconds: {put}");
    // Key, value, and what is around them.
    assert!((37..50).contains(&put["request_bytes"].as_u64().unwrap()), "{put}");
    assert!((10..60).contains(&put["response_bytes"].as_u64().unwrap()), "{put}");

    fails(etcdctl(&proxy.url, &[], &["get", "geheimer-schluessel", "--rev=1000000"]));
    assert_eq!(line(&proxy, "/etcdserverpb.KV/Range").await["code"], "OutOfRange");

    // A stream has its line at its end.
    let mut watch = std::process::Command::new(crate::child::binary("TEST_ETCDCTL"))
        .args(["--endpoints", &proxy.url, "watch", "geheimer-schluessel", "--rev=1"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 3];
    std::io::Read::read_exact(watch.stdout.as_mut().unwrap(), &mut first).unwrap();
    assert_eq!(&first, b"PUT");
    assert!(lines(&proxy, "/etcdserverpb.Watch/Watch").is_empty());
    watch.kill().unwrap();
    watch.wait().unwrap();
    let line = line(&proxy, "/etcdserverpb.Watch/Watch").await;
    assert_eq!(line["code"], "Canceled");
    assert!(line["response_bytes"].as_u64().unwrap() > 30, "{line}");

    assert!(!proxy.program.log().contains("geheim"), "{}", proxy.program.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_flag_no_rpc_is_logged() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &["--debug"]).await;
    proxy.ctl(&["put", "k", "v"]);
    assert!(!proxy.program.log().contains("etcd_proxy::access"), "{}", proxy.program.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_logged_with_their_causes() {
    let proxy = Proxy::spawn("/a/", &format!("http://{}", free_address()), &[]);
    let error = eventually("the upstream is found to be down", async || {
        let log = proxy.program.log();
        let line = log.lines().find(|line| line.contains("upstream unreachable"))?;
        serde_json::from_str::<Value>(line).unwrap()["error"].as_str().map(str::to_owned)
    })
    .await;
    assert!(error.contains("onnection refused"), "{error}");
}
