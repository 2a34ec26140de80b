//! An upstream of several members, most of which are lost.

use std::process::{Child, Command, Stdio};

use proto::{
    etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse, RangeRequest, WatchCreateRequest, WatchRequest},
    v3electionpb::{CampaignRequest, LeaderRequest},
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming, metadata::MetadataValue};

use crate::support::{Client, PATIENCE, Proxy, binary, create_request, eventually, free_port, refusal};

/// Three members that elect fast.
struct Cluster {
    members: Vec<Child>,
    urls: Vec<String>,
    _dir: tempfile::TempDir,
}

impl Cluster {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let peers: Vec<String> = (0..3).map(|_| format!("http://127.0.0.1:{}", free_port())).collect();
        let urls: Vec<String> = (0..3).map(|_| format!("http://127.0.0.1:{}", free_port())).collect();
        let initial: Vec<String> =
            peers.iter().enumerate().map(|(number, peer)| format!("member{number}={peer}")).collect();
        let members = peers.iter().zip(&urls).enumerate().map(|(number, (peer, url))| {
            Command::new(binary("TEST_ETCD"))
                .args(["--name", &format!("member{number}"), "--log-level", "error", "--unsafe-no-fsync"])
                .arg("--data-dir")
                .arg(dir.path().join(number.to_string()))
                .args(["--listen-client-urls", url, "--advertise-client-urls", url])
                .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
                .args(["--initial-cluster", &initial.join(",")])
                .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        });
        Self { members: members.collect(), urls, _dir: dir }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ended = member.kill();
            let _reaped = member.wait();
        }
    }
}

fn with_leader<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    request
}

/// A keep-alive stream that asks for a leader, once the first answer has come.
async fn keep_alive(
    client: &mut Client,
    id: i64,
) -> (UnboundedSender<LeaseKeepAliveRequest>, Streaming<LeaseKeepAliveResponse>) {
    let (requests, sent) = unbounded_channel();
    requests.send(LeaseKeepAliveRequest { id }).unwrap();
    let sent = with_leader(UnboundedReceiverStream::new(sent));
    let mut answers = client.lease.lease_keep_alive(sent).await.unwrap().into_inner();
    assert!(answers.message().await.unwrap().unwrap().ttl > 0);
    (requests, answers)
}

/// The first message of a stream, or why there is none.
async fn first<T>(opened: Result<Response<Streaming<T>>, Status>) -> Result<Option<T>, Status> {
    tokio::time::timeout(PATIENCE, opened?.into_inner().message()).await.expect("the stream ends")
}

/// Clients that ask for a leader are told that there is none, in calls and in streams that are open already.
#[tokio::test(flavor = "multi_thread")]
async fn loss_of_the_leader_is_told() {
    let mut cluster = Cluster::start();
    let proxy = Proxy::start_at(&cluster.urls[0], "/a/", |_| {}).await;
    let mut a = proxy.client().await;
    let range = || RangeRequest { key: "k".into(), serializable: true, ..Default::default() };
    eventually("a leader", || {
        let mut kv = a.kv.clone();
        async move { kv.range(with_leader(range())).await.is_ok() }
    })
    .await;
    let create = WatchCreateRequest { key: "k".into(), ..Default::default() };
    let requests =
        futures::StreamExt::chain(futures::stream::iter([create_request(create)]), futures::stream::pending());
    let mut watching = a.watch.watch(with_leader(requests)).await.unwrap().into_inner();
    assert!(watching.message().await.unwrap().unwrap().created);

    let mut direct = Client::connect(cluster.urls[0].clone()).await;
    let id = a.grant(0, 600).await.unwrap();
    let others = direct.grant(0, 600).await.unwrap();
    let mut kept = [keep_alive(&mut a, id).await, keep_alive(&mut direct, others).await];
    let stand = CampaignRequest { name: "e".into(), lease: id, value: "v".into() };
    a.election.campaign(stand).await.unwrap();
    let observe = || with_leader(LeaderRequest { name: "e".into() });
    let mut observed = a.election.observe(observe()).await.unwrap().into_inner();
    assert_eq!(observed.message().await.unwrap().unwrap().kv.unwrap().value, "v");

    for member in &mut cluster.members[1..] {
        member.kill().unwrap();
    }
    let no_leader = (Code::Unavailable, "etcdserver: no leader".to_owned());
    let ended = tokio::time::timeout(PATIENCE, watching.message()).await.expect("the watch ends");
    assert_eq!(refusal(ended), no_leader);
    for (_requests, answers) in &mut kept {
        let ended = tokio::time::timeout(PATIENCE, answers.message()).await.expect("the keep-alive stream ends");
        assert_eq!(refusal(ended), no_leader);
    }
    let ended = tokio::time::timeout(PATIENCE, observed.message()).await.expect("observing ends");
    assert_eq!(refusal(ended), no_leader);
    // Streams that begin are refused likewise.
    for client in [&mut a, &mut direct] {
        let nothing = futures::stream::pending::<LeaseKeepAliveRequest>();
        assert_eq!(refusal(first(client.lease.lease_keep_alive(with_leader(nothing)).await).await), no_leader);
        let nothing = futures::stream::pending::<WatchRequest>();
        assert_eq!(refusal(first(client.watch.watch(with_leader(nothing)).await).await), no_leader);
        assert_eq!(refusal(first(client.election.observe(observe()).await).await), no_leader);
    }
    assert_eq!(refusal(direct.kv.range(with_leader(range())).await), no_leader);
    assert_eq!(refusal(a.kv.range(with_leader(range())).await), no_leader);
    // Without the question the member that is left answers from what it has.
    a.kv.range(range()).await.unwrap();
}
