//! A TCP forwarder in the test's own hands: a network that can fail on demand.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

pub(crate) struct Forwarder {
    pub(crate) address: String,
    pub(crate) accepted: Arc<AtomicUsize>,
    /// Whether the connections that there are keep answers to themselves; they end when this is dropped.
    mute: Arc<Mutex<watch::Sender<bool>>>,
    task: JoinHandle<()>,
}

impl Forwarder {
    pub(crate) async fn start(to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accepted = Arc::new(AtomicUsize::new(0));
        let mute = Arc::new(Mutex::new(watch::channel(false).0));
        let to = to.strip_prefix("http://").unwrap().to_owned();
        let (count, present) = (accepted.clone(), mute.clone());
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                let (to, mut cut) = (to.clone(), present.lock().subscribe());
                let mute = cut.clone();
                connections.spawn(async move {
                    let server = TcpStream::connect(&to).await.unwrap();
                    let (mut from_client, mut to_client) = client.into_split();
                    let (mut from_server, mut to_server) = server.into_split();
                    let up = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
                    let down = async {
                        let mut buffer = [0; 4096];
                        loop {
                            let length = from_server.read(&mut buffer).await?;
                            if length == 0 {
                                return Ok(());
                            }
                            if !*mute.borrow() {
                                to_client.write_all(&buffer[..length]).await?;
                            }
                        }
                    };
                    tokio::select! {
                        result = up => result,
                        result = down => result,
                        _gone = cut.wait_for(|_| false) => Ok(()),
                    }
                });
            }
        });
        Self { address, accepted, mute, task }
    }

    /// What the server answers on the connections that there are is lost.
    pub(crate) fn lose_answers(&self) {
        self.mute.lock().send_replace(true);
    }

    /// Ends the connections that there are. Later ones are whole.
    pub(crate) fn cut(&self) {
        *self.mute.lock() = watch::channel(false).0;
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}
