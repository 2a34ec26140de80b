//! An upstream of several members: what tells them apart, and what is told when most of them are lost.

use std::{
    collections::BTreeSet,
    process::{Child, Command, Stdio},
};

use etcd_proxy::upstream::{Endpoint, UpstreamConfig};
use futures::StreamExt as _;
use proto::{
    etcdserverpb::{
        LeaseKeepAliveRequest, LeaseKeepAliveResponse, MemberListRequest, PutRequest, RangeRequest, ResponseHeader,
        StatusRequest, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest,
        maintenance_client::MaintenanceClient, watch_request::RequestUnion,
    },
    v3electionpb::{CampaignRequest, LeaderRequest},
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming, metadata::MetadataValue, transport::Channel};

use crate::support::{Client, PATIENCE, Proxy, binary, create_request, eventually, free_port, refusal};

/// Three members.
struct Cluster {
    members: Vec<Child>,
    urls: Vec<String>,
    _dir: tempfile::TempDir,
}

impl Cluster {
    /// Starts them. A member that has not heard of its leader for `election_timeout` milliseconds wants another.
    fn start(election_timeout: u32) -> Self {
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
                .args(["--heartbeat-interval", &(election_timeout / 10).to_string()])
                .args(["--election-timeout", &election_timeout.to_string()])
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        });
        Self { members: members.collect(), urls, _dir: dir }
    }

    /// A client of each member, once all of them serve and know their leader.
    async fn clients(&self) -> Vec<Client> {
        let mut clients = Vec::new();
        for url in &self.urls {
            eventually("the member serves", async || {
                let channel = Channel::from_shared(url.clone()).unwrap().connect().await;
                let status = async |channel| MaintenanceClient::new(channel).status(StatusRequest {}).await;
                match channel {
                    Ok(channel) => status(channel).await.is_ok_and(|status| status.get_ref().leader != 0),
                    Err(_) => false,
                }
            })
            .await;
            clients.push(Client::connect(url.clone()).await);
        }
        clients
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
    let mut cluster = Cluster::start(500);
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

/// Headers of one of each kind of answer, those of a watch's whole life among them.
async fn headers(mut client: Client, round: usize, lease: i64) -> Vec<ResponseHeader> {
    let key = format!("k{round}");
    let create = WatchCreateRequest { key: key.clone().into(), ..Default::default() };
    let mut watching = client.watch([create]).await;
    let created = watching.next().await.unwrap();
    assert!(created.created, "{created:?}");
    let put = PutRequest { key: key.clone().into(), ..Default::default() };
    let put = client.kv.put(put).await.unwrap().into_inner();
    let event = watching.next().await.unwrap();
    assert_eq!(event.events.len(), 1, "{event:?}");
    watching.send(RequestUnion::ProgressRequest(WatchProgressRequest {}));
    let progress = watching.next().await.unwrap();
    assert!(progress.watch_id == -1 && progress.events.is_empty(), "{progress:?}");
    watching.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: created.watch_id }));
    let cancelled = watching.next().await.unwrap();
    assert!(cancelled.canceled, "{cancelled:?}");
    let range = client.range(RangeRequest { key: key.into(), ..Default::default() }).await.unwrap();
    let kept = client.keep_alive(lease).await.unwrap();
    let members = client.cluster.member_list(MemberListRequest { linearizable: true }).await.unwrap().into_inner();
    assert_eq!(members.members[0].id, members.header.unwrap().member_id);
    let status = client.maintenance.status(StatusRequest {}).await.unwrap().into_inner();
    let headers = [
        created.header,
        put.header,
        event.header,
        progress.header,
        cancelled.header,
        range.header,
        kept.header,
        members.header,
        status.header,
    ];
    headers.map(|header| header.expect("a header")).into()
}

/// Whichever member answers over whichever connection: the cluster is one, and the member one of it. Clients that are told of
/// another cluster, or of none, reconnect for ever.
#[tokio::test(flavor = "multi_thread")]
async fn headers_name_one_cluster_and_its_members() {
    const ROUNDS: usize = 50;
    let cluster = Cluster::start(2500);
    let mut direct = cluster.clients().await;
    let known = direct[0].cluster.member_list(MemberListRequest::default()).await.unwrap().into_inner();
    let members: BTreeSet<u64> = known.members.iter().map(|member| member.id).collect();
    assert_eq!(members.len(), 3);

    let endpoints = cluster.urls.iter().map(|url| Endpoint::parse(url, false).unwrap()).collect();
    let proxy = Proxy::start_on(UpstreamConfig::new(endpoints, None), "/a/", |_| {}).await;
    let mut a = proxy.client().await;
    let lease = a.grant(0, 600).await.unwrap();
    let rounds = futures::stream::iter(0..ROUNDS).map(|round| headers(a.clone(), round, lease)).buffer_unordered(10);
    let headers = rounds.collect::<Vec<_>>().await.concat();
    for header in &headers {
        assert_eq!(header.cluster_id, known.header.unwrap().cluster_id, "{header:?}");
        assert!(members.contains(&header.member_id) && header.raft_term != 0, "{header:?}");
    }
    // The second connection leads to another member, so this was put to the test.
    let answered: BTreeSet<u64> = headers.iter().map(|header| header.member_id).collect();
    assert!(answered.len() > 1, "{answered:?}");
}
