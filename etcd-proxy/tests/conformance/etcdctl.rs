//! The real etcdctl through the proxy.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Output, Stdio},
};

use tokio::{sync::mpsc, task::spawn_blocking, time::timeout};

use crate::support::{Etcd, PATIENCE, Proxy, binary};

/// Runs etcdctl. Returns what it prints, to standard error if it fails.
pub(crate) async fn etcdctl(endpoint: &str, args: &[&str], input: &'static str) -> Result<String, String> {
    let output = run(endpoint, args, input).await;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

async fn run(endpoint: &str, args: &[&str], input: &'static str) -> Output {
    let mut command = Command::new(binary("TEST_ETCDCTL"));
    command.args(["--command-timeout=10s", "--endpoints", endpoint]).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Dropped, and so closed, once written.
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    spawn_blocking(|| child.wait_with_output()).await.unwrap().unwrap()
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

/// One of two etcds that are asked the same.
struct Side {
    endpoint: String,
    /// What earlier answers of it said, by the name that stands for it in arguments.
    said: Vec<(&'static str, String)>,
}

impl Side {
    /// Runs etcdctl with what was said before in place of its names, and writes names in place of it into what is printed.
    async fn run(&self, args: &[&str], input: &'static str) -> Result<String, String> {
        let args = args
            .iter()
            .map(|arg| self.said.iter().fold((*arg).to_owned(), |arg, (name, value)| arg.replace(name, value)));
        let args: Vec<String> = args.collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        // Ids and revisions differ.
        let neutral = |text: String| {
            let lines = text.lines().map(|line| line.split("{\"level\"").next().unwrap_or(line));
            let lines = lines
                .filter(|line| !["ID\" : ", "Revision\" : ", "RaftTerm\" : "].iter().any(|field| line.contains(field)));
            let words = |line: &str| {
                let word = |word: &str| {
                    self.said
                        .iter()
                        .find(|(_, value)| value == word)
                        .map_or(word.to_owned(), |(name, _)| (*name).to_owned())
                };
                line.split(' ').map(word).collect::<Vec<_>>().join(" ")
            };
            lines.filter(|line| !line.is_empty()).map(words).collect::<Vec<_>>().join("\n")
        };
        etcdctl(&self.endpoint, &args, input).await.map(neutral).map_err(neutral)
    }

    /// Notes the present revision.
    async fn note_revision(&mut self, name: &'static str) {
        let fields = etcdctl(&self.endpoint, &["get", "none", "--write-out=fields"], "").await.unwrap();
        let revision = fields.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap();
        self.said.push((name, revision.to_owned()));
    }

    /// What a watch prints, up to a line that ends in `last`.
    async fn watch(&self, args: &[&str], input: &'static str, last: &'static str) -> String {
        let args: Vec<String> = args
            .iter()
            .map(|arg| self.said.iter().fold((*arg).to_owned(), |arg, (name, value)| arg.replace(name, value)))
            .collect();
        let mut command = Command::new(binary("TEST_ETCDCTL"));
        command.args(["--endpoints", &self.endpoint, "watch"]).args(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, mut lines) = mpsc::unbounded_channel();
        let reader = spawn_blocking(move || output.lines().try_for_each(|line| sender.send(line.unwrap())));
        let mut printed = String::new();
        let reading = async {
            while let Some(line) = lines.recv().await {
                printed.push_str(&line);
                printed.push('\n');
                if line.ends_with(last) {
                    return;
                }
            }
        };
        let read = timeout(PATIENCE, reading).await;
        child.kill().unwrap();
        child.wait().unwrap();
        // All lines may have been taken.
        let _ = reader.await.unwrap();
        assert!(read.is_ok(), "{printed:?} does not end in {last:?}");
        printed
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_of_reading_and_writing_reads_the_same() {
    let (etcd, shared) = (Etcd::start().await, Etcd::start().await);
    let proxy = Proxy::start(&shared, "/a/").await;
    let mut neighbour = shared.client().await;
    neighbour.put("/a", "before").await;
    neighbour.put("/b/k", "after").await;
    let mut sides =
        [etcd.url(), format!("http://{}", proxy.address)].map(|endpoint| Side { endpoint, said: Vec::new() });
    let failing = "mod(\"k1\") < \"1\"\ncreate(\"none\") = \"1\"\n\nput k1 no\n\nget k1\nput k9 else\ndel k3\n\n";
    let versions = "version(\"k1\") > \"1\"\n\nget k1 k9\n\n\n";
    let steps: &[(&str, &[&str], &str)] = &[
        ("", &["put", "k1", "v1"], ""),
        ("", &["put", "k2", "v2"], ""),
        ("", &["put", "k3"], "from standard input"),
        ("EARLY", &["put", "k1", "changed"], ""),
        ("", &["put", "k1", "again", "--prev-kv"], ""),
        ("", &["get", "k1", "k3"], ""),
        ("", &["get", "k1", "--rev=EARLY"], ""),
        ("", &["get", "", "--prefix", "--limit=2"], ""),
        ("", &["get", "", "--prefix", "--sort-by=MODIFY", "--order=DESCEND"], ""),
        ("", &["get", "", "--prefix", "--sort-by=VALUE", "--order=ASCEND", "--print-value-only"], ""),
        ("", &["get", "k", "--prefix", "--consistency=s"], ""),
        ("", &["get", "k2", "--from-key", "--print-value-only"], ""),
        ("", &["get", "", "--prefix", "--min-mod-rev=EARLY"], ""),
        ("", &["get", "", "--prefix", "--max-create-rev=EARLY", "--count-only", "--write-out=fields", "--limit=1"], ""),
        ("", &["get", "k2", "--hex"], ""),
        ("", &["txn"], failing),
        ("", &["txn"], versions),
        ("LEASE", &["lease", "grant", "500"], ""),
        ("", &["put", "leased", "v", "--lease=LEASE"], ""),
        ("", &["put", "leased", "changed", "--ignore-lease"], ""),
        ("", &["put", "leased", "--ignore-value", "--lease=0"], ""),
        ("", &["put", "leased", "v", "--lease=LEASE"], ""),
        ("", &["lease", "list"], ""),
        ("", &["lease", "keep-alive", "--once", "LEASE"], ""),
        ("LATE", &["lease", "revoke", "LEASE"], ""),
        ("", &["get", "leased"], ""),
        ("", &["lease", "revoke", "LEASE"], ""),
        ("", &["del", "k1", "k3", "--prev-kv"], ""),
        ("", &["del", "k", "--prefix"], ""),
        ("", &["del", "none"], ""),
        ("", &["compaction", "LATE"], ""),
        ("", &["get", "k1", "--rev=EARLY"], ""),
        ("", &["get", "k2", "--rev=LATE"], ""),
        ("", &["compaction", "LATE", "--physical"], ""),
        ("", &["get", "--prefix", "--rev=99999999", ""], ""),
    ];
    for (name, args, input) in steps {
        let mut printed = Vec::new();
        for side in &mut sides {
            let mut answer = side.run(args, input).await;
            match *name {
                "" => {}
                "LEASE" => {
                    let id = answer.as_ref().unwrap().split(' ').nth(1).unwrap().to_owned();
                    answer = answer.map(|text| text.replace(&id, "LEASE"));
                    side.said.push(("LEASE", id));
                }
                name => side.note_revision(name).await,
            }
            printed.push(answer);
        }
        assert_eq!(printed[1], printed[0], "etcdctl {args:?}");
    }
    let watches: [(&[&str], &str, &str); 3] = [
        (&["w", "--prefix", "--rev=LATE", "--prev-kv"], "", "second"),
        (&["w1", "w9", "--rev=LATE"], "", "second"),
        (&["-i"], "watch w --prefix --rev=LATE\n", "second"),
    ];
    for side in &sides {
        for args in [["put", "w1", "first"], ["put", "w2", "other"], ["put", "w1", "second"]] {
            side.run(&args, "").await.unwrap();
        }
    }
    for (args, input, last) in watches {
        let printed = [sides[0].watch(args, input, last).await, sides[1].watch(args, input, last).await];
        assert_eq!(printed[1], printed[0], "etcdctl watch {args:?}");
    }
    for side in &mut sides {
        side.note_revision("NOW").await;
        let now: i64 = side.said.last().unwrap().1.parse().unwrap();
        let told = side.watch(&["-i"], "watch nothing\nprogress\n", "").await;
        assert!(told.starts_with("progress notify: "), "{told}");
        let revision: i64 = told.trim().rsplit(' ').next().unwrap().parse().unwrap();
        assert!(revision >= now, "{told}");
    }
    assert_eq!(neighbour.get("/b/k").await.unwrap().value, "after");
}

/// A minute of etcd's own load, all of it within the tenant's keys and taken away afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn check_perf_keeps_to_the_tenant() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start(&etcd, "/a/").await;
    let endpoint = format!("http://{}", proxy.address);
    let mut direct = etcd.client().await;
    direct.put("/b/k", "v").await;
    let args = ["--command-timeout=150s", "check", "perf", "--load=s"];
    // How fast this machine is, nobody can say: that it was not fast enough is a failure to etcdctl, and none here.
    let output = run(&endpoint, &args, "").await;
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("Throughput") && !printed.contains("ERROR"), "{printed} {:?}", output.stderr);
    let keys = direct.keys().await;
    assert!(keys.iter().all(|key| key.starts_with(b"/b/") || key.starts_with(b"/etcd-proxy.meta/")), "{keys:?}");
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
