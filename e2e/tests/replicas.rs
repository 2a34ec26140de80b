//! Two replicas of the proxy-controller as they are shipped: one acts, the other goes on when that one is gone, and never do
//! both. Who wrote is kube-apiserver's word: each replica has a token of its own, which the audit log names.

#![expect(clippy::print_stderr, reason = "figures that whoever reads a run wants to see")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use e2e::Shared;
use parking_lot::{Mutex, MutexGuard};
use rustix::process::Signal;
use serde_json::{Value, json};
use xtask::{
    cluster::{AuditedRequest, CONTROLLER_USER, Cluster, Kubectl, Pod, ProxyController, SYSTEM, http_get},
    poll,
};

static CLUSTER: Shared = Shared::new("replicas-e2e", |options| {
    let mut options = options.with_audit().with_controller(&["*"])?;
    options.controller.as_mut().context("there is no controller")?.replicas = 2;
    Ok(options)
});

/// A replica that ends is missed by all tests: one at a time.
static TURN: Mutex<()> = Mutex::new(());

/// The lease lasts for 15 s, and a candidate looks every 4.4 s at the latest.
const TAKEOVER: Duration = Duration::from_secs(25);

/// For what a controller that leads has to do.
const WORK: Duration = Duration::from_secs(40);

/// How many EtcdProxies are applied at a time.
const BATCH: usize = 8;

/// Both replicas run, and one of them leads.
struct Turn<'a> {
    cluster: &'a Cluster,
    controller: &'a ProxyController,
    leader: usize,
    follower: usize,
    namespace: String,
    _turn: MutexGuard<'a, ()>,
}

fn turn(namespace: &str) -> Result<Turn<'static>> {
    let turn = TURN.lock();
    let cluster = CLUSTER.get()?;
    let controller = cluster.controller()?;
    cluster.kubectl().ok(&["create", "namespace", namespace])?;
    let leader = poll::until("a leader", TAKEOVER, || leader(cluster))?;
    Ok(Turn { cluster, controller, leader, follower: 1 - leader, namespace: namespace.to_owned(), _turn: turn })
}

/// Which replica wrote the Lease last, if somebody holds it.
fn leader(cluster: &Cluster) -> Result<usize> {
    let lease = cluster.kubectl().json(&["get", "lease", "proxy-controller", "--namespace", SYSTEM])?;
    let holder = lease.pointer("/spec/holderIdentity").and_then(Value::as_str).unwrap_or_default();
    ensure!(!holder.is_empty(), "nobody leads");
    let last = requests(cluster)?.into_iter().rfind(wrote_lease).context("nobody has written the Lease")?;
    let controller = cluster.controller()?;
    let of = |number| Ok::<_, anyhow::Error>(controller.credential(number)? == last.credential);
    if of(0)? { Ok(0) } else { of(1)?.then_some(1).context("the Lease was written by no replica") }
}

/// The controller's requests as kube-apiserver received them.
fn requests(cluster: &Cluster) -> Result<Vec<AuditedRequest>> {
    let mut requests = cluster.kube_apiserver.audited(CONTROLLER_USER)?;
    requests.sort_by(|a, b| a.received.cmp(&b.received));
    Ok(requests)
}

fn wrote_lease(request: &AuditedRequest) -> bool {
    request.resource == "leases" && is_write(request) && request.code < 300
}

fn is_write(request: &AuditedRequest) -> bool {
    matches!(request.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
}

/// Whose turn it was, one after the other, and how much each wrote: an error if anybody wrote out of turn, with success or
/// without.
fn reigns(cluster: &Cluster) -> Result<Vec<(String, usize)>> {
    let mut reigns: Vec<(String, usize)> = Vec::new();
    for request in requests(cluster)? {
        if !is_write(&request) {
            continue;
        }
        if request.resource == "leases" {
            if request.code < 300 && reigns.last().is_none_or(|(leader, _)| *leader != request.credential) {
                reigns.push((request.credential, 0));
            }
            continue;
        }
        // Whoever finds no certificate for the webhook makes one.
        if request.resource == "secrets" && request.name == "proxy-controller-webhook" && request.verb == "create" {
            continue;
        }
        match reigns.last_mut() {
            Some((leader, writes)) if *leader == request.credential => *writes += 1,
            other => bail!("{request:?} was not sent by the leader, which is {other:?}"),
        }
    }
    Ok(reigns)
}

/// The last reign is that of the replica, and it has done something.
fn reigns_now(turn: &Turn<'_>, replica: usize) -> Result<()> {
    let reigns = reigns(turn.cluster)?;
    let (leader, writes) = reigns.last().context("nobody has led")?;
    ensure!(leader == turn.controller.credential(replica)?, "{reigns:?}");
    ensure!(*writes >= BATCH, "it has written {writes} times");
    Ok(())
}

impl Turn<'_> {
    fn pod(&self, number: usize) -> Result<&Pod> {
        self.controller.replica(number)
    }

    fn kubectl(&self) -> &Kubectl {
        self.cluster.kubectl()
    }

    fn names(&self, batch: &str) -> Vec<String> {
        (0..BATCH).map(|number| format!("{batch}-{number}")).collect()
    }

    /// Applies some EtcdProxies at once. Which replica answers the webhook is another matter.
    fn apply(&self, batch: &str) -> Result<()> {
        let object = |name: String| {
            json!({
                "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdProxy",
                "metadata": {"namespace": self.namespace, "name": name}, "spec": {},
            })
        };
        let objects: Vec<Value> = self.names(batch).into_iter().map(object).collect();
        // The webhook may have moved a moment ago.
        poll::until("the objects to be accepted", WORK, || self.kubectl().apply(&objects).map(drop))
    }

    /// Waits until all of them have what they are to have.
    fn provided(&self, batch: &str) -> Result<()> {
        poll::until(&format!("all of {batch}"), WORK, || {
            let all = self.kubectl().json(&["get", "etcdproxies", "--namespace", &self.namespace])?;
            let all = all.get("items").and_then(Value::as_array).context("no list")?;
            for name in self.names(batch) {
                let found = all.iter().find(|proxy| proxy.pointer("/metadata/name").is_some_and(|n| *n == name));
                let conditions = found.context("it is not there")?.pointer("/status/conditions").cloned();
                let conditions = conditions.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                let ready = conditions.iter().find(|condition| condition.get("type").is_some_and(|t| t == "Ready"));
                let reason = ready.and_then(|ready| ready.get("reason")).and_then(Value::as_str);
                // There is no node: more is not to be had.
                ensure!(reason == Some("DeploymentUnavailable"), "{name}: {conditions:?}");
            }
            Ok(())
        })
    }

    fn webhook_at(&self, number: usize) -> Result<()> {
        self.controller.point_webhook_at(number)
    }

    fn leads(&self, number: usize, limit: Duration) -> Result<Duration> {
        let since = Instant::now();
        poll::until("the other to lead", limit, || {
            let leader = leader(self.cluster)?;
            ensure!(leader == number, "replica {leader} leads");
            Ok(since.elapsed())
        })
    }

    /// Starts one again, as the kubelet does.
    fn start(&self, number: usize) -> Result<()> {
        self.pod(number)?.process.start()?;
        self.pod(number)?.wait_ready()
    }
}

