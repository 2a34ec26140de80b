//! An etcd of three members, and an etcd-proxy before it.

use std::{
    net::TcpListener,
    process::Command,
    time::{Duration, Instant},
};

use proto::etcdserverpb::{StatusRequest, maintenance_client::MaintenanceClient};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

use crate::child::{Program, Proxy, binary};

/// The longest that a healthy cluster may need for anything, on a machine that does much else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The tenant's.
const PREFIX: &str = "/members/";

/// The members and the proxy.
pub(crate) struct Cluster {
    members: Vec<Member>,
    pub(crate) url: String,
    endpoints: String,
    proxy: Option<Proxy>,
}

/// One member.
struct Member {
    dir: TempDir,
    client: String,
    flags: Vec<String>,
    program: Option<Program>,
}

/// An address that is the member's own: nobody's outgoing connection takes its port while the member is down.
fn address(number: usize) -> String {
    let listener = TcpListener::bind(format!("127.0.0.{}:0", number + 2)).unwrap();
    listener.local_addr().unwrap().to_string()
}

// === impl Cluster ===

impl Cluster {
    /// Starts three members, and a proxy before them.
    pub(crate) async fn start() -> Self {
        let peers: Vec<String> = (0..3).map(|number| format!("http://{}", address(number))).collect();
        let all: Vec<String> = peers.iter().enumerate().map(|(number, peer)| format!("m{number}={peer}")).collect();
        let mut members: Vec<Member> = Vec::new();
        for (number, peer) in peers.iter().enumerate() {
            let client = format!("http://{}", address(number));
            let flags = [
                format!("--name=m{number}"),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster={}", all.join(",")),
                "--unsafe-no-fsync".to_owned(),
            ];
            members.push(Member { dir: TempDir::new().unwrap(), client, flags: flags.to_vec(), program: None });
        }
        members.iter_mut().for_each(Member::run);
        let endpoints: Vec<&str> = members.iter().map(|member| member.client.as_str()).collect();
        let (endpoints, url) = (endpoints.join(","), format!("http://{}", address(7)));
        let mut cluster = Self { members, url, endpoints, proxy: None };
        cluster.start_proxy();
        cluster
    }

    /// Kills the proxy, if it is there, and starts it.
    pub(crate) fn start_proxy(&mut self) {
        self.proxy = None;
        self.proxy = Some(Proxy::spawn_at(self.url.clone(), PREFIX, &self.endpoints, &["--dial-timeout=1s"]));
    }

    pub(crate) fn kill(&mut self, member: usize) {
        self.members[member].program = None;
    }

    pub(crate) fn run(&mut self, member: usize) {
        self.members[member].run();
    }

    pub(crate) fn signal(&self, member: usize, name: &str) {
        self.members[member].program.as_ref().unwrap().signal(name);
    }

    /// Processor time that the proxy has used.
    pub(crate) fn proxy_cpu(&self) -> Duration {
        self.proxy.as_ref().unwrap().program.cpu()
    }

    /// The member that leads, by its own account.
    pub(crate) async fn leader(&self) -> usize {
        let start = Instant::now();
        loop {
            for (number, member) in self.members.iter().enumerate() {
                let Ok(status) = MaintenanceClient::new(channel(&member.client)).status(StatusRequest {}).await else {
                    continue;
                };
                let status = status.into_inner();
                if status.header.is_some_and(|header| header.member_id == status.leader) {
                    return number;
                }
            }
            assert!(start.elapsed() < PATIENCE, "no member leads");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A channel that connects when it is used, and again when it has to.
pub(crate) fn channel(url: &str) -> Channel {
    Endpoint::from_shared(url.to_owned()).unwrap().connect_lazy()
}

// === impl Member ===

impl Member {
    fn run(&mut self) {
        let mut command = Command::new(binary("TEST_ETCD"));
        command.arg("--data-dir").arg(self.dir.path().join("data")).args(&self.flags);
        self.program = Some(Program::spawn(command, self.dir.path().join("log")));
    }
}
