//! The real etcdctl through the proxy.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use crate::support::{Etcd, Proxy, binary};

/// Runs etcdctl. Returns what it prints, to standard error if it fails.
pub(crate) async fn etcdctl(endpoint: &str, args: &[&str], input: &'static str) -> Result<String, String> {
    let mut command = Command::new(binary("TEST_ETCDCTL"));
    command.args(["--command-timeout=10s", "--endpoints", endpoint]).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Dropped, and so closed, once written.
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = tokio::task::spawn_blocking(|| child.wait_with_output()).await.unwrap().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// The same session with etcdctl against an etcd and through a proxy prints the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_reads_the_same() {
    let (etcd, shared) = (Etcd::start().await, Etcd::start().await);
    let proxy = Proxy::start(&shared, "/a/").await;
    let _neighbour = shared.client().await.put("/b/k", "v").await;
    let endpoints = [etcd.url(), format!("http://{}", proxy.address)];
    let txn = "value(\"k1\") = \"v1\"\n\nput k1 changed\nget \"\" --from-key\n\nput k1 unchanged\n\n";
    let session: [(&[&str], &'static str); 18] = [
        (&["put", "k1", "v1"], ""),
        (&["put", "k2", "v2", "--prev-kv"], ""),
        (&["get", "k", "--prefix"], ""),
        (&["get", "", "--from-key", "--keys-only"], ""),
        (&["get", "", "--prefix", "--count-only", "--write-out=fields"], ""),
        (&["txn", "--interactive=false"], txn),
        (&["get", "k1"], ""),
        (&["lease", "grant", "100", "--hex"], ""),
        (&["lease", "keep-alive", "--once", "4711"], ""),
        (&["lease", "timetolive", "4711"], ""),
        (&["compaction", "1000000"], ""),
        (&["put", "", "v"], ""),
        (&["alarm", "list"], ""),
        (&["endpoint", "health"], ""),
        (&["del", "", "--from-key"], ""),
        (&["get", "", "--prefix"], ""),
        (&["auth", "status"], ""),
        (&["user", "list"], ""),
    ];
    for (args, input) in session {
        let mut printed = Vec::new();
        for endpoint in &endpoints {
            let outcome = etcdctl(endpoint, args, input).await;
            // Addresses, times, ids and revisions differ.
            let neutral = |text: String| {
                let text = text
                    .replace(endpoint.as_str(), "ENDPOINT")
                    .replace(endpoint.trim_start_matches("http://"), "ENDPOINT");
                let lines = text.lines().filter(|line| {
                    !["ClusterID", "MemberID", "Revision", "RaftTerm", "lease "]
                        .iter()
                        .any(|field| line.contains(field))
                });
                let lines = lines.map(|line| {
                    line.split(": took").next().unwrap_or(line).split("{\"level\"").next().unwrap_or(line).to_owned()
                });
                lines.collect::<Vec<_>>().join("\n")
            };
            printed.push(outcome.map(neutral).map_err(neutral));
        }
        assert_eq!(printed[1], printed[0], "etcdctl {args:?}");
    }
    assert_eq!(shared.client().await.get("/b/k").await.unwrap().value, "v");
}

/// What follows the member list stays with the proxy, and what concerns everybody is refused with a word on who may.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_commands_stay_with_the_proxy() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let endpoint = format!("http://{}", proxy.address);
    let members = etcdctl(&endpoint, &["member", "list"], "").await.unwrap();
    assert!(members.contains(&endpoint) && !members.contains(&etcd.url()), "{members}");
    for command in ["status", "health"] {
        let printed = etcdctl(&endpoint, &["endpoint", command, "--cluster"], "").await.unwrap();
        assert!(printed.contains(&endpoint), "{printed}");
    }
    for args in [["defrag"].as_slice(), &["member", "remove", "1"], &["user", "add", "x:y"]] {
        let refused = etcdctl(&endpoint, args, "").await.unwrap_err();
        assert!(refused.contains("PermissionDenied") || refused.contains("operator"), "{args:?}: {refused}");
    }
    // An id of somebody else's lease, as etcdctl prints it.
    let lease = etcd.client().await.grant(0, 600).await.unwrap();
    let revoked = etcdctl(&endpoint, &["lease", "revoke", &format!("{lease:x}")], "").await.unwrap_err();
    assert!(revoked.contains("requested lease not found"), "{revoked}");
    assert_eq!(etcdctl(&endpoint, &["lease", "list"], "").await.unwrap().trim(), "found 0 leases");
}
