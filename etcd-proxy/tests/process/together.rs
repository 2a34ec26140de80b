//! What has arrived together goes on together.

use bytes::{Buf as _, BytesMut};
use http_body_util::{BodyExt as _, Full};
use prost::Message as _;
use proto::etcdserverpb::{
    PutRequest, WatchCreateRequest, WatchRequest, kv_client::KvClient, watch_request::RequestUnion,
};
use tokio::time::timeout;

use crate::{
    child::{Etcd, Proxy, SOON},
    stalled::{narrower, request},
    wire::grpc_frame,
};

/// Of a change that many watches of a stream see, etcd tells each by a frame of HTTP/2 of its own.
#[tokio::test(flavor = "multi_thread")]
async fn short_events_share_frames() {
    const WATCHES: usize = 2000;
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let mut sender = narrower(&proxy, 1 << 20).await;
    let create = WatchCreateRequest { key: "k".into(), ..Default::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let creates = grpc_frame(&create.encode_to_vec()).repeat(WATCHES);
    let watch = request("etcdserverpb.Watch/Watch", creates.into());
    let mut answers = sender.send_request(watch.map(Full::new)).await.unwrap().into_body();

    let mut arrived = BytesMut::new();
    // How many frames of HTTP/2 it takes until so many messages are there.
    let mut frames_of = async |messages: usize| {
        let (mut frames, mut whole) = (0, 0);
        while whole < messages {
            let frame = timeout(SOON, answers.frame()).await.expect("more answers").unwrap().unwrap();
            arrived.extend_from_slice(&frame.into_data().expect("the stream goes on"));
            frames += 1;
            while let Some(header) = arrived.first_chunk::<5>() {
                let length = 5 + u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
                if arrived.len() < length {
                    break;
                }
                arrived.advance(length);
                whole += 1;
            }
        }
        frames
    };
    frames_of(WATCHES).await;
    let put = PutRequest { key: "k".into(), value: vec![b'v'; 100].into(), ..Default::default() };
    KvClient::new(proxy.channel()).put(put).await.unwrap();
    let frames = frames_of(WATCHES).await;
    assert!(frames < WATCHES / 4, "{frames} frames for {WATCHES} events");
}
