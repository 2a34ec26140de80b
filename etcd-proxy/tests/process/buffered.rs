//! Long answers to unary requests: what they take together is bounded, and who does not read his holds up nobody for ever.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use prost::Message as _;
use proto::etcdserverpb::{
    LeaseGrantRequest, LeaseLeasesRequest, LeaseLeasesResponse, PutRequest, RangeRequest, RequestOp, TxnRequest,
    WatchCreateRequest, WatchRequest, kv_client::KvClient, lease_client::LeaseClient, request_op,
    watch_client::WatchClient, watch_request::RequestUnion,
};
use proto::v3electionpb::{CampaignRequest, LeaderRequest, ProclaimRequest, election_client::ElectionClient};
use tokio::{task::JoinSet, time::timeout};
use tokio_stream::StreamExt as _;
use tonic::{Code, Status, transport::Channel};

use crate::{
    child::{Etcd, Proxy, eventually},
    http::get,
    stalled::{ask, narrow, narrower, unread},
};

const MIB: u64 = 1 << 20;
/// As long as other requests may take meanwhile.
const PROMPT: Duration = Duration::from_secs(10);
/// How long etcd may take to make many long answers at once.
const PATIENT: Duration = Duration::from_secs(90);
const KEYS: usize = 100;

fn everything() -> RangeRequest {
    RangeRequest { key: "big".into(), range_end: "bih".into(), ..Default::default() }
}

/// A hundred megabytes.
async fn fill(proxy: &Proxy) -> KvClient<Channel> {
    fill_with(proxy, KEYS).await
}

/// So many keys of a megabyte each.
async fn fill_with(proxy: &Proxy, keys: usize) -> KvClient<Channel> {
    let mut kv = KvClient::new(proxy.channel()).max_decoding_message_size(usize::MAX);
    for number in 0..keys {
        let (key, value) = (format!("big{number:03}").into(), vec![b'x'; 1 << 20].into());
        kv.put(PutRequest { key, value, ..Default::default() }).await.unwrap();
    }
    kv
}

