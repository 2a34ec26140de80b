//! `backup`, `restore` and `copy`: what they keep, what they refuse, and that kill -9 costs nothing but time.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use bytes::Bytes;
use etcd_proxy::{
    backup::{Header, Writer},
    snapshot::TenantLease,
};
use proto::{
    etcdserverpb::{
        LeaseGrantRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest, RequestOp, SnapshotRequest, TxnRequest,
        kv_client::KvClient, lease_client::LeaseClient, maintenance_client::MaintenanceClient, request_op::Request,
    },
    mvccpb::KeyValue,
};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

use crate::child::{Etcd, Program, Proxy, etcd_proxy, etcdctl, fails, ok};

const MIB: usize = 1 << 20;
/// Longest time for what moves much data without optimisation.
const LONG: Duration = Duration::from_secs(120);

fn tool(command: &str, prefix: &str, etcd: &Etcd, flags: &[&str]) -> Output {
    etcd_proxy(&arguments(command, prefix, etcd, flags))
}

fn arguments(command: &str, prefix: &str, etcd: &Etcd, flags: &[&str]) -> Vec<String> {
    let all = [&[command, "--prefix", prefix, "--endpoints", &etcd.url], flags].concat();
    all.into_iter().map(str::to_owned).collect()
}

fn file_flag(path: &Path) -> String {
    format!("--file={}", path.display())
}

fn channel(etcd: &Etcd) -> Channel {
    Endpoint::from_shared(etcd.url.clone()).unwrap().connect_lazy()
}

async fn put_all(channel: Channel, pairs: impl IntoIterator<Item = (String, Bytes)>) {
    let mut kv = KvClient::new(channel);
    let mut success = Vec::new();
    let mut bytes = 0;
    for (key, value) in pairs {
        bytes += value.len();
        let put = PutRequest { key: key.into(), value, ..Default::default() };
        success.push(RequestOp { request: Some(Request::RequestPut(put)) });
        if bytes > MIB / 2 || success.len() == 100 {
            bytes = 0;
            kv.txn(TxnRequest { success: std::mem::take(&mut success), ..Default::default() }).await.unwrap();
        }
    }
    kv.txn(TxnRequest { success, ..Default::default() }).await.unwrap();
}

/// What a tenant sees: keys, values and lease ids; and of its leases how long they live and which keys they have.
#[derive(Debug, PartialEq)]
struct Seen {
    keys: BTreeMap<Bytes, (Bytes, i64)>,
    leases: BTreeMap<i64, (i64, Vec<Bytes>)>,
}

async fn seen(prefix: &str, etcd: &Etcd) -> Seen {
    let proxy = Proxy::start(prefix, etcd, &[]).await;
    let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
    let mut kv = KvClient::new(proxy.channel()).max_decoding_message_size(usize::MAX);
    let kvs = kv.range(all).await.unwrap().into_inner().kvs;
    let keys = kvs.into_iter().map(|KeyValue { key, value, lease, .. }| (key, (value, lease))).collect();
    let mut client = LeaseClient::new(proxy.channel());
    let listed = client.lease_leases(proto::etcdserverpb::LeaseLeasesRequest {}).await.unwrap().into_inner();
    let mut leases = BTreeMap::new();
    for lease in listed.leases {
        let request = LeaseTimeToLiveRequest { id: lease.id, keys: true };
        let mut answer = client.lease_time_to_live(request).await.unwrap().into_inner();
        answer.keys.sort_unstable();
        leases.insert(lease.id, (answer.granted_ttl, answer.keys));
    }
    Seen { keys, leases }
}

