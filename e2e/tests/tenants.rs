//! Two tenants on one etcd, through `etcdctl`: neither ever sees or changes a key of the other, or of the cluster.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use xtask::{
    cluster::{Etcd, EtcdProxy, Etcdctl, own_program},
    site::{self, Site},
    tools::{Tool, Tools},
};

struct Tenants {
    site: Site,
    etcd: Etcd,
    a: EtcdProxy,
    b: EtcdProxy,
}

fn tenants(name: &str) -> Result<Tenants> {
    site::end_abandoned(&site::of_tests())?;
    let (tools, program) = (Tools::of_test(), own_program("etcd-proxy")?);
    let site = Site::create(&site::of_tests().join(name))?;
    let etcd = Etcd::start(&site, &tools, Tool::Etcd)?;
    let a = EtcdProxy::start(&site, &tools, &program, &etcd, "tenant-a")?;
    let b = EtcdProxy::start(&site, &tools, &program, &etcd, "tenant-b")?;
    // What must stay as it is: another tenant's keys, the cluster's, and keys just beside the tenant's prefix.
    for key in ["one", "two", "\u{7f}last"] {
        b.etcdctl().ok(&["put", key, "b's"])?;
    }
    for key in ["/registry/pods/x", "/tenant-", "/tenant-a", "/tenant-a0", "/tenant-a.", "0", "\u{1}", "~"] {
        etcd.etcdctl().ok(&["put", key, "not a's"])?;
    }
    Ok(Tenants { site, etcd, a, b })
}

impl Tenants {
    /// All keys that are not tenant A's, with their values, versions and revisions, as etcdctl's JSON has them; and
    /// none of the proxies' own, which change by right.
    fn others(&self) -> Result<Vec<Value>> {
        let all: Value = serde_json::from_str(&self.etcd.etcdctl().ok(&["get", "", "--from-key", "-w", "json"])?)?;
        let keys = all.get("kvs").and_then(Value::as_array).context("no keys at all")?;
        let decoded = |kv: &Value| {
            use base64::Engine;
            let key = kv.get("key").and_then(Value::as_str).unwrap_or_default();
            base64::engine::general_purpose::STANDARD.decode(key).unwrap_or_default()
        };
        let foreign =
            |kv: &&Value| !decoded(kv).starts_with(b"/tenant-a/") && !decoded(kv).starts_with(b"/etcd-proxy.meta/");
        Ok(keys.iter().filter(foreign).cloned().collect())
    }
}

