//! A log that nobody reads.

use std::{
    io::Read as _,
    process::{Child, ChildStderr, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use proto::etcdserverpb::{PutRequest, RangeRequest, kv_client::KvClient};
use serde_json::Value;
use tokio::time::timeout;
use tonic::{Code, transport::Endpoint};

use crate::{
    child::{Etcd, eventually, free_address},
    http::get,
    signal,
};

/// Calls at a time.
const ROUND: usize = 100;
/// For a round, on a machine that does much else.
const LONG: Duration = Duration::from_secs(60);
const STOPPED: &str = r#""message":"stopped""#;
const LOST: &str = "lines of this log were lost";

/// A proxy that logs a lot into a pipe.
struct Talkative {
    child: Child,
    pipe: Option<ChildStderr>,
    url: String,
    metrics: String,
    calls: usize,
}

impl Talkative {
    async fn start(etcd: &Etcd) -> Self {
        let (url, metrics) = (format!("http://{}", free_address()), format!("http://{}", free_address()));
        let mut child = Command::new(env!("CARGO_BIN_EXE_etcd-proxy"))
            .args(["--prefix", "/a/", "--endpoints", &etcd.url, "--listen-client-urls", &url, "--access-log"])
            .args(["--listen-metrics-urls", &metrics])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pipe = child.stderr.take();
        let proxy = Self { child, pipe, url, metrics, calls: 0 };
        eventually("the proxy is ready", async || {
            get(&format!("{}/readyz", proxy.metrics)).await.filter(|answer| answer.status == 200)
        })
        .await;
        proxy
    }

    async fn lost(&self) -> u64 {
        let metrics = format!("{}/metrics", self.metrics);
        let metrics = timeout(LONG, get(&metrics)).await.expect("the proxy goes on").unwrap().body;
        let line = metrics.lines().find_map(|line| line.strip_prefix("etcd_proxy_log_lines_lost_total "));
        line.unwrap().parse().unwrap()
    }

    /// Calls until lines are lost.
    async fn flood(&mut self) {
        let channel = Endpoint::from_shared(self.url.clone()).unwrap().connect_lazy();
        while self.lost().await == 0 {
            // Refused without a look at the etcd.
            let calls = (0..ROUND).map(|_| {
                let mut kv = KvClient::new(channel.clone());
                async move { kv.range(RangeRequest::default()).await.unwrap_err().code() }
            });
            let codes = timeout(LONG, futures::future::join_all(calls)).await.expect("the proxy goes on");
            assert!(codes.iter().all(|&code| code == Code::InvalidArgument), "{codes:?}");
            self.calls += ROUND;
        }
        // And it still serves.
        let put = PutRequest { key: "k".into(), ..Default::default() };
        timeout(LONG, KvClient::new(channel).put(put)).await.expect("an answer").unwrap();
        self.calls += 1;
    }

    async fn stop(&mut self) {
        signal::send(self.child.id(), "TERM");
        let child = &mut self.child;
        let status = eventually("its end", async || child.try_wait().unwrap()).await;
        assert_eq!(status.code(), Some(0));
    }
}

impl Drop for Talkative {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_nobody_reads_stops_nothing_and_tells_what_it_lost() {
    let etcd = Etcd::start().await;
    let mut proxy = Talkative::start(&etcd).await;
    proxy.flood().await;
    // Read at last, it goes on.
    let text = Arc::new(Mutex::new(Vec::new()));
    let (mut pipe, read) = (proxy.pipe.take().unwrap(), text.clone());
    let reader = thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = pipe.read(&mut piece) {
            read.lock().extend_from_slice(&piece[..length]);
        }
    });
    let text = || String::from_utf8_lossy(&text.lock()).into_owned();
    eventually("it says that lines were lost", async || text().contains(LOST).then_some(())).await;
    let counted = proxy.lost().await;
    proxy.stop().await;
    reader.join().unwrap();
    let text = text();
    assert!(text.lines().last().unwrap().contains(STOPPED), "{:?}", text.lines().last());
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("{line}")));
    let (mut calls, mut told) = (0, 0);
    for line in lines {
        calls += usize::from(line["target"] == "etcd_proxy::access");
        if line["message"].as_str().unwrap().starts_with(LOST) {
            told += line["lines"].as_u64().unwrap();
        }
    }
    assert_eq!(told, counted);
    let lost = usize::try_from(told).unwrap();
    assert!(calls < proxy.calls && calls + lost >= proxy.calls, "{calls} and {lost} of {}", proxy.calls);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_nobody_reads_does_not_hold_up_the_end() {
    let etcd = Etcd::start().await;
    let mut proxy = Talkative::start(&etcd).await;
    proxy.flood().await;
    proxy.stop().await;
}
