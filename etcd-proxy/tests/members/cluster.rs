//! An etcd of three members, and proxies of one tenant before it.

use std::{
    net::{SocketAddr, TcpListener},
    process::Command,
    time::{Duration, Instant},
};

use proto::etcdserverpb::{StatusRequest, maintenance_client::MaintenanceClient};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

use crate::{
    child::{Program, Proxy, binary},
    network::{MEMBERS, Manner, Network, Party},
};

/// The longest that a healthy cluster may need for anything, on a machine that does much else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The tenant's.
pub(crate) const PREFIX: &str = "/members/";

/// The members and the proxies: as many as members, and each names another member first, so that every member is used.
pub(crate) struct Cluster {
    members: Vec<Member>,
    proxies: Vec<Place>,
    network: Network,
}

/// Where a proxy runs.
struct Place {
    url: String,
    endpoints: String,
    proxy: Option<Proxy>,
}

/// One member.
struct Member {
    dir: TempDir,
    /// Its own address, which only the test uses.
    client: String,
    flags: Vec<String>,
    program: Option<Program>,
}

/// A socket at an address that is the member's own: nobody's outgoing connection takes its port while the member is down.
fn listen(number: usize) -> TcpListener {
    TcpListener::bind(format!("127.0.0.{}:0", number + 2)).unwrap()
}

fn address(number: usize) -> SocketAddr {
    listen(number).local_addr().unwrap()
}

// === impl Cluster ===

impl Cluster {
    /// Starts three members, and proxies before them.
    pub(crate) async fn start() -> Self {
        let mut network = Network::new();
        // The URLs of what leads to a member, and of where it really listens.
        let mut relays = |from: Option<Party>| -> Vec<(String, String)> {
            let relay = |number| {
                let (listener, target) = (listen(number), address(number));
                let url = format!("http://{}", listener.local_addr().unwrap());
                network.relay(listener, from, number, target);
                (url, format!("http://{target}"))
            };
            (0..MEMBERS).map(relay).collect()
        };
        let (peers, clients) = (relays(None), relays(Some(Party::Proxies)));
        let all: Vec<String> =
            peers.iter().enumerate().map(|(number, (relay, _))| format!("m{number}={relay}")).collect();
        let mut members: Vec<Member> = Vec::new();
        for (number, ((relay, peer), (_, client))) in peers.iter().zip(&clients).enumerate() {
            let flags = [
                format!("--name=m{number}"),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={relay}"),
                format!("--initial-cluster={}", all.join(",")),
                "--unsafe-no-fsync".to_owned(),
                "--watch-progress-notify-interval=200ms".to_owned(),
            ];
            members.push(Member {
                dir: TempDir::new().unwrap(),
                client: client.clone(),
                flags: flags.to_vec(),
                program: None,
            });
        }
        members.iter_mut().for_each(Member::run);
        let place = |number| {
            let mut relays: Vec<&str> = clients.iter().map(|(relay, _)| relay.as_str()).collect();
            relays.rotate_left(number);
            Place { url: format!("http://{}", address(MEMBERS + number)), endpoints: relays.join(","), proxy: None }
        };
        let proxies = (0..MEMBERS).map(place).collect();
        let mut cluster = Self { members, proxies, network };
        for number in 0..MEMBERS {
            cluster.network.know(number, cluster.id(number).await);
        }
        cluster.start_proxies();
        cluster
    }

    /// Where the proxies serve.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.proxies.iter().map(|place| place.url.clone()).collect()
    }

    /// Where a member itself serves, past the relays and the proxies.
    pub(crate) fn member(&self, member: usize) -> &str {
        &self.members[member].client
    }

    /// Kills the proxies, if they are there, and starts them.
    pub(crate) fn start_proxies(&mut self) {
        for place in &mut self.proxies {
            place.proxy = None;
            place.proxy = Some(Proxy::spawn_at(place.url.clone(), PREFIX, &place.endpoints, &["--dial-timeout=1s"]));
        }
    }

    pub(crate) fn kill(&mut self, member: usize) {
        self.network.runs(member, false);
        self.members[member].program = None;
    }

    pub(crate) fn run(&mut self, member: usize) {
        self.members[member].run();
        self.network.runs(member, true);
    }

    pub(crate) fn signal(&self, member: usize, name: &str) {
        self.members[member].program.as_ref().unwrap().signal(name);
    }

    /// Parts a member from the other members.
    pub(crate) fn isolate(&self, member: usize, manner: Manner) {
        self.network.isolate(member, manner);
    }

    /// Parts a member from the proxies.
    pub(crate) fn hide(&self, member: usize, manner: Manner) {
        self.network.hide(member, manner);
    }

    /// Makes all links whole.
    pub(crate) fn mend(&self) {
        self.network.mend();
    }

    /// Processor time that each proxy has used.
    pub(crate) fn proxy_cpu(&self) -> Vec<Duration> {
        self.proxies.iter().map(|place| place.proxy.as_ref().unwrap().program.cpu()).collect()
    }

    /// The id by which a member is known.
    async fn id(&self, member: usize) -> u64 {
        let start = Instant::now();
        loop {
            let mut client = MaintenanceClient::new(channel(&self.members[member].client));
            if let Ok(status) = client.status(StatusRequest {}).await {
                return status.into_inner().header.unwrap().member_id;
            }
            assert!(start.elapsed() < PATIENCE, "member {member} does not serve");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
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