/// A tenant with some of everything.
async fn filled(etcd: &Etcd, prefix: &str) {
    let proxy = Proxy::start(prefix, etcd, &[]).await;
    put_all(proxy.channel(), (0..500).map(|number| (format!("k{number:04}"), format!("value {number}").into()))).await;
    put_all(proxy.channel(), [("large".to_owned(), vec![b'l'; 1_400_000].into()), ("empty".to_owned(), Bytes::new())])
        .await;
    let mut leases = LeaseClient::new(proxy.channel());
    let mut kv = KvClient::new(proxy.channel());
    for (id, ttl, keys) in [(4711, 600, 3), (-7, 700, 150), (5, 800, 0)] {
        leases.lease_grant(LeaseGrantRequest { id, ttl }).await.unwrap();
        for number in 0..keys {
            let key = format!("leased/{id}/{number}").into();
            kv.put(PutRequest { key, value: "v".into(), lease: id, ..Default::default() }).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_backed_up_is_restored() {
    let (etcd, other) = (Etcd::start_binary("TEST_ETCD_3_5").await, Etcd::start().await);
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a.backup");
    filled(&etcd, "/a/").await;
    etcd.ctl(&["put", "/b/k", "the neighbour's"]);
    let said = ok(tool("backup", "/a/", &etcd, &[&file_flag(&file)]));
    assert!(said.contains("655 keys and 3 leases of /a/"), "{said}");
    assert!(fails(tool("backup", "/a/", &etcd, &[&file_flag(&file)])).contains("--overwrite"));
    ok(tool("backup", "/a/", &etcd, &[&file_flag(&file), "--overwrite"]));
    // A misspelt prefix is noticed, though not refused.
    let output = tool("backup", "/nope/", &etcd, &[&file_flag(&dir.path().join("nope.backup"))]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("/nope/ is not claimed") && said.contains("nothing is stored under /nope/"), "{said}");
    assert!(ok(output).contains("0 keys and 0 leases of /nope/"));
    ok(tool("claim", "/nope/", &etcd, &["--owner=somebody"]));
    let output = tool("backup", "/nope/", &etcd, &[&file_flag(&dir.path().join("claimed.backup"))]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("not claimed") && said.contains("nothing is stored"), "{said}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert!(!fs::read(&file).unwrap().windows(9).any(|window| window == b"neighbour"));

    let expected = seen("/a/", &etcd).await;
    assert_eq!((expected.keys.len(), expected.leases.len()), (655, 3));
    for (target, prefix) in [(&other, "/somewhere/else/"), (&etcd, "/c/")] {
        let said = ok(tool("restore", prefix, target, &[&file_flag(&file)]));
        assert!(said.contains("655 keys and 3 leases"), "{said}");
        assert_eq!(seen(prefix, target).await, expected);
        let left = target.ctl(&["get", "/etcd-proxy.meta/tenants/", "--prefix", "--keys-only"]);
        assert!(!left.contains("restore"), "the journal is gone: {left}");
    }
    assert_eq!(seen("/a/", &etcd).await, expected);

    for (how, keys) in [("detach", 655), ("skip", 502)] {
        let prefix = format!("/{how}/");
        ok(tool("restore", &prefix, &other, &[&file_flag(&file), &format!("--leases={how}")]));
        let found = seen(&prefix, &other).await;
        assert_eq!((found.keys.len(), found.leases.len()), (keys, 0), "{how}");
        assert!(found.keys.values().all(|(_, lease)| *lease == 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_overwritten_unless_told() {
    let etcd = Etcd::start().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a.backup");
    filled(&etcd, "/a/").await;
    ok(tool("backup", "/a/", &etcd, &[&file_flag(&file)]));
    let expected = seen("/a/", &etcd).await;

    // Keys, or a lease alone.
    etcd.ctl(&["put", "/b/old", "v"]);
    let lessee = Proxy::start("/c/", &etcd, &[]).await;
    lessee.ctl(&["lease", "grant", "600"]);
    for (prefix, what) in [("/b/", "1 key and 0 leases"), ("/c/", "0 keys and 1 lease:")] {
        let said = fails(tool("restore", prefix, &etcd, &[&file_flag(&file)]));
        assert!(said.contains(what) && said.contains("--overwrite"), "{said}");
        let said = fails(tool("copy", "/a/", &etcd, &["--to-prefix", prefix]));
        assert!(said.contains("cannot copy") && said.contains(what), "{said}");
        ok(tool("restore", prefix, &etcd, &[&file_flag(&file), "--overwrite"]));
        assert_eq!(seen(prefix, &etcd).await, expected, "the old keys and leases are gone");
    }

    ok(tool("claim", "/taken/", &etcd, &["--owner=somebody"]));
    let said = fails(tool("restore", "/taken/inner/", &etcd, &[&file_flag(&file)]));
    assert!(said.contains("somebody"), "{said}");
    let said = fails(tool("copy", "/a/", &etcd, &["--to-prefix=/a/b/"]));
    assert!(said.contains("overlap"), "{said}");

    // Not the file of a copy that broke off.
    let (work, kept) = (format!("--work-file={}", file.display()), fs::read(&file).unwrap());
    let said = fails(tool("copy", "/a/", &etcd, &["--to-prefix=/d/", &work, "--overwrite"]));
    assert!(said.contains("a.backup exists"), "{said}");
    assert!(fs::read(&file).unwrap() == kept);
    assert_eq!(keys_under(&etcd, "/d/"), 0);
}

/// The message says what and where, and nothing was written.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_refused() {
    let etcd = Etcd::start().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a.backup");
    filled(&etcd, "/a/").await;
    ok(tool("backup", "/a/", &etcd, &[&file_flag(&file)]));
    let bytes = fs::read(&file).unwrap();
    let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        fs::write(&file, bytes).unwrap();
        fails(tool("restore", "/b/", &etcd, &[&file_flag(&file)]))
    };
    let half = bytes.len() / 2;
    let said = damaged(&|bytes| bytes.truncate(half));
    assert!(said.contains(&format!("truncated: it ends at byte {half}")), "{said}");
    let said = damaged(&|bytes| bytes[half] ^= 1);
    assert!(said.contains("damaged: the block at byte "), "{said}");
    let said = damaged(&|bytes| *bytes = b"something else".to_vec());
    assert!(said.contains("no backup"), "{said}");
    let left = etcd.ctl(&["get", "", "--from-key", "--keys-only"]);
    assert!(!left.contains("/b/") && !left.contains("2f622f"), "{left}");
}

/// Starts the tool and kills it as soon as `condition` holds. Whether that was before its end.
async fn killed(arguments: &[String], dir: &Path, mut condition: impl FnMut() -> bool) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_etcd-proxy"));
    command.args(arguments).env("TMPDIR", dir);
    let mut program = Program::spawn(command, dir.join("log"));
    let started = Instant::now();
    while !condition() && program.child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < LONG, "nothing to be killed in: {}", program.log());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let running = program.child.try_wait().unwrap().is_none();
    // Of one that has ended it is an error.
    let _ended = program.child.kill();
    program.child.wait().unwrap();
    running
}

/// 36 MB under /a/, which take a while.
async fn large(etcd: &Etcd) {
    let proxy = Proxy::start("/a/", etcd, &[]).await;
    let value = |number: usize| {
        // Not to be compressed away.
        let mut state = number as u64 + 1;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..30_000).map(|_| byte()).collect::<Vec<u8>>().into()
    };
    put_all(proxy.channel(), (0..1200).map(|number| (format!("k{number:05}"), value(number)))).await;
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

fn log_of(dir: &Path) -> String {
    fs::read_to_string(dir.join("log")).unwrap_or_default()
}

fn run_to_the_end(arguments: &[String], dir: &Path) -> Output {
    let mut command = Command::new("timeout");
    command.arg(LONG.as_secs().to_string()).arg(env!("CARGO_BIN_EXE_etcd-proxy")).args(arguments).env("TMPDIR", dir);
    command.output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_goes_on_after_kill_9() {
    let etcd = Etcd::start().await;
    let dir = TempDir::new().unwrap();
    let (file, partial) = (dir.path().join("a.backup"), dir.path().join("a.backup.partial"));
    large(&etcd).await;
    let expected = seen("/a/", &etcd).await;
    let arguments = arguments("backup", "/a/", &etcd, &[&file_flag(&file)]);
    let mut reached = 0;
    for _ in 0..3 {
        let more = reached + 5 * MIB as u64;
        assert!(killed(&arguments, dir.path(), || size(&partial) > more).await, "{}", log_of(dir.path()));
        assert!(size(&partial) > more, "nothing that was written is given up");
        reached = size(&partial);
        // Not in the backup: it stays with its revision.
        etcd.ctl(&["put", "/a/later", "v"]);
    }
    let output = run_to_the_end(&arguments, dir.path());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("going on with a backup of revision"), "{said}");
    ok(output);
    assert!(!partial.exists());
    ok(tool("restore", "/b/", &etcd, &[&file_flag(&file)]));
    assert!(seen("/b/", &etcd).await == expected);
}

/// Its revision is gone: the backup begins anew, and nothing of the old one is in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_whose_revision_was_compacted_begins_anew() {
    let etcd = Etcd::start().await;
    let dir = TempDir::new().unwrap();
    let (file, partial) = (dir.path().join("a.backup"), dir.path().join("a.backup.partial"));
    large(&etcd).await;
    let arguments = arguments("backup", "/a/", &etcd, &[&file_flag(&file)]);
    assert!(killed(&arguments, dir.path(), || size(&partial) > 5 * MIB as u64).await);
    etcd.ctl(&["del", "/a/k00001"]);
    etcd.ctl(&["put", "/a/k00000", "new"]);
    let revision = etcd.ctl(&["put", "/a/later", "v", "--write-out=json"]);
    let revision = serde_json::from_str::<serde_json::Value>(&revision).unwrap()["header"]["revision"].to_string();
    etcd.ctl(&["compaction", &revision]);
    let expected = seen("/a/", &etcd).await;

    let other = tool("backup", "/b/", &etcd, &[&file_flag(&file)]);
    assert!(fails(other).contains("is the beginning of a backup of /a/"));
    let output = run_to_the_end(&arguments, dir.path());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("starting over"), "{said}");
    let said = ok(output);
    assert!(said.contains(&format!("as of revision {revision}")), "{said}");
    ok(tool("restore", "/b/", &etcd, &[&file_flag(&file)]));
    assert!(seen("/b/", &etcd).await == expected);
}

fn keys_under(etcd: &Etcd, prefix: &str) -> usize {
    let counted = ok(etcdctl(&etcd.url, &[], &["get", prefix, "--prefix", "--count-only", "--write-out=fields"]));
    counted.lines().find_map(|line| line.strip_prefix("\"Count\" : ")).map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_goes_on_after_kill_9() {
    let etcd = Etcd::start().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a.backup");
    large(&etcd).await;
    filled(&etcd, "/a/").await;
    ok(run_to_the_end(&arguments("backup", "/a/", &etcd, &[&file_flag(&file)]), dir.path()));
    let expected = seen("/a/", &etcd).await;
    let restore = arguments("restore", "/b/", &etcd, &[&file_flag(&file)]);
    let mut reached = 0;
    for _ in 0..3 {
        let more = reached + 200;
        assert!(killed(&restore, dir.path(), || keys_under(&etcd, "/b/") > more).await, "{}", log_of(dir.path()));
        reached = keys_under(&etcd, "/b/");
    }
    // What is there is not touched by another one.
    let another = dir.path().join("another.backup");
    ok(run_to_the_end(&arguments("backup", "/a/", &etcd, &[&file_flag(&another)]), dir.path()));
    let said = fails(tool("restore", "/b/", &etcd, &[&file_flag(&another)]));
    assert!(said.contains("was broken off"), "{said}");
    let output = run_to_the_end(&restore, dir.path());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("going on with a restore"), "{said}");
    ok(output);
    let written = RangeRequest { key: "/b/k".into(), range_end: "/b/l".into(), ..Default::default() };
    let mut kv = KvClient::new(channel(&etcd)).max_decoding_message_size(usize::MAX);
    let written = kv.range(written).await.unwrap().into_inner().kvs;
    assert!(written.iter().all(|kv| kv.version == 1), "no key is written twice");
    assert!(seen("/b/", &etcd).await == expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_goes_on_after_kill_9() {
    let (etcd, other) = (Etcd::start().await, Etcd::start().await);
    let dir = TempDir::new().unwrap();
    large(&etcd).await;
    filled(&etcd, "/a/").await;
    let expected = seen("/a/", &etcd).await;
    let work: PathBuf = dir.path().join("work");
    let partial = dir.path().join("work.partial");
    let flags = [format!("--to-endpoints={}", other.url), format!("--work-file={}", work.display())];
    let copy = arguments("copy", "/a/", &etcd, &["--to-prefix=/b/", &flags[0], &flags[1]]);
    assert!(killed(&copy, dir.path(), || size(&partial) > 5 * MIB as u64).await, "{}", log_of(dir.path()));
    assert!(killed(&copy, dir.path(), || keys_under(&other, "/b/") > 500).await, "{}", log_of(dir.path()));
    // Not in the copy: it stays with its revision.
    etcd.ctl(&["put", "/a/later", "v"]);
    let output = run_to_the_end(&copy, dir.path());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("going on with the copy"), "{said}");
    let said = ok(output);
    assert!(said.contains("1855 keys and 3 leases of /a/"), "{said}");
    assert!(seen("/b/", &other).await == expected);
    assert!(!work.exists() && !partial.exists());
    assert_eq!(keys_under(&etcd, "/b/"), 0);
}

/// Leases that are shorter than the restore are kept alive until their keys are there.
#[tokio::test(flavor = "multi_thread")]
async fn short_leases_outlive_the_restore() {
    let etcd = Etcd::start().await;
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.backup");
    let header = Header {
        format: 1,
        id: "0123456789abcdef0123456789abcdef".into(),
        created_at: "2026-01-31T12:00:00Z".parse().unwrap(),
        prefix: hex::encode("/a/"),
        cluster_id: "1".into(),
        revision: 7,
        keys: 4000,
    };
    // Granting them takes longer than the shortest time to live that etcd has.
    let mut backup = Writer::begin(fs::File::create(&path).unwrap(), &header).unwrap();
    for lease in 1..=4000 {
        let key = format!("k{lease:05}").into();
        backup.keys(&[KeyValue { key, value: "v".into(), lease, ..Default::default() }]).unwrap();
    }
    let leases: Vec<TenantLease> = (1..=4000).map(|id| TenantLease { id, ttl: 2, remaining: 2 }).collect();
    backup.finish(&leases).unwrap();
    let restore = arguments("restore", "/b/", &etcd, &[&file_flag(&path)]);
    // On a machine that stands still for two seconds it ends, and says that it may be tried again.
    let mut output = run_to_the_end(&restore, dir.path());
    for _ in 0..5 {
        if !output.status.success() {
            output = run_to_the_end(&restore, dir.path());
        }
    }
    assert!(ok(output).contains("4000 keys and 4000 leases"));
    // Nobody renews them any more.
    let done = Instant::now();
    while keys_under(&etcd, "/b/") > 0 {
        assert!(done.elapsed() < LONG, "the keys are attached to the leases");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A snapshot of 150 MiB passes through a proxy that grows by far less.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_takes_little_memory() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let mut kv = KvClient::new(channel(&etcd));
    for number in 0..150 {
        let (key, value) = (format!("/a/k{number:03}").into(), vec![number; MIB].into());
        kv.put(PutRequest { key, value, ..Default::default() }).await.unwrap();
    }
    let mut client = MaintenanceClient::new(proxy.channel());
    let before = proxy.program.resident();
    let mut most = 0;
    let mut messages = client.snapshot(SnapshotRequest {}).await.unwrap().into_inner();
    let mut bytes = 0;
    while let Some(message) = messages.message().await.unwrap() {
        bytes += message.blob.len();
        most = most.max(proxy.program.resident());
    }
    assert!(bytes > 150 * MIB, "{bytes}");
    let peak = peak(&proxy.program);
    assert!(peak.max(most) < before + 48 * MIB as u64, "grew from {before} to {peak}");
}

/// Without room for its temporary file a snapshot is refused, and the operator told; a small one needs none.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_without_room_is_refused() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::spawn_with_environment("/a/", &etcd.url, &[("TMPDIR", "/nowhere")]);
    proxy.ready().await;
    let mut client = MaintenanceClient::new(proxy.channel());
    put_all(proxy.channel(), [("small".to_owned(), Bytes::from("v"))]).await;
    let mut messages = client.snapshot(SnapshotRequest {}).await.unwrap().into_inner();
    while messages.message().await.unwrap().is_some() {}
    put_all(proxy.channel(), (0..20).map(|number| (format!("k{number}"), vec![0; MIB / 2].into()))).await;
    let refused = client.snapshot(SnapshotRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused:?}");
    assert!(!refused.message().contains("/nowhere"), "{refused:?}");
    let log = proxy.program.logged("/nowhere").await;
    assert!(log.contains("TMPDIR"), "{log}");
}

/// The most memory that was in use at any time.
fn peak(program: &Program) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", program.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}
