//! `/metrics`: what is listed in the documentation, no more and no less.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use tempfile::TempDir;

use crate::{
    child::{Etcd, Proxy, eventually, free_address, ok},
    http::get,
    pki::{Ca, text},
};

/// Name and type of the families, with the names of their labels.
fn families(exposition: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut families: BTreeMap<String, (String, BTreeSet<String>)> = BTreeMap::new();
    let mut current = String::new();
    for line in exposition.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            // What is scraped of a counter has this ending.
            current = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
            families.insert(current.clone(), (kind.to_owned(), BTreeSet::new()));
        } else if let Some((_, rest)) = line.split_once('{')
            && let Some((labels, _)) = rest.rsplit_once('}')
        {
            let names = labels.split("\",").filter_map(|label| label.split('=').next()).filter(|label| *label != "le");
            families.get_mut(&current).unwrap().1.extend(names.map(str::to_owned));
        }
    }
    families
}

/// The rows of the table of metrics.
fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let docs = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/etcd-proxy.md")).unwrap();
    let (_, section) = docs.split_once("\n## Metrics\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let labels = cells[3].split(',').map(|label| label.trim().trim_matches('`').to_owned());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        (cells[1].trim_matches('`').to_owned(), (cells[2].to_owned(), labels))
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_listed_and_every_listed_one_is_served() {
    let dir = TempDir::new().unwrap();
    let etcd = Etcd::start().await;
    let ca = Ca::new(dir.path(), "ca");
    let server = ca.issue(dir.path(), "server");
    let url = format!("https://{}", free_address());
    let flags =
        ["--cert-file", text(&server.cert), "--key-file", text(&server.key), "--quota-keys=10", "--max-leases=10"];
    let proxy = Proxy::spawn_at(url, "/a/", &etcd.url, &flags);
    proxy.ready().await;
    let served = families(&get(&format!("{}/metrics", proxy.metrics)).await.unwrap().body);
    let documented = documented();
    assert!(documented.len() > 20, "{documented:?}");
    assert_eq!(served, documented);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_is_counted() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/tenant/", &etcd, &[]).await;
    let value = async |series: &str| {
        let body = get(&format!("{}/metrics", proxy.metrics)).await.unwrap().body;
        let line = body.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{series}: {body}")).parse::<f64>().unwrap()
    };
    let (requests, responses) = (
        r#"etcd_proxy_rewritten_bytes_total{direction="request"}"#,
        r#"etcd_proxy_rewritten_bytes_total{direction="response"}"#,
    );
    let before = (value(requests).await, value(responses).await);
    proxy.ctl(&["put", "k", &"x".repeat(1000)]);
    let after = (value(requests).await, value(responses).await);
    assert!((1000.0..1100.0).contains(&(after.0 - before.0)), "{before:?} {after:?}");
    proxy.ctl(&["get", "k"]);
    assert!((1000.0..1200.0).contains(&(value(responses).await - after.1)), "{after:?}");

    let labels = r#"grpc_type="unary",grpc_service="etcdserverpb.KV",grpc_method="Put""#;
    assert_eq!(value(&format!("grpc_server_handling_seconds_count{{{labels}}}")).await, 1.0);
    assert!(value("etcd_proxy_upstream_latency_seconds_count").await >= 2.0);

    // A watch's events are rewritten on the way, too.
    let mut watch = std::process::Command::new(crate::child::binary("TEST_ETCDCTL"))
        .args(["--endpoints", &proxy.url, "watch", "k"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let open = r#"etcd_proxy_limit_used{limit="watches"}"#;
    eventually("the watch is open", async || (value(open).await == 1.0).then_some(())).await;
    let before = value(responses).await;
    ok(crate::child::etcdctl(&etcd.url, &[], &["put", "/tenant/k", &"y".repeat(500)]));
    eventually("the event is counted", async || (value(responses).await - before > 500.0).then_some(())).await;
    watch.kill().unwrap();
    watch.wait().unwrap();
}
