//! Messages that nest further than any stack goes, and those that hold more than fits.

use http::{Request, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full};
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::{
    child::{Etcd, Proxy, SOON},
    stalled::narrow,
    wire::grpc_frame,
};

/// Groups in groups, a byte each, of a field that no message has.
fn groups(levels: usize) -> Vec<u8> {
    vec![15 << 3 | 3; levels]
}

/// A field that holds `inner`.
fn field(number: u8, inner: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    prost::encode_length_delimiter(inner.len(), &mut field).unwrap();
    field.extend_from_slice(inner);
    field
}

/// The status of a call with this one message.
pub(crate) async fn ask(proxy: &Proxy, path: &str, message: &[u8]) -> Status {
    let request = Request::post(format!("http://etcd{path}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header("te", "trailers")
        .body(Full::new(grpc_frame(message)))
        .unwrap();
    let answer = async {
        let response = narrow(proxy).await.send_request(request).await.ok()?;
        let (parts, body) = response.into_parts();
        let trailers = body.collect().await.ok()?.trailers().cloned().unwrap_or(parts.headers);
        Status::from_header_map(&trailers)
    };
    let status = timeout(SOON, answer).await.expect("an answer in time");
    status.unwrap_or_else(|| panic!("{path} ended the connection: {}", proxy.program.log()))
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_without_a_floor_end_nothing_but_their_call() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let groups = groups(60_000);
    for method in ["Check", "Watch", "List"] {
        let path = &format!("/grpc.health.v1.Health/{method}");
        let status = ask(&proxy, path, &groups).await;
        assert_eq!(status.code(), Code::Internal, "{path}: {status:?}");
        assert!(status.message().contains("cannot parse invalid wire-format data"), "{path}: {status:?}");
    }
    // The ExtensionRequest of a request as well.
    for version in ["v1", "v1alpha"] {
        let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        for message in [&groups, &field(5, &groups)] {
            let status = ask(&proxy, &path, message).await;
            assert_eq!(status.code(), Code::Internal, "{path}: {status:?}");
        }
    }
    // A field that nobody knows is passed over, as etcd does.
    let unknown = [field(15, &groups), field(1, b"")].concat();
    let status = ask(&proxy, "/grpc.health.v1.Health/Check", &unknown).await;
    assert_eq!(status.code(), Code::Ok, "{status:?}");
    assert_eq!(proxy.ctl(&["put", "k", "v"]), "OK\n");
}

/// An empty operation takes two bytes on its way. It is not decoded to be counted.
#[tokio::test(flavor = "multi_thread")]
async fn many_empty_operations_are_refused_before_they_take_memory() {
    const OPERATIONS: usize = 700_000;
    const MIB: u64 = 1 << 20;
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let before = proxy.program.most_resident();
    let flat = field(2, &[]).repeat(OPERATIONS);
    let nested = field(2, &field(4, &flat));
    for txn in [flat, nested] {
        let status = ask(&proxy, "/etcdserverpb.KV/Txn", &txn).await;
        let refused = "etcdserver: too many operations in txn request";
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, refused));
    }
    let growth = proxy.program.most_resident() - before;
    assert!(growth < 30 * MIB, "grown by {} MiB", growth / MIB);
}
