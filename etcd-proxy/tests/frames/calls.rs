//! Calls in good HTTP/2 whose gRPC and protobuf are not.

use bytes::Bytes;
use futures::future::join_all;
use http::{Request, header::CONTENT_TYPE};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proptest::{collection::vec, prelude::*, sample::select};
use prost::Message as _;
use proto::{
    etcdserverpb::{
        CompactionRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest,
        WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, watch_request::RequestUnion,
    },
    v3electionpb::{CampaignRequest, LeaderKey, ProclaimRequest},
    v3lockpb::LockRequest,
};
use tokio::{net::TcpStream, time::timeout};
use tonic_health::pb::HealthCheckRequest;
use tonic_reflection::pb::v1::{ServerReflectionRequest, server_reflection_request::MessageRequest};

use crate::{
    child::Proxy,
    mangled::{Mangle, mangles},
    requests::Space,
    witness::PATIENCE,
};

/// All that a call may be to, besides what its messages are for.
const PATHS: [&str; 12] = [
    "/etcdserverpb.KV/Range",
    "/etcdserverpb.KV/RangeStream",
    "/etcdserverpb.KV/Txn",
    "/etcdserverpb.Watch/Watch",
    "/etcdserverpb.Lease/LeaseKeepAlive",
    "/etcdserverpb.Lease/LeaseLeases",
    "/etcdserverpb.Maintenance/Status",
    "/etcdserverpb.Maintenance/HashKV",
    "/etcdserverpb.Maintenance/Snapshot",
    "/v3electionpb.Election/Observe",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
];

#[derive(Clone, Debug)]
pub(crate) struct Call {
    path: &'static str,
    messages: Vec<Framed>,
    /// The body comes in pieces of so many bytes.
    piece: usize,
    timeout: &'static str,
    encoding: &'static str,
    /// Bytes of metadata.
    metadata: usize,
}

/// A message and what is wrong with it and its frame.
#[derive(Clone, Debug)]
struct Framed {
    message: Bytes,
    mangles: Vec<Mangle>,
    flag: u8,
    /// By how much the announced length is wrong.
    lie: i64,
}

/// A call as it should be.
pub(crate) fn good() -> impl Strategy<Value = Call> {
    let answered = prop_oneof![request(), select(PATHS.to_vec()).prop_map(|path| (path, Bytes::new()))];
    answered.prop_map(|(path, message)| Call::good(path, message))
}

/// One of each kind, as they should be. Those that end by themselves have time for it.
pub(crate) fn each() -> Vec<Call> {
    const GRANT: (&str, &[u8]) = ("/etcdserverpb.Lease/LeaseGrant", b"\x08\x3c");
    const ENDLESS: [&str; 3] =
        ["/etcdserverpb.Watch/Watch", "/v3electionpb.Election/Observe", "/grpc.health.v1.Health/Watch"];
    let paths = PATHS.iter().map(|path| (*path, &b""[..])).chain([GRANT]);
    let calls = paths.map(|(path, message)| {
        let timeout = if ENDLESS.contains(&path) { "150m" } else { "20S" };
        Call { timeout, ..Call::good(path, Bytes::from_static(message)) }
    });
    calls.collect()
}

/// A call as nobody should make it.
pub(crate) fn hostile() -> impl Strategy<Value = Call> {
    let asked = prop_oneof![
        6 => request().prop_map(|(path, message)| (path, vec![message])),
        // Several of one kind, and those of one method for another.
        2 => (select(PATHS.to_vec()), vec(request().prop_map(|(_, message)| message), 0..4)),
    ];
    let flaws = (mangles(), prop_oneof![14 => Just(0u8), 1 => Just(1), 1 => any::<u8>()], lie());
    let options = (
        prop_oneof![4 => Just(1usize << 20), 1 => 1usize..40],
        // A stream that nothing ends otherwise ends by its deadline.
        prop_oneof![12 => Just("150m"), 1 => Just("0n"), 1 => Just("99999999n")],
        prop_oneof![8 => Just(""), 1 => Just("gzip"), 1 => Just("identity"), 1 => Just("snappy")],
        prop_oneof![8 => Just(0usize), 1 => 1usize..20_000],
    );
    (asked, vec(flaws, 4), options).prop_map(|((path, messages), flaws, (piece, timeout, encoding, metadata))| {
        let framed = messages.into_iter().zip(flaws);
        let framed = framed.map(|(message, (mangles, flag, lie))| Framed { message, mangles, flag, lie });
        Call { path, messages: framed.collect(), piece, timeout, encoding, metadata }
    })
}

