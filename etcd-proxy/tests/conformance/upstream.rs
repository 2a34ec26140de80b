//! Connections to the upstream that nobody uses for a while.

use std::time::{Duration, Instant};

use etcd_proxy::upstream::{Endpoint, Upstream, UpstreamConfig, UpstreamMetrics};
use prometheus_client::registry::Registry;
use proto::etcdserverpb::RangeRequest;
use tonic::Code;

use crate::support::{Etcd, PATIENCE};

/// Between pings; far less than a configuration may say.
const PINGS: Duration = Duration::from_millis(100);

fn upstream(etcd: &Etcd) -> (Upstream, Registry) {
    let metrics = UpstreamMetrics::default();
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let endpoint = Endpoint::parse(&etcd.url(), false).unwrap();
    let config = UpstreamConfig {
        keepalive_time: Some(PINGS),
        keepalive_timeout: PINGS * 5,
        metrics,
        ..UpstreamConfig::new(vec![endpoint], None)
    };
    (Upstream::new(config), registry)
}

fn get() -> RangeRequest {
    RangeRequest { key: "k".into(), ..Default::default() }
}

/// etcd hangs up on whoever pings without a stream, however seldom.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_stays() {
    let etcd = Etcd::start_with(&["--grpc-keepalive-min-time=10ms"]).await;
    let (upstream, registry) = upstream(&etcd);
    for _ in 0..3 {
        upstream.kv().range(get()).await.unwrap();
        tokio::time::sleep(PINGS * 10).await;
    }
    upstream.kv().range(get()).await.unwrap();
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let dials = format!("upstream_dials_total{{endpoint=\"{}\",result=\"ok\"}} 1\n", etcd.url());
    assert!(text.contains(&dials), "{text}");
}

/// Not pinging the idle ones, a dead one is found by the next request, in the time that pings take.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_died_idle_is_found_out() {
    let etcd = Etcd::start_with(&["--grpc-keepalive-min-time=10ms"]).await;
    let (upstream, _registry) = upstream(&etcd);
    upstream.kv().range(get()).await.unwrap();
    tokio::time::sleep(PINGS * 3).await;
    etcd.signal("STOP");
    let asked = Instant::now();
    let refused = tokio::time::timeout(PATIENCE, upstream.kv().range(get())).await.expect("an end in time");
    etcd.signal("CONT");
    assert_eq!(refused.unwrap_err().code(), Code::Unavailable);
    assert!(asked.elapsed() < PINGS * 20, "{:?}", asked.elapsed());
}
