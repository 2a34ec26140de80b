//! Everybody else: another client of the tenant, and the neighbours on the shared etcd.

use std::time::Duration;

use bytes::Bytes;
use proto::{
    etcdserverpb::{
        PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, WatchResponse, kv_client::KvClient,
        watch_client::WatchClient, watch_request::RequestUnion,
    },
    mvccpb::KeyValue,
};
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::{Streaming, transport::Channel};

use crate::{
    child::{Etcd, Proxy},
    tap::FOREIGN,
};

/// Longest time for anything, on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Where the tenant's keys lie.
pub(crate) const PREFIX: &str = "/frames-tenant/";
/// Where keys lie that are others'.
const NEIGHBOURS: [&str; 4] = ["/frames-tenant", "/frames-tenant0/neighbour", "/frames-tenan/neighbour", "/neighbour"];
/// What no client may ever be told.
const SECRETS: [&[u8]; 3] = [b"frames-tenan", b"neighbour", b"etcd-proxy.meta"];
/// The most memory that the proxy may take. It is built without optimization here.
const MEMORY: u64 = 256 << 20;
/// The witness' key, which hostile clients may delete.
pub(crate) const KEY: &str = "witness";

/// An etcd with several tenants.
pub(crate) struct Ground {
    pub(crate) etcd: Etcd,
    others: Vec<KeyValue>,
}

/// The same with a proxy whose client sees to it that it goes on.
pub(crate) struct Watched {
    ground: Ground,
    upstream: String,
    pub(crate) proxy: Proxy,
    kv: KvClient<Channel>,
    events: Streaming<WatchResponse>,
    round: u64,
}

// === impl Ground ===

impl Ground {
    pub(crate) async fn start() -> Self {
        let mut ground = Self { etcd: Etcd::start().await, others: Vec::new() };
        let mut kv = ground.direct();
        for key in NEIGHBOURS {
            kv.put(PutRequest { key: key.into(), value: "neighbour".into(), ..Default::default() }).await.unwrap();
        }
        ground.others = ground.others_now().await;
        ground
    }

    /// With a proxy whose upstream is at this URL.
    pub(crate) async fn before(self, upstream: String) -> Watched {
        let proxy = start(&upstream).await;
        let (kv, events) = witness(&proxy).await;
        Watched { ground: self, upstream, proxy, kv, events, round: 0 }
    }

    fn direct(&self) -> KvClient<Channel> {
        let endpoint = tonic::transport::Endpoint::from_shared(self.etcd.url.clone()).unwrap();
        KvClient::new(endpoint.connect_lazy()).max_decoding_message_size(usize::MAX)
    }

    /// Every key that is neither the tenant's nor the proxy's.
    async fn others_now(&self) -> Vec<KeyValue> {
        let everything = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
        let mut kvs = self.direct().range(everything).await.unwrap().into_inner().kvs;
        kvs.retain(|kv| !kv.key.starts_with(PREFIX.as_bytes()) && !kv.key.starts_with(b"/etcd-proxy.meta/"));
        kvs
    }
}

async fn start(upstream: &str) -> Proxy {
    let proxy = Proxy::spawn(PREFIX, upstream, &[]);
    proxy.ready().await;
    proxy
}

async fn witness(proxy: &Proxy) -> (KvClient<Channel>, Streaming<WatchResponse>) {
    let create = WatchCreateRequest { key: KEY.into(), ..Default::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let mut events = WatchClient::new(proxy.channel()).watch(requests).await.unwrap().into_inner();
    assert!(events.next().await.unwrap().unwrap().created);
    (KvClient::new(proxy.channel()).max_decoding_message_size(usize::MAX), events)
}

// === impl Watched ===

impl Watched {
    /// The tenant has keys to be answered with, and enough for a long answer.
    pub(crate) async fn fill(&mut self) {
        for (key, length) in [("a", 1), ("b", 1), ("bb", 300 << 10)] {
            // A value that would be groups in groups.
            let put = PutRequest { key: key.into(), value: vec![0x0b; length].into(), ..Default::default() };
            timeout(PATIENCE, self.kv.put(put)).await.expect("a put in time").unwrap();
        }
    }

    /// What is wrong after a case of which somebody has heard this. Where something is, there is another proxy afterwards.
    pub(crate) async fn check(&mut self, heard: Result<Vec<u8>, String>) -> Result<(), String> {
        let found = match self.stands() {
            Ok(()) => match heard {
                Ok(heard) => self.look(&heard).await,
                Err(wrong) => Err(wrong),
            },
            Err(wrong) => Err(wrong),
        };
        if found.is_err() {
            self.proxy = start(&self.upstream).await;
            (self.kv, self.events) = witness(&self.proxy).await;
        }
        found
    }

    /// The process is there, as it was, and no larger than it may be.
    fn stands(&mut self) -> Result<(), String> {
        let log = self.proxy.program.log();
        if let Some(status) = self.proxy.program.child.try_wait().unwrap() {
            return Err(format!("the proxy ended with {status}: {log}"));
        }
        if log.contains("panicked") {
            return Err(format!("a panic: {log}"));
        }
        for line in log.lines().filter(|line| line.contains("a key outside the prefix")) {
            if !line.contains(r#""method":"/etcdserverpb."#) || line.contains(FOREIGN) {
                return Err(format!("a foreign key is told of without its method, or with the key: {line}"));
            }
        }
        let most = self.proxy.program.most_resident();
        if most > MEMORY { Err(format!("{} MiB of memory", most >> 20)) } else { Ok(()) }
    }

    async fn look(&mut self, heard: &[u8]) -> Result<(), String> {
        if let Some(secret) = shown(heard) {
            return Err(format!("shown \"{}\" in \"{}\"", secret.escape_ascii(), heard.escape_ascii()));
        }
        let others = self.go_on().await;
        // Why they do not, first of all.
        self.stands()?;
        others
    }

    /// Others go on: on connections that were there before, and on new ones.
    async fn go_on(&mut self) -> Result<(), String> {
        self.round += 1;
        let value = Bytes::from(self.round.to_string());
        let put = PutRequest { key: KEY.into(), value: value.clone(), ..Default::default() };
        let put = timeout(PATIENCE, self.kv.put(put)).await.map_err(|_| "the witness' put is not answered")?;
        put.map_err(|status| format!("the witness' put: {status:?}"))?;
        loop {
            let next = timeout(PATIENCE, self.events.next()).await.map_err(|_| "the witness is not told")?;
            let events = match next {
                Some(Ok(response)) if !response.canceled => response.events,
                ended => return Err(format!("the witness' watch ended: {ended:?}")),
            };
            if events.iter().any(|event| event.kv.as_ref().is_some_and(|kv| kv.value == value)) {
                break;
            }
        }
        let get = RangeRequest { key: KEY.into(), ..Default::default() };
        let mut fresh = KvClient::new(self.proxy.channel());
        let got = timeout(PATIENCE, fresh.range(get)).await.map_err(|_| "a new client is not answered")?;
        let kvs = got.map_err(|status| format!("a new client: {status:?}"))?.into_inner().kvs;
        match kvs.first() {
            Some(kv) if kv.value == value => Ok(()),
            other => Err(format!("a new client finds {other:?}")),
        }
    }

    /// Nothing of anybody else has changed.
    pub(crate) async fn end(self) {
        assert_eq!(self.ground.others_now().await, self.ground.others);
    }
}

/// A secret that stands in what somebody has heard.
fn shown(heard: &[u8]) -> Option<&'static [u8]> {
    SECRETS.into_iter().find(|secret| heard.windows(secret.len()).any(|window| window == *secret))
}