fn lie() -> impl Strategy<Value = i64> {
    prop_oneof![20 => Just(0i64), 2 => -20i64..20, 1 => Just(1 << 20), 1 => Just(i64::from(u32::MAX))]
}

/// Requests as they should be, with the methods that they are for.
fn request() -> impl Strategy<Value = (&'static str, Bytes)> {
    let space = Space {
        keys: vec![b"a", b"b", b"\0", b"", b"\xff", b"witness"],
        ends: vec![b"", b"\0", b"c", b"\xff\xff"],
        leases: vec![0, 0, 1, -1, i64::MAX, i64::MIN],
        wrong_sorts: true,
        sorts: true,
        lease_order: true,
    };
    let id = space.lease();
    let create = (space.key(), space.end(), any::<i64>(), any::<i64>(), any::<[bool; 4]>()).prop_map(
        |(key, range_end, start, watch_id, [past, prev_kv, fragment, chosen])| WatchCreateRequest {
            key,
            range_end,
            start_revision: if past { start } else { 0 },
            watch_id: if chosen { watch_id } else { 0 },
            prev_kv,
            fragment,
            progress_notify: fragment,
            ..Default::default()
        },
    );
    let watch = prop_oneof![
        4 => create.prop_map(RequestUnion::CreateRequest),
        1 => any::<i64>().prop_map(|watch_id| RequestUnion::CancelRequest(WatchCancelRequest { watch_id })),
        1 => Just(RequestUnion::ProgressRequest(WatchProgressRequest {})),
    ];
    let leader = (space.key(), space.key(), any::<i64>(), id.clone());
    prop_oneof![
        4 => space.range().prop_map(|request| ("/etcdserverpb.KV/Range", request.encode_to_vec())),
        1 => space.range().prop_map(|request| ("/etcdserverpb.KV/RangeStream", request.encode_to_vec())),
        2 => space.put().prop_map(|request| ("/etcdserverpb.KV/Put", request.encode_to_vec())),
        1 => space.delete().prop_map(|request| ("/etcdserverpb.KV/DeleteRange", request.encode_to_vec())),
        4 => space.txn().prop_map(|request| ("/etcdserverpb.KV/Txn", request.encode_to_vec())),
        1 => any::<i64>().prop_map(|revision| {
            ("/etcdserverpb.KV/Compact", CompactionRequest { revision, physical: true }.encode_to_vec())
        }),
        3 => watch.prop_map(|union| {
            ("/etcdserverpb.Watch/Watch", WatchRequest { request_union: Some(union) }.encode_to_vec())
        }),
        1 => (id.clone(), any::<i64>()).prop_map(|(id, ttl)| {
            ("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { id, ttl }.encode_to_vec())
        }),
        1 => id.clone().prop_map(|id| {
            ("/etcdserverpb.Lease/LeaseKeepAlive", LeaseKeepAliveRequest { id }.encode_to_vec())
        }),
        1 => id.clone().prop_map(|id| {
            ("/etcdserverpb.Lease/LeaseTimeToLive", LeaseTimeToLiveRequest { id, keys: true }.encode_to_vec())
        }),
        1 => id.clone().prop_map(|id| {
            ("/etcdserverpb.Lease/LeaseRevoke", LeaseRevokeRequest { id }.encode_to_vec())
        }),
        1 => (space.key(), id.clone()).prop_map(|(name, lease)| {
            ("/v3lockpb.Lock/Lock", LockRequest { name, lease }.encode_to_vec())
        }),
        1 => (space.key(), id).prop_map(|(name, lease)| {
            ("/v3electionpb.Election/Campaign", CampaignRequest { name, lease, value: "v".into() }.encode_to_vec())
        }),
        3 => "[a-z]{0,4}".prop_map(|service| {
            ("/grpc.health.v1.Health/Check", HealthCheckRequest { service }.encode_to_vec())
        }),
        3 => "[a-z]{0,4}".prop_map(|host| {
            let message_request = Some(MessageRequest::ListServices(String::new()));
            let request = ServerReflectionRequest { host, message_request };
            ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", request.encode_to_vec())
        }),
        1 => leader.prop_map(|(name, key, rev, lease)| {
            let leader = Some(LeaderKey { name, key, rev, lease });
            ("/v3electionpb.Election/Proclaim", ProclaimRequest { leader, value: "v".into() }.encode_to_vec())
        }),
    ]
    .prop_map(|(path, message)| (path, message.into()))
}

// === impl Call ===

impl Call {
    fn good(path: &'static str, message: Bytes) -> Self {
        let messages = vec![Framed { message, mangles: Vec::new(), flag: 0, lie: 0 }];
        Self { path, messages, piece: 1 << 20, timeout: "150m", encoding: "", metadata: 0 }
    }

    fn body(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for Framed { message, mangles, flag, lie } in &self.messages {
            let mut message = message.to_vec();
            mangles.iter().for_each(|mangle| mangle.apply(&mut message));
            let announced = i64::try_from(message.len()).unwrap().saturating_add(*lie);
            body.push(*flag);
            body.extend(u32::try_from(announced.clamp(0, u32::MAX.into())).unwrap().to_be_bytes());
            body.extend(message);
        }
        body
    }

    /// Makes it. Returns what was heard: the head, the messages and the trailers.
    async fn make(&self, sender: &http2::SendRequest<Body>) -> Vec<u8> {
        let pieces: Vec<_> =
            self.body().chunks(self.piece).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect();
        let mut request = Request::post(format!("http://etcd{}", self.path))
            .header(CONTENT_TYPE, "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", self.timeout);
        if !self.encoding.is_empty() {
            request = request.header("grpc-encoding", self.encoding);
        }
        if self.metadata > 0 {
            request = request.header("x-metadata", "m".repeat(self.metadata));
        }
        let request = request.body(StreamBody::new(futures::stream::iter(pieces))).unwrap();
        // The connection may be closed for what another call did.
        let Ok(response) = sender.clone().send_request(request).await else { return Vec::new() };
        let (parts, mut body) = response.into_parts();
        let mut heard = format!("{:?}", parts.headers).into_bytes();
        while let Some(Ok(frame)) = body.frame().await {
            match frame.into_data() {
                Ok(data) => heard.extend(data),
                Err(trailers) => heard.extend(format!("{:?}", trailers.trailers_ref()).into_bytes()),
            }
        }
        heard
    }
}

type Body = StreamBody<futures::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, std::convert::Infallible>>>>;

/// Makes them at the same time on one connection. Returns what was heard.
pub(crate) async fn make(proxy: &Proxy, calls: &[Call]) -> Result<Vec<u8>, String> {
    let stream = TcpStream::connect(proxy.url.strip_prefix("http://").unwrap()).await;
    let stream = TokioIo::new(stream.map_err(|error| format!("no connection: {error}"))?);
    let (sender, driver) = http2::handshake(TokioExecutor::new(), stream).await.map_err(|error| error.to_string())?;
    let driver = tokio::spawn(driver);
    let heard = timeout(PATIENCE, join_all(calls.iter().map(|call| call.make(&sender)))).await;
    driver.abort();
    Ok(heard.map_err(|_| "a call does not end")?.concat())
}
