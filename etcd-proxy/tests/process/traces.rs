//! Traces, as a collector receives them.

use std::{collections::HashMap, sync::Arc};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind},
};
use parking_lot::Mutex;
use proto::etcdserverpb::{
    PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, kv_client::KvClient, watch_client::WatchClient,
    watch_request::RequestUnion,
};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Code, Request, Response, Status, transport::Server};

use crate::{
    child::{Etcd, Proxy, eventually},
    deep::ask,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// A collector. Keeps what it receives with the resource it is of.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Received>>>);

/// What a span is of, and the span.
type Received = (HashMap<String, String>, Span);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for spans in request.into_inner().resource_spans {
            let resource = attributes(&spans.resource.unwrap().attributes);
            for span in spans.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                self.0.lock().push((resource.clone(), span));
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = Server::builder().add_service(TraceServiceServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        address
    }

    fn spans(&self, name: &str, kind: SpanKind) -> Vec<Span> {
        let spans = self.0.lock();
        spans.iter().map(|(_, span)| span).filter(|span| span.name == name && span.kind() == kind).cloned().collect()
    }
}

fn attributes(attributes: &[KeyValue]) -> HashMap<String, String> {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.clone(), text(&attribute.value))).collect()
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn traced<T>(message: T, flags: &str) -> Request<T> {
    let mut request = Request::new(message);
    let parent = format!("00-{TRACE}-{CALLER}-{flags}");
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clients_trace_goes_on_through_the_proxy_into_the_upstream() {
    // Upstream and proxy have collectors of their own, so that it is seen what the upstream heard of the trace.
    let (ours, theirs) = (Collector::default(), Collector::default());
    let tracing = |address: &str| {
        vec!["--enable-distributed-tracing".to_owned(), format!("--distributed-tracing-address={address}")]
    };
    let etcd =
        Etcd::start_with(format!("http://{}", crate::child::free_address()), &tracing(&theirs.start().await)).await;
    let mut flags = tracing(&ours.start().await);
    flags.extend(
        ["--distributed-tracing-instance-id=a-1", "--distributed-tracing-service-name=tenant-a"].map(str::to_owned),
    );
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut proxy = Proxy::start("/a/", &etcd, &flags).await;

    let mut kv = KvClient::new(proxy.channel());
    let put = PutRequest { key: "geheim".into(), value: "geheim".into(), ..Default::default() };
    kv.put(traced(put, "01")).await.unwrap();
    // Neither says that it is to be traced: the rate is 0.
    kv.range(RangeRequest { key: "geheim".into(), ..Default::default() }).await.unwrap();
    kv.range(traced(RangeRequest { key: "geheim".into(), ..Default::default() }, "00")).await.unwrap();
    // An error, and a stream that is broken off.
    kv.range(traced(RangeRequest { key: "geheim".into(), revision: 1_000_000, ..Default::default() }, "01"))
        .await
        .unwrap_err();
    let create = WatchCreateRequest { key: "geheim".into(), ..Default::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let (requests, receiver) = tokio::sync::mpsc::channel(1);
    requests.send(create).await.unwrap();
    let receiver = ReceiverStream::new(receiver);
    let mut watch = WatchClient::new(proxy.channel()).watch(traced(receiver, "01")).await.unwrap().into_inner();
    assert!(watch.message().await.unwrap().unwrap().created);
    // Only with both directions given up does the client's library reset the stream.
    drop((watch, requests));

    let server =
        eventually("the span of the Put", async || ours.spans("etcdserverpb.KV/Put", SpanKind::Server).pop()).await;
    assert_eq!((hex(&server.trace_id), hex(&server.parent_span_id)), (TRACE.to_owned(), CALLER.to_owned()));
    let told = attributes(&server.attributes);
    assert_eq!(
        (&*told["rpc.service"], &*told["rpc.method"], &*told["rpc.grpc.status_code"]),
        ("etcdserverpb.KV", "Put", "0")
    );
    assert!(told["network.peer.address"].starts_with("127.0.0.1:"), "{told:?}");
    let client =
        eventually("the upstream call", async || ours.spans("etcdserverpb.KV/Put", SpanKind::Client).pop()).await;
    assert_eq!((&client.trace_id, &client.parent_span_id), (&server.trace_id, &server.span_id));
    assert!(
        client.start_time_unix_nano >= server.start_time_unix_nano
            && client.end_time_unix_nano > client.start_time_unix_nano
    );
    let at_etcd = eventually("etcd's span", async || theirs.spans("etcdserverpb.KV/Put", SpanKind::Server).pop()).await;
    assert_eq!((&at_etcd.trace_id, &at_etcd.parent_span_id), (&server.trace_id, &client.span_id));

    // The end of the stream must have been heard of before the proxy ends it itself.
    let watch =
        eventually("the span of the watch", async || ours.spans("etcdserverpb.Watch/Watch", SpanKind::Server).pop())
            .await;
    assert_eq!(attributes(&watch.attributes)["rpc.grpc.status_code"], "1");
    kv.range(traced(RangeRequest { key: "last".into(), ..Default::default() }, "01")).await.unwrap();

    // What is left is exported when the process ends.
    proxy.program.signal("TERM");
    assert!(proxy.program.exit().await.success());
    let ranges = ours.spans("etcdserverpb.KV/Range", SpanKind::Server);
    let codes: Vec<String> =
        ranges.iter().map(|span| attributes(&span.attributes)["rpc.grpc.status_code"].clone()).collect();
    assert_eq!(codes, ["11", "0"], "{ranges:?}");
    assert_eq!(ours.spans("etcdserverpb.Watch/Watch", SpanKind::Client).len(), 1);
    for (resource, span) in ours.0.lock().iter() {
        assert_eq!((&*resource["service.name"], &*resource["service.instance.id"]), ("tenant-a", "a-1"));
        assert_eq!(hex(&span.trace_id), TRACE, "{span:?}");
        assert!(!format!("{span:?}").contains("geheim"), "{span:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_clients_that_do_not_trace_are_sampled_at_the_rate() {
    let collector = Collector::default();
    let etcd = Etcd::start().await;
    let address = format!("--distributed-tracing-address={}", collector.start().await);
    let flags = ["--enable-distributed-tracing", &address, "--distributed-tracing-sampling-rate=1000000"];
    let proxy = Proxy::start("/a/", &etcd, &flags).await;
    proxy.ctl(&["put", "k", "v"]);
    let span = eventually("a span", async || collector.spans("etcdserverpb.KV/Put", SpanKind::Server).pop()).await;
    assert!(span.parent_span_id.is_empty(), "{span:?}");
    assert_eq!(collector.0.lock()[0].0["service.name"], "etcd-proxy");
}

/// Clients may write what they like into a path.
#[tokio::test(flavor = "multi_thread")]
async fn methods_that_are_not_served_have_one_name_in_traces() {
    let collector = Collector::default();
    let etcd = Etcd::start().await;
    let address = format!("--distributed-tracing-address={}", collector.start().await);
    let flags = ["--enable-distributed-tracing", &address, "--distributed-tracing-sampling-rate=1000000"];
    let proxy = Proxy::start("/a/", &etcd, &flags).await;
    for (path, code) in [
        ("/geheim.KV/Put", Code::Unimplemented),
        ("/etcdserverpb.KV/geheim", Code::Unimplemented),
        ("/geheim", Code::Unimplemented),
        ("/etcdserverpb.KV/Put", Code::InvalidArgument),
        ("/grpc.health.v1.Health/Check", Code::Ok),
    ] {
        let status = ask(&proxy, path, b"").await;
        assert_eq!(status.code(), code, "{path}: {status:?}");
    }
    let all = eventually("all spans", async || {
        let spans: Vec<Span> = collector.0.lock().iter().map(|(_, span)| span.clone()).collect();
        let spans: Vec<Span> = spans.into_iter().filter(|span| span.kind() == SpanKind::Server).collect();
        (spans.len() == 5).then_some(spans)
    })
    .await;
    let mut names: Vec<&str> = all.iter().map(|span| &*span.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["_OTHER", "_OTHER", "_OTHER", "etcdserverpb.KV/Put", "grpc.health.v1.Health/Check"]);
    assert!(!format!("{all:?}").contains("geheim"), "{all:?}");
}

/// A collector that is not there costs its spans and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_down_holds_nothing_up() {
    let etcd = Etcd::start().await;
    let address = format!("--distributed-tracing-address={}", crate::child::free_address());
    let flags = ["--enable-distributed-tracing", &address, "--distributed-tracing-sampling-rate=1000000"];
    let mut proxy = Proxy::start("/a/", &etcd, &flags).await;
    for _ in 0..10 {
        proxy.ctl(&["put", "k", "v"]);
    }
    proxy.program.signal("TERM");
    assert!(proxy.program.exit().await.success());
}
