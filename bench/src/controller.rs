//! proxy-controller with many EtcdProxy objects, on a kube-apiserver and an etcd of its own, under its shipped rights.
//! Nothing like it is there to compare with, so these figures stand alone.

mod fleet;

use std::time::{Duration, Instant};

use anyhow::Result;
use xtask::{
    cluster::{CONTROLLER_USER, KubeApiserver},
    progress::Progress,
};

use self::fleet::Fleet;
use crate::{
    Bench,
    report::{Part, Row, Table, Unit},
    stats::{Series, count, megabytes, millis, quantile},
    usage::{self, Meter},
};

/// How long the controller is left alone before its requests are counted.
const SETTLE: Duration = Duration::from_secs(5);

/// Measures.
///
/// # Errors
/// When a program does not come up, or an object does not get what it is to have.
pub(crate) fn run(bench: &Bench) -> Result<Part> {
    let plan = &bench.plan;
    let step = Progress::start("etcd, kube-apiserver and proxy-controller");
    let fleet = Fleet::start(bench)?;
    let pid = fleet.pid()?;
    let empty = usage::resident(pid)?;
    step.done();

    let step = Progress::start(format!("{} EtcdProxy objects", plan.proxies));
    let meter = Meter::start(pid)?;
    let start = Instant::now();
    bench.runtime.block_on(fleet.create(plan.proxies))?;
    let created = start.elapsed();
    step.note("they are created; waiting for what they own");
    let objects = bench.runtime.block_on(fleet.wait_complete(plan.proxies))?;
    let complete = start.elapsed();
    let usage = meter.stop()?;
    step.done();
    let requests = audited(&fleet.kube_apiserver)?;

    let step = Progress::start(format!("{} changes", plan.changes));
    let mut times = bench.runtime.block_on(fleet.change(plan.changes, plan.proxies))?;
    step.done();

    let step = Progress::start(format!("requests in {:?} without changes", plan.steady));
    bench.rest(SETTLE.min(plan.idle));
    let before = audited(&fleet.kube_apiserver)?;
    let meter = Meter::start(pid)?;
    bench.rest(plan.steady);
    let steady = meter.stop()?;
    let after = audited(&fleet.kube_apiserver)?;
    let settled = usage::resident(pid)?;
    step.done();

    let per_minute = |number: usize| count(number) / plan.steady.as_secs_f64() * 60.0;
    let each = count(plan.proxies.max(1));
    let row = |what: &str, unit, value: f64| Row::new(what, unit, vec![Some([value].into_iter().collect::<Series>())]);
    let rows = vec![
        row("until all are created", Unit::Seconds, created.as_secs_f64()),
        row("until all that they own exists", Unit::Seconds, complete.as_secs_f64()),
        row("processor time for each", Unit::Millis, millis(usage.cpu) / each),
        row("requests to kube-apiserver for each", Unit::Requests, count(requests.all) / each),
        row("from a change to the changed Deployment, median", Unit::Millis, millis(quantile(&mut times, 0.5))),
        row(
            "from a change to the changed Deployment, 99th percentile",
            Unit::Millis,
            millis(quantile(&mut times, 0.99)),
        ),
        row("requests while nothing changes", Unit::PerMinute, per_minute(after.all - before.all)),
        row("of those, the Lease of the leader", Unit::PerMinute, per_minute(after.leases - before.leases)),
        row(
            "processor time while nothing changes",
            Unit::MillisPerMinute,
            millis(steady.cpu) / plan.steady.as_secs_f64() * 60.0,
        ),
        row("memory after start", Unit::Megabytes, megabytes(empty)),
        row("memory with all of them, the most seen", Unit::Megabytes, megabytes(usage.peak)),
        row("memory with all of them, settled", Unit::Megabytes, megabytes(settled)),
    ];
    let table = Table {
        file: "proxy-controller".into(),
        title: format!("{} EtcdProxy objects", plan.proxies),
        notes: vec![
            format!(
                "{} are created at once and admitted by the controller's webhook; complete is an EtcdProxy of which everything \
                 but the pods exists ({objects} objects in all). Then {} of them are changed, one after the other. Each figure is \
                 from one run.",
                plan.proxies, plan.changes
            ),
            "While nothing changes, few requests but those for the Lease should be made.".into(),
        ],
        subjects: vec!["proxy-controller"],
        rows,
    };
    Ok(Part {
        file: "proxy-controller",
        title: "proxy-controller",
        notes: vec![
            "One replica on a kube-apiserver and an etcd of its own, with its shipped manifests, rights and arguments, and \
             without a node: no pod is ever started. Requests are counted by kube-apiserver's audit log."
                .into(),
        ],
        commands: vec!["proxy-controller, with the arguments of manifests/controller/deployment.yaml".into()],
        tables: vec![table],
    })
}

/// Requests of the controller so far.
#[derive(Clone, Copy)]
struct Requests {
    all: usize,
    leases: usize,
}

fn audited(apiserver: &KubeApiserver) -> Result<Requests> {
    let requests = apiserver.audited(CONTROLLER_USER)?;
    let leases = requests.iter().filter(|request| request.resource == "leases").count();
    Ok(Requests { all: requests.len(), leases })
}
