//! What a tenant notices of its neighbour on the same etcd, each behind a proxy of its own: the time of its calls while the
//! neighbour does all that its limits allow, and while it does worse.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use proto::etcdserverpb::{
    PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, kv_client::KvClient, watch_client::WatchClient,
    watch_request::RequestUnion,
};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_stream::StreamExt as _;
use tonic::Code;

use crate::{
    child::{Etcd, Proxy, SOON, eventually},
    http::get,
    stalled::{narrow, unread_watch},
};

const MIB: u64 = 1 << 20;
/// Rounds of the two that are compared.
const ROUNDS: usize = 5;
/// Clients of the tenant whose calls are timed.
const CLIENTS: usize = 4;
/// Puts of each in a round, and as many gets.
const CALLS: usize = 100;
/// What is not told apart from noise: the calls take a millisecond or two, and a test's machine has other things to do.
const NOISE: Duration = Duration::from_millis(10);

/// The 99th percentile of the time of a tenant's calls.
async fn p99(proxy: &Proxy) -> Duration {
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let mut kv = KvClient::new(proxy.channel());
        clients.spawn(async move {
            let key = format!("timed{number}");
            let put = PutRequest { key: key.clone().into(), value: vec![b'v'; 512].into(), ..Default::default() };
            let range = RangeRequest { key: key.into(), ..Default::default() };
            kv.put(put.clone()).await.unwrap();
            let mut times = Vec::with_capacity(2 * CALLS);
            for _ in 0..CALLS {
                let start = Instant::now();
                kv.put(put.clone()).await.unwrap();
                let between = Instant::now();
                kv.range(range.clone()).await.unwrap();
                times.extend([between - start, between.elapsed()]);
            }
            times
        });
    }
    let mut times: Vec<Duration> = clients.join_all().await.into_iter().flatten().collect();
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Changes keys that are watched, a hundred times a second, for as long as it is let.
async fn change(proxy: &Proxy) {
    let mut kv = KvClient::new(proxy.channel());
    let mut turn = interval(Duration::from_millis(10));
    for number in 0.. {
        turn.tick().await;
        let watched = format!("watched{:04}", number % 1000);
        let hot = PutRequest { key: "hot".into(), value: vec![b'x'; 8 << 10].into(), ..Default::default() };
        let one = PutRequest { key: watched.into(), value: "v".into(), ..Default::default() };
        kv.put(hot).await.unwrap();
        kv.put(one).await.unwrap();
    }
}

/// Opens a stream with `count` watches and reads it in a task.
async fn watch_many(proxy: &Proxy, count: usize, tasks: &mut JoinSet<()>) {
    let creates = (0..count).map(|number| {
        let create = WatchCreateRequest { key: format!("watched{number:04}").into(), ..Default::default() };
        WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
    });
    let requests = tokio_stream::iter(creates.collect::<Vec<_>>()).chain(tokio_stream::pending());
    let mut events = WatchClient::new(proxy.channel()).watch(requests).await.unwrap().into_inner();
    for _ in 0..count {
        assert!(timeout(SOON, events.next()).await.expect("an answer").unwrap().unwrap().created);
    }
    tasks.spawn(async move { while let Some(Ok(_)) = events.next().await {} });
}

/// A tenant with as many watches as the controller lets it have, on a hundred of whose streams a lot is going on. It may read
/// what it watches, or not: the other tenant does not notice which.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::print_stderr, reason = "says what was measured")]
async fn ten_thousand_watches_and_readers_that_stall_leave_others_their_time() {
    const STREAMS: usize = 10;
    const WATCHES: usize = 10_000;
    const HOT: usize = 100;
    let etcd = Etcd::start().await;
    let limit = format!("--max-watches={}", WATCHES + HOT);
    let (noisy, quiet) = (Proxy::start("/a/", &etcd, &[&limit]).await, Proxy::start("/b/", &etcd, &[]).await);
    let idle = p99(&quiet).await;

    let mut watching = JoinSet::new();
    for _ in 0..STREAMS {
        watch_many(&noisy, WATCHES / STREAMS, &mut watching).await;
    }
    let metrics = format!("{}/metrics", noisy.metrics);
    let (mut allowed, mut stalled) = (Vec::new(), Vec::new());
    for round in 0..2 * ROUNDS {
        let read = round % 2 == 0;
        let sender = narrow(&noisy).await;
        let mut hot = JoinSet::<()>::new();
        for _ in 0..HOT {
            let create = WatchCreateRequest { key: "hot".into(), ..Default::default() };
            let (sender, response) = unread_watch(sender.clone(), create).await;
            hot.spawn(async move {
                let mut body = response.into_body();
                if read {
                    while let Some(Ok(_)) = body.frame().await {}
                }
                // Who does not read keeps what he does not read.
                let _held = (sender, body);
                std::future::pending().await
            });
        }
        let time = tokio::select! {
            time = p99(&quiet) => time,
            () = change(&noisy) => unreachable!("it changes for ever"),
        };
        if read {
            allowed.push(time)
        } else {
            stalled.push(time)
        }
        hot.shutdown().await;
        drop(sender);
        let left = format!("etcd_proxy_watch_streams {STREAMS}\n");
        eventually("the round is over", async || get(&metrics).await?.body.contains(&left).then_some(())).await;
    }
    let most = noisy.program.most_resident() / MIB;
    eprintln!(
        "p99 beside an idle neighbour {idle:?}; beside {WATCHES} watches, {HOT} more read {:?}, not read {:?}; neighbour's proxy {most} MiB",
        median(allowed.clone()),
        median(stalled.clone())
    );
    eprintln!("by round: read {allowed:?}, not read {stalled:?}");
    let (allowed, stalled) = (median(allowed), median(stalled));
    assert!(stalled <= 2 * allowed.max(NOISE), "{stalled:?} instead of {allowed:?}");
    // What the operator's guide says that a process takes at most.
    assert!(most < 128 + 64 + 48 + 40 + 20, "{most} MiB resident");
    assert_eq!(watching.len(), STREAMS);
}