#[tokio::test(flavor = "multi_thread")]
async fn long_answers_share_a_bounded_memory() {
    const CLIENTS: usize = 6;
    let etcd = Etcd::start().await;
    let flags = ["--max-buffered-bytes=110000000", "--stalled-reader-timeout=5s"];
    let proxy = Proxy::start("/a/", &etcd, &flags).await;
    let mut kv = fill(&proxy).await;
    let create = WatchCreateRequest { key: "k".into(), ..Default::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let mut events = WatchClient::new(proxy.channel()).watch(requests).await.unwrap().into_inner();
    assert!(events.next().await.unwrap().unwrap().created);

    let mut stalled = JoinSet::new();
    for _ in 0..CLIENTS {
        let sender = narrow(&proxy).await;
        stalled.spawn(async move { unread(sender, "Range", &everything()).await });
    }
    // The first has its answer, of which it reads nothing. The others wait for their share of the memory.
    let mut answered = vec![timeout(PATIENT, stalled.join_next()).await.expect("an answer").unwrap().unwrap().unwrap()];
    let mut most = 0;
    while answered.len() < CLIENTS {
        // Meanwhile everybody else is served, those as well whose answers are of some length.
        let put = PutRequest { key: "k".into(), value: "v".into(), ..Default::default() };
        timeout(PROMPT, kv.put(put)).await.expect("a put is held up").unwrap();
        let event = timeout(PROMPT, events.next()).await.expect("an event is held up");
        assert_eq!(event.unwrap().unwrap().events.len(), 1);
        let some = RangeRequest { keys_only: true, ..everything() };
        let answer = timeout(PROMPT, kv.range(some)).await.expect("a get is held up").unwrap();
        assert_eq!(answer.get_ref().kvs.len(), KEYS);
        most = most.max(proxy.program.resident());
        if let Ok(next) = timeout(Duration::from_millis(50), stalled.join_next()).await {
            answered.push(next.unwrap().unwrap().unwrap());
        }
    }
    // One share, six windows, and what a process needs: far from six hundred.
    assert!(most < 180 * MIB, "{} MiB resident", most / MIB);

    // One after the other was given up, and says so to whoever comes for the rest. The last is still to be had.
    let mut codes = Vec::new();
    for (_sender, response) in answered {
        let ended = timeout(PATIENT, response.into_body().collect()).await.expect("an end").unwrap();
        codes.push(Status::from_header_map(ended.trailers().unwrap()).unwrap().code());
    }
    assert_eq!(codes.pop(), Some(Code::Ok));
    assert_eq!(codes, [Code::ResourceExhausted; CLIENTS - 1]);
    // Who reads gets all of it, and the memory is given back.
    let answer = timeout(PATIENT, kv.range(everything())).await.expect("an answer").unwrap().into_inner();
    assert_eq!(answer.kvs.len(), KEYS);
    assert!(answer.kvs.iter().all(|kv| kv.key.starts_with(b"big") && kv.value.len() == 1 << 20));
    eventually("the memory is given back", async || (proxy.program.resident() < 40 * MIB).then_some(())).await;
}

/// What waits is held back at the upstream, stream by stream: the connections are free for everybody else.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_wait_starve_nobody() {
    const CLIENTS: usize = 60;
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &["--max-buffered-bytes=9000000"]).await;
    let mut kv = fill(&proxy).await;
    let eight = RangeRequest { limit: 8, ..everything() };
    let sender = narrow(&proxy).await;
    let mut stalled = JoinSet::new();
    for _ in 0..CLIENTS {
        let (sender, eight) = (sender.clone(), eight.clone());
        stalled.spawn(async move { unread(sender, "Range", &eight).await });
    }
    let metrics = format!("{}/metrics", proxy.metrics);
    let waiting = format!("etcd_proxy_answers_waiting {}\n", CLIENTS - 1);
    eventually("all but one wait", async || get(&metrics).await?.body.contains(&waiting).then_some(())).await;
    for round in 0..20 {
        let put = PutRequest { key: "k".into(), value: "v".into(), ..Default::default() };
        timeout(PROMPT, kv.put(put)).await.unwrap_or_else(|_| panic!("put {round} is held up")).unwrap();
        let keys = RangeRequest { keys_only: true, ..everything() };
        let answer = timeout(PROMPT, kv.range(keys)).await.unwrap_or_else(|_| panic!("get {round} is held up"));
        assert_eq!(answer.unwrap().get_ref().kvs.len(), KEYS);
    }
    assert!(proxy.program.resident() < 120 * MIB, "{} MiB resident", proxy.program.resident() / MIB);
    // Who goes away leaves the queue.
    drop(stalled);
    drop(sender);
    eventually("nobody waits", async || {
        get(&metrics).await?.body.contains("etcd_proxy_answers_waiting 0\n").then_some(())
    })
    .await;
}

/// A request whose answer finds no room is refused, and a write, which has been carried out, in the words of an unknown outcome.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_without_room_for_its_answer_is_not_called_refused() {
    const WAITING: usize = 128;
    let etcd = Etcd::start().await;
    let flags = ["--max-buffered-bytes=600000", "--stalled-reader-timeout=10m"];
    let proxy = Proxy::start("/a/", &etcd, &flags).await;
    let mut kv = KvClient::new(proxy.channel());
    kv.put(PutRequest { key: "big".into(), value: vec![b'x'; 400_000].into(), ..Default::default() }).await.unwrap();
    let sender = narrow(&proxy).await;
    let mut stalled = JoinSet::new();
    for _ in 0..=WAITING {
        let sender = sender.clone();
        stalled.spawn(async move { unread(sender, "Range", &everything()).await });
    }
    let metrics = format!("{}/metrics", proxy.metrics);
    let waiting = format!("etcd_proxy_answers_waiting {WAITING}\n");
    eventually("all but one wait", async || get(&metrics).await?.body.contains(&waiting).then_some(())).await;

    let of = |status: Status| (status.code(), status.message().to_owned());
    let read = timeout(PATIENT, kv.range(everything())).await.expect("an answer").unwrap_err();
    assert_eq!(of(read), (Code::ResourceExhausted, "etcdserver: too many requests".into()));
    let put = PutRequest { key: "written".into(), value: "v".into(), ..Default::default() };
    let ops = [request_op::Request::RequestPut(put), request_op::Request::RequestRange(everything())];
    let success = ops.map(|request| RequestOp { request: Some(request) }).into();
    let txn =
        timeout(PATIENT, kv.txn(TxnRequest { success, ..Default::default() })).await.expect("an answer").unwrap_err();
    assert_eq!(of(txn), (Code::Unavailable, "etcdserver: request timed out".into()));
    assert_eq!(etcd.ctl(&["get", "/a/written", "--print-value-only"]), "v\n");
}

