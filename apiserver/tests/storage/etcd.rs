//! A real etcd in a child process.

use std::{
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use apiserver::storage::{
    Storage,
    etcd3::{Etcd3, Etcd3Options},
    testing::{Fixture, PATIENCE},
};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// An etcd of one member with its data. Dropping it kills the process and removes the data.
pub(crate) struct Etcd {
    child: Child,
    arguments: Vec<String>,
    pub(crate) url: String,
    pub(crate) dir: TempDir,
}

/// A store in an etcd of its own.
pub(crate) struct EtcdStore {
    pub(crate) storage: Arc<Etcd3>,
    pub(crate) etcd: Etcd,
}

impl Fixture for EtcdStore {
    fn storage(&self) -> Arc<dyn Storage> {
        Arc::<Etcd3>::clone(&self.storage)
    }
}

/// The etcd to run.
fn binary() -> PathBuf {
    std::env::var_os("TEST_ETCD")
        .expect("TEST_ETCD names no etcd to test with; run these tests by `cargo xtask test`, which sets it")
        .into()
}

/// A port that nothing listens on, and that no other test of this process gets. Below those that the system gives to
/// clients, and from a start that differs between processes.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + u16::try_from((std::process::id() * 131 + next) % 12_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Etcd {
    pub(crate) async fn start() -> Self {
        Self::start_with(|port, _| format!("http://127.0.0.1:{port}"), &[]).await
    }

    /// Starts an etcd that serves at a URL and with flags of the test's own. The data lies in memory's reach: no fsync,
    /// since it is the process that is killed here and not the machine.
    pub(crate) async fn start_with(url: impl Fn(u16, &TempDir) -> String, flags: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        let url = url(free_port(), &dir);
        let peer = format!("http://127.0.0.1:{}", free_port());
        let data = dir.path().join("data").display().to_string();
        let mut arguments: Vec<String> = [
            ("--name", "test"),
            ("--data-dir", &data),
            ("--listen-client-urls", &url),
            ("--advertise-client-urls", &url),
            ("--listen-peer-urls", &peer),
            ("--initial-advertise-peer-urls", &peer),
            ("--initial-cluster", &format!("test={peer}")),
            ("--log-level", "error"),
            ("--unsafe-no-fsync", "true"),
        ]
        .iter()
        .map(|(flag, value)| format!("{flag}={value}"))
        .collect();
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let child = Self::spawn(&arguments, &dir);
        Self { child, arguments, url, dir }
    }

    fn spawn(arguments: &[String], dir: &TempDir) -> Child {
        let log = std::fs::File::options().create(true).append(true).open(dir.path().join("log")).unwrap();
        let binary = binary();
        Command::new(&binary)
            .args(arguments)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", binary.display()))
    }

    /// Ends the process as a power failure would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn restart(&mut self) {
        self.child = Self::spawn(&self.arguments, &self.dir);
    }

    pub(crate) fn options(&self) -> Etcd3Options {
        Etcd3Options { servers: vec![self.url.clone()], ..Etcd3Options::default() }
    }

    /// A store in this etcd, when it answers.
    pub(crate) async fn store(self) -> EtcdStore {
        let storage = connect(self.options()).await;
        EtcdStore { storage, etcd: self }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _gone_already = self.child.wait();
        if std::thread::panicking() {
            eprintln!("etcd said: {}", std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default());
        }
    }
}

/// Connects, and waits until the member has a leader as well.
pub(crate) async fn connect(options: Etcd3Options) -> Arc<Etcd3> {
    let storage = Arc::new(options.connect().await.unwrap());
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = storage.current_revision().await {
        assert!(Instant::now() < deadline, "etcd does not answer: {error}");
        sleep(Duration::from_millis(20)).await;
    }
    storage
}