/// The keys of an answer in etcdctl's simple form: every other line.
fn keys(etcdctl: &Etcdctl, args: &[&str]) -> Result<Vec<String>> {
    let args = [&["get", "--keys-only"], args].concat();
    Ok(etcdctl.ok(&args)?.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

#[test]
fn no_key_of_another_is_seen_or_changed() -> Result<()> {
    let tenants = tenants("tenants")?;
    let before = tenants.others()?;
    ensure!(before.len() == 11, "{before:?}");
    let a = tenants.a.etcdctl();

    // Reads: everything, from a key on, in both orders, beyond the last key.
    for args in [
        &["", "--prefix"][..],
        &["", "--from-key"],
        &["a", "--from-key"],
        &["\u{1}", "\u{7f}"],
        &["/", "--prefix"],
        &["/registry/", "--prefix"],
    ] {
        ensure!(keys(a, args)?.is_empty(), "an empty tenant sees {:?} by {args:?}", keys(a, args)?);
    }
    for key in ["one", "two", "zeta", "/registry/pods/x"] {
        a.ok(&["put", key, "a's"])?;
    }
    let mine = ["/registry/pods/x", "one", "two", "zeta"];
    ensure!(keys(a, &["", "--prefix"])? == mine);
    ensure!(keys(a, &["", "--from-key"])? == mine);
    ensure!(keys(a, &["p", "--from-key"])? == ["two", "zeta"]);
    ensure!(keys(a, &["", "--from-key", "--order=DESCEND", "--limit=1"])? == ["zeta"]);
    ensure!(a.ok(&["get", "one", "--print-value-only"])? == "a's\n");
    ensure!(tenants.b.etcdctl().ok(&["get", "one", "--print-value-only"])? == "b's\n");

    // Transactions compare and change nothing but the tenant's own.
    let txn = "mod(\"one\") > \"0\"\n\nput two changed\nget \"\" --from-key\n\nput two wrong\n\n";
    let answer = a.run_with_input(&["txn"], txn)?.success()?;
    ensure!(answer.starts_with("SUCCESS") && !answer.contains("b's") && !answer.contains("not a's"), "{answer}");
    ensure!(a.ok(&["get", "two", "--print-value-only"])? == "changed\n");

    // Leases: the other tenant's are not to be seen, kept or revoked.
    let granted = tenants.b.etcdctl().ok(&["lease", "grant", "600"])?;
    let lease = granted.split_whitespace().nth(1).context("lease grant told no id")?.to_owned();
    tenants.b.etcdctl().ok(&["put", "leased", "x", &format!("--lease={lease}")])?;
    ensure!(!a.ok(&["lease", "list"])?.contains(&lease), "A lists B's lease");
    ensure!(!a.run(&["lease", "revoke", &lease])?.status.success(), "A revoked B's lease");
    ensure!(tenants.b.etcdctl().ok(&["get", "leased", "--print-value-only"])? == "x\n");
    let before = tenants.others()?;

    // Compaction is the tenant's own matter: others still read their past.
    let revision = |kv: &Value| kv.get("mod_revision").and_then(Value::as_u64);
    let oldest = before.iter().filter_map(revision).min().context("no revision")?;
    let status: Value = serde_json::from_str(&a.ok(&["get", "one", "-w", "json"])?)?;
    let now = status.pointer("/header/revision").and_then(Value::as_u64).context("no revision")?;
    a.ok(&["compact", &now.to_string()])?;
    ensure!(!a.run(&["get", "one", &format!("--rev={}", now - 1)])?.status.success(), "A reads what it compacted");
    tenants
        .b
        .etcdctl()
        .ok(&["get", "one", &format!("--rev={}", oldest + 3)])
        .context("A's compaction took B's past")?;

    // And everything is deleted, several times over.
    ensure!(a.ok(&["del", "", "--prefix"])? == "4\n");
    ensure!(a.ok(&["del", "", "--from-key"])? == "0\n");
    ensure!(a.ok(&["del", "/registry/", "--prefix"])? == "0\n");
    ensure!(tenants.others()? == before, "A changed what is not A's: {:?} and now {:?}", before, tenants.others()?);
    tenants.site.clone().remove()
}

/// etcdctl knows no nested transactions, so this one is a client's.
#[tokio::test(flavor = "multi_thread")]
async fn nested_transactions_stay_inside() -> Result<()> {
    use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse};
    let tenants = tenants("nested-transactions")?;
    let before = tenants.others()?;
    let mut client = e2e::etcd_client(&tenants.a.endpoint("client")?).await?;
    client.put("one", "a's", None).await?;
    let everything = || TxnOp::get("\0", Some(GetOptions::new().with_from_key()));
    let innermost = Txn::new()
        // B's key of this name has another value.
        .when([Compare::value("one", CompareOp::Equal, "a's")])
        .and_then([everything(), TxnOp::put("two", "nested", Some(PutOptions::new().with_prev_key()))])
        .or_else([TxnOp::put("wrong", "x", None)]);
    let nested =
        Txn::new().when([Compare::version("/registry/pods/x", CompareOp::Equal, 0)]).and_then([TxnOp::txn(innermost)]);
    let outer = Txn::new().and_then([TxnOp::put("three", "outer", None), TxnOp::txn(nested)]);
    let answer = client.txn(outer).await?;
    ensure!(answer.succeeded(), "{answer:?}");
    let inner = |responses: Vec<TxnOpResponse>| {
        responses.into_iter().find_map(|response| match response {
            TxnOpResponse::Txn(txn) => Some(txn),
            _ => None,
        })
    };
    let nested = inner(answer.op_responses()).context("no nested answer")?;
    ensure!(nested.succeeded(), "the tenant's comparison saw a key of the cluster's: {nested:?}");
    let innermost = inner(nested.op_responses()).context("no innermost answer")?;
    ensure!(innermost.succeeded(), "{innermost:?}");
    let seen = innermost.op_responses().into_iter().find_map(|response| match response {
        TxnOpResponse::Get(get) => Some(get.kvs().iter().map(|kv| kv.key().to_vec()).collect::<Vec<_>>()),
        _ => None,
    });
    ensure!(seen == Some(vec![b"one".to_vec(), b"three".to_vec()]), "{seen:?}");
    ensure!(tenants.others()? == before, "A changed what is not A's");
    tenants.site.clone().remove()
}

#[test]
fn a_watch_of_everything_shows_the_tenants_own() -> Result<()> {
    use std::io::{BufRead, BufReader};
    let tenants = tenants("watching-tenants")?;
    let a = tenants.a.etcdctl();
    let mut command = a.command(&["watch", "", "--prefix"]);
    let mut child = command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("not piped")?).lines();
    // Writes go on until the watch has begun and shows one.
    let (sender, first) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut seen = Vec::new();
        while let Some(Ok(line)) = lines.next() {
            let last = line == "end";
            seen.push(line);
            // Whoever waits for the first line may be served already.
            let _ = sender.send(());
            if last {
                break;
            }
        }
        seen
    });
    let begun = xtask::poll::until("the watch's first event", std::time::Duration::from_secs(20), || {
        a.ok(&["put", "probe", "x"])?;
        Ok(first.recv_timeout(std::time::Duration::from_millis(200))?)
    });
    tenants.b.etcdctl().ok(&["put", "foreign", "b's"])?;
    tenants.etcd.etcdctl().ok(&["put", "/registry/foreign", "not a's"])?;
    a.ok(&["put", "last", "end"])?;
    let seen = reader.join().map_err(|_| anyhow::anyhow!("reading the watch failed"));
    child.kill()?;
    child.wait()?;
    begun?;
    let seen = seen?;
    ensure!(seen.iter().any(|line| line == "probe") && seen.last().is_some_and(|line| line == "end"), "{seen:?}");
    ensure!(!seen.iter().any(|line| line.contains("foreign")), "A watches what is not A's: {seen:?}");
    tenants.site.clone().remove()
}
