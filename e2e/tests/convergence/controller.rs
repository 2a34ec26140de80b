//! The controller behind the relay, started again whenever it has ended, as a kubelet does.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde_json::{Value, json};
use xtask::cluster::{
    Binary, Cluster, Kubectl, Listening, Node, Pod, ProxyController, SYSTEM, local_pod::PROXY_CONTROLLER, own_program,
};

use super::relay::Relay;

/// The calls within which the next kill comes.
const KILL_WITHIN: u32 = 250;

/// A dead leader's Lease is waited for at each start: a short one makes room for more kills.
const ELECTION: [&str; 3] =
    ["--leader-elect-lease-duration=2s", "--leader-elect-renew-deadline=1500ms", "--leader-elect-retry-period=300ms"];

/// The label of the namespaces in which the webhook is asked. In the others wishes that collide reach the controller.
pub(super) const GUARDED: &str = "guarded";

pub(super) struct Controller {
    pod: Arc<Pod>,
    watched: tokio::task::JoinHandle<Result<()>>,
    killing: Arc<Mutex<bool>>,
    starts: Arc<Mutex<u64>>,
}

impl Controller {
    /// Installs the manifests, and runs one controller whose API server is the relay.
    pub(super) fn start(cluster: &Cluster, node: &Node, relay: &Arc<Relay>) -> Result<Self> {
        let program = own_program("proxy-controller")?;
        ProxyController::start(node, &cluster.kube_apiserver, &program, 0)?;
        let kubectl = cluster.kubectl();
        let deployment = kubectl.json(&["get", "deployment", "proxy-controller", "--namespace", SYSTEM])?;
        let token = kubectl.ok(&["create", "token", "proxy-controller", "--namespace", SYSTEM])?;
        let kubeconfig = cluster.site.path("relayed.kubeconfig");
        relay.server.kubeconfig_with_token(&kubeconfig, "proxy-controller", token.trim())?;
        let further = ELECTION.iter().map(|flag| (*flag).to_owned());
        let binary = Binary {
            program: &PROXY_CONTROLLER,
            path: program,
            listening: Listening::Loopback,
            further: further.chain([format!("--kubeconfig={}", kubeconfig.display())]).collect(),
        };
        let pod = Arc::new(node.run(&deployment, &binary, 0)?);
        soften_webhook(kubectl, pod.address().port())?;
        let of_relay = pod.clone();
        relay.set_kill(move || {
            // It may have ended by itself meanwhile, having lost the lead.
            let _ = of_relay.process.kill9();
        });
        let (killing, starts) = (Arc::new(Mutex::new(false)), Arc::new(Mutex::new(1)));
        let watched = tokio::spawn(keep(pod.clone(), relay.clone(), killing.clone(), starts.clone()));
        Ok(Self { pod, watched, killing, starts })
    }

    /// Has it killed again and again from now on, or not any more.
    pub(super) fn set_killing(&self, on: bool, relay: &Relay) {
        *self.killing.lock() = on;
        if on {
            relay.arm(KILL_WITHIN);
        }
    }

    /// Kills it once, and waits until its successor answers.
    pub(super) fn kill(&self) -> Result<()> {
        let before = *self.starts.lock();
        self.pod.process.kill9()?;
        xtask::poll::until("the next start", Duration::from_secs(10), || {
            (*self.starts.lock() > before).then_some(()).context("not yet")
        })?;
        self.pod.wait_ready()
    }

    /// How often it was started.
    pub(super) fn starts(&self) -> u64 {
        *self.starts.lock()
    }

    /// Whoever keeps it gave up.
    pub(super) fn is_kept(&self) -> bool {
        !self.watched.is_finished()
    }
}

async fn keep(pod: Arc<Pod>, relay: Arc<Relay>, killing: Arc<Mutex<bool>>, starts: Arc<Mutex<u64>>) -> Result<()> {
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    loop {
        ticks.tick().await;
        let ended = pod.process.pid().is_none() || pod.process.ended()?.is_some();
        if ended {
            pod.process.start()?;
            *starts.lock() += 1;
            if *killing.lock() {
                relay.arm(KILL_WITHIN);
            }
        }
    }
}

/// The webhook is asked in half of the namespaces, and while it does not answer it stands in nobody's way.
fn soften_webhook(kubectl: &Kubectl, port: u16) -> Result<()> {
    let patch: Value = json!([
        {"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"},
        {"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 2},
        {"op": "replace", "path": "/webhooks/0/clientConfig/service/port", "value": port},
        {"op": "add", "path": "/webhooks/0/namespaceSelector", "value": {"matchLabels": {GUARDED: "true"}}},
    ]);
    let patch = patch.to_string();
    let args = ["patch", "validatingwebhookconfiguration", "proxy-controller", "--type=json", "--patch", &patch];
    kubectl.ok(&args).map(drop)
}
