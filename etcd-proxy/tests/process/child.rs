//! Programs as child processes that end with the test.

use std::{
    env,
    ffi::OsStr,
    fs,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::signal;

/// Longest time for anything that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A running program; its output is in a file.
pub(crate) struct Program {
    pub(crate) child: Child,
    log: PathBuf,
}

/// An etcd of its own for one test.
pub(crate) struct Etcd {
    dir: TempDir,
    pub(crate) url: String,
    peer: String,
    flags: Vec<String>,
    variable: &'static str,
    program: Option<Program>,
}

/// An etcd-proxy, listening on loopback.
pub(crate) struct Proxy {
    pub(crate) program: Program,
    pub(crate) url: String,
    pub(crate) metrics: String,
    _dir: TempDir,
}

pub(crate) fn binary(variable: &str) -> PathBuf {
    let path = env::var_os(variable)
        .unwrap_or_else(|| panic!("{variable} is not set: run `cargo xtask test`, which finds or builds the binaries"));
    PathBuf::from(path)
}

/// An address on loopback that is free for now.
pub(crate) fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Polls until `probe` answers.
pub(crate) async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(start.elapsed() < SOON, "{what}: not within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

// === impl Program ===

impl Program {
    pub(crate) fn spawn(mut command: Command, log: PathBuf) -> Self {
        let file = fs::OpenOptions::new().append(true).create(true).open(&log).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, log }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until the log says so: a program may write it a moment after it did what is told.
    pub(crate) async fn logged(&self, words: &str) -> String {
        eventually(&format!("\"{words}\" in {}", self.log.display()), async || {
            Some(self.log()).filter(|log| log.contains(words))
        })
        .await
    }

    pub(crate) fn signal(&self, name: &str) {
        signal::send(self.child.id(), name);
    }

    pub(crate) async fn exit(&mut self) -> ExitStatus {
        let log = self.log.clone();
        let child = &mut self.child;
        eventually(&format!("end of the program, which logged {}", fs::read_to_string(&log).unwrap()), async || {
            child.try_wait().unwrap()
        })
        .await
    }

    /// Bytes of memory in use.
    pub(crate) fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// The most bytes of memory that ever were in use.
    pub(crate) fn most_resident(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        // A program that has ended and was not waited for has none.
        let Some(line) = status.lines().find_map(|line| line.strip_prefix(name)) else { return 0 };
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Processor time used so far.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        // Linux counts in hundredths of a second wherever a person can see it (USER_HZ).
        Duration::from_millis(ticks * 10)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

// === impl Etcd ===

impl Etcd {
    /// An etcd that speaks plaintext on loopback.
    pub(crate) async fn start() -> Self {
        Self::start_with(format!("http://{}", free_address()), &[]).await
    }

    /// An etcd at `url` with more flags.
    pub(crate) async fn start_with(url: String, flags: &[String]) -> Self {
        let mut etcd = Self::prepare(url, flags);
        etcd.run().await;
        etcd
    }

    /// An etcd of the binary that another variable names.
    pub(crate) async fn start_binary(variable: &'static str) -> Self {
        let mut etcd = Self { variable, ..Self::prepare(format!("http://{}", free_address()), &[]) };
        etcd.run().await;
        etcd
    }

    /// An etcd that is not running yet.
    pub(crate) fn prepare(url: String, flags: &[String]) -> Self {
        let peer = format!("http://{}", free_address());
        Self { dir: TempDir::new().unwrap(), url, peer, flags: flags.to_vec(), variable: "TEST_ETCD", program: None }
    }

    /// Starts it, or starts it again with its data.
    pub(crate) async fn run(&mut self) {
        let advertise = if self.url.starts_with("http") { self.url.as_str() } else { "http://127.0.0.1:1" };
        let mut command = Command::new(binary(self.variable));
        command
            .arg("--data-dir")
            .arg(self.dir.path().join("data"))
            .args(["--listen-client-urls", &self.url, "--advertise-client-urls", advertise])
            .args(["--listen-peer-urls", &self.peer, "--initial-advertise-peer-urls", &self.peer])
            .args(["--initial-cluster", &format!("default={}", self.peer), "--unsafe-no-fsync"])
            .args(&self.flags);
        self.program = Some(Program::spawn(command, self.dir.path().join("log")));
        eventually("etcd serves", async || {
            let program = self.program.as_mut().unwrap();
            assert!(program.child.try_wait().unwrap().is_none(), "etcd ended: {}", program.log());
            program.log().contains("ready to serve client requests").then_some(())
        })
        .await;
        // The log of an earlier run says so, too.
        if let Some(address) = self.url.strip_prefix("http://") {
            eventually("etcd accepts", async || tokio::net::TcpStream::connect(address).await.ok()).await;
        }
    }

    pub(crate) fn kill(&mut self) {
        self.program = None;
    }

    pub(crate) fn signal(&self, name: &str) {
        self.program.as_ref().unwrap().signal(name);
    }

    /// etcdctl on the etcd itself (plaintext).
    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        ok(etcdctl(&self.url, &[], args))
    }
}

// === impl Proxy ===

impl Proxy {
    /// A plaintext proxy for `prefix` that is ready.
    pub(crate) async fn start(prefix: &str, etcd: &Etcd, flags: &[&str]) -> Self {
        let proxy = Self::spawn(prefix, &etcd.url, flags);
        proxy.ready().await;
        proxy
    }

    /// A plaintext proxy for `prefix` that may not be ready.
    pub(crate) fn spawn(prefix: &str, endpoints: &str, flags: &[&str]) -> Self {
        let url = format!("http://{}", free_address());
        Self::spawn_at(url, prefix, endpoints, flags)
    }

    /// A plaintext proxy that may open `files` file descriptors and no more.
    pub(crate) fn spawn_limited(prefix: &str, endpoints: &str, files: u32) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {files} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_etcd-proxy")]);
        Self::run(command, format!("http://{}", free_address()), prefix, endpoints, &[])
    }

    /// A plaintext proxy with environment variables in place of flags.
    pub(crate) fn spawn_with_environment(prefix: &str, endpoints: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_etcd-proxy"));
        command.envs(variables.iter().copied());
        Self::run(command, format!("http://{}", free_address()), prefix, endpoints, &[])
    }

    pub(crate) fn spawn_at(url: String, prefix: &str, endpoints: &str, flags: &[&str]) -> Self {
        Self::run(Command::new(program()), url, prefix, endpoints, flags)
    }

    fn run(mut command: Command, url: String, prefix: &str, endpoints: &str, flags: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        let metrics = format!("http://{}", free_address());
        command
            .args(["--prefix", prefix, "--endpoints", endpoints, "--listen-client-urls", &url])
            .args(["--listen-metrics-urls", &metrics])
            .args(flags);
        let program = Program::spawn(command, dir.path().join("log"));
        Self { program, url, metrics, _dir: dir }
    }

    pub(crate) async fn ready(&self) {
        eventually("the proxy is ready", async || {
            assert!(!self.program.log().contains("not serving"), "{}", self.program.log());
            let answer = crate::http::get(&format!("{}/readyz", self.metrics)).await;
            answer.is_some_and(|answer| answer.status == 200).then_some(())
        })
        .await;
    }

    /// etcdctl through the proxy (plaintext).
    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        ok(etcdctl(&self.url, &[], args))
    }

    pub(crate) fn channel(&self) -> tonic::transport::Channel {
        tonic::transport::Endpoint::from_shared(self.url.clone()).unwrap().connect_lazy()
    }
}

/// The program under test: this build's, or the mutant that `cargo xtask mutations` names.
fn program() -> PathBuf {
    env::var_os("TEST_MUTANT").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_etcd-proxy")), PathBuf::from)
}

/// Runs etcd-proxy to its end, which must come soon.
pub(crate) fn etcd_proxy<S: AsRef<OsStr>>(args: &[S]) -> Output {
    let mut command = Command::new("timeout");
    command.arg(SOON.as_secs().to_string()).arg(env!("CARGO_BIN_EXE_etcd-proxy")).args(args);
    let output = command.stdin(Stdio::null()).output().unwrap();
    // What timeout(1) exits with when it had to end the program.
    assert_ne!(output.status.code(), Some(124), "still running: {output:?}");
    output
}

/// Runs etcdctl.
pub(crate) fn etcdctl(endpoint: &str, flags: &[&str], args: &[&str]) -> Output {
    Command::new(binary("TEST_ETCDCTL"))
        .args(["--endpoints", endpoint, "--command-timeout", "5s", "--dial-timeout", "3s"])
        .args(flags)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Standard output of a program that succeeded.
pub(crate) fn ok(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Standard error of a program that failed.
pub(crate) fn fails(output: Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}
