//! `usage`, `check` and `claim --adopt-leases`, on real etcds and a real grpc-proxy.

use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::child::{Etcd, Program, Proxy, binary, etcd_proxy, etcdctl, eventually, fails, free_address, ok};

fn tool(command: &str, etcd: &Etcd, flags: &[&str]) -> std::process::Output {
    etcd_proxy(&[&[command, "--endpoints", &etcd.url], flags].concat())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The tenant's row of `usage --output=json`.
fn row<'a>(report: &'a Value, prefix: &str) -> &'a Value {
    let rows = report["tenants"].as_array().unwrap();
    rows.iter().find(|row| row["prefix"] == prefix).unwrap_or_else(|| panic!("{prefix} in {report}"))
}

/// The level of what `check --output=json` found, the worst if there is more than one finding.
fn level(report: &Value, check: &str) -> String {
    let levels = ["ok", "skipped", "warning", "error"];
    let found = report["findings"].as_array().unwrap().iter().filter(|finding| finding["check"] == check);
    let worst = found.map(|finding| levels.iter().position(|level| finding["level"] == *level).unwrap()).max();
    worst.map_or_else(|| panic!("no {check} in {report}"), |worst| levels[worst].to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_counts_every_tenant() {
    for variable in ["TEST_ETCD", "TEST_ETCD_3_5"] {
        let etcd = Etcd::start_binary(variable).await;
        for (prefix, owner) in [("/a/", "one"), ("/b/", "two")] {
            ok(tool("claim", &etcd, &["--prefix", prefix, "--owner", owner]));
        }
        let proxy = Proxy::start("/a/", &etcd, &[]).await;
        let value = "x".repeat(1000);
        for number in 0..300 {
            proxy.ctl(&["put", &format!("key{number:03}"), &value]);
        }
        proxy.ctl(&["lease", "grant", "600"]);
        proxy.ctl(&["compaction", "10"]);
        etcd.ctl(&["put", "/b/k", "12345"]);
        // Left behind by a release, and nobody's.
        let left = Proxy::start("/left/", &etcd, &[]).await;
        left.ctl(&["lease", "grant", "600"]);
        etcd.ctl(&["put", "nobody's", "v"]);

        let report = json(&ok(tool("usage", &etcd, &["--output=json"])));
        assert_eq!(report["tenants"].as_array().unwrap().len(), 3, "{report}");
        let a = row(&report, "/a/");
        assert_eq!(
            (&a["owner"], &a["keys"], &a["bytes"], &a["leases"], &a["watermark"]),
            (&"one".into(), &300.into(), &(300 * 1006).into(), &1.into(), &10.into())
        );
        let b = row(&report, "/b/");
        assert_eq!((&b["keys"], &b["bytes"], &b["watermark"]), (&1.into(), &6.into(), &Value::Null));
        let left = row(&report, "/left/");
        assert_eq!((&left["claimed"], &left["keys"], &left["leases"]), (&false.into(), &0.into(), &1.into()));
        assert_eq!(report["elsewhere"]["keys"], 1);

        let report = json(&ok(tool("usage", &etcd, &["--output=json", "--bytes=false", "--prefix=/a/"])));
        assert_eq!((&row(&report, "/a/")["keys"], &row(&report, "/a/")["bytes"]), (&300.into(), &Value::Null));
        assert_eq!(report["tenants"].as_array().unwrap().len(), 1);

        let table = ok(tool("usage", &etcd, &[]));
        let line = table.lines().find(|line| line.starts_with("/a/")).unwrap();
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>(),
            ["/a/", "one", "300", "301800", "(294.7", "KiB)", "1", "10"]
        );
        assert!(table.lines().last().unwrap().starts_with("3 tenants"), "{table}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_finds_what_is_wrong_and_says_what_to_do() {
    let etcd = Etcd::start().await;
    ok(tool("claim", &etcd, &["--prefix=/a/", "--owner=one"]));
    let report = json(&ok(tool("check", &etcd, &["--prefix=/a/", "--output=json"])));
    for check in [
        "endpoint",
        "space",
        "authentication",
        "permissions",
        "claims",
        "own claim",
        "alarms",
        "compaction",
        "request size",
    ] {
        assert_eq!(level(&report, check), "ok", "{check}: {report}");
    }
    assert_eq!(report["result"], "ok");
    let table = ok(tool("check", &etcd, &["--prefix=/a/"]));
    assert!(table.contains("etcd 3.") && table.contains("1572861 bytes"), "{table}");

    // Warnings are no failure.
    let table = ok(tool("check", &etcd, &["--prefix=/c/"]));
    assert!(table.contains("WARNING   own claim"), "{table}");
    // Errors are.
    for (flags, message) in [
        (&["--prefix=/a/b/"][..], "overlaps /a/, which is claimed by one"),
        (&["--prefix=/etcd-proxy.meta/x/"], "overlaps the meta prefix"),
    ] {
        let output = tool("check", &etcd, flags);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains(message), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("findings"), "{output:?}");
    }
    // With the flags that a proxy would be given, a prefix is judged as that would.
    for (prefix, flag) in [("/registry/x/", "--force"), ("/unended", "--allow-unterminated-prefix")] {
        let prefix = format!("--prefix={prefix}");
        let output = tool("check", &etcd, &[&prefix]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains(flag), "{output:?}");
        assert!(ok(tool("check", &etcd, &[&prefix, flag])).contains("WARNING   prefix"));
    }
    // As no tool would leave it.
    let claim = etcd.ctl(&["get", "/etcd-proxy.meta/claims/2f612f", "--print-value-only"]);
    etcd.ctl(&["put", "/etcd-proxy.meta/claims/2f612f622f", claim.trim()]);
    let output = tool("check", &etcd, &[]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("/a/ contains /a/b/"), "{output:?}");
    etcd.ctl(&["del", "/etcd-proxy.meta/claims/2f612f622f"]);

    etcd.ctl(&["alarm", "disarm"]);
    let dead = free_address();
    let both = format!("{},http://{dead}", etcd.url);
    let output = etcd_proxy(&["check", "--endpoints", &both, "--output=json"]);
    assert_eq!(output.status.code(), Some(1));
    let report = json(&String::from_utf8(output.stdout).unwrap());
    let of = |subject: &str| {
        report["findings"].as_array().unwrap().iter().find(|found| found["subject"] == subject).cloned()
    };
    let found = of(&format!("http://{dead}")).unwrap();
    assert!(found["message"].as_str().unwrap().contains("cannot connect"), "{found}");
    assert_eq!(of(&etcd.url).unwrap()["level"], "ok");
    assert_eq!(level(&report, "claims"), "ok");
    let message = fails(etcd_proxy(&["check", "--endpoints", &dead]));
    assert!(message.contains("findings that keep a proxy from working: 1\n"), "{message}");
    // What the table says is not said again, and nothing between the words is JSON.
    let output = etcd_proxy(&["check", "--endpoints", &dead]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("unreachable") && !stderr.contains('{'), "{stderr}");
    let message =
        fails(etcd_proxy(&["claim", "--prefix=/a/", "--owner=x", "--command-timeout=3s", "--endpoints", &dead]));
    assert!(message.contains("WARN") && message.contains("unreachable") && !message.contains('{'), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_tells_whether_anybody_compacts() {
    let etcd = Etcd::start().await;
    let found = |flags: &[&str]| {
        let report = json(&ok(tool("check", &etcd, &[flags, &["--output=json"]].concat())));
        let finding =
            report["findings"].as_array().unwrap().iter().find(|found| found["check"] == "compaction").cloned();
        let finding = finding.unwrap();
        (finding["level"].as_str().unwrap().to_owned(), finding["message"].as_str().unwrap().to_owned())
    };
    let (level, message) = found(&[]);
    assert!(level == "ok" && message.contains("nobody has compacted yet"), "{level}: {message}");
    for number in 0..10 {
        etcd.ctl(&["put", "k", &number.to_string()]);
    }
    etcd.ctl(&["compaction", "5"]);
    etcd.ctl(&["put", "compact_rev_key", "5"]);
    let (level, message) = found(&[]);
    assert!(level == "ok" && message.contains("up to revision 5; 7 revisions are kept"), "{level}: {message}");
    assert!(message.contains("a kube-apiserver noted a compaction 0 revisions ago"), "{message}");

    let busy = |act: &dyn Fn(u32)| {
        let (etcd, stop) = (&etcd, std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let report = ok(tool("check", etcd, &["--observe=3s", "--output=json"]));
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
                report
            });
            let mut number = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                act(number);
                number += 1;
            }
            json(&watching.join().unwrap())
        })
    };
    let report = busy(&|number| drop(etcd.ctl(&["put", "k", &number.to_string()])));
    assert_eq!(self::level(&report, "compaction"), "warning", "{report}");
    let report = busy(&|_| {
        let put = etcd.ctl(&["put", "k", "v", "--write-out=json"]);
        let revision = json(&put)["header"]["revision"].to_string();
        etcd.ctl(&["compaction", &revision]);
    });
    assert_eq!(self::level(&report, "compaction"), "ok", "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_knows_what_a_user_may() {
    let etcd = Etcd::start_with(format!("http://{}", free_address()), &["--bcrypt-cost=4".to_owned()]).await;
    for command in [
        &["user", "add", "root:root"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "a"],
        &["role", "grant-permission", "a", "readwrite", "/a/", "--prefix"],
        &["role", "grant-permission", "a", "read", "/etcd-proxy.meta/claims/2f612f"],
        &["role", "grant-permission", "a", "read", "/etcd-proxy.meta/tenants/2f612f/", "--prefix"],
        &["user", "add", "a:a"],
        &["user", "grant-role", "a", "a"],
        &["auth", "enable"],
    ] {
        etcd.ctl(command);
    }
    ok(tool("claim", &etcd, &["--prefix=/a/", "--owner=one", "--user=root:root"]));
    let check = |flags: &[&str]| {
        let output = tool("check", &etcd, &[&["--prefix=/a/", "--output=json"], flags].concat());
        (output.status.code(), json(&String::from_utf8(output.stdout).unwrap()))
    };
    let (code, report) = check(&["--user=a:a"]);
    assert_eq!((code, &*level(&report, "permissions")), (Some(1), "error"), "{report}");
    let text = report.to_string();
    assert!(text.contains("may not write the tenant's meta keys"), "{text}");
    let grant = "etcdctl role grant-permission ROLE readwrite /etcd-proxy.meta/tenants/2f612f/ --prefix";
    assert!(text.contains(grant), "{text}");
    let before = etcd_revision(&etcd);
    let root = ["--user=root:root"];
    let grant: Vec<&str> = grant.split(' ').skip(1).map(|word| if word == "ROLE" { "a" } else { word }).collect();
    ok(etcdctl(&etcd.url, &root, &grant));
    let (code, report) = check(&["--user=a:a"]);
    assert_eq!((code, &*level(&report, "permissions")), (Some(0), "ok"), "{report}");
    assert_eq!((&*level(&report, "own claim"), &*level(&report, "claims")), ("ok", "skipped"), "{report}");
    let (code, report) = check(&root);
    assert_eq!((code, &*level(&report, "permissions")), (Some(0), "warning"), "{report}");
    let (code, report) = check(&["--user=a:wrong"]);
    assert_eq!((code, &*level(&report, "authentication")), (Some(1), "error"), "{report}");
    let (code, report) = check(&[]);
    assert_eq!(code, Some(1), "{report}");
    assert_eq!(etcd_revision(&etcd), before, "a check has written something");
}

fn etcd_revision(etcd: &Etcd) -> String {
    let read = ok(etcdctl(&etcd.url, &["--user=root:root"], &["get", "x", "--write-out=json"]));
    json(&read)["header"]["revision"].to_string()
}

/// What was granted through a grpc-proxy goes on after the take-over: first without an id that the tenant could use, then,
/// adopted, with another one than before.
#[tokio::test(flavor = "multi_thread")]
async fn leases_of_a_grpc_proxy_are_adopted() {
    let etcd = Etcd::start().await;
    let dir = TempDir::new().unwrap();
    let address = free_address();
    let mut command = Command::new(binary("TEST_ETCD"));
    command
        .args(["grpc-proxy", "start", "--namespace=/a/", "--endpoints", etcd.url.trim_start_matches("http://")])
        .args(["--listen-addr", &address, "--data-dir"])
        .arg(dir.path());
    let predecessor = Program::spawn(command, dir.path().join("log"));
    let before = format!("http://{address}");
    eventually("the grpc-proxy serves", async || etcdctl(&before, &[], &["get", "k"]).status.success().then_some(()))
        .await;
    let id = |granted: &str| granted.split_whitespace().nth(1).unwrap().to_owned();
    let grant = |endpoint: &str, ttl: &str| id(&ok(etcdctl(endpoint, &[], &["lease", "grant", ttl])));
    let (long, short, shared) = (grant(&before, "600"), grant(&before, "600"), grant(&before, "600"));
    for (key, lease) in [("one", &long), ("two", &long), ("short", &short), ("shared", &shared)] {
        ok(etcdctl(&before, &[], &["put", key, "v", &format!("--lease={lease}")]));
    }
    etcd.ctl(&["put", "/b/foreign", "v", &format!("--lease={shared}")]);
    let foreign = grant(&etcd.url, "600");
    etcd.ctl(&["put", "/b/k", "v", &format!("--lease={foreign}")]);
    drop(predecessor);

    ok(tool("claim", &etcd, &["--prefix=/a/", "--owner=one"]));
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    assert!(proxy.ctl(&["lease", "list"]).starts_with("found 0 leases"));
    let report = ok(tool("claim", &etcd, &["--prefix=/a/", "--owner=one", "--adopt-leases"]));
    assert!(report.contains("2 leases are adopted; 0 were"), "{report}");
    assert!(report.contains(&format!("lease {shared} is not adopted")) && !report.contains(&foreign), "{report}");
    let line = report.lines().find(|line| line.starts_with(&long)).unwrap_or_else(|| panic!("{long} in {report}"));
    let [_, now, keys] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
    assert_eq!(keys, "2");
    assert_ne!(now, long);

    // It is among the tenant's, its key names it, and the tenant can use it.
    assert!(proxy.ctl(&["lease", "list"]).contains(now), "{}", proxy.ctl(&["lease", "list"]));
    let named = json(&proxy.ctl(&["get", "one", "--write-out=json"]))["kvs"][0]["lease"].as_i64().unwrap();
    assert_eq!(format!("{named:016x}"), now);
    let ttl = proxy.ctl(&["lease", "timetolive", now, "--keys"]);
    // etcd tells the keys in no order.
    let keys = ["attached keys([one two])", "attached keys([two one])"];
    assert!(ttl.contains("granted with TTL(600s)") && keys.iter().any(|keys| ttl.contains(keys)), "{ttl}");
    assert!(proxy.ctl(&["lease", "keep-alive", "--once", now]).contains("keepalived with TTL(600)"));
    // Under its old id it is one that was never granted, as after it expired.
    let ttl = proxy.ctl(&["lease", "timetolive", &long]);
    assert!(ttl.contains("already expired"), "{ttl}");
    let refused = fails(etcdctl(&proxy.url, &[], &["put", "k", "v", &format!("--lease={long}")]));
    assert!(refused.contains("requested lease not found"), "{refused}");

    // Again: nothing is adopted twice. Those that end take their marks with them.
    let report = ok(tool("claim", &etcd, &["--prefix=/a/", "--owner=one", "--adopt-leases"]));
    assert!(report.contains("0 leases are adopted"), "{report}");
    etcd.ctl(&["lease", "revoke", &short]);
    assert!(proxy.ctl(&["lease", "list"]).starts_with("found 1 leases"));
    assert_eq!(proxy.ctl(&["get", "short"]), "");
    proxy.ctl(&["lease", "revoke", now]);
    assert_eq!(proxy.ctl(&["get", "one", "--keys-only"]), "");
    assert_eq!(etcd.ctl(&["get", "/b/", "--prefix", "--keys-only"]).split_whitespace().count(), 2);
}