#[test]
fn one_acts_and_after_its_violent_end_the_other_goes_on() -> Result<()> {
    let turn = turn("killed")?;
    let (leader, follower) = (turn.leader, turn.follower);
    turn.apply("before")?;
    turn.provided("before")?;
    reigns_now(&turn, leader)?;
    // In the middle of its work.
    turn.webhook_at(follower)?;
    turn.apply("during")?;
    turn.pod(leader)?.process.kill9()?;
    let took = turn.leads(follower, TAKEOVER)?;
    eprintln!("after kill -9 the other led within {took:.1?}");
    turn.provided("during")?;
    turn.apply("after")?;
    turn.provided("after")?;
    // It comes back, and waits.
    turn.start(leader)?;
    turn.apply("late")?;
    turn.provided("late")?;
    reigns_now(&turn, follower)
}

#[test]
fn a_leader_that_slept_through_its_lease_writes_nothing_more() -> Result<()> {
    let turn = turn("asleep")?;
    let (leader, follower) = (turn.leader, turn.follower);
    turn.webhook_at(follower)?;
    turn.apply("before")?;
    let process = &turn.pod(leader)?.process;
    process.signal(Signal::STOP)?;
    let took = turn.leads(follower, TAKEOVER)?;
    eprintln!("after SIGSTOP the other led within {took:.1?}");
    // What the sleeper has still to do, and what it hears of when it wakes up.
    turn.apply("meanwhile")?;
    process.signal(Signal::CONT)?;
    turn.apply("awake")?;
    for batch in ["before", "meanwhile", "awake"] {
        turn.provided(batch)?;
    }
    let status = poll::until("the sleeper to end", WORK, || process.ended()?.context("it still runs"))?;
    ensure!(!status.success(), "it was not told to end: {status}");
    reigns_now(&turn, follower)?;
    turn.start(leader)
}

#[test]
fn an_orderly_end_hands_over_at_once() -> Result<()> {
    let turn = turn("terminated")?;
    let (leader, follower) = (turn.leader, turn.follower);
    turn.webhook_at(follower)?;
    turn.apply("before")?;
    turn.pod(leader)?.process.signal(Signal::TERM)?;
    let took = turn.leads(follower, Duration::from_secs(5))?;
    eprintln!("after SIGTERM the other led within {took:.1?}");
    ensure!(took < Duration::from_secs(5), "it took {took:?}");
    turn.apply("after")?;
    turn.provided("before")?;
    turn.provided("after")?;
    let status = turn.pod(leader)?.process.terminate(WORK)?;
    ensure!(status.success(), "{status}");
    reigns_now(&turn, follower)?;
    turn.start(leader)
}

#[test]
fn every_replica_answers_the_webhook() -> Result<()> {
    let turn = turn("asked")?;
    let refused = json!({
        "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdProxy",
        "metadata": {"namespace": turn.namespace, "name": "asked"},
        "spec": {"upstreamRef": {"name": "nobodys"}},
    });
    for number in [turn.leader, turn.follower] {
        turn.webhook_at(number)?;
        let decisions = || -> Result<f64> {
            let metrics = http_get(&format!("http://{}/metrics", turn.pod(number)?.metrics()))?;
            let decisions = metrics.lines().filter(|line| line.contains("webhook_decisions_total"));
            let decisions = decisions.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            Ok(decisions.sum())
        };
        let before = decisions()?;
        poll::until("this replica to be asked", WORK, || {
            let args = ["create", "--dry-run=server", "--validate=false", "-f", "-"];
            let answer = turn.kubectl().run_with_input(&args, &refused.to_string())?;
            ensure!(answer.stderr.contains("spec.upstreamRef: Not found: \"nobodys\""), "{answer:?}");
            ensure!(decisions()? > before, "the other one answered");
            Ok(())
        })?;
    }
    Ok(())
}
