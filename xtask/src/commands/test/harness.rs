//! What a test binary of another project asks for while it runs: proxies before members that it started itself, and
//! whole etcds with a proxy each. The other side is `tools/harness/harness.go`.
//!
//! A question and its answer are a line of JSON each, on a connection of their own. What was started is watched over
//! here and ended with the harness; the calls that each proxy served are read from its metrics at its end.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{
    cluster::http_get,
    process::{Process, Spec},
    site::{Site, free_port},
};

/// How long a process may take to answer for the first time.
const READY: Duration = Duration::from_secs(60);

/// How long a proxy may take to find its member ready. Some tests connect to members that never are.
const MEMBER: Duration = Duration::from_secs(5);

/// How long a question may take to arrive.
const QUESTION: Duration = Duration::from_secs(10);

/// The programs that a harness starts.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    /// etcd-proxy; without it, who asks for an etcd gets that itself.
    pub(super) etcd_proxy: Option<PathBuf>,
    /// The etcd of those who ask for a whole one.
    pub(super) etcd: PathBuf,
    /// Flags of that etcd which depend on its version.
    pub(super) progress_notify_flag: &'static str,
}

/// The harness of one test.
pub(super) struct Harness {
    address: SocketAddr,
    desk: Arc<Desk>,
    clerk: Option<JoinHandle<()>>,
}

/// What a test did, as its harness saw it.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// For each proxy, how many calls it was asked.
    pub(super) calls: Vec<u64>,
    /// The methods called at members past the proxies, and how often.
    pub(super) direct: BTreeMap<String, u64>,
    /// What the harness could not do.
    pub(super) faults: Vec<String>,
}

struct Desk {
    site: Site,
    name: String,
    programs: Programs,
    started: AtomicUsize,
    running: Mutex<BTreeMap<String, Running>>,
    account: Mutex<Account>,
    closed: AtomicBool,
}