/// What the neighbour does in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Neighbour {
    /// All that it may: puts that are carried out, as many as its rate.
    Allowed,
    /// As many puts that its quota refuses.
    AtQuota,
    /// Puts without a pause, of which its rate lets through what it does.
    Flooding,
}

impl Neighbour {
    /// Goes on for as long as it is let. `told` gets the code of each answer.
    async fn act(self, proxy: &Proxy, told: &Told) {
        let mut clients = JoinSet::new();
        let channels: Vec<_> = (0..CLIENTS).map(|_| proxy.channel()).collect();
        for (number, channel) in (0..PUTTERS).zip(channels.iter().cycle()) {
            let (mut kv, told) = (KvClient::new(channel.clone()), told.clone());
            clients.spawn(async move {
                let (key, length) = match self {
                    Self::AtQuota => (format!("more{number}"), QUOTA),
                    Self::Allowed | Self::Flooding => (format!("put{number}"), 100),
                };
                let put = PutRequest { key: key.into(), value: vec![b'v'; length].into(), ..Default::default() };
                let mut turn = interval(Duration::from_secs(1) * PUTTERS / RATE);
                turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    if self != Self::Flooding {
                        turn.tick().await;
                    }
                    let code = kv.put(put.clone()).await.map_or_else(|status| status.code(), |_| Code::Ok);
                    *told.lock().entry((self as u8, code as i32)).or_default() += 1;
                }
            });
        }
        clients.join_all().await;
    }
}

/// How often the neighbour was answered what in which part.
type Told = Arc<Mutex<BTreeMap<(u8, i32), usize>>>;

/// Puts in a second, as the controller's defaults have it.
const RATE: u32 = 500;
/// Clients of the neighbour that put.
const PUTTERS: u32 = 50;
const QUOTA: usize = 64 << 10;

/// How often the comparison is made anew: other programs of a test's machine do not keep still for it.
const TRIES: usize = 3;

/// A tenant whose writes are refused, for what it has stored or for their number, is no more to the others than one that does
/// what it may, and is refused within the process' memory.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::print_stderr, reason = "says what was measured")]
async fn tenants_at_their_quota_and_floods_leave_others_their_time() {
    let etcd = Etcd::start().await;
    let limits = [
        &format!("--quota-bytes={QUOTA}")[..],
        &format!("--max-requests-per-second={RATE}"),
        "--max-requests-burst=100",
        "--max-concurrent-requests=200",
    ];
    let (noisy, quiet) = (Proxy::start("/a/", &etcd, &limits).await, Proxy::start("/b/", &etcd, &[]).await);
    eprintln!("p99 beside an idle neighbour {:?}", p99(&quiet).await);
    let told = Told::default();
    let mut found = Vec::new();
    while found.len() < TRIES {
        let [allowed, at_quota, flooding] = compared(&noisy, &quiet, &told).await;
        eprintln!("beside one that does what it may {allowed:?}, at its quota {at_quota:?}, flooding {flooding:?}");
        if at_quota.max(flooding) <= 2 * allowed.max(NOISE) {
            break;
        }
        found.push((allowed, at_quota, flooding));
    }
    let answers = |kind, code| told.lock().get(&(kind as u8, code as i32)).copied().unwrap_or_default();
    let refused = [Neighbour::AtQuota, Neighbour::Flooding].map(|kind| answers(kind, Code::ResourceExhausted));
    let most = noisy.program.most_resident() / MIB;
    eprintln!("refused at its quota {}, flooding {}; neighbour's proxy {most} MiB", refused[0], refused[1]);
    assert!(answers(Neighbour::Allowed, Code::Ok) > 0 && refused.iter().all(|refused| *refused > 0), "{refused:?}");
    assert_eq!(answers(Neighbour::AtQuota, Code::Ok), 0);
    assert!(found.len() < TRIES, "allowed, at quota, flooding: {found:?}");
    // What the operator's guide says that a process without watches takes at most.
    assert!(most < 128 + 64 + 48, "{most} MiB resident");
}

/// Medians of a tenant's 99th percentiles beside a neighbour that does what it may, is at its quota, and floods, all in turns.
async fn compared(noisy: &Proxy, quiet: &Proxy, told: &Told) -> [Duration; 3] {
    let mut times: [Vec<Duration>; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (neighbour, times) in
            [Neighbour::Allowed, Neighbour::AtQuota, Neighbour::Flooding].into_iter().zip(&mut times)
        {
            let time = tokio::select! {
                time = p99(quiet) => time,
                () = neighbour.act(noisy, told) => unreachable!("it goes on for ever"),
            };
            times.push(time);
        }
    }
    times.map(median)
}
