//! gRPC reflection.

use std::{
    collections::{BTreeSet, VecDeque},
    future::poll_fn,
    time::{Duration, Instant},
};

use prost::Message as _;
use prost_types::FileDescriptorProto;
use tokio::time::timeout;
use tonic::{Code, Status};
use tonic_reflection::pb::{
    v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    },
    v1alpha,
};

use crate::{
    arriving::{connect, head},
    child::{Etcd, Proxy, SOON, eventually},
};

async fn ask(proxy: &Proxy, question: MessageRequest) -> MessageResponse {
    answer(proxy, question).await.unwrap()
}

async fn answer(proxy: &Proxy, question: MessageRequest) -> Result<MessageResponse, Status> {
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
    let mut client = ServerReflectionClient::new(proxy.channel());
    let mut answers = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
    Ok(answers.message().await?.unwrap().message_response.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_served_is_described_and_nothing_else() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let MessageResponse::ListServicesResponse(list) = ask(&proxy, MessageRequest::ListServices(String::new())).await
    else {
        panic!("not a list")
    };
    let services: BTreeSet<String> = list.service.into_iter().map(|service| service.name).collect();
    let expected = [
        "etcdserverpb.Auth",
        "etcdserverpb.Cluster",
        "etcdserverpb.KV",
        "etcdserverpb.Lease",
        "etcdserverpb.Maintenance",
        "etcdserverpb.Watch",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "v3electionpb.Election",
        "v3lockpb.Lock",
    ];
    assert_eq!(services.iter().map(String::as_str).collect::<Vec<_>>(), expected);

    // Every file that a client needs to make sense of them is to be had, as grpcurl asks for them.
    let (mut files, mut methods) = (BTreeSet::new(), BTreeSet::new());
    for service in &services {
        let mut wanted = VecDeque::from([MessageRequest::FileContainingSymbol(service.clone())]);
        while let Some(question) = wanted.pop_front() {
            let MessageResponse::FileDescriptorResponse(found) = ask(&proxy, question.clone()).await else {
                panic!("{question:?} is not answered")
            };
            for file in found.file_descriptor_proto {
                let file = FileDescriptorProto::decode(&*file).unwrap();
                methods.extend(file.service.iter().flat_map(|service| &service.method).map(|m| m.name().to_owned()));
                if files.insert(file.name().to_owned()) {
                    wanted.extend(file.dependency.into_iter().map(MessageRequest::FileByFilename));
                }
            }
        }
    }
    assert!(files.len() > 8, "{files:?}");
    assert!(methods.contains("Range") && methods.contains("List"), "{methods:?}");
    for other in ["restaurant.v1alpha1.Pizza", "no.such.Thing"] {
        let answer = answer(&proxy, MessageRequest::FileContainingSymbol(other.to_owned())).await;
        assert_eq!(answer.unwrap_err().code(), Code::NotFound, "{other}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_goes_the_way_of_all_calls() {
    let etcd = Etcd::start().await;
    // One call at once, and the next in a second.
    let proxy = Proxy::start("/a/", &etcd, &["--max-requests-per-second=1", "--max-requests-burst=1"]).await;
    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::ListServices(String::new())),
    };
    // One that is held open.
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    sender.send(request.clone()).await.unwrap();
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(proxy.channel());
    let requests = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut open = client.server_reflection_info(requests).await.unwrap().into_inner();
    assert!(open.message().await.unwrap().is_some());
    let refused = eventually("a call over the rate", async || {
        client.server_reflection_info(tokio_stream::iter([request.clone()])).await.err()
    })
    .await;
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, "etcdserver: too many requests"));

    let metrics = crate::http::get(&format!("{}/metrics", proxy.metrics)).await.unwrap().body;
    let labels = r#"grpc_type="bidi_stream",grpc_service="grpc.reflection.v1alpha.ServerReflection",grpc_method="ServerReflectionInfo""#;
    let line = format!("grpc_server_handled_total{{{labels},grpc_code=\"ResourceExhausted\"}}");
    assert!(metrics.lines().any(|metric| metric.starts_with(&line) && !metric.ends_with(" 0")), "{line}: {metrics}");

    // It ends with the process, as etcd's streams do.
    proxy.program.signal("TERM");
    let ended = open.message().await.unwrap_err();
    assert_eq!((ended.code(), ended.message()), (Code::Unavailable, "etcdserver: server stopped"));
}

/// Each request counts as one of the tenant's, and those beyond the rate wait for their turn.
#[tokio::test(flavor = "multi_thread")]
async fn requests_keep_to_the_tenants_rate() {
    const ASKED: usize = 6;
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &["--max-requests-per-second=1", "--max-requests-burst=3"]).await;
    let question = MessageRequest::ListServices(String::new());
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
    let begun = Instant::now();
    let mut client = ServerReflectionClient::new(proxy.channel());
    let requests = tokio_stream::iter(vec![request; ASKED]);
    let mut answers = client.server_reflection_info(requests).await.unwrap().into_inner();
    for _ in 0..ASKED {
        timeout(SOON, answers.message()).await.unwrap().unwrap().unwrap();
    }
    // One for the stream, two at once.
    assert!(begun.elapsed() > Duration::from_secs(3), "{:?}", begun.elapsed());
}

/// What is done for a stream ends with its answers, whether or not its client has said all it wanted to.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_stream_past_its_deadline() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    let (sender, _connected) = connect(&proxy).await;
    let mut head = head("grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
    head.headers_mut().insert("grpc-timeout", "10m".parse().unwrap());
    let (response, mut stream) = sender.ready().await.unwrap().send_request(head, false).unwrap();
    let mut answers = response.await.unwrap().into_body();
    let trailers = timeout(SOON, poll_fn(|cx| answers.poll_trailers(cx))).await.unwrap().unwrap().unwrap();
    assert_eq!(Status::from_header_map(&trailers).unwrap().code(), Code::DeadlineExceeded);
    let reset = timeout(SOON, poll_fn(|cx| stream.poll_reset(cx))).await.expect("the request is let go").unwrap();
    assert_eq!(reset, h2::Reason::NO_ERROR);
}