/// What cannot fit is refused, and says what it would take and who bounds it. It takes no memory meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_beyond_the_whole_bound_is_refused() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    drop(fill(&proxy).await);
    let proxy = Proxy::start("/a/", &etcd, &["--max-buffered-bytes=8000000"]).await;
    let mut kv = KvClient::new(proxy.channel()).max_decoding_message_size(usize::MAX);
    let refused = |status: Status| {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        assert!(status.message().contains("--max-buffered-bytes=8000000"), "{status:?}");
    };
    for _ in 0..5 {
        refused(timeout(PATIENT, kv.range(everything())).await.expect("an answer").unwrap_err());
    }
    // What a Txn reads is there once, too.
    let reads = |limit| {
        let range = RangeRequest { limit, ..everything() };
        let op = RequestOp { request: Some(request_op::Request::RequestRange(range)) };
        TxnRequest { success: vec![op], ..Default::default() }
    };
    refused(timeout(PATIENT, kv.txn(reads(8))).await.expect("an answer").unwrap_err());
    assert!(timeout(PATIENT, kv.txn(reads(7))).await.expect("an answer").unwrap().get_ref().succeeded);
    let seven = RangeRequest { limit: 7, ..everything() };
    assert_eq!(timeout(PATIENT, kv.range(seven)).await.expect("an answer").unwrap().get_ref().kvs.len(), 7);
    let most = proxy.program.most_resident();
    assert!(most < 60 * MIB, "{} MiB resident", most / MIB);
}

/// A list of leases has its share until its client has taken it.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_list_of_leases_is_counted_until_it_is_taken() {
    const LEASES: usize = 6000;
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let mut granting = JoinSet::new();
    for _ in 0..20 {
        let mut lease = LeaseClient::new(proxy.channel());
        granting.spawn(async move {
            for _ in 0..LEASES / 20 {
                lease.lease_grant(LeaseGrantRequest { ttl: 3600, id: 0 }).await.unwrap();
            }
        });
    }
    granting.join_all().await;
    let sender = narrower(&proxy, 1 << 10).await;
    let listed = ask(sender, "etcdserverpb.Lease/LeaseLeases", &LeaseLeasesRequest {});
    let (_sender, response) = timeout(PATIENT, listed).await.expect("an answer").unwrap();
    let metrics = format!("{}/metrics", proxy.metrics);
    let free = "etcd_proxy_buffered_bytes 0\n";
    let text = get(&metrics).await.expect("metrics").body;
    assert!(!text.contains(free), "it takes nothing");
    let body = timeout(PATIENT, response.into_body().collect()).await.expect("an end").unwrap();
    assert_eq!(Status::from_header_map(body.trailers().unwrap()).unwrap().code(), Code::Ok);
    let listed = LeaseLeasesResponse::decode(body.to_bytes().slice(5..)).unwrap();
    assert_eq!(listed.leases.len(), LEASES);
    eventually("the memory is given back", async || get(&metrics).await?.body.contains(free).then_some(())).await;
}

