//! How to reach etcd: what can be said about it, and what is checked before anything is dialled.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Etcd3, Root,
    dial::{Target, TlsFiles, Transport},
    lane::Lane,
    lease::Leases,
    probe::Probe,
};

/// How to reach etcd and where in it to keep things.
#[derive(Clone, Debug)]
pub struct Etcd3Options {
    /// `--etcd-servers`: `https://HOST:PORT`, `http://HOST:PORT` or `unix:PATH`, at least one. `HOST:PORT` is https when
    /// there is a CA file.
    pub servers: Vec<String>,
    /// `--etcd-prefix`: the root below which all keys lie; slashes at its ends do not matter.
    pub prefix: String,
    /// `--etcd-cafile`: PEM certificates of the CA that signed etcd's certificate. Needed for https.
    pub ca_file: Option<PathBuf>,
    /// `--etcd-certfile`: PEM certificate to show to etcd. This and the other files are read anew for each connection.
    pub cert_file: Option<PathBuf>,
    /// `--etcd-keyfile`: PEM key of that certificate.
    pub key_file: Option<PathBuf>,
    /// How many connections carry calls. Watches have one of their own.
    pub connections: usize,
    /// How long one attempt to connect to one server may take.
    pub dial_timeout: Duration,
    /// How long one call may take, repetitions included.
    pub request_timeout: Duration,
    /// For how long what may be repeated is repeated while etcd cannot be reached.
    pub retry_for: Duration,
    /// After how much silence a connection that is in use is tested. etcd refuses less than 5 s.
    pub keepalive_interval: Duration,
    /// How long the answer to that test may take.
    pub keepalive_timeout: Duration,
    /// How long [`Storage::ready`] waits for an answer.
    pub ready_timeout: Duration,
}

/// What is wrong with [`Etcd3Options`], or why etcd cannot be reached at the start.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// No server was given.
    #[error("no etcd server is given (--etcd-servers)")]
    NoServers,
    /// A server's address cannot be used.
    #[error("etcd server {server:?}: {why}")]
    Server {
        /// As it was given.
        server: String,
        /// What is wrong with it.
        why: String,
    },
    /// Some of the TLS files were given, and others are missing for them to have a meaning.
    #[error("{0}")]
    Tls(&'static str),
    /// A TLS file cannot be used.
    #[error("{}: {why}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A time or number is out of its range.
    #[error("{0}")]
    Range(&'static str),
    /// No server answered.
    #[error("etcd cannot be reached: {0}")]
    Unreachable(String),
}

// === impl Etcd3Options ===

impl Default for Etcd3Options {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            prefix: "/registry".to_owned(),
            ca_file: None,
            cert_file: None,
            key_file: None,
            connections: 2,
            dial_timeout: Duration::from_secs(20),
            request_timeout: Duration::from_secs(30),
            retry_for: Duration::from_secs(5),
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(10),
            ready_timeout: Duration::from_secs(2),
        }
    }
}

impl Etcd3Options {
    /// Checks the options and connects. Waits until a server answers, for `dial_timeout` at most.
    ///
    /// # Errors
    /// When something is wrong with the options or no server answers.
    pub async fn connect(self) -> Result<Etcd3, OptionsError> {
        let patience = Instant::now() + self.dial_timeout;
        let etcd = self.build().await?;
        loop {
            match etcd.watches.connection().await {
                Ok(_) => return Ok(etcd),
                Err(why) if Instant::now() >= patience => return Err(OptionsError::Unreachable(why)),
                Err(why) => tracing::info!(%why, "waiting for etcd"),
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// Checks the options, and leaves connecting to the first call.
    ///
    /// # Errors
    /// When something is wrong with the options.
    pub async fn build(self) -> Result<Etcd3, OptionsError> {
        let files = self.tls_files()?;
        let targets: Vec<_> =
            self.servers.iter().map(|server| Target::parse(server, files.as_ref())).collect::<Result<_, _>>()?;
        if targets.is_empty() {
            return Err(OptionsError::NoServers);
        }
        if let Some(files) = &files {
            if !targets.iter().any(Target::uses_tls) {
                return Err(OptionsError::Tls("TLS files are given for etcd, but no server is https"));
            }
            files.load().await?;
        }
        if self.keepalive_interval < Duration::from_secs(5) {
            return Err(OptionsError::Range("etcd ends connections that are tested more often than every 5 s"));
        }
        let transport = Transport {
            dial_timeout: self.dial_timeout,
            keepalive_interval: self.keepalive_interval,
            keepalive_timeout: self.keepalive_timeout,
            // Large static windows: a small one makes a long list take a round trip per window, and h2 ends connections
            // on which many small frames wait unread, measured by the connection's window.
            stream_window: 16 << 20,
            connection_window: 128 << 20,
        };
        // Watches whose readers stand still keep a window each, 256 of them before the others are concerned.
        let for_watches = Transport { stream_window: 4 << 20, connection_window: 1 << 30, ..transport };
        let targets: Arc<[Target]> = targets.into();
        let spread: usize = rand::random_range(0..targets.len());
        let root = Root::new(&self.prefix);
        let health = root.key("/health");
        let lane = |transport, number: usize| {
            let first = (spread + number) % targets.len();
            Lane::new(Arc::clone(&targets), transport, health.clone(), first)
        };
        Ok(Etcd3 {
            calls: (0..self.connections.max(1)).map(|number| lane(transport, number)).collect(),
            next_call: AtomicUsize::new(0),
            watches: lane(for_watches, 0),
            leases: Leases::default(),
            probe: Probe::new(health.clone(), self.ready_timeout),
            request_timeout: self.request_timeout,
            retry_for: self.retry_for,
            root,
        })
    }

    fn tls_files(&self) -> Result<Option<TlsFiles>, OptionsError> {
        let identity = match (&self.cert_file, &self.key_file) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            _ => return Err(OptionsError::Tls("--etcd-certfile and --etcd-keyfile go together; one is missing")),
        };
        match (&self.ca_file, identity) {
            (Some(ca), identity) => Ok(Some(TlsFiles { ca: ca.clone(), identity })),
            (None, None) => Ok(None),
            (None, Some(_)) => {
                Err(OptionsError::Tls("--etcd-certfile needs --etcd-cafile, the CA that signed etcd's certificate"))
            }
        }
    }
}