/// A proxy with the address of its metrics, and an etcd with its data. Dropped in this order.
#[derive(Default)]
struct Running {
    proxy: Option<(Process, String)>,
    etcd: Option<(Process, PathBuf)>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Question {
    Proxy(ProxyRequest),
    Etcd(EtcdRequest),
    End(String),
    Saw(String),
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ProxyRequest {
    endpoint: String,
    directory: PathBuf,
    tls: Option<Box<TlsFiles>>,
    max_request_bytes: u32,
    max_txn_ops: u32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TlsFiles {
    cert: PathBuf,
    key: PathBuf,
    client_cert: PathBuf,
    client_key: PathBuf,
    trusted_ca: PathBuf,
    #[serde(default)]
    min_version: String,
    #[serde(default)]
    max_version: String,
    #[serde(default)]
    cipher_suites: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EtcdRequest {
    #[serde(default)]
    progress_notify_millis: u64,
}

#[derive(Default, Serialize)]
struct Answer {
    address: String,
    error: String,
}

impl Harness {
    /// Opens a harness for the test `name`; its processes log in the site under that name.
    pub(super) fn open(site: &Site, programs: &Programs, name: &str) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("listening for the tests' questions")?;
        let address = listener.local_addr()?;
        let desk = Arc::new(Desk {
            site: site.clone(),
            name: name.to_owned(),
            programs: programs.clone(),
            started: AtomicUsize::new(0),
            running: Mutex::default(),
            account: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        let clerk = std::thread::spawn({
            let desk = Arc::clone(&desk);
            move || serve(&listener, &desk)
        });
        Ok(Self { address, desk, clerk: Some(clerk) })
    }

    /// Where it is asked, for the variable `HARNESS_ADDRESS`.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends what still runs and tells what was seen.
    pub(super) fn close(mut self) -> Account {
        self.stop();
        let left = std::mem::take(&mut *self.desk.running.lock());
        for running in left.into_values() {
            self.desk.end(running);
        }
        std::mem::take(&mut *self.desk.account.lock())
    }

    fn stop(&mut self) {
        self.desk.closed.store(true, Ordering::Release);
        // Wakes the clerk, which waits for a connection.
        drop(TcpStream::connect(self.address));
        if let Some(clerk) = self.clerk.take() {
            // A panic of it was told on standard error.
            let _ = clerk.join();
        }
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Answers each question on a thread of its own: members start at the same time, and each wants its proxy.
fn serve(listener: &TcpListener, desk: &Desk) {
    std::thread::scope(|scope| {
        for connection in listener.incoming() {
            if desk.closed.load(Ordering::Acquire) {
                return;
            }
            let Ok(connection) = connection else { continue };
            scope.spawn(|| {
                if let Err(error) = desk.answer(connection) {
                    // The test has gone, or speaks something else; only what it was refused counts as a fault.
                    desk.fault(&error.context("a question of the test"));
                }
            });
        }
    });
}

impl Desk {
    fn answer(&self, connection: TcpStream) -> Result<()> {
        connection.set_read_timeout(Some(QUESTION))?;
        let mut line = String::new();
        if BufReader::new(&connection).read_line(&mut line)? == 0 {
            // The test has gone before it had asked anything, as when it panics.
            return Ok(());
        }
        let question = serde_json::from_str(&line).with_context(|| format!("{line:?}"))?;
        let answer = self.act(question).map(|address| Answer { address, ..Answer::default() });
        let answer = answer.unwrap_or_else(|error| {
            self.fault(&error);
            Answer { error: format!("{error:#}"), ..Answer::default() }
        });
        let mut text = serde_json::to_string(&answer)?;
        text.push('\n');
        // A test that was ended while it waited does not hear the answer.
        let _ = (&connection).write_all(text.as_bytes());
        Ok(())
    }

    fn act(&self, question: Question) -> Result<String> {
        match question {
            Question::Proxy(request) => self.proxy(&request, None),
            Question::Etcd(request) => {
                let (etcd, data, address) = self.etcd(&request)?;
                if self.programs.etcd_proxy.is_none() {
                    let running = Running { proxy: None, etcd: Some((etcd, data)) };
                    self.running.lock().insert(address.clone(), running);
                    return Ok(address);
                }
                let endpoint = format!("http://{address}");
                let request =
                    ProxyRequest { endpoint, directory: self.site.dir().to_path_buf(), ..ProxyRequest::default() };
                self.proxy(&request, Some((etcd, data)))
            }
            Question::End(address) => {
                let running = self.running.lock().remove(&address);
                self.end(running.with_context(|| format!("nothing runs at {address}"))?);
                Ok(String::new())
            }
            Question::Saw(method) => {
                *self.account.lock().direct.entry(method).or_default() += 1;
                Ok(String::new())
            }
        }
    }

    fn proxy(&self, request: &ProxyRequest, etcd: Option<(Process, PathBuf)>) -> Result<String> {
        let program = self.programs.etcd_proxy.as_ref().context("this harness has no proxy to give")?;
        let address = format!("127.0.0.1:{}", free_port()?);
        let metrics = format!("http://127.0.0.1:{}", free_port()?);
        let scheme = if request.tls.is_some() { "https" } else { "http" };
        let spec = Spec::new(self.process_name("proxy"), program)
            .in_dir(&request.directory)
            .arg("serve")
            .flag("endpoints", &request.endpoint)
            .flag("prefix", "/suite/")
            .flag("listen-client-urls", format!("{scheme}://{address}"))
            .flag("listen-metrics-urls", &metrics);
        // An etcd with a proxy of its own has no other tenant, and its history is the test's.
        let alone = ["--compaction-policy=passthrough", "--compaction-min-age=0s"];
        let spec = etcd.iter().flat_map(|_| alone).fold(spec, Spec::arg);
        let limits = [("max-request-bytes", request.max_request_bytes), ("max-txn-ops", request.max_txn_ops)];
        let given = limits.into_iter().filter(|(_, limit)| *limit > 0);
        let spec = given.fold(spec, |spec, (flag, limit)| spec.flag(flag, limit.to_string()));
        let spec = match &request.tls {
            None => spec,
            Some(tls) => spec
                .flag("cert-file", &tls.cert)
                .flag("key-file", &tls.key)
                .flag("trusted-ca-file", &tls.trusted_ca)
                .arg("--client-cert-auth")
                .flag("cacert", &tls.trusted_ca)
                .flag("cert", &tls.client_cert)
                .flag("key", &tls.client_key)
                .flag("cert-reload-interval", "100ms")
                .flag("tls-min-version", &tls.min_version)
                .flag("tls-max-version", &tls.max_version)
                .flag("cipher-suites", tls.cipher_suites.join(",")),
        };
        let proxy = Process::spawn(&self.site, spec)?;
        proxy.wait_until("the proxy's /livez", READY, || http_get(&format!("{metrics}/livez")))?;
        // Not ready is no fault: what the test does to the member is the test's.
        let _ = proxy.wait_until("the proxy's /readyz", MEMBER, || http_get(&format!("{metrics}/readyz")));
        self.running.lock().insert(address.clone(), Running { proxy: Some((proxy, metrics)), etcd });
        Ok(address)
    }

    /// A new etcd without certificates, its data and its address. It does not wait for the disk: nothing outlives it.
    fn etcd(&self, request: &EtcdRequest) -> Result<(Process, PathBuf, String)> {
        let name = self.process_name("etcd");
        let data = self.site.data(&name)?;
        let address = format!("127.0.0.1:{}", free_port()?);
        let url = format!("http://{address}");
        let peer = format!("http://127.0.0.1:{}", free_port()?);
        let mut spec = Spec::new(name, &self.programs.etcd)
            .flag("name", "etcd")
            .flag("data-dir", &data)
            .flag("listen-client-urls", &url)
            .flag("advertise-client-urls", &url)
            .flag("listen-peer-urls", &peer)
            .flag("initial-advertise-peer-urls", &peer)
            .flag("initial-cluster", format!("etcd={peer}"))
            .flag("log-level", "warn")
            .arg("--unsafe-no-fsync");
        if request.progress_notify_millis > 0 {
            spec = spec.flag(self.programs.progress_notify_flag, format!("{}ms", request.progress_notify_millis));
        }
        let etcd = Process::spawn(&self.site, spec)?;
        etcd.wait_until("etcd's /health", READY, || http_get(&format!("{url}/health")))?;
        Ok((etcd, data, address))
    }

    /// Reads what a proxy served, ends it and what is behind it.
    fn end(&self, running: Running) {
        let Running { proxy, etcd } = running;
        if let Some((proxy, metrics)) = proxy {
            match served(&proxy, &metrics).with_context(|| proxy.name().to_owned()) {
                Ok(calls) => self.account.lock().calls.push(calls),
                Err(error) => self.fault(&error),
            }
        }
        if let Some((etcd, data)) = etcd {
            drop(etcd);
            if let Err(error) = std::fs::remove_dir_all(&data) {
                self.fault(&anyhow::Error::from(error).context(format!("removing {}", data.display())));
            }
        }
    }

    fn process_name(&self, what: &str) -> String {
        format!("{}-{what}-{}", self.name, self.started.fetch_add(1, Ordering::Relaxed))
    }

    fn fault(&self, error: &anyhow::Error) {
        self.account.lock().faults.push(format!("{error:#}"));
    }
}

/// How many calls a proxy was asked.
fn served(proxy: &Process, metrics: &str) -> Result<u64> {
    if let Some(status) = proxy.ended()? {
        bail!("it ended by itself: {status}");
    }
    Ok(calls(&http_get(&format!("{metrics}/metrics"))?))
}

/// How many calls began, by a proxy's metrics.
fn calls(metrics: &str) -> u64 {
    let samples = metrics.lines().filter(|line| line.starts_with("grpc_server_started_total"));
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_summed_over_methods() {
        let text = "# TYPE grpc_server_started counter\n\
                    grpc_server_started_total{grpc_method=\"Range\"} 2\n\
                    grpc_server_started_total{grpc_method=\"Put\"} 3\n\
                    grpc_server_handled_total{grpc_method=\"Put\"} 7\n";
        assert_eq!(calls(text), 5);
    }

    #[test]
    fn questions_are_what_the_go_side_writes() {
        let proxy = r#"{"proxy":{"endpoint":"unix://localhost:m0","directory":"/tmp/x"}}"#;
        assert!(matches!(serde_json::from_str(proxy).unwrap(), Question::Proxy(request) if request.tls.is_none()));
        let tls = r#"{"cert":"c","key":"k","clientCert":"c","clientKey":"k","trustedCa":"t""#;
        for (more, suites) in [("", 0), (r#","maxVersion":"TLS1.2","cipherSuites":["a","b"]"#, 2)] {
            let proxy = format!(r#"{{"proxy":{{"endpoint":"x","directory":"/","tls":{tls}{more}}}}}}}"#);
            let Question::Proxy(request) = serde_json::from_str(&proxy).unwrap() else { panic!("{proxy}") };
            assert_eq!(request.tls.unwrap().cipher_suites.len(), suites);
        }
        assert!(matches!(serde_json::from_str(r#"{"etcd":{}}"#).unwrap(), Question::Etcd(_)));
        assert!(
            matches!(serde_json::from_str(r#"{"saw":"/a/b"}"#).unwrap(), Question::Saw(method) if method == "/a/b")
        );
    }

    #[test]
    fn what_cannot_be_started_is_a_fault() {
        let site = Site::create(&std::env::temp_dir().join(format!("xtask-harness-{}", std::process::id()))).unwrap();
        let programs =
            Programs { etcd_proxy: Some("/nowhere".into()), etcd: "/nowhere".into(), progress_notify_flag: "unused" };
        let harness = Harness::open(&site, &programs, "test").unwrap();
        let mut stream = TcpStream::connect(harness.address()).unwrap();
        stream.write_all(b"{\"proxy\":{\"endpoint\":\"http://127.0.0.1:1\",\"directory\":\"/\"}}\n").unwrap();
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer).unwrap();
        assert!(answer.contains("/nowhere"), "{answer}");
        let account = harness.close();
        assert_eq!((account.faults.len(), account.calls.len()), (1, 0), "{account:?}");
        site.remove().unwrap();
    }
}