/// A leader's value has its share until the observer has taken it: one that leads already, one that comes, one that proclaims.
#[tokio::test(flavor = "multi_thread")]
async fn what_observers_are_told_is_counted_until_it_is_taken() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let value = |byte: u8| Bytes::from(vec![byte; 600 << 10]);
    let mut election = ElectionClient::new(proxy.channel());
    let mut lease = LeaseClient::new(proxy.channel());
    lease.lease_grant(LeaseGrantRequest { ttl: 3600, id: 1 }).await.unwrap();
    let metrics = format!("{}/metrics", proxy.metrics);
    let watches = |count| format!("etcd_proxy_limit_used{{limit=\"watches\"}} {count}\n");
    let free = "etcd_proxy_buffered_bytes 0\n";
    let observe = async || {
        let sender = narrower(&proxy, 1 << 10).await;
        ask(sender, "v3electionpb.Election/Observe", &LeaderRequest { name: "e".into() }).await.unwrap()
    };
    let takes = async |what: &str| {
        eventually(what, async || (!get(&metrics).await?.body.contains(free)).then_some(())).await;
    };
    let given_back = async || {
        eventually("it is given back", async || get(&metrics).await?.body.contains(free).then_some(())).await;
    };

    let vacant = observe();
    let campaign = async {
        eventually("it is watched for", async || get(&metrics).await?.body.contains(&watches(1)).then_some(())).await;
        let request = CampaignRequest { name: "e".into(), lease: 1, value: value(b'1') };
        election.campaign(request).await.unwrap().into_inner().leader
    };
    let ((_first_sender, first), leader) = tokio::join!(vacant, campaign);
    takes("what came takes memory").await;
    drop(first);
    given_back().await;
    let (_second_sender, second) = observe().await;
    takes("what was there takes memory").await;
    let mut frames = second.into_body();
    let mut message = async |byte: u8| {
        let mut taken = Vec::new();
        while taken.len() < 600 << 10 {
            let frame = timeout(PATIENT, frames.frame()).await.expect("a frame").unwrap().unwrap();
            taken.extend(frame.into_data().unwrap());
        }
        assert_eq!(taken.last(), Some(&byte));
    };
    message(b'1').await;
    given_back().await;
    eventually("it is followed", async || get(&metrics).await?.body.contains(&watches(1)).then_some(())).await;
    election.proclaim(ProclaimRequest { leader, value: value(b'2') }).await.unwrap();
    takes("what is proclaimed takes memory").await;
    message(b'2').await;
    given_back().await;
}

/// One answer takes its own length and not twice as much.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_is_there_once() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    drop(fill(&proxy).await);
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let before = proxy.program.resident();
    let sender = narrow(&proxy).await;
    let (_sender, response) =
        timeout(PATIENT, unread(sender, "Range", &everything())).await.expect("an answer").unwrap();
    let growth = proxy.program.most_resident() - before;
    assert!((95 * MIB..115 * MIB).contains(&growth), "grown by {} MiB", growth / MIB);
    let body = timeout(PATIENT, response.into_body().collect()).await.expect("an end").unwrap();
    assert_eq!(Status::from_header_map(body.trailers().unwrap()).unwrap().code(), Code::Ok);
    assert!(body.to_bytes().len() > 100 << 20);
}

/// More than all of the default memory: refused at once, had in a stream, and whole where nothing bounds it.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_bound_no_answer_is_too_long() {
    const VALUES: usize = 140;
    let etcd = Etcd::start().await;
    let bounded = Proxy::start("/a/", &etcd, &[]).await;
    let mut kv = fill_with(&bounded, VALUES).await;
    let refused = timeout(PATIENT, kv.range(everything())).await.expect("an answer").unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert!(refused.message().contains("--max-buffered-bytes=134217728"), "{refused:?}");

    let whole = |keys: &[Bytes]| {
        let expected: Vec<Bytes> = (0..VALUES).map(|number| format!("big{number:03}").into()).collect();
        assert_eq!(keys, expected);
    };
    let mut keys = Vec::new();
    let mut parts = timeout(PATIENT, kv.range_stream(everything())).await.expect("a place").unwrap().into_inner();
    while let Some(part) = timeout(PATIENT, parts.next()).await.expect("a part") {
        for kv in part.unwrap().range_response.unwrap().kvs {
            assert_eq!(kv.value.len(), 1 << 20);
            keys.push(kv.key);
        }
    }
    whole(&keys);

    let unbounded = Proxy::start("/a/", &etcd, &["--max-buffered-bytes=0"]).await;
    let mut kv = KvClient::new(unbounded.channel()).max_decoding_message_size(usize::MAX);
    let answer = timeout(PATIENT, kv.range(everything())).await.expect("an answer").unwrap().into_inner();
    assert!(answer.kvs.iter().all(|kv| kv.value.len() == 1 << 20));
    whole(&answer.kvs.into_iter().map(|kv| kv.key).collect::<Vec<_>>());
}
